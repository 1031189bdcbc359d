"""What a batch reads: everything between two places, once, whatever happens meanwhile."""

import json
import threading
from datetime import UTC, datetime, timedelta

import pytest
from harness.faults.plan import Fault, Plan
from harness.faults.proxy import proxying
from harness.peer import peer_python, run_peer
from harness.peer_like import EVENTS, go_like
from harness.shop import metadata, orders, place
from harness.spark_reading import planned, read, rows_of
from harness.web import serving
from sqlalchemy import insert, select, update
from starlette.applications import Starlette

from zeroeventhub import FIRST, LAST, Event, FeedInfo, Page, TableFeed, errors, feed_routes
from zeroeventhub.layout import Layout
from zeroeventhub.protocol import EVENT_TYPES, STOP

__all__ = ["peer_python"]


def numbers(rows):
    """The numbers of events, in order."""
    return sorted(json.loads(row["data"])["n"] for row in rows)


@pytest.fixture
def shop(postgresql):
    """A table of a thousand orders in two partitions."""
    metadata.create_all(postgresql)
    with postgresql.begin() as connection:
        place(connection, 1000, partitions=2)
    return postgresql


def publish(engine, *, arrow=True, **options):
    """Serve the table as a feed."""
    given = {"partition": "part", "partitions": 2, "data": "data"} | options
    return serving(
        Starlette(routes=feed_routes("/orders", TableFeed(orders, **given), engine, arrow=arrow))
    )


@pytest.fixture
def url(shop):
    """The URL of the table's feed."""
    with publish(shop) as base:
        yield f"{base}/orders"


@pytest.mark.parametrize("arrow", [True, False])
@pytest.mark.parametrize("tasks", [1, 15])
def test_tasks_divide_the_history_while_it_is_written(shop, arrow, tasks):
    """Each event that was settled at planning is in one task, and none that was written later."""
    stopping = threading.Event()

    def write(number):
        while not stopping.is_set():
            with shop.begin() as connection:
                place(connection, 3, first=number, partitions=2)
                number += 3

    writers = [threading.Thread(target=write, args=[first]) for first in (10**6, 2 * 10**6)]
    with publish(shop, arrow=arrow) as base:
        for writer in writers:
            writer.start()
        try:
            with shop.connect() as connection:
                before = set(connection.scalars(select(orders.c.id)))
            reader, planned_tasks = planned(f"{base}/orders", minPartitions=tasks)
            with shop.begin() as connection:
                place(connection, 5, first=5 * 10**6, partitions=2)
            found = [numbers(rows_of(reader, [task])) for task in planned_tasks]
            again = [numbers(rows_of(reader, [task])) for task in reversed(planned_tasks)]
        finally:
            stopping.set()
            for writer in writers:
                writer.join()
    assert len(planned_tasks) >= tasks
    assert again == found[::-1]
    everything = sorted(number for part in found for number in part)
    assert len(everything) == len(set(everything))
    assert not set(everything) & set(range(5 * 10**6, 5 * 10**6 + 5))
    with shop.connect() as connection:
        of_before = connection.execute(select(orders.c.data).where(orders.c.id.in_(before)))
        assert {row.data["n"] for row in of_before} <= set(everything)
        for part in (0, 1):
            written = connection.execute(
                select(orders.c.data).where(orders.c.part == part).order_by(orders.c.id)
            )
            of_part = [row.data["n"] for row in written]
            read_of_part = [number for number in of_part if number in set(everything)]
            assert of_part[: len(read_of_part)] == read_of_part


def test_one_partition_is_read_by_several_tasks(shop):
    """A feed of one partition falls into tasks of about the same size, one behind the other."""
    with publish(shop, partition=None, partitions=None) as base:
        reader, tasks = planned(f"{base}/orders", minPartitions=4)
        parts = [numbers(rows_of(reader, [task])) for task in tasks]
    assert len(parts) >= 4
    assert [number for part in parts for number in part] == list(range(1000))
    assert min(map(len, parts)) > 100


def test_batch_ends_where_offsets_say(shop, url):
    """What one batch ended with, another starts with: nothing lies between, and nothing twice."""
    _, tasks = planned(url)
    ends = {str(one.partition): one.stop for task in tasks for one in task.ranges}
    with shop.begin() as connection:
        place(connection, 10, first=1000, partitions=2)
    text = json.dumps(ends)
    assert numbers(read(url, endingOffsets=text, minPartitions=3)) == list(range(1000))
    assert numbers(read(url, startingOffsets=text)) == list(range(1000, 1010))
    assert numbers(read(url, startingOffsets=text, endingOffsets=text)) == []
    whole = json.dumps({"token": "another", "cursors": ends | {"0": FIRST}})
    found = numbers(read(url, startingOffsets=whole))
    assert found == sorted([*range(0, 1010, 2), *range(1001, 1010, 2)])
    assert read(url, startingOffsets="latest") == []
    assert read(url, startingOffsets=json.dumps({"0": LAST, "1": LAST})) == []
    assert numbers(read(url, endingOffsets=json.dumps({"1": ends["1"]}))) == list(range(1, 1000, 2))
    assert numbers(read(url, partitions="1", startingOffsets="earliest")) == list(range(1, 1010, 2))


