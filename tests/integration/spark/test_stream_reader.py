"""Streams of Spark, while much happens to the feed, to the publisher and to the driver."""

import json
import threading
from contextlib import contextmanager
from itertools import count, repeat
from urllib.parse import urlsplit

import pytest
from harness.faults.plan import Fault, Plan
from harness.faults.proxy import proxying
from harness.laid_out_feed import ReadFeed
from harness.peer import peer_python, run_peer
from harness.shop import metadata, orders, place
from harness.spark_kills import killed_streams
from harness.waiting import until
from harness.web import serving
from sqlalchemy import create_engine, func, select, text
from starlette.applications import Starlette

from zeroeventhub import feed_routes
from zeroeventhub.protocol import CAUGHT_UP, STOP

__all__ = ["peer_python"]

PATIENCE = 60
"""Seconds in which a query ends that reads what is there."""

EXTENSIONS = pytest.mark.parametrize(
    "extensions",
    [(STOP, CAUGHT_UP), pytest.param((), marks=pytest.mark.test_all)],
    ids=["with stop", "plain"],
)


class Stream:
    """Be a stream, whose query may be started and stopped.

    Args:
        spark: the session.
        folder: of its checkpoint and its rows.
        url: of the feed.
        options: of the source.
    """

    def __init__(self, spark, folder, url, **options):
        self.folder = folder
        self._spark = spark
        self._source = {"startingOffsets": "earliest", **options, "path": url}

    def writing(self, schema=None):
        """Say what to write, which may be done again."""
        reader = self._spark.readStream.format("zeroeventhub").options(**self._source)
        events = (reader.schema(schema) if schema else reader).load()
        return events.writeStream.option("checkpointLocation", str(self.folder / "checkpoint"))

    def into_parquet(self):
        """Write files."""
        return self.writing().option("path", str(self.folder / "rows"))

    def rows(self):
        """Return partition and data of what is in the files, by the numbers of events."""
        rows = self._spark.read.parquet(str(self.folder / "rows")).collect()
        return sorted((json.loads(row.data)["n"], row.partition) for row in rows)

    @property
    def committed(self):
        """Count the batches that are done."""
        return len(list((self.folder / "checkpoint" / "commits").glob("[0-9]*")))


def read_all(writing):
    """Read what is there, and end."""
    query = writing.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE), "The query does not end."
    return query


@contextmanager
def running(writing):
    """Read on meanwhile."""
    query = writing.start()
    try:
        yield query
    finally:
        query.stop()


def write(engine, amount, first=0):
    """Write orders."""
    with engine.begin() as connection:
        place(connection, amount, first=first, partitions=2)


def table(engine):
    """Return what a stream has to have: the numbers of events, and their partitions."""
    with engine.connect() as connection:
        found = connection.execute(select(orders.c.part, orders.c.data))
        return sorted((data["n"], part) for part, data in found)


@pytest.fixture
def empty_shop(any_engine):
    """A shop's database without orders."""
    metadata.create_all(any_engine)
    return any_engine


def test_stream_reads_what_is_there_in_batches(spark, shop, publish, tmp_path):
    """A query by Trigger.AvailableNow reads all in batches of a limit, and its heir goes on."""
    with publish(shop) as url:
        stream = Stream(spark, tmp_path, url, maxOffsetsPerTrigger=60)
        query = read_all(stream.into_parquet())
        assert stream.committed == 4
        first, *_, last = [one for one in query.recentProgress if one["numInputRows"]]
        write(shop, 20, first=200)
        read_all(stream.into_parquet())
        assert stream.committed == 5
        read_all(stream.into_parquet())
        assert stream.committed == 5
    assert stream.rows() == table(shop)
    (before,), (after,) = first["sources"], last["sources"]
    assert before["endOffset"] != before["latestOffset"] == after["endOffset"]
    assert after["latestOffset"] == after["endOffset"]


@pytest.mark.test_all
def test_stream_beside_writers(spark, empty_shop, publish, tmp_path):
    """A stream that runs while others write has what they wrote."""
    with publish(empty_shop) as url:
        stream = Stream(spark, tmp_path, url)

        def work(first):
            for number in count(first, 7):
                write(empty_shop, 7, first=number)
                if stream.committed > 2 or number > first + 20_000:
                    return

        with running(stream.into_parquet()) as query:
            writers = [threading.Thread(target=work, args=[100_000 * one]) for one in range(3)]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join(PATIENCE)
            assert not any(writer.is_alive() for writer in writers)
            query.processAllAvailable()
    assert stream.rows() == table(empty_shop)


@pytest.mark.test_all
def test_publisher_that_cuts_and_restarts(spark, empty_shop, publish, tmp_path):
    """A publisher that refuses, cuts its answers and is away for a while costs time, no event."""
    write(empty_shop, 600)
    kinds = (Fault.REFUSE, Fault.CUT, Fault.TRUNCATED, Fault.RESET, Fault.CUT)
    plans = [Plan(kind, 300 * number) for number, kind in enumerate(kinds, 1)]
    options = {"maxOffsetsPerTrigger": 200, "attempts": 30, "pageSize": 50}
    with publish(empty_shop) as first, proxying(first) as (proxy, through):
        stream = Stream(spark, tmp_path, through, **options)
        proxy.follow(plans)
        read_all(stream.into_parquet())
        assert len(proxy.happened) > len(plans)
        with running(stream.into_parquet()) as query:
            proxy.follow(repeat(Plan(Fault.REFUSE)))
            write(empty_shop, 300, first=600)
            until(lambda: len(proxy.happened) > 2, "the publisher refuses")
            with publish(empty_shop) as second:
                parts = urlsplit(second)
                proxy.target = parts.hostname, parts.port
                proxy.follow(())
                query.processAllAvailable()
    assert stream.rows() == table(empty_shop)


