"""The table of a log, and the statements that insert events which it lacks."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    Executable,
    Identity,
    Index,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, scoped_session

from zeroeventhub.databases import database_of
from zeroeventhub.databases.bulk_insert import insert_columns
from zeroeventhub.databases.clock import StatementMoment
from zeroeventhub.databases.error_codes import is_duplicate
from zeroeventhub.databases.port import Database
from zeroeventhub.databases.statements import document, exact, fine_moment, row_number
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.event_log.stored import LONGEST_NAME, Stored, unseen

__all__ = [
    "Batch",
    "DuplicateKey",
    "RowInsert",
    "connected",
    "insert_rows",
    "log_table",
    "writing",
]


class DuplicateKey(Exception):  # noqa: N818 - named for what happened
    """Raised when a unique value exists already."""


class RowInsert:
    """Insert single rows, so that a duplicate key leaves the transaction usable.

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
            connection: in the caller's transaction.
            row: values by column name, with JSON as text.

        Raises:
            DuplicateKey: nothing was inserted.
        """
        statement = self._statement(database_of(connection), tuple(row))
        parameters = {f"p{place}": value for place, value in enumerate(row.values())}
        try:
            counted = {"preserve_rowcount": True}
            inserted = connection.execute(statement, parameters, execution_options=counted).rowcount
        except IntegrityError as error:
            if database_of(connection).aborts_on_error or not is_duplicate(error):
                raise
            raise DuplicateKey from error
        if inserted != 1:
            raise DuplicateKey

    def _build(self, database: Database, names: tuple[str, ...]) -> Executable:
        columns = (self._columns[name] for name in names)
        values = {
            column.key: _parameter(database, column, f"p{place}")
            for place, column in enumerate(columns)
        }
        return database.insert_new(self._table).values(values).inline()


def _parameter(database: Database, column: Column[Any], parameter: str) -> Any:
    kind = column.type
    if not isinstance(kind, JSON):
        return bindparam(parameter, type_=kind)
    return database.json_parameter(bindparam(parameter, type_=Text), kind)


def insert_rows(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows of the same columns, in order, with JSON as text."""
    if rows:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        insert_columns(connection, table, columns)


def connected(handle: Any, table: Table) -> Connection:
    """Return the connection of a caller's transaction for a table.

    Raises:
        ConfigurationError: the handle is no Connection or Session.
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
    """Return the same for an append.

    Raises:
        ConfigurationError: the handle is no Connection or Session, or commits each statement.
    """
    connection = connected(handle, table)
    level = connection.get_execution_options().get("isolation_level", "")
    if level.upper() == "AUTOCOMMIT":
        raise ConfigurationError(
            "This connection commits each statement, and events are appended in a transaction: "
            "give one without AUTOCOMMIT."
        )
    return connection


class Batch:
    """Append events to a table.

    Args:
        table: the table.
        stored: looks up existing events.
    """

    def __init__(self, table: Table, stored: Stored) -> None:
        self._table = table
        self._stored = stored
        self._single = RowInsert(table)

    def append(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert the rows that the table lacks.

        Args:
            connection: in the caller's transaction.
            rows: with the same columns each, and JSON as text.

        Raises:
            IdReused: the table has a row with the same id and other values.
        """
        left = self._stored.distinct(rows)
        while left:
            try:
                self._insert(connection, left)
                break
            except DuplicateKey as taken:
                there = self._stored.find(connection, left)
                if not there:
                    raise unseen() from taken
            left = [row for row in left if row["id"] not in there]

    def _insert(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows.

        Raises:
            DuplicateKey: some exist already; the rest may have been inserted.
        """
        if len(rows) == 1:
            self._single.insert(connection, rows[0])
            return
        is_fatal = database_of(connection).aborts_on_error
        try:
            with connection.begin_nested() if is_fatal else nullcontext():
                insert_rows(connection, self._table, rows)
        except IntegrityError as error:
            if not is_duplicate(error):
                raise
            raise DuplicateKey from error


def log_table(
    metadata: MetaData, name: str, schema: str | None = None, ordering: str | None = None
) -> Table:
    """Add the table of a log to the caller's metadata.

    Args:
        metadata: the MetaData that the table is added to, so that migrations find it.
        name: the table's name.
        schema: the database schema; None for the connection's default.
        ordering: the ordering of its feed; None for the first one of the database.
    """
    # With positions in a side table, a moment is searched in all partitions at once.
    by_time = ("time",) if ordering == "sequenced" else ("partition", "time", "position")
    return Table(
        name,
        metadata,
        Column("position", row_number(), Identity(always=True), primary_key=True),
        Column("partition", SmallInteger, nullable=False),
        Column("id", exact(String(LONGEST_NAME)), nullable=False),
        Column("key", exact(String(LONGEST_NAME))),
        Column("version", BigInteger),
        Column("type", exact(String(LONGEST_NAME)), nullable=False),
        Column("time", fine_moment(), nullable=False, server_default=StatementMoment()),
        Column("data", document(), nullable=False),
        UniqueConstraint("id", name=f"{name}_id"),
        # NULL versions are distinct, so a key may have any number of events without a version.
        UniqueConstraint("key", "version", name=f"{name}_key_version"),
        Index(f"{name}_partition_position", "partition", "position"),
        Index(f"{name}_time", *by_time),
        schema=schema,
        sqlite_autoincrement=True,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
