"""Streams of a feed whose layout changes at any time: every event once, and each key in order.

The test acts as Spark: it stores offsets as JSON before it runs a batch, runs a batch again after a
restart, and plans the next one when the last one is committed.
"""

import json
import pickle
import time
from contextlib import ExitStack
from functools import partial
from itertools import count
from operator import itemgetter

import pytest
from harness.laid_out_feed import KEYS, ReadFeed
from harness.readers import mounted
from harness.spark_reading import Streaming
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from zeroeventhub import FIRST
from zeroeventhub.bulk.offsets import Range
from zeroeventhub.extensions import CAUGHT_UP, CURSOR_OF_COUNT, STOP
from zeroeventhub.spark.source import tasks_of

CHOICES = st.integers(0, 1000)
LIMITS = st.sampled_from([None, 1, 3, 10])
MOST = 20  # how many ids a layout may use up before it is left as it is


class Streamed(RuleBasedStateMachine):
    """Let a layout change by both methods, between any two steps of a stream."""

    feed = None

    @initialize(
        partitions=st.integers(1, 3),
        extensions=st.sampled_from(
            [(), (CAUGHT_UP,), (STOP,), (STOP, CAUGHT_UP), (STOP, CURSOR_OF_COUNT)]
        ),
        limit=LIMITS,
        heeds_limits=st.booleans(),
    )
    def start(self, partitions, extensions, limit, heeds_limits):
        """Start a query on a feed that is empty yet, whose pages may be longer than is asked."""
        self.feed = ReadFeed(partitions, frozenset(extensions))
        self.feed.heeds_limits = heeds_limits
        self.served = ExitStack()
        self.url = self.served.enter_context(mounted(self.feed))
        self.limit = limit
        self.delivered = {key: [] for key in KEYS}
        self.driver = self.planned = self.rows = None
        self.restart()
        self.committed = self.driver.begin()

    @rule()
    def restart(self):
        """The driver is killed and starts again; a planned batch is run once more."""
        if self.driver is not None:
            self.driver.reader.stop()
        self.driver = Streaming(self.url, attempts=3)

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=8))
    def publish(self, keys):
        """Events are published."""
        for key in keys:
            self.feed.append(key)

    @rule(choice=CHOICES, into=st.integers(1, 3))
    @precondition(lambda self: self.feed.layout.next_id < MOST)
    def split(self, choice, into):
        """A partition is closed, and its children continue its keys."""
        candidates = [share.id for share in self.feed.layout.partitions if not share.closed]
        parent = candidates[choice % len(candidates)]
        self.feed.layout = self.feed.layout.split(parent, into=into)

    @rule()
    @precondition(lambda self: self.feed.layout.next_id < MOST)
    @precondition(lambda self: STOP in self.feed.extensions or self.planned is None)
    def redistribute(self):
        """All partitions are replaced; a batch that is planned by count has to be read before."""
        self.feed.layout = self.feed.layout.redistribute(by=2)

    @rule(choice=CHOICES, requests=st.integers(0, 5))
    @precondition(lambda self: self.feed.layout.next_id < MOST)
    def change_under_way(self, choice, requests):
        """The layout changes between two requests of a plan or of a task."""
        read, left = partial(ReadFeed.read, self.feed), count(requests, -1)

        def read_and_change(*arguments, **options):
            page = read(*arguments, **options)
            if next(left) == 0:
                can_replace = STOP in self.feed.extensions and choice % 2
                self.redistribute() if can_replace else self.split(choice, 2)
            return page

        self.feed.read = read_and_change

    @rule(choice=CHOICES)
    @precondition(lambda self: self.passed)
    def drop(self, choice):
        """The feed no longer lists a closed partition that was read to its end."""
        self.feed.layout = self.feed.layout.drop(self.passed[choice % len(self.passed)])

    @property
    def passed(self):
        """The closed partitions of which all events are in committed batches."""
        cursors = self.committed["cursors"]
        found = []
        for share in self.feed.layout.partitions:
            line = (str(one) for one in (share.id, *share.cursor_from))
            cursor = next((cursors[one] for one in line if one in cursors), FIRST)
            if share.closed and cursor != FIRST and not self.feed.shown(share.id, int(cursor)):
                found.append(share.id)
        return found

    @rule()
    @precondition(lambda self: self.planned is None)
    def plan(self):
        """The next batch is planned, and its end kept."""
        found = self.driver.end(self.committed, self.limit)
        self.least = len(self.feed.layout.partitions)
        self.planned = found if found != self.committed else None

    @rule()
    @precondition(lambda self: self.planned is not None)
    def run_batch(self):
        """The planned batch is run; it may be run again."""
        tasks = self.driver.tasks(self.committed, self.planned)
        events = [[json.loads(row["data"]) for row in rows] for rows in tasks]
        rows = [[(event["key"], event["n"]) for event in task] for task in events]
        keys = [{key for key, _ in task} for task in rows]
        assert sum(map(len, keys)) == len(set().union(*keys)), "A key is in two tasks."
        assert self.rows is None or _by_key(self.rows) == _by_key(rows), "It is another batch."
        if self.limit is not None and self.feed.heeds_limits:
            assert sum(map(len, rows)) <= max(self.limit, self.least)
        self.rows = rows

    @rule()
    @precondition(lambda self: self.rows is not None)
    def commit(self):
        """The batch is committed, and every key continues in order."""
        for task in self.rows:
            for key, number in task:
                self.delivered[key].append(number)
        self.committed, self.planned, self.rows = self.planned, None, None
        for key, numbers in self.delivered.items():
            assert numbers == self.feed.published(key)[: len(numbers)]

    @rule(late=st.lists(st.sampled_from(KEYS), max_size=5), splits=st.booleans())
    def read_what_is_there(self, late, splits):
        """A query by Trigger.AvailableNow reads the events that exist when it begins, and ends."""
        self.restart()
        self.end_batch()
        self.driver.reader.prepareForTriggerAvailableNow()
        there = {key: self.feed.published(key) for key in KEYS}
        for _ in range(200):
            self.plan()
            self.publish(late)
            if splits and self.feed.layout.next_id < MOST:
                self.redistribute() if self.planned is None else self.split(1, 2)
            late, splits = [], False
            if self.planned is None:
                break
            self.end_batch()
        else:
            raise AssertionError("It does not end.")
        if STOP in self.feed.extensions:
            assert self.delivered == there
        else:
            assert all(self.delivered[key][: len(there[key])] == there[key] for key in KEYS)
        self.restart()

    def end_batch(self):
        """Run the planned batch, and commit it."""
        if self.planned is not None:
            self.run_batch()
            self.commit()

    def teardown(self):
        """At the end every event has been delivered once, and nothing more is planned."""
        if self.feed is None:
            return
        with self.served:
            for _ in range(500):
                self.end_batch()
                layout = self.feed.layout
                self.plan()
                if self.planned is None and self.feed.layout is layout:
                    break
            assert self.delivered == {key: self.feed.published(key) for key in KEYS}
            vars(self.feed).pop("read", None)  # a change still to come would be planned
            self.plan()
            assert self.planned is None
            self.driver.reader.stop()


