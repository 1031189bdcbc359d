"""Streams of Spark, whose driver fails, or is killed, and goes on."""

import json

import pytest
from harness.laid_out_feed import ReadFeed
from harness.readers import mounted
from harness.spark_kills import killed_streams

from zeroeventhub.protocol import CAUGHT_UP, STOP


@pytest.mark.parametrize(
    "extensions",
    [(STOP, CAUGHT_UP), pytest.param((), marks=pytest.mark.test_all)],
    ids=["with stop", "plain"],
)
def test_batch_that_is_run_again(stream, tmp_path, extensions):
    """A query reads what is there in batches of a limit; one that failed is the same afterwards."""
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
