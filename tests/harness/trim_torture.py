"""Those who write, read and trim side by side, each at a pace of its own."""

import random
import time
from contextlib import suppress

from sqlalchemy import Column, Integer, MetaData, Table

from harness.log import connected
from harness.shop import orders
from zeroeventhub import FIRST, TableFeed
from zeroeventhub.errors import Trimmed, Unavailable
from zeroeventhub.publisher.cursor import Place
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Retention

PARTITIONS = 3
HURRIED = 3_000
"""How many events a writer writes in a hurry; behind them, it waits for the others."""

PATIENCE = 45
"""Seconds after which a writer ends, at most."""

KEPT = 40
"""How many positions are kept, and less than slow readers need."""

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
    return TableFeed(
        orders,
        data=["id"],
        partition="part",
        partitions=PARTITIONS,
        retention=Retention(),
        progress=Progress(),
    )


def opened(url):
    """Open a database with patience."""
    return connected(url, **({"timeout": 60} if url.startswith("sqlite") else {}))


def write(url, seed, enough):
    """Write events, and beside them what they were, in transactions of some; give some up."""
    dice, written, ending = random.Random(seed), 0, time.monotonic() + PATIENCE
    with opened(url) as engine:
        while time.monotonic() < ending and not enough():
            time.sleep(0.005 if written < HURRIED else 0.2)
            with engine.connect() as connection:
                for _ in range(dice.randint(1, 5)):
                    part = dice.choice(PARTS)
                    key = connection.execute(orders.insert().values(part=part)).inserted_primary_key
                    connection.execute(truth.insert().values(id=key[0], part=part))
                    written += 1
                if dice.random() < 0.9:
                    connection.commit()


def trim(url, seed, ended, trims):
    """Trim until all is written; take note of all that goes."""
    dice = random.Random(seed)

    def told(*progress):
        trims.append(progress)

    with opened(url) as engine:
        feed = source().bind(engine)
        while not ended.is_set():
            with suppress(Unavailable):
                plan = feed.plan_trim(below=max(1, feed.head() - dice.choice([0, KEPT, KEPT])))
                if plan.first is not None:
                    feed.trim(plan, rows=dice.choice([3, 20]), told=told)
            ended.wait(0.02)


class Reading:
    """Read a partition; where it comes too late, go on at the earliest.

    Attributes:
        partition: the one.
        stretches: from where to where it was read without being refused, and what came.
        refused: how often it was.
    """

    def __init__(self, seed):
        self._dice = random.Random(seed)
        self.partition = self._dice.randrange(PARTITIONS)
        self.stretches = []
        self.refused = 0

    def run(self, url, ended):
        """Read until all is written and read."""
        with opened(url) as engine:
            feed, cursor, ending = source().bind(engine), FIRST, False
            while not ending:
                ending = ended.is_set()
                with suppress(Unavailable):
                    cursor = self._read(feed, cursor, ended)

    def _read(self, feed, cursor, ended):
        """Read to the end, or until refused; return where to go on."""
        start, seen = None if cursor == FIRST else Place.of(cursor).position, []
        try:
            while True:
                page = feed.read(self.partition, cursor, self._dice.choice([1, 3, 20]))
                cursor = page.cursor
                self._committed(feed, cursor)
                if start is None:
                    # Nobody knows where the first event was; what comes is without a gap.
                    start = (
                        page.events[0].data["id"] - 1 if page.events else Place.of(cursor).position
                    )
                seen += [event.data["id"] for event in page.events]
                if not page.events:
                    return cursor
                ended.wait(self._dice.choice([0, 0.01, 0.4]))
        except Trimmed as error:
            self.refused += 1
            return error.earliest
        finally:
            if start is not None and cursor != FIRST:
                self.stretches.append((start, Place.of(cursor).position, seen))

    def _committed(self, feed, cursor):
        """Tell nobody."""


class RegisteredReading(Reading):
    """Read a partition, and register where that has come; what lies behind it stays."""

    def run(self, url, ended):
        """Register the first place, and read on from there."""
        with opened(url) as engine:
            feed = source().bind(engine)
            while True:
                with suppress(Trimmed, Unavailable):
                    self._committed(feed, feed.read(self.partition, FIRST, 1).cursor)
                    break
        self.refused = 0
        super().run(url, ended)

    def _read(self, feed, cursor, ended):
        if cursor == FIRST:
            (cursor,) = [one.cursor for one in feed.registered() if one.consumer == self._name]
        return super()._read(feed, cursor, ended)

    def _committed(self, feed, cursor):
        feed.register_progress(self._name, self.partition, cursor)

    @property
    def _name(self):
        return f"reader of {self.partition}"
