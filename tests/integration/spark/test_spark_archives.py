"""Feeds whose old events lie in files: Spark reads them there, and the rest from the feed."""

import json

import pytest
from harness.shop import metadata, orders, place
from harness.spark_reading import planned, rows_of
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import TableFeed, feed_routes
from zeroeventhub.publisher.retention import Retention
from zeroeventhub.spark import register

ALL, SEALED, TRIMMED = 3_000, 2_500, 1_200


@pytest.fixture
def url(postgresql, archive):
    """A feed of two partitions: events in files alone, in files and the table, in the table."""
    metadata.create_all(postgresql)
    feed = TableFeed(
        orders,
        data="data",
        partition="part",
        partitions=2,
        retention=Retention(),
        archive=archive,
    )
    with postgresql.begin() as connection:
        feed.install(connection)
        place(connection, SEALED, partitions=2)
    bound = feed.bind(postgresql)
    bound.seal(segment_events=700)
    bound.trim(bound.plan_trim(sealed=TRIMMED))
    with postgresql.begin() as connection:
        place(connection, ALL - SEALED, first=SEALED, partitions=2)
    with serving(Starlette(routes=feed_routes("/orders", feed, postgresql, arrow=True))) as base:
        yield f"{base}/orders"


def numbers(rows):
    """The numbers of events, in order."""
    return sorted(json.loads(row["data"])["n"] for row in rows)


@pytest.mark.parametrize("tasks", [2, 9])
@pytest.mark.parametrize("files", ["true", "false"])
def test_tasks_divide_files_and_pages(url, tasks, files):
    """However many tasks there are, each event is in one of them, and again when it is repeated."""
    reader, several = planned(url, minPartitions=tasks, readSegments=files)
    assert len(several) >= tasks
    found = [numbers(rows_of(reader, [task])) for task in several]
    assert sorted(number for part in found for number in part) == [*range(ALL)]
    assert [numbers(rows_of(reader, [task])) for task in several] == found


def test_spark_reads_an_archive_and_what_is_not_in_it(spark, url, capsys):
    """A session's batch has every event once, and its plan does not show where files are."""
    register(spark)
    events = spark.read.format("zeroeventhub").option("minPartitions", 4).load(url)
    rows = events.collect()
    assert numbers(row.asDict() for row in rows) == [*range(ALL)]
    events.explain("extended")
    plan = capsys.readouterr().out
    assert "zeroeventhub" in plan
    assert "Signature" not in plan
    assert ".parquet" not in plan
