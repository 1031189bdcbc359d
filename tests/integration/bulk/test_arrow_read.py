"""A feed as a stream of record batches: each row once, and cursors that fit what came."""

import gc
import json
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import chain, count, islice

import pyarrow as pa
import pytest
from harness.faults.proxy import Fault, proxying
from harness.faults.proxy import Plan as Faults
from harness.laid_out_feed import ChangingFeed, ReadFeed
from harness.published import install
from harness.readers import client_of, mounted
from harness.shop import fill, orders, write
from harness.spark_reading import read as read_by_spark
from harness.stores import new_store
from harness.waiting import until
from sqlalchemy import create_engine, insert, update

from zeroeventhub import Client, Consumer, Retention, TableFeed, TypeFilter, read_arrow
from zeroeventhub.errors import (
    ConfigurationError,
    PageTooLarge,
    ProtocolError,
    Unavailable,
    Unreachable,
)
from zeroeventhub.extensions import CURSOR_OF_COUNT, SPLITS, STOP
from zeroeventhub.testing import no_pauses

MORE = pytest.mark.test_all
SMALL = {"page_size": 3, "readers": 3}


def numbers(batches):
    """The numbers of the events of batches, by partition, as they came."""
    found = {}
    for batch in batches:
        for row in batch.to_pylist():
            found.setdefault(row["partition"], []).append(json.loads(row["data"])["n"])
    return found


def everything(url, **options):
    """The numbers of the rows of a read, in their order within a partition."""
    return numbers(read_arrow(url, **{**SMALL, **options}).reader)


def together(*parts):
    """Join what several reads have found."""
    found = {}
    for part in parts:
        for partition, some in part.items():
            found[partition] = found.get(partition, []) + some
    return found


def in_order(found):
    """The numbers of all partitions, sorted."""
    return sorted(chain.from_iterable(found.values()))


def from_any_batch(url, **options):
    """Read on from the cursors after each batch, and expect the rows that were not handed over."""
    whole = after = everything(url, **options)
    taken = count(0, 7)
    while after:
        read = read_arrow(url, **{**SMALL, **options})
        before = numbers(islice(read.reader, next(taken)))
        after = everything(url, **options, start=read.cursors)
        assert together(before, after) == whole
    return whole


def test_rows_before_and_after_any_batch_are_the_feed(shop, publish):
    """A read that goes on from the cursors after any batch has the rest, in order, and no more."""
    with publish(shop) as url:
        assert from_any_batch(url, page_size=9) == {
            part: [*range(part, 200, 2)] for part in range(2)
        }


def test_cursors_fit_what_came_out_of_files(any_engine, sealed, origins, monkeypatch):
    """There is no cursor within a file, so its part of a piece is one batch."""
    monkeypatch.setattr("zeroeventhub.bulk.segment_reader._ROWS", 2)
    with mounted(sealed, any_engine, arrow=True) as url:
        whole = from_any_batch(url, segment_origins=[origins])
        assert whole == {part: [*range(part, 90, 3)] for part in range(3)}
        with pytest.raises(ConfigurationError, match="segment_origins"):
            everything(url)
        assert everything(url, read_segments=False) == whole


@pytest.mark.parametrize("heeds_limits", [True, False])
@pytest.mark.parametrize("extensions", [(), (STOP,), (STOP, CURSOR_OF_COUNT)], ids=str)
def test_feed_with_few_extensions(extensions, heeds_limits):
    """A feed without extensions is read as well, also if its pages are longer than was asked."""
    feed = ReadFeed(2, frozenset(extensions))
    feed.heeds_limits = heeds_limits
    for number in range(30):
        feed.append(number % 17)
    with mounted(feed) as url:
        assert in_order(from_any_batch(url)) == [*range(1, 31)]
        read = read_arrow(url, **SMALL)
        for number in range(30):
            feed.append(number % 17)
        assert in_order(numbers(read.reader)) == [*range(1, 31)]
        assert in_order(everything(url, start=read.cursors)) == [*range(31, 61)]


