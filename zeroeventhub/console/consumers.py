"""Consumers for the console: what their own stores know of them."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DatabaseError

from zeroeventhub.console.events import shown
from zeroeventhub.console.feeds import UNANSWERED, Reader, count_between
from zeroeventhub.consumer.lag import lag_at
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.consumer.store.dead_letters import DeadLetter
from zeroeventhub.consumer.store.status import CursorStatus, summaries
from zeroeventhub.databases import database_of
from zeroeventhub.databases.error_codes import call_in_store, is_late, translate_store_errors
from zeroeventhub.databases.port import read_only
from zeroeventhub.errors import BadCursor, ConfigurationError, FeedError, NotFound, StoreUnavailable
from zeroeventhub.extensions import CURSOR_OF_COUNT
from zeroeventhub.protocol import FIRST, LAST, FeedInfo, Lag, is_name
from zeroeventhub.publisher.cursor import Place
from zeroeventhub.server.auth import Principal

CONNECTIONS = 2
"""Connections to a store that a console uses at once, each only while it reads or writes."""

STATEMENT_SECONDS = 5.0
"""The longest time of a statement that reads a store, and of a wait for a lock."""

MOST_READ = 1_000
"""Events that are read to count a lag, of a feed that does not count."""

MOST_LETTERS = 200
"""Dead letters that are listed at once."""

LATE = 60.0
"""Seconds without a move after which a partition with events to read stands still."""

_WINDOW = (2.0, 300.0)
"""Seconds between two looks that give a rate."""

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class ConsoleStore:
    """A store whose consumers a console shows."""

    name: str  # in the console's addresses
    store: CursorStore
    # When each consumer was last looked at, and its cursors then.
    looks: dict[str, tuple[float, dict[int, str]]] = field(default_factory=dict)
    _free: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(CONNECTIONS))

    async def look(self, ask: Callable[..., _Found], *arguments: Any) -> _Found:
        """Call a function with a connection that is read-only, with a deadline, and arguments.

        Raises:
            StoreUnavailable: the store did not answer, or not in time.
            ConfigurationError: its tables do not exist.
        """
        try:
            return await self._read(ask, *arguments)
        except DatabaseError as error:
            if is_late(error):
                late = f"A statement in the store {self.name} took longer than it may."
                raise StoreUnavailable(late) from error
            await self._read(self.store.check_tables)
            raise

    async def _read(self, ask: Callable[..., _Found], *arguments: Any) -> _Found:
        engine = self.store.engine
        session = database_of(engine).read_only(engine.dialect, STATEMENT_SECONDS)

        def ask_read_only(connection: Connection) -> _Found:
            with read_only(connection, session):
                return ask(connection, *arguments)

        return await self._with_connection(ask_read_only)

    async def change(self, write: Callable[[Connection], _Found]) -> _Found:
        """Call a function in a transaction that waits for no lock for long.

        Raises:
            StoreUnavailable: the store did not answer, or a lock was held.
        """

        def write_and_commit(connection: Connection) -> _Found:
            with database_of(connection).lock_timeout(connection, STATEMENT_SECONDS):
                found = write(connection)
                connection.commit()
            return found

        return await self._with_connection(write_and_commit)

    async def _with_connection(self, call: Callable[[Connection], _Found]) -> _Found:
        engine = self.store.engine
        with translate_store_errors():
            if isinstance(engine, Engine):

                def connect_and_call() -> _Found:
                    with engine.connect() as connection:
                        return call(connection)

                return await anyio.to_thread.run_sync(connect_and_call, limiter=self._free)
            async with self._free:
                return await call_in_store(engine.connect(), call)


async def list_consumers(store: ConsoleStore, principal: Principal) -> list[dict[str, Any]]:
    """Return the consumers of a store, as far as a principal may see them."""

    def ask(connection: Connection) -> list[dict[str, Any]]:
        found = store.store.standings(connection)
        letters = store.store.dead_letters.counts(connection)
        lines = summaries(one for one in found if principal.may_read(one.partition))
        for one in lines:
            counts = letters.get(one["consumer"], {}).items()
            visible = sum(count for number, count in counts if principal.may_read(number))
            one |= {"store": store.name, "moved": one.pop("updated_at"), "dead_letters": visible}
        return lines

    return await store.look(ask)


@dataclass(frozen=True)
class SeenConsumer:
    """A consumer of a store, as a principal may see it."""

    store: ConsoleStore
    name: str
    standings: list[CursorStatus]
    cursors: dict[int, str]  # those of the standings, by partition
    reader: Reader | None  # of the feed that it reads; None if no feed knows its cursors


async def find(
    store: ConsoleStore, name: str, principal: Principal, readers: Sequence[Reader]
) -> SeenConsumer:
    """Return a consumer, and which one of some feeds it reads.

    Raises:
        NotFound: it has no cursor that the principal may see.
    """
    # PostgreSQL refuses a text with U+0000.
    found = await store.look(store.store.standings, name) if is_name(name) else []
    visible = [one for one in found if principal.may_read(one.partition)]
    if not visible:
        raise NotFound("This store has no such consumer.")
    cursors = {one.partition: one.cursor for one in visible}
    return SeenConsumer(store, name, visible, cursors, await _choose(readers, cursors))


async def _choose(readers: Sequence[Reader], cursors: dict[int, str]) -> Reader | None:
    """Return the reader of the feed that knows a consumer's cursor."""
    placed = [pair for pair in cursors.items() if pair[1] not in {FIRST, LAST}]
    if len(readers) < 2 or not placed:  # noqa: PLR2004 - of one feed there is no choice
        return readers[0] if readers else None
    number, cursor = placed[0]
    for reader in readers:
        with suppress(*UNANSWERED):
            page = await reader.client.fetch(number, cursor, limit=1)
            # A feed over a table takes cursors of what it was before its columns were chosen anew.
            if _recipe(page.cursor) == _recipe(cursor):
                return reader
    return None


