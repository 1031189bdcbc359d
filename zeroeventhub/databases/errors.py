"""Tell errors of a database that pass by themselves from those that stay.

Each database numbers its errors, and the numbers are what counts here; a sentence only where there
is nothing else.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from zeroeventhub.errors import StoreUnavailable

__all__ = ["is_transient", "reaching_store", "store_error"]

_STATES = frozenset(
    {
        "25006",  # read-only: the server has become a standby
        "25P03",  # the session was ended while it was idle in a transaction
        "40001",  # serialization
        "40P01",  # deadlock
        "53300",  # too many connections
        "55P03",  # a lock was not to be had in time
        "57P01",  # the server shuts down, or an administrator has ended the session
        "57P02",  # another session crashed
        "57P03",  # the server starts up
        "57P05",  # the session was idle for too long
    }
)

_NUMBERS = frozenset(
    {
        1020,  # the row has changed since the snapshot
        1040,  # too many connections
        1047,  # a node of a cluster that is not ready
        1053,  # the server shuts down
        1158,  # the connection broke, here and below
        1159,
        1160,
        1161,
        1203,  # too many connections of this user
        1205,  # a lock was not to be had in time
        1213,  # deadlock
        1412,  # the table was altered since the snapshot
        1613,  # a lock was not to be had in time
        1614,  # deadlock
        1792,  # read-only, here and below: the server has become a replica
        1836,
        1927,  # the connection was killed
        2002,  # the server cannot be reached, here and below
        2003,
        2006,  # the connection was lost, here and below
        2013,
        2055,
        3572,  # a lock was not to be had at once
        4031,  # the session was idle for too long
    }
)

_RESULTS = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})

_CONNECTION_EXCEPTION = "08"
_READ_ONLY = 1290
_PENDING_ROLLBACK_OF_LOST_CONNECTION = "8s2b"

_FINAL = (
    "authentication failed",
    "does not exist",
    "no password supplied",
    "no pg_hba.conf entry",
    "not permitted to log in",
)
"""What PostgreSQL says to who may not connect; on connecting, psycopg has no number for it."""


def is_transient(error: BaseException) -> bool:
    """Tell whether the same transaction may succeed if it is tried again.

    So it is after a serialization error, a deadlock, a lock that was not to be had, a connection
    that was lost or refused, and while a server shuts down, starts up, or is full.

    Args:
        error: what SQLAlchemy or the database's driver has raised.
    """
    match error:
        case StoreUnavailable() | exc.TimeoutError():
            return True
        case exc.PendingRollbackError():
            return error.code == _PENDING_ROLLBACK_OF_LOST_CONNECTION
        case exc.DBAPIError():
            return error.connection_invalidated or _passes(error.orig)
    return _passes(error)


@contextmanager
def reaching_store(store: str = "The consumer's database") -> Iterator[None]:
    """Raise StoreUnavailable for what is transient, and all other errors as they are.

    Args:
        store: what is reached, as the subject of a sentence.

    Raises:
        StoreUnavailable: the store did not answer, or asked to try again.
    """
    try:
        yield
    except Exception as error:
        judged = store_error(error, store)
        if judged is error:
            raise
        raise judged from error


def store_error(error: Exception, store: str = "The consumer's database") -> Exception:
    """Return StoreUnavailable in place of what is transient, and all other errors as they are."""
    if isinstance(error, StoreUnavailable) or not is_transient(error):
        return error
    # The error's own text may hold statements, values, or an address.
    kind = type(error.orig if isinstance(error, exc.DBAPIError) else error).__name__
    unavailable = StoreUnavailable(f"{store} did not answer, or asked to try again ({kind}).")
    unavailable.__cause__ = error
    return unavailable


def _passes(error: BaseException | None) -> bool:
    """Tell it of the error of a driver."""
    if isinstance(error, sqlite3.Error):
        # The lowest byte is the result, and the rest tells more of it.
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _RESULTS
    family = _family(error)
    if family == "mysql":
        # Most numbers share one state, HY000, which tells nothing.
        number = next(iter(getattr(error, "args", ())), None)
        return number in _NUMBERS or (number == _READ_ONLY and "read" in str(error))
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if isinstance(state, str):
        return state in _STATES or state.startswith(_CONNECTION_EXCEPTION)
    return family == "psycopg" and not any(sentence in str(error) for sentence in _FINAL)


def _family(error: BaseException | None) -> str | None:
    """Return the kind of driver that an operational error comes from."""
    for kind in type(error).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in {"psycopg", "psycopg2"} and kind.__name__ == "OperationalError":
            return "psycopg"
        if package in {"pymysql", "aiomysql", "asyncmy", "MySQLdb"}:
            return "mysql"
    return None
