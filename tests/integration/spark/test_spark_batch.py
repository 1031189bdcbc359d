"""Batches: everything between two places of a feed, as rows."""

import json
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs

import pytest
from harness.shop import metadata
from harness.shop import orders as shop_orders
from harness.web import serving
from pyspark.sql import datasource
from pyspark.sql.functions import spark_partition_id
from sqlalchemy import JSON, BigInteger, Column, Integer, MetaData, Table, insert
from starlette.applications import Starlette

from zeroeventhub import TableFeed, feed_routes

ROWS = 2500
PUSHES = hasattr(datasource, "EqualTo")


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


@contextmanager
def published(engine, table, *, arrow=True):
    """Serve a table as a feed of two partitions; yield its URL."""
    feed = TableFeed(table, data="data", partition="shard", partitions=2)
    with serving(Starlette(routes=feed_routes("/orders", feed, engine, arrow=arrow))) as base:
        yield f"{base}/orders"


@pytest.fixture
def url(postgresql, orders):
    """The URL of the table's feed."""
    with published(postgresql, orders) as url:
        yield url


@pytest.mark.parametrize("arrow", [False, True], ids=["lines", "arrow"])
@pytest.mark.parametrize("tasks", [1, 7])
def test_batch_equals_the_table(spark, postgresql, orders, arrow, tasks):
    """A batch has every row of the table once, in its partition, however many tasks there are."""
    with published(postgresql, orders, arrow=arrow) as url:
        events = spark.read.format("zeroeventhub").option("minPartitions", tasks).load(url)
        assert events.rdd.getNumPartitions() >= tasks
        found = [(row.partition, json.loads(row.data)) for row in events.collect()]
    expected = [(n % 2, {"order": n, "customer": f"c{n % 7}"}) for n in range(ROWS)]
    assert sorted(found, key=lambda row: row[1]["order"]) == expected


def columns_of(rows):
    """Rows as plain values."""
    return sorted(tuple(row) for row in rows)


def test_one_partition_is_read_by_four_tasks(spark, postgresql, orders):
    """A feed of one partition is read side by side, and each row comes once."""
    routes = feed_routes("/orders", TableFeed(orders, data="data"), postgresql, arrow=True)
    with serving(Starlette(routes=routes)) as base:
        events = spark.read.format("zeroeventhub").option("minPartitions", 4)
        rows = events.load(f"{base}/orders").select("data", spark_partition_id()).collect()
    assert sorted(json.loads(row.data)["order"] for row in rows) == list(range(ROWS))
    assert len({row[1] for row in rows}) >= 4


def test_schema_makes_columns_of_members(spark, postgresql, orders):
    """Members of events are columns of the types that a schema names; what does not fit is told."""
    odd = [{"order": "many"}, [1], {"order": ROWS, "customer": {"name": "c"}}]
    with postgresql.begin() as connection:
        connection.execute(insert(orders), [{"shard": 0, "data": data} for data in odd])
    routes = feed_routes("/orders", TableFeed(orders, data="data"), postgresql, arrow=True)
    with serving(Starlette(routes=routes)) as base:
        reader = spark.read.format("zeroeventhub")
        schema = "partition INT, order LONG, customer STRING, _corrupt_record STRING"
        found = reader.schema(schema).load(f"{base}/orders").collect()
        strict = reader.schema("order LONG, customer STRING").load(f"{base}/orders")
        with pytest.raises(Exception, match="does not fit the schema") as refused:
            strict.collect()
    assert "many" not in str(refused.value)
    expected = [(0, n, f"c{n % 7}", None) for n in range(ROWS)]
    expected.append((0, ROWS, '{"name": "c"}', None))
    assert columns_of(row for row in found if row[3] is None) == expected
    unfit = [(row[0], row[1], row[2], json.loads(row[3])) for row in found if row[3] is not None]
    assert unfit == [(0, None, None, {"order": "many"}), (0, None, None, [1])]


def test_schema_leaves_columns_out(spark, url):
    """A schema of one column is that column alone."""
    found = spark.read.format("zeroeventhub").schema("data STRING").load(url)
    assert found.columns == ["data"]
    assert sorted(json.loads(row.data)["order"] for row in found.collect()) == list(range(ROWS))
    found = spark.read.format("zeroeventhub").schema("partition INT").load(url)
    assert found.groupBy("partition").count().collect()[0]["count"] == ROWS // 2


def test_end_is_fixed_with_the_plan(spark, url, postgresql, orders):
    """Rows that come when a read has been planned are not in it; they are in the next one."""
    events = spark.read.format("zeroeventhub").load(url)
    planned = events.rdd
    planned.getNumPartitions()
    assert events.count() == ROWS
    with postgresql.begin() as connection:
        connection.execute(insert(orders), [{"shard": 0, "data": {"order": ROWS}}])
    assert (planned.count(), planned.count()) == (ROWS, ROWS)
    assert spark.read.format("zeroeventhub").load(url).count() == ROWS + 1


class Asked:
    """Take note of the requests for events."""

    def __init__(self, application):
        self._application = application
        self.queries = []

    async def __call__(self, scope, receive, send):
        """Hand a request on."""
        if scope["type"] == "http" and scope["path"].endswith("/events"):
            self.queries.append(parse_qs(scope["query_string"].decode()))
        await self._application(scope, receive, send)


@pytest.mark.skipif(not PUSHES, reason="this PySpark does not push filters")
@pytest.mark.parametrize(
    ("condition", "of_feed"),
    [
        ("partition = 1", {"partition": ["1"]}),
        ("type = 'paid'", {"event-types": ["paid"]}),
        ("type IN ('paid', 'lost') AND partition IN (1)", {"partition": ["1"]}),
        ("time >= '2026-01-02T00:00:00Z'", {}),
    ],
)
def test_filters_are_pushed(spark, postgresql, condition, of_feed):
    """A query with filters has the same rows as without pushing them, and asks for less."""
    metadata.create_all(postgresql)
    kinds = ["placed", "paid", "PAID", None]
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {"part": n % 2, "kind": kinds[n % 4], "placed": begin + timedelta(minutes=2 * n)}
        for n in range(1000)
    ]
    with postgresql.begin() as connection:
        connection.execute(insert(shop_orders), [row | {"data": {"n": 1}} for row in rows])
    feed = TableFeed(
        shop_orders,
        partition="part",
        partitions=2,
        type="kind",
        time="placed",
        cloudevents="/shop",
        data="data",
    )
    asked = Asked(Starlette(routes=feed_routes("/orders", feed, postgresql)))
    with serving(asked) as base:

        def rows_and_queries(pushes):
            spark.conf.set("spark.sql.python.filterPushdown.enabled", str(pushes).lower())
            asked.queries.clear()
            reader = spark.read.format("zeroeventhub").option("pageSize", 50)
            events = reader.option("filterPushdown", pushes).load(f"{base}/orders")
            found = events.where(condition).select("partition", "id", "type", "time").collect()
            return columns_of(map(repr, row) for row in found), list(asked.queries)

        try:
            without, all_queries = rows_and_queries(pushes=False)
            found, queries = rows_and_queries(pushes=True)
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert found == without != []
    assert len(queries) < len(all_queries)
    assert all(of_feed.items() <= query.items() for query in queries)
