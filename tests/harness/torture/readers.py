"""Readers that count: page after page from the first event to the last, and what they have seen."""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from threading import Event, Lock, Thread
from typing import TypeVar

from sqlalchemy import Engine, Table, create_engine, event, make_url

from harness.torture.tables import PARTITIONS
from zeroeventhub import FIRST
from zeroeventhub.errors import Diverged, FeedFailure, Unavailable
from zeroeventhub.protocol import Page
from zeroeventhub.publisher.bound_feed import BoundFeed

LIMITS = (1, 5, 20, 100)
HASTE = 1000  # the limit of a reader that has fallen behind
PATIENCE = 10  # seconds without a new event after which a reader that lacks some is stuck
READING_PAUSE = 0.005
"""Seconds at most that a reader dawdles behind a statement, so that writers come in between."""

EXAMPLES = 3

_Answer = TypeVar("_Answer")


def reading_engine(url: str, dice: random.Random) -> Engine:
    """Make an engine whose readers dawdle between any two statements of a read."""
    sqlite = make_url(url).get_backend_name() == "sqlite"
    engine = create_engine(url, connect_args={"timeout": 60} if sqlite else {})

    @event.listens_for(engine, "after_cursor_execute")
    def dawdle(*_: object) -> None:
        if dice.random() < 0.5:
            time.sleep(dice.random() * READING_PAUSE)

    return engine


class Tally:
    """Count the events of a reader, in memory for its keys and not for its events.

    The next number of a key is always its last plus one.
    """

    def __init__(self) -> None:
        self.events = 0
        self.twice = 0
        self.inverted = 0
        self.examples: list[str] = []
        self._last: dict[int, int] = {}
        self._missing: defaultdict[int, set[int]] = defaultdict(set)

    def see(self, key: int, n: int) -> None:
        """Take an event into account."""
        self.events += 1
        last = self._last.get(key, 0)
        if n == last + 1:
            self._last[key] = n
            return
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"event {n} of key {key} came behind event {last}")
        if n > last:
            self._missing[key].update(range(last + 1, n))
            self._last[key] = n
        elif n in self._missing[key]:
            self._missing[key].remove(n)
            self.inverted += 1
        else:
            self.twice += 1

    def lost(self) -> int:
        """Count the events that were passed over and have not come since."""
        return sum(map(len, self._missing.values()))

    def ahead(self, truth: Mapping[int, int]) -> int:
        """Count the events that are committed and lie behind the last one seen of their key."""
        return sum(max(0, n - self._last.get(key, 0)) for key, n in truth.items())

    def invented(self, truth: Mapping[int, int]) -> int:
        """Count the events that were shown and have never been committed."""
        return sum(max(0, last - truth.get(key, 0)) for key, last in self._last.items())


class WatchedFeed:
    """Read a feed that several readers use, and note when it says less than before."""

    def __init__(self, table: Table, feed: BoundFeed, *, steady: bool = True) -> None:
        self.table = table
        self._feed = feed
        self._steady = steady
        self._lock = Lock()
        self._horizon = 0
        self._answered = False
        self.went_back: list[str] = []
        self.fell_silent: list[str] = []

    def read(self, partition: int, cursor: str, limit: int) -> Page | None:
        """Read a page; None while the feed, which has just started, knows no horizon."""
        return self._ask(lambda: self._feed.read(partition, cursor, limit))

    def look(self) -> None:
        """Ask for the horizon, which must not lie below one that was known before."""
        before = self._horizon
        if (horizon := self._ask(self._feed.head)) is None:
            return
        with self._lock:
            if self._steady and horizon < before:
                self.went_back.append(f"{before} to {horizon}")
            self._horizon = max(self._horizon, horizon)

    def _ask(self, question: Callable[[], _Answer]) -> _Answer | None:
        try:
            answer = question()
        except (FeedFailure, Unavailable) as error:
            if self._answered or isinstance(error, FeedFailure):
                self.fell_silent.append(repr(error.__cause__ or error))
            return None
        self._answered = True
        return answer


class Reader(Thread):
    """Read a feed to its end with cursors of its own, and keep a tally."""

    def __init__(self, name: str, feed: WatchedFeed, seed: str) -> None:
        super().__init__(name=name, daemon=True)
        self.feed = feed
        self.tally = Tally()
        self.stuck = 0
        self.diverged = 0
        self.failure: str | None = None
        self._dice = random.Random(seed)
        self._cursors = [FIRST] * PARTITIONS
        self._limits = [1] * PARTITIONS
        self._ended = Event()
        self._given_up = Event()
        self._truth: Mapping[int, int] = {}

    @property
    def is_wrong(self) -> bool:
        """Whether the reader has met anything that it should not."""
        return bool(self.tally.examples) or self.failure is not None

    def end(self, truth: Mapping[int, int]) -> None:
        """Say that the writers have ended, and what the last number of each key is."""
        self._truth = truth
        self._ended.set()

    def give_up(self) -> None:
        """Stop to read, wherever the reader is."""
        self._given_up.set()
        if self.ident:
            self.join(PATIENCE)

    def run(self) -> None:
        """Read until the writers have ended and nothing more comes."""
        try:
            self._read()
        except Exception as error:  # noqa: BLE001 - the verdict tells it
            self.diverged = int(isinstance(error, Diverged))
            self.failure = f"{error!r}, caused by {error.__cause__!r}"

    def _read(self) -> None:
        moved_at = time.monotonic()
        while not self._given_up.is_set():
            ended = self._ended.is_set()
            if self._sweep():
                moved_at = time.monotonic()
                continue
            if ended:
                self.stuck = self.tally.ahead(self._truth)
                if not self.stuck or time.monotonic() - moved_at > PATIENCE:
                    return
            time.sleep(0.002)

    def _sweep(self) -> bool:
        """Read a page of each partition; return whether there was any event."""
        moved = False
        for partition in range(PARTITIONS):
            page = self.feed.read(partition, self._cursors[partition], self._limits[partition])
            if page is None:
                continue
            full = len(page.events) == self._limits[partition]
            self._limits[partition] = HASTE if full else self._dice.choice(LIMITS)
            self._cursors[partition] = page.cursor
            moved = moved or bool(page.events)
            for event_ in page.events:
                self.tally.see(event_.data["key"], event_.data["n"])
        self.feed.look()
        return moved
