"""MariaDB and MySQL: a trigger notes new rows in an outbox, a procedure gives them positions.

The procedure first locks the row that holds the last position, in a separate statement. At READ
COMMITTED the next statement then sees all positions given before, and all rows committed by then.
A reader that does not get the lock gives no positions and reads those that exist.

The procedure deletes rows from the outbox by their numbers, through a JSON table: a DELETE over a
range would wait for rows that open transactions have inserted between them.
"""

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from zeroeventhub.databases.mysql import is_node, is_read_only
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.ordering.mysql_observed import check_table, error_number, quoted
from zeroeventhub.publisher.ordering.port import Ddl, digest
from zeroeventhub.publisher.ordering.side_tables import SideTableOrdering

_NO_SUCH_ROUTINE = 1305

_TRIGGER = """CREATE TRIGGER {trigger} AFTER INSERT ON {events} FOR EACH ROW
INSERT INTO {outbox} ({copies}) VALUES ({new})"""

_SEQUENCE = """CREATE PROCEDURE {sequence}(IN amount INT) MODIFIES SQL DATA
BEGIN
    DECLARE waiting INT;
    DECLARE previous BIGINT;
    DECLARE moment DATETIME(6);
    DECLARE numbers LONGTEXT;
    DECLARE moved BIGINT;
    DECLARE EXIT HANDLER FOR SQLEXCEPTION
    BEGIN
        ROLLBACK;
        RESIGNAL;
    END;
    -- A statement of its own: in the condition of an IF it would lock what it reads.
    SELECT COUNT(*) INTO waiting FROM (SELECT 1 FROM {outbox} LIMIT 1) AS noted;
    IF waiting > 0 THEN
        SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
        START TRANSACTION;
        SELECT state.last, GREATEST(state.at, UTC_TIMESTAMP(6)) INTO previous, moment
            FROM {state} AS state WHERE state.id = 1 FOR UPDATE SKIP LOCKED;
        IF previous IS NOT NULL THEN
            SELECT JSON_ARRAYAGG(fresh.number), COUNT(*) INTO numbers, moved FROM (
                SELECT number FROM {outbox} ORDER BY number LIMIT amount
            ) AS fresh;
            INSERT INTO {positions} (position, {copies}, at)
                SELECT previous + ROW_NUMBER() OVER (ORDER BY noted.number) AS place,
                    {outboxed}, moment
                FROM JSON_TABLE(numbers, '$[*]' COLUMNS (number BIGINT PATH '$')) AS fresh
                STRAIGHT_JOIN {outbox} AS noted FORCE INDEX (PRIMARY)
                    ON noted.number = fresh.number
                ORDER BY place
                ON DUPLICATE KEY UPDATE position = VALUES(position), {updates}, at = VALUES(at);
            DELETE noted FROM JSON_TABLE(numbers, '$[*]' COLUMNS (number BIGINT PATH '$')) AS fresh
                STRAIGHT_JOIN {outbox} AS noted FORCE INDEX (PRIMARY)
                    ON noted.number = fresh.number;
            UPDATE {state} SET last = previous + moved, at = moment WHERE id = 1;
        END IF;
        COMMIT;
    END IF;
END"""

# A trigger stays with its table when that is renamed. In digits, a name needs no escapes.
_INSTALLED = """CREATE FUNCTION {installed}() RETURNS VARCHAR(64) READS SQL DATA
RETURN (
    SELECT '{version}' FROM information_schema.TRIGGERS
    WHERE TRIGGER_SCHEMA = DATABASE() AND TRIGGER_NAME = '{trigger_label}'
        AND EVENT_OBJECT_TABLE = CONVERT({events_code} USING utf8mb4)
)"""

# Events from before the trigger get numbers below those that it has noted since. At READ COMMITTED
# no writer waits for this statement.
_BACKFILL = (
    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
    """INSERT INTO {outbox} (number, {copies})
SELECT (SELECT LEAST(COALESCE(MIN(first.number), 0), 0) FROM {outbox} AS first)
    - CAST(ROW_NUMBER() OVER (ORDER BY {descending}) AS SIGNED), {originals} FROM {events} AS event
WHERE NOT EXISTS (SELECT 1 FROM {positions} AS known WHERE {known})
    AND NOT EXISTS (SELECT 1 FROM {outbox} AS known WHERE {known})""",
    "INSERT IGNORE INTO {state} (id, last, at) VALUES (1, 0, '1970-01-01')",
)

