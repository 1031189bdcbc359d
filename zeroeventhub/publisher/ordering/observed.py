"""PostgreSQL without a trigger, a column or a lock: watch who is writing.

Every statement that inserts takes RowExclusiveLock on the table before it draws a number
from the sequence, and keeps it until its transaction has ended and its rows are visible.
So: read the last number drawn, then read who holds that lock. Once all of those have
ended, everything up to the number is decided, whoever has come to write since.
"""

from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Table,
    column,
    func,
    inspect,
    select,
    table,
    text,
)

from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.publisher.ordering.port import Horizon

__all__ = ["Observed"]

# The sequence that a column draws from by itself: by its default, or as an identity (i).
_SEQUENCE_OF = text("""
    SELECT space.nspname AS schema, sequence.relname AS name,
           format('%I.%I', space.nspname, sequence.relname) AS quoted,
           (SELECT min(inhparent::regclass::text) FROM pg_inherits
            WHERE inhrelid = attribute.attrelid) AS parent,
           facts.seqincrement AS increment, facts.seqcache AS cache, facts.seqcycle AS cycles,
           has_sequence_privilege(sequence.oid, 'SELECT') AS readable,
           attribute.attnotnull AND (attribute.attidentity = 'a' OR EXISTS (
               SELECT FROM pg_index
               WHERE indrelid = attribute.attrelid AND indisunique AND indisvalid
                   AND indpred IS NULL AND indnkeyatts = 1 AND indkey[0] = attribute.attnum
           )) AS identifies
    FROM pg_attribute AS attribute
    JOIN pg_depend AS link ON
        (link.classid = 'pg_class'::regclass AND link.refclassid = 'pg_class'::regclass
            AND link.refobjid = attribute.attrelid AND link.refobjsubid = attribute.attnum
            AND link.deptype = 'i')
        OR (link.classid = 'pg_attrdef'::regclass AND link.refclassid = 'pg_class'::regclass
            AND link.objid = (SELECT oid FROM pg_attrdef
                              WHERE adrelid = attribute.attrelid AND adnum = attribute.attnum))
    JOIN pg_class AS sequence ON sequence.relkind = 'S'
        AND sequence.oid IN (link.objid, link.refobjid)
    JOIN pg_sequence AS facts ON facts.seqrelid = sequence.oid
    JOIN pg_namespace AS space ON space.oid = sequence.relnamespace
    WHERE attribute.attrelid = CAST(:table AS regclass) AND attribute.attname = :column
""")

# The table and everything that inherits from it: a partition may be written to directly.
_WRITERS = text("""
    WITH RECURSIVE tables(id) AS (
        SELECT CAST(:table AS regclass)::oid
        UNION SELECT inhrelid FROM pg_inherits JOIN tables ON inhparent = tables.id
    )
    SELECT DISTINCT virtualtransaction
    FROM pg_locks JOIN tables ON relation = tables.id
    WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
""")

_PREPARED = "-1/"
"""How a prepared transaction's lock shows: under a name other than its writer had."""


@dataclass
class _Round:
    """A number that had been drawn, and the moment by which its writers had been read."""

    number: int
    read_by: int


