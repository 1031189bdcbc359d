"""Consumers of tests: their databases, SQLite in files; their stores; and runs without pauses."""

import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine, NullPool, create_engine, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from zeroeventhub.consumer.consumer import AsyncConsumer, Consumer
from zeroeventhub.consumer.steps import Pause
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.coroutines import blocking, maybe_await
from zeroeventhub.errors import require

Prepare: TypeAlias = Callable[[Connection], object]
"""Creates tables and writes rows, such as `metadata.create_all`."""


def sqlite_engine() -> Engine:
    """Return an engine of an empty SQLite database, which several threads may use.

    It is a file that is removed with the engine: a database in memory has one connection, and a
    consumer uses several.
    """
    return _engine(create_engine, "sqlite:///")


def async_sqlite_engine() -> AsyncEngine:
    """Return an AsyncEngine of an empty SQLite database; see `sqlite_engine`."""
    require("aiosqlite", extra="testing", user="An AsyncEngine of SQLite")
    return _engine(create_async_engine, "sqlite+aiosqlite:///")


_Engine = TypeVar("_Engine", Engine, AsyncEngine)


def _engine(make: Callable[..., _Engine], prefix: str) -> _Engine:
    """Make an engine of an empty database that does not wait for the disk."""
    folder = tempfile.mkdtemp(prefix="zeroeventhub-")
    file = Path(folder, "test.db")
    # While a connection is open, SQLite keeps the file of its log, instead of making it anew for
    # every transaction.
    opened = sqlite3.connect(file, check_same_thread=False)
    opened.execute("PRAGMA journal_mode=WAL").close()
    opened.execute("SELECT * FROM sqlite_master").close()
    # Without a pool, a caller that drops the engine leaves no connection open.
    engine = make(f"{prefix}{file}", poolclass=NullPool)
    sync: Any = getattr(engine, "sync_engine", engine)

    def do_not_wait_for_disk(connection: Any, _record: Any) -> None:
        connection.cursor().execute("PRAGMA synchronous=OFF")

    def remove() -> None:
        opened.close()
        shutil.rmtree(folder, ignore_errors=True)

    event.listen(sync, "connect", do_not_wait_for_disk)
    weakref.finalize(sync, remove)
    return engine


def store_of(prepare: Prepare | None = None) -> CursorStore:
    """Return a store in an empty SQLite database, with its tables.

    Args:
        prepare: creates your own tables there, such as `metadata.create_all`.
    """
    return _store(sqlite_engine(), prepare)


def async_store_of(prepare: Prepare | None = None) -> CursorStore:
    """Return a store for an AsyncConsumer in an empty SQLite database; see `store_of`.

    Args:
        prepare: creates your own tables there, such as `metadata.create_all`.
    """
    return _store(async_sqlite_engine(), prepare)


def _store(engine: Engine | AsyncEngine, prepare: Prepare | None) -> CursorStore:
    store = CursorStore(engine)
    sync = create_engine(f"sqlite:///{engine.url.database}", poolclass=NullPool)
    with sync.begin() as connection:
        store.create_tables(connection)
        if prepare is not None:
            prepare(connection)
    return store


LONGEST_PAUSE = 0.001
"""Seconds of a pause in a test: other threads get their turn."""

MOST_RETRIES = 1000
"""Pauses after errors from which on a consumer tries for ever."""


@contextmanager
def no_pauses() -> Iterator[list[Pause]]:
    """Let the pauses of all consumers take no time in a block; yield those that were made.

    A Pause has its `seconds`, and the error that was its `reason`: None at the head of the feed.

    Raises:
        AssertionError: in a consumer that has tried again a thousand times.
    """
    pauses: list[Pause] = []
    with _lock:
        _blocks[id(pauses)] = pauses
        Pause.begin = _begin  # type: ignore[assignment, method-assign]
    try:
        yield pauses
    finally:
        with _lock:
            del _blocks[id(pauses)]
            if not _blocks:
                Pause.begin = _usual  # type: ignore[method-assign]


_usual = Pause.begin
_blocks: dict[int, list[Pause]] = {}
"""The pauses of each block of `no_pauses`, of which one may begin or end within another."""

_lock = Lock()


def _begin(pause: Pause) -> float:
    """Add a pause to those of all blocks, and make it short."""
    for pauses in [*_blocks.values()]:
        pauses.append(pause)
        is_retry = pause.reason is not None
        if is_retry and sum(one.reason is not None for one in pauses) > MOST_RETRIES:
            raise AssertionError(
                f"The consumer has tried again {MOST_RETRIES:,} times: {pause.reason}"
            ) from pause.reason
    return min(_usual(pause), LONGEST_PAUSE)


def run_to_head(
    consumer: Consumer, apply: Callable[..., object], *, sessions: Callable[[], Any] | None = None
) -> list[Pause]:
    """Run a consumer until it has applied all that is there, without pauses; return these.

    Only its option `follow` is ignored.

    Args:
        consumer: the consumer, of which a copy is run.
        apply: as for `Consumer.run`.
        sessions: as for `Consumer.run`.

    Raises:
        Halted: `apply` has raised in every try.
        ZeroEventHubError: the feed has refused to be read.
    """
    return blocking(any_run_to_head(consumer, apply, sessions))


async def async_run_to_head(
    consumer: AsyncConsumer,
    apply: Callable[..., object],
    *,
    sessions: Callable[[], Any] | None = None,
) -> list[Pause]:
    """Run an AsyncConsumer until it has applied all that is there; see `run_to_head`."""
    return await any_run_to_head(consumer, apply, sessions)


async def any_run_to_head(
    consumer: Consumer | AsyncConsumer,
    apply: Callable[..., object],
    sessions: Callable[[], Any] | None,
) -> list[Pause]:
    """Run a consumer of either kind; with a Consumer this coroutine never suspends."""
    with no_pauses() as pauses:
        await maybe_await(replace(consumer, follow=False).run(apply, sessions=sessions))
    return pauses
