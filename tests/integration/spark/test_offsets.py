"""Handover: a stream of Spark reads the bulk, and a consumer continues where it ended."""

import json

import pytest
from harness.command_line import output_of
from harness.readers import client_of, mounted
from harness.shop import fill, orders
from harness.statements import scalars
from harness.stores import call, new_store
from sqlalchemy import Column, Connection, Integer, MetaData, Table, create_engine, insert, select

from zeroeventhub import Consumer, Event, TableFeed
from zeroeventhub.partitions import Layout

HISTORY = 300

copied = Table("copied", MetaData(), Column("n", Integer, nullable=False))


@pytest.fixture(params=["1", "2"])
def _form(spark, request):
    """The form in which Spark writes the offsets of a checkpoint."""
    spark.conf.set("spark.sql.streaming.offsetLog.formatVersion", request.param)
    yield
    spark.conf.unset("spark.sql.streaming.offsetLog.formatVersion")


@pytest.mark.test_all
@pytest.mark.usefixtures("_form")
def test_bulk_and_consumer_have_every_event_once(spark, stream, any_engine, writing, tmp_path):
    """While writers write, Spark and the consumer together have every event of the table once.

    Partition 0 is closed: 2 and 3 start when it has been read, by one or the other.
    """
    fill(any_engine, HISTORY)
    layout = Layout.of(2).split(0, into=2)
    feed = TableFeed(orders, data="data", partition="part", partitions=layout)
    store = new_store(create_engine(f"sqlite:///{tmp_path / 'copy.db'}"))
    copied.metadata.create_all(store.engine)
    rows = str(tmp_path / "orders")
    command = ("cursors", "set", "--store", store.engine.url, "--consumer", "copy", "--yes")

    def apply(connection: Connection, event: Event):
        connection.execute(insert(copied).values(n=event.data["n"]))

    with mounted(feed, any_engine) as url, client_of(url) as client:
        with writing(any_engine, (1, 2, 3), HISTORY):
            stream(url, lambda one: one.option("path", rows), limit=200)
            output_of(*command, "--from-spark-checkpoint", tmp_path / "checkpoint")
            consumer = Consumer(client, store, "copy", follow=False)
            consumer.run(apply)
        consumer.run(apply)
    bulk = [json.loads(row.data)["n"] for row in spark.read.parquet(rows).collect()]
    published = [document["n"] for document in scalars(any_engine, select(orders.c.data))]
    applied = scalars(store.engine, select(copied.c.n))
    standings = call(store, store.standings, name="copy")
    assert set(bulk) > set(range(HISTORY))
    assert sorted(bulk + applied) == sorted(published)
    assert applied
    ended = {one.partition: one.ended for one in standings}
    assert ended == {0: True, 1: False, 2: False, 3: False}
