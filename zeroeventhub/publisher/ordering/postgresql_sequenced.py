"""PostgreSQL: a trigger notes new rows in an outbox, and a function gives them positions.

The function first locks the row that holds the last position, in a separate statement. The next
statement then sees all positions given before, and all rows committed by then. A reader that does
not get the lock gives no positions and reads those that exist.
"""

from typing import Any

from sqlalchemy import ARRAY, BigInteger, Column, Connection, Text, func, select, text

from zeroeventhub.databases.port import literal
from zeroeventhub.databases.postgresql import quoted_name
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.ordering.port import Blocker, Ddl, digest, quoted
from zeroeventhub.publisher.ordering.postgresql_observed import find_blockers, refuse_heirs
from zeroeventhub.publisher.ordering.side_tables import SideTableOrdering, check_key

# Names have their schema: a writer could otherwise redefine them by its search_path.
_NOTE = """CREATE OR REPLACE FUNCTION {note}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER AS $note$
BEGIN
    INSERT INTO {outbox} ({copies}) VALUES ({new});
    RETURN NULL;
END
$note$"""

OLDEST = (14,)
"""The first version that has CREATE OR REPLACE TRIGGER."""

ROUND = 1000
"""By how many numbers of the outbox the low mark lags before it is raised."""

_NOTING = """FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND relation = {outbox_label}::regclass"""

# Dead rows of the outbox stay while any transaction has an old snapshot. The low mark lets scans
# skip them: no row at or below it is left to move. It is raised in rounds, as in the ordering
# observed: read the last number drawn, then the transactions with a write lock on the outbox, which
# the trigger takes before it draws a number. Once these have ended, the mark rises to the number.
_SEQUENCE = """CREATE OR REPLACE FUNCTION {sequence}(amount integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $sequence$
DECLARE
    state {state}%ROWTYPE;
    decided boolean := false;
    drawn bigint;
    taken bigint;
    top bigint;
    moved bigint;
BEGIN
    -- In this order, so that an index is read from the mark on, and never all that was moved.
    IF current_setting('transaction_read_only') = 'on' OR (
        SELECT number FROM {outbox} WHERE number > (SELECT low FROM {state}) ORDER BY number LIMIT 1
    ) IS NULL THEN
        RETURN (SELECT last FROM {state});
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'positions are given in transactions of isolation level READ COMMITTED';
    END IF;
    SELECT * INTO state FROM {state} FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN (SELECT last FROM {state});
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        -- A position that somebody has read must not be given again after a crash.
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    state.at := greatest(state.at, clock_timestamp());
    IF state.next_low IS NOT NULL THEN
        -- A prepared transaction may show under a name that its writer did not have.
        SELECT NOT EXISTS (SELECT {noting} AND (
            virtualtransaction = ANY (state.holders) OR virtualtransaction LIKE '-1/%'
        )) INTO decided;
    END IF;
    WITH moving AS (
        DELETE FROM {outbox} WHERE number = ANY (ARRAY(
            SELECT number FROM {outbox} WHERE number > state.low ORDER BY number LIMIT amount
        )) RETURNING *
    ), fresh AS (
        SELECT DISTINCT ON ({key}) * FROM moving ORDER BY {key}, number DESC
    ), given AS (
        INSERT INTO {positions} (position, {copies}, at)
        SELECT state.last + row_number() OVER (ORDER BY number), {copies}, state.at FROM fresh
        ON CONFLICT ({key}) DO UPDATE SET position = excluded.position, {updates}, at = excluded.at
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM moving), (SELECT max(number) FROM moving),
        (SELECT count(*) FROM given) INTO taken, top, moved;
    state.last := state.last + moved;
    IF decided THEN
        state.low := CASE WHEN taken < amount THEN state.next_low
            ELSE greatest(state.low, least(state.next_low, top)) END;
    END IF;
    IF state.next_low <= state.low THEN
        state.next_low := NULL;
    END IF;
    IF state.next_low IS NULL THEN
        -- Old events have numbers below those that are drawn, of which there may be none yet.
        drawn := coalesce(
            pg_sequence_last_value(pg_get_serial_sequence({outbox_label}, 'number')), 0);
        IF drawn >= state.low + {round} THEN
            state.next_low := drawn;
            SELECT coalesce(array_agg(virtualtransaction), '{{}}') INTO state.holders
                {noting} AND pid IS DISTINCT FROM pg_backend_pid();
        END IF;
    END IF;
    UPDATE {state} SET last = state.last, at = state.at, low = state.low,
        next_low = state.next_low, holders = state.holders;
    RETURN state.last;
END
$sequence$"""

_COMMENT = "COMMENT ON FUNCTION {note}() IS '{version}'"

# Anyone could have a table of their own fire it, and give events other positions.
_PRIVATE = "REVOKE EXECUTE ON FUNCTION {note}() FROM PUBLIC"

_INSTALL = (
    _NOTE,
    _SEQUENCE,
    _COMMENT,
    _PRIVATE,
    """CREATE OR REPLACE TRIGGER {trigger} AFTER INSERT ON {events}
FOR EACH ROW EXECUTE FUNCTION {note}()""",
    "ALTER TABLE {events} ENABLE ALWAYS TRIGGER {trigger}",
)

# Events from before the trigger get numbers below those that it has noted since.
_BACKFILL = (
    """INSERT INTO {outbox} (number, {copies})
SELECT (SELECT coalesce(least(min(number), 0), 0) FROM {outbox})
    - row_number() OVER (ORDER BY {descending}), {originals} FROM {events} AS event
WHERE NOT EXISTS (SELECT FROM {positions} AS known WHERE {known})
    AND NOT EXISTS (SELECT FROM {outbox} AS known WHERE {known})""",
    """INSERT INTO {state} (id, last, at, low) VALUES (1, 0, 'epoch', {lowest})
ON CONFLICT (id) DO UPDATE SET low = {lowest}""",
)

