"""PostgreSQL without a trigger, a column or a lock: watch who is writing.

Every statement that inserts takes RowExclusiveLock on the table before it draws a number
from the sequence, and keeps it until its transaction has ended and its rows are visible.
So: read the last number drawn, then the transactions that hold that lock. Once all of
these have ended, everything up to the number is decided.
"""

from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, func, select, text

from zeroeventhub.databases.postgresql import quoted_name, time_bound
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.ordering.port import Blocker, Events, Horizon, Ordering, quoted
from zeroeventhub.publisher.ordering.writer_tracker import WriterTracker

# Locks on the table and all that inherit from it, as writers may insert into a partition directly.
_HOLDS = """
    locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND relation IN (
        WITH RECURSIVE tables(id) AS (
            SELECT CAST(:table AS regclass)::oid
            UNION SELECT inhrelid FROM pg_inherits JOIN tables ON inhparent = tables.id
        )
        SELECT id FROM tables
    )
"""
# A prepared transaction is listed as -1/… after a restart, and in some versions at once. Otherwise
# it keeps its writer's virtual id, and the feed waits for it like for any writer.
_WRITERS = text(f"SELECT DISTINCT virtualtransaction FROM pg_locks WHERE {_HOLDS}")  # noqa: S608

_CONTINUE = text("SELECT setval(CAST(:sequence AS regclass), :last)")

# What numbers come from: a server, since its start or its last crash, which resets its statistics,
# the file of a sequence, which TRUNCATE … RESTART IDENTITY replaces, and the table of this name, in
# whose place another one may be put. No time zone changes the text. Before PostgreSQL 15, to ask
# for statistics takes milliseconds. NULL on a standby: a pool may get connections to one at any
# time, by a name or an address that leads to several servers.
_ORIGIN = """CASE WHEN NOT pg_is_in_recovery() THEN
    concat(extract(epoch FROM pg_postmaster_start_time()), '/', CASE
    WHEN CAST(current_setting('server_version_num') AS integer) >= 150000
    THEN extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()) END, '/',
    pg_relation_filenode('{name}'::regclass), '/', '{table}'::regclass::oid) END"""


class SequenceOrdering(Ordering):
    """Order a PostgreSQL table by a column whose default draws from a sequence.

    Attributes:
        holds: the condition on a row of pg_locks that it is the lock of a writer of `:table`.
    """

    holds: str

    def __init__(self, events: Events) -> None:
        super().__init__(events)
        self._names: tuple[str, str] | None = None  # of the sequence and the table
        self._origin: str | None = None
        self.fast_horizon = self.horizon

    def check(self, connection: Connection) -> None:
        """Refuse a table whose numbers do not always rise, or that its writers number."""
        self._names = self._find_names(connection)

    @abstractmethod
    def horizon(self, connection: Connection, seconds: float | None = None) -> Horizon:
        """Return the horizon; `seconds` is that of `last_number`."""

    def _read_anew(self, connection: Connection, seconds: float | None) -> tuple[int, str]:
        """Read the last number after its origin has changed: the table may be another one."""
        self._names = self._find_names(connection)
        number, self._origin = last_number(connection, *self._names, seconds)
        return number, self._origin

    def _find_names(self, connection: Connection) -> tuple[str, str]:
        sequence = find_sequence(connection, self._events)
        return sequence, quoted_name(connection, self._events.table)

    def continue_after(self, connection: Connection, position: int) -> None:
        """Set the sequence, which no rollback undoes."""
        sequence = find_sequence(connection, self._events)
        connection.execute(_CONTINUE, {"sequence": sequence, "last": position})

    def blockers(self, connection: Connection) -> list[Blocker]:
        """Return the open write transactions of the table."""
        return find_blockers(
            connection, self.holds, {"table": quoted_name(connection, self._events.table)}
        )


