"""SQLite: one writer at a time, so the order of row ids is the order of commits.

A transaction holds the write lock from its first write to its end. A row id drawn later
therefore commits later, and every visible event is settled. If rows are deleted, that needs
AUTOINCREMENT: without it SQLite gives the number of a deleted last row again.
"""

import re

from sqlalchemy import Connection, func, inspect, select, text

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.ordering.port import Horizon, Ordering

_DECLARATION = text("SELECT sql FROM sqlite_master WHERE type = :kind AND name = :name")
_TYPE = text("SELECT upper(type) FROM pragma_table_info(:table) WHERE name = :column")
_LAST = text("SELECT seq FROM sqlite_sequence WHERE name = :name")
_FORGET = text("DELETE FROM sqlite_sequence WHERE name = :name")
_CONTINUE = text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :last)")
_QUOTED_OR_COMMENT = re.compile(
    r"""'[^']*'|"[^"]*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/""", re.DOTALL
)


class SingleWriter(Ordering):
    """Order a SQLite table by its row id, which is the INTEGER PRIMARY KEY."""

    needs_last_row = True

    def check(self, connection: Connection) -> None:
        """Refuse a table whose row ids may be given twice."""
        self._events.check_table(connection)
        position, name = self._events.position, self._events.table.name
        # In capitals, without comments and quoted names.
        declared = _QUOTED_OR_COMMENT.sub(" ", declaration(connection, "table", name)).upper()
        self.needs_last_row = re.search(r"\bAUTOINCREMENT\b", declared) is None
        has_row_id = re.search(r"\bWITHOUT\s+ROWID\b", declared) is None
        if self.needs_last_row and not (has_row_id and self._is_integer_key(connection)):
            raise ConfigurationError(
                f"{position} is not the INTEGER PRIMARY KEY of its table, and no other "
                "column's order is the order of commits."
            )
        if self.needs_last_row and not self._events.append_only:
            raise ConfigurationError(
                f"SQLite gives the number of a deleted row of {name!r} again, and the "
                "new event would be skipped: declare the key INTEGER PRIMARY KEY AUTOINCREMENT, "
                "or say append_only (--append-only) if no row is ever deleted."
            )
        self._events.check_lowest(connection)

    def horizon(self, connection: Connection) -> Horizon:
        """Return the last committed row id."""
        highest = connection.scalar(select(func.max(self._events.position))) or 0
        if not self.needs_last_row:
            highest = max(highest, last_number(connection, self._events.table.name))
        return Horizon(settled=highest, highest=highest)

    def continue_after(self, connection: Connection, position: int) -> None:
        """Set the number that AUTOINCREMENT has drawn last."""
        self.check(connection)
        if self.needs_last_row:
            raise ConfigurationError(
                f"SQLite would give the numbers of lost events of {self._events.table.name!r} "
                "again: declare its key INTEGER PRIMARY KEY AUTOINCREMENT."
            )
        name = {"name": self._events.table.name}
        connection.execute(_FORGET, name)
        connection.execute(_CONTINUE, name | {"last": position})

    def _is_integer_key(self, connection: Connection) -> bool:
        """Return whether the position is the key, of the type that is exactly INTEGER."""
        table, column = self._events.table.name, self._events.position.name
        key = inspect(connection).get_pk_constraint(table)["constrained_columns"]
        kind = connection.scalar(_TYPE, {"table": table, "column": column})
        return key == [column] and kind == "INTEGER"


def declaration(connection: Connection, kind: str, name: str) -> str:
    """Return the CREATE statement of a table or trigger; an empty text if there is none."""
    return connection.scalar(_DECLARATION, {"kind": kind, "name": name}) or ""


def last_number(connection: Connection, table: str) -> int:
    """Return the last number that a table with AUTOINCREMENT has drawn."""
    return connection.scalar(_LAST, {"name": table}) or 0
