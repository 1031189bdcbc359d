"""The source in a session of Spark: batches, streams, and hostile publishers."""

import gzip
import json
import sys
import time
import venv
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs

import pytest
from harness.laid_out_feed import ReadFeed
from harness.readers import mounted
from harness.shop import metadata, orders
from harness.spark_kills import killed_streams
from harness.spark_reading import numbers, planned, read, rows_of, source
from harness.statements import add
from harness.web import serving
from pyspark.sql import datasource
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    VarcharType,
    VariantType,
)
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from zeroeventhub import TableFeed, feed_routes
from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.extensions import CAUGHT_UP, STOP
from zeroeventhub.spark import register

PUSHES = pytest.mark.skipif(
    not hasattr(datasource, "EqualTo"), reason="this PySpark does not push filters"
)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
NEXT, LATE = BEGIN + timedelta(hours=24), BEGIN + timedelta(hours=30)


@pytest.fixture
def asked(sqlite):
    """The URL of a shop's feed with orders of several types and moments, and its queries."""
    metadata.create_all(sqlite)
    kinds, queries = ["placed", "paid", "PAID", None], []
    rows = [
        {"part": n % 2, "kind": kinds[n % 4], "placed": BEGIN + timedelta(minutes=20 * n)}
        for n in range(100)
    ]
    add(sqlite, orders, [row | {"data": {"n": 1}} for row in rows])
    columns = {"partition": "part", "type": "kind", "time": "placed", "data": "data"}
    feed = TableFeed(orders, partitions=2, cloudevents="/shop", **columns)
    application = Starlette(routes=feed_routes("", feed, sqlite))

    async def noting(scope, receive, send):
        if scope["type"] == "http" and scope["path"].endswith("/events"):
            queries.append(parse_qs(scope["query_string"].decode()))
        await application(scope, receive, send)

    with serving(noting) as url:
        yield url, queries


@PUSHES
@pytest.mark.test_all
def test_filters_are_pushed(spark, asked):
    """A query with filters has the same rows as without pushing them, and asks for less."""
    url, queries = asked

    def rows_and_queries(pushes):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", str(pushes).lower())
        queries.clear()
        reader = spark.read.format("zeroeventhub").option("pageSize", 5)
        events = reader.option("filterPushdown", pushes).load(url)
        found = events.where(condition).select("partition", "id", "type", "time").collect()
        return sorted(map(repr, found)), list(queries)

    condition = "type = 'paid' AND partition IN (1) AND time >= '2026-01-02T00:00:00Z'"
    try:
        without, all_queries = rows_and_queries(pushes=False)
        found, fewer = rows_and_queries(pushes=True)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert found == without != []
    assert len(fewer) < len(all_queries)
    assert {(*query["partition"], *query["event-types"]) for query in fewer} == {("1", "paid")}


@PUSHES
def test_only_columns_of_the_feed_are_asked_of_it(asked):
    """A filter by a member that is named as an attribute is left to Spark."""
    url, queries = asked
    schema = StructType().add("partition", "integer").add("type", "string").add("n", "integer")
    filters = [datasource.EqualTo(("partition",), 1), datasource.EqualTo(("type",), "paid")]
    reader = source(url, filterPushdown="true").reader(schema)
    assert list(reader.pushFilters(filters)) == filters
    rows_of(reader, reader.partitions())
    assert {(*query["partition"], "event-types" in query) for query in queries} == {("1", False)}


