"""The condition by which the database chooses events of certain types."""

from typing import Any

from sqlalchemy import ColumnElement, Enum, LargeBinary, String, Text, cast, false, func, literal
from sqlalchemy.dialects.mysql import CHAR

from zeroeventhub.protocol import TypeFilter

__all__ = ["TypeCondition", "exact"]


class TypeCondition:
    """Compare the types of events, without regard to the case of ASCII letters.

    Args:
        column: the column of types; None if all events are of the default type.
        default: the type of events whose column is NULL or empty; empty if they have none.
        dialect: the database, as SQLAlchemy calls it.
    """

    def __init__(self, column: ColumnElement[Any] | None, default: str, dialect: str) -> None:
        self._dialect = dialect
        kind = self._text(default)
        if column is not None:
            kind = func.coalesce(func.nullif(exact(column, dialect), self._text("")), kind)
        self._kind = _lower(kind, dialect)

    @staticmethod
    def understands(column: ColumnElement[Any]) -> bool:
        """Tell whether a column holds types as text, as they are sent."""
        return isinstance(column.type, String) and not isinstance(column.type, Enum)

    def condition(self, types: TypeFilter) -> ColumnElement[bool]:
        """Return what holds for the events that a filter lets through."""
        if not types.names:
            return false()
        chosen = self._kind.in_([self._text(name) for name in sorted(types.names)])
        return ~chosen if types.skip else chosen

    def _text(self, text: str) -> ColumnElement[Any]:
        return exact(literal(text, Text), self._dialect)


def exact(text: ColumnElement[Any], dialect: str) -> ColumnElement[Any]:
    """Return what is equal only to the same text, whatever a database takes for equal.

    Args:
        text: an expression of text.
        dialect: the database, as SQLAlchemy calls it.
    """
    if dialect in _MYSQL:
        # Of text and not of bytes from Python, which aiomysql cannot send.
        return cast(cast(text, CHAR(charset="utf8mb4")), LargeBinary)
    return text.collate({"postgresql": "C", "sqlite": "BINARY"}[dialect])


def _lower(kind: ColumnElement[Any], dialect: str) -> ColumnElement[Any]:
    """Return a type with its ASCII letters in lower case; no other letter becomes one of them."""
    if dialect in _MYSQL:
        # Byte by byte: in UTF-8, bytes of ASCII are never part of another letter.
        return cast(func.lower(cast(kind, CHAR(charset="latin1"))), LargeBinary)
    return func.lower(kind)


_MYSQL = {"mariadb", "mysql"}