def _by_key(rows):
    """Return the events sorted by key, those of a key in their order."""
    return sorted((event for task in rows for event in task), key=itemgetter(0))


def test_driver_pauses_where_nothing_has_come():
    """The driver pauses between polls of a feed without new events, unlike Spark itself."""
    feed = ReadFeed(1, frozenset({STOP, CAUGHT_UP}))
    feed.append(1)
    with mounted(feed) as url:
        driver = Streaming(url)
        head = driver.end(driver.begin())
        began = time.monotonic()
        assert [driver.end(head) for _ in range(3)] == [head] * 3
        assert time.monotonic() - began > 0.15
        driver.reader.stop()


@pytest.mark.slow
@pytest.mark.parametrize("examples", [6, pytest.param(30, marks=pytest.mark.test_all)])
def test_stream_of_a_layout_that_changes(monkeypatch, examples):
    """Every event is in one committed batch, and those of a key in order, whatever happens."""
    # A driver that has nothing to do lets some time pass, and here it often has nothing to do.
    monkeypatch.setattr("zeroeventhub.spark.source._QUIET", 0.0)
    run_state_machine_as_test(
        Streamed,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            phases=(Phase.generate,),  # found soon, and shown as it was found
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_task_keeps_its_ranges_on_its_way():
    """Tasks are pickled for executors, and an empty plan is one task without ranges."""
    ranges = [Range(0, "a", "b"), Range(1, "a", "c", 7)]
    (task,) = pickle.loads(pickle.dumps(tasks_of([ranges])))
    assert task.value == ranges
    (nothing,) = tasks_of([])
    assert nothing.value == []