@pytest.mark.parametrize(
    "extensions", [{STOP}, {STOP, SPLITS, CURSOR_OF_COUNT}], ids=["", "splits"]
)
@pytest.mark.parametrize("requests", [5, *(pytest.param(one, marks=MORE) for one in (0, 1, 3, 8))])
def test_layout_changes_before_and_in_a_read(extensions, requests):
    """What is left of a replaced partition comes from its heirs, once, and cursors are theirs."""
    for taken in (2, 9):
        feed = ChangingFeed(2, frozenset(extensions))
        for number in range(60):
            feed.append(number % 17)
        info, left = feed.info, count(requests, -1)

        def info_and_change(feed=feed, info=info, left=left):
            if next(left) == 0:
                feed.layout = feed.layout.redistribute(by=2).redistribute(by=3)
            return info()

        with mounted(feed) as url:
            feed.info = info_and_change
            read = read_arrow(url, page_size=2, readers=3)
            before = numbers(islice(read.reader, taken))
            if taken == 9:
                feed.layout = feed.layout.redistribute(by=2)
            found = together(before, everything(url, start=read.cursors))
        assert in_order(found) == [*range(1, 61)]


class SlowFeed(ChangingFeed):
    """A feed whose partition is replaced while its first piece is read, after the second one."""

    def __init__(self):
        super().__init__(1, frozenset({STOP, SPLITS, CURSOR_OF_COUNT}))
        for number in range(24):
            self.append(number % 17)
        self.passed = set()

    def read(self, partition, cursor, limit, *, stop=None):
        if partition == 0 and cursor == "2":
            until(lambda: {"8", "10", "12", "14"} <= self.passed, "the second piece is read")
            self.layout = self.layout.redistribute(by=2)
        page = super().read(partition, cursor, limit, stop=stop)
        self.passed.add(cursor)
        return page


def test_heirs_of_one_piece_and_the_partition_in_the_next():
    """Cursors fit also where a piece that comes later was read before the partitions changed."""
    for taken in range(4, 10):
        with mounted(SlowFeed()) as url:
            read = read_arrow(url, page_size=2, readers=2)
            before = numbers(islice(read.reader, taken))
            found = together(before, everything(url, start=read.cursors))
        assert in_order(found) == [*range(1, 25)], taken


def test_closed_partition_and_its_children(shop, publish):
    """Children of a closed partition are read from their beginning, and by the next call."""
    feed = ReadFeed(1, frozenset({STOP}))
    for number in range(9):
        feed.append(number)
    with mounted(feed) as url:
        read = read_arrow(url, **SMALL)
        before = numbers(read.reader)
        feed.layout = feed.layout.split(0, into=2)
        for number in range(9):
            feed.append(number)
        after = everything(url, start=read.cursors)
        assert 0 not in after
        assert in_order(together(before, after)) == [*range(1, 19)]
        assert everything(url, start={"0": read.cursors[0]}, partitions=[0]) == {}


def committed(page, engine):
    """Commit a page of a consumer; return its events."""
    with engine.begin() as connection:
        page.commit(connection)
    return page.events


def test_consumer_and_spark_go_on(shop, publish, tmp_path):
    """Where a read ended, another one, a consumer and Spark go on, each with the same rows."""
    engine = create_engine(f"sqlite:///{tmp_path / 'copy.db'}")
    store = new_store(engine)
    with publish(shop) as url, client_of(url) as client:
        read = read_arrow(client, **SMALL)
        table = pa.table(read)
        write(shop, 20, first=200, partitions=2)
        with engine.begin() as connection:
            for partition, cursor in read.cursors.items():
                store.load(connection, "copy", partition, start=cursor)
        pages = Consumer(client, store, "copy", follow=False)
        consumed = [event.data["n"] for page in pages for event in committed(page, engine)]
        offsets = json.dumps(read.cursors)
        rows = read_by_spark(url, startingOffsets=offsets)
        streamed = [json.loads(row["data"])["n"] for row in rows]
        following = read_arrow(url, start=json.loads(offsets))
        found = pa.table(following)
        assert everything(url, start=following.cursors) == {}
    assert in_order(numbers(table.to_batches())) == [*range(200)]
    for part in (consumed, streamed, in_order(numbers(found.to_batches()))):
        assert sorted(part) == [*range(200, 220)]


