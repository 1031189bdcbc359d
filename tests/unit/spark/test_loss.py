"""Places in history that are gone, as a read meets them: told with advice, or passed over."""

import json
import logging
from contextlib import contextmanager
from functools import partial

import pytest
from harness.laid_out_feed import ReadFeed
from harness.readers import mounted
from harness.spark_reading import Streaming, numbers, planned, rows_of

from zeroeventhub import FIRST, LAST
from zeroeventhub.errors import Diverged, Gone, Trimmed
from zeroeventhub.partitions import Layout
from zeroeventhub.protocol import CAUGHT_UP, STOP

ADVICE = "Set failOnDataLoss to false"
PASSING = {"failOnDataLoss": "false"}


class LosingFeed(ReadFeed):
    """Be a feed that can lose its beginning, or its end."""

    lowest = 0  # nothing is left below
    tells_earliest = True

    def read(self, partition, cursor, limit, *, stop=None):
        """Read the events that follow a cursor, if that is still there."""
        if cursor not in {FIRST, LAST}:
            for place in (cursor, stop or cursor):
                if int(place) < self.lowest:
                    earliest = str(self.lowest) if self.tells_earliest else None
                    raise Trimmed("It is gone.", earliest=earliest)
                if int(place) > len(self.rows):
                    raise Diverged("It is another history.")
        start = str(self.lowest) if cursor == FIRST else cursor
        return super().read(partition, start, limit, stop=stop)


@pytest.fixture
def feed():
    """A feed of one partition with thirty events."""
    feed = LosingFeed(1, frozenset({STOP, CAUGHT_UP}))
    publish(feed)
    return feed


@pytest.fixture
def url(feed):
    """The feed's URL."""
    with mounted(feed) as url:
        yield url


def publish(feed, count=30):
    """Publish events of six keys."""
    for number in range(count):
        feed.append(number % 6)


@contextmanager
def warned(caplog, sentence):
    """Expect one warning that says something of partition 0."""
    caplog.clear()
    yield
    (said,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert sentence in said
    assert "partition 0" in said


@pytest.mark.parametrize("error", [Trimmed, Diverged])
def test_stream_whose_place_is_gone(feed, url, caplog, error):
    """A place that is gone ends a stream with advice, or is passed over with a warning."""
    strict, tolerant = Streaming(url), Streaming(url, **PASSING)
    start = strict.end(strict.begin())
    if error is Trimmed:
        publish(feed)
        feed.lowest = 45
    else:
        del feed.rows[20:]
    with pytest.raises(error, match=f"Partition 0 cannot be read on.*{ADVICE}"):
        strict.end(start)
    with warned(caplog, "earliest one, 45" if error is Trimmed else "Going on at its head"):
        end = tolerant.end(start, 100)
    if error is Trimmed:
        assert tolerant.numbers(start, end) == [*range(46, 61)]
    publish(feed, 3)
    there = len(feed.rows)
    assert tolerant.numbers(end, tolerant.end(end)) == [*range(there - 2, there + 1)]
    strict.reader.stop()
    tolerant.reader.stop()


@pytest.mark.parametrize("tells_earliest", [True, False])
def test_task_whose_events_are_trimmed(feed, url, caplog, tells_earliest):
    """What is trimmed after the plan ends a task with advice, or is passed over with a warning."""
    feed.tells_earliest = tells_earliest
    begin = json.dumps({"0": "5"})
    strict = planned(url, startingOffsets=begin)
    tolerant = planned(url, startingOffsets=begin, **PASSING)
    feed.lowest = 10
    with pytest.raises(Trimmed, match=ADVICE) as told:
        rows_of(*strict)
    assert told.value.earliest == ("10" if tells_earliest else FIRST)
    with warned(caplog, "after the cursor 5 are gone"):
        assert numbers(rows_of(*tolerant)) == [*range(11, 31)]
    publish(feed)
    feed.lowest = 40
    with warned(caplog, "after the cursor 5 are gone"):
        assert rows_of(*tolerant) == []
    with pytest.raises(Trimmed, match=ADVICE):
        rows_of(*strict)


def test_partition_that_is_gone(feed, url, caplog):
    """Where no other has taken the place of a partition, that is told, or passed over aloud."""
    feed.layout = Layout.of(1).split(0, into=1)
    strict, tolerant = (partial(planned, url, **options) for options in ({}, PASSING))
    strict, tolerant = strict(), tolerant()
    feed.layout = feed.layout.drop(0)
    with pytest.raises(Gone, match=f"Partition 0 of the feed is gone.*{ADVICE}"):
        rows_of(*strict)
    assert rows_of(*tolerant) == []
    assert "Partition 0 of the feed is gone" in caplog.text
    assert "It was not read." in caplog.text
