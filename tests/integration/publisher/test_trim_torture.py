"""Writers, readers and a trimmer, side by side: no reader passes over an event in silence."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from harness.log import connected
from harness.shop import metadata, orders
from harness.trimmed import position_of
from sqlalchemy import Column, Integer, MetaData, Table, select

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.errors import Trimmed, Unavailable
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention

TRIMS = 15
READERS = 4

HURRIED = 3_000
"""How many events a writer writes in a hurry; behind them, it waits for the others."""

PATIENCE = 45
"""Seconds after which a writer ends, at most."""

PARTS = [0, 0, 0, 1, 1, 2]
"""The partitions of events; the last one is quiet."""

truth = Table(
    "truth",
    MetaData(),
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("part", Integer),
)


def source():
    """Return the feed."""
    options = {"partition": "part", "partitions": 3, "data": ["id"]}
    return TableFeed(orders, retention=Retention(), progress=Progress(), **options)


def opened(url):
    """Open a database with patience."""
    return connected(url, **({"timeout": 60} if url.startswith("sqlite") else {}))


def write(url, seed, enough):
    """Write events, and beside them what they were, in transactions of some; give some up."""
    dice, written, ending = random.Random(seed), 0, time.monotonic() + PATIENCE
    with opened(url) as engine:
        while time.monotonic() < ending and not enough():
            time.sleep(0.005 if written < HURRIED else 0.2)  # a pace of its own
            with engine.connect() as connection:
                for _ in range(dice.randint(1, 5)):
                    part = dice.choice(PARTS)
                    key = connection.execute(orders.insert().values(part=part)).inserted_primary_key
                    connection.execute(truth.insert().values(id=key[0], part=part))
                    written += 1
                if dice.random() < 0.9:
                    connection.commit()


def trim(url, seed, ended, trims):
    """Trim all but what slow readers need, or less, until all is written; take note of it."""
    dice = random.Random(seed)
    with opened(url) as engine:
        feed = source().bind(engine)
        while not ended.is_set():
            with suppress(Unavailable):
                plan = feed.plan_trim(below=max(1, feed.head() - dice.choice([0, 40, 40])))
                if plan.first is not None:
                    rows = dice.choice([3, 20])
                    feed.trim(plan, rows=rows, told=lambda *progress: trims.append(progress))
            ended.wait(0.02)


class Reading:
    """Read a partition; where it comes too late, go on at the earliest.

    Args:
        seed: of the dice.
        name: registers where it has come, so that what lies behind it stays; None not to.

    Attributes:
        partition: the one.
        stretches: from where to where it was read without being refused, and what came.
        refused: how often it was.
    """

    def __init__(self, seed, name=None):
        self._dice = random.Random(seed)
        self._name = name
        self.partition = self._dice.randrange(3)
        self.stretches = []
        self.refused = 0

    def run(self, url, ended):
        """Read until all is written and read."""
        with opened(url) as engine:
            feed, cursor, ending = source().bind(engine), FIRST, False
            while self._name is not None and cursor == FIRST:
                with suppress(Trimmed, Unavailable):
                    cursor = self._committed(feed, feed.read(self.partition, FIRST, 1).cursor)
            while not ending:
                ending = ended.is_set()
                with suppress(Unavailable):
                    cursor = self._read(feed, cursor, ended)

    def _read(self, feed, cursor, ended):
        """Read to the end, or until refused; return where to go on."""
        start, seen = None if cursor == FIRST else position_of(cursor), []
        try:
            while True:
                page = feed.read(self.partition, cursor, self._dice.choice([1, 3, 20]))
                cursor = self._committed(feed, page.cursor)
                keys = [event.data["id"] for event in page.events]
                if start is None:  # the first event is where it is; what comes is without a gap
                    start = keys[0] - 1 if keys else position_of(cursor)
                seen += keys
                if not keys:
                    return cursor
                ended.wait(self._dice.choice([0, 0.01, 0.4]))
        except Trimmed as error:
            self.refused += 1
            return error.earliest
        finally:
            if start is not None and cursor != FIRST:
                self.stretches.append((start, position_of(cursor), seen))

    def _committed(self, feed, cursor):
        if self._name is not None:
            feed.register_progress(self._name, self.partition, cursor)
        return cursor


@pytest.mark.test_all
def test_no_reader_passes_over_an_event_in_silence(engine, database_url):
    """Beside writers and trimming every stretch that a reader reads without being refused has all
    events of its partition, in order; and a reader that has registered is never refused.
    """
    metadata.create_all(engine)
    truth.create(engine)
    with engine.begin() as connection:
        source().install(connection)
    written, trims = threading.Event(), []
    registered = Reading("registered", "reader")
    readers = [registered, *map(Reading, range(READERS))]

    def enough():
        return len(trims) > TRIMS and any(reader.refused for reader in readers)

    with ThreadPoolExecutor(READERS + 4) as pool:
        running = [pool.submit(reader.run, database_url, written) for reader in readers]
        running.append(pool.submit(trim, database_url, 0, written, trims))
        writing = [pool.submit(write, database_url, seed, enough) for seed in range(2)]
        try:
            for each in writing:
                each.result(60)
        finally:
            written.set()
        for each in running:
            each.result(60)
    with engine.connect() as connection:
        known = connection.execute(select(truth.c.id, truth.c.part).order_by(truth.c.id)).all()
    for reader in readers:
        assert reader.stretches
        own = [key for key, part in known if part == reader.partition]
        for start, end, seen in reader.stretches:
            assert seen == [key for key in own if start < key <= end], (start, end)
    assert enough()
    assert registered.refused == 0
