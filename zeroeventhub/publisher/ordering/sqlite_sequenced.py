"""SQLite: a trigger gives positions at once, since one transaction writes at a time."""

from sqlalchemy import Connection

from zeroeventhub.publisher.ordering.port import Ddl, Horizon, quoted
from zeroeventhub.publisher.ordering.side_tables import SideTableOrdering, check_key
from zeroeventhub.publisher.ordering.sqlite_single_writer import declaration, last_number

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
    """Order a SQLite table by positions in a side table."""

    def check(self, connection: Connection) -> None:
        """Refuse a table without its trigger, and one whose key is not unique."""
        check_key(connection, self._events)
        words = self._words()
        if declaration(connection, "trigger", words["trigger"]) != _TRIGGER.format(**words):
            raise self._no_trigger_error()

    def horizon(self, connection: Connection) -> Horizon:
        """Return the last committed position."""
        last = last_number(connection, self._tables.positions.name)
        return Horizon(settled=last, highest=last)

    def ddl(self, connection: Connection) -> Ddl:
        """Return the statements of the table and the trigger."""
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
