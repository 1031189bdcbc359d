"""Pages that are delivered without a feed: to a store and a table of effects, sync or async."""

import asyncio
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, NullPool, String, Table, select
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import CursorStore, Event, Failures, Observer
from zeroeventhub._follow import Advance, Deliver, Place, Redeliver
from zeroeventhub.cloud_event import event_id, event_key
from zeroeventhub.consumer.applying.delivery import AsyncDeliveries, Deliveries
from zeroeventhub.consumer.options import Options
from zeroeventhub.protocol import Page

NAME = "billing"

effects = Table(
    "effects",
    MetaData(),
    Column("arrival", Integer, primary_key=True),
    Column("n", Integer, nullable=False),
    Column("k", String(20)),
    Column("unique_n", Integer),
)


def event(n: int, key: str | None = None, **more: Any) -> Event:
    """Make an event."""
    data = {"specversion": "1.0", "id": f"e{n}", "n": n, **more}
    return Event.of(data if key is None else {**data, "subject": key})


def write(transaction, events) -> None:
    """Write the effects of events."""
    for one in events:
        row = {"n": one.data["n"], "k": one.data.get("subject")}
        transaction.execute(effects.insert().values(row))


def write_page(connection, page) -> None:
    """Write the effects of a page."""
    write(connection, page.events)


class Poison(Exception):  # noqa: N818 - named for what raises it
    """What handlers of tests raise."""


class Seen(Observer):
    """Remember what a consumer tells, in one list.

    Attributes:
        told: what it told, in order: the name, and the numbers or errors that came with it.
    """

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    @contextmanager
    def applying(self, consumer, partition, events):
        self.told.append(("applying", [one.data["n"] for one in events]))
        try:
            yield
        except Exception as error:
            self.told.append(("raised", type(error).__name__))
            raise

    def committed(self, consumer, partition, events):
        self.told.append(("committed", events))

    def failed(self, consumer, partition, error, attempt):
        self.told.append(("failed", type(error).__name__, attempt))

    def set_aside(self, consumer, partition, events, held):
        self.told.append(("set aside", events, held))

    def duplicate(self, consumer, partition, events):
        self.told.append(("duplicate", events))

    def __getitem__(self, name: str) -> list[tuple[Any, ...]]:
        """Return what was told under a name."""
        return [rest for first, *rest in self.told if first == name]


class Shop:
    """A consumer's database, with a store and a table of effects.

    Args:
        engine: of the database; what other tests have left there is deleted.
        async_url: of the same database; None to deliver without asyncio.
    """

    def __init__(self, engine: Engine, async_url: str | None = None) -> None:
        self.engine = engine
        self.store = CursorStore(engine)
        self.observer = Seen()
        self.async_engine = None
        if async_url is not None:
            # Each delivery has an event loop of its own, which connections do not outlive.
            self.async_engine = create_async_engine(async_url, poolclass=NullPool)
        with engine.begin() as connection:
            self.store.create_tables(connection)
            effects.metadata.create_all(connection)
            for table in (*self.store.tables.all(), effects):
                connection.execute(table.delete())

    @property
    def is_async(self) -> bool:
        """Whether deliveries go through asyncio."""
        return self.async_engine is not None

    def to(self, apply, *, sessions=None, inbox=None, **options: Any) -> "Facade":
        """Make deliveries to a function."""
        chosen = {
            "concurrency": 1,
            "lanes": 1,
            "lease": 30.0,
            "failures": Failures(),
            "key": event_key,
            "identity": event_id,
            "inbox_days": 7.0,
            "observer": self.observer,
            **options,
        }
        store = CursorStore(self.async_engine) if self.is_async else self.store
        made = Options(name=NAME, store=store, inbox=inbox, **chosen)
        kind = AsyncDeliveries if self.is_async else Deliveries
        return Facade(kind(made, apply, sessions))

    def place(self, partition: int = 0) -> Place:
        """Return where the consumer stands."""
        with self.engine.begin() as connection:
            return self.store.load(connection, NAME, partition)

    def step(self, *events: Event, to: str = "1", set_aside: bool = False, partition: int = 0):
        """Make a step that delivers a page to where the consumer stands."""
        place = self.place(partition)
        return Deliver(partition, place, Page(events, to), set_aside=set_aside)

    def redelivery(self) -> Redeliver:
        """Make a step that delivers dead letters."""
        return Redeliver(0, self.place())

    def landed(self) -> list[int]:
        """Read all effects, in the order they were written."""
        with self.engine.connect() as connection:
            return list(connection.scalars(select(effects.c.n).order_by(effects.c.arrival)))

    def letters(self) -> list[tuple[int, str, int]]:
        """Read all dead letters: the event's number, its state and its tries."""
        with self.engine.connect() as connection:
            found = self.store.dead_letters.letters(connection, NAME)
        return [(letter.event.data["n"], letter.state, letter.tries) for letter in found]

    def retry(self) -> None:
        """Mark all dead letters to be applied again."""
        with self.engine.begin() as connection:
            self.store.dead_letters.retry(connection, NAME)


class Facade:
    """Deliveries of either kind, as if they were sync."""

    def __init__(self, deliveries: Any) -> None:
        self.deliveries = deliveries

    def _run(self, result: Any) -> None:
        if asyncio.iscoroutine(result):
            asyncio.run(result)

    def deliver(self, step: Deliver) -> None:
        """Deliver a page."""
        self._run(self.deliveries.deliver(step))

    def advance(self, step: Advance) -> None:
        """Move over no events."""
        self._run(self.deliveries.advance(step))

    def redeliver(self, step: Redeliver) -> None:
        """Deliver dead letters."""
        self._run(self.deliveries.redeliver(step))


def failing(*numbers: int, seen: list[int] | None = None):
    """Make a function that writes events one by one, and raises at some."""

    def apply(connection, one: Event) -> None:
        n = one.data["n"]
        if seen is not None:
            seen.append(n)
        write(connection, [one])
        if n in numbers:
            raise Poison(f"event {n} is poison")

    return apply