class Observed:
    """Order a PostgreSQL table by a column whose default draws from a sequence.

    Args:
        events: the table.
        position: its column of positions.
    """

    def __init__(self, events: Table, position: ColumnElement[Any]) -> None:
        self._table = events
        self._position = position
        self._last_value: Any = None
        self._ticks = count(1)
        self._lock = Lock()
        self._settled: _Round | None = None
        self._open: dict[frozenset[str], _Round] = {}

    def check(self, connection: Connection) -> None:
        """Refuse a table whose numbers do not rise, or come from somewhere else."""
        schema = connection.schema_for_object(self._table)
        if not inspect(connection).has_table(self._table.name, schema=schema):
            raise ConfigurationError(f"There is no table {self._table.fullname!r}.")
        if connection.scalar(select(func.pg_is_in_recovery())):
            raise ConfigurationError(
                "This database is a standby, which cannot tell who is writing on its primary: "
                "let the feed read from the primary."
            )
        found = connection.execute(
            _SEQUENCE_OF, {"table": self._quoted(connection), "column": self._position.name}
        ).first()
        if found is None:
            raise ConfigurationError(
                f"{self._position} draws from no sequence: its order is not the order of writing. "
                "Declare it GENERATED ALWAYS AS IDENTITY."
            )
        if found.parent is not None:
            raise ConfigurationError(
                f"{self._table.fullname!r} is a partition or child of {found.parent}, whose "
                f"writers draw numbers before they reach it: publish {found.parent}."
            )
        if not found.identifies:
            raise ConfigurationError(
                f"{self._position} may be NULL or stand in two rows: make it the primary key, or "
                "NOT NULL and UNIQUE."
            )
        if found.increment < 1 or found.cycles or found.cache != 1:
            raise ConfigurationError(
                f"Sequence {found.quoted} of {self._position} does not hand out rising numbers "
                f"one by one: ALTER SEQUENCE {found.quoted} INCREMENT 1 CACHE 1 NO CYCLE."
            )
        if not found.readable:
            raise ConfigurationError(
                f"The feed may not read sequence {found.quoted}: GRANT SELECT ON SEQUENCE "
                f"{found.quoted} TO its role."
            )
        sequence = table(
            found.name,
            column("last_value", BigInteger),
            column("is_called", Boolean),
            schema=found.schema,
        )
        self._last_value = select(sequence.c.last_value, sequence.c.is_called)
        self._check_numbers(connection, found.quoted)

    def _check_numbers(self, connection: Connection, sequence: str) -> None:
        lowest, highest = connection.execute(
            select(func.min(self._position), func.max(self._position))
        ).one()
        if lowest is not None and lowest < 1:
            raise ConfigurationError(
                f"{self._position} holds {lowest}; the positions of a feed start at 1."
            )
        # Read behind the rows: what is there has been drawn by now, or was never drawn.
        drawn = self._last_number(connection)
        if highest is not None and highest > drawn:
            raise ConfigurationError(
                f"{self._position} holds {highest}, but its sequence stands at {drawn}: rows were "
                f"written with numbers of their own. Let it go on behind them: "
                f"SELECT setval('{sequence}', {highest})."
            )

    def horizon(self, connection: Connection) -> Horizon:
        """Observe the writers once, and return the highest number known to be decided."""
        began = next(self._ticks)
        number = self._last_number(connection)
        writers = frozenset(connection.scalars(_WRITERS, {"table": self._quoted(connection)}).all())
        with self._lock:
            settled = self._settle(began, number, writers)
        if settled is None:
            raise Unavailable(
                "The feed has just started and waits for open transactions to end before it "
                "knows how far it may be read.",
                retry_after=1,
            )
        return Horizon(settled=settled, highest=max(number, settled))

    def _last_number(self, connection: Connection) -> int:
        """Read the last number that the sequence has handed out."""
        last, is_called = connection.execute(self._last_value).one()
        return int(last if is_called else last - 1)

    def _settle(self, began: int, number: int, writers: frozenset[str]) -> int | None:
        """Judge the open rounds by a new reading of the writers, and open another.

        Readers observe side by side. Who was not yet writing when a reading was taken is not
        gone: only a reading that began after a round was read says anything about it.
        """
        read_by = next(self._ticks)
        earlier = [*self._open.values(), *filter(None, [self._settled])]
        if any(began > round_.read_by and number < round_.number for round_ in earlier):
            # The sequence was set back, by TRUNCATE … RESTART IDENTITY or a restored backup.
            self._settled = None
            self._open.clear()
        prepared = {writer for writer in writers if writer.startswith(_PREPARED)}
        judged: dict[frozenset[str], _Round] = {}
        for holders, round_ in [*self._open.items(), (writers, _Round(number, read_by))]:
            left = holders & writers if began > round_.read_by else holders
            if any(not holder.startswith(_PREPARED) for holder in holders - left):
                # One of those who left may have become any of the prepared transactions. They
                # were read just now, so a reading from before says nothing about them.
                left |= prepared
                round_ = _Round(round_.number, read_by)  # noqa: PLW2901 - the same round, later
            if left not in judged or judged[left].number < round_.number:
                judged[left] = round_
        decided = judged.pop(frozenset(), None)
        if decided and (self._settled is None or decided.number > self._settled.number):
            self._settled = decided
        self._open = judged
        return None if self._settled is None else self._settled.number

    def _quoted(self, connection: Connection) -> str:
        """Name the table as `regclass` reads it, in the schema that queries will find it in."""
        names = (connection.schema_for_object(self._table), self._table.name)
        return ".".join('"{}"'.format(name.replace('"', '""')) for name in names if name)