class Observed(SequenceOrdering):
    """Order the table by observing the writers that hold a lock on it."""

    holds = _HOLDS

    def __init__(self, events: Events) -> None:
        super().__init__(events)
        self._tracker = WriterTracker()

    def horizon(self, connection: Connection, seconds: float | None = None) -> Horizon:
        """Observe the writers once, and return the highest number known to be decided."""
        began = self._tracker.begin()
        sequence, table = self._names or self._find_names(connection)
        number, origin = last_number(connection, sequence, table, seconds)
        if (decided := self._tracker.decided(origin, number)) is not None:
            return decided
        if origin != self._origin:
            number, origin = self._read_anew(connection, seconds)
        writers = connection.scalars(_WRITERS, {"table": table}).all()
        return self._tracker.horizon(began, origin, number, frozenset(writers))


# The sequence that a column draws from by itself: by its default, or as an identity (i).
_ITS_SEQUENCE = """
    JOIN pg_depend AS link ON
        (link.classid = 'pg_class'::regclass AND link.refclassid = 'pg_class'::regclass
            AND link.refobjid = attribute.attrelid AND link.refobjsubid = attribute.attnum
            AND link.deptype = 'i')
        OR (link.classid = 'pg_attrdef'::regclass AND link.refclassid = 'pg_class'::regclass
            AND link.objid = (SELECT oid FROM pg_attrdef
                              WHERE adrelid = attribute.attrelid AND adnum = attribute.attnum))
    JOIN pg_class AS sequence ON sequence.relkind = 'S'
        AND sequence.oid IN (link.objid, link.refobjid)
"""
_SEQUENCE_OF = text(f"""
    SELECT format('%I.%I', space.nspname, sequence.relname) AS quoted,
           facts.seqincrement AS increment, facts.seqcache AS cache, facts.seqcycle AS cycles,
           has_sequence_privilege(sequence.oid, 'SELECT') AS readable,
           attribute.attnotnull AND (attribute.attidentity = 'a' OR EXISTS (
               SELECT FROM pg_index
               WHERE indrelid = attribute.attrelid AND indisunique AND indisvalid
                   AND indpred IS NULL AND indnkeyatts = 1 AND indkey[0] = attribute.attnum
           )) AS identifies
    FROM pg_attribute AS attribute {_ITS_SEQUENCE}
    JOIN pg_sequence AS facts ON facts.seqrelid = sequence.oid
    JOIN pg_namespace AS space ON space.oid = sequence.relnamespace
    WHERE attribute.attrelid = CAST(:table AS regclass) AND attribute.attname = :column
""")  # noqa: S608 - nothing of it comes from outside

_HEIRS = """
    WITH RECURSIVE heirs(id) AS (
        SELECT inhrelid FROM pg_inherits WHERE inhparent = CAST(:table AS regclass)
        UNION SELECT inhrelid FROM pg_inherits JOIN heirs ON inhparent = heirs.id
    )
"""

# A table that inherits from it, and draws the numbers of its rows from another sequence. Partitions
# may have such a default as well, of the time before they were attached.
_OTHERWISE_NUMBERED = text(f"""
    {_HEIRS} SELECT CAST(CAST(heirs.id AS regclass) AS text) FROM heirs
    JOIN pg_class AS heir ON heir.oid = heirs.id AND NOT heir.relispartition
    JOIN pg_attribute AS attribute ON attribute.attrelid = heirs.id {_ITS_SEQUENCE}
    WHERE attribute.attname = :column AND sequence.oid <> CAST(:sequence AS regclass) LIMIT 1
""")  # noqa: S608 - nothing of it comes from outside

_FOREIGN = text(f"""
    {_HEIRS} SELECT CAST(CAST(heirs.id AS regclass) AS text) FROM heirs
    JOIN pg_class AS heir ON heir.oid = heirs.id AND heir.relkind = 'f' LIMIT 1
""")  # noqa: S608 - nothing of it comes from outside

_KIND = text("""
    SELECT relkind IN ('r', 'p') AS is_table, relpersistence = 'p' AS is_logged,
        (SELECT min(inhparent::regclass::text) FROM pg_inherits
         WHERE inhrelid = pg_class.oid) AS parent
    FROM pg_class WHERE oid = to_regclass(:table)
""")

