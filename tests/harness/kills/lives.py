"""How a consumer lives: what its process does, and how it ends."""

import asyncio
import logging
import os
import random
import signal
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection as Line
from typing import Any

import anyio.lowlevel
import httpx
from harness.engines import async_url
from harness.forks import forks
from harness.kills.points import Points, freeze, kill, terminate
from harness.kills.script import NAME, Script, number_of, write
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

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
from zeroeventhub.client import requests
from zeroeventhub.databases.error_codes import is_transient
from zeroeventhub.errors import Fenced

PATIENCE = 60  # seconds after which a life that does not end is given up, also where it starves


@dataclass(frozen=True)
class Life:
    """Say how a process lives, by one of WAYS, and when it is killed, frozen or cut off.

    It is struck at a point, and again within each gap, up to so many times; points count from the
    start, or from the first page that was fetched. The alarm kills it after so many seconds.
    """

    way: str
    database: str
    feed: str
    script: Script
    strike_at: int | None = None
    fetched: bool = False
    strike: str = "kill"
    gap: int = 0
    most: int = 1
    seed: str = ""
    alarm: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    clock: float = 0.0
    hurried: bool = False


def _import_drivers() -> None:
    """Import what an engine imports when it is made, once and not in every life."""
    for url in ("sqlite://", "postgresql+psycopg://", "mariadb+pymysql://"):
        create_engine(url)
        create_async_engine(async_url(url))
    asyncio.run(anyio.lowlevel.checkpoint())


# Costly to make, and safe to inherit.
_TLS = httpx.create_ssl_context(trust_env=False)
_HTTP: dict[str, Any] = {"timeout": 30, "verify": _TLS, "trust_env": False}
_import_drivers()


def _live(life: Life, line: Line) -> int:
    """Consume as the life says; return how often it was struck."""
    if life.clock:
        true_time = time.time
        time.time = lambda: true_time() + life.clock
    if life.hurried:
        requests.SHORTEST_BACKOFF, requests.LONGEST_BACKOFF = 0.002, 0.05
    dice = random.Random(life.seed)
    strikes: dict[str, Callable[[], object]] = {
        "kill": kill,
        "freeze": partial(freeze, line),
        "terminate": partial(terminate, life.database, dice),
    }
    points = Points(
        life.strike_at,
        strikes[life.strike],
        counting=not life.fetched,
        gap=life.gap,
        most=life.most,
        dice=dice,
    )
    if life.alarm:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, life.alarm)
    WAYS[life.way](life, points)
    return points.strikes


def _options(life: Life) -> dict[str, Any]:
    return {"follow": False, "limit": 3, "poll_interval": 0.05, **life.options}


@contextmanager
def _consumer(life: Life, points: Points) -> Iterator[tuple[Consumer, Engine]]:
    engine = create_engine(life.database)
    with httpx.Client(**_HTTP) as http:
        points.watch(engine)
        points.watch_http(http)
        client, store = Client(life.feed, http), CursorStore(engine)
        yield Consumer(client, store, NAME, **_options(life)), engine
    engine.dispose()


@asynccontextmanager
async def _async_consumer(
    life: Life, points: Points
) -> AsyncIterator[tuple[AsyncConsumer, AsyncEngine]]:
    engine = create_async_engine(async_url(life.database))
    async with httpx.AsyncClient(**_HTTP) as http:
        points.watch(engine.sync_engine)
        points.watch_async_http(http)
        client = AsyncClient(life.feed, http)
        yield AsyncConsumer(client, CursorStore(engine), NAME, **_options(life)), engine
    await engine.dispose()


class Poison(Exception):
    """Say that an event cannot be applied."""


def _apply(life: Life, points: Points, connection: Connection, events: Sequence[Event]) -> None:
    """Apply events as their script has it."""
    points.touch()
    write(connection, events)
    points.touch()
    if poison := [n for n in map(number_of, events) if life.script.is_poison(n)]:
        raise Poison(f"No consumer can apply {poison}.")


@contextmanager
def _giving_way() -> Iterator[None]:
    """Let a page be read again that another has committed, or kept from being committed.

    That may be one that was killed, and whose COMMIT has arrived all the same.
    """
    try:
        yield
    except Fenced:
        return
    except DBAPIError as error:
        if not is_transient(error):
            raise


def _loop(life: Life, points: Points) -> None:
    with _consumer(life, points) as (consumer, engine):
        for page in consumer:
            with _giving_way(), engine.begin() as connection:
                page.commit(connection)
                _apply(life, points, connection, page.events)


def _run(life: Life, points: Points, *, by_event: bool = False) -> None:
    def apply(connection, given) -> None:
        _apply(life, points, connection, [given] if by_event else given.events)

    apply.__annotations__["given"] = Event if by_event else PendingPage
    with _consumer(life, points) as (consumer, _):
        consumer.run(apply, handle_signals=True)


def _async_loop(life: Life, points: Points) -> None:
    async def consume() -> None:
        async with _async_consumer(life, points) as (consumer, engine):
            async for page in consumer:
                with _giving_way():
                    async with engine.begin() as connection:
                        await connection.run_sync(partial(_apply, life, points), page.events)
                        await page.commit(connection)

    asyncio.run(consume())


def _async_run(life: Life, points: Points, *, by_event: bool = False) -> None:
    async def apply(connection, given) -> None:
        await asyncio.sleep(0)
        events = [given] if by_event else given.events
        await connection.run_sync(partial(_apply, life, points), events)

    apply.__annotations__["given"] = Event if by_event else AsyncPendingPage

    async def consume() -> None:
        async with _async_consumer(life, points) as (consumer, _):
            await consumer.run(apply, handle_signals=True)

    asyncio.run(consume())


WAYS: dict[str, Callable[[Life, Points], None]] = {
    "loop": _loop,
    "async loop": _async_loop,
    "run": _run,
    "run, event by event": partial(_run, by_event=True),
    "async run": _async_run,
    "async run, event by event": partial(_async_run, by_event=True),
}
"""What a process may do, by name."""


@dataclass(frozen=True)
class End:
    """Tell by which signal a process ended, if by one, and how often it was struck."""

    signal: int | None = None
    strikes: int = 0
    error: str = ""


class Process:
    """Run a life in a process of its own."""

    def __init__(self, life: Life) -> None:
        context = forks()
        self._line, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_live_and_report, args=(life, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def is_frozen(self) -> bool:
        """Wait until it stands still, or has ended."""
        return self._line.poll(PATIENCE) and self._line.recv() is None

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def has_ended(self, seconds: float = PATIENCE) -> bool:
        """Wait for its end, for so many seconds at most."""
        self._process.join(seconds)
        return self._process.exitcode is not None

    def end(self) -> End:
        """Wait for its end, and return how it was."""
        if not self.has_ended():
            raise TimeoutError(f"A consumer did not come to an end in {PATIENCE} s.")
        if self._process.exitcode:
            return End(signal=-self._process.exitcode)
        try:
            return self._line.recv()
        except EOFError:
            return End()

    def close(self) -> None:
        self._process.kill()
        self._process.join(PATIENCE)
        self._process.close()
        self._line.close()


def _live_and_report(life: Life, line: Line) -> None:
    # What consumers wait out and get over is expected here, and they do it by the thousand.
    logging.disable()
    end = End()
    try:
        end = End(strikes=_live(life, line))
    except BaseException:  # noqa: BLE001 - whatever it was, the test has to hear of it
        end = End(error=traceback.format_exc()[-8000:])
    finally:
        line.send(end)
        os._exit(0)