@pytest.mark.test_all
def test_batches_with_a_transaction_of_their_own(spark, shop, publish, tmp_path):
    """What foreachBatch writes with the batch's number, in one transaction, is there once."""
    target = create_engine(f"sqlite:///{tmp_path / 'target.db'}")
    with target.begin() as connection:
        connection.execute(text("CREATE TABLE copies (n INTEGER)"))
        connection.execute(text("CREATE TABLE batches (batch INTEGER PRIMARY KEY)"))
    dying = [1, 3]

    def land(rows, batch):
        with target.begin() as connection:
            seen = connection.scalar(text("SELECT max(batch) FROM batches"))
            if seen is not None and batch <= seen:
                return
            connection.execute(text("INSERT INTO batches VALUES (:batch)"), {"batch": batch})
            found = [{"n": row.n} for row in rows.select("n").collect()]
            connection.execute(text("INSERT INTO copies VALUES (:n)"), found)
        if batch in dying:
            dying.remove(batch)
            raise RuntimeError("The driver dies behind the commit.")

    with publish(shop) as url:
        stream = Stream(spark, tmp_path, url, maxOffsetsPerTrigger=40)
        writing = stream.writing("n INT").foreachBatch(land)
        for _ in range(2):
            with pytest.raises(Exception, match="dies behind the commit"):
                read_all(writing)
        read_all(writing)
    with target.connect() as connection:
        found = connection.execute(text("SELECT n FROM copies")).scalars().all()
        assert connection.scalar(select(func.count()).select_from(text("batches"))) == 5
    assert sorted(found) == list(range(200))
    target.dispose()


@pytest.mark.test_all
def test_stream_that_is_stopped_while_nothing_comes(spark, empty_shop, publish, tmp_path):
    """A query that waits for events ends when it is stopped."""
    with publish(empty_shop) as url:
        stream = Stream(spark, tmp_path, url)
        with running(stream.into_parquet()) as query:
            until((tmp_path / "checkpoint" / "offsets").exists, "the query has begun")
        assert not query.isActive
        assert query.exception() is None


def served(feed):
    """Serve a feed of one's own."""
    return serving(Starlette(routes=feed_routes("", feed)))


def append(feed, amount):
    """Publish events of six keys."""
    for number in range(amount):
        feed.append(number % 6)


@EXTENSIONS
def test_batch_that_is_run_again(spark, tmp_path, extensions):
    """A batch that failed is the same one after a restart, whatever was published meanwhile."""
    feed = ReadFeed(2, frozenset(extensions))
    append(feed, 50)
    tried = []

    def fail_once(rows, _):
        tried.append([(row.partition, row.data) for row in rows.collect()])
        if len(tried) == 2:
            append(feed, 15)
            raise RuntimeError("The driver dies.")

    with served(feed) as url:
        writing = Stream(spark, tmp_path, url, maxOffsetsPerTrigger=20).writing()
        with pytest.raises(Exception, match="The driver dies"):
            read_all(writing.foreachBatch(fail_once))
        read_all(writing.foreachBatch(fail_once))
    assert tried[1] == tried[2]
    done = [batch for number, batch in enumerate(tried, 1) if number != 2]
    found = [json.loads(data)["n"] for batch in done for _, data in batch]
    assert sorted(found) == list(range(1, len(feed.rows) + 1))


@pytest.mark.test_all
@EXTENSIONS
def test_partitions_that_change_while_a_stream_runs(spark, tmp_path, extensions):
    """Splits and redistributions in the middle of a stream cost no event and keep keys in order."""
    feed = ReadFeed(2, frozenset(extensions))
    seen = []

    def collect(rows, _):
        seen.extend((row.partition, json.loads(row.data)) for row in rows.collect())

    with served(feed) as url:
        writing = Stream(spark, tmp_path, url, maxOffsetsPerTrigger=20).writing()
        writing = writing.foreachBatch(collect)
        with running(writing) as query:
            append(feed, 60)
            feed.layout = feed.layout.split(0, into=2)
            append(feed, 60)
            query.processAllAvailable()
            feed.layout = feed.layout.redistribute(by=2)
            append(feed, 30)
            query.processAllAvailable()
        feed.layout = feed.layout.split(feed.layout.partitions[-1].id, into=2)
        append(feed, 60)
        feed.layout = feed.layout.redistribute(by=2)
        append(feed, 30)
        read_all(writing)
    assert len({partition for partition, _ in seen}) > 4
    for key in range(6):
        assert [one["n"] for _, one in seen if one["key"] == key] == feed.published(key)


@pytest.mark.test_all
def test_stream_of_a_peer(spark, tmp_path, peer_python):
    """A feed of ZeroEventHub v1, published by another program, is read once over restarts."""
    process = run_peer(peer_python, "server.py")
    options = {"v1Partitions": 2, "maxOffsetsPerTrigger": 14, "includeHeaders": "true"}
    try:
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}/feed/v1"
        stream = Stream(spark, tmp_path, url, **options)
        for _ in range(2):
            read_all(stream.into_parquet())
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert stream.committed > 2
    assert stream.rows() == sorted((n, partition) for partition in range(2) for n in range(25))


@pytest.mark.timeout(600)  # Spark is started anew after each kill
@pytest.mark.parametrize(
    ("database", "kills"),
    [("sqlite", 1), pytest.param("postgresql", 4, marks=pytest.mark.test_all)],
)
def test_driver_that_is_killed(request, tmp_path, database, kills):
    """A driver that is killed with its JVM at any moment costs no event, and doubles none."""
    url = request.getfixturevalue(f"{database}_url")
    findings = killed_streams(url, tmp_path, seed=0, kills=kills)
    assert findings.complaints == []
    assert findings.counts["events"] > 0
