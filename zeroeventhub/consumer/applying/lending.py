"""Transactions of every kind, as the SQLAlchemy connections that they run on."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, NullPool
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from zeroeventhub.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    import psycopg

__all__ = ["lent", "lent_async"]


@contextmanager
def lent(
    transaction: Connection | Session | psycopg.Connection[Any], engine: Engine
) -> Iterator[Connection]:
    """Give the connection that a transaction runs on; the transaction goes on behind it.

    Args:
        transaction: a Connection, a Session or a psycopg.Connection.
        engine: the store's.

    Raises:
        ConfigurationError: it is none of these.
    """
    match transaction:
        case Connection():
            yield transaction
        case Session():
            yield transaction.connection()
        case _:
            _check(transaction, "Connection", engine)
            with _engine_of(lambda: _Lent(transaction), engine).connect() as connection:
                yield connection


@asynccontextmanager
async def lent_async(
    transaction: AsyncConnection | AsyncSession | psycopg.AsyncConnection[Any], engine: Engine
) -> AsyncIterator[AsyncConnection]:
    """Give the connection that a transaction runs on; see `lent`."""
    match transaction:
        case AsyncConnection():
            yield transaction
        case AsyncSession():
            yield await transaction.connection()
        case _:
            _check(transaction, "AsyncConnection", engine)

            async def lend() -> _AsyncLent:
                return _AsyncLent(transaction)

            def adapt() -> Any:
                return engine.dialect.loaded_dbapi.connect(async_creator_fn=lend)

            async with AsyncEngine(_engine_of(adapt, engine)).connect() as connection:
                yield connection


class _Lent:
    """A psycopg.Connection that its borrower neither commits, rolls back nor closes."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def commit(self) -> None:
        """Leave it to who lends."""

    rollback = close = commit


class _AsyncLent(_Lent):
    """A psycopg.AsyncConnection that its borrower neither commits, rolls back nor closes."""

    async def commit(self) -> None:  # type: ignore[override] # as the asynchronous one has it
        """Leave it to who lends."""

    rollback = close = commit  # type: ignore[assignment] # the same


def _check(transaction: object, kind: str, engine: Engine) -> None:
    """Refuse what is no connection of psycopg, or goes to another kind of store."""
    dialect = engine.dialect
    if dialect.driver != "psycopg" or not isinstance(
        transaction, getattr(dialect.loaded_dbapi, kind)
    ):
        raise ConfigurationError(
            f"A page is committed through SQLAlchemy's {kind} or its session, or, where the "
            f"store's engine is postgresql+psycopg, through a psycopg.{kind}; not through "
            f"{type(transaction).__module__}.{type(transaction).__qualname__}."
        )


def _engine_of(creator: Callable[[], Any], engine: Engine) -> Engine:
    # With the store's own dialect, which knows the server and asks the connection nothing.
    return Engine(NullPool(creator, dialect=engine.dialect), engine.dialect, engine.url)
