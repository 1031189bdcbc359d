"""A table's feed with a database behind it, sync or async."""

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, event
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.capacity import Capacity
from zeroeventhub.protocol import FIRST, CountedCursor, FeedInfo, Lag, Page, TypeFilter
from zeroeventhub.publisher.database_error import explained
from zeroeventhub.publisher.finding import Finding
from zeroeventhub.publisher.guest_connection import Guest, PassingBy, guest_for, visiting
from zeroeventhub.publisher.horizon_watch import HorizonReport
from zeroeventhub.publisher.reader import Reader

__all__ = ["AsyncBoundFeed", "BoundFeed"]

_Asked = ParamSpec("_Asked")
_Found = TypeVar("_Found")


class BoundFeed:
    """Read a table's feed through a sync engine."""

    def __init__(self, reader: Reader, engine: Engine, capacity: Capacity) -> None:
        self._reader = reader
        self._engine = engine
        self._guest = guest_for(engine.dialect, capacity.statement_seconds)
        self._seconds = capacity.statement_seconds

    def on_commit(self, told: Callable[[], None]) -> None:
        """Tell of every commit through the engine, while it is under way; see `ExtendedFeed`."""
        _on_commit(self._engine, told)

    @property
    def known_info(self) -> FeedInfo | None:
        """Describe the feed, if the database need not be asked for it; see `info`."""
        return None if self._reader.check_is_due else self._reader.info

    def info(self) -> FeedInfo:
        """Describe the feed; see `Feed.info`."""
        known = self.known_info
        return self._ask(self._reader.described) if known is None else known

    def read(
        self,
        partition: int,
        cursor: str,
        limit: int,
        *,
        types: TypeFilter | None = None,
        stop: str | None = None,
        each: bool = False,
    ) -> Page:
        """Read a page; see `ExtendedFeed.read`."""
        return self._ask(
            self._reader.read, partition, cursor, limit, types=types, stop=stop, each=each
        )

    def read_pages(
        self,
        partition: int,
        cursor: str,
        limit: int,
        count: int,
        *,
        types: TypeFilter | None = None,
        stop: str | None = None,
    ) -> list[Page]:
        """Read pages, one behind the other; see `ExtendedFeed.read_pages`."""
        return self._ask(
            self._reader.read_pages, partition, cursor, limit, count, types=types, stop=stop
        )

    def vouch(self, cursors: Collection[str]) -> None:
        """Refuse cursors if history is another one by now; see `ExtendedFeed.vouch`."""
        self._ask(self._reader.vouch, cursors)

    def head(self) -> int:
        """Return the horizon; see `ExtendedFeed.head`."""
        with explained(), self._engine.connect() as connection:
            return _head(connection, self._reader, self._guest, self._seconds)

    def horizon(self) -> HorizonReport:
        """Tell how far the feed may be read, since when that is so, and who holds it back."""
        return self._ask(self._reader.horizon)

    def splits(
        self, partition: int, count: int, *, start: str = FIRST, stop: str | None = None
    ) -> list[str]:
        """Return the cursors between pieces of a partition; see `ExtendedFeed.splits`.

        The largest piece holds at most about one and a half times the events of the average one,
        as long as pieces have a thousand events or more.
        """
        return self._ask(self._reader.splits, partition, count, start, stop)

    def lag(self, partition: int, cursor: str) -> Lag:
        """Count the settled events behind a cursor; see `ExtendedFeed.lag`.

        It stops at a million, with the ordering sequenced at a hundred thousand. How long ago the
        first of them happened is told by the feed's `time`, or, with that ordering and no `time`,
        by when it was given its position.
        """
        return self._ask(self._reader.lag, partition, cursor)

    def cursor_of_count(
        self, partition: int, cursor: str, events: int, *, stop: str | None = None
    ) -> CountedCursor:
        """Return the cursor behind so many events; see `ExtendedFeed.cursor_of_count`."""
        return self._ask(self._reader.cursor_of_count, partition, cursor, events, stop)

    def cursor_of(
        self, event_id: str, partition: int = 0, *, types: TypeFilter | None = None
    ) -> str:
        """Return the cursor behind the event of an id; see `ExtendedFeed.cursor_of`."""
        return self._ask(self._reader.cursor_of, event_id, partition, types=types)

    def cursor_after(self, position: int) -> str:
        """Return the cursor that stands after a position.

        Args:
            position: 0, or one at or below the horizon; there need not be an event at it.

        Raises:
            BadCursor: it lies above the horizon: events may still appear below it.
        """
        return self._ask(self._reader.cursor_after, position)

    def cursor_at(self, moment: datetime, partition: int = 0) -> str:
        """Return the cursor that stands before all events of a moment or later.

        Args:
            moment: with a time zone, compared with the feed's `time`, or, with the ordering
                sequenced and no `time`, with when an event was given its position.
            partition: one of the feed's.

        Returns:
            The same cursor for the same moment as soon as one event of it or later is settled;
            until then, that of the horizon.

        Raises:
            ConfigurationError: the moment has no zone, or the feed does not know times.
        """
        return self._ask(self._reader.cursor_at, moment, partition)

    def check(self) -> list[Finding]:
        """Look at everything that the feed relies on in its database, and change nothing.

        What is missing is among the findings, and not raised.

        Raises:
            Unavailable: the database cannot answer just now.
        """
        with (
            explained(),
            self._engine.connect() as connection,
            visiting(connection, self._guest),
        ):
            return self._reader.findings(connection)

    def _ask(
        self,
        question: Callable[Concatenate[Connection, _Asked], _Found],
        *arguments: _Asked.args,
        **options: _Asked.kwargs,
    ) -> _Found:
        with explained(), self._engine.connect() as connection:
            return _visit(connection, self._reader, self._guest, question, *arguments, **options)


