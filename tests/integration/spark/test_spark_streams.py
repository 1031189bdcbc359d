"""Streams of the feed of a table, while much happens to both."""

import threading
from contextlib import contextmanager
from itertools import count, repeat
from urllib.parse import urlsplit

import pytest
from harness.faults.plan import Fault, Plan
from harness.faults.proxy import proxying
from harness.shop import metadata, orders, place
from harness.spark_queries import PATIENCE, Stream, read_all, running, wait_until
from harness.web import serving
from sqlalchemy import create_engine, func, select, text
from starlette.applications import Starlette

from zeroeventhub import Principal, TableFeed, feed_routes
from zeroeventhub.errors import Unauthorized


@pytest.fixture
def shop(postgresql_url):
    """A shop's database."""
    engine = create_engine(postgresql_url)
    metadata.create_all(engine)
    yield engine
    engine.dispose()


def feed():
    """Make the feed of a shop's orders."""
    return TableFeed(orders, data="data", partition="part", partitions=2)


@contextmanager
def served(engine, **options):
    """Serve the orders; yield the feed's URL."""
    with serving(Starlette(routes=feed_routes("/orders", feed(), engine, **options))) as url:
        yield f"{url}/orders"


def address(url):
    """Return host and port."""
    parts = urlsplit(url)
    return parts.hostname, parts.port


def write(engine, amount, first=0):
    """Write orders."""
    with engine.begin() as connection:
        place(connection, amount, first=first, partitions=2)


def table(engine):
    """Return what a stream has to have: partition and data."""
    with engine.connect() as connection:
        found = connection.execute(select(orders.c.part, orders.c.data).order_by(orders.c.id))
        return [(part, data) for part, data in found]


def by_number(rows):
    """Sort rows by the number of their event."""
    return sorted(rows, key=lambda row: row[1]["n"])


def test_stream_reads_what_is_there_in_batches(spark, shop, tmp_path):
    """A query by Trigger.AvailableNow reads all in batches of a limit, and its heir goes on."""
    write(shop, 1000)
    with served(shop) as url:
        stream = Stream(spark, tmp_path, url, {"maxOffsetsPerTrigger": "300"})
        read_all(stream.into_parquet())
        assert stream.committed == 4
        assert by_number(stream.rows()) == table(shop)
        write(shop, 100, first=1000)
        read_all(stream.into_parquet())
        assert stream.committed == 5
        read_all(stream.into_parquet())
        assert stream.committed == 5
    assert by_number(stream.rows()) == table(shop)


def test_progress_says_where_the_feed_ends(spark, shop, tmp_path):
    """The progress of a micro-batch has the place where it ended, and where the feed did."""
    write(shop, 100)
    with served(shop) as url:
        stream = Stream(spark, tmp_path, url, {"maxOffsetsPerTrigger": "60"})
        query = stream.into_parquet().trigger(availableNow=True).start()
        assert query.awaitTermination(PATIENCE)
        first, *_, last = [one for one in query.recentProgress if one["numInputRows"]]
    (before,), (after,) = first["sources"], last["sources"]
    assert before["endOffset"] != before["latestOffset"] == after["endOffset"]
    assert after["latestOffset"] == after["endOffset"]


def test_stream_beside_writers(spark, shop, tmp_path):
    """A stream that runs while others write has what they wrote."""
    with served(shop) as url:
        stream = Stream(spark, tmp_path, url)

        def work(first):
            for number in count(first, 7):
                write(shop, 7, first=number)
                if stream.committed > 2:
                    return

        with running(stream.into_parquet()) as query:
            writers = [threading.Thread(target=work, args=[100_000 * one]) for one in range(3)]
            for writer in writers:
                writer.start()
            wait_until(lambda: not any(writer.is_alive() for writer in writers), query)
            query.processAllAvailable()
    assert by_number(stream.rows()) == by_number(table(shop))


def test_publisher_that_cuts_and_restarts(spark, shop, tmp_path):
    """A publisher that refuses, cuts its answers and is away for a while costs time, no event."""
    write(shop, 600)
    kinds = (Fault.REFUSE, Fault.CUT, Fault.TRUNCATED, Fault.RESET, Fault.CUT)
    plans = [Plan(kind, 300 * number) for number, kind in enumerate(kinds, 1)]
    options = {"maxOffsetsPerTrigger": "200", "attempts": "30", "pageSize": "50"}
    with served(shop) as first, proxying(first) as (proxy, through):
        stream = Stream(spark, tmp_path, through, options)
        proxy.follow(plans)
        read_all(stream.into_parquet())
        assert len(proxy.happened) > len(plans)
        with running(stream.into_parquet()) as query:
            proxy.follow(repeat(Plan(Fault.REFUSE)))
            write(shop, 300, first=600)
            wait_until(lambda: len(proxy.happened) > 2, query)
            with served(shop) as second:
                proxy.target = address(second)
                proxy.follow(())
                query.processAllAvailable()
    assert by_number(stream.rows()) == table(shop)


def test_bearer_token_that_is_replaced(spark, shop, tmp_path):
    """A token that is replaced in its file while a stream runs is taken from there."""
    file = tmp_path / "token"
    accepted = ["one"]

    def authorize(request):
        if request.headers.get("Authorization") != f"Bearer {accepted[-1]}":
            raise Unauthorized("Who is it?")
        return Principal(name="spark")

    with served(shop, authorize=authorize) as url:
        stream = Stream(spark, tmp_path, url, {"bearerTokenFile": str(file)})
        file.write_text(accepted[-1])
        write(shop, 100)
        with running(stream.into_parquet()) as query:
            query.processAllAvailable()
            file.write_text("two\n")
            accepted.append("two")
            write(shop, 100, first=100)
            query.processAllAvailable()
    assert by_number(stream.rows()) == table(shop)


def test_batches_with_a_transaction_of_their_own(spark, shop, tmp_path):
    """What foreachBatch writes with the batch's number, in one transaction, is there once."""
    write(shop, 500)
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
            numbers = [{"n": row.n} for row in rows.select("n").collect()]
            connection.execute(text("INSERT INTO copies VALUES (:n)"), numbers)
        if batch in dying:
            dying.remove(batch)
            raise RuntimeError("The driver dies behind the commit.")

    with served(shop) as url:
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "100"}
        source = spark.readStream.format("zeroeventhub").options(**options).schema("n INT")
        writing = source.load(url).writeStream.foreachBatch(land)
        writing = writing.option("checkpointLocation", str(tmp_path / "checkpoint"))
        for _ in range(2):
            with pytest.raises(Exception, match="dies behind the commit"):
                read_all(writing)
        read_all(writing)
    with target.connect() as connection:
        numbers = connection.execute(text("SELECT n FROM copies")).scalars().all()
        assert connection.scalar(select(func.count()).select_from(text("batches"))) == 5
    assert sorted(numbers) == list(range(500))
    target.dispose()


def test_stream_that_is_stopped_while_nothing_comes(spark, shop, tmp_path):
    """A query that waits for events ends when it is stopped."""
    with served(shop) as url:
        stream = Stream(spark, tmp_path, url)
        with running(stream.into_parquet()) as query:
            wait_until((tmp_path / "checkpoint" / "offsets").exists, query)
        assert not query.isActive
        assert query.exception() is None
