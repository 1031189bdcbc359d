"""The transaction that holds a page's effects and its cursor."""

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from zeroeventhub.consumer.application import Application, Kind
from zeroeventhub.databases import database_of
from zeroeventhub.databases.errors import is_transient
from zeroeventhub.errors import ConfigurationError, StoreUnavailable

__all__ = ["Transaction", "TransactionEnded", "opened", "opened_async", "watch_commits"]

_UNDOING = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM})

ABORTED = 3
"""What PostgreSQL's drivers call the status of a transaction in which an error has happened."""

_APPLYING = "zeroeventhub is applying"
"""What a connection remembers while `apply` works in its transaction."""


class TransactionEnded(ConfigurationError):  # noqa: N818 - named for what happened
    """Say that `apply` has ended the transaction behind the cursor's back."""


@contextmanager
def opened(engine: Engine, application: Application) -> Iterator["Transaction"]:
    """Open a transaction, and commit it unless the block raises.

    Args:
        engine: of the database.
        application: says what `apply` wants; its sessions may leave the engine open.
    """
    if application.kind is Kind.SESSION:
        with application.sessions() as session:
            session.bind = session.bind or engine
            with session.begin():
                yield Transaction(session, session.connection(), session)
        return
    with engine.begin() as connection:
        is_driver = application.kind is Kind.DRIVER
        given = connection.connection.driver_connection if is_driver else connection
        yield Transaction(connection, connection, given)


@asynccontextmanager
async def opened_async(
    engine: AsyncEngine, application: Application
) -> AsyncIterator[tuple[AsyncConnection | AsyncSession, Any]]:
    """Open a transaction; give what it is open on, and what an async `apply` gets."""
    if application.kind is Kind.SESSION:
        async with application.sessions() as session:
            inner = session.sync_session
            inner.bind = inner.bind or engine.sync_engine
            async with session.begin():
                yield session, session
        return
    async with engine.begin() as connection:
        is_driver = application.kind is Kind.DRIVER
        raw = await connection.get_raw_connection() if is_driver else None
        yield connection, connection if raw is None else raw.driver_connection


@dataclass
class Transaction:
    """Hold an open transaction, in which `apply` works between a savepoint and its release.

    The savepoint shows at its end whether the transaction is still the one it was set in. As long
    as it stands, the transaction cannot be committed through SQLAlchemy.

    Attributes:
        handle: what SQLAlchemy has it open on.
        connection: the connection of that.
        given: what `apply` gets.
    """

    handle: Connection | Session
    connection: Connection
    given: Any
    _was_refused: bool = False
    _info: dict[Any, Any] = field(default_factory=dict)

    def call(self, apply: Callable[[], object]) -> None:
        """Let `apply` work.

        Raises:
            Exception: what it raised; the transaction has to be rolled back.
            ConfigurationError: it has ended the transaction.
        """
        keep, undo = self._begin()
        try:
            apply()
            self._check_whole()
            self._end(keep)
        except Exception as error:
            if not _ends_all(error) and self._stands:
                self._end(undo)
            raise
        finally:
            self._info.pop(_APPLYING, None)

    def attempt(self, apply: Callable[[], object]) -> Exception | None:
        """Let `apply` work; undo what it did if it raises, and return the error.

        Errors that end the transaction, or pass by themselves, are raised.
        """
        keep, undo = self._begin()
        try:
            apply()
            self._check_whole()
            self._end(keep)
        except Exception as error:
            if _ends_all(error):
                raise
            self._check_stands()
            self._end(undo)
            return error
        finally:
            self._info.pop(_APPLYING, None)
        return None

    def _begin(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """Set a savepoint; return what releases it, and what undoes all that was done since."""
        connection = self.connection
        if connection.engine not in _watched:
            # Sessions of the caller's may have one of their own.
            event.listen(connection, "commit", _refuse_to_commit)
            watch_commits(connection.engine)
        self._was_refused = False
        self._info = connection.info
        self._info[_APPLYING] = self
        if isinstance(self.handle, Session):
            nested = self.handle.begin_nested()
            return nested.commit, nested.rollback
        # Around SQLAlchemy, which would compile these anew each time.
        cursor = connection.connection.cursor()
        cursor.execute("SAVEPOINT zeroeventhub_page")
        return (
            partial(cursor.execute, "RELEASE SAVEPOINT zeroeventhub_page"),
            partial(cursor.execute, "ROLLBACK TO SAVEPOINT zeroeventhub_page"),
        )

    def _check_whole(self) -> None:
        """Raise ConfigurationError where nothing can be kept of what `apply` has written."""
        if self._was_refused or not self.handle.in_transaction():
            self._check_stands()
        if isinstance(self.handle, Session):
            self.handle.flush()
        driver = self.connection.connection.driver_connection
        status = getattr(getattr(driver, "info", None), "transaction_status", None)
        if status == ABORTED and database_of(self.connection).aborts_on_error:
            raise ConfigurationError(
                "apply has caught an error of the database and gone on, but PostgreSQL had aborted "
                "the transaction: let the error pass, or catch it around a savepoint."
            )

    def _end(self, end: Callable[[], None]) -> None:
        """Release the savepoint, or undo what was done since.

        Raises:
            TransactionEnded: it is gone, and so the transaction is another one.
        """
        self._info.pop(_APPLYING, None)
        try:
            end()
        except Exception as error:
            if is_transient(error) or not isinstance(error, self._of_database):
                raise
            raise TransactionEnded(
                "The transaction that apply was given has ended before apply did, so that cursor "
                "and effects may have come apart: let apply neither commit nor roll back, let it "
                "pass errors of the database on, and run no statements that commit by themselves, "
                "such as CREATE TABLE or TRUNCATE on MariaDB and MySQL."
            ) from error

    @property
    def _of_database(self) -> tuple[type[Exception], ...]:
        return DBAPIError, InvalidRequestError, self.connection.dialect.loaded_dbapi.Error

    @property
    def _stands(self) -> bool:
        return self.handle.in_transaction() and not self._was_refused

    def _check_stands(self) -> None:
        """Raise ConfigurationError if `apply` has rolled the whole transaction back."""
        if not self._stands:
            raise ConfigurationError(
                "apply has rolled back the transaction it was given, and the cursor with it, or "
                "was kept from committing it: to undo a part of it, use a savepoint (begin_nested)."
            )

    def refuse_to_commit(self) -> None:
        """Keep `apply` from committing.

        Raises:
            ConfigurationError: always.
        """
        self._was_refused = True
        # What was refused counts as done, and would leave the transaction open in the pool.
        self.connection.connection.rollback()
        raise ConfigurationError(
            "apply must not commit the transaction it was given: it is committed behind apply, "
            "with the cursor."
        )


_watched: WeakSet[Engine] = WeakSet()
"""The engines whose commits are looked at."""


def watch_commits(engine: Engine) -> None:
    """Look at the commits of an engine from now on."""
    if engine not in _watched:
        _watched.add(engine)
        event.listen(engine, "commit", _refuse_to_commit)


def _refuse_to_commit(connection: Connection) -> None:
    if transaction := connection.info.get(_APPLYING):
        transaction.refuse_to_commit()


def _ends_all(error: Exception) -> bool:
    """Tell whether a transaction ends in an error, so that a savepoint in it could save nothing."""
    if isinstance(error, TransactionEnded | StoreUnavailable) or is_transient(error):
        return True
    # SQLite undoes the whole transaction by itself where, for instance, the disk is full.
    code = getattr(getattr(error, "orig", error), "sqlite_errorcode", 0)
    return code & 0xFF in _UNDOING
