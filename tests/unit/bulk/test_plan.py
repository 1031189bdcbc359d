"""Plans: how far a micro-batch goes, and cursors whose history is gone."""

import json
import logging
from collections import Counter
from contextlib import contextmanager
from random import Random

import pytest
from harness.laid_out_feed import ReadFeed
from harness.readers import mounted, raising
from harness.spark_reading import Streaming, numbers, planned, rows_of

from zeroeventhub import FIRST, LAST, Page
from zeroeventhub.errors import Diverged, Gone, TokenChanged, Trimmed, Unavailable
from zeroeventhub.extensions import CAUGHT_UP, CURSOR_OF_COUNT, SPLITS, STOP
from zeroeventhub.partitions import Layout
from zeroeventhub.testing import no_pauses

EXTENSIONS = {"plain": (), "stop": (STOP, CAUGHT_UP), "count": (STOP, CURSOR_OF_COUNT)}


@pytest.fixture(params=EXTENSIONS.values(), ids=EXTENSIONS.keys())
def feed(request):
    """A feed of three partitions, by its extensions."""
    return ReadFeed(3, frozenset(request.param))


@contextmanager
def streaming(feed, **options):
    """Yield the driver of a stream of a feed."""
    with mounted(feed) as url:
        driver = Streaming(url, **options)
        yield driver
        driver.reader.stop()


def publish(feed, partition, amount):
    """Publish events of a key that is in a partition."""
    key = next(key for key in range(100) if feed.layout.partition_of(key) == partition)
    for _ in range(amount):
        feed.append(key)


def amounts(driver, start, end):
    """Count the events between two offsets, by partition."""
    return Counter(row["partition"] for rows in driver.tasks(start, end) for row in rows)


@pytest.mark.parametrize(
    ("there", "limit", "shares"),
    [
        ((2, 20, 0), 12, {0: 2, 1: 10}),
        ((20, 20, 20), 10, {0: 3, 1: 3, 2: 4}),
        ((20, 20, 20), 1, {0: 1, 1: 1, 2: 1}),
        ((5, 0, 9), None, {0: 5, 2: 9}),
    ],
)
def test_limit_is_shared_out(feed, there, limit, shares):
    """Partitions share what another leaves of the limit, and each may have one event."""
    with streaming(feed) as driver:
        start = driver.begin()
        for partition, amount in enumerate(there):
            publish(feed, partition, amount)
        end = driver.end(start, limit)
        assert amounts(driver, start, end) == shares


def test_child_waits_for_its_parent(feed):
    """A partition is read when the one before it is at its end, and busy ones do not hinder it."""
    with streaming(feed) as driver:
        start = driver.begin()
        publish(feed, 0, 6)
        feed.layout = feed.layout.split(0, into=2)
        publish(feed, 3, 4)
        publish(feed, 1, 20)
        end = driver.end(start, 4)
        assert "3" not in end["cursors"]
        for _ in range(10):
            if 3 in amounts(driver, start, end):
                break
            start, end = end, driver.end(end, 1)
        assert amounts(driver, start, end)[3] == 1
        assert not feed.shown(0, int(end["cursors"]["0"]))


@pytest.mark.parametrize("limit", [30, None])
def test_process_with_an_older_layout_does_not_begin_partitions_anew(feed, limit):
    """While the feed's processes change one by one, a stream loses and repeats nothing."""
    with streaming(feed) as driver:
        start = driver.begin()
        older, feed.layout = feed.layout, feed.layout.split(0, into=2)
        publish(feed, 3, 4)
        publish(feed, 1, 4)
        end = driver.end(start, limit)
        assert amounts(driver, start, end) == {1: 4, 3: 4}
        feed.layout, newer = older, feed.layout
        publish(feed, 1, 2)
        start, end = end, driver.end(end, limit)
        assert amounts(driver, start, end) == {1: 2}
        feed.layout = newer
        publish(feed, 3, 2)
        start, end = end, driver.end(end, limit)
        assert amounts(driver, start, end) == {3: 2}