PARTITION, TYPE, TIME = (("partition",), ("type",), ("time",))
BOTH = {"0", "1"}
PUSHED = {
    "partition": (lambda of: [of.EqualTo(PARTITION, 1)], {"1"}, "", 50),
    "both": (lambda of: [of.In(PARTITION, (0, 1)), of.EqualTo(PARTITION, 1)], {"1"}, "", 50),
    "none": (lambda of: [of.EqualTo(PARTITION, 0), of.EqualTo(PARTITION, 1)], set(), "", 0),
    "type": (lambda of: [of.EqualTo(TYPE, "Paid")], BOTH, "Paid", 50),
    "types": (lambda of: [of.In(TYPE, ("placed", "paid"))], BOTH, "paid;placed", 75),
    "null": (lambda of: [of.In(TYPE, ("a", None))], BOTH, "", 100),
    "moments": (lambda of: [of.GreaterThan(TIME, one) for one in (NEXT, LATE, NEXT)], BOTH, "", 10),
    "moment": (lambda of: [of.GreaterThanOrEqual(TIME, NEXT)], BOTH, "", 28),
    "before": (lambda of: [of.LessThan(TIME, BEGIN)], BOTH, "", 100),
    "not": (lambda of: [of.Not(of.EqualTo(PARTITION, 1))], BOTH, "", 100),
    "id": (lambda of: [of.EqualTo(("id",), "7")], BOTH, "", 100),
}


@PUSHES
@pytest.mark.parametrize(("filters", "partitions", "types", "count"), PUSHED.values(), ids=PUSHED)
def test_feed_is_asked_for_what_filters_let_through(asked, filters, partitions, types, count):
    """Filters that the feed lacks are left to Spark, and no row that Spark would keep is lost."""
    url, queries = asked
    reader = source(url, filterPushdown="true").reader(source(url).schema())
    reader.pushFilters(filters(datasource))
    assert len(rows_of(reader, reader.partitions())) == count
    assert {query["partition"][0] for query in queries} == partitions
    assert {query.get("event-types", [""])[0] for query in queries} <= {types}


def test_schema_makes_columns_of_members(shop, publish):
    """Members of events are columns of a schema's types; an event that does not fit is an error."""
    odd = [{"n": "many"}, [1], {"n": 200, "customer": {"name": "c"}}]
    add(shop, orders, [{"data": data} for data in odd])
    strict = StructType().add("n", "long").add("customer", "string")
    schema = StructType([*strict]).add("partition", "integer").add("_corrupt_record", "string")
    with publish(shop) as url:
        rows = read(url, schema, pageSize=50)
        with pytest.raises(ProtocolError, match="does not fit the schema") as refused:
            read(url, strict)
        places = read(url, StructType().add("partition", "integer"))
    assert "many" not in str(refused.value)
    unfit = [row for row in rows if row["_corrupt_record"] is not None]
    assert [json.loads(row["_corrupt_record"]) for row in unfit] == [{"n": "many"}, [1]]
    assert {(row["n"], row["customer"], row["partition"]) for row in unfit} == {(None, None, 0)}
    fit = sorted((row["n"], row["partition"]) for row in rows if row not in unfit)
    assert fit == [*((n, n % 2) for n in range(200)), (200, 0)]
    assert [row["customer"] for row in rows if row["n"] == 200] == ['{"name": "c"}']
    assert [tuple(row) for row in places] == [("partition",)] * 203


NUMBERED = {"placed": {"type": "object", "properties": {"n": {"type": "integer"}}}}


@pytest.mark.parametrize("envelope", [False, True])
def test_columns_are_inferred_from_the_feed_s_schemas(shop, publish, envelope):
    """With inferSchema, a read has the columns that the feed describes, in or out of envelopes."""
    with publish(shop, schemas=NUMBERED, cloudevents=envelope, type="kind") as url:
        rows = read(url, inferSchema=True)
        assert "data" in read(url)[0]
    assert {row["type"] for row in rows if envelope} <= {"placed"}
    found = [row["data"]["n"] if envelope else row["n"] for row in rows]
    assert sorted(found) == [*range(200)]


def test_feed_without_schemas_gives_no_columns(shop, publish):
    """A feed that does not describe its events is refused, and not read in another way."""
    with publish(shop) as url, pytest.raises(ConfigurationError, match="extension schemas"):
        source(url, inferSchema="true").schema()


