"""A shop's events in memory, served over HTTP, and the database that a consumer applies them in."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from harness.engines import async_url, connected
from harness.readers import mounted
from harness.statements import count_of, scalars
from harness.stores import NAME, call, load, new_store, progress
from harness.waiting import DEADLINE, until
from zeroeventhub import (
    FIRST,
    LAST,
    AsyncClient,
    AsyncConsumer,
    Capacity,
    Client,
    ConnectionPool,
    Consumer,
    CursorStore,
    Event,
    Failures,
    FeedInfo,
    Observer,
    Page,
    Partition,
)
from zeroeventhub.errors import Halted
from zeroeventhub.extensions import CAUGHT_UP, WAIT

LONG = 300.0  # seconds of a lease that does not run out in a test

effects = sa.Table(
    "effects",
    sa.MetaData(),
    sa.Column("arrival", sa.Integer, primary_key=True),
    sa.Column("n", sa.Integer, nullable=False),
    sa.Column("k", sa.String(20)),
)


def event(n: int, key: str | None = None, **more: Any) -> Event:
    """Make an event."""
    data = {"specversion": "1.0", "source": "/shop", "type": "t", "id": f"e{n}", "n": n, **more}
    return Event.of(data if key is None else {**data, "subject": key})


def numbers(events: Iterable[Event]) -> list[int]:
    """Return the numbers of events; None of those without."""
    return [one.data.get("n") for one in events]


def write(transaction, events: Iterable[Event]) -> None:
    """Write the effects of events through a connection or a session."""
    for one in events:
        row = {"n": one.data["n"], "k": one.data.get("subject")}
        transaction.execute(effects.insert().values(row))


def write_page(connection, page) -> None:
    """Write the effects of a page."""
    write(connection, page.events)


async def write_page_async(connection, page) -> None:
    """Write the effects of a page through an async connection."""
    await connection.run_sync(write, page.events)


class Poison(Exception):
    """What handlers of tests raise."""


class Feed:
    """Events of partitions in memory; a cursor is the number of positions in front of it.

    A log has None at a position without an event, and `trouble` the errors that the next reads
    from a partition's cursor end in. Before a page is sent, `on_read` is called.
    """

    def __init__(self, partitions: int = 1) -> None:
        self.layout = [Partition(number) for number in range(partitions)]
        self.logs: dict[int, list[Event | None]] = {each.id: [] for each in self.layout}
        self.extensions = frozenset({CAUGHT_UP})
        self.exactly_once = True
        self.token = "1"
        self.asked: list[tuple[int, str]] = []
        self.trouble: dict[tuple[int, str], list[Exception]] = {}
        self.on_read: Callable[[str, Page], object] = lambda cursor, page: None

    def publish(self, *events: Event | None, partition: int = 0) -> None:
        self.logs.setdefault(partition, []).extend(events)

    def place(self, count: int, *, first: int = 0) -> None:
        """Append events that are numbered from first on, spread over the partitions."""
        for number in range(first, first + count):
            self.publish(event(number), partition=number % len(self.layout))

    def wait(self) -> None:
        """Let requests wait at the head."""
        self.extensions |= {WAIT}

    def info(self) -> FeedInfo:
        return FeedInfo(
            tuple(self.layout),
            self.token,
            exactly_once=self.exactly_once,
            extensions=self.extensions,
        )

    def head(self) -> int:
        return sum(map(len, self.logs.values()))

    def read(self, partition: int, cursor: str, limit: int) -> Page:
        self.asked.append((partition, cursor))
        if errors := self.trouble.get((partition, cursor)):
            raise errors.pop(0)
        log = self.logs[partition]
        start = {FIRST: 0, LAST: len(log)}[cursor] if cursor in {FIRST, LAST} else int(cursor)
        end = min(start + limit, len(log))
        events = [one for one in log[start:end] if one is not None]
        caught_up = CAUGHT_UP in self.extensions and end == len(log)
        page = Page(events, str(end), caught_up=caught_up)
        self.on_read(cursor, page)
        return page


class Seen(Observer):
    """Record what a consumer reports: names, with their numbers or errors."""

    def __init__(self) -> None:
        self.reports: list[tuple[Any, ...]] = []
        self.leases: frozenset[int] = frozenset()

    @contextmanager
    def applying(self, consumer, partition, events):
        self.reports.append(("applying", numbers(events)))
        try:
            yield
        except BaseException as error:
            self.reports.append(("raised", type(error).__name__))
            raise

    def committed(self, consumer, partition, events):
        self.reports.append(("committed", events))

    def failed(self, consumer, partition, error, attempt):
        self.reports.append(("failed", type(error).__name__, attempt))

    def set_aside(self, consumer, partition, events, held):
        self.reports.append(("set aside", events, held))

    def duplicate(self, consumer, partition, events):
        self.reports.append(("duplicate", events))

    def fenced(self, consumer, partition):
        self.reports.append(("fenced", partition))
        assert len(self["fenced"]) < 20, "the consumer is fenced over and over"

    def halted(self, consumer, partition, error):
        self.reports.append(("halted", partition))

    def waited(self, consumer, partition, error, seconds):
        self.reports.append(("waited", partition, type(error).__name__))

    def held(self, consumer, partitions):
        self.leases = partitions

    def __getitem__(self, name: str) -> list[tuple[Any, ...]]:
        """Return the reports of a name."""
        return [tuple(rest) for first, *rest in list(self.reports) if first == name]


class Rival(Seen):
    """Does something once, at the time, between a page is read and its transaction is begun."""

    def __init__(self, act, is_time=lambda events: True):
        super().__init__()
        self._acts = [act]
        self._is_time = is_time

    def applying(self, consumer, partition, events):
        while self._acts and self._is_time(events):
            self._acts.pop()()
        return super().applying(consumer, partition, events)


class Inside(Seen):
    """Counts the transactions that are open, and the most that were open at a time."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self._lock = threading.Lock()

    @contextmanager
    def applying(self, consumer, partition, events):
        with self._lock:
            self.now += 1
            self.most = max(self.now, self.most)
        try:
            yield
        finally:
            with self._lock:
                self.now -= 1