class AsyncBoundFeed:
    """Read a table's feed through an async engine."""

    def __init__(self, reader: Reader, engine: AsyncEngine, capacity: Capacity) -> None:
        self._reader = reader
        self._engine = engine
        self._guest = guest_for(engine.dialect, capacity.statement_seconds)
        self._seconds = capacity.statement_seconds

    def on_commit(self, told: Callable[[], None]) -> None:
        """Tell of every commit through the engine, while it is under way; see `ExtendedFeed`."""
        _on_commit(self._engine.sync_engine, told)

    @property
    def known_info(self) -> FeedInfo | None:
        """Describe the feed, if the database need not be asked for it; see `BoundFeed`."""
        return None if self._reader.check_is_due else self._reader.info

    async def info(self) -> FeedInfo:
        """Describe the feed; see `Feed.info`."""
        known = self.known_info
        return await self._ask(self._reader.described) if known is None else known

    async def read(
        self,
        partition: int,
        cursor: str,
        limit: int,
        *,
        types: TypeFilter | None = None,
        stop: str | None = None,
        each: bool = False,
    ) -> Page:
        """Read a page; see `ExtendedFeed.read`."""
        return await self._ask(
            self._reader.read, partition, cursor, limit, types=types, stop=stop, each=each
        )

    async def read_pages(
        self,
        partition: int,
        cursor: str,
        limit: int,
        count: int,
        *,
        types: TypeFilter | None = None,
        stop: str | None = None,
    ) -> list[Page]:
        """Read pages, one behind the other; see `ExtendedFeed.read_pages`."""
        return await self._ask(
            self._reader.read_pages, partition, cursor, limit, count, types=types, stop=stop
        )

    async def vouch(self, cursors: Collection[str]) -> None:
        """Refuse cursors if history is another one by now; see `ExtendedFeed.vouch`."""
        await self._ask(self._reader.vouch, cursors)

    async def head(self) -> int:
        """Return the horizon; see `ExtendedFeed.head`."""
        with explained():
            async with self._engine.connect() as connection:
                return await connection.run_sync(_head, self._reader, self._guest, self._seconds)

    async def horizon(self) -> HorizonReport:
        """Tell how far the feed may be read; see `BoundFeed.horizon`."""
        return await self._ask(self._reader.horizon)

    async def splits(
        self, partition: int, count: int, *, start: str = FIRST, stop: str | None = None
    ) -> list[str]:
        """Return the cursors between pieces of a partition; see `BoundFeed.splits`."""
        return await self._ask(self._reader.splits, partition, count, start, stop)

    async def lag(self, partition: int, cursor: str) -> Lag:
        """Count the settled events behind a cursor; see `BoundFeed.lag`."""
        return await self._ask(self._reader.lag, partition, cursor)

    async def cursor_of_count(
        self, partition: int, cursor: str, events: int, *, stop: str | None = None
    ) -> CountedCursor:
        """Return the cursor behind so many events; see `ExtendedFeed.cursor_of_count`."""
        return await self._ask(self._reader.cursor_of_count, partition, cursor, events, stop)

    async def cursor_of(
        self, event_id: str, partition: int = 0, *, types: TypeFilter | None = None
    ) -> str:
        """Return the cursor behind the event of an id; see `ExtendedFeed.cursor_of`."""
        return await self._ask(self._reader.cursor_of, event_id, partition, types=types)

    async def cursor_after(self, position: int) -> str:
        """Return the cursor that stands after a position; see `BoundFeed.cursor_after`."""
        return await self._ask(self._reader.cursor_after, position)

    async def cursor_at(self, moment: datetime, partition: int = 0) -> str:
        """Return the cursor before all events of a moment; see `BoundFeed.cursor_at`."""
        return await self._ask(self._reader.cursor_at, moment, partition)

    async def check(self) -> list[Finding]:
        """Look at everything that the feed relies on; see `BoundFeed.check`."""

        def look(connection: Connection) -> list[Finding]:
            with visiting(connection, self._guest):
                return self._reader.findings(connection)

        with explained():
            async with self._engine.connect() as connection:
                return await connection.run_sync(look)

    async def _ask(
        self,
        question: Callable[Concatenate[Connection, _Asked], _Found],
        *arguments: _Asked.args,
        **options: _Asked.kwargs,
    ) -> _Found:
        with explained():
            async with self._engine.connect() as connection:
                return await connection.run_sync(
                    _visit, self._reader, self._guest, question, *arguments, **options
                )


def _on_commit(engine: Engine, told: Callable[[], None]) -> None:
    event.listen(engine, "commit", lambda _connection: told())


def _head(connection: Connection, reader: Reader, guest: Guest, seconds: float) -> int:
    """Return the horizon, in passing where that can be done."""
    if not reader.may_glance:
        return _visit(connection, reader, guest, reader.head)
    with reader.doubting(), visiting(connection, PassingBy()):
        return reader.glance(connection, seconds)


def _visit(
    connection: Connection,
    reader: Reader,
    guest: Guest,
    question: Callable[Concatenate[Connection, _Asked], _Found],
    /,
    *arguments: _Asked.args,
    **options: _Asked.kwargs,
) -> _Found:
    """Ask the database something, as a guest of its host."""
    if reader.check_is_due:
        # Before anything is written: what writes may not be installed.
        with visiting(connection, guest):
            reader.check(connection)
    with (
        reader.doubting(),
        visiting(connection, guest, reader.step(connection)),
        reader.looking_twice(connection),
    ):
        return question(connection, *arguments, **options)