_UNINSTALL = (
    "DROP TRIGGER IF EXISTS {trigger}",
    "DROP PROCEDURE IF EXISTS {sequence}",
    "DROP FUNCTION IF EXISTS {installed}",
    "DROP TABLE IF EXISTS {outbox}, {positions}, {state}",
)

OLDEST = {True: (10, 6), False: (8, 0, 13)}
"""The versions of MariaDB (True) and of MySQL (False) that have SKIP LOCKED and JSON_TABLE."""

# By another collation, two keys would be one, and the event of the first would be lost.
_OTHERWISE_COLLATED = text("""
    SELECT side.TABLE_NAME AS name, event.COLLATION_NAME AS collation,
        event.CHARACTER_SET_NAME AS charset
    FROM information_schema.COLUMNS AS event JOIN information_schema.COLUMNS AS side
        ON side.TABLE_SCHEMA = event.TABLE_SCHEMA
        AND side.TABLE_NAME IN (:positions, :outbox) AND side.COLUMN_NAME = :copy
    WHERE event.TABLE_SCHEMA = COALESCE(:schema, DATABASE())
        AND event.TABLE_NAME = :name AND event.COLUMN_NAME = :original
        AND event.COLLATION_NAME <> side.COLLATION_NAME
""")

_DDL = Ddl(
    # Events missed during an interruption or without a trigger: the backfill adds them.
    install=(*_UNINSTALL[:-1], _SEQUENCE, _TRIGGER, _INSTALLED),
    backfill=_BACKFILL,
    uninstall=_UNINSTALL,
)


class Sequenced(SideTableOrdering):
    """Order a table of MariaDB or MySQL by positions in a side table."""

    call = "CALL"
    quote = staticmethod(quoted)

    def check(self, connection: Connection) -> None:
        """Refuse a table without its trigger, and one whose key is not unique."""
        check_table(connection, self._events, OLDEST)
        self._is_replica = is_read_only(connection)
        self._is_node = is_node(connection)
        words = self._words(connection)
        try:
            installed = connection.scalar(text("SELECT {installed}()".format(**words)))
        except DBAPIError as error:
            if error_number(error) != _NO_SUCH_ROUTINE:
                raise
            installed = None
        if installed != words["version"]:
            raise self._no_trigger_error()
        tables, events = self._tables, self._events
        named = {
            "schema": events.schema(connection),
            "name": events.table.name,
            "positions": tables.positions.name,
            "outbox": tables.outbox.name,
        }
        for copy, original in tables.copied.items():
            column = {"copy": copy, "original": original}
            found = connection.execute(_OTHERWISE_COLLATED, named | column).first()
            if found is not None:
                raise ConfigurationError(
                    f"Table {found.name!r} compares {original!r} otherwise than "
                    f"{events.table.fullname!r} does: ALTER TABLE {found.name} CONVERT TO "
                    f"CHARACTER SET {found.charset} COLLATE {found.collation}."
                )

    def ddl(self, connection: Connection) -> Ddl:
        """Return the statements of the tables, the routines and the trigger."""
        check_table(connection, self._events, OLDEST)
        tables = self._typed_tables(connection, self._events.schema(connection))
        created = tables.create(connection, tables.positions, tables.outbox, tables.state)
        return _DDL.fill(self._words(connection), created)

    def _words(self, connection: Connection) -> dict[str, str]:
        """Return the values for the placeholders of the statements."""
        tables, schema = self._tables, self._events.schema(connection)
        copied = [quoted(name) for name in tables.copied]
        words = {
            **tables.words(quoted, schema),
            "copies": ", ".join(copied),
            "trigger": quoted(schema, tables.name("note")),
            "trigger_label": tables.name("note"),
            "events_code": f"0x{self._events.table.name.encode().hex()}",
            "updates": ", ".join(f"{name} = VALUES({name})" for name in copied),
            "outboxed": ", ".join(f"noted.{name}" for name in copied),
        }
        # The digest identifies the installed statements.
        installed = f"{_SEQUENCE}{_TRIGGER}".format(**words)
        return words | {"version": f"zeroeventhub {digest(installed)}"}