def test_offsets_that_leave_a_partition_out_are_refused(url):
    """Where to start is said of every partition that is read, or the batch is not planned."""
    with pytest.raises(errors.ConfigurationError, match="partition 1"):
        planned(url, startingOffsets=json.dumps({"0": FIRST}))
    assert read(url, startingOffsets=json.dumps({"0": LAST}), partitions="0") == []


def test_batch_is_between_two_moments(shop):
    """Moments choose events by the feed's own times, of all partitions or of single ones."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    with shop.begin() as connection:
        for row in connection.execute(select(orders.c.id, orders.c.data)).all():
            moment = begin + timedelta(minutes=row.data["n"])
            connection.execute(update(orders).where(orders.c.id == row.id).values(placed=moment))

    def at(minute):
        return int((begin + timedelta(minutes=minute)).timestamp() * 1000)

    with publish(shop, time="placed") as base:
        url = f"{base}/orders"
        found = read(url, startingTimestamp=at(100), endingTimestamp=at(200), minPartitions=3)
        assert numbers(found) == list(range(100, 200))
        found = read(url, startingOffsetsByTimestamp=json.dumps({"0": at(990), "1": at(995)}))
        assert numbers(found) == [990, 992, 994, 995, 996, 997, 998, 999]
        found = read(url, endingOffsetsByTimestamp=json.dumps({"1": at(4)}), endingTimestamp=at(2))
        assert numbers(found) == [0, 1, 3]
        with pytest.raises(errors.ConfigurationError, match="none for 1"):
            planned(url, startingOffsetsByTimestamp=json.dumps({"0": at(1)}))


def test_closed_partition_and_its_children_are_read(shop):
    """A batch has the events of a parent and of the partitions that start after it."""
    layout = Layout.of(2).split(1, into=2)
    with shop.begin() as connection:
        rows = [{"part": 2 + n % 2, "data": {"n": n}} for n in range(1000, 1100)]
        connection.execute(insert(orders), rows)
    with publish(shop, partitions=layout) as base:
        found = read(f"{base}/orders", minPartitions=7)
    assert numbers(found) == list(range(1100))
    assert {row["partition"] for row in found} == {0, 1, 2, 3}


class Shelf:
    """Publish events by a layout that may change; cursors are places among all events."""

    def __init__(self, *extensions, events=500):
        self.layout = Layout.of(2)
        self.extensions = frozenset(extensions)
        self.keys = [f"customer-{number % 17}" for number in range(events)]
        self.between = lambda: None

    def info(self):
        """Describe the layout of this moment, by which a request is answered."""
        self.between()
        info = self.layout.info()
        return FeedInfo(info.partitions, info.token, extensions=self.extensions)

    def read(self, partition, cursor, limit, *, stop=None):
        """Read events; a page at the head ends at the head of all partitions."""
        end = len(self.keys) if stop is None else int(stop)
        if cursor == LAST:
            return Page([], str(end))
        found = []
        for number in range(0 if cursor == FIRST else int(cursor), end):
            if self.layout.partition_of(self.keys[number]) == partition:
                found.append(Event.of({"n": number}))
                if len(found) == limit:
                    return Page(found, str(number + 1), stop_reached=str(number + 1) == stop)
        return Page(found, str(end), stop_reached=stop is not None)


@pytest.mark.parametrize("requests", [0, 1, 4, 8])
def test_layout_changes_before_and_in_a_task(requests):
    """What a partition still had to give is read from those that took its place, once."""
    shelf = Shelf(STOP)
    with serving(Starlette(routes=feed_routes("/shelf", shelf))) as base:
        reader, tasks = planned(f"{base}/shelf", pageSize=50)
        left = [requests]

        def change():
            left[0] -= 1
            if left[0] == -1:
                shelf.layout = shelf.layout.redistribute(by=2).redistribute(by=3)

        shelf.between = change
        if requests == 0:
            change()
        assert numbers(rows_of(reader, tasks)) == list(range(500))
        assert left[0] < 0


def test_partition_that_is_gone_is_told(shop):
    """Where nobody took the place of a partition, its events are not left out in silence."""
    layout = Layout.of(2).close(1)
    with publish(shop, partitions=layout) as base:
        reader, tasks = planned(f"{base}/orders")
        port = int(base.rsplit(":", 1)[1])
    feed = TableFeed(orders, partition="part", partitions=layout.drop(1), data="data")
    with (
        serving(Starlette(routes=feed_routes("/orders", feed, shop)), port),
        pytest.raises(errors.Gone, match="Partition 1"),
    ):
        rows_of(reader, tasks)


@pytest.mark.parametrize("size", [1000, 50, 7])
def test_feed_that_cannot_stop_is_read_by_count(size):
    """A feed that only describes itself and gives pages is read up to where it was planned."""
    shelf = Shelf()
    with serving(Starlette(routes=feed_routes("/shelf", shelf))) as base:
        reader, tasks = planned(f"{base}/shelf", pageSize=size, minPartitions=4)
        # The head of a partition moves on with events of others.
        shelf.keys += ["customer-0"] * 30
        assert numbers(rows_of(reader, tasks)) == list(range(500))
        assert numbers(rows_of(reader, tasks)) == list(range(500))
        with pytest.raises(errors.ConfigurationError, match="extension stop"):
            planned(f"{base}/shelf", endingOffsets=json.dumps({"0": "7", "1": "7"}))


def test_feed_that_cuts_elsewhere_is_told():
    """Where a count no longer leads to the same place, the events may be others."""
    shelf = Shelf()
    with serving(Starlette(routes=feed_routes("/shelf", shelf))) as base:
        reader, tasks = planned(f"{base}/shelf")
        shelf.keys.insert(0, shelf.keys[0])
        with pytest.raises(errors.ProtocolError, match="other places"):
            rows_of(reader, tasks)


@pytest.mark.timeout(600)  # the first run installs the peer
def test_published_peer_is_read_once(peer_python):
    """A feed of ZeroEventHub v1 is read with its headers, however small the pages are."""
    process = run_peer(peer_python, "server.py")
    try:
        port = process.stdout.readline().strip()
        for size in (4, 100):
            rows = read(
                f"http://127.0.0.1:{port}/feed/v1",
                v1Partitions=2,
                pageSize=size,
                includeHeaders="true",
            )
            found = sorted((row["partition"], json.loads(row["data"])["n"]) for row in rows)
            assert found == [(part, n) for part in range(2) for n in range(25)]
            assert all(dict(row["headers"]) for row in rows)
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_peer_that_is_silent_at_its_head_is_read_once():
    """A feed that answers with nothing at its head ends where its last event does."""
    with serving(go_like()) as base:
        rows = read(f"{base}/testfeed", attempts=2, pageSize=25)
    found = sorted((row["partition"], json.loads(row["data"])["Cursor"]) for row in rows)
    assert found == [(part, number) for part in range(3) for number in range(EVENTS)]


@pytest.mark.parametrize("arrow", [True, False])
def test_publisher_that_cuts_answers(shop, arrow):
    """Answers that are cut, broken or refused are asked for again, and no event comes twice."""
    with publish(shop, arrow=arrow) as base, proxying(f"{base}/orders") as (proxy, through):
        reader, tasks = planned(through, minPartitions=4)
        faults = [Fault.CUT, Fault.REFUSE, Fault.RESET, Fault.TRUNCATED, Fault.HALF_CLOSE]
        proxy.follow([Plan(fault, at) for at in (0, 300, 5000) for fault in faults])
        assert numbers(rows_of(reader, tasks)) == list(range(1000))
        assert len(proxy.happened) >= 15


def test_publisher_that_restarts_in_the_middle(shop):
    """A task goes on where it was when the publisher is there again."""
    with publish(shop) as base:
        reader, (task, *_) = planned(f"{base}/orders", pageSize=50)
        batches = reader.read(task)
        rows = next(batches).to_pylist()
        port = int(base.rsplit(":", 1)[1])
    feed = TableFeed(orders, partition="part", partitions=2, data="data")
    with serving(Starlette(routes=feed_routes("/orders", feed, shop)), port):
        rows += [row for batch in batches for row in batch.to_pylist()]
    assert numbers(rows) == list(range(0, 1000, 2))


@pytest.mark.parametrize("extensions", [None, (), (EVENT_TYPES,)], ids=["all", "none", "types"])
def test_types_are_chosen_by_the_feed_or_here(shop, extensions):
    """Events of other types are left out, whether the feed can do that or not."""
    with shop.begin() as connection:
        connection.execute(update(orders).where(orders.c.id % 3 == 0).values(kind="paid"))
        connection.execute(update(orders).where(orders.c.id % 3 == 1).values(kind=None))
        kinds = dict(connection.execute(select(orders.c.id, orders.c.kind)).all())
    feed = TableFeed(
        orders, partition="part", partitions=2, type="kind", cloudevents="/shop", data="data"
    )
    bound = feed.bind(shop)
    if extensions is not None:
        bound = Bare(bound, extensions)
    with serving(Starlette(routes=feed_routes("/orders", bound))) as base:
        for option, names, wanted in [
            ("eventTypes", "PAID", {"paid"}),
            ("skipEventTypes", "paid;other", {"placed", None}),
        ]:
            rows = read(f"{base}/orders", **{option: names}, minPartitions=4)
            expected = [str(identity) for identity, kind in kinds.items() if kind in wanted]
            assert sorted(row["id"] for row in rows) == sorted(expected)


class Bare:
    """Publish what another feed has, with few extensions."""

    def __init__(self, bound, extensions):
        self.bound = bound
        self.extensions = frozenset(extensions)

    def info(self):
        """Describe the feed."""
        info = self.bound.info()
        return FeedInfo(info.partitions, info.token, extensions=self.extensions)

    def read(self, partition, cursor, limit, **given):
        """Read a page."""
        return self.bound.read(partition, cursor, limit, **given)
