"""The transaction that holds a page's effects and its cursor."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from zeroeventhub.cursors.transience import is_transient
from zeroeventhub.errors import ConfigurationError, StoreUnavailable

__all__ = ["AsyncTransaction", "Kind", "Transaction", "TransactionEnded"]

ABORTED = "25P02"
"""What PostgreSQL answers in a transaction that an error has aborted."""


class Kind(Enum):
    """Tell the kinds of transactions apart that `apply` may be given."""

    CONNECTION = auto()
    SESSION = auto()
    DRIVER = auto()
    """The connection of the database's driver, beneath the one of SQLAlchemy."""


class TransactionEnded(ConfigurationError):  # noqa: N818 - named for what happened
    """Say that `apply` has ended the transaction behind the cursor's back."""


class _Savepoint:
    """Set a savepoint, which shows at its end whether the transaction is still the one it was in.

    As long as it stands, the transaction cannot be committed through SQLAlchemy.

    Args:
        handle: what the transaction is open on.
    """

    def __init__(self, handle: Connection | Session) -> None:
        self._handle = handle
        self._connection = handle.connection() if isinstance(handle, Session) else handle
        self._savepoint = handle.begin_nested()
        event.listen(self._connection, "commit", _refuse_to_commit)

    def release(self, _: Any = None) -> None:
        """Keep what was written since.

        Raises:
            ConfigurationError: nothing can be kept, since the transaction was ended or aborted.
        """
        self.check_transaction()
        if isinstance(self._handle, Session):
            self._handle.flush()
        self._allow_to_commit()
        try:
            self._savepoint.commit()
        except (DBAPIError, InvalidRequestError) as error:
            if is_transient(error):
                raise
            if getattr(getattr(error, "orig", None), "sqlstate", None) == ABORTED:
                raise ConfigurationError(
                    "apply has caught an error of the database and gone on, but PostgreSQL had "
                    "aborted the transaction: let the error pass, or catch it around a savepoint."
                ) from error
            raise TransactionEnded(
                "The transaction that apply was given has ended before apply did, so that cursor "
                "and effects may have come apart: let apply neither commit nor roll back, let it "
                "pass errors of the database on, and run no statements that commit by themselves, "
                "such as CREATE TABLE or TRUNCATE on MariaDB and MySQL."
            ) from error

    def roll_back(self, _: Any = None) -> None:
        """Undo what was written since.

        Raises:
            ConfigurationError: `apply` has rolled the whole transaction back.
        """
        self.check_transaction()
        self._allow_to_commit()
        self._savepoint.rollback()

    def check_transaction(self) -> None:
        """Raise ConfigurationError if `apply` has rolled the whole transaction back."""
        if not self._handle.in_transaction():
            raise ConfigurationError(
                "apply has rolled back the transaction it was given, and the cursor with it, or "
                "was kept from committing it: to undo a part of it, use a savepoint (begin_nested)."
            )

    def _allow_to_commit(self) -> None:
        if event.contains(self._connection, "commit", _refuse_to_commit):
            event.remove(self._connection, "commit", _refuse_to_commit)


def _refuse_to_commit(connection: Connection) -> None:
    # What was refused counts as done, and would leave the transaction open in the pool.
    connection.connection.rollback()
    raise ConfigurationError(
        "apply must not commit the transaction it was given: it is committed behind apply, with "
        "the cursor."
    )


@dataclass(frozen=True)
class Transaction:
    """Hold an open transaction.

    Attributes:
        handle: what SQLAlchemy has it open on.
        given: what `apply` gets.
    """

    handle: Connection | Session
    given: Any

    @classmethod
    @contextmanager
    def opened(
        cls, engine: Engine, kind: Kind, sessions: Callable[[], Session]
    ) -> Iterator["Transaction"]:
        """Open a transaction, and commit it unless the block raises.

        Args:
            engine: of the database.
            kind: what `apply` wants.
            sessions: makes sessions, which may leave the engine open.
        """
        if kind is Kind.SESSION:
            with sessions() as session:
                session.bind = session.bind or engine
                with session.begin():
                    yield cls(session, session)
            return
        with engine.begin() as connection:
            driver = connection.connection.driver_connection
            yield cls(connection, driver if kind is Kind.DRIVER else connection)

    def do(self, function: Callable[[Connection], Any]) -> Any:
        """Call a function with the connection."""
        handle = self.handle
        return function(handle.connection() if isinstance(handle, Session) else handle)

    def call(self, apply: Callable[[Any], object]) -> None:
        """Let `apply` work, and raise its errors.

        Raises:
            ConfigurationError: it has ended the transaction.
        """
        savepoint = _Savepoint(self.handle)
        with self._guarded():
            apply(self.given)
        savepoint.release()

    def attempt(self, apply: Callable[[Any], object]) -> Exception | None:
        """Let `apply` work; undo what it did if it raises, and return the error.

        Errors that end the transaction, or pass by themselves, are raised.
        """
        savepoint = _Savepoint(self.handle)
        try:
            with self._guarded():
                apply(self.given)
            savepoint.release()
        except Exception as error:
            if _ends_all(error):
                raise
            savepoint.roll_back()
            return error
        return None

    def _guarded(self) -> Any:
        """Keep `apply` from committing through the driver, where that can be kept from it."""
        return nullcontext() if self.given is self.handle else self.given.transaction()


@dataclass(frozen=True)
class AsyncTransaction:
    """Hold an open transaction; see Transaction.

    Attributes:
        handle: what SQLAlchemy has it open on.
        given: what an async `apply` gets; a sync one gets what lies behind the handle.
    """

    handle: AsyncConnection | AsyncSession
    given: Any

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, engine: AsyncEngine, kind: Kind, sessions: Callable[[], AsyncSession]
    ) -> AsyncIterator["AsyncTransaction"]:
        """Open a transaction; see `Transaction.opened`."""
        if kind is Kind.SESSION:
            async with sessions() as session:
                inner = session.sync_session
                inner.bind = inner.bind or engine.sync_engine
                async with session.begin():
                    yield cls(session, session)
            return
        async with engine.begin() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            yield cls(connection, driver if kind is Kind.DRIVER else connection)

    async def do(self, function: Callable[[Connection], Any]) -> Any:
        """Call a function with the sync connection behind this one."""
        handle = self.handle
        if isinstance(handle, AsyncSession):
            handle = await handle.connection()
        return await handle.run_sync(function)

    async def call(self, apply: Callable[[], Awaitable[object]]) -> None:
        """Let `apply` work; see `Transaction.call`."""
        savepoint = await self.handle.run_sync(_Savepoint)
        async with self._guarded():
            await apply()
        await self.handle.run_sync(savepoint.release)

    async def attempt(self, apply: Callable[[], Awaitable[object]]) -> Exception | None:
        """Let `apply` work; see `Transaction.attempt`."""
        savepoint = await self.handle.run_sync(_Savepoint)
        try:
            async with self._guarded():
                await apply()
            await self.handle.run_sync(savepoint.release)
        except Exception as error:
            if _ends_all(error):
                raise
            await self.handle.run_sync(savepoint.roll_back)
            return error
        return None

    def _guarded(self) -> Any:
        return nullcontext() if self.given is self.handle else self.given.transaction()


def _ends_all(error: Exception) -> bool:
    return isinstance(error, TransactionEnded | StoreUnavailable) or is_transient(error)
