"""The condition by which the database chooses events of certain types."""

from typing import Any

from sqlalchemy import ColumnElement, Enum, LargeBinary, String, Text, cast, func, literal

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
        kind: ColumnElement[Any] = literal(default, Text)
        if column is not None:
            kind = func.coalesce(func.nullif(column, ""), kind)
        self._kind: ColumnElement[Any] = func.lower(kind)
        # There, what is compared as text may be equal although it is not the same.
        self._exact = dialect in {"mariadb", "mysql"}

    @staticmethod
    def understands(column: ColumnElement[Any]) -> bool:
        """Tell whether a column holds types as text, as they are sent."""
        return isinstance(column.type, String) and not isinstance(column.type, Enum)

    def condition(self, types: TypeFilter) -> ColumnElement[bool]:
        """Return what holds for the events that a filter lets through."""
        names = sorted(types.names)
        if self._exact:
            kind: ColumnElement[Any] = cast(self._kind, LargeBinary)
            chosen = kind.in_([name.encode() for name in names])
        else:
            chosen = self._kind.in_(names)
        return ~chosen if types.skip else chosen
