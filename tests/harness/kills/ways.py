"""The ways in which a consumer lives: what a process does between its start and its end."""

import asyncio
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio.lowlevel
import httpx
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from harness.kills.ledger import NAME, write
from harness.kills.points import Points, Terminator, freeze, kill
from harness.kills.script import PLAIN, Script
from zeroeventhub import (
    AsyncClient,
    AsyncConsumer,
    AsyncPendingPage,
    Client,
    Consumer,
    CursorStore,
    Event,
    PendingPage,
)
from zeroeventhub._follow import backoff
from zeroeventhub.cursors.transience import is_transient
from zeroeventhub.errors import Fenced

PATIENCE = {"sqlite": {"timeout": 60}}
"""SQLite queues writers without order; the last in the queue needs patience, in seconds."""


@dataclass(frozen=True)
class Life:
    """Say how a process lives.

    Attributes:
        way: one of WAYS.
        database: the URL of the consumer's database, for a sync engine.
        feed: the URL of the feed.
        script: what is published there.
        strike_at: the point at which it is struck; None for never.
        fetched: whether points count only from the first page on that the feed has sent.
        strike: what happens there: "kill", "freeze" or "terminate" its connections.
        gap: how many points there are at most between two strikes; 0 for one strike.
        most: how many strikes there are at most.
        seed: of the dice that choose gaps and connections.
        alarm: seconds after which it is killed wherever it is; 0 for never.
        options: of the consumer.
        worker: its number, which its effects carry.
        rest: seconds that applying takes.
        clock: seconds by which its own clock is wrong.
        hurried: whether it backs off for milliseconds only.
    """

    way: str
    database: str
    feed: str
    script: Script = PLAIN
    strike_at: int | None = None
    fetched: bool = False
    strike: str = "kill"
    gap: int = 0
    most: int = 1
    seed: str = ""
    alarm: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    worker: int = 0
    rest: float = 0.0
    clock: float = 0.0
    hurried: bool = False


@dataclass(frozen=True)
class Lived:
    """Tell what a life that ended by itself has passed, and how often it was struck."""

    points: int
    strikes: int


class Poison(Exception):  # noqa: N818 - named for what the event is
    """Say that an event cannot be applied."""


def _import_drivers() -> None:
    """Import what an engine imports when it is made, once and not in every life."""
    for url in ("sqlite://", "postgresql+psycopg://", "mariadb+pymysql://"):
        create_engine(url)
        create_async_engine(_async_url(url))
    asyncio.run(anyio.lowlevel.checkpoint())


def _async_url(url: str) -> str:
    return url.replace("sqlite:", "sqlite+aiosqlite:").replace("+pymysql", "+aiomysql")


# Costly to make, and safe to inherit: neither has a connection before its first request.
_http = httpx.Client(timeout=30, trust_env=False)
_async_http = httpx.AsyncClient(timeout=30, trust_env=False)
_import_drivers()


def live(life: Life) -> Lived:
    """Consume as told."""
    if life.clock:
        true_time = time.time
        time.time = lambda: true_time() + life.clock
    if life.hurried:
        backoff.SHORTEST_BACKOFF, backoff.LONGEST_BACKOFF = 0.002, 0.05
    dice = random.Random(life.seed)
    strike = STRIKES[life.strike](life, dice)
    points = Points(
        life.strike_at, strike, fetched=life.fetched, gap=life.gap, most=life.most, dice=dice
    )
    if life.alarm:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, life.alarm)
    WAYS[life.way](life, points)
    return Lived(points.passed, points.strikes)


STRIKES: dict[str, Callable[[Life, random.Random], Callable[[], None]]] = {
    "kill": lambda life, dice: kill,
    "freeze": lambda life, dice: freeze,
    "terminate": lambda life, dice: Terminator(life.database, dice),
}
"""What may happen to a process, by name."""


def _options(life: Life) -> dict[str, Any]:
    return {"follow": False, "limit": 3, "poll_interval": 0.05, **life.options}


