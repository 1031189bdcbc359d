"""What a database's errors mean to who reads a feed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from zeroeventhub.errors import FeedFailure, Unavailable

__all__ = ["explained"]

_LATE = {
    *("57014", "55P03", "25P03"),  # PostgreSQL: a statement, a lock, or the feed between two
    *(1969, 3024, 1205),  # a statement of MariaDB, one of MySQL, a lock of either
    "SQLITE_INTERRUPT",
}

_CHANGED = {
    *("42P01", "42703", "42883", "0A000"),  # PostgreSQL: a table, a column, a function, a result
    *(1054, 1146, 1176, 1305),  # MariaDB and MySQL: a column, a table, an index, a routine
    "SQLITE_ERROR",
}
"""Errors that say that what a statement names is not there, or not what it was."""

_DENIED = {1044, 1142, 1143, 1227, 1370}
"""Errors of MariaDB and MySQL for want of a right, which no waiting mends."""


@contextmanager
def explained() -> Iterator[None]:
    """Turn the database's errors into the feed's; the database's own stay attached."""
    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        names = _names(getattr(error, "orig", None))
        if names & _LATE:
            raise Unavailable(
                "A statement of the feed's took longer than it may.", retry_after=1
            ) from error
        if names & _CHANGED:
            raise FeedFailure(
                "The feed's table, or what its ordering needs beside it, is not what it was."
            ) from error
        if names & _DENIED:
            raise FeedFailure("The feed's user lacks a right that its query needs.") from error
        if "Could not decode" in str(error):  # SQLite holds text that is not UTF-8
            raise FeedFailure("A row holds text that is not UTF-8.") from error
        if isinstance(error, (OperationalError, InterfaceError, PoolTimeout, OSError)):
            raise Unavailable(
                "The feed's database cannot answer just now.", retry_after=1
            ) from error
        raise FeedFailure("The feed's database refused the feed's query.") from error


def _names(error: Any) -> set[Any]:
    """Return what a driver calls an error: a number, a state or a name."""
    arguments = getattr(error, "args", ())
    return {
        getattr(error, "sqlstate", None),
        getattr(error, "pgcode", None),
        getattr(error, "sqlite_errorname", None),
        *(one for one in arguments[:1] if isinstance(one, int)),
    }
