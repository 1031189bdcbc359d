"""Read-only use of the host's connections, given back as they were; and what errors mean."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Protocol

from sqlalchemy import Connection, event
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from zeroeventhub.errors import FeedFailure, Unavailable

__all__ = [
    "Guest",
    "PassingBy",
    "explained",
    "guest_for",
    "time_bound",
    "visiting",
]


def time_bound(setting: str, seconds: float) -> str:
    """Return the expression that sets a time, unless the host allows less.

    Args:
        setting: its name, such as lock_timeout.
        seconds: what it is set to.
    """
    # The setting is text such as 30s, and 0 for none.
    return (
        f"set_config('{setting}', CAST(least(nullif(CAST(extract(epoch FROM "
        f"CAST(current_setting('{setting}') AS interval)) * 1000 AS bigint), 0), "
        f"{math.ceil(seconds * 1000)}) AS text), true)"
    )


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


class Guest(Protocol):
    """Know how to behave on the connections of one kind of database."""

    def arrive(self, connection: Connection, step: str | None) -> Any:
        """Make a connection read-only, with a deadline for each statement.

        Args:
            connection: nobody is in a transaction of it.
            step: a statement that writes, to be committed before anything is read; None for none.

        Returns:
            What `leave` needs to know.
        """

    def leave(self, connection: Connection, kept: Any) -> None:
        """Make a connection what it was."""


@contextmanager
def visiting(connection: Connection, guest: Guest, step: str | None = None) -> Iterator[None]:
    """Use a connection as a guest of its host; one that cannot be given back as it was is closed.

    Args:
        connection: each of its statements sees what was committed before it, for this long.
        guest: knows how to behave.
        step: as in `Guest.arrive`.
    """
    try:
        kept = guest.arrive(connection, step)
    except BaseException:
        connection.invalidate()
        raise
    try:
        yield
    except Exception:
        _leave(connection, guest, kept)
        raise
    except BaseException:  # in the middle of a query, whose answer is still to come
        connection.invalidate()
        raise
    _leave(connection, guest, kept)


def _leave(connection: Connection, guest: Guest, kept: Any) -> None:
    if connection.invalidated:
        return  # it broke, and its host never sees it again
    try:
        guest.leave(connection, kept)
    except BaseException:
        connection.invalidate()
        raise


def guest_for(dialect: Any, seconds: float) -> Guest:
    """Return what knows how to behave on a database.

    Args:
        dialect: of SQLAlchemy, of a database that has orderings.
        seconds: for a statement.
    """
    match dialect.name:
        case "postgresql":
            return _OnPostgreSQL(seconds, together=dialect.driver in _TAKE_SEVERAL)
        case "sqlite":
            return _OnSQLite(seconds)
    return _OnMySQL(seconds)


_TAKE_SEVERAL = {"psycopg", "psycopg_async", "psycopg2"}
"""The drivers that send several statements at once."""


class _OnPostgreSQL:
    """Read in a transaction of its own, whose end takes back what was set for it.

    At READ COMMITTED each statement sees what was committed before it, as the orderings need it.

    Args:
        seconds: for a statement, if the host does not allow less.
        together: whether the driver sends several statements at once.
    """

    def __init__(self, seconds: float, *, together: bool) -> None:
        self._together = together
        bounds = ", ".join(
            time_bound(name, seconds)
            for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        )
        # Whatever statistics say, what is in the order of an index is read by it and not sorted.
        planning = ", ".join(
            f"set_config('{name}', 'off', true)"
            for name in ("enable_sort", "enable_incremental_sort", "enable_seqscan")
        )
        self._reading = (
            "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY",
            f"SELECT {bounds}, {planning}",
        )
        self._writing = ("BEGIN ISOLATION LEVEL READ COMMITTED", f"SELECT {bounds}")

    def arrive(self, connection: Connection, step: str | None) -> bool:
        kept = _autocommit(connection, to=True)
        self._run(connection, self._reading if step is None else self._stepping(step))
        return kept

    def leave(self, connection: Connection, kept: bool) -> None:
        connection.exec_driver_sql("ROLLBACK")
        _autocommit(connection, to=kept)

    def _stepping(self, step: str) -> tuple[str, ...]:
        # A commit that waits for a standby must not be let go of: everybody would see what the
        # standby may never have. One connection waits so at most, the one that gives positions.
        return (*self._writing, step, "SET LOCAL statement_timeout = 0", "COMMIT", *self._reading)

    def _run(self, connection: Connection, statements: tuple[str, ...]) -> None:
        for statement in ["; ".join(statements)] if self._together else statements:
            connection.exec_driver_sql(statement)


class PassingBy:
    """Ask one thing of PostgreSQL that needs no transaction: there is none to begin or to end."""

    def arrive(self, connection: Connection, step: str | None) -> bool:  # noqa: ARG002 - the port's
        """Let each statement be a transaction of its own; see `Guest.arrive`."""
        return _autocommit(connection, to=True)

    def leave(self, connection: Connection, kept: bool) -> None:
        """Make the connection what it was."""
        _autocommit(connection, to=kept)


def _autocommit(connection: Connection, *, to: bool) -> bool:
    """Let the driver begin transactions by itself, or not; return whether it did not."""
    driver: Any = connection.connection.dbapi_connection
    with _told(connection):
        kept = bool(driver.autocommit)
        driver.autocommit = to
    return kept


_VARIABLES = {
    True: {
        "autocommit": "1",
        "tx_isolation": "'READ-COMMITTED'",
        "tx_read_only": "1",
        "max_statement_time": "{seconds}",
        "lock_wait_timeout": "{whole}",
        "innodb_lock_wait_timeout": "{whole}",
    },
    False: {
        "autocommit": "1",
        "transaction_isolation": "'READ-COMMITTED'",
        "transaction_read_only": "1",
        "max_execution_time": "{milliseconds}",
        "lock_wait_timeout": "{whole}",
        "innodb_lock_wait_timeout": "{whole}",
    },
}
"""What a session of MariaDB (True) or MySQL (False) is set to for as long as the feed has it."""


class _OnMySQL:
    """Set the session for the feed, and set it back; each is one statement.

    Args:
        seconds: for a statement, if the host does not allow less.
    """

    def __init__(self, seconds: float) -> None:
        numbers = {
            "seconds": f"{seconds:.3f}",
            "milliseconds": str(math.ceil(seconds * 1000)),
            "whole": str(math.ceil(seconds)),
        }
        self._texts = {
            mariadb: _Texts({name: value.format(**numbers) for name, value in variables.items()})
            for mariadb, variables in _VARIABLES.items()
        }

    def arrive(self, connection: Connection, step: str | None) -> None:
        texts = self._of(connection)
        if step is None:
            connection.exec_driver_sql(texts.arrive)
            return
        connection.exec_driver_sql(texts.arrive_writing)
        connection.exec_driver_sql(step)
        connection.exec_driver_sql(texts.read_only)

    def leave(self, connection: Connection, kept: None) -> None:  # noqa: ARG002 - the port's
        connection.exec_driver_sql(self._of(connection).leave)

    def _of(self, connection: Connection) -> "_Texts":
        dialect: Any = connection.dialect
        return self._texts[bool(dialect.is_mariadb)]


class _Texts:
    """Hold the statements that set a session.

    Args:
        variables: with what they are set to.
    """

    def __init__(self, variables: dict[str, str]) -> None:
        # All values are read before the first one is set.
        kept = {name: f"@zeroeventhub_{name}" for name in variables}
        keep = [f"{kept[name]} = @@SESSION.{name}" for name in variables]
        set_ = {name: f"SESSION {name} = {_least(name, to)}" for name, to in variables.items()}
        (last,) = (name for name in variables if name.endswith("read_only"))
        first = [text for name, text in set_.items() if name != last]
        self.arrive = "SET " + ", ".join([*keep, *set_.values()])
        self.arrive_writing = "SET " + ", ".join([*keep, *first])
        self.read_only = f"SET {set_[last]}"
        back = [f"SESSION {name} = {text}" for name, text in kept.items()]
        self.leave = "SET " + ", ".join([*back, *(f"{text} = NULL" for text in kept.values())])


def _least(name: str, to: str) -> str:
    """Leave a time as it is that the host has set to less; 0 is none."""
    if not name.startswith("max_"):
        return f"LEAST(@@SESSION.{name}, {to})" if name.endswith("timeout") else to
    return f"IF(@@SESSION.{name} = 0, {to}, LEAST(@@SESSION.{name}, {to}))"


TICKS = 10_000
"""Steps of SQLite's machine between two looks at the clock: less than a millisecond."""


