"""The library's own tables in a host's database: their types, and statements that write them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    DateTime,
    Dialect,
    String,
    Table,
    Text,
)
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.types import TypeEngine

from zeroeventhub.databases import DATABASES, database_of
from zeroeventhub.databases.port import Database

__all__ = [
    "creation",
    "document",
    "exact",
    "fine_moment",
    "insert_ignore",
    "long_text",
    "row_number",
    "statement_text",
    "upsert",
]

_T = TypeVar("_T")


def _of_each(
    kind: TypeEngine[_T], own: Callable[[Database], TypeEngine[Any] | None]
) -> TypeEngine[_T]:
    """Return a type that is another one on the databases that have one of their own."""
    for database in dict.fromkeys(DATABASES.values()):
        if (variant := own(database)) is not None:
            kind = kind.with_variant(variant, *database.names)
    return kind


def exact(kind: String) -> TypeEngine[str]:
    """Compare every character as it is, which some databases do if a column says so."""
    return _of_each(kind, lambda database: database.exact_text(kind))


def long_text(*, is_exact: bool = False) -> TypeEngine[str]:
    """Hold text of any length, where Text has a limit."""
    return _of_each(Text(), lambda database: database.long_text(is_exact=is_exact))


def fine_moment() -> TypeEngine[Any]:
    """Hold a moment with six decimals, also where a database keeps whole seconds by default."""
    return _of_each(DateTime(timezone=True), lambda database: database.fine_moment)


def document() -> TypeEngine[Any]:
    """Hold JSON, in the form that a database compares and indexes."""
    return _of_each(JSON(), lambda database: database.document)


def row_number() -> TypeEngine[int]:
    """Hold a key that the database numbers."""
    return _of_each(BigInteger(), lambda database: database.row_number)


def creation(dialect: Dialect, table: Table) -> str:
    """Return the statement that creates a table unless it exists."""
    return statement_text(dialect, CreateTable(table, if_not_exists=True)).strip()


def statement_text(dialect: Dialect, statement: ClauseElement, **options: Any) -> str:
    """Return a statement as an operator runs it."""
    # A dialect of its own, which leaves percent signs as they are.
    make: Any = type(dialect)
    return str(statement.compile(dialect=make(paramstyle="named"), **options))


def insert_ignore(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert rows whose keys are free, and return how many were."""
    if not rows:
        return 0
    statement = database_of(connection).insert_ignore(table)
    counted = {"preserve_rowcount": True}
    return connection.execute(statement, list(rows), execution_options=counted).rowcount


def upsert(
    connection: Connection, table: Table, row: Mapping[str, Any], changes: Mapping[str, Any]
) -> None:
    """Insert a row or change the one that is there, and lock it either way.

    MariaDB and MySQL lock the gap where they look for a row that is not there, so that two who look
    first and insert then would wait in a ring.

    Args:
        connection: a connection to the store, in a transaction.
        table: the row's table.
        row: the row if there is none of its key.
        changes: what to change in the one that is there.
    """
    connection.execute(database_of(connection).upsert(table, changes), dict(row))
