"""The caller's transaction: that of SQLAlchemy's connection or session, or of a driver's."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

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

_AnyConnection = TypeVar("_AnyConnection", Connection, AsyncConnection)

COMMITS_EACH = (
    "This connection commits each statement by itself, so a cursor could move without the effects "
    "of its page: begin a transaction before, such as Django's transaction.atomic(). SQLAlchemy "
    "begins none at the isolation level AUTOCOMMIT, or with the driver's own autocommit."
)
"""The text of the error for a connection without transactions."""

_IN_TRANSACTION = 1
"""The bit in PyMySQL's `server_status`."""

_COMMITS_EACH: Mapping[str, Callable[[Any], bool]] = {
    "psycopg": lambda one: one.autocommit and one.info.transaction_status.name == "IDLE",
    "pysqlite": lambda one: (
        (one.isolation_level is None or getattr(one, "autocommit", None) is True)  # Python 3.12
        and not one.in_transaction
    ),
    "pymysql": lambda one: one.get_autocommit() and not one.server_status & _IN_TRANSACTION,
}
"""By SQLAlchemy's name of a driver, whether its connection commits each statement by itself."""

_WRAPPED = {"aiosqlite": "pysqlite", "aiomysql": "pymysql"}
"""By SQLAlchemy's name of an async driver, the driver whose connections its own resemble."""


@contextmanager
def connection_of(
    transaction: SyncTransaction, engine: Engine | AsyncEngine, *, alone: bool = False
) -> Iterator[Connection]:
    """Yield the connection of a transaction, which stays open afterwards.

    A driver's connection that is used `alone` may commit each statement by itself.

    Raises:
        ConfigurationError: it is no Connection, Session, or connection of the store's driver, or
            no transaction is open.
    """
    match transaction:
        case Connection():
            yield _transacting(transaction, alone=alone)
        case Session() | scoped_session():
            yield _transacting(transaction.connection(), alone=alone)
        case _:
            _check(transaction, "Connection", engine, [*_COMMITS_EACH])
            if not alone:
                _expect_transaction(transaction, engine)
            if isinstance(engine, Engine) and engine.dialect.server_version_info is None:
                engine.connect().close()  # the dialect gets to know the server
            with _engine_of(lambda: _Borrowed(transaction), engine).connect() as connection:
                yield connection


@asynccontextmanager
async def async_connection_of(
    transaction: AsyncTransaction, engine: Engine | AsyncEngine
) -> AsyncIterator[AsyncConnection]:
    """Yield the connection of a transaction; see `connection_of`."""
    match transaction:
        case AsyncConnection():
            yield _transacting(transaction)
        case AsyncSession() | async_scoped_session():
            yield _transacting(await transaction.connection())
        case _:
            _check(transaction, "AsyncConnection", engine, ["psycopg"])
            _expect_transaction(transaction, engine)

            async def lend() -> _AsyncBorrowed:
                return _AsyncBorrowed(transaction)

            adapt = partial(engine.dialect.loaded_dbapi.connect, async_creator_fn=lend)
            async with AsyncEngine(_engine_of(adapt, engine)).connect() as connection:
                yield connection


def commits_each(handle: Connection | Engine | AsyncEngine) -> bool:
    """Return whether SQLAlchemy lets the database commit each statement by itself."""
    level = handle.get_execution_options().get("isolation_level")
    made_with = handle.dialect._on_connect_isolation_level  # noqa: SLF001 - no public attribute
    return (level or made_with or "").upper() == "AUTOCOMMIT"  # SQLAlchemy takes any case


def driver_commits_each(connection: Connection) -> bool:
    """Return whether the driver commits each statement by itself, unknown to SQLAlchemy.

    Begins a transaction unless one is open, as a listener of the host's may send BEGIN.
    """
    if not connection.in_transaction():
        connection.begin()
    driver = connection.dialect.driver
    commits = _COMMITS_EACH.get(_WRAPPED.get(driver, driver))
    return commits is not None and commits(connection.connection.driver_connection)


def _transacting(connection: _AnyConnection, *, alone: bool = False) -> _AnyConnection:
    """Return a connection, or raise ConfigurationError if it commits each statement by itself."""
    inner: Any = getattr(connection, "sync_connection", connection)
    if not alone and inner is not None and commits_each(inner):
        raise ConfigurationError(COMMITS_EACH)
    return connection


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


def _expect_transaction(connection: Any, engine: Engine | AsyncEngine) -> None:
    """Raise ConfigurationError if effects and cursor would be committed one without the other."""
    if _COMMITS_EACH[engine.dialect.driver](connection):
        raise ConfigurationError(COMMITS_EACH)


def _engine_of(creator: Callable[[], Any], engine: Engine | AsyncEngine) -> Engine:
    # With the store's dialect, which knows the server already and sends no queries.
    return Engine(NullPool(creator, dialect=engine.dialect), engine.dialect, engine.url)
