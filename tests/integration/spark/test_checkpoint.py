"""Handover: a stream of Spark reads the bulk, and a consumer goes on where it ended."""

import threading
from dataclasses import replace
from itertools import count
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from harness.shop import metadata, orders, place
from harness.stores import new_store
from harness.web import serving
from sqlalchemy import Column, Connection, Integer, MetaData, Table, create_engine, insert, select
from starlette.applications import Starlette

from zeroeventhub import Client, Consumer, Event, TableFeed, feed_routes
from zeroeventhub.cli.commands import commands
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.layout import Layout
from zeroeventhub.spark.checkpoint import committed_offsets

HISTORY = 300
PATIENCE = 60
"""Seconds in which a query ends that reads what is there, and writers do."""

copied = Table("copied", MetaData(), Column("n", Integer, nullable=False))


class Bare:
    """A feed that can do no more than every feed can."""

    def __init__(self, feed):
        self._feed = feed

    def info(self):
        return replace(self._feed.info(), extensions=frozenset())

    def read(self, partition, cursor, limit):
        return self._feed.read(partition, cursor, limit)


@pytest.fixture
def store(tmp_path):
    """A consumer's database, with a table for its effects."""
    engine = create_engine(f"sqlite:///{tmp_path / 'copy.db'}")
    store = new_store(engine)
    copied.metadata.create_all(engine)
    yield store
    engine.dispose()


@pytest.fixture
def end_writers(any_engine):
    """A function that ends the writers, who append to 1, 2 and 3 behind a history in 0."""
    metadata.create_all(any_engine)
    with any_engine.begin() as connection:
        place(connection, HISTORY)
    ended = threading.Event()
    numbers = count(HISTORY)

    def write():
        while not ended.wait(0.01):
            rows = [{"part": 1 + n % 3, "data": {"n": n}} for n in (next(numbers), next(numbers))]
            with any_engine.begin() as connection:
                connection.execute(insert(orders), rows)

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()

    def end():
        ended.set()
        for thread in threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in threads)

    yield end
    end()


def stream_into(spark, url, folder):
    """Read what there is into Parquet, in batches, and end."""
    stream = (
        spark.readStream.format("zeroeventhub")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 200)
        .option("minPartitions", 3)
        .load(url)
    )
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(folder / "orders"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE), "The query does not end."
    rows = spark.read.parquet(str(folder / "orders")).selectExpr("get_json_object(data, '$.n') n")
    return [int(row.n) for row in rows.collect()]


@pytest.mark.test_all
@pytest.mark.parametrize("kind", ["extended", "bare"])
def test_bulk_and_consumer_have_every_event_once(spark, any_engine, end_writers, store, kind):
    """While writers write, what Spark read and what the consumer applied is the table, once.

    Partition 0 is closed: 2 and 3 start when it has been read, by one or the other.
    """
    folder = Path(store.engine.url.database).parent
    layout = Layout.of(2).split(0, into=2)
    feed = TableFeed(orders, data="data", partition="part", partitions=layout)
    shown = feed if kind == "extended" else Bare(feed.bind(any_engine))
    engine = any_engine if kind == "extended" else None

    def apply(connection: Connection, event: Event):
        connection.execute(insert(copied).values(n=event.data["n"]))

    with serving(Starlette(routes=feed_routes("/orders", shown, engine))) as base:
        bulk = stream_into(spark, f"{base}/orders", folder)
        assert set(bulk) > set(range(HISTORY))
        options = ("--store", str(store.engine.url), "--consumer", "copy", "--yes")
        checkpoint = str(folder / "checkpoint")
        command = ["cursors", "set", *options, "--from-spark-checkpoint", checkpoint]
        done = CliRunner().invoke(commands, command)
        assert done.exit_code == 0, done.output
        with httpx.Client() as http:
            consumer = Consumer(Client(f"{base}/orders", http), store, "copy", follow=False)
            consumer.run(apply)
            end_writers()
            consumer.run(apply)
    with any_engine.connect() as connection:
        published = [document["n"] for document in connection.scalars(select(orders.c.data))]
    with store.engine.connect() as connection:
        applied = list(connection.scalars(select(copied.c.n)))
        standings = {one.partition: one.ended for one in store.standings(connection, "copy")}
    assert sorted(bulk + applied) == sorted(published)
    assert applied
    assert standings == {0: True, 1: False, 2: False, 3: False}


@pytest.mark.test_all
@pytest.mark.parametrize("form", ["1", "2"])
def test_checkpoint_is_read_as_spark_writes_it(spark, sqlite, tmp_path, form):
    """In either form of Spark's: refused while a batch is under way, and read when it is done."""
    from pyspark.errors import StreamingQueryException

    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 10)
    feed = TableFeed(orders, data="data")
    folder = str(tmp_path / "checkpoint")

    def stream(url, apply):
        read = spark.readStream.format("zeroeventhub").option("startingOffsets", "earliest")
        into = read.load(url).writeStream.foreachBatch(apply).trigger(availableNow=True)
        query = into.option("checkpointLocation", folder).start()
        assert query.awaitTermination(PATIENCE), "The query does not end."

    def fail(batch, number):
        raise ValueError

    spark.conf.set("spark.sql.streaming.offsetLog.formatVersion", form)
    try:
        with serving(Starlette(routes=feed_routes("/orders", feed, sqlite))) as base:
            with pytest.raises(StreamingQueryException, match="ValueError"):
                stream(f"{base}/orders", fail)
            with pytest.raises(ConfigurationError, match="is not committed"):
                committed_offsets(folder)
            stream(f"{base}/orders", lambda batch, number: None)
    finally:
        spark.conf.unset("spark.sql.streaming.offsetLog.formatVersion")
    assert (tmp_path / "checkpoint" / "offsets" / "0").read_text().startswith(f"v{form}\n")
    (cursor,) = committed_offsets(folder).cursors.values()
    page = feed.bind(sqlite).read(0, cursor, 1)
    assert (page.events, page.caught_up) == ([], True)
