"""Insert rows, and find out whether they are there."""

import sqlite3
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import JSON, Column, Connection, Executable, Table, Text, bindparam, cast, insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, scoped_session

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.landing.bulk_insert import insert_columns

__all__ = ["RowInsert", "Taken", "connected", "insert_rows", "is_taken", "writing"]

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
