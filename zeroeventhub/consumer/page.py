"""A page that is not committed yet, and the kinds of transactions that can commit it."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from sqlalchemy import Connection, Engine, NullPool
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from zeroeventhub.consumer.event_insert import insert_events
from zeroeventhub.databases.bulk_insert import TableForm, table_form
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.wire.ndjson import PageEvents

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    import psycopg
    import pymysql
    from sqlalchemy import Table

    from zeroeventhub.consumer.config import Config
    from zeroeventhub.consumer.steps import Place
    from zeroeventhub.protocol import Event

    SyncTransaction: TypeAlias = (
        Connection
        | Session
        | psycopg.Connection[Any]
        | sqlite3.Connection
        | pymysql.Connection[Any]
    )
    AsyncTransaction: TypeAlias = AsyncConnection | AsyncSession | psycopg.AsyncConnection[Any]


def without_duplicates(
    connection: Connection,
    config: Config,
    partition: int,
    events: Sequence[Event],
    complain: Callable[[], object],
) -> list[Event]:
    """Return the first event of each id that was not applied before, and those without an id.

    The ids are stored in the consumer's inbox; `complain` is called if an event has no id.
    """
    ids = [config.identity(event) for event in events]
    if None in ids:
        complain()
    known = [one for one in ids if one is not None]
    left = set(config.store.inbox.unseen(connection, config.name, partition, known))
    fresh = []
    for event, one in zip(events, ids, strict=True):
        if one is None:
            fresh.append(event)
        elif one in left:
            left.remove(one)
            fresh.append(event)
    return fresh


def _refuse_no_id() -> NoReturn:
    raise ConfigurationError(
        "An event has no id, so the inbox cannot tell whether it comes twice: give the consumer "
        "`identity`, a function that returns the id of an event."
    )


@dataclass
class DecodeHint:
    """How the caller uses pages, so that they can be converted when they are fetched ahead.

    Attributes:
        data_type: the type to decode the data of events as; None if it is not known.
        form: the form of the table that events are inserted into.
    """

    data_type: Any = None
    form: TableForm | None = None

    def learn(self, events: Sequence[Event]) -> None:
        """Decode further pages in one call, as the data of this page's events was read."""
        if self.data_type is None and isinstance(events, PageEvents) and events.has_read_data:
            self.data_type = Any


@dataclass(frozen=True)
class _Pending:
    partition: int
    events: Sequence[Event]
    cursor: str
    _place: Place
    _config: Config
    _hint: DecodeHint

    def _insert_into(
        self,
        connection: Connection,
        table: Table,
        row: Callable[[Event], Mapping[str, Any]] | None,
        events: Sequence[Event] | None,
    ) -> None:
        if row is None and events is None and self._hint.data_type is None:
            form = table_form(table, connection.dialect)
            self._hint.data_type, self._hint.form = form.model, form
        insert_events(connection, table, self.events if events is None else events, row)

    @property
    def previous_cursor(self) -> str:
        """Where the partition's cursor stands."""
        return self._place.cursor

    @property
    def _engine(self) -> Engine:
        engine = self._config.store.engine
        return engine if isinstance(engine, Engine) else engine.sync_engine

    def _move(self, connection: Connection) -> None:
        store, name = self._config.store, self._config.name
        store.advance(connection, name, self.partition, self._place, self.cursor)
        if store.lanes.has_begun(connection, name, self.partition, self._place):
            raise ConfigurationError(
                f"A page of partition {self.partition} has been applied in part, by lanes of "
                f"consumer {name!r}: roll back, and let `run` finish it before pages are read one "
                "by one."
            )

    def _unseen(self, connection: Connection) -> Sequence[Event]:
        return without_duplicates(
            connection, self._config, self.partition, self.events, _refuse_no_id
        )


class PendingPage(_Pending):
    """A page that was received and not yet committed.

    Example:
        for page in Consumer(client, store, "billing"):
            with engine.begin() as connection:
                page.commit(connection)
                apply(connection, page)

    Attributes:
        partition: the partition it belongs to.
        events: its events, in order.
        previous_cursor: the partition's present cursor.
        cursor: the cursor after a commit.
    """

    def commit(self, transaction: SyncTransaction) -> None:
        """Move the cursor to the end of this page, in the transaction that holds its effects.

        Args:
            transaction: a connection or session to the database of the cursor store; or a plain
                connection of the driver that the store's engine uses (psycopg, sqlite3, PyMySQL),
                such as `django.db.connection.connection`. Commit it, and page and effects are done;
                roll it back, and neither is.

        Raises:
            Fenced: the cursor has moved since the page was read. Roll back.
            ConfigurationError: `run` has applied a part of the page, in lanes. Roll back.
        """
        with connection_of(transaction, self._engine) as connection:
            self._move(connection)

    def unseen(self, transaction: SyncTransaction) -> Sequence[Event]:
        """Return the events that come for the first time, and remember them.

        Args:
            transaction: the one that commits the page, as for `commit`.

        Raises:
            ConfigurationError: an event has no id.
        """
        with connection_of(transaction, self._engine) as connection:
            return self._unseen(connection)

    def insert_into(
        self,
        table: Table,
        transaction: SyncTransaction,
        *,
        row: Callable[[Event], Mapping[str, Any]] | None = None,
        events: Sequence[Event] | None = None,
    ) -> None:
        """Insert a row for each event into a table: by COPY through psycopg, else in bulk.

        A column without a key in the event gets its default, or NULL. Columns of JSON get the JSON
        as it was sent; columns without a time zone get moments in UTC.

        Args:
            table: the table.
            transaction: the one that commits the page, as for `commit`.
            row: makes an event's row, by the names of columns; by default, each column gets what
                the event's data has under its name.
            events: the events to insert, such as those of `unseen`; by default all of the page.
                Errors count among these.

        Raises:
            ProtocolError: an event is no object, has no value for a column that needs one, or has
                one that does not fit its type.
            ConfigurationError: the same of a row that `row` has made.
        """
        with connection_of(transaction, self._engine) as connection:
            self._insert_into(connection, table, row, events)


