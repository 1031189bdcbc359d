"""The ways in which a consumer lives: what a process does between its start and its end."""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import anyio.lowlevel
import httpx
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from harness.kills.connecting import arguments
from harness.kills.ledger import NAME, write
from harness.kills.points import Freezer, Points, Terminator, Unwatched, kill
from harness.kills.script import PLAIN, Script, number_of
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
        changed: whether they count only from the first answer on that partitions have changed.
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
    changed: bool = False
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
    """Tell what a life that ended by itself has passed.

    Attributes:
        points: how many it has passed.
        strikes: how often it was struck.
        fenced: how often a commit of it was refused, because another had gone on.
    """

    points: int
    strikes: int
    fenced: int


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


@cache
def _engine(url: str) -> Engine:
    """Make an engine; what it learns in a rehearsal is inherited, without its connections."""
    return create_engine(url, connect_args=arguments(url))


@cache
def _async_engine(url: str) -> AsyncEngine:
    """Do the same for tasks."""
    url = _async_url(url)
    return create_async_engine(url, connect_args=arguments(url))


# Costly to make, and safe to inherit.
_TLS = httpx.create_ssl_context(trust_env=False)
_HTTP: dict[str, Any] = {"timeout": 30, "verify": _TLS, "trust_env": False}
_import_drivers()


def rehearse(life: Life) -> None:
    """Consume as told, undisturbed, so that who is forked behind it finds everything ready."""
    WAYS[life.way](life, Unwatched())


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
        life.strike_at,
        strike,
        fetched=life.fetched,
        changed=life.changed,
        gap=life.gap,
        most=life.most,
        dice=dice,
    )
    if life.alarm:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, life.alarm)
    WAYS[life.way](life, points)
    return Lived(points.passed, points.strikes, points.fenced)


STRIKES: dict[str, Callable[[Life, random.Random], Callable[[], None]]] = {
    "kill": lambda life, dice: kill,
    "freeze": lambda life, dice: Freezer(life.database),
    "terminate": lambda life, dice: Terminator(life.database, dice),
}
"""What may happen to a process, by name."""


def _options(life: Life, points: Points) -> dict[str, Any]:
    common = {"follow": False, "limit": 3, "poll_interval": 0.05, "observer": points.observer()}
    return {**common, **life.options}


@contextmanager
def _consumer(life: Life, points: Points) -> Iterator[Consumer]:
    engine = _engine(life.database)
    with httpx.Client(**_HTTP) as http:
        points.watch(engine)
        points.watch_http(http)
        client = Client(life.feed, http)
        yield Consumer(client, CursorStore(engine), NAME, **_options(life, points))
    engine.dispose()


@asynccontextmanager
async def _async_consumer(life: Life, points: Points) -> AsyncIterator[AsyncConsumer]:
    engine = _async_engine(life.database)
    async with httpx.AsyncClient(**_HTTP) as http:
        points.watch(engine.sync_engine)
        points.watch_async_http(http)
        points.watch_tasks(asyncio.get_running_loop())
        client = AsyncClient(life.feed, http)
        yield AsyncConsumer(client, CursorStore(engine), NAME, **_options(life, points))
    await engine.dispose()


class _Effects:
    """Apply what comes, as a script has it."""

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
        numbers = [number_of(event) for event in events]
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
    effects = _Effects(life, points)
    with _consumer(life, points) as consumer:
        engine = _engine(life.database)
        for page in consumer:
            with _giving_way(), engine.begin() as connection:
                if commit_first:
                    page.commit(connection)
                effects.page(connection, page)
                if not commit_first:
                    page.commit(connection)


def _run(life: Life, points: Points, *, by_event: bool = False) -> None:
    effects = _Effects(life, points)
    with _consumer(life, points) as consumer:
        consumer.run(effects.event if by_event else effects.page)


def _async_loop(life: Life, points: Points) -> None:
    async def consume() -> None:
        effects = _Effects(life, points)
        async with _async_consumer(life, points) as consumer:
            engine = _async_engine(life.database)
            async for page in consumer:
                with _giving_way():
                    async with engine.begin() as connection:
                        await effects.async_page(connection, page)
                        await page.commit(connection)

    asyncio.run(consume())


def _async_run(life: Life, points: Points, *, by_event: bool = False) -> None:
    async def consume() -> None:
        effects = _Effects(life, points)
        async with _async_consumer(life, points) as consumer:
            await consumer.run(effects.async_event if by_event else effects.async_page)

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