class _OnSQLite:
    """Close a connection of SQLite to writers, and let a handler watch the clock.

    Args:
        seconds: for a statement.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def arrive(
        self,
        connection: Connection,
        step: str | None,  # noqa: ARG002 - no ordering of SQLite has one
    ) -> tuple[int, Any]:
        deadline = math.inf

        def begun(*_: Any) -> None:
            nonlocal deadline
            deadline = monotonic() + self._seconds

        if not connection.in_transaction():
            connection.begin()  # a hook of the host's may begin a transaction of the database's
        _end_transaction(connection)
        kept = int(connection.exec_driver_sql("PRAGMA query_only").scalar_one())
        connection.exec_driver_sql("PRAGMA query_only = 1")
        event.listen(connection, "before_cursor_execute", begun)
        _watch(connection, lambda: monotonic() > deadline)
        return kept, begun

    def leave(self, connection: Connection, kept: tuple[int, Any]) -> None:
        query_only, begun = kept
        _watch(connection, None)
        event.remove(connection, "before_cursor_execute", begun)
        _end_transaction(connection)
        connection.exec_driver_sql(f"PRAGMA query_only = {query_only}")


def _end_transaction(connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
    if driver.in_transaction:
        with _told(connection):
            connection.connection.dbapi_connection.rollback()  # type: ignore[union-attr] # it is open


def _watch(connection: Connection, is_late: Any) -> None:
    """Set a handler that SQLite calls while it works, or take it off."""
    driver: Any = connection.connection.dbapi_connection
    if hasattr(driver, "set_progress_handler"):
        driver.set_progress_handler(is_late, TICKS)
    else:
        driver.run_async(lambda own: own.set_progress_handler(is_late, TICKS))


@contextmanager
def _told(connection: Connection) -> Iterator[None]:
    """Raise an error of the driver's as one of SQLAlchemy's."""
    dialect: Any = connection.dialect
    try:
        yield
    except dialect.loaded_dbapi.Error as error:
        raise OperationalError("the state of the connection", None, error) from error
