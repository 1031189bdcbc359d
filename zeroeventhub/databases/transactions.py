"""The caller's transaction: that of SQLAlchemy's connection or session, or of a driver's."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection, Engine, NullPool
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from zeroeventhub.errors import ConfigurationError

if TYPE_CHECKING:
    import sqlite3

    import psycopg
    import pymysql

DriverConnection: TypeAlias = (
    "psycopg.Connection[Any] | sqlite3.Connection | pymysql.Connection[Any]"
)
SyncTransaction: TypeAlias = "Connection | Session | scoped_session[Any] | DriverConnection"
AsyncTransaction: TypeAlias = (
    "AsyncConnection | AsyncSession | async_scoped_session[Any] | psycopg.AsyncConnection[Any]"
)


@contextmanager
def connection_of(
    transaction: SyncTransaction, engine: Engine | AsyncEngine
) -> Iterator[Connection]:
    """Yield the connection of a transaction, which stays open afterwards.

    Raises:
        ConfigurationError: it is no Connection, Session, or connection of the store's driver.
    """
    match transaction:
        case Connection():
            yield transaction
        case Session() | scoped_session():
            yield transaction.connection()
        case _:
            _check(transaction, "Connection", engine, ("psycopg", "pysqlite", "pymysql"))
            if isinstance(engine, Engine) and engine.dialect.server_version_info is None:
                engine.connect().close()  # the dialect gets to know the server
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
        case AsyncSession() | async_scoped_session():
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


def _check(
    transaction: object, kind: str, engine: Engine | AsyncEngine, drivers: Sequence[str]
) -> None:
    """Raise ConfigurationError unless this is a connection of the driver that the store uses."""
    dialect = engine.dialect
    if dialect.driver not in drivers or not isinstance(
        transaction, getattr(dialect.loaded_dbapi, kind)
    ):
        raise ConfigurationError(
            f"A store takes part in the transaction of SQLAlchemy's {kind} or its session, or of a "
            f"plain connection of its engine's driver (of {', '.join(drivers)}; this engine has "
            f"{dialect.driver}); not in one of "
            f"{type(transaction).__module__}.{type(transaction).__qualname__}."
        )


def _engine_of(creator: Callable[[], Any], engine: Engine | AsyncEngine) -> Engine:
    # With the store's dialect, which knows the server already and sends no queries.
    return Engine(NullPool(creator, dialect=engine.dialect), engine.dialect, engine.url)
