"""The orderings of SQLite, where one transaction writes at a time.

A transaction holds the write lock from its first write to its end. A number drawn later therefore
commits later, and every visible event is settled.
"""

import re

from sqlalchemy import Connection, func, inspect, select, text

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.ordering.port import Ddl, Events, Horizon, Ordering, quoted
from zeroeventhub.publisher.ordering.side_tables import SideTableOrdering, check_key

_DECLARATION = text("SELECT sql FROM sqlite_master WHERE type = :kind AND name = :name")
_NAME = text("SELECT name FROM sqlite_master WHERE type = 'table' AND name = :name COLLATE NOCASE")
_KEY_INDEX = text("SELECT count(*) FROM pragma_index_list(:table) WHERE origin = 'pk'")
_LAST = text("SELECT seq FROM sqlite_sequence WHERE name = :name")
_FORGET = text("DELETE FROM sqlite_sequence WHERE name = :name")
_CONTINUE = text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :last)")
_QUOTED_OR_COMMENT = re.compile(
    r"""'[^']*'|"[^"]*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/""", re.DOTALL
)


class SingleWriter(Ordering):
    """Order a table by its row id, which is the INTEGER PRIMARY KEY.

    If rows are deleted, that needs AUTOINCREMENT: without it SQLite gives the number of a deleted
    last row again.
    """

    needs_last_row = True

    def check(self, connection: Connection) -> None:
        """Refuse a table whose row ids may be given twice."""
        _check_file(connection, self._events)
        self._events.check_table(connection)
        position, name = self._events.position, self._events.table.name
        # In capitals, without comments and quoted names.
        declared = _QUOTED_OR_COMMENT.sub(" ", _declaration(connection, "table", name)).upper()
        self.needs_last_row = re.search(r"\bAUTOINCREMENT\b", declared) is None
        if not self._is_row_id(connection):
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
            highest = max(highest, _last_number(connection, self._events.table.name))
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

    def _is_row_id(self, connection: Connection) -> bool:
        """Return whether the position is the key, and as the row id one without an index."""
        table, column = self._events.table.name, self._events.position.name
        key = inspect(connection).get_pk_constraint(table)["constrained_columns"]
        return key == [column] and not connection.scalar(_KEY_INDEX, {"table": table})


# A key that is inserted again, by REPLACE or after a DELETE, is a new event with a new position.
# Delete and insert, as the ON CONFLICT clause of a writer's statement would override an upsert's.
_TRIGGER = """CREATE TRIGGER {trigger} AFTER INSERT ON {events} FOR EACH ROW BEGIN
    DELETE FROM {positions} WHERE {known};
    INSERT INTO {positions} ({copies}, at) SELECT {new}, max(
        strftime('%Y-%m-%d %H:%M:%f000', 'now'),
        coalesce((SELECT at FROM {positions} ORDER BY position DESC LIMIT 1), '')
    );
END"""

_BACKFILL = """INSERT INTO {positions} ({copies}, at)
SELECT {originals}, coalesce((SELECT min(at) FROM {positions}), '1970-01-01 00:00:00.000000')
FROM {events} AS event
WHERE NOT EXISTS (SELECT 1 FROM {positions} WHERE {noted})
ORDER BY {order}"""

_UNINSTALL = ("DROP TRIGGER IF EXISTS {trigger}", "DROP TABLE IF EXISTS {positions}")

_DDL = Ddl(install=(_UNINSTALL[0], _TRIGGER), backfill=(_BACKFILL,), uninstall=_UNINSTALL)


class Sequenced(SideTableOrdering):
    """Order a table by positions in a side table, which a trigger gives at once."""

    def check(self, connection: Connection) -> None:
        """Refuse a table without its trigger, and one whose key is not unique."""
        _check_file(connection, self._events)
        check_key(connection, self._events)
        words = self._words()
        if _declaration(connection, "trigger", words["trigger"]) != _TRIGGER.format(**words):
            raise self._no_trigger_error()

    def horizon(self, connection: Connection) -> Horizon:
        """Return the last committed position."""
        last = _last_number(connection, self._tables.positions.name)
        return Horizon(settled=last, highest=last)

    def ddl(self, connection: Connection) -> Ddl:
        """Return the statements of the table and the trigger."""
        _check_file(connection, self._events)
        check_key(connection, self._events)
        tables = self._typed_tables(connection, None)
        return _DDL.fill(self._words(), tables.create(connection, tables.positions))

    def _words(self) -> dict[str, str]:
        """Return the values for the placeholders of the statements."""
        tables = self._tables
        keys = [(name, quoted(tables.copied[name])) for name in tables.key]
        return {
            **tables.words(quoted, None),
            "positions": tables.positions.name,
            "known": " AND ".join(f"{name} = NEW.{original}" for name, original in keys),
            "noted": " AND ".join(f"{name} = event.{original}" for name, original in keys),
        }


def _check_file(connection: Connection, events: Events) -> None:
    """Refuse a table of an attached database, whose numbers and triggers are in another file.

    Refuse also a name in another case, by which SQLite finds the table, but not its numbers, and a
    connection that reads what is not committed.
    """
    if connection.exec_driver_sql("PRAGMA read_uncommitted").scalar_one():
        raise ConfigurationError(
            "This connection has set PRAGMA read_uncommitted, by which a shared cache shows events "
            "that are then rolled back: leave it off."
        )
    if events.schema(connection) not in {None, "main"}:
        raise ConfigurationError(
            f"{events.table.fullname!r} is in an attached database: give the feed an engine of "
            "that file, and a table without a schema."
        )
    named = connection.scalar(_NAME, {"name": events.table.name})
    if named not in {None, events.table.name}:
        raise ConfigurationError(
            f"The table {events.table.name!r} is named {named!r}: write it as the database does."
        )


def _declaration(connection: Connection, kind: str, name: str) -> str:
    """Return the CREATE statement of a table or trigger; an empty text if there is none."""
    return connection.scalar(_DECLARATION, {"kind": kind, "name": name}) or ""


def _last_number(connection: Connection, table: str) -> int:
    """Return the last number that a table with AUTOINCREMENT has drawn."""
    return connection.scalar(_LAST, {"name": table}) or 0
