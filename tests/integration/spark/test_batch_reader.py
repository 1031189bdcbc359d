"""Batches of Spark: everything between two places of a feed, as rows."""

import json
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs

import pytest
from harness.shop import metadata, orders, place
from harness.spark_reading import numbers, planned, read, rows_of, source
from harness.web import serving
from pyspark.sql import datasource
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.types import StructType
from sqlalchemy import insert
from starlette.applications import Starlette

from zeroeventhub import TableFeed, feed_routes
from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.publisher.retention import Retention

PUSHES = hasattr(datasource, "EqualTo")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("arrow", "tasks"),
    [
        (True, 7),
        pytest.param(True, 1, marks=pytest.mark.test_all),
        pytest.param(False, 7, marks=pytest.mark.test_all),
    ],
)
def test_batch_equals_the_table(spark, shop, publish, arrow, tasks):
    """A batch has every row of the table once, in its partition, however many tasks there are."""
    with publish(shop, routes={"arrow": arrow}) as url:
        events = spark.read.format("zeroeventhub").option("minPartitions", tasks).load(url)
        rows = events.select("partition", "data", spark_partition_id()).collect()
    found = [(json.loads(row.data)["n"], row.partition) for row in rows]
    assert sorted(found) == [(n, n % 2) for n in range(200)]
    assert len({row[2] for row in rows}) >= tasks


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


@pytest.fixture
def asked(any_engine):
    """A shop's application, whose orders are of several types and moments."""
    metadata.create_all(any_engine)
    kinds = ["placed", "paid", "PAID", None]
    rows = [
        {"part": n % 2, "kind": kinds[n % 4], "placed": BEGIN + timedelta(minutes=20 * n)}
        for n in range(100)
    ]
    with any_engine.begin() as connection:
        connection.execute(insert(orders), [row | {"data": {"n": 1}} for row in rows])
    columns = {"partition": "part", "type": "kind", "time": "placed", "data": "data"}
    feed = TableFeed(orders, partitions=2, cloudevents="/shop", **columns)
    return Asked(Starlette(routes=feed_routes("", feed, any_engine)))


@pytest.mark.test_all
@pytest.mark.skipif(not PUSHES, reason="this PySpark does not push filters")
@pytest.mark.parametrize(
    ("condition", "of_feed"),
    [
        ("type IN ('paid', 'lost') AND partition IN (1)", {"partition": ["1"]}),
        ("partition = 1", {"partition": ["1"]}),
        ("type = 'paid'", {"event-types": ["paid"]}),
        ("time >= '2026-01-02T00:00:00Z'", {}),
    ],
)
def test_filters_are_pushed(spark, asked, condition, of_feed):
    """A query with filters has the same rows as without pushing them, and asks for less."""
    with serving(asked) as url:

        def rows_and_queries(pushes):
            spark.conf.set("spark.sql.python.filterPushdown.enabled", str(pushes).lower())
            asked.queries.clear()
            reader = spark.read.format("zeroeventhub").option("pageSize", 5)
            events = reader.option("filterPushdown", pushes).load(url)
            found = events.where(condition).select("partition", "id", "type", "time").collect()
            return sorted(map(repr, found)), list(asked.queries)

        try:
            without, all_queries = rows_and_queries(pushes=False)
            found, queries = rows_and_queries(pushes=True)
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert found == without != []
    assert len(queries) < len(all_queries)
    assert all(of_feed.items() <= query.items() for query in queries)


@pytest.mark.skipif(not PUSHES, reason="this PySpark does not push filters")
@pytest.mark.parametrize(
    ("columns", "partitions", "types"),
    [
        ({"partition": "integer", "type": "string"}, {"1"}, {"paid"}),
        ({"partition": "integer", "type": "string", "amount": "integer"}, {"1"}, None),
        ({"partition": "string", "_corrupt_record": "string"}, {"0", "1"}, None),
    ],
)
def test_only_columns_of_the_feed_are_asked_of_it(asked, columns, partitions, types):
    """A member of events by the name of an attribute is something else, left to Spark."""
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    filters = [datasource.EqualTo(("partition",), 1), datasource.EqualTo(("type",), "paid")]
    with serving(asked) as url:
        reader = source(url, filterPushdown="true").reader(schema)
        assert list(reader.pushFilters(filters)) == filters
        rows_of(reader, reader.partitions())
    assert {query["partition"][0] for query in asked.queries} == partitions
    assert {*asked.queries[-1].get("event-types", ())} == (types or set())


