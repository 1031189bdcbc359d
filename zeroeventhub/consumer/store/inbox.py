"""The inbox: ids of applied events, for feeds that may publish an event twice."""

from collections.abc import Sequence

from sqlalchemy import Connection, select

from zeroeventhub.consumer.store.dead_letters import digest
from zeroeventhub.consumer.store.tables import Tables
from zeroeventhub.databases.statements import insert_ignore, unix_time
from zeroeventhub.errors import StoreUnavailable

_DAY = 86400.0
_AT_ONCE = 1000


class Inbox:
    """Remember which events a consumer has applied, in all partitions, by digests of their ids."""

    def __init__(self, tables: Tables) -> None:
        self._table = tables.inbox

    def unseen(
        self, connection: Connection, consumer: str, partition: int, ids: Sequence[str]
    ) -> set[str]:
        """Store ids of events, and return those that were not stored before.

        Raises:
            StoreUnavailable: another partition stored one of them at the same moment.
        """
        by_digest = {digest(name): name for name in ids}
        digests = sorted(by_digest)
        columns = self._table.c
        seen: set[str] = set()
        for start in range(0, len(digests), _AT_ONCE):
            query = select(columns.digest).where(
                columns.consumer == consumer, columns.digest.in_(digests[start : start + _AT_ONCE])
            )
            seen.update(connection.scalars(query))
        now = unix_time(connection)
        # In the same order everywhere, so that two transactions do not deadlock.
        unseen = [number for number in digests if number not in seen]
        row = {"consumer": consumer, "partition": partition, "seen_at": now}
        rows = [{"digest": number, **row} for number in unseen]
        if insert_ignore(connection, self._table, rows) != len(rows):
            raise StoreUnavailable(
                f"Another partition brought events of partition {partition} at the same moment: "
                "roll back and try again; the inbox then has them."
            )
        return {by_digest[number] for number in unseen}

    def prune(self, connection: Connection, consumer: str, days: float) -> int:
        """Delete ids that are older than a number of days; return how many."""
        columns = self._table.c
        oldest = unix_time(connection) - days * _DAY
        return connection.execute(
            self._table.delete().where(columns.consumer == consumer, columns.seen_at < oldest)
        ).rowcount