def _consumer(life: Life, points: Points) -> tuple[Consumer, Engine]:
    patience = PATIENCE.get(life.database.partition(":")[0], {})
    engine = create_engine(life.database, connect_args=patience)
    points.watch(engine)
    points.watch_http(_http)
    client = Client(life.feed, _http)
    return Consumer(client, CursorStore(engine), NAME, **_options(life)), engine


def _async_consumer(life: Life, points: Points) -> tuple[AsyncConsumer, Any]:
    patience = PATIENCE.get(life.database.partition(":")[0], {})
    engine = create_async_engine(_async_url(life.database), connect_args=patience)
    points.watch(engine.sync_engine)
    points.watch_async_http(_async_http)
    points.watch_tasks(asyncio.get_running_loop())
    client = AsyncClient(life.feed, _async_http)
    return AsyncConsumer(client, CursorStore(engine), NAME, **_options(life)), engine


class _Effects:
    """Apply what comes, as a script has it.

    Args:
        life: whose effects they are.
        points: are passed in the middle of it.
    """

    def __init__(self, life: Life, points: Points) -> None:
        self._life = life
        self._points = points

    def page(self, connection: Connection, page: PendingPage) -> None:
        """Apply a page."""
        self._write(connection, page.partition, page.events)

    def event(self, connection: Connection, event: Event) -> None:
        """Apply one event."""
        self._write(connection, int(event.data["id"].partition("-")[0]), [event])

    async def async_page(self, connection: AsyncConnection, page: AsyncPendingPage) -> None:
        """Apply a page, in a task."""
        await asyncio.sleep(0)
        await connection.run_sync(self._write, page.partition, page.events)

    async def async_event(self, connection: AsyncConnection, event: Event) -> None:
        """Apply one event, in a task."""
        await asyncio.sleep(0)
        await connection.run_sync(self.event, event)

    def _write(self, connection: Connection, partition: int, events: Sequence[Event]) -> None:
        numbers = [event.data["data"]["n"] for event in events]
        if self._life.rest:
            time.sleep(self._life.rest)
        self._points.touch()
        write(connection, partition, numbers, worker=self._life.worker)
        self._points.touch()
        if poison := [n for n in numbers if self._life.script.is_poison(n)]:
            raise Poison(f"Nobody can apply {poison}.")


@contextmanager
def _giving_way() -> Iterator[None]:
    """Let a page be read again that somebody else has committed, or kept from being committed.

    That may be one who was killed, and whose COMMIT has arrived all the same.
    """
    try:
        yield
    except Fenced:
        return
    except DBAPIError as error:
        if not is_transient(error):
            raise


def _loop(life: Life, points: Points, *, commit_first: bool) -> None:
    consumer, engine = _consumer(life, points)
    effects = _Effects(life, points)
    for page in consumer:
        with _giving_way(), engine.begin() as connection:
            if commit_first:
                page.commit(connection)
            effects.page(connection, page)
            if not commit_first:
                page.commit(connection)
    engine.dispose()


def _run(life: Life, points: Points, *, by_event: bool = False) -> None:
    consumer, engine = _consumer(life, points)
    effects = _Effects(life, points)
    consumer.run(effects.event if by_event else effects.page)
    engine.dispose()


def _async_loop(life: Life, points: Points) -> None:
    async def consume() -> None:
        consumer, engine = _async_consumer(life, points)
        effects = _Effects(life, points)
        async for page in consumer:
            with _giving_way():
                async with engine.begin() as connection:
                    await effects.async_page(connection, page)
                    await page.commit(connection)
        await engine.dispose()

    asyncio.run(consume())


def _async_run(life: Life, points: Points, *, by_event: bool = False) -> None:
    async def consume() -> None:
        consumer, engine = _async_consumer(life, points)
        effects = _Effects(life, points)
        await consumer.run(effects.async_event if by_event else effects.async_page)
        await engine.dispose()

    asyncio.run(consume())


WAYS: dict[str, Callable[[Life, Points], None]] = {
    "loop, commit first": partial(_loop, commit_first=True),
    "loop, effects first": partial(_loop, commit_first=False),
    "async loop": _async_loop,
    "run": _run,
    "run, event by event": partial(_run, by_event=True),
    "async run": _async_run,
    "async run, event by event": partial(_async_run, by_event=True),
}
"""What a process may do, by name."""
