"""Streams of a feed whose layout changes at any time: every event once, and each key in order.

Spark's part is played here: it keeps offsets as JSON before it runs a batch, runs a batch again
behind a restart, and asks for the next one when the last one is committed.
"""

import json
from contextlib import contextmanager
from functools import partial

import pytest
from harness.laid_out_feed import KEYS, ReadFeed
from harness.web import serving
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from starlette.applications import Starlette

from zeroeventhub import FIRST, feed_routes
from zeroeventhub.protocol import CAUGHT_UP, CURSOR_OF_COUNT, STOP

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install --group spark")

from pyspark.sql.types import StructType

from zeroeventhub.spark.connection import Connection
from zeroeventhub.spark.offsets import Offsets
from zeroeventhub.spark.options import read_options
from zeroeventhub.spark.range_reader import RangeReader
from zeroeventhub.spark.stream_reader import StreamReader
from zeroeventhub.spark.versions import read_limit

CHOICES = st.integers(0, 1000)
LIMITS = st.sampled_from([None, 1, 3, 10])
MOST = 20
"""How many ids a layout may use up before it is left as it is."""


class Current:
    """Be whichever feed an example is about."""

    def __init__(self):
        self.feed = None
        self.change, self.requests = None, 0

    def change_after(self, requests, change):
        """Change the feed behind so many requests for pages."""
        self.change, self.requests = change, requests

    def info(self):
        """Describe it."""
        return self.feed.info()

    def read(self, partition, cursor, limit, **options):
        """Read a page of it."""
        page = self.feed.read(partition, cursor, limit, **options)
        if self.change is not None:
            self.requests -= 1
            if self.requests < 0:
                change, self.change = self.change, None
                change()
        return page

    def cursor_of_count(self, partition, cursor, events, **options):
        """Count in it."""
        return self.feed.cursor_of_count(partition, cursor, events, **options)