class Shop:
    """A feed in memory, and a consumer's database with a store and a table of effects."""

    def __init__(self, engine: sa.Engine, *, is_async: bool) -> None:
        self.engine = engine
        self.store = new_store(engine)
        self.feed = Feed()
        self.url = ""
        self.observer = Seen()
        self.is_async = is_async
        self._started: list[Running] = []
        if is_async:
            # Each run has an event loop of its own, which connections do not outlive.
            self.async_engine = create_async_engine(async_url(engine.url), poolclass=sa.NullPool)
        effects.metadata.create_all(engine)

    def consumer(self, client, **options: Any) -> Consumer | AsyncConsumer:
        """Make a consumer that ends at the head, and halts at the first error."""
        chosen = {
            "follow": False,
            "failures": Failures(tries=1),
            "observer": self.observer,
            "poll_interval": 0.01,
            **options,
        }
        if self.is_async:
            return AsyncConsumer(client, CursorStore(self.async_engine), NAME, **chosen)
        return Consumer(client, self.store, NAME, **chosen)

    def run(self, apply, **options: Any) -> None:
        """Run a consumer to the head of the feed."""
        Running(self, apply, options).run()

    def start(self, apply=write_page, **options: Any) -> "Running":
        """Run a consumer in a thread, until it is stopped."""
        running = Running(self, apply, {"follow": True, **options})
        self._started.append(running)
        running.start()
        return running

    def end(self) -> None:
        """End what was started and not stopped, as where a test has failed."""
        for running in self._started:
            if running.is_running:
                running.stop()

    @contextmanager
    def pages(
        self, open_http: Callable[[], Any] = ConnectionPool, **options: Any
    ) -> Iterator[Iterator[Any]]:
        """Give the pages of a loop of one's own."""
        with open_http() as http:
            yield iter(Consumer(Client(self.url, http), self.store, NAME, follow=False, **options))

    def page(self, **options: Any) -> Any:
        with self.pages(**options) as pages:
            return next(pages)

    def cursor(self, partition: int = 0) -> str | None:
        return call(self.store, self.store.cursors).get(partition)

    def put(self, cursor: str, partition: int = 0) -> None:
        """Put the cursor elsewhere, as an operator does."""
        call(self.store, self.store.set, partition, cursor)

    def take_over(self, *partitions: int, seconds: float) -> None:
        """Take the leases of all others, and enter partitions, as another process does."""
        with self.engine.begin() as connection:
            # As every change of leases does, it takes its turn first: none waits in a ring.
            self.store.leases.leave(connection, NAME, "rival")
            for table in (self.store.tables.leases, self.store.tables.members):
                connection.execute(table.update().values(expires_at=1.0))
            rival = {"owner": "rival", "wanted": partitions}
            self.store.leases.claim(connection, NAME, **rival, seconds=seconds, share=False)
            for partition in partitions:
                self.store.enter(connection, NAME, partition, "rival")

    def leases(self) -> int:
        return len(scalars(self.engine, "SELECT 1 FROM zeroeventhub_leases WHERE owner <> ''"))

    def landed(self) -> list[int]:
        """Read all effects, in the order they were written."""
        return scalars(self.engine, sa.select(effects.c.n).order_by(effects.c.arrival))

    def count(self) -> int:
        return count_of(self.engine, effects)

    def until_landed(self, count: int) -> None:
        until(lambda: self.count() >= count, f"{count} events take effect")

    def letters(self) -> list[tuple[int, str, int]]:
        """Read all dead letters: the event's number, its state and its tries."""
        found = call(self.store, self.store.dead_letters.letters)
        return [(letter.event.data["n"], letter.state, letter.tries) for letter in found]

    def retry(self) -> None:
        call(self.store, self.store.dead_letters.retry)

    def lanes(self, partition: int = 0) -> tuple[int, dict[int, int]] | None:
        """Look up how many lanes a page was begun with, and how far each has come."""
        return progress(self.store, load(self.store, partition), partition)