@pytest.mark.parametrize("envelope", [False, True])
def test_schema_that_passes_envelopes_by_is_warned_of_once(shop, publish, caplog, envelope):
    """A flat schema over CloudEvents, whose columns are all null, is warned of once a task."""
    flat = StructType().add("n", "long").add("customer", "string")
    with publish(shop, cloudevents=envelope) as url:
        rows = read(url, flat, pageSize=20)
        read(url, StructType().add("data", StructType().add("n", "long")))
        read(url, StructType().add("m", "long").add("partition", "integer"), partitions="0")
    warned = [one.getMessage() for one in caplog.records if "All of the columns" in one.message]
    assert all((row["n"] is None) is envelope for row in rows)
    tasks = 2 + 1
    assert len(warned) == (tasks if envelope else 0)
    assert not warned or "columns n, customer are null" in warned[0]


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (StructType().add("id", "string", nullable=False), "cannot be NOT NULL"),
        (StructType().add("_corrupt_record", "integer"), "to be a STRING"),
        (StructType().add("n", MapType(IntegerType(), StringType())), "STRING"),
        (StructType().add("n", ArrayType(VariantType())), "STRING"),
        (StructType().add("n", VarcharType(10)), "STRING"),
    ],
)
def test_schema_that_no_event_fits_is_refused(schema, sentence):
    """A column that cannot be made is refused when a read is planned, without asking the feed."""
    found = source("http://127.0.0.1:1/orders")
    for make in (found.reader, found.streamReader):
        with pytest.raises(ConfigurationError, match=sentence):
            make(schema)


@pytest.fixture
def archived(any_engine, sealed):
    """A feed whose events are in files alone, in files and the table, or in the table."""
    bound = sealed.bind(any_engine)
    bound.trim(bound.plan_trim(sealed=30))
    with mounted(sealed, any_engine, arrow=True) as url:
        yield url


@pytest.mark.parametrize("files", ["true", "false"])
def test_tasks_divide_files_and_pages(archived, origins, files):
    """However many tasks there are, each event is in one of them, and again when it is repeated."""
    for tasks in (3, 9):
        allowed = {"readSegments": files, "segmentOrigins": origins}
        reader, several = planned(archived, minPartitions=tasks, **allowed)
        assert len(several) >= tasks
        found = [numbers(rows_of(reader, [task])) for task in several]
        assert sorted(number for part in found for number in part) == [*range(90)]
        assert [numbers(rows_of(reader, [task])) for task in several] == found


def test_session_reads_files_and_the_table(spark, archived, origins, capsys):
    """A batch has every event once, in as many tasks as wanted; its plan shows no file."""
    options = {"minPartitions": 4, "segmentOrigins": origins}
    events = spark.read.format("zeroeventhub").options(**options).load(archived)
    rows = events.select("partition", "data", spark_partition_id()).collect()
    found = [(json.loads(row.data)["n"], row.partition) for row in rows]
    assert sorted(found) == [(n, n % 3) for n in range(90)]
    assert len({row[2] for row in rows}) >= 4
    events.explain("extended")
    plan = capsys.readouterr().out
    assert "zeroeventhub" in plan
    assert "Signature" not in plan
    assert ".parquet" not in plan


@pytest.mark.parametrize(
    "extensions",
    [(STOP, CAUGHT_UP), pytest.param((), marks=pytest.mark.test_all)],
    ids=["with stop", "plain"],
)
def test_batch_that_is_run_again(stream, tmp_path, extensions):
    """A query reads in batches of a limit; a batch that failed is the same when it is repeated."""
    feed = ReadFeed(2, frozenset(extensions))
    tried = []

    def publish(count):
        for number in range(count):
            feed.append(number % 6)

    def fail_once(rows, _):
        tried.append([(row.partition, row.data) for row in rows.collect()])
        if len(tried) == 2:
            publish(15)
            raise RuntimeError("The driver dies.")

    publish(120)
    with mounted(feed) as url:
        with pytest.raises(Exception, match="The driver dies"):
            stream(url, lambda writing: writing.foreachBatch(fail_once))
        query = stream(url, lambda writing: writing.foreachBatch(fail_once))
    first, failed, again, *rest = tried
    assert failed == again
    found = [json.loads(data)["n"] for batch in (first, again, *rest) for _, data in batch]
    assert sorted(found) == list(range(1, len(feed.rows) + 1))
    assert [len(batch) for batch in (first, again, *rest)] == [80, 40, 15]
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) == 3
    if extensions:
        (source,) = query.recentProgress[-1]["sources"]
        assert source["endOffset"] == source["latestOffset"]


