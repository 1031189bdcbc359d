"""SQLite: a trigger gives positions at once, since one transaction writes at a time."""

from sqlalchemy import Connection, column, select, table

from zeroeventhub.publisher.ordering.port import Ddl, Events, Horizon
from zeroeventhub.publisher.ordering.side_tables import (
    SideTableOrdering,
    SideTables,
    check_key,
    column_types,
)

__all__ = ["Sequenced"]

_MASTER = table("sqlite_master", column("type"), column("name"), column("sql"))
_SEQUENCE = table("sqlite_sequence", column("name"), column("seq"))

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


class Sequenced(SideTableOrdering):
    """Order a SQLite table by positions in a side table.

    Args:
        events: the table.

    Raises:
        ConfigurationError: the partition is not a column of the table.
    """

    def __init__(self, events: Events) -> None:
        super().__init__(events, outbox=False)

    def check(self, connection: Connection) -> None:
        """Refuse a table without its trigger, and one whose key is not unique."""
        check_key(connection, self._events)
        words = self._words()
        name = f"zeroeventhub_note_{self._tables.digest}"
        installed = connection.scalar(select(_MASTER.c.sql).where(_MASTER.c.name == name))
        if installed != _TRIGGER.format(**words):
            raise self._tables.outdated

    def horizon(self, connection: Connection) -> Horizon:
        """Return the last committed position."""
        name = self._tables.positions.name
        drawn = select(_SEQUENCE.c.seq).where(_SEQUENCE.c.name == name)
        last = connection.scalar(drawn) or 0
        return Horizon(settled=last, highest=last)

    def ddl(self, connection: Connection) -> Ddl:
        """Return the statements of the table and the trigger."""
        check_key(connection, self._events)
        words = self._words()
        types = column_types(connection, self._events)
        tables = SideTables(self._events, types=types)
        return Ddl(
            install=(
                *tables.create(connection, [tables.positions]),
                "DROP TRIGGER IF EXISTS {trigger}".format(**words),
                _TRIGGER.format(**words),
            ),
            backfill=(_BACKFILL.format(**words),),
            uninstall=tuple(statement.format(**words) for statement in _UNINSTALL),
        )

    def _words(self) -> dict[str, str]:
        """Return the values for the placeholders of the statements."""
        tables = self._tables
        copied = {name: _quoted(original) for name, original in tables.copied.items()}
        return {
            "events": _quoted(self._events.table.name),
            "positions": tables.positions.name,
            "trigger": f"zeroeventhub_note_{tables.digest}",
            "copies": ", ".join(copied),
            "known": " AND ".join(f"{name} = NEW.{copied[name]}" for name in tables.key),
            "noted": " AND ".join(f"{name} = event.{copied[name]}" for name in tables.key),
            "new": ", ".join(f"NEW.{original}" for original in copied.values()),
            "originals": ", ".join(f"event.{original}" for original in copied.values()),
            "order": ", ".join(f"event.{_quoted(name)}" for name in tables.order),
        }


def _quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))