class Running:
    """A consumer that runs; the options are its own and those of `run`, with `client` and `http`.

    `client` is a class of clients, and `http` makes what a sync client is given.
    """

    def __init__(self, shop: Shop, apply, options: dict[str, Any]) -> None:
        self._shop = shop
        self._apply = apply
        self._client = options.pop("client", AsyncClient if shop.is_async else Client)
        self._http = options.pop("http", ConnectionPool)
        names = ("sessions", "handle_signals")
        self._run_options = {name: options.pop(name) for name in names if name in options}
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._consumer: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.error: BaseException | None = None

    def run(self) -> None:
        if self._shop.is_async:
            asyncio.run(self._run_async())
            return
        with self._http() as http:
            client = self._client(self._shop.url, http)
            self._consumer = self._shop.consumer(client, **self._options)
            self._consumer.run(self._apply, **self._run_options)

    async def _run_async(self) -> None:
        async with httpx.AsyncClient() as http:
            client = self._client(self._shop.url, http)
            self._loop = asyncio.get_running_loop()
            self._consumer = self._shop.consumer(client, **self._options)
            await self._consumer.run(self._apply, **self._run_options)

    def start(self) -> None:
        self._thread.start()
        until(lambda: self._consumer is not None or self.error, "the consumer is made")

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as error:  # noqa: BLE001 - raised where its end is waited for
            self.error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def ask_to_stop(self) -> None:
        if self._loop is None:
            self._consumer.stop()
        else:
            self._loop.call_soon_threadsafe(self._consumer.stop)

    def stop(self, seconds: float = DEADLINE) -> None:
        """Stop it, wait for the end, and raise what it ended in."""
        self.ask_to_stop()
        self._thread.join(seconds)
        assert not self.is_running, f"the consumer has not ended within {seconds:g} s"
        if self.error is not None:
            raise self.error


@contextmanager
def opened(url: str, *, is_async: bool = False) -> Iterator[Shop]:
    """Open a shop whose feed is served, over a database."""
    with connected(url) as engine:
        shop = Shop(engine, is_async=is_async)
        with mounted(shop.feed, capacity=Capacity(wait_seconds=0.2)) as shop.url:
            try:
                yield shop
            finally:
                shop.end()


def filled(shop: Shop, count: int = 20, partitions: int = 4) -> Shop:
    """Publish events in partitions."""
    shop.feed.__init__(partitions)
    shop.feed.place(count)
    return shop


@contextmanager
def halting(cause: type[Exception], match: str = "") -> Iterator[None]:
    """Expect that a partition halts for an error."""
    with pytest.raises(Halted) as caught:
        yield
    assert isinstance(caught.value.__cause__, cause)
    assert re.search(match, str(caught.value.__cause__))


def failing(*poison: int, seen: list[int] | None = None):
    """Make a function that writes events one by one, and raises at some."""

    def apply(connection, one: Event) -> None:
        n = one.data["n"]
        if seen is not None:
            seen.append(n)
        write(connection, [one])
        if n in poison:
            raise Poison(f"event {n} is poison")

    return apply


def kill(engine: sa.Engine, connection) -> None:
    """End the session of a connection, from another."""
    postgresql = engine.dialect.name == "postgresql"
    number = connection.scalar(
        sa.text("SELECT pg_backend_pid()" if postgresql else "SELECT connection_id()")
    )
    with engine.connect() as other:
        other.exec_driver_sql(
            f"SELECT pg_terminate_backend({number})" if postgresql else f"KILL {number}"
        )