class Streamed(RuleBasedStateMachine):
    """Let a layout change by both methods, between any two steps of a stream."""

    current: Current
    url: str

    @initialize(
        partitions=st.integers(1, 3),
        extensions=st.sampled_from(
            [(), (CAUGHT_UP,), (STOP,), (STOP, CAUGHT_UP), (STOP, CURSOR_OF_COUNT)]
        ),
        limit=LIMITS,
    )
    def start(self, partitions, extensions, limit):
        """Start a query on a feed that is empty yet."""
        self.feed = self.current.feed = ReadFeed(partitions, frozenset(extensions))
        self.current.change = None
        self.limit = limit
        self.options = {"url": self.url, "startingOffsets": "earliest", "attempts": "3"}
        self.reader = None
        self.delivered = {key: [] for key in KEYS}
        self.planned = None
        self.rows = None
        self.restart()
        self.committed = self.kept(self.reader.initialOffset())

    def kept(self, document):
        """Keep offsets as Spark does: as text."""
        return json.loads(json.dumps(document))

    @rule()
    def restart(self):
        """The driver is killed and starts again; what was planned is run once more."""
        if self.reader is not None:
            self.reader.stop()
        self.reader = StreamReader(StructType(), read_options(self.options))

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=8))
    def publish(self, keys):
        """Events are published."""
        for key in keys:
            self.feed.append(key)

    @rule(choice=CHOICES, into=st.integers(1, 3))
    @precondition(lambda self: self.feed.layout.next_id < MOST)
    def split(self, choice, into):
        """A partition is closed, and others go on with its keys."""
        candidates = [share.id for share in self.feed.layout.partitions if not share.closed]
        parent = candidates[choice % len(candidates)]
        self.feed.layout = self.feed.layout.split(parent, into=into)

    @rule()
    @precondition(lambda self: self.feed.layout.next_id < MOST and STOP in self.feed.extensions)
    def redistribute(self):
        """All partitions are replaced."""
        self.feed.layout = self.feed.layout.redistribute(by=2)

    @rule()
    @precondition(lambda self: self.feed.layout.next_id < MOST and self.planned is None)
    def redistribute_between_batches(self):
        """All partitions are replaced, while nothing is planned that has to be read from them."""
        self.feed.layout = self.feed.layout.redistribute(by=2)

    @rule(choice=CHOICES, requests=st.integers(0, 5))
    @precondition(lambda self: self.feed.layout.next_id < MOST)
    def change_under_way(self, choice, requests):
        """The layout changes between two requests of a plan or of a task."""
        if STOP in self.feed.extensions and choice % 2:
            self.current.change_after(requests, self.redistribute)
        else:
            self.current.change_after(requests, partial(self.split, choice, 2))

    @rule(choice=CHOICES)
    @precondition(lambda self: self.passed)
    def drop(self, choice):
        """A closed partition that was read to its end is shown no more."""
        self.feed.layout = self.feed.layout.drop(self.passed[choice % len(self.passed)])

    @property
    def passed(self):
        """The closed partitions of which all events are in committed batches."""
        committed = Offsets.of(self.committed)
        return [
            share.id
            for share in self.feed.layout.partitions
            if share.closed
            and (cursor := committed.place(share.id, share.cursor_from)) not in {None, FIRST}
            and not self.feed.shown(share.id, int(cursor))
        ]

    @rule()
    @precondition(lambda self: self.planned is None)
    def plan(self):
        """The next batch is planned, and its end kept."""
        found = self.reader.latestOffset(self.committed, read_limit(self.limit))
        self.least = len(self.feed.layout.partitions)
        self.planned = self.kept(found) if found != self.committed else None

    @rule()
    @precondition(lambda self: self.planned is not None)
    def run_batch(self):
        """What is planned is run; it may be run again."""
        rows = [[*self.read(task.ranges)] for task in self.tasks()]
        keys = [{key for key, _ in task} for task in rows]
        assert sum(map(len, keys)) == len(set().union(*keys)), "A key is in two tasks."
        assert self.rows is None or _by_key(self.rows) == _by_key(rows), "It is another batch."
        if self.limit is not None:
            assert sum(map(len, rows)) <= max(self.limit, self.least)
        self.rows = rows

    def tasks(self):
        """Return the tasks of the batch that is planned: the same whenever it is asked for."""
        return self.reader.partitions(self.committed, self.planned)

    def read(self, ranges):
        """Yield keys and numbers of events."""
        reader = RangeReader(self.connection, read_options(self.options), with_headers=False)
        for one in ranges:
            for page in reader.pages(one):
                texts = [text for batch in page.page.batches for text in batch[0].to_pylist()]
                for text in texts[: page.count]:
                    event = json.loads(text)
                    yield event["key"], event["n"]

    @rule()
    @precondition(lambda self: self.rows is not None)
    def commit(self):
        """What was run is committed, and every key has gone on in order."""
        for task in self.rows:
            for key, number in task:
                self.delivered[key].append(number)
        self.committed, self.planned, self.rows = self.planned, None, None
        for key, numbers in self.delivered.items():
            assert numbers == self.feed.published(key)[: len(numbers)]

    @rule(late=st.lists(st.sampled_from(KEYS), max_size=5), splits=st.booleans())
    def read_what_is_there(self, late, splits):
        """A query by Trigger.AvailableNow reads what is there when it begins, and ends."""
        self.restart()
        self.end_batch()
        self.reader.prepareForTriggerAvailableNow()
        there = {key: self.feed.published(key) for key in KEYS}
        for _ in range(200):
            self.plan()
            self.publish(late)
            if splits and self.feed.layout.next_id < MOST:
                self.redistribute_between_batches() if self.planned is None else self.split(1, 2)
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
        """Run what is planned, and commit it."""
        if self.planned is not None:
            self.run_batch()
            self.commit()

    def teardown(self):
        """In the end every event has been delivered once, and nothing more is planned."""
        if not hasattr(self, "feed"):
            return
        for _ in range(500):
            self.end_batch()
            self.plan()
            if self.planned is None:
                break
        assert self.delivered == {key: self.feed.published(key) for key in KEYS}
        self.plan()
        assert self.planned is None
        self.reader.stop()


def _by_key(rows):
    """Return the numbers of each key, in order: what side by side means."""
    found = {}
    for task in rows:
        for key, number in task:
            found.setdefault(key, []).append(number)
    return found


@contextmanager
def served():
    """Serve whichever feed an example is about."""
    current = Current()
    with serving(Starlette(routes=feed_routes("/numbers", current))) as url:
        yield current, f"{url}/numbers"


@pytest.mark.timeout(300)
def test_stream_of_a_layout_that_changes(monkeypatch):
    """Every event is in one committed batch, and those of a key in order, whatever happens."""
    monkeypatch.setattr("zeroeventhub.spark.stream_reader._QUIET", 0.0)
    with served() as (current, url), Connection.to(read_options({"url": url})) as connection:
        kind = type("Streaming", (Streamed,), {})
        kind.current, kind.url, kind.connection = current, url, connection
        run_state_machine_as_test(
            kind,
            settings=settings(
                max_examples=20,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