@pytest.mark.parametrize("minimum", [1, 9])
def test_processes_that_answer_in_turn_do_not_end_a_stream(minimum):
    """A stream is read on while old and new processes of its feed share its requests."""
    feed, dice = LosingFeed(4, frozenset({STOP, CAUGHT_UP, SPLITS})), Random(8)
    layouts = [feed.layout, feed.layout.split(0, into=2)]
    with no_pauses(), streaming(feed, attempts=50, minPartitions=minimum) as driver:
        at, found = driver.begin(), []
        feed.info = lambda: dice.choice(layouts).info(extensions=feed.extensions)
        for number in range(20):
            publish(feed, 1 + number % 3, 1)
            start, at = at, driver.end(at)
            found += driver.numbers(start, at)
        assert found
        feed.info = lambda: layouts[1].info(extensions=feed.extensions)
        found += driver.numbers(at, driver.end(at))
    assert sorted(found) == [*range(1, 21)]


def test_process_that_shows_a_replaced_partition_is_asked_again(feed):
    """A partition whose heirs a stream has begun is not begun again, which an error says."""
    with streaming(feed, attempts=1) as driver:
        publish(feed, 0, 4)
        older, feed.layout = feed.layout, feed.layout.redistribute(by=2)
        start = driver.end(driver.begin())
        feed.layout, newer = older, feed.layout
        with pytest.raises(TokenChanged, match=r"replaced partition \d.*older than the change"):
            driver.end(start)
        feed.layout = newer
        assert driver.end(start) == start


def test_feed_that_cannot_stop_is_over_when_less_comes_than_is_wanted():
    """By Trigger.AvailableNow a feed that does not stop is read until a batch is not full."""
    feed = ReadFeed(1, frozenset())
    with streaming(feed) as driver:
        start = driver.begin()
        publish(feed, 0, 5)
        driver.reader.prepareForTriggerAvailableNow()
        full = driver.end(start, 3)
        assert driver.reader.reportLatestOffset() is None
        rest = driver.end(full, 3)
        publish(feed, 0, 5)
        assert driver.end(rest, 3) == rest
        assert [full["counts"], rest["counts"]] == [{"0": 3}, {"0": 5}]
        assert driver.numbers(start, full) + driver.numbers(full, rest) == [1, 2, 3, 4, 5]


def test_head_that_is_not_told_does_not_end_a_stream():
    """A stream reads on although the feed does not say where it ends, which is only progress."""
    feed = ReadFeed(1, frozenset({STOP, CURSOR_OF_COUNT}))
    with streaming(feed, attempts=1) as driver:
        start = driver.begin()
        publish(feed, 0, 6)
        end = driver.end(start, 3)
        read, feed.read = feed.read, lambda *_: raising(Unavailable("Not now."))(None)
        assert driver.reader.reportLatestOffset() is None
        feed.read = read
        assert driver.numbers(start, end) == [1, 2, 3]


def test_head_that_lies_before_the_start_moves_nothing():
    """If a lagging replica names the head, the stream stays where it is."""
    feed = ReadFeed(1, frozenset({STOP, CAUGHT_UP}))
    with streaming(feed) as driver:
        publish(feed, 0, 3)
        start = driver.end(driver.begin())
        publish(feed, 0, 3)
        read = feed.read

        def read_behind(partition, cursor, limit, *, stop=None):
            return Page([], "2") if cursor == LAST else read(partition, cursor, limit, stop=stop)

        feed.read = read_behind
        assert driver.end(start) == start


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

    def splits(self, partition, count, *, start, stop=None):
        """Return the whole range as one piece."""
        return [str(self.lowest) if start == FIRST else start, stop or str(len(self.rows))]


@pytest.fixture
def losing():
    """A feed of one partition with thirty events."""
    feed = LosingFeed(1, frozenset({STOP, CAUGHT_UP}))
    publish(feed, 0, 30)
    return feed


@pytest.fixture
def url(losing):
    """The feed's URL."""
    with mounted(losing) as url:
        yield url


