"""Read-only use of the host's connections, which are returned as they were."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

__all__ = ["Autocommit", "ReadOnlySession", "as_sqlalchemy", "read_only", "set_autocommit"]


class ReadOnlySession(Protocol):
    """Makes a connection of the host's read-only with deadlines, and restores it."""

    def begin(self, connection: Connection, step: str | None) -> Any:
        """Make a connection read-only, with a time limit for each statement.

        Each statement sees what was committed before it.

        Args:
            connection: no transaction is open on it.
            step: a statement that writes, to be committed before anything is read; None for none.

        Returns:
            What `end` needs to know.
        """

    def end(self, connection: Connection, kept: Any) -> None:
        """Restore a connection."""


class Autocommit:
    """A session in which each statement is a transaction, and that sets nothing else."""

    def begin(self, connection: Connection, step: str | None) -> bool:  # noqa: ARG002 - the port's
        """Keep the driver from beginning transactions."""
        return set_autocommit(connection, to=True)

    def end(self, connection: Connection, kept: bool) -> None:
        """Restore the connection."""
        set_autocommit(connection, to=kept)


@contextmanager
def read_only(
    connection: Connection, session: ReadOnlySession, step: str | None = None
) -> Iterator[None]:
    """Use a connection of the host's read-only; close it if it cannot be restored.

    Args:
        connection: each of its statements sees what was committed before it.
        session: that of its database.
        step: as in `ReadOnlySession.begin`.
    """
    try:
        kept = session.begin(connection, step)
    except BaseException:
        connection.invalidate()
        raise
    try:
        yield
    except Exception:
        _end(connection, session, kept)
        raise
    except BaseException:  # in the middle of a query, whose result is still to come
        connection.invalidate()
        raise
    _end(connection, session, kept)


def _end(connection: Connection, session: ReadOnlySession, kept: Any) -> None:
    if connection.invalidated:
        return  # it broke; the pool discards it
    try:
        session.end(connection, kept)
    except BaseException:
        connection.invalidate()
        raise


def set_autocommit(connection: Connection, *, to: bool) -> bool:
    """Set the driver's autocommit mode, and return the one before."""
    driver: Any = connection.connection.dbapi_connection
    with as_sqlalchemy(connection):
        kept = bool(driver.autocommit)
        driver.autocommit = to
    return kept


@contextmanager
def as_sqlalchemy(connection: Connection) -> Iterator[None]:
    """Raise the driver's errors as SQLAlchemy's."""
    dialect: Any = connection.dialect
    try:
        yield
    except dialect.loaded_dbapi.Error as error:
        raise OperationalError("the state of the connection", None, error) from error
