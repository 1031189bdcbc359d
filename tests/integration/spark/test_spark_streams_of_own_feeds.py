"""Streams of feeds of one's own: whose partitions change, that cannot stop, that lose history."""

import json

import pytest
from harness.laid_out_feed import ReadFeed
from harness.peer import peer_python, run_peer
from harness.spark_queries import Stream, read_all, running
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import FIRST, LAST, feed_routes
from zeroeventhub.errors import Diverged, Trimmed
from zeroeventhub.protocol import CAUGHT_UP, STOP

__all__ = ["peer_python"]

EXTENSIONS = [(), (STOP, CAUGHT_UP)]
IDS = ["plain", "with stop"]


class LosingFeed(ReadFeed):
    """Be a feed that can lose its beginning, or its end.

    Attributes:
        lowest: the position below which nothing is left.
    """

    lowest = 0

    def read(self, partition, cursor, limit, **options):
        """Read the events that follow a cursor, if that is still there."""
        if cursor not in {FIRST, LAST}:
            if int(cursor) < self.lowest:
                raise Trimmed("It is gone.", earliest=str(self.lowest))
            if int(cursor) > len(self.rows):
                raise Diverged("It is another history.")
        start = str(self.lowest) if cursor == FIRST else cursor
        return super().read(partition, start, limit, **options)


def served(feed):
    """Serve a feed."""
    return serving(Starlette(routes=feed_routes("/numbers", feed)))


def publish(feed, count=30):
    """Publish events of six keys."""
    for number in range(count):
        feed.append(number % 6)


def assert_in_order(stream, feed):
    """See that every event came once, and those of a key in order."""
    seen = {key: [] for key in range(6)}
    for _, event in stream.seen():
        seen[event["key"]].append(event["n"])
    assert seen == {key: feed.published(key) for key in range(6)}


@pytest.mark.parametrize("extensions", EXTENSIONS, ids=IDS)
def test_partitions_that_change_while_a_stream_runs(spark, tmp_path, extensions):
    """Splits and redistributions in the middle of a stream cost no event and keep keys in order."""
    feed = ReadFeed(2, frozenset(extensions))
    with served(feed) as url:
        stream = Stream(spark, tmp_path, f"{url}/numbers", {"maxOffsetsPerTrigger": "20"})
        with running(stream.collecting()) as query:
            publish(feed, 60)
            feed.layout = feed.layout.split(0, into=2)
            publish(feed, 60)
            query.processAllAvailable()
            feed.layout = feed.layout.redistribute(by=2)
            publish(feed)
            query.processAllAvailable()
        feed.layout = feed.layout.split(feed.layout.partitions[-1].id, into=2)
        publish(feed, 60)
        feed.layout = feed.layout.redistribute(by=2)
        publish(feed)
        read_all(stream.collecting())
        assert len({partition for partition, _ in stream.seen()}) > 4
    assert_in_order(stream, feed)


@pytest.mark.parametrize("extensions", EXTENSIONS, ids=IDS)
def test_batch_that_is_run_again(spark, tmp_path, extensions):
    """A batch that failed is the same one behind a restart, whatever was published meanwhile."""
    feed = ReadFeed(2, frozenset(extensions))
    tried = []

    def fail_once(rows, _):
        tried.append([(row.partition, row.data) for row in rows.collect()])
        if len(tried) in {2, 4}:
            publish(feed, 15)
            raise RuntimeError("The driver dies.")

    with served(feed) as url:
        publish(feed, 50)
        stream = Stream(spark, tmp_path, f"{url}/numbers", {"maxOffsetsPerTrigger": "20"})
        writing = stream.writing().foreachBatch(fail_once)
        for _ in range(2):
            with pytest.raises(Exception, match="The driver dies"):
                read_all(writing)
        read_all(writing)
    assert tried[1] == tried[2]
    assert tried[3] == tried[4]
    done = [batch for number, batch in enumerate(tried, 1) if number not in {2, 4}]
    numbers = [json.loads(data)["n"] for batch in done for _, data in batch]
    assert sorted(numbers) == list(range(1, len(feed.rows) + 1))


def test_stream_of_a_peer(spark, tmp_path, peer_python):
    """A feed of ZeroEventHub v1, published by another program, is read once over restarts."""
    process = run_peer(peer_python, "server.py")
    port = process.stdout.readline().strip()
    options = {"v1Partitions": "2", "maxOffsetsPerTrigger": "14", "includeHeaders": "true"}
    stream = Stream(spark, tmp_path, f"http://127.0.0.1:{port}/feed/v1", options)
    try:
        for _ in range(2):
            read_all(stream.into_parquet())
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert stream.committed > 2
    found = sorted((partition, event["n"]) for partition, event in stream.rows())
    assert found == [(partition, n) for partition in range(2) for n in range(25)]


def lose_the_beginning(feed):
    """Trim what was not read."""
    publish(feed)
    feed.lowest = 45


def lose_the_end(feed):
    """Come back from a backup."""
    del feed.rows[20:]


@pytest.mark.parametrize(
    ("lose", "left"), [(lose_the_beginning, range(46, 91)), (lose_the_end, range(21, 51))]
)
def test_history_that_is_lost(spark, tmp_path, lose, left):
    """A place that is gone ends a stream with advice, or is passed over if that was asked for."""
    feed = LosingFeed(1, frozenset({STOP, CAUGHT_UP}))
    publish(feed)
    with served(feed) as url:
        stream = Stream(spark, tmp_path, f"{url}/numbers", {"maxOffsetsPerTrigger": "20"})
        read_all(stream.collecting())
        assert len(stream.seen()) == 30
        lose(feed)
        with pytest.raises(Exception, match="Set failOnDataLoss to false"):
            read_all(stream.collecting())
        stream.options["failOnDataLoss"] = "false"
        stream.batches.clear()
        read_all(stream.collecting())
        publish(feed)
        read_all(stream.collecting())
    assert [event["n"] for _, event in stream.seen()] == [*left]