class AsyncPendingPage(_Pending):
    """A page that was received and not yet committed; see PendingPage.

    Example:
        async for page in AsyncConsumer(client, store, "billing"):
            async with engine.begin() as connection:
                await page.commit(connection)
                await apply(connection, page)
    """

    async def commit(self, transaction: AsyncTransaction) -> None:
        """Move the cursor to the end of this page; see `PendingPage.commit`."""
        async with async_connection_of(transaction, self._engine) as connection:
            await connection.run_sync(self._move)

    async def unseen(self, transaction: AsyncTransaction) -> Sequence[Event]:
        """Return the events that come for the first time; see `PendingPage.unseen`."""
        async with async_connection_of(transaction, self._engine) as connection:
            return await connection.run_sync(self._unseen)

    async def insert_into(
        self,
        table: Table,
        transaction: AsyncTransaction,
        *,
        row: Callable[[Event], Mapping[str, Any]] | None = None,
        events: Sequence[Event] | None = None,
    ) -> None:
        """Insert a row for each event into a table; see `PendingPage.insert_into`."""
        async with async_connection_of(transaction, self._engine) as connection:
            await connection.run_sync(self._insert_into, table, row, events)


@contextmanager
def connection_of(transaction: SyncTransaction, engine: Engine) -> Iterator[Connection]:
    """Yield the connection of a transaction, which stays open afterwards.

    Raises:
        ConfigurationError: it is no Connection, Session, or connection of the store's driver.
    """
    match transaction:
        case Connection():
            yield transaction
        case Session():
            yield transaction.connection()
        case _:
            _check(transaction, "Connection", engine, ("psycopg", "pysqlite", "pymysql"))
            with _engine_of(lambda: _Borrowed(transaction), engine).connect() as connection:
                yield connection


@asynccontextmanager
async def async_connection_of(
    transaction: AsyncTransaction, engine: Engine
) -> AsyncIterator[AsyncConnection]:
    """Yield the connection of a transaction; see `connection_of`."""
    match transaction:
        case AsyncConnection():
            yield transaction
        case AsyncSession():
            yield await transaction.connection()
        case _:
            _check(transaction, "AsyncConnection", engine, ("psycopg",))

            async def lend() -> _AsyncBorrowed:
                return _AsyncBorrowed(transaction)

            def adapt() -> Any:
                return engine.dialect.loaded_dbapi.connect(async_creator_fn=lend)

            async with AsyncEngine(_engine_of(adapt, engine)).connect() as connection:
                yield connection


class _Borrowed:
    """A driver's connection that SQLAlchemy neither commits, rolls back nor closes."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        """Do nothing: the caller commits."""

    rollback = close = commit


class _AsyncBorrowed(_Borrowed):
    """A psycopg.AsyncConnection that SQLAlchemy neither commits, rolls back nor closes."""

    async def commit(self) -> None:  # type: ignore[override] # as the asynchronous one has it
        """Do nothing: the caller commits."""

    rollback = close = commit  # type: ignore[assignment] # the same


def _check(transaction: object, kind: str, engine: Engine, drivers: Sequence[str]) -> None:
    """Raise ConfigurationError unless this is a connection of the driver that the store uses."""
    dialect = engine.dialect
    if dialect.driver not in drivers or not isinstance(
        transaction, getattr(dialect.loaded_dbapi, kind)
    ):
        raise ConfigurationError(
            f"A page is committed through SQLAlchemy's {kind} or its session, or through a plain "
            f"connection of the store's own driver, {dialect.driver}, where that is one of "
            f"{', '.join(drivers)}; not through "
            f"{type(transaction).__module__}.{type(transaction).__qualname__}."
        )


def _engine_of(creator: Callable[[], Any], engine: Engine) -> Engine:
    # With the store's dialect, which knows the server already and sends no queries.
    return Engine(NullPool(creator, dialect=engine.dialect), engine.dialect, engine.url)
