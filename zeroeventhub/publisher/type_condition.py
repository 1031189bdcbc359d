"""The condition by which the database chooses events of certain types."""

from typing import Any

from sqlalchemy import ColumnElement, Enum, LargeBinary, String, Text, cast, func, literal
from sqlalchemy.dialects.mysql import CHAR

from zeroeventhub.protocol import TypeFilter

__all__ = ["TypeCondition"]


class TypeCondition:
    """Compare the types of events, without regard to the case of ASCII letters.

    Args:
        column: the column of types; None if all events are of the default type.
        default: the type of events whose column is NULL or empty; empty if they have none.
        dialect: the database, as SQLAlchemy calls it.
    """

    def __init__(self, column: ColumnElement[Any] | None, default: str, dialect: str) -> None:
        # There, what is compared as text may be equal although it is not the same.
        self._exact = dialect in {"mariadb", "mysql"}
        kind = self._text(default)
        if column is not None:
            kind = func.coalesce(func.nullif(self._plain(column, dialect), self._text("")), kind)
        # Byte by byte: then no letter beyond those of ASCII becomes one of them.
        self._kind: ColumnElement[Any] = (
            cast(func.lower(cast(kind, CHAR(charset="latin1"))), LargeBinary)
            if self._exact
            else func.lower(kind)
        )

    @staticmethod
    def understands(column: ColumnElement[Any]) -> bool:
        """Tell whether a column holds types as text, as they are sent."""
        return isinstance(column.type, String) and not isinstance(column.type, Enum)

    def condition(self, types: TypeFilter) -> ColumnElement[bool]:
        """Return what holds for the events that a filter lets through."""
        chosen = self._kind.in_([self._text(name) for name in sorted(types.names)])
        return ~chosen if types.skip else chosen

    def _plain(self, column: ColumnElement[Any], dialect: str) -> ColumnElement[Any]:
        """Take from a column what its collation knows of letters beyond those of ASCII."""
        if self._exact:
            return cast(cast(column, CHAR(charset="utf8mb4")), LargeBinary)
        return column.collate({"postgresql": "C", "sqlite": "BINARY"}[dialect])

    def _text(self, text: str) -> ColumnElement[Any]:
        # Not as bytes, which aiomysql cannot send.
        return cast(literal(text, Text), LargeBinary) if self._exact else literal(text, Text)