# The partitions of a table inherit its row triggers; tables that inherit by INHERITS do not.
_HAS_HEIRS = text("""
    SELECT EXISTS (
        SELECT FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent AND relkind = 'r'
        WHERE inhparent = CAST(:table AS regclass)
    )
""")


def last_number(
    connection: Connection, sequence: str, table: str, seconds: float | None = None
) -> tuple[int, str]:
    """Read the last number drawn from a sequence, committed or not, and what it comes from.

    The sequence and the table that draws from it are quoted names. In autocommit mode, it waits so
    many seconds for a lock, such as that of a transaction that alters the sequence.
    """
    number = None
    unformatted = {"no_parameters": True}
    name = sequence.replace("'", "''")
    origin = _ORIGIN.format(name=name, table=table.replace("'", "''"))
    if seconds is not None:
        # One statement. PostgreSQL evaluates its condition, and so sets the timeout, before it may
        # have to wait.
        number, found = connection.exec_driver_sql(
            f"SELECT CASE WHEN {time_bound('lock_timeout', seconds)} IS NOT NULL "
            f"THEN pg_sequence_last_value('{name}'::regclass) END, {origin}",
            execution_options=unformatted,
        ).one()
    if number is None:  # as it is before the first number is drawn
        # TRUNCATE locks a table before its sequence, and so does this statement, or the two could
        # deadlock. ONLY keeps the planner from the table's partitions.
        locked = f"SELECT FROM ONLY {table} LIMIT 0"
        number, found = connection.exec_driver_sql(
            "SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END, "  # noqa: S608 - the names are quoted
            f"{origin} FROM ({locked}) AS locked RIGHT JOIN {sequence} ON true",
            execution_options=unformatted,
        ).one()
    if found is None:
        raise ConfigurationError(
            "This database is a standby, which cannot tell who is writing on its primary: "
            "let the feed read from the primary."
        )
    return int(number), found


def find_sequence(connection: Connection, events: Events) -> str:
    """Return the quoted name of the sequence that the column of positions draws from.

    Raises:
        ConfigurationError: the column has no sequence, the feed may not read it, or its numbers
            do not rise in the order of writing; the message says what to change.
    """
    _check_table(connection, events)
    position = events.position
    named = {"table": quoted_name(connection, events.table), "column": position.name}
    found = connection.execute(_SEQUENCE_OF, named).first()
    if found is None:
        raise ConfigurationError(
            f"{position} draws from no sequence: its order is not the order of writing. "
            "Declare it GENERATED ALWAYS AS IDENTITY."
        )
    if not found.identifies:
        raise ConfigurationError(
            f"{position} may be NULL or the same in two rows: make it the primary key, or "
            "NOT NULL and UNIQUE."
        )
    if found.increment < 1 or found.cycles or found.cache != 1:
        raise ConfigurationError(
            f"Sequence {found.quoted} of {position} does not hand out rising numbers "
            f"one by one: ALTER SEQUENCE {found.quoted} INCREMENT 1 CACHE 1 NO CYCLE."
        )
    if not found.readable:
        raise ConfigurationError(
            f"The feed may not read sequence {found.quoted}: GRANT SELECT ON SEQUENCE "
            f"{found.quoted} TO its role."
        )
    heir = connection.scalar(_OTHERWISE_NUMBERED, named | {"sequence": found.quoted})
    if heir is not None:
        raise ConfigurationError(
            f"Table {heir} inherits from {events.table.fullname!r}, but draws {position.name!r} "
            "from a sequence of its own, and the feed would skip its events: ALTER TABLE "
            f"{heir} ALTER {quoted(position.name)} SET DEFAULT nextval('{found.quoted}')."
        )
    if (foreign := connection.scalar(_FOREIGN, named)) is not None:
        raise ConfigurationError(
            f"{foreign}, a part of {events.table.fullname!r}, is a foreign table: its server shows "
            "one transaction of the feed what was committed before its first statement, and the "
            "feed would skip later events. Copy its rows into a table of this database."
        )
    events.check_lowest(connection)
    highest = connection.scalar(select(func.max(position)))
    # Read after the rows: by now the sequence has drawn every number in the table, or never did.
    drawn, _ = last_number(connection, found.quoted, named["table"])
    if drawn < 0:
        raise ConfigurationError(
            f"Sequence {found.quoted} of {position} stands at {drawn}; the positions of a feed "
            f"start at 1: ALTER SEQUENCE {found.quoted} START 1 RESTART 1."
        )
    if highest is not None and highest > drawn:
        raise ConfigurationError(
            f"{position} holds {highest}, but its sequence stands at {drawn}: writers gave some "
            f"rows their numbers. Let the sequence continue after them: "
            f"SELECT setval('{found.quoted}', {highest})."
        )
    return str(found.quoted)


