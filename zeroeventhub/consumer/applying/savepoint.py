"""A savepoint around what a caller's code does in a transaction that is not the caller's to end."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import Session

from zeroeventhub.cursors.transience import is_transient
from zeroeventhub.errors import ConfigurationError, StoreUnavailable

__all__ = ["Savepoint", "TransactionEnded"]

_UNDOING = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM})

ABORTED = 3
"""What PostgreSQL's drivers call the status of a transaction in which an error has happened."""


class TransactionEnded(ConfigurationError):  # noqa: N818 - named for what happened
    """Say that `apply` has ended the transaction behind the cursor's back."""


class Savepoint:
    """Set a savepoint, which shows at its end whether the transaction is still the one it was in.

    As long as it stands, the transaction cannot be committed through SQLAlchemy.

    Args:
        handle: what the transaction is open on.
    """

    def __init__(self, handle: Connection | Session) -> None:
        self._handle = handle
        self._connection = handle.connection() if isinstance(handle, Session) else handle
        self._savepoint = handle.begin_nested()
        self._was_refused = False
        event.listen(self._connection, "commit", self._refuse_to_commit)

    def release(self, _: object = None) -> None:
        """Keep what was written since.

        Raises:
            ConfigurationError: nothing can be kept, since the transaction was ended or aborted.
        """
        self._check_transaction()
        if isinstance(self._handle, Session):
            self._handle.flush()
        if _is_aborted(self._connection):
            raise ConfigurationError(
                "apply has caught an error of the database and gone on, but PostgreSQL had aborted "
                "the transaction: let the error pass, or catch it around a savepoint."
            )
        with self._ending():
            self._savepoint.commit()

    def undo(self, error: Exception, *, passing: bool) -> None:
        """Undo what was written since; raise what it cannot be undone for.

        Args:
            error: what happened.
            passing: whether it will end the transaction anyway.
        """
        if isinstance(error, TransactionEnded | StoreUnavailable) or is_transient(error):
            raise error
        if _has_undone_all(error):
            raise error
        if passing and not self._stands:
            raise error
        self._check_transaction()
        with self._ending():
            self._savepoint.rollback()

    @contextmanager
    def _ending(self) -> Iterator[None]:
        event.remove(self._connection, "commit", self._refuse_to_commit)
        try:
            yield
        except (DBAPIError, InvalidRequestError) as error:
            if is_transient(error):
                raise
            raise TransactionEnded(
                "The transaction that apply was given has ended before apply did, so that cursor "
                "and effects may have come apart: let apply neither commit nor roll back, let it "
                "pass errors of the database on, and run no statements that commit by themselves, "
                "such as CREATE TABLE or TRUNCATE on MariaDB and MySQL."
            ) from error

    @property
    def _stands(self) -> bool:
        return self._handle.in_transaction() and not self._was_refused

    def _check_transaction(self) -> None:
        """Raise ConfigurationError if `apply` has rolled the whole transaction back."""
        if not self._stands:
            raise ConfigurationError(
                "apply has rolled back the transaction it was given, and the cursor with it, or "
                "was kept from committing it: to undo a part of it, use a savepoint (begin_nested)."
            )

    def _refuse_to_commit(self, connection: Connection) -> None:
        self._was_refused = True
        # What was refused counts as done, and would leave the transaction open in the pool.
        connection.connection.rollback()
        raise ConfigurationError(
            "apply must not commit the transaction it was given: it is committed behind apply, "
            "with the cursor."
        )


def _has_undone_all(error: Exception) -> bool:
    """Tell whether SQLite has undone the whole transaction by itself, as where the disk is full."""
    code = getattr(getattr(error, "orig", error), "sqlite_errorcode", 0)
    return code & 0xFF in _UNDOING


def _is_aborted(connection: Connection) -> bool:
    """Tell whether PostgreSQL would undo everything instead of committing, where a driver knows."""
    driver = connection.connection.driver_connection
    status = getattr(getattr(driver, "info", None), "transaction_status", None)
    return connection.dialect.name == "postgresql" and status == ABORTED
