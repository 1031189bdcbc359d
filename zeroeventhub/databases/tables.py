"""Tables of the library's own in a host's database: their types, and the statements for them."""

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    String,
    Table,
    Text,
)
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.types import TypeEngine

from zeroeventhub.databases import DATABASES
from zeroeventhub.databases.port import Database

__all__ = [
    "creation",
    "document",
    "exact",
    "fine_moment",
    "long_text",
    "row_number",
    "statement_text",
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
