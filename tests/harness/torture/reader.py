"""One reader: page after page from the first event to the last, with cursors of its own."""

import random
import time
from collections.abc import Mapping
from threading import Event, Thread

from harness.torture.schema import PARTITIONS
from harness.torture.tally import Tally
from harness.torture.watched import WatchedFeed
from zeroeventhub import FIRST
from zeroeventhub.errors import Diverged

LIMITS = (1, 5, 20, 100)
HASTE = 1000
"""The limit of a reader that has fallen behind."""

PATIENCE = 10
"""Seconds without a new event after which a reader that lacks some is stuck."""


class Reader(Thread):
    """Read a feed to its end, and keep a tally.

    Args:
        name: what complaints call it.
        feed: the feed, which other readers may share.
        seed: of the dice.
    """

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
        return self.tally.is_wrong or self.failure is not None

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
        """Read a page of each partition, and tell whether there was any event."""
        moved = False
        for partition in range(PARTITIONS):
            page = self.feed.read(partition, self._cursors[partition], self._limits[partition])
            if page is None:
                continue
            full = len(page.events) == self._limits[partition]
            self._limits[partition] = HASTE if full else self._dice.choice(LIMITS)
            self._cursors[partition] = page.cursor
            moved = moved or bool(page.events)
            for event in page.events:
                self.tally.see(event.data["key"], event.data["n"])
        self.feed.look()
        return moved
