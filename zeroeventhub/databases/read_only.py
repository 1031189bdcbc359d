"""Read-only use of the host's connections, which are returned as they were."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError


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
    is_restored = False
    try:
        kept = session.begin(connection, step)
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):
                connection.invalidate()  # a query was cut short: its result is still to come
            raise
        finally:
            if not connection.invalidated:  # the pool discards a connection that broke
                session.end(connection, kept)
            is_restored = True
    finally:
        if not is_restored:
            connection.invalidate()


def set_autocommit(connection: Connection, *, to: bool) -> bool:
    """Set the driver's autocommit mode, and return the one before."""
    driver: Any = connection.connection.dbapi_connection
    try:
        kept = bool(driver.autocommit)
        driver.autocommit = to
    except connection.dialect.loaded_dbapi.Error as error:
        raise state_error(error) from error
    return kept


def state_error(error: Exception) -> OperationalError:
    """Return SQLAlchemy's error for one of the driver's that concerns a connection's state."""
    return OperationalError("the state of the connection", None, error)