def _check_table(connection: Connection, events: Events) -> None:
    fullname = events.table.fullname
    kind = connection.execute(_KIND, {"table": quoted_name(connection, events.table)}).first()
    if kind is None:
        raise ConfigurationError(f"There is no table {fullname!r}.")
    if not kind.is_table:
        raise ConfigurationError(
            f"{fullname!r} is not a table, but a view or the like: publish the table that is "
            "written to, and choose its columns by data=…"
        )
    if not kind.is_logged:
        raise ConfigurationError(
            f"{fullname!r} has no log: a crash empties it and lets its numbers start "
            f"again. ALTER TABLE {fullname} SET LOGGED."
        )
    if kind.parent is not None:
        raise ConfigurationError(
            f"{fullname!r} is a partition or child of {kind.parent}, whose "
            f"writers draw numbers before they reach it: publish {kind.parent}."
        )


def refuse_heirs(connection: Connection, events: Events) -> None:
    """Refuse a table from which other tables inherit, unless they are its partitions."""
    if connection.scalar(_HAS_HEIRS, {"table": quoted_name(connection, events.table)}):
        raise ConfigurationError(
            f"Other tables inherit from {events.table.fullname!r}, and what is written to them "
            "does not pass its triggers: choose the ordering observed."
        )


# A prepared transaction has no process. It is found by its lock on its own transaction id. Ages are
# in seconds, as a session may print intervals in a style that drivers do not read.
_BLOCKERS = """
    SELECT activity.pid, coalesce(activity.usename, prepared.owner, '') AS "user",
           coalesce(prepared.gid, activity.application_name, '') AS application,
           extract(epoch FROM
               clock_timestamp() - coalesce(activity.xact_start, prepared.prepared)) AS age,
           extract(epoch FROM clock_timestamp() - activity.query_start) AS query_age
    FROM (SELECT DISTINCT pid, virtualtransaction FROM pg_locks WHERE {holds}) AS holder
    LEFT JOIN pg_stat_activity AS activity ON activity.pid = holder.pid
    LEFT JOIN LATERAL (
        SELECT xact.* FROM pg_locks AS own JOIN pg_prepared_xacts AS xact
            ON own.transactionid = xact.transaction
        WHERE own.locktype = 'transactionid' AND own.pid IS NULL AND holder.pid IS NULL
            AND own.virtualtransaction = holder.virtualtransaction
    ) AS prepared ON true
    ORDER BY age DESC NULLS LAST
"""


def find_blockers(connection: Connection, holds: str, values: Mapping[str, Any]) -> list[Blocker]:
    """Return the transactions whose rows of pg_locks meet a condition, the oldest first."""
    rows = connection.execute(text(_BLOCKERS.format(holds=holds)), values)
    return [
        Blocker(
            row.pid,
            row.user,
            row.application,
            timedelta(seconds=float(row.age or 0)),
            None if row.query_age is None else timedelta(seconds=float(row.query_age)),
        )
        for row in rows
    ]