_UNINSTALL = (
    "DROP TRIGGER IF EXISTS {trigger} ON {events}",
    "DROP FUNCTION IF EXISTS {sequence}(integer)",
    "DROP FUNCTION IF EXISTS {note}()",
    "DROP TABLE IF EXISTS {outbox}, {positions}, {state}",
)

_DDL = Ddl(install=_INSTALL, backfill=_BACKFILL, uninstall=_UNINSTALL)

_SCHEMA = text("""
    SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE pg_class.oid = CAST(:table AS regclass)
""")

# A partition has a trigger of its own, which can be disabled there.
_INSTALLED = text("""
    SELECT bool_and(tgenabled = 'A' AND obj_description(tgfoid, 'pg_proc') = :version) AS armed
    FROM pg_trigger WHERE tgname = :trigger AND (tgrelid = CAST(:events AS regclass)
        OR tgrelid IN (SELECT relid FROM pg_partition_tree(CAST(:events AS regclass))))
""")

_IS_PUBLIC = text("""
    SELECT has_function_privilege('public', tgfoid, 'EXECUTE')
    FROM pg_trigger WHERE tgrelid = CAST(:events AS regclass) AND tgname = :trigger
""")

_RIGHTS = text("""
    SELECT has_table_privilege(:positions, 'SELECT') AND has_table_privilege(:state, 'SELECT')
""")

_MAY_NOT_WRITE = text("""
    SELECT current_user WHERE NOT pg_is_in_recovery()
        AND current_setting('default_transaction_read_only')::boolean
""")

_HOLDS = """
    locktype = 'relation' AND mode IN ('RowShareLock', 'RowExclusiveLock') AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND relation = CAST(:state AS regclass) AND pid IS DISTINCT FROM pg_backend_pid()
"""


class Sequenced(SideTableOrdering):
    """Order a PostgreSQL table by positions in a side table."""

    call = "SELECT"
    lateral = True

    def check(self, connection: Connection) -> None:
        """Refuse a table without its trigger, and one whose key is not unique."""
        check_key(connection, self._events)
        refuse_heirs(connection, self._events)
        self._is_replica = bool(connection.scalar(select(func.pg_is_in_recovery())))
        words = self._words(connection)
        if not connection.scalar(_INSTALLED, words):
            raise self._no_trigger_error()
        if not connection.scalar(_RIGHTS, words):
            raise ConfigurationError(
                f"The feed may not read its positions: GRANT SELECT ON {words['positions']}, "
                f"{words['state']}, {words['outbox']} TO its role."
            )

    def warnings(self, connection: Connection) -> list[tuple[str, str, str]]:
        """Warn of a role that gives no positions, and of a trigger's function that anyone may run.

        Earlier installations left that open.
        """
        words, found = self._words(connection), []
        if (role := connection.scalar(_MAY_NOT_WRITE)) is not None:
            sentence = (
                "By default, transactions here are read-only, in which this feed gives no event a "
                "position: unless another process does, consumers get nothing new."
            )
            off = f"ALTER ROLE {quoted(role)} SET default_transaction_read_only = off"
            found.append(("read-only", sentence, off))
        if connection.scalar(_IS_PUBLIC, words):
            sentence = (
                "Anyone in the database may run the trigger's function on a table of their own, "
                "and so give events other positions."
            )
            found.append(("rights", sentence, _PRIVATE.format(**words)))
        return found

    def blockers(self, connection: Connection) -> list[Blocker]:
        """Return the sessions that keep every other session from giving positions."""
        return find_blockers(connection, _HOLDS, {"state": self._words(connection)["state"]})

    def ddl(self, connection: Connection) -> Ddl:
        """Return the statements of the tables, the functions and the trigger."""
        dialect: Any = connection.dialect
        if dialect.server_version_info < OLDEST:
            raise ConfigurationError(
                "The ordering sequenced needs PostgreSQL 14 or later, which can replace a trigger "
                "in place: choose the ordering observed."
            )
        check_key(connection, self._events)
        tables = self._typed_tables(connection, self._schema(connection))
        for name in ("low", "next_low"):
            tables.state.append_column(Column(name, BigInteger))
        tables.state.append_column(Column("holders", ARRAY(Text)))
        created = tables.create(connection, tables.positions, tables.outbox, tables.state)
        return _DDL.fill(self._words(connection), created)

    def _schema(self, connection: Connection) -> str | None:
        # Named in every case: a function has to find it whatever its caller's search path is.
        name = {"table": quoted_name(connection, self._events.table)}
        schema: str | None = connection.scalar(_SCHEMA, name)
        return schema

    def _words(self, connection: Connection) -> dict[str, str]:
        """Return the values for the placeholders of the statements."""
        tables = self._tables
        schema = self._schema(connection)
        label = literal(quoted(schema, tables.outbox.name))
        words = {
            **tables.words(quoted, schema),
            "outbox_label": label,
            "updates": ", ".join(f"{name} = excluded.{name}" for name in tables.copied),
            "lowest": str(-(2**63)),
            "round": str(ROUND),
            "noting": _NOTING.format(outbox_label=label),
        }
        # The digest identifies the installed statements that a feed needs.
        needed = (each for each in _INSTALL if each not in {_COMMENT, _PRIVATE})
        installed = "".join(needed).format(**words)
        return words | {"version": f"zeroeventhub {digest(installed)}"}
