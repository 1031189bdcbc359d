"""Streams of Spark, whose driver fails, or is killed, and goes on."""

import json

import pytest
from harness.laid_out_feed import ReadFeed
from harness.shop import orders, place
from harness.spark_kills import killed_streams
from harness.web import serving
from sqlalchemy import select
from starlette.applications import Starlette

from zeroeventhub import feed_routes
from zeroeventhub.protocol import CAUGHT_UP, STOP


def test_stream_reads_what_is_there_in_batches(spark, shop, publish, stream, tmp_path):
    """A query by Trigger.AvailableNow reads all in batches of a limit, and its heir goes on."""

    def into_parquet(writing):
        return writing.option("path", str(tmp_path / "rows"))

    def committed():
        return len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))

    with publish(shop) as url:
        query = stream(url, into_parquet)
        assert committed() == 3
        first, *_, last = [one for one in query.recentProgress if one["numInputRows"]]
        with shop.begin() as connection:
            place(connection, 20, first=200, partitions=2)
        stream(url, into_parquet)
        assert committed() == 4
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    with shop.connect() as connection:
        table = connection.execute(select(orders.c.part, orders.c.data))
        expected = sorted((data["n"], part) for part, data in table)
    assert sorted((json.loads(row.data)["n"], row.partition) for row in rows) == expected
    (before,), (after,) = first["sources"], last["sources"]
    assert before["endOffset"] != before["latestOffset"] == after["endOffset"]
    assert after["latestOffset"] == after["endOffset"]


@pytest.mark.parametrize(
    "extensions",
    [(STOP, CAUGHT_UP), pytest.param((), marks=pytest.mark.test_all)],
    ids=["with stop", "plain"],
)
def test_batch_that_is_run_again(stream, extensions):
    """A batch that failed is the same one after a restart, whatever was published meanwhile."""
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
    with serving(Starlette(routes=feed_routes("", feed))) as url:
        with pytest.raises(Exception, match="The driver dies"):
            stream(url, lambda writing: writing.foreachBatch(fail_once))
        stream(url, lambda writing: writing.foreachBatch(fail_once))
    first, failed, again, *rest = tried
    assert failed == again
    found = [json.loads(data)["n"] for batch in (first, again, *rest) for _, data in batch]
    assert sorted(found) == list(range(1, len(feed.rows) + 1))


@pytest.mark.parametrize(
    ("database", "kills"),
    [("sqlite", 1), pytest.param("postgresql", 4, marks=pytest.mark.test_all)],
)
def test_driver_that_is_killed(request, spark, tmp_path, database, kills):
    """A driver that is killed with its JVM costs no event, and doubles none."""
    # Of this seed the first moment is that between the rows of the first batch and its commit.
    url = request.getfixturevalue(f"{database}_url")
    findings = killed_streams(url, tmp_path, seed=8, kills=kills, spark=spark)
    assert findings.complaints == []
    assert findings.counts["events"] > 0
