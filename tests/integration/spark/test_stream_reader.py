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

PATIENCE = 60
"""Seconds in which a query ends that reads what is there."""


class Stream:
    """Be a stream, whose query may be started and stopped.

    Args:
        spark: the session.
        folder: of its checkpoint and its rows.
        url: of the feed.
        options: of the source.
    """

    def __init__(self, spark, folder, url, **options):
        self.folder = folder
        self._spark = spark
        self._source = {"startingOffsets": "earliest", **options, "path": url}

    def writing(self):
        """Say what to write, which may be done again."""
        events = self._spark.readStream.format("zeroeventhub").options(**self._source).load()
        return events.writeStream.option("checkpointLocation", str(self.folder / "checkpoint"))

    def into_parquet(self):
        """Write files."""
        return self.writing().option("path", str(self.folder / "rows"))

    def rows(self):
        """Return partition and data of what is in the files, by the numbers of events."""
        rows = self._spark.read.parquet(str(self.folder / "rows")).collect()
        return sorted((json.loads(row.data)["n"], row.partition) for row in rows)

    @property
    def committed(self):
        """Count the batches that are done."""
        return len(list((self.folder / "checkpoint" / "commits").glob("[0-9]*")))


def read_all(writing):
    """Read what is there, and end."""
    query = writing.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE), "The query does not end."
    return query


def table(engine):
    """Return what a stream has to have: the numbers of events, and their partitions."""
    with engine.connect() as connection:
        found = connection.execute(select(orders.c.part, orders.c.data))
        return sorted((data["n"], part) for part, data in found)


def test_stream_reads_what_is_there_in_batches(spark, shop, publish, tmp_path):
    """A query by Trigger.AvailableNow reads all in batches of a limit, and its heir goes on."""
    with publish(shop) as url:
        stream = Stream(spark, tmp_path, url, maxOffsetsPerTrigger=60)
        query = read_all(stream.into_parquet())
        assert stream.committed == 4
        first, *_, last = [one for one in query.recentProgress if one["numInputRows"]]
        with shop.begin() as connection:
            place(connection, 20, first=200, partitions=2)
        read_all(stream.into_parquet())
        assert stream.committed == 5
        read_all(stream.into_parquet())
        assert stream.committed == 5
    assert stream.rows() == table(shop)
    (before,), (after,) = first["sources"], last["sources"]
    assert before["endOffset"] != before["latestOffset"] == after["endOffset"]
    assert after["latestOffset"] == after["endOffset"]


@pytest.mark.parametrize(
    "extensions",
    [(STOP, CAUGHT_UP), pytest.param((), marks=pytest.mark.test_all)],
    ids=["with stop", "plain"],
)
def test_batch_that_is_run_again(spark, tmp_path, extensions):
    """A batch that failed is the same one after a restart, whatever was published meanwhile."""
    feed = ReadFeed(2, frozenset(extensions))
    for number in range(50):
        feed.append(number % 6)
    tried = []

    def fail_once(rows, _):
        tried.append([(row.partition, row.data) for row in rows.collect()])
        if len(tried) == 2:
            for number in range(15):
                feed.append(number % 6)
            raise RuntimeError("The driver dies.")

    with serving(Starlette(routes=feed_routes("", feed))) as url:
        writing = Stream(spark, tmp_path, url, maxOffsetsPerTrigger=20).writing()
        with pytest.raises(Exception, match="The driver dies"):
            read_all(writing.foreachBatch(fail_once))
        read_all(writing.foreachBatch(fail_once))
    assert tried[1] == tried[2]
    done = [batch for number, batch in enumerate(tried, 1) if number != 2]
    found = [json.loads(data)["n"] for batch in done for _, data in batch]
    assert sorted(found) == list(range(1, len(feed.rows) + 1))


@pytest.mark.timeout(600)  # Spark is started anew after each kill
@pytest.mark.parametrize(
    ("database", "kills"),
    [("sqlite", 1), pytest.param("postgresql", 4, marks=pytest.mark.test_all)],
)
def test_driver_that_is_killed(request, tmp_path, database, kills):
    """A driver that is killed with its JVM at any moment costs no event, and doubles none."""
    url = request.getfixturevalue(f"{database}_url")
    findings = killed_streams(url, tmp_path, seed=0, kills=kills)
    assert findings.complaints == []
    assert findings.counts["events"] > 0
