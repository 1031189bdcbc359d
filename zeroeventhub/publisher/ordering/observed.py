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

from sqlalchemy import ColumnElement, Connection, Table, text

from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.ordering.port import Blocker, Ddl, Horizon
from zeroeventhub.publisher.ordering.sequence import Sequence, find_sequence, quoted_name
from zeroeventhub.publisher.ordering.writers import find_blockers

__all__ = ["Observed"]

# Locks on the table and everything that inherits from it: a partition may be written to directly.
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
_WRITERS = text(f"SELECT DISTINCT virtualtransaction FROM pg_locks WHERE {_HOLDS}")  # noqa: S608

_PREPARED = "-1/"
"""How a prepared transaction's lock shows after a restart, and in some versions at once: under
a name other than its writer had. Elsewhere it keeps the name, and is waited for like any writer."""


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
        self._sequence: Sequence | None = None
        self._ticks = count(1)
        self._lock = Lock()
        self._settled: _Round | None = None
        self._open: dict[frozenset[str], _Round] = {}

    def check(self, connection: Connection) -> None:
        """Refuse a table whose numbers do not rise, or come from somewhere else."""
        self._sequence = find_sequence(connection, self._table, self._position)

    def horizon(self, connection: Connection) -> Horizon:
        """Observe the writers once, and return the highest number known to be decided."""
        sequence = self._sequence or find_sequence(connection, self._table, self._position)
        began = next(self._ticks)
        number = sequence.last_number(connection)
        name = {"table": quoted_name(connection, self._table)}
        writers = frozenset(connection.scalars(_WRITERS, name).all())
        with self._lock:
            settled = self._settle(began, number, writers)
        if settled is None:
            raise Unavailable(
                "The feed has just started and waits for open transactions to end before it "
                "knows how far it may be read.",
                retry_after=1,
            )
        return Horizon(settled=settled, highest=max(number, settled))

    def blockers(self, connection: Connection) -> list[Blocker]:
        """Name everybody who is writing to the table."""
        name = {"table": quoted_name(connection, self._table)}
        return find_blockers(connection, _HOLDS, name)

    def ddl(self, connection: Connection) -> Ddl:
        """Return nothing: this ordering only looks."""
        self.check(connection)
        return Ddl()

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