@pytest.mark.skipif(not PUSHES, reason="this PySpark does not push filters")
def test_events_before_a_moment_are_not_asked_for(asked):
    """A query about a time begins where the feed says that it does, and misses no event of it."""
    with serving(asked) as url:
        reader = source(url, filterPushdown="true", pageSize=5).reader(source(url).schema())
        reader.pushFilters([datasource.GreaterThanOrEqual(("time",), BEGIN + timedelta(hours=24))])
        rows = rows_of(reader, reader.partitions())
    late = [row for row in rows if row["time"] >= BEGIN + timedelta(hours=24)]
    assert (len(late), len(rows)) == (28, 28)


def test_schema_makes_columns_of_members(shop, publish):
    """Members of events are columns of the types that a schema names; what does not fit is told."""
    odd = [{"n": "many"}, [1], {"n": 200, "customer": {"name": "c"}}]
    with shop.begin() as connection:
        connection.execute(insert(orders), [{"data": data} for data in odd])
    strict = StructType().add("n", "long").add("customer", "string")
    schema = strict.add("partition", "integer").add("_corrupt_record", "string")
    with publish(shop) as url:
        rows = read(url, schema, pageSize=50)
        strict = StructType(schema.fields[:2])
        with pytest.raises(ProtocolError, match="does not fit the schema") as refused:
            read(url, strict)
        renamed = StructType(strict.fields).add("odd", "string")
        left = read(url, renamed, columnNameOfCorruptRecord="odd")
    assert "many" not in str(refused.value)
    unfit = [row for row in rows if row["_corrupt_record"] is not None]
    assert [json.loads(row["_corrupt_record"]) for row in unfit] == [{"n": "many"}, [1]]
    assert {(row["n"], row["customer"], row["partition"]) for row in unfit} == {(None, None, 0)}
    fit = sorted((row["n"], row["partition"]) for row in rows if row not in unfit)
    assert fit == [*((n, n % 2) for n in range(200)), (200, 0)]
    assert [row["customer"] for row in rows if row["n"] == 200] == ['{"name": "c"}']
    assert [json.loads(row["odd"]) for row in left if row["odd"]] == [{"n": "many"}, [1]]


def test_schema_leaves_columns_out(shop, publish):
    """A schema of one column is that column alone."""
    with publish(shop) as url:
        found = read(url, StructType().add("data", "string"))
        assert {tuple(row) for row in found} == {("data",)}
        assert sorted(numbers(found)) == list(range(200))
        found = read(url, StructType().add("partition", "integer"))
    assert [row["partition"] for row in found].count(1) == 100


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (StructType().add("id", "string", nullable=False), "cannot be NOT NULL"),
        (StructType().add("_corrupt_record", "integer"), "is a STRING"),
        (StructType().add("n", "variant"), "STRING"),
    ],
)
def test_schema_that_no_event_fits_is_refused(schema, sentence):
    """A column that cannot be made is refused when a read is planned, without asking the feed."""
    found = source("http://127.0.0.1:1/orders")
    for make in (found.reader, found.streamReader):
        with pytest.raises(ConfigurationError, match=sentence):
            make(schema)


ALL, SEALED, TRIMMED = 300, 250, 120


@pytest.fixture
def archived(any_engine, archive):
    """A feed of two partitions: events in files alone, in files and the table, in the table."""
    metadata.create_all(any_engine)
    options = {"data": "data", "partition": "part", "partitions": 2}
    feed = TableFeed(orders, **options, retention=Retention(), archive=archive)
    with any_engine.begin() as connection:
        feed.install(connection)
        place(connection, SEALED, partitions=2)
    bound = feed.bind(any_engine)
    bound.seal(segment_events=70)
    bound.trim(bound.plan_trim(sealed=TRIMMED))
    with any_engine.begin() as connection:
        place(connection, ALL - SEALED, first=SEALED, partitions=2)
    with serving(Starlette(routes=feed_routes("", feed, any_engine, arrow=True))) as url:
        yield url


@pytest.mark.parametrize("files", ["true", "false"])
def test_tasks_divide_files_and_pages(archived, files):
    """However many tasks there are, each event is in one of them, and again when it is repeated."""
    for tasks in (2, 9):
        reader, several = planned(archived, minPartitions=tasks, readSegments=files)
        assert len(several) >= tasks
        found = [numbers(rows_of(reader, [task])) for task in several]
        assert sorted(number for part in found for number in part) == [*range(ALL)]
        assert [numbers(rows_of(reader, [task])) for task in several] == found


def test_spark_reads_an_archive_and_what_is_not_in_it(spark, archived, capsys):
    """A session's batch has every event once, and its plan does not show where files are."""
    events = spark.read.format("zeroeventhub").option("minPartitions", 4).load(archived)
    assert sorted(numbers(events.collect())) == [*range(ALL)]
    events.explain("extended")
    plan = capsys.readouterr().out
    assert "zeroeventhub" in plan
    assert "Signature" not in plan
    assert ".parquet" not in plan
