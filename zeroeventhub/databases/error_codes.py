"""Distinguish transient errors of a database from lasting ones.

By the database's error numbers; by an error's text only if the database gives no number.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from traceback import clear_frames
from typing import Any, TypeVar

from sqlalchemy import exc
from sqlalchemy.ext.asyncio import AsyncConnection

from zeroeventhub.databases import DATABASES
from zeroeventhub.errors import FeedFailure, StorageFull, StoreUnavailable, Unavailable

_Result = TypeVar("_Result")


def is_transient(error: BaseException | None) -> bool:
    """Return whether the same transaction may succeed if it is tried again.

    It may after a serialization error, a deadlock, a lock timeout, a lost or refused connection,
    and while a server shuts down, starts up, or is full.
    """
    match error:
        case None:
            return False
        case StoreUnavailable() | exc.TimeoutError():
            return True
        case exc.PendingRollbackError():
            return error.code == "8s2b"  # the connection was lost
        case exc.DBAPIError():
            return error.connection_invalidated or is_transient(error.orig)
    return any(database.is_transient(error) for database in DATABASES.values())


def has_rolled_back(error: Exception) -> bool:
    """Return whether the database has rolled a whole transaction back, in spite of a savepoint."""
    driver = getattr(error, "orig", error)
    return any(database.has_rolled_back(driver) for database in DATABASES.values())


def is_full(error: Exception) -> bool:
    """Return whether the database has no room for more rows."""
    return _is(error, "full")


@contextmanager
def translate_store_errors(store: str = "The consumer's database") -> Iterator[None]:
    """Turn transient errors into StoreUnavailable of a store, and pass on all other errors.

    Raises:
        StoreUnavailable: the store did not answer, or asked to try again.
    """
    try:
        yield
    except Exception as error:
        if (found := store_error(error, store)) is error:
            raise
        raise found from error


def store_error(error: Exception, store: str = "The consumer's database") -> Exception:
    """Return StoreUnavailable for a transient error, and any other error unchanged."""
    if isinstance(error, StoreUnavailable) or not is_transient(error):
        return error
    # The error's own text may hold statements, values, or an address.
    driver: Any = error.orig if isinstance(error, exc.DBAPIError) else error
    number = next((one for one in driver.args[:1] if isinstance(one, int)), "")
    kind = f"{type(driver).__name__} {getattr(driver, 'sqlite_errorname', number)}".strip()
    unavailable = StoreUnavailable(f"{store} did not answer, or asked to try again ({kind}).")
    unavailable.__cause__ = error
    return unavailable


def not_reached(error: OSError) -> StoreUnavailable:
    """Return the error of a consumer whose database asyncpg cannot reach.

    SQLAlchemy passes on the socket's own error, which elsewhere may be one of a handler's.
    """
    kind = type(error).__name__
    return StoreUnavailable(f"The consumer's database cannot be reached ({kind}).")


def free_cursors(error: BaseException) -> None:
    """Free the cursors of a cancelled statement: for each one, SQLite keeps the lock of readers.

    SQLAlchemy's frames refer to the error, and so would live until garbage is collected.
    """
    clear_frames(error.__traceback__)


async def call_in_store(
    opening: AbstractAsyncContextManager[AsyncConnection],
    call: Callable[..., _Result],
    *arguments: Any,
) -> _Result:
    """Call a function with a connection to a store that is opened for it, and with arguments.

    Raises:
        StoreUnavailable: the store cannot be reached.
    """
    try:
        async with opening as connection:
            return await connection.run_sync(call, *arguments)
    except OSError as error:
        raise not_reached(error) from error
    except asyncio.CancelledError as error:
        free_cursors(error)
        raise


def feed_error(error: exc.SQLAlchemyError | OSError) -> FeedFailure | Unavailable:
    """Return the feed's error for one of its database."""
    if _is(error, "full"):
        return StorageFull("The feed's database has no room for more events.", retry_after=60)
    if is_late(error):
        return Unavailable("A statement of the feed's took longer than it may.", retry_after=1)
    if _is(error, "changed"):
        return FeedFailure(
            "The feed's table has changed, or what its ordering needs in the database."
        )
    if is_denied(error):
        return FeedFailure("The feed's user lacks a right that its query needs.")
    if "Could not decode" in str(error):  # SQLite holds text that is not UTF-8
        return FeedFailure("A row holds text that is not UTF-8.")
    kinds = (exc.OperationalError, exc.InterfaceError, OSError)
    if isinstance(error, kinds) or is_transient(error):
        return Unavailable("The feed's database cannot answer just now.", retry_after=1)
    return FeedFailure("The feed's database refused the feed's query.")


def is_late(error: Exception) -> bool:
    """Return whether the database has ended a statement because it took longer than it may."""
    return _is(error, "late")


def is_denied(error: Exception) -> bool:
    """Return whether the user lacks a right."""
    return _is(error, "denied")


def is_duplicate(error: exc.IntegrityError) -> bool:
    """Return whether the database refused a row because a unique value of it exists."""
    return _is(error, "duplicate")


def is_unfit(error: exc.SQLAlchemyError) -> bool:
    """Return whether the database refused a row because of one of its values."""
    return _is(error, "unfit")


def _is(error: Exception, kind: str) -> bool:
    """Return whether a database lists an error under a kind of `ErrorCodes`."""
    # One of psycopg itself comes from a program that uses its connection.
    driver: Any = getattr(error, "orig", error if hasattr(error, "sqlstate") else None)
    attributes = ("sqlstate", "pgcode", "sqlite_errorname", "sqlite_errorcode")
    codes = {getattr(driver, name, None) for name in attributes}
    codes.update(one for one in getattr(driver, "args", ())[:1] if isinstance(one, int))
    return any(
        not codes.isdisjoint(getattr(database.error_codes, kind)) for database in DATABASES.values()
    )
