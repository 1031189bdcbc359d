"""PostgreSQL with a gate: every writer leaves a mark before it draws its first number.

A trigger runs before an INSERT evaluates anything. Once in a transaction it reads the last
number drawn, L, and takes a *shared* advisory lock whose key holds L; shared locks never wait
for each other, and PostgreSQL releases the lock when the transaction ends. All numbers of that
transaction are above L. So: read the last number drawn, S, and then the smallest mark among the
locks that are held; everything at or below both is decided.

A second trigger, the guard, refuses rows whose number was drawn before the gate's trigger ran.
"""

from collections.abc import Iterable

from sqlalchemy import Connection, text

from zeroeventhub.databases.port import literal
from zeroeventhub.databases.postgresql import quoted_name
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.ordering.port import Ddl, Horizon, digest, quoted
from zeroeventhub.publisher.ordering.postgresql_observed import (
    SequenceOrdering,
    find_sequence,
    last_number,
    refuse_heirs,
)

VERSION = "zeroeventhub gate, version 2"

_HOLDS = """
    locktype = 'advisory' AND mode = 'ShareLock' AND granted AND objsubid = 2
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = CAST(:table AS regclass)
"""
_MARKS = text(f"SELECT DISTINCT objid::bigint FROM pg_locks WHERE {_HOLDS}")  # noqa: S608

_MARK_BITS = 32
"""How many bits of a mark fit into a lock's key."""

_AHEAD = 1 << 28
"""By how many numbers a mark may be above the last number that was read before it."""

# A setting of the transaction records that it has passed the gate; rolling back to a savepoint
# undoes the setting and releases the lock together.
#
# Every writing transaction pays for each line. PL/pgSQL evaluates an expression of functions alone
# without a query, and RETURN NEW, which is NULL here, without an expression. A mark below the last
# number is safe: a writer that draws in between draws above it. The gate runs with its owner's
# rights, as writers may lack those on the sequence, and looks up no name by search_path: every
# function, operator and type has its schema, or is a keyword.
_INSTALL = (
    """CREATE OR REPLACE FUNCTION {function}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER AS $gate$
DECLARE
    mark bigint;
BEGIN
    IF pg_catalog.current_setting('{setting}', true) OPERATOR(pg_catalog.<>) '' THEN
        RETURN NEW;
    END IF;
    mark := pg_catalog.pg_sequence_last_value({sequence_label}::pg_catalog.regclass);
    WHILE pg_catalog.pg_advisory_xact_lock_shared(tg_relid::int,
            (mark OPERATOR(pg_catalog.&) 4294967295)::pg_catalog.oid::int) IS NULL
        OR pg_catalog.set_config('{setting}', mark::pg_catalog.text, true) IS NULL
    LOOP
        -- No lock was taken: the mark is NULL, for no number was drawn since the sequence was set.
        SELECT CASE WHEN is_called THEN last_value ELSE last_value OPERATOR(pg_catalog.-) 1 END
            INTO STRICT mark FROM {sequence};
    END LOOP;
    RETURN NEW;
END
$gate$""",
    "COMMENT ON FUNCTION {function}() IS '" + VERSION + "'",
    """CREATE OR REPLACE FUNCTION {guard}() RETURNS trigger
LANGUAGE plpgsql AS $guard$
BEGIN
    IF NEW.{column} OPERATOR(pg_catalog.>)
            NULLIF(pg_catalog.current_setting('{setting}', true), '')::bigint THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION USING
        ERRCODE = 'integrity_constraint_violation',
        MESSAGE = 'position ' || coalesce(NEW.{column}::pg_catalog.text, 'NULL')
            || ' of {label} was drawn before this INSERT began',
        HINT = 'Let the column draw its own number: leave {column_label} out of the INSERT.';
END
$guard$""",
    "DROP TRIGGER IF EXISTS zeroeventhub_gate ON {table}",
    """CREATE TRIGGER zeroeventhub_gate BEFORE INSERT ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION {function}()""",
    "ALTER TABLE {table} ENABLE ALWAYS TRIGGER zeroeventhub_gate",
    "DROP TRIGGER IF EXISTS zeroeventhub_guard ON {table}",
    """CREATE TRIGGER zeroeventhub_guard BEFORE INSERT ON {table}
FOR EACH ROW EXECUTE FUNCTION {guard}()""",
    "ALTER TABLE {table} ENABLE ALWAYS TRIGGER zeroeventhub_guard",
)
_UNINSTALL = (
    "DROP TRIGGER IF EXISTS zeroeventhub_guard ON {table}",
    "DROP TRIGGER IF EXISTS zeroeventhub_gate ON {table}",
    "DROP FUNCTION IF EXISTS {guard}()",
    "DROP FUNCTION IF EXISTS {function}()",
)

