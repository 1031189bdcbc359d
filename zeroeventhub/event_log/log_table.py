"""The table of a log, and the statement that inserts into it what is not there yet."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    DateTime,
    Executable,
    Identity,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    cast,
    insert,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.mysql import DATETIME
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from zeroeventhub.databases.bulk_insert import insert_columns
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.event_log.stored import LONGEST_NAME, Stored, unseen

__all__ = [
    "Batch",
    "RowInsert",
    "Taken",
    "connected",
    "insert_rows",
    "is_taken",
    "log_table",
    "writing",
]

_TAKEN = frozenset(
    {"23505", 1062, sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY}
)
"""What PostgreSQL, MariaDB and MySQL, and SQLite call it if a unique value is there already."""


class Taken(Exception):  # noqa: N818 - named for what happened
    """Say that something that may be there once is there."""


class RowInsert:
    """Insert single rows of a table in one statement each, which leaves the transaction usable.

    Args:
        table: the table.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._columns = {column.name: column for column in table.columns}
        self._statement = lru_cache(maxsize=16)(self._build)

    def insert(self, connection: Connection, row: Mapping[str, Any]) -> None:
        """Insert a row.

        Args:
            connection: in the transaction that it is to be part of.
            row: by the names of columns, with JSON as text.

        Raises:
            Taken: nothing was inserted.
        """
        statement = self._statement(connection.dialect.name, tuple(row))
        parameters = {f"p{place}": value for place, value in enumerate(row.values())}
        try:
            counted = {"preserve_rowcount": True}
            inserted = connection.execute(statement, parameters, execution_options=counted).rowcount
        except IntegrityError as error:
            if connection.dialect.name == "postgresql" or not is_taken(error):
                raise
            raise Taken from error
        if inserted != 1:
            raise Taken

    def _build(self, dialect: str, names: tuple[str, ...]) -> Executable:
        values = {
            self._columns[name].key: _parameter(dialect, self._columns[name], f"p{place}")
            for place, name in enumerate(names)
        }
        match dialect:
            case "postgresql":
                return (
                    postgresql.insert(self._table).values(values).on_conflict_do_nothing().inline()
                )
            case "sqlite":
                return sqlite.insert(self._table).values(values).on_conflict_do_nothing().inline()
        # There, INSERT IGNORE would pass over more than what is taken.
        return insert(self._table).values(values).inline()


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows of the same columns in their order, with JSON as text."""
    if rows:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        insert_columns(connection, table, columns)


def connected(handle: Any, table: Table) -> Connection:
    """Return the connection that a caller's transaction is open on for a table.

    Raises:
        ConfigurationError: the handle is none of a transaction.
    """
    if isinstance(handle, scoped_session):
        handle = handle()
    if isinstance(handle, Session):
        handle = handle.connection(bind_arguments={"clause": table})
    connection = handle
    if not isinstance(connection, Connection):
        raise ConfigurationError(
            f"{type(handle).__name__} is no transaction of yours: give a Connection or a Session, "
            "from async code by `await connection.run_sync(log.append, events)`."
        )
    return connection


def writing(handle: Any, table: Table) -> Connection:
    """Return the same, to append through.

    Raises:
        ConfigurationError: the handle is none of a transaction, or commits each statement.
    """
    connection = connected(handle, table)
    level = connection.get_execution_options().get("isolation_level", "")
    if level.upper() == "AUTOCOMMIT":
        raise ConfigurationError(
            "This connection commits each statement, and events are appended in a transaction: "
            "give one without AUTOCOMMIT."
        )
    return connection


def is_taken(error: IntegrityError) -> bool:
    """Tell whether the database has refused a row because a unique value of it is there."""
    driver: Any = error.orig
    names = {getattr(driver, name, None) for name in ("sqlstate", "pgcode", "sqlite_errorcode")}
    return not _TAKEN.isdisjoint({*names, *driver.args[:1]})


def _parameter(dialect: str, column: Column[Any], parameter: str) -> Any:
    kind = column.type
    if not isinstance(kind, JSON):
        return bindparam(parameter, type_=kind)
    text = bindparam(parameter, type_=Text)
    return cast(text, kind) if dialect == "postgresql" else text


class Batch:
    """Append events to a table.

    Args:
        table: the table.
        stored: knows what is there.
    """

    def __init__(self, table: Table, stored: Stored) -> None:
        self._table = table
        self._stored = stored
        self._single = RowInsert(table)

    def append(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert the rows that are not there.

        Args:
            connection: in the transaction that they are to be part of.
            rows: with the same columns each, and JSON as text.

        Raises:
            IdReused: a row of the same id is there, with something else in it.
        """
        left = self._stored.distinct(rows)
        while left:
            try:
                self._insert(connection, left)
                break
            except Taken as taken:
                there = self._stored.find(connection, left)
                if not there:
                    raise unseen() from taken
            left = [row for row in left if row["id"] not in there]

    def _insert(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows.

        Raises:
            Taken: some are there already; others may have been inserted.
        """
        if len(rows) == 1:
            self._single.insert(connection, rows[0])
            return
        # An error of PostgreSQL would end the whole transaction.
        is_fatal = connection.dialect.name == "postgresql"
        try:
            with connection.begin_nested() if is_fatal else nullcontext():
                insert_rows(connection, self._table, rows)
        except IntegrityError as error:
            if not is_taken(error):
                raise
            raise Taken from error


def log_table(
    metadata: MetaData, name: str, schema: str | None = None, ordering: str | None = None
) -> Table:
    """Add the table of a log to metadata of the caller's.

    Args:
        metadata: what the table joins, so that migrations find it.
        name: the table's name.
        schema: the database schema; None for the connection's default.
        ordering: that of its feed; None for the first of the database.
    """
    # With positions beside the table, events of a moment are found in all partitions at once.
    by_time = ("time",) if ordering == "sequenced" else ("partition", "time", "position")
    return Table(
        name,
        metadata,
        Column(
            "position",
            BigInteger().with_variant(Integer, "sqlite"),
            Identity(always=True),
            primary_key=True,
        ),
        Column("partition", SmallInteger, nullable=False),
        Column("id", _name(), nullable=False),
        Column("key", _name()),
        Column("version", BigInteger),
        Column("type", _name(), nullable=False),
        Column("time", _MOMENT, nullable=False, server_default=AppendedAt()),
        Column("data", JSON().with_variant(JSONB(), "postgresql"), nullable=False),
        UniqueConstraint("id", name=f"{name}_id"),
        # Any number of events without a version are unlike each other.
        UniqueConstraint("key", "version", name=f"{name}_key_version"),
        Index(f"{name}_partition_position", "partition", "position"),
        Index(f"{name}_time", *by_time),
        schema=schema,
        sqlite_autoincrement=True,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


class AppendedAt(FunctionElement[datetime]):
    """The moment of the statement that appends, in UTC wherever the type itself has no zone."""

    type = DateTime(timezone=True)
    inherit_cache = True
    name = "appended_at"


@compiles(AppendedAt)
def _appended_at(*_: Any, **__: Any) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(AppendedAt, "postgresql")
def _appended_at_postgresql(*_: Any, **__: Any) -> str:
    # CURRENT_TIMESTAMP is when the transaction began.
    return "statement_timestamp()"


@compiles(AppendedAt, "mysql", "mariadb")
def _appended_at_mysql(*_: Any, **__: Any) -> str:
    return "(UTC_TIMESTAMP(6))"


@compiles(AppendedAt, "sqlite")
def _appended_at_sqlite(*_: Any, **__: Any) -> str:
    # Moments are compared as text, with six decimals.
    return "(strftime('%Y-%m-%d %H:%M:%f000', 'now'))"


def _name() -> TypeEngine[str]:
    """Compare every character as it is, which MariaDB and MySQL do if a column says so."""
    exact = String(LONGEST_NAME, collation="utf8mb4_bin")
    return String(LONGEST_NAME).with_variant(exact, "mysql", "mariadb")


# MariaDB and MySQL keep whole seconds unless told otherwise.
_MOMENT = DateTime(timezone=True).with_variant(DATETIME(fsp=6), "mysql", "mariadb")
