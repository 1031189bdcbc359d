"""SQLite: one writer at a time, so the order of row ids is the order of commits.

A transaction holds the write lock from its first write to its end. A row id drawn later
therefore commits later, and every visible event is settled. If rows are deleted, that needs
AUTOINCREMENT: without it SQLite gives the number of a deleted last row again.
"""

import re

from sqlalchemy import Connection, bindparam, column, func, inspect, select, table

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.ordering.port import Events, Horizon, Ordering

__all__ = ["SingleWriter"]

_MASTER = table("sqlite_master", column("type"), column("name"), column("sql"))
_COLUMNS = func.pragma_table_info(bindparam("table")).table_valued("name", "type")
_SEQUENCE = table("sqlite_sequence", column("name"), column("seq"))
_QUOTED_OR_COMMENT = re.compile(
    r"""'[^']*'|"[^"]*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/""", re.DOTALL
)


class SingleWriter(Ordering):
    """Order a SQLite table by its row id, which is the INTEGER PRIMARY KEY."""

    def __init__(self, events: Events) -> None:
        super().__init__(events)
        self._autoincrement = False

    @property
    def needs_last_row(self) -> bool:
        """Return whether SQLite gives the number of the last row again if it is deleted."""
        return not self._autoincrement

    def check(self, connection: Connection) -> None:
        """Refuse a table whose row ids may be given twice."""
        self._events.check_table(connection)
        position, name = self._events.position, self._events.table.name
        declaration = self._declaration(connection)
        self._autoincrement = re.search(r"\bAUTOINCREMENT\b", declaration) is not None
        if not (self._autoincrement or self._is_row_id(connection, declaration)):
            raise ConfigurationError(
                f"{position} is not the INTEGER PRIMARY KEY of its table, and no other "
                "column's order is the order of commits."
            )
        if not (self._autoincrement or self._events.append_only):
            raise ConfigurationError(
                f"SQLite gives the number of a deleted row of {name!r} again, and the "
                "new event would be skipped: declare the key INTEGER PRIMARY KEY AUTOINCREMENT, "
                "or say append_only (--append-only) if no row is ever deleted."
            )
        self._events.check_lowest(connection)

    def horizon(self, connection: Connection) -> Horizon:
        """Return the last committed row id."""
        highest = connection.scalar(select(func.max(self._events.position))) or 0
        if self._autoincrement:
            drawn = select(_SEQUENCE.c.seq).where(_SEQUENCE.c.name == self._events.table.name)
            highest = max(highest, connection.scalar(drawn) or 0)
        return Horizon(settled=highest, highest=highest)

    def _is_row_id(self, connection: Connection, declaration: str) -> bool:
        """Return whether the position is an alias of the row id: its type is exactly INTEGER."""
        key = inspect(connection).get_pk_constraint(self._events.table.name)["constrained_columns"]
        kind = connection.scalar(
            select(_COLUMNS.c.type).where(_COLUMNS.c.name == self._events.position.name),
            {"table": self._events.table.name},
        )
        return (
            key == [self._events.position.name]
            and str(kind).upper() == "INTEGER"
            and re.search(r"\bWITHOUT\s+ROWID\b", declaration) is None
        )

    def _declaration(self, connection: Connection) -> str:
        """Return the table's CREATE statement in capitals, without comments and quoted names."""
        declaration = connection.scalar(
            select(_MASTER.c.sql).where(
                _MASTER.c.type == "table", _MASTER.c.name == self._events.table.name
            )
        )
        return _QUOTED_OR_COMMENT.sub(" ", declaration or "").upper()
