"""A publisher whose partitions change between two lines, and what its consumer makes of it."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

import httpx
from sqlalchemy import Engine, create_engine, event, insert
from starlette.applications import Starlette

from harness.faults.account import Account, hurry
from harness.faults.findings import Findings, naming
from harness.faults.proxy import Lines, proxying
from harness.shop import metadata, orders
from harness.web import serving
from zeroeventhub import Client, FeedInfo, Layout, Page, TableFeed, feed_routes
from zeroeventhub.publisher.partition_hash import layout_expression

__all__ = ["CHANGES", "change_behind_every_line"]

KEYS = ["ada", "bob", "cleo", "dan"]
EARLY, LATE = 3, 2
"""Events of each key before a change, and behind each."""

FACTOR = 100
"""A number of an event is that of its key times this, and its place among those of its key."""

LIMIT = 2
ATTEMPTS = 10  # a consumer gets over every change by itself: it is not started again


@dataclass(frozen=True)
class Change:
    """Say which layouts a feed shows, and writes events by, one after the other."""

    name: str
    layouts: tuple[Layout, ...]
    writers: tuple[Layout, ...]
    rotated: bool = False


BEFORE = Layout.of(2)
SPLIT = BEFORE.split(0, into=2)
SPLIT_AGAIN = SPLIT.split(2, into=2)
HANDED_ON = BEFORE.redistribute(by=2)
CHANGES = [
    Change("token rotated", (BEFORE,) * 3, (BEFORE,) * 3, rotated=True),
    Change("split", (BEFORE, SPLIT), (BEFORE, SPLIT)),
    Change("split twice", (BEFORE, SPLIT, SPLIT_AGAIN), (BEFORE, SPLIT, SPLIT_AGAIN)),
    Change("redistributed", (BEFORE, HANDED_ON), (BEFORE, BEFORE)),
    Change("redistributed twice", (BEFORE, HANDED_ON, HANDED_ON.redistribute(by=2)), (BEFORE,) * 3),
    Change(
        "split, then redistributed",
        (BEFORE, SPLIT, SPLIT.redistribute(by=2)),
        (BEFORE, SPLIT, SPLIT),
    ),
]


class Publisher:
    """Write events, and show them by one layout after the other."""

    def __init__(self, engine: Engine, change: Change) -> None:
        self._engine = engine
        self._change = change
        self._feeds = [_feed_of(layout, change).bind(engine) for layout in change.layouts]
        self.generation = 0
        self.written: dict[int, list[int]] = defaultdict(list)
        metadata.create_all(engine)
        self.write(EARLY)

    def write(self, count: int) -> None:
        """Write so many events of each key."""
        layout = self._change.writers[self.generation]
        rows = []
        for _ in range(count):
            for number, key in enumerate(KEYS):
                n = FACTOR * number + len(self.written[number])
                self.written[number].append(n)
                rows.append({"customer": key, "part": layout.partition_of(key), "data": {"n": n}})
        with self._engine.begin() as connection:
            connection.execute(insert(orders), rows)

    @property
    def has_changed(self) -> bool:
        """Whether all steps have been taken."""
        return self.generation == len(self._change.layouts) - 1

    def step(self) -> None:
        """Go on to the next layout, and write by it, unless this was the last."""
        if not self.has_changed:
            self.generation += 1
            self.write(LATE)

    def info(self) -> FeedInfo:
        """Describe the feed as it is now."""
        generation = self.generation
        info = self._feeds[generation].info()
        token = f"{info.token}-{generation}" if self._change.rotated else info.token
        return replace(info, token=token, extensions=frozenset())

    def read(self, partition: int, cursor: str, limit: int) -> Page:
        """Read a page of the layout that a request means, whatever has changed since `info`."""
        for feed in self._feeds[self.generation :: -1]:
            if any(partition == shown.id for shown in feed.info().partitions):
                return feed.read(partition, cursor, limit)
        raise ValueError(partition)


class Shown:
    """Be the feed of one publisher after the other, so that one server is enough."""

    publisher: Publisher

    def info(self) -> FeedInfo:
        return self.publisher.info()

    def read(self, partition: int, cursor: str, limit: int) -> Page:
        return self.publisher.read(partition, cursor, limit)


def change_behind_every_line(
    folder: Path, changes: Iterable[Change], *, every: int = 1
) -> Findings:
    """Change a feed behind its first line; a new one behind its second line; and so on."""
    found, shown = Findings(), Shown()
    application = Starlette(routes=feed_routes("/orders", shown))
    with (
        serving(application) as url,
        proxying(f"{url}/orders") as (proxy, through),
        httpx.Client() as session,
        Account.open(folder / "consumer.db") as account,
    ):
        client = Client(through, session)
        for change in changes:
            for line in count(1, every):
                name = f"layouts, {change.name}, behind line {line}"
                # Both ways to read are shown, each at every other line.
                way = account.read_in_turn if line % 2 else account.read_beside
                read = partial(way, client, name, limit=LIMIT, attempts=ATTEMPTS)
                with naming(name), _publishing(folder / "publisher.db", change) as publisher:
                    shown.publisher = publisher
                    proxy.beside = Lines(line, publisher.step, again=3)
                    client.discover()  # what the last feed said is not this one's
                    read()
                    had_it = publisher.generation > 0
                    while not publisher.has_changed:
                        publisher.step()
                    read()
                by_key = defaultdict(list)
                for _, number in account.arrived(name):
                    by_key[number // FACTOR].append(number)
                found.compare(name, publisher.written, by_key)
                if not had_it:
                    break
                found.counts["trials"] += 1
    return found


@contextmanager
def _publishing(path: Path, change: Change) -> Iterator[Publisher]:
    """Make a publisher whose database is new."""
    path.unlink(missing_ok=True)
    engine = create_engine(f"sqlite:///{path}")
    event.listen(engine, "connect", hurry)
    try:
        yield Publisher(engine, change)
    finally:
        engine.dispose()


def _feed_of(layout: Layout, change: Change) -> TableFeed:
    if layout in change.writers:
        layout = layout.expecting(change.writers[-1])
    shown = layout_expression(layout, key=orders.c.customer, written=orders.c.part)
    return TableFeed(orders, partition=shown, partitions=layout, data="data")