def _recipe(cursor: str) -> str:
    """Return how the events of a cursor are made; empty for a feed that is not over a table."""
    try:
        return Place.of(cursor).recipe
    except BadCursor:
        return ""


async def lags(consumer: SeenConsumer) -> dict[int, Lag | None]:
    """Return the lag in each partition; None where no feed tells it, or refuses the cursor."""
    unknown, reader = dict.fromkeys(consumer.cursors), consumer.reader
    if reader is None:
        return unknown
    try:
        info = await reader.client.discover()
    except UNANSWERED:
        return unknown
    known = {one.id for one in info.partitions}
    asked = [pair for pair in consumer.cursors.items() if pair[0] in known]
    found = await reader.side_by_side([partial(_lag, reader, info, *pair) for pair in asked])
    return unknown | {number: lag for (number, _), lag in zip(asked, found, strict=True)}


async def _lag(reader: Reader, info: FeedInfo, number: int, cursor: str) -> Lag | None:
    try:
        return await lag_at(reader.client, info, number, cursor, MOST_READ)
    except UNANSWERED:
        return None


def total(found: Iterable[Lag | None]) -> dict[str, Any]:
    """Add up lags: how many events there are, and the age of the oldest."""
    known = [one for one in found if one is not None]
    ages = [one.seconds for one in known if one.seconds is not None]
    return {
        "events": sum(one.events for one in known) if known else None,
        "seconds": max(ages) if ages else None,
        "exact": all(one.exact for one in known),
    }


async def describe(consumer: SeenConsumer, principal: Principal) -> dict[str, Any]:
    """Describe a consumer: its cursors, leases, lags, retries, halts and dead letters."""
    now, store, reader = datetime.now(UTC), consumer.store, consumer.reader
    known, rate = await lags(consumer), None
    if reader is not None:
        with suppress(*UNANSWERED):
            rate = await _rate(consumer, reader)
    letters = []
    if principal.types is None:
        letters = await store.look(
            partial(store.store.dead_letters.letters, limit=MOST_LETTERS), consumer.name
        )
    partitions = []
    for one in consumer.standings:
        lag = known[one.partition]
        idle = (now - one.updated_at).total_seconds()
        partitions.append(
            {
                "id": one.partition,
                "cursor": one.cursor,
                "moved": one.updated_at,
                "epoch": one.epoch,
                "ended": one.ended,
                "owner": one.owner,
                "until": _moment(now, one.lease_seconds),
                "lag": lag,
                "stands_still": bool(lag and lag.events and idle > LATE),
                # It may hold an event's data, as those of dead letters.
                "error": one.error if principal.types is None else None,
                "tries": one.tries,
                "halted_at": one.halted_at,
                "retried_since": one.retried_since,
                "retry_at": _moment(now, one.retry_seconds),
            }
        )
    return {
        "store": store.name,
        "consumer": consumer.name,
        "feed": reader and reader.feed.name,
        "lag": total(known.values()),
        "rate": rate,
        "partitions": partitions,
        "dead_letters": [_summary(one) for one in letters if principal.may_read(one.partition)],
    }


def _moment(now: datetime, seconds: float | None) -> datetime | None:
    """Return the moment in some seconds from now, by the clock of the console."""
    return None if seconds is None else now + timedelta(seconds=seconds)


async def _rate(consumer: SeenConsumer, reader: Reader) -> float | None:
    """Return the events a second that a consumer has committed since it was last looked at."""
    now, cursors, looks = time.monotonic(), consumer.cursors, consumer.store.looks
    then, before = looks.get(consumer.name, (now, cursors))
    if now - then >= _WINDOW[0] or consumer.name not in looks:
        looks[consumer.name] = (now, cursors)
    info = await reader.client.discover()
    if not _WINDOW[0] <= now - then <= _WINDOW[1] or CURSOR_OF_COUNT not in info.extensions:
        return None

    async def between(number: int, start: str, stop: str) -> int | None:
        try:
            return await count_between(reader.client, number, start, stop)
        except FeedError:
            return 0  # the cursor was set back

    moved = [
        partial(between, number, before[number], cursor)
        for number, cursor in cursors.items()
        if before.get(number, cursor) != cursor and LAST not in {before[number], cursor}
    ]
    counts = [count for count in await reader.side_by_side(moved) if count is not None]
    return sum(counts) / (now - then) if len(counts) == len(moved) else None


def _summary(letter: DeadLetter) -> dict[str, Any]:
    """Describe a dead letter in a line, without its event."""
    names = ("id", "partition", "key", "state", "tries", "created_at")
    error = letter.error.partition("\n")[0]
    return {name: getattr(letter, name) for name in names} | {"error": error}


async def dead_letter(
    store: ConsoleStore, name: str, number: int, principal: Principal
) -> dict[str, Any]:
    """Return a dead letter with its event, its error and its traceback.

    Raises:
        NotFound: there is none, or the principal may not see it.
    """
    letter = None
    if is_name(name):
        with suppress(ConfigurationError):
            letter = await store.look(store.store.dead_letters.get, name, number)
    if letter is None or principal.types is not None or not principal.may_read(letter.partition):
        raise NotFound("This consumer has no such dead letter.")
    headers = dict(letter.event.headers)
    return {**vars(letter), "store": store.name, "headers": headers, "event": shown(letter.event)}