def test_read_between_cursors_and_moments(shop, publish):
    """A read starts and stops where it is told, and its end is fixed when it is planned."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with shop.begin() as connection:
        connection.execute(update(orders).values(placed=noon))
        late = update(orders).where(orders.c.id > 100)
        connection.execute(late.values(placed=noon + timedelta(days=1)))
    with publish(shop, time="placed", cloudevents="/shop") as url:
        tomorrow = noon + timedelta(hours=1)
        assert len(read_arrow(url, stop=tomorrow).reader.read_all()) == 100
        late = read_arrow(url, start=tomorrow)
        cursors = late.cursors
        write(shop, 10, first=200, partitions=2)
        assert len(late.reader.read_all()) == 100
        assert len(read_arrow(url, start=cursors, stop=late.cursors).reader.read_all()) == 100
        one = read_arrow(url, start=late.cursors, partitions=[1])
        assert len(one.reader.read_all()) == 5
        assert one.cursors[0] == late.cursors[0]
        # Nothing lies there, and still the next read begins there.
        never = read_arrow(url, start=noon + timedelta(days=9))
        assert never.reader.read_all().num_rows == 0
        assert everything(url, start=never.cursors) == {}
        before = read_arrow(url, start=late.cursors, stop=cursors)
        assert len(before.reader.read_all()) == 0
        assert before.cursors == late.cursors


def test_columns_have_the_types_of_a_schema(shop, publish):
    """Members of events become columns; an event that does not fit ends the read."""
    with shop.begin() as connection:
        connection.execute(insert(orders).values(data={"n": 200, "tags": ["a", "b"], "at": "x"}))
    schema = pa.schema({"n": pa.int64(), "tags": pa.list_(pa.string()), "partition": pa.int32()})
    with publish(shop) as url:
        table = pa.table(read_arrow(url, schema=schema, **SMALL))
        assert table.schema == schema
        assert sorted(table["n"].to_pylist()) == [*range(201)]
        assert {"n": 200, "tags": ["a", "b"], "partition": 0} in table.to_pylist()
        strict = read_arrow(url, schema=pa.schema({"at": pa.timestamp("us", "UTC")}))
        with pytest.raises(ProtocolError, match="does not fit the schema"):
            strict.reader.read_all()
        for kind in (pa.duration("s"), pa.timestamp("s"), pa.time32("s")):
            with pytest.raises(ConfigurationError, match="read the column as a string"):
                read_arrow(url, schema=pa.schema({"n": kind}))


def warned(caplog):
    """What reads have warned of."""
    return [one.getMessage() for one in caplog.records if one.name == "zeroeventhub.bulk"]


def test_columns_that_are_null_in_all_rows_are_warned_of_once(shop, publish, caplog):
    """At its end, a read with rows names a misspelt column, and no member that any event has."""
    with shop.begin() as connection:
        connection.execute(insert(orders).values(data={"n": 200, "rare": True}))
    schema = pa.schema({"n": pa.int64(), "nn": pa.int64(), "rare": pa.bool_()})
    with publish(shop) as url:
        read = read_arrow(url, schema=schema, **SMALL)
        next(iter(read.reader))
        assert warned(caplog) == []
        pa.table(read)
        pa.table(read_arrow(url, schema=schema, start=read.cursors))
    (warning,) = warned(caplog)
    assert "columns are null: nn. Compare" in warning


def test_flat_columns_of_cloud_events_are_warned_of_once(shop, publish, caplog):
    """Columns that are null because the events have an envelope get that warning alone."""
    with publish(shop, cloudevents="/shop") as url:
        pa.table(read_arrow(url, schema=pa.schema({"n": pa.int64()}), **SMALL))
    (warning,) = warned(caplog)
    assert "CloudEvents" in warning


def test_event_may_fill_a_page(sqlite, publish):
    """A read by an address takes events that a client with its own limits refuses."""
    with fill(sqlite, 2, partitions=2).begin() as connection:
        connection.execute(insert(orders).values(data={"n": 2, "text": "x" * (9 << 20)}))
    with publish(sqlite) as url:
        assert in_order(everything(url)) == [0, 1, 2]
        with client_of(url) as client, pytest.raises(PageTooLarge, match="page_bytes above it"):
            everything(client)


def test_types_are_chosen(shop, publish):
    """Only events of the types that are asked for become rows, and the cursors move past others."""
    with shop.begin() as connection:
        connection.execute(update(orders).where(orders.c.id % 10 == 0).values(kind="paid"))
    with publish(shop, type="kind", cloudevents="/shop") as url:
        read = read_arrow(url, types=TypeFilter(frozenset({"paid"})), **SMALL)
        assert pa.table(read)["type"].to_pylist() == ["paid"] * 20
        assert everything(url, start=read.cursors) == {}


@pytest.fixture
def _short_pauses():
    """Retries that do not wait."""
    with no_pauses():
        yield


@pytest.mark.usefixtures("_short_pauses")
def test_requests_that_fail_are_repeated(shop, publish):
    """Answers that are cut, broken or refused cost time and no row."""
    faults = [Fault.CUT, Fault.REFUSE, Fault.RESET, Fault.TRUNCATED]
    with publish(shop) as url, proxying(url) as (proxy, through):
        read = read_arrow(through, page_size=20)
        proxy.follow([Faults(fault, at) for at in (0, 1000) for fault in faults])
        assert in_order(numbers(read.reader)) == [*range(200)]
        assert proxy.happened
    with pytest.raises(Unreachable):
        pa.table(read_arrow(Client(through), read_segments=False))


class Counting(ReadFeed):
    """A feed of one long partition that counts requests for pages."""

    def __init__(self):
        super().__init__(1, frozenset({STOP}))
        for _ in range(400):
            self.append(0)
        self.requests = 0

    def read(self, partition, cursor, limit, *, stop=None):
        self.requests += 1
        return super().read(partition, cursor, limit, stop=stop)


def reading():
    """The threads that read."""
    return [one for one in threading.enumerate() if one.name.startswith("read_arrow")]


def test_reader_that_is_not_read_asks_no_further():
    """Few pages wait for their reader; where it is given up, the threads end."""
    feed = Counting()
    with mounted(feed) as url:
        read = read_arrow(url, readers=2)
        planned = feed.requests
        stream = read.reader
        assert feed.requests == planned
        stream.read_next_batch()
        until(lambda: feed.requests >= planned + 6, "pages are fetched ahead")
        time.sleep(0.2)
        assert feed.requests == planned + 6
        cursors = read.cursors
        del read, stream
        gc.collect()
        until(lambda: not reading(), "the threads end")
        assert feed.requests <= planned + 7
        assert everything(url, start=cursors)[0][0] == 5
    assert not reading()


def test_reader_that_is_given_up_waits_for_no_retry(caplog):
    """A thread that waits before it asks an overloaded feed again ends with its reader."""
    feed = Counting()
    whole = feed.read
    with mounted(feed) as url:
        stream = read_arrow(url, readers=1).reader
        planned = feed.requests

        def read(*place, **options):
            if feed.requests > planned + 1:
                raise Unavailable("Not now.", retry_after=300.0)
            return whole(*place, **options)

        feed.read = read
        stream.read_next_batch()
        until(lambda: "Retrying in" in caplog.text, "a thread waits")
        del stream
        gc.collect()
        until(lambda: not reading(), "the threads end")


def test_thread_that_cannot_be_started_ends_the_read(monkeypatch):
    """On a machine without room for another thread, no thread is left that waits for ever."""
    start = threading.Thread.start

    def start_one(thread):
        if thread.name == "read_arrow-1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with mounted(Counting()) as url:
        with pytest.raises(RuntimeError, match="can't start"):
            read_arrow(url, readers=2).reader.read_all()
        until(lambda: not reading(), "the threads end")


@pytest.mark.usefixtures("_short_pauses")
def test_error_of_one_partition_ends_the_read():
    """The error is the feed's, whichever thread met it."""
    feed = ReadFeed(2, frozenset({STOP}))
    for number in range(30):
        feed.append(number % 17)
    whole = feed.read

    def read(partition, cursor, limit, *, stop=None):
        if partition == 1 and cursor != "0" and stop is not None:
            raise Unavailable("Not now.", retry_after=0.0)
        return whole(partition, cursor, limit, stop=stop)

    with mounted(feed) as url:
        stream = read_arrow(url, **SMALL)
        feed.read = read
        with pytest.raises(Unavailable, match="Not now"):
            stream.reader.read_all()


