"""A table's feed with a database behind it, sync or async."""

import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from time import monotonic
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from zeroeventhub.errors import BadCursor, Diverged, FeedFailure, Unavailable
from zeroeventhub.protocol import FIRST, LAST, FeedInfo, Page
from zeroeventhub.publisher.cursor import decode_position, encode_position
from zeroeventhub.publisher.ordering import Ordering
from zeroeventhub.publisher.page_query import PageQuery
from zeroeventhub.publisher.time_query import TimeQuery

__all__ = ["AsyncBoundFeed", "BoundFeed", "Reader"]

_READING = {"isolation_level": "AUTOCOMMIT"}
"""Options of a connection, whatever those of its engine: each statement sees what was committed
before it, a horizon and then the rows below it."""

CHECK_INTERVAL = 60.0
"""Seconds between two looks at what the feed relies on."""


class Reader:
    """Do what the sync and the async feed do once there is a connection.

    Args:
        info: what the feed says of itself.
        ordering: knows how far it may be read.
        query: reads its pages.
        times: finds the place of a moment.
    """

    def __init__(
        self, info: FeedInfo, ordering: Ordering, query: PageQuery, times: TimeQuery
    ) -> None:
        self.info = info
        self._ordering = ordering
        self._query = query
        self._times = times
        self._ready = False
        self._checked_at = -math.inf

    @property
    def check_is_due(self) -> bool:
        """Tell whether the table should be looked at before it is read."""
        return not self._ready or monotonic() - self._checked_at > CHECK_INTERVAL

    def check(self, connection: Connection) -> None:
        """Check what the feed relies on.

        Raises:
            ConfigurationError: the table does not have it.
        """
        # Said first, so that readers beside this one do not check as well.
        last, self._checked_at = self._checked_at, monotonic()
        try:
            self._ordering.check(connection)
            self._query.refuse_strays(connection)
        except BaseException:
            self._checked_at = last
            raise
        self._ready = True

    def read(self, connection: Connection, partition: int, cursor: str, limit: int) -> Page:
        """Read the events that follow a cursor, up to the horizon."""
        self._look(connection)
        after = 0 if cursor in {FIRST, LAST} else decode_position(cursor)
        horizon = self._ordering.horizon(connection)
        if cursor == LAST:
            return Page([], encode_position(horizon.settled))
        if after > horizon.highest:
            raise Diverged(
                "The cursor lies beyond the last event of this feed: it was given for another "
                "history, such as the one before a backup was restored."
            )
        return self._query.page(
            connection, partition, after=after, until=horizon.settled, limit=limit
        )

    def cursor_after(self, connection: Connection, position: int) -> str:
        """Return the cursor after a position that is settled."""
        self._look(connection)
        horizon = self._ordering.horizon(connection)
        if not 0 <= position <= horizon.settled:
            raise BadCursor(
                f"Position {position} is not one that the feed may be read up to now: those are 0 "
                f"to {horizon.settled}."
            )
        return encode_position(position)

    def cursor_at(self, connection: Connection, moment: datetime, partition: int) -> str:
        """Return the cursor before the first event of a moment or later."""
        self._look(connection)
        settled = self._ordering.horizon(connection).settled
        return encode_position(self._times.position(connection, partition, moment, settled=settled))

    def _look(self, connection: Connection) -> None:
        if self.check_is_due:
            self.check(connection)


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

    def read(self, partition: int, cursor: str, limit: int) -> Page:
        """Read a page; see `Feed.read`."""
        with self._connected() as connection:
            return self._reader.read(connection, partition, cursor, limit)

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

    async def read(self, partition: int, cursor: str, limit: int) -> Page:
        """Read a page; see `Feed.read`."""
        async with self._connected() as connection:
            return await connection.run_sync(self._reader.read, partition, cursor, limit)

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