@contextmanager
def warned(caplog, sentence):
    """Expect one warning about partition 0."""
    caplog.clear()
    yield
    (said,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert sentence in said
    assert "partition 0" in said


@pytest.mark.parametrize("error", [Trimmed, Diverged])
def test_stream_whose_place_is_gone(losing, url, caplog, error):
    """A cursor that is gone ends a stream with advice, or is skipped with a warning."""
    strict, tolerant = Streaming(url), Streaming(url, **PASSING)
    start = strict.end(strict.begin())
    if error is Trimmed:
        publish(losing, 0, 30)
        losing.lowest = 45
    else:
        del losing.rows[20:]
    with pytest.raises(error, match=f"Events of partition 0 cannot be read.*{ADVICE}"):
        strict.end(start)
    with warned(
        caplog, "earliest cursor, 45" if error is Trimmed else "Going on at the feed's head"
    ):
        end = tolerant.end(start, 100)
    if error is Trimmed:
        assert tolerant.numbers(start, end) == [*range(46, 61)]
    publish(losing, 0, 3)
    there = len(losing.rows)
    assert tolerant.numbers(end, tolerant.end(end)) == [*range(there - 2, there + 1)]
    strict.reader.stop()
    tolerant.reader.stop()


@pytest.mark.parametrize("tells_earliest", [True, False])
def test_task_whose_events_are_trimmed(losing, url, caplog, tells_earliest):
    """Events trimmed after the plan end a task with advice, or are skipped with a warning."""
    losing.tells_earliest = tells_earliest
    begin = json.dumps({"0": "5"})
    strict = planned(url, startingOffsets=begin)
    tolerant = planned(url, startingOffsets=begin, **PASSING)
    losing.lowest = 10
    with pytest.raises(Trimmed, match=ADVICE) as told:
        rows_of(*strict)
    assert told.value.earliest == ("10" if tells_earliest else FIRST)
    with warned(caplog, "after the cursor 5 were not read"):
        assert numbers(rows_of(*tolerant)) == [*range(11, 31)]
    publish(losing, 0, 30)
    losing.lowest = 40
    with warned(caplog, "after the cursor 5 were not read"):
        assert rows_of(*tolerant) == []
    with pytest.raises(Trimmed, match=ADVICE):
        rows_of(*strict)


@pytest.mark.parametrize(
    ("lowest", "there", "error", "left"),
    [(10, 30, Trimmed, [*range(11, 31)]), (0, 3, Diverged, [])],
)
def test_batch_by_count_whose_start_is_gone(lowest, there, error, left):
    """A batch of a feed that cannot stop is planned with advice, or without what is gone."""
    feed = LosingFeed(1, frozenset())
    publish(feed, 0, there)
    feed.lowest = lowest
    begin = {"startingOffsets": json.dumps({"0": "5"})}
    with mounted(feed) as url:
        with pytest.raises(error, match=f"Events of partition 0 cannot be read.*{ADVICE}"):
            planned(url, **begin)
        assert numbers(rows_of(*planned(url, **begin, **PASSING))) == left


def test_partition_that_is_gone(losing, url, caplog):
    """A partition that is gone without an heir ends a task, or is skipped with a warning."""
    losing.layout = Layout.of(1).split(0, into=1)
    strict, tolerant = planned(url, attempts=2), planned(url, attempts=2, **PASSING)
    losing.layout = losing.layout.drop(0)
    with pytest.raises(Gone, match=f"Partition 0 of the feed is gone.*{ADVICE}"):
        rows_of(*strict)
    assert rows_of(*tolerant) == []
    assert "Partition 0 of the feed is gone" in caplog.text
    assert "It was not read." in caplog.text


def test_child_whose_events_are_trimmed_after_the_plan(losing, url):
    """A micro-batch that begins a partition fails if events of that partition are trimmed."""
    losing.extensions |= {SPLITS}
    driver = Streaming(url)
    start = driver.end(driver.begin())
    losing.layout = losing.layout.split(0, into=1)
    publish(losing, 1, 9)
    end = driver.end(start)
    assert driver.numbers(start, end) == [*range(31, 40)]
    losing.lowest = 35
    with pytest.raises(Trimmed, match=f"Events of partition 1 cannot be read.*{ADVICE}"):
        driver.tasks(start, end)
    driver.reader.stop()