@pytest.mark.test_all
@pytest.mark.parametrize(("database", "kills"), [("sqlite", 1), ("postgresql", 4)])
def test_driver_that_is_killed(request, spark, tmp_path, database, kills):
    """A killed driver neither loses nor repeats an event."""
    # Of this seed the first moment is that between the rows of the first batch and its commit.
    url = request.getfixturevalue(f"{database}_url")
    findings = killed_streams(url, tmp_path, seed=8, kills=kills, spark=spark)
    assert findings.complaints == []
    assert findings.counts["events"] > 0


@pytest.fixture
def python_of(spark, tmp_path, monkeypatch):
    """A function that gives workers for one purpose a Python without packages."""
    venv.create(tmp_path / "bare", symlinks=True)

    def python_of(purpose):
        bare, worker = tmp_path / "bare" / "bin" / "python", tmp_path / "python"
        planner, reader = (bare, sys.executable) if purpose == "plans" else (sys.executable, bare)
        worker.write_text(
            f'#!/bin/sh\ncase "$*" in *pyspark.sql.worker*) exec {planner} "$@" ;; esac\n'
            f'exec {reader} "$@"\n'
        )
        worker.chmod(0o755)
        monkeypatch.setattr(spark.sparkContext, "pythonExec", str(worker))

    yield python_of
    monkeypatch.undo()
    register(spark)


@pytest.mark.slow
@pytest.mark.parametrize("purpose", ["plans", "reads"])
def test_workers_without_the_package_are_noticed_by_register(spark, python_of, purpose):
    """Register says in a sentence that workers which plan, or which read, lack a package."""
    python_of(purpose)
    with pytest.raises(ConfigurationError, match=r"workers has no module \w+: set PYSPARK_PYTHON"):
        register(spark)


MEBIBYTE = 1024 * 1024
HOSTILE = "\x1b]0;title\x07\u202e"
BOMB = gzip.compress(b"\n" * (8 * MEBIBYTE), 1) * 128
END = b'{"cursor":"9","caughtUp":true}\n'


PROBLEM = {"type": "about:blank", "title": HOSTILE, "status": 400, "detail": HOSTILE}
PAGES = {
    "gibibyte": lambda _: Response(BOMB, headers={"Content-Encoding": "gzip"}),
    "long line": lambda _: Response(b'{"data":"%b"}\n' % (b"x" * 64 * MEBIBYTE) + END),
    "no events": lambda _: Response(b"\n" * (8 * MEBIBYTE) + END),
    "no JSON": lambda _: Response(f"{HOSTILE}\n".encode() + END),
    "refusal": lambda _: JSONResponse(PROBLEM, 400, media_type="application/problem+json"),
    "circle": lambda request: Response(
        b'{"cursor":"%d"}\n' % (1 + (request.query_params["cursor"] == "1"))
    ),
}
PARTITIONS = {
    "many partitions": [{"id": str(number)} for number in range(40_000)],
    "large discovery": "x" * (20 * MEBIBYTE),
}


@pytest.mark.slow
@pytest.mark.parametrize("harm", [*PAGES, *PARTITIONS])
def test_feed_that_means_harm_ends_the_query(spark, harm):
    """Whatever a hostile publisher sends, the query fails soon with a printable error."""
    info = {"token": "1", "partitions": PARTITIONS.get(harm, [{"id": "0"}])}
    discovery = Route("/feed", lambda _: JSONResponse(info))
    page = Route("/feed/events", PAGES.get(harm, PAGES["circle"]))
    with serving(Starlette(routes=[discovery, page])) as url:
        began = time.monotonic()
        with pytest.raises(Exception, match=r"zeroeventhub\.errors\.") as failed:
            spark.read.format("zeroeventhub").option("attempts", 1).load(f"{url}/feed").count()
        assert time.monotonic() - began < 30
    assert HOSTILE[0] not in str(failed.value)
