"""PostgreSQL without a trigger, a column or a lock: watch who is writing.

Every statement that inserts takes RowExclusiveLock on the table before it draws a number
from the sequence, and keeps it until its transaction has ended and its rows are visible.
So: read the last number drawn, then read who holds that lock. Once all of those have
ended, everything up to the number is decided.
"""

from collections.abc import Callable
from functools import partial

from sqlalchemy import Connection, text

from zeroeventhub.publisher.ordering.port import Blocker, Ddl, Events, Horizon, Source
from zeroeventhub.publisher.ordering.postgresql.sequence import Sequence, find_sequence, quoted_name
from zeroeventhub.publisher.ordering.postgresql.writers import find_blockers
from zeroeventhub.publisher.ordering.rounds import Rounds
from zeroeventhub.publisher.ordering.server_name import server_name

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
# A prepared transaction shows as -1/… after a restart, and in some versions at once. Elsewhere it
# keeps the name that its writer had, and is waited for like any writer.
_WRITERS = text(f"SELECT DISTINCT virtualtransaction FROM pg_locks WHERE {_HOLDS}")  # noqa: S608


_STARTED = text("SELECT CAST(pg_postmaster_start_time() AS text)")


class Observed:
    """Order a PostgreSQL table by a column whose default draws from a sequence.

    Args:
        events: the table.
    """

    def __init__(self, events: Events) -> None:
        self.source = Source.of(events)
        self._events = events
        self._sequence: Sequence | None = None
        self._rounds = Rounds()

    def check(self, connection: Connection) -> None:
        """Refuse a table whose numbers do not rise, or come from somewhere else."""
        self._sequence = find_sequence(connection, self._events)

    def step(self, connection: Connection) -> None:
        """Return nothing: this ordering only looks."""

    def horizon(self, connection: Connection) -> Horizon:
        """Observe the writers once, and return the highest number known to be decided."""
        return self._observe(connection, Sequence.last_number)

    def glance(self, connection: Connection, seconds: float) -> Horizon:
        """Return the same in passing; see `Glancing`."""
        return self._observe(connection, partial(Sequence.last_number_in_passing, seconds=seconds))

    def _observe(
        self, connection: Connection, last_number: Callable[[Sequence, Connection], int]
    ) -> Horizon:
        sequence = self._sequence or find_sequence(connection, self._events)
        began = self._rounds.begin(server_name(connection, _STARTED))
        number = last_number(sequence, connection)
        if (decided := self._rounds.decided(began, number)) is not None:
            return decided
        name = {"table": quoted_name(connection, self._events.table)}
        writers = frozenset(connection.scalars(_WRITERS, name).all())
        return self._rounds.horizon(began, number, writers)

    def blockers(self, connection: Connection) -> list[Blocker]:
        """Name everybody who is writing to the table."""
        name = {"table": quoted_name(connection, self._events.table)}
        return find_blockers(connection, _HOLDS, name)

    def ddl(self, connection: Connection) -> Ddl:
        """Return nothing: this ordering only looks."""
        self.check(connection)
        return Ddl()
