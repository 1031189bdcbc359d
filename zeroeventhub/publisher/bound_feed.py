"""A table's feed with a database behind it, sync or async."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from zeroeventhub.errors import FeedFailure, Unavailable
from zeroeventhub.protocol import FIRST, FeedInfo, Lag, Page, TypeFilter
from zeroeventhub.publisher.reader import Reader

__all__ = ["AsyncBoundFeed", "BoundFeed"]

_READING = {"isolation_level": "AUTOCOMMIT"}
"""Options of a connection, whatever those of its engine: each statement sees what was committed
before it, a horizon and then the rows below it."""


class BoundFeed:
    """Read a table's feed through a sync engine."""

    def __init__(self, reader: Reader, engine: Engine) -> None:
        self._reader = reader
        self._engine = engine

    def info(self) -> FeedInfo:
        """Describe the feed; see `Feed.info`."""
        if self._reader.check_is_due:
            with self._connected() as connection:
                self._reader.check(connection)
        return self._reader.info

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
        with self._connected() as connection:
            return self._reader.read(
                connection, partition, cursor, limit, types=types, stop=stop, each=each
            )

    def head(self) -> int:
        """Return the horizon; see `ExtendedFeed.head`."""
        with self._connected() as connection:
            return self._reader.head(connection)

    def splits(
        self, partition: int, count: int, *, start: str = FIRST, stop: str | None = None
    ) -> list[str]:
        """Return the cursors between pieces of a partition; see `ExtendedFeed.splits`.

        The largest piece holds at most about one and a half times the events of the average one,
        as long as pieces have a thousand events or more.
        """
        with self._connected() as connection:
            return self._reader.splits(connection, partition, count, start, stop)

    def lag(self, partition: int, cursor: str) -> Lag:
        """Count the settled events behind a cursor; see `ExtendedFeed.lag`.

        It stops at a million, with the ordering sequenced at a hundred thousand. How long ago the
        first of them happened is told by the feed's `time`, or, with that ordering and no `time`,
        by when it was given its position.
        """
        with self._connected() as connection:
            return self._reader.lag(connection, partition, cursor)

    def cursor_of(self, event_id: str, partition: int = 0) -> str:
        """Return the cursor behind the event of an id; see `ExtendedFeed.cursor_of`."""
        with self._connected() as connection:
            return self._reader.cursor_of(connection, event_id, partition)

    def cursor_after(self, position: int) -> str:
        """Return the cursor that stands after a position.

        Args:
            position: 0, or one at or below the horizon; there need not be an event at it.

        Raises:
            BadCursor: it lies above the horizon: events may still appear below it.
        """
        with self._connected() as connection:
            return self._reader.cursor_after(connection, position)

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
        with self._connected() as connection:
            return self._reader.cursor_at(connection, moment, partition)

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with _explained(), self._engine.connect() as connection:
            yield connection.execution_options(**_READING)


class AsyncBoundFeed:
    """Read a table's feed through an async engine."""

    def __init__(self, reader: Reader, engine: AsyncEngine) -> None:
        self._reader = reader
        self._engine = engine

    async def info(self) -> FeedInfo:
        """Describe the feed; see `Feed.info`."""
        if self._reader.check_is_due:
            async with self._connected() as connection:
                await connection.run_sync(self._reader.check)
        return self._reader.info

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
        async with self._connected() as connection:
            return await connection.run_sync(
                self._reader.read, partition, cursor, limit, types=types, stop=stop, each=each
            )

    async def head(self) -> int:
        """Return the horizon; see `ExtendedFeed.head`."""
        async with self._connected() as connection:
            return await connection.run_sync(self._reader.head)

    async def splits(
        self, partition: int, count: int, *, start: str = FIRST, stop: str | None = None
    ) -> list[str]:
        """Return the cursors between pieces of a partition; see `BoundFeed.splits`."""
        async with self._connected() as connection:
            return await connection.run_sync(self._reader.splits, partition, count, start, stop)

    async def lag(self, partition: int, cursor: str) -> Lag:
        """Count the settled events behind a cursor; see `BoundFeed.lag`."""
        async with self._connected() as connection:
            return await connection.run_sync(self._reader.lag, partition, cursor)

    async def cursor_of(self, event_id: str, partition: int = 0) -> str:
        """Return the cursor behind the event of an id; see `ExtendedFeed.cursor_of`."""
        async with self._connected() as connection:
            return await connection.run_sync(self._reader.cursor_of, event_id, partition)

    async def cursor_after(self, position: int) -> str:
        """Return the cursor that stands after a position; see `BoundFeed.cursor_after`."""
        async with self._connected() as connection:
            return await connection.run_sync(self._reader.cursor_after, position)

    async def cursor_at(self, moment: datetime, partition: int = 0) -> str:
        """Return the cursor before all events of a moment; see `BoundFeed.cursor_at`."""
        async with self._connected() as connection:
            return await connection.run_sync(self._reader.cursor_at, moment, partition)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[AsyncConnection]:
        with _explained():
            async with self._engine.connect() as connection:
                yield await connection.execution_options(**_READING)


@contextmanager
def _explained() -> Iterator[None]:
    """Turn the database's errors into the feed's; the database's own stay attached."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout) as error:
        if _is_denied(error):
            raise FeedFailure("The feed's user lacks a right that its query needs.") from error
        if "Could not decode" in str(error):  # SQLite holds text that is not UTF-8
            raise FeedFailure("A row holds text that is not UTF-8.") from error
        raise Unavailable("The feed's database cannot answer just now.", retry_after=1) from error
    except SQLAlchemyError as error:
        raise FeedFailure("The feed's database refused the feed's query.") from error


def _is_denied(error: Exception) -> bool:
    """Tell whether MariaDB or MySQL refused for want of a right, which no waiting mends."""
    arguments: tuple[Any, ...] = getattr(getattr(error, "orig", None), "args", ())
    return bool({*arguments[:1]} & {1044, 1142, 1143, 1227, 1370})
