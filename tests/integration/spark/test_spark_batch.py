"""Batches: everything between two places of a feed, as rows."""

import json

import pytest
from harness.web import serving
from sqlalchemy import JSON, BigInteger, Column, Integer, MetaData, Table, insert
from starlette.applications import Starlette

from zeroeventhub import TableFeed, feed_routes

ROWS = 2500


@pytest.fixture
def orders(postgresql):
    """A table of orders with rows."""
    orders = Table(
        "orders",
        MetaData(),
        Column("id", BigInteger, primary_key=True),
        Column("shard", Integer),
        Column("data", JSON),
    )
    orders.metadata.create_all(postgresql)
    rows = [{"shard": n % 2, "data": {"order": n, "customer": f"c{n % 7}"}} for n in range(ROWS)]
    with postgresql.begin() as connection:
        connection.execute(insert(orders), rows)
    return orders


@pytest.fixture(params=[False, True], ids=["lines", "arrow"])
def url(request, postgresql, orders):
    """A feed over it, of two partitions."""
    feed = TableFeed(orders, data="data", partition="shard", partitions=2)
    routes = feed_routes("/orders", feed, postgresql, arrow=request.param)
    with serving(Starlette(routes=routes)) as base:
        yield f"{base}/orders"


@pytest.mark.parametrize("tasks", [1, 7])
def test_batch_equals_the_table(spark, url, tasks):
    """A batch has every row of the table once, in its partition, however many tasks there are."""
    events = spark.read.format("zeroeventhub").option("minPartitions", tasks).load(url)
    assert events.rdd.getNumPartitions() >= tasks
    found = [(row.partition, json.loads(row.data)) for row in events.collect()]
    expected = [(n % 2, {"order": n, "customer": f"c{n % 7}"}) for n in range(ROWS)]
    assert sorted(found, key=lambda row: row[1]["order"]) == expected
