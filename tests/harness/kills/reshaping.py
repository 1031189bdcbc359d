"""Consumers that are killed while partitions are split and handed on; others go on from there."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from sqlalchemy import create_engine, event
from starlette.applications import Starlette

from harness.faults.account import hurry
from harness.faults.findings import Findings
from harness.faults.layouts import FACTOR, Change, Publisher, Shown
from harness.kills.connecting import arguments
from harness.kills.ledger import Ledger
from harness.kills.script import PLAIN
from harness.kills.ways import Life
from harness.kills.zygote import Zygote
from harness.web import serving
from zeroeventhub import Page, feed_routes

STEPS = (2, 5)
"""Pages before which a publisher takes its steps, counted from its first one."""


class Stepping(Shown):
    """Be the feed of a publisher whose partitions change while it is read."""

    def __init__(self) -> None:
        self._taking = threading.Lock()

    def show(self, publisher: Publisher) -> None:
        """Be this publisher's feed from now on."""
        self.publisher = publisher
        self._pages = 0

    def read(self, partition: int, cursor: str, limit: int) -> Page:
        """Read a page, behind a change if it is time for one."""
        with self._taking:
            self._pages += 1
            if self._pages in STEPS:
                self.publisher.step()
        return super().read(partition, cursor, limit)


@dataclass(frozen=True)
class Reshaping:
    """Let a feed change under a consumer, and kill that.

    Attributes:
        mother: forks the consumers.
        ledger: where they write.
        shown: what they read.
        address: the URL of the feed.
        folder: for the publishers' databases.
    """

    mother: Zygote
    ledger: Ledger
    shown: Stepping
    address: str
    folder: Path

    def at_every_point(self, change: Change, way: str, *, every: int = 1) -> Findings:
        """Kill a consumer at the first point behind a change; another at the second; and so on.

        Who goes on from there is killed as well, as many points after its start, and so reads,
        inherits and takes leases behind one that was in the middle of it. The third one lives.
        """
        found = Findings()
        with self._publishing(change):
            self.mother.rehearse(self._life(way))
        for point in count(1, every):
            with self._publishing(change) as publisher:
                name = f"{change.name}, {way}, point {point}"
                if not self._kill_at(point, way, name, publisher, found) or found.complaints:
                    return found
        raise AssertionError

    def _kill_at(
        self, point: int, way: str, name: str, publisher: Publisher, found: Findings
    ) -> bool:
        """Kill two consumers and let a third one live; return whether the first had that point."""
        self.ledger.clear()
        life = self._life(way)
        first, second = (
            self._live(replace(life, strike_at=point, changed=changed), name, publisher, found)
            for changed in (True, False)
        )
        while not publisher.has_changed:
            publisher.step()
        third = self._live(life, name, publisher, found)
        if third or self._arrived() != publisher.written:
            found.complaints.append(f"{name}: it came to {self._arrived()}")
        found.counts["kill"] += first + second
        return first

    def _life(self, way: str) -> Life:
        database = self.ledger.engine.url.render_as_string(hide_password=False)
        return Life(way, database, self.address)

    def _live(self, life: Life, name: str, publisher: Publisher, found: Findings) -> bool:
        """Let a consumer live, and look at what it leaves; return whether it was killed."""
        end = self.mother.run(life)
        if end.error:
            found.complaints.append(f"{name}: {end.error}")
        for key, numbers in self._arrived().items():
            if numbers != publisher.written[key][: len(numbers)]:
                found.complaints.append(f"{name}: of key {key} came {numbers}")
        self.ledger.expire()
        return end.killed

    def _arrived(self) -> dict[int, list[int]]:
        """Return the numbers of events that took effect, by key, in their order."""
        by_key = defaultdict(list)
        for number in self.ledger.arrived():
            by_key[number // FACTOR].append(number)
        return by_key

    @contextmanager
    def _publishing(self, change: Change) -> Iterator[Publisher]:
        path = self.folder / "publisher.db"
        path.unlink(missing_ok=True)
        engine = create_engine(f"sqlite:///{path}")
        event.listen(engine, "connect", hurry)
        publisher = Publisher(engine, change)
        self.shown.show(publisher)
        try:
            yield publisher
        finally:
            engine.dispose()


@contextmanager
def reshaping(mother: Zygote, url: str, folder: Path) -> Iterator[Reshaping]:
    """Serve feeds that change."""
    shown = Stepping()
    engine = create_engine(url, connect_args=arguments(url))
    application = Starlette(routes=feed_routes("/orders", shown))
    try:
        with serving(application) as address:
            yield Reshaping(mother, Ledger(engine, PLAIN), shown, f"{address}/orders", folder)
    finally:
        engine.dispose()