_DDL = Ddl(install=_INSTALL, uninstall=_UNINSTALL)

# A partition has a guard of its own, which can be disabled there. A gate with the numbers of
# another sequence would hold back everything until no writer is open.
_INSTALLED = text("""
    SELECT count(*) FILTER (WHERE tgrelid = CAST(:table AS regclass)) = 2
               AND bool_and(tgenabled = 'A') AND bool_or(strpos(prosrc, :sequence) > 0) AS armed,
           max(obj_description(tgfoid, 'pg_proc')) AS version
    FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid
    WHERE tgname IN ('zeroeventhub_gate', 'zeroeventhub_guard') AND (
        tgrelid = CAST(:table AS regclass)
        OR tgrelid IN (SELECT relid FROM pg_partition_tree(CAST(:table AS regclass)))
    )
""")


class Gated(SequenceOrdering):
    """Order a PostgreSQL table by a column whose default draws from a sequence, through a gate."""

    holds = _HOLDS
    unrestorable = (
        "The gate refuses rows with the positions that they had: restore the table without its "
        "triggers, by the ordering observed, and install them afterwards."
    )

    def check(self, connection: Connection) -> None:
        """Refuse a table without its gate, and one whose numbers do not always rise."""
        sequence, table = self._names = self._find_names(connection)
        values = {"table": table, "sequence": literal(sequence)}
        armed, version = connection.execute(_INSTALLED, values).one()
        refuse_heirs(connection, self._events)
        if not armed or version != VERSION:
            raise ConfigurationError(
                f"Table {self._events.table.fullname!r} has no gate of this version: install it, "
                "by the statements that `zeroeventhub ddl --ordering gated` prints, or choose the "
                "ordering observed, which needs none."
            )

    def horizon(self, connection: Connection, seconds: float | None = None) -> Horizon:
        """Return the highest number below the mark of every writer."""
        sequence, table = self._names or self._find_names(connection)
        number, origin = last_number(connection, sequence, table, seconds)
        if origin != self._origin:
            number, _ = self._read_anew(connection, seconds)
        # In this order: a writer that arrives in between draws only numbers above this one.
        marks = connection.scalars(_MARKS, {"table": table}).all()
        return Horizon(settled=lowest(number, marks), highest=number)

    def ddl(self, connection: Connection) -> Ddl:
        """Return the statements of the gate and its guard."""
        sequence, events = find_sequence(connection, self._events), self._events
        preparer = connection.dialect.identifier_preparer
        table = quoted_name(connection, events.table)
        schema = events.schema(connection)
        # By a digest, as PostgreSQL cuts names at 63 bytes; an oid would differ after a restore.
        short = digest(table)[:12]
        prefix = f"{preparer.quote_schema(schema)}." if schema else ""
        words = {
            "function": f"{prefix}zeroeventhub_gate_{short}",
            "guard": f"{prefix}zeroeventhub_guard_{short}",
            "setting": f"zeroeventhub.gate_{short}",
            "sequence": sequence,
            "sequence_label": literal(sequence),
            "table": table,
            "label": events.table.name.replace("'", "''"),
            "column": quoted(events.position.name),
            "column_label": events.position.name.replace("'", "''"),
        }
        return _DDL.fill(words)


def lowest(number: int, marks: Iterable[int]) -> int:
    """Return the last number drawn, or the lowest of the writers' marks if that is smaller.

    A lock's key holds the low bits of a mark. A mark lies below the last number, or a little above
    it if the writer came after that was read: the sequence may be set forward beside open writers.
    """
    span = 1 << _MARK_BITS
    below = ((number - mark) % span for mark in marks)
    return min((number, *(number - gap for gap in below if gap < span - _AHEAD)))
