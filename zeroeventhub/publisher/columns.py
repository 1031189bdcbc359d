"""The columns that a feed reads, and whether they are still what they were."""

from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Table, inspect
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.sql.visitors import iterate

from zeroeventhub.errors import ConfigurationError, FeedFailure

__all__ = ["Columns"]


class Columns:
    """Remember the columns of a feed's table as they were when it was first looked at.

    Args:
        table: the table.
        used: the expressions that the feed reads.
    """

    def __init__(self, table: Table, used: Iterable[ColumnElement[Any]]) -> None:
        self._table = table
        parts = [part for expression in used for part in iterate(expression)]
        self._names = [*dict.fromkeys(_names(table, parts))]
        self._before: dict[str, str] = {}

    def check(self, connection: Connection) -> None:
        """Refuse a table that lacks a column.

        Raises:
            ConfigurationError: it does, or it is not there.
        """
        found = self._found(connection)
        if missing := [name for name in self._names if name not in found]:
            raise ConfigurationError(
                f"Table {self._table.fullname!r} has no column {', '.join(map(repr, missing))}, "
                "which the feed reads."
            )
        self._before = self._before or found

    def refuse_changes(self, connection: Connection) -> None:
        """Refuse a table whose columns have changed since they were first looked at.

        Their values may have another form since, so that no event is what a cursor takes it for.

        Raises:
            ConfigurationError: the table or a column is gone.
            FeedFailure: a column is of another type.
        """
        self.check(connection)
        found = self._found(connection)
        if changed := [name for name, kind in self._before.items() if found[name] != kind]:
            raise FeedFailure(
                f"The type of {', '.join(map(repr, changed))} in table {self._table.fullname!r} "
                "is another one than when this feed was started, and so may the form of its events "
                "be: change it back, or restart the feed."
            )

    def _found(self, connection: Connection) -> dict[str, str]:
        """Return the types of the columns by name, as the database has them now."""
        schema = connection.schema_for_object(self._table)
        try:
            columns = inspect(connection).get_columns(self._table.name, schema=schema)
        except NoSuchTableError:
            raise ConfigurationError(f"There is no table {self._table.fullname!r}.") from None
        types = {column["name"]: repr(column["type"]) for column in columns}
        return {name: types[name] for name in self._names if name in types}


def _names(table: Table, parts: Iterable[Any]) -> Iterator[str]:
    """Name the columns of a table among parts of expressions, also those of an ORM class for it."""
    for part in parts:
        if isinstance(part, Column) and getattr(part.table, "fullname", None) == table.fullname:
            yield part.name
