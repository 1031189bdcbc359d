"""The transaction that holds a page's effects and its cursor."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from zeroeventhub.consumer.applying.savepoint import Savepoint

__all__ = ["AsyncTransaction", "Kind", "Transaction"]


class Kind(Enum):
    """Tell the kinds of transactions apart that `apply` may be given."""

    CONNECTION = auto()
    SESSION = auto()
    DRIVER = auto()
    """The connection of the database's driver, beneath the one of SQLAlchemy."""


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
        error = self.attempt(apply, passing=True)
        if error is not None:
            try:
                raise error
            finally:
                # What is raised knows this frame, which must not know it.
                del error

    def attempt(self, apply: Callable[[Any], object], *, passing: bool = False) -> Exception | None:
        """Let `apply` work; undo what it did if it raises, and return the error.

        Errors that end the transaction, or pass by themselves, are raised.

        Args:
            apply: what is to be done.
            passing: whether its error will be raised behind this.
        """
        savepoint = Savepoint(self.handle)
        try:
            with self._guarded():
                apply(self.given)
            savepoint.release()
        except Exception as error:  # noqa: BLE001 - returned
            savepoint.undo(error, passing=passing)
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
        error = await self.attempt(apply, passing=True)
        if error is not None:
            try:
                raise error
            finally:
                # What is raised knows this frame, which must not know it.
                del error

    async def attempt(
        self, apply: Callable[[], Awaitable[object]], *, passing: bool = False
    ) -> Exception | None:
        """Let `apply` work; see `Transaction.attempt`."""
        savepoint = await self.handle.run_sync(Savepoint)
        try:
            async with self._guarded():
                await apply()
            await self.handle.run_sync(savepoint.release)
        except Exception as error:  # noqa: BLE001 - returned
            failed = error
        else:
            return None
        try:
            await self.handle.run_sync(
                lambda _, error: savepoint.undo(error, passing=passing), failed
            )
            return failed
        finally:
            # What was raised knows this frame, which must not know it.
            del failed

    def _guarded(self) -> Any:
        return nullcontext() if self.given is self.handle else self.given.transaction()