def test_progress_is_told_and_drawn(shop, publish, capsys):
    """A function gets how many rows are read and how many there will be; a bar shows the same."""
    told = []
    with publish(shop) as url:
        pa.table(read_arrow(url, **SMALL, progress=lambda rows, total: told.append((rows, total))))
        pa.table(read_arrow(url, progress=True))
    assert told[-1] == (200, 200)
    assert [rows for rows, _ in told] == sorted(rows for rows, _ in told)
    assert "200/200" in capsys.readouterr().out
    feed, told = ReadFeed(1, frozenset({STOP})), []
    feed.append(0)
    with mounted(feed) as url:
        pa.table(read_arrow(url, progress=lambda *one: told.append(one)))
        pa.table(read_arrow(url, progress=True))
    assert told[-1] == (1, None)
    assert "1/?" in capsys.readouterr().out


def test_batch_whose_progress_fails_is_not_handed_over(shop, publish):
    """If the function for progress raises, the cursors stay before the rows not yet returned."""
    with publish(shop) as url:
        read = read_arrow(url, **SMALL, progress=lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            read.reader.read_all()
        assert in_order(everything(url, start=read.cursors)) == [*range(200)]


def test_pieces_of_a_partition_are_read_side_by_side(shop, publish, monkeypatch):
    """One partition is divided by the feed, and several threads read its pieces."""
    fetched = Counter()
    fetch = Client.fetch_arrow

    def noted(client, partition, cursor, **options):
        fetched[threading.get_ident()] += 1
        return fetch(client, partition, cursor, **options)

    monkeypatch.setattr(Client, "fetch_arrow", noted)
    with publish(shop) as url:
        options = {"partitions": [0], "page_size": 2, "readers": 4}
        assert everything(url, **options) == {0: [*range(0, 200, 2)]}
    assert len(fetched) == 4


@pytest.mark.parametrize("given", [{"readers": 0}, {"page_size": 0}, {"page_size": 10_001}])
def test_what_cannot_be_meant_is_refused(given):
    """A number out of its range is refused before anything is requested."""
    with pytest.raises(ConfigurationError, match="readers is 1 or more"):
        read_arrow("http://127.0.0.1:1/orders", **given)


@pytest.mark.parametrize(
    ("columns", "said"),
    [([("id", pa.int64()), ("id", pa.string())], "one name"), ([], "no columns")],
)
def test_columns_that_cannot_hold_the_rows_are_refused(columns, said):
    """A schema that names two columns alike, or none, is refused before anything is read."""
    with pytest.raises(ConfigurationError, match=said):
        read_arrow("http://127.0.0.1:1/orders", schema=pa.schema(columns))


@pytest.mark.parametrize("origins", ["file://", ["cdn.example"], ["https://cdn.example:port"]])
def test_origins_that_match_no_file_are_refused(origins):
    """What is no list of origins is refused before anything is requested."""
    with pytest.raises(ConfigurationError, match="segment_origins is a list of origins, such as"):
        read_arrow("http://127.0.0.1:1/orders", segment_origins=origins)


def test_cursor_of_a_quiet_partition_moves_past_what_is_trimmed(any_engine):
    """A partition without new events is read from where the last read of the feed has ended, so
    that a trim passes its cursor no earlier than those of the others.
    """
    fill(any_engine, 6, partitions=2)
    kept = {"data": "data", "partition": "part", "retention": Retention()}
    source = TableFeed(orders, partitions=2, **kept)
    install(source, any_engine)
    feed = source.bind(any_engine)
    with mounted(feed) as url:
        first = read_arrow(url)
        assert in_order(numbers(first.reader)) == [*range(6)]
        cursors = first.cursors
        for number in range(3):
            write(any_engine, 6, first=6 * number)  # in partition 0
            read = read_arrow(url, start=cursors)
            assert in_order(numbers(read.reader)) == [*range(6 * number, 6 * number + 6)]
            feed.trim(feed.plan_trim(below=cursors[0]))
            cursors = read.cursors
            assert cursors[0] == cursors[1]
