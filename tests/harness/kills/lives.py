"""How a consumer lives: what a process does, and the process of one thread that forks it."""

import asyncio
import gc
import json
import logging
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection as Line
from pathlib import Path
from typing import Any

import anyio.lowlevel
import httpx
from harness.engines import async_url
from harness.kills.points import Points, freeze, kill, terminate
from harness.kills.script import NAME, Script, number_of, write
from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

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
from zeroeventhub.consumer import steps
from zeroeventhub.databases.error_codes import is_transient
from zeroeventhub.errors import Fenced

PATIENCE = 60  # seconds after which a life that does not end is given up, also where it starves
LONGEST_PAUSE = 0.004
"""Seconds between two looks at a life, at most: most lives are over within some tens of these."""


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


@cache
def _engine(url: str) -> Engine:
    """Make an engine; what it learns in a rehearsal is inherited, without its connections."""
    return create_engine(url)


@cache
def _async_engine(url: str) -> AsyncEngine:
    return create_async_engine(async_url(url))


# Costly to make, and safe to inherit.
_TLS = httpx.create_ssl_context(trust_env=False)
_HTTP: dict[str, Any] = {"timeout": 30, "verify": _TLS, "trust_env": False}
_import_drivers()


def live(life: Life) -> dict[str, int]:
    """Consume as the life says; return how often it was struck."""
    if life.clock:
        true_time = time.time
        time.time = lambda: true_time() + life.clock
    if life.hurried:
        steps.SHORTEST_BACKOFF, steps.LONGEST_BACKOFF = 0.002, 0.05
    dice = random.Random(life.seed)
    strikes: dict[str, Callable[[], object]] = {
        "kill": kill,
        "freeze": freeze,
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
    return {"strikes": points.strikes}


def _options(life: Life) -> dict[str, Any]:
    return {"follow": False, "limit": 3, "poll_interval": 0.05, **life.options}


@contextmanager
def _consumer(life: Life, points: Points) -> Iterator[Consumer]:
    engine = _engine(life.database)
    with httpx.Client(**_HTTP) as http:
        points.watch(engine)
        points.watch_http(http)
        yield Consumer(Client(life.feed, http), CursorStore(engine), NAME, **_options(life))
    engine.dispose()


@asynccontextmanager
async def _async_consumer(life: Life, points: Points) -> AsyncIterator[AsyncConsumer]:
    engine = _async_engine(life.database)
    async with httpx.AsyncClient(**_HTTP) as http:
        points.watch(engine.sync_engine)
        points.watch_async_http(http)
        client = AsyncClient(life.feed, http)
        yield AsyncConsumer(client, CursorStore(engine), NAME, **_options(life))
    await engine.dispose()


class Poison(Exception):  # noqa: N818 - named for what the event is
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
    with _consumer(life, points) as consumer:
        for page in consumer:
            with _giving_way(), _engine(life.database).begin() as connection:
                page.commit(connection)
                _apply(life, points, connection, page.events)


def _run(life: Life, points: Points, *, by_event: bool = False) -> None:
    def page(connection: Connection, page: PendingPage) -> None:
        _apply(life, points, connection, page.events)

    def event(connection: Connection, event: Event) -> None:
        _apply(life, points, connection, [event])

    with _consumer(life, points) as consumer:
        consumer.run(event if by_event else page, handle_signals=True)


def _async_loop(life: Life, points: Points) -> None:
    async def consume() -> None:
        async with _async_consumer(life, points) as consumer:
            async for page in consumer:
                with _giving_way():
                    async with _async_engine(life.database).begin() as connection:
                        await connection.run_sync(partial(_apply, life, points), page.events)
                        await page.commit(connection)

    asyncio.run(consume())


def _async_run(life: Life, points: Points, *, by_event: bool = False) -> None:
    async def apply(connection: AsyncConnection, events: Sequence[Event]) -> None:
        await asyncio.sleep(0)
        await connection.run_sync(partial(_apply, life, points), events)

    async def page(connection: AsyncConnection, page: AsyncPendingPage) -> None:
        await apply(connection, page.events)

    async def event(connection: AsyncConnection, event: Event) -> None:
        await apply(connection, [event])

    async def consume() -> None:
        async with _async_consumer(life, points) as consumer:
            await consumer.run(event if by_event else page, handle_signals=True)

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
    """Tell by which signal a process ended or stands still, if any, and how often it was struck."""

    pid: int
    signal: int | None = None
    stopped: bool = False
    strikes: int = 0
    error: str = ""

    @property
    def killed(self) -> bool:
        """Whether it was ended from outside."""
        return self.signal is not None and not self.stopped


class Zygote:
    """Hold the process that has imported everything, and from which lives are forked."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._living: set[int] = set()

    def rehearse(self, life: Life) -> None:
        """Let the process that forks live a life itself; its children find everything ready."""
        self._ask("rehearse", life)

    def start(self, life: Life) -> int:
        pid = self._ask("fork", life)
        self._living.add(pid)
        return pid

    def poll(self, pid: int) -> End | None:
        """Return how a life has ended, or that it stands still; None while it goes on."""
        end = self._ask("reap", pid)
        if end is not None and not end.stopped:
            self._living.discard(pid)
        return end

    def wait(self, pid: int) -> End:
        ending, pause = time.monotonic() + PATIENCE, 0.0005
        while (end := self.poll(pid)) is None:
            if time.monotonic() > ending:
                raise TimeoutError(f"A consumer did not come to an end in {PATIENCE} s.")
            time.sleep(pause)
            pause = min(pause * 1.3, LONGEST_PAUSE)
        return end

    def run(self, life: Life) -> End:
        return self.wait(self.start(life))

    def close(self) -> None:
        for pid in tuple(self._living):
            os.kill(pid, signal.SIGKILL)
            self.wait(pid)
        self._line.close()
        self._process.join(PATIENCE)
        self._process.close()

    def _ask(self, question: str, about: Life | int) -> Any:
        self._line.send((question, about))
        if not self._line.poll(PATIENCE):
            raise TimeoutError("The process that forks does not answer.")
        return self._line.recv()


@contextmanager
def zygote() -> Iterator[Zygote]:
    """Run a zygote; what is still alive behind it is killed."""
    mother = Zygote()
    try:
        yield mother
    finally:
        mother.close()


def _serve(line: Line) -> None:
    """Fork lives and reap them, until the other end of the line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What they wait out and get over is expected here, and they do it by the thousand.
    logging.disable()
    reports: dict[int, int] = {}
    while True:
        try:
            question, about = line.recv()
        except EOFError:
            return
        match question:
            case "rehearse":
                WAYS[about.way](about, Points(None, kill))
                gc.collect()
                # No life looks at what is left, and so none has to copy it.
                gc.freeze()
                line.send(None)
            case "fork":
                line.send(_fork(about, reports))
            case "reap":
                line.send(_reap(about, reports))


def _fork(life: Life, reports: dict[int, int]) -> int:
    """Fork a life, which tells how it was, and never returns into the mother's work."""
    threads = Path("/proc/self/task")
    assert not threads.exists() or len(list(threads.iterdir())) == 1
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid:
        os.close(theirs)
        reports[pid] = ours
        return pid
    os.close(ours)
    report: dict[str, object] = {}
    try:
        report = {**live(life)}
    except BaseException:  # noqa: BLE001 - whatever it was, the test has to hear of it
        report["error"] = traceback.format_exc()[-8000:]
    finally:
        os.write(theirs, json.dumps(report).encode())
        sys.stdout.flush()
        os._exit(0)


def _reap(pid: int, reports: dict[int, int]) -> End | None:
    found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
    if not found:
        return None
    if os.WIFSTOPPED(status):
        return End(pid, os.WSTOPSIG(status), stopped=True)
    with os.fdopen(reports.pop(pid), "rb") as pipe:
        report = json.loads(pipe.read() or b"{}")
    return End(pid, os.WTERMSIG(status) if os.WIFSIGNALED(status) else None, **report)
