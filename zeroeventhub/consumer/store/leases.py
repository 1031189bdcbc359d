"""Leases: which process of a consumer reads which partition, and until when."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Update, bindparam, or_, select

from zeroeventhub.consumer.steps import Claimed
from zeroeventhub.consumer.store.dead_letters import DeadLetters
from zeroeventhub.consumer.store.tables import Tables, is_row
from zeroeventhub.databases import database_of
from zeroeventhub.databases.statements import UnixTime, insert_ignore, unix_time, upsert
from zeroeventhub.errors import ConfigurationError, StoreUnavailable
from zeroeventhub.protocol import NAME_LENGTH


def fair_share(members: Collection[str], owner: str, partitions: int) -> int:
    """Return how many partitions belong to a member: as many as to any other, or one more."""
    each, left = divmod(partitions, len(members))
    return each + (sorted(members).index(owner) < left)


def divide(
    held: Collection[int], free: Collection[int], most: int
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the free partitions that a process takes, and the held ones that it has to release.

    Both arguments are sorted first, so that a repeated claim finds the same surplus. `most` is the
    number of partitions that belong to the process.
    """
    taken = sorted(free)[: max(0, most - len(held))]
    return frozenset(taken), frozenset(sorted(held)[most:])


LONGEST_CLAIM = 10.0
"""Seconds after which PostgreSQL ends a claim that stalls, as other processes wait for it."""

_LOCK = ""
"""The name in the row that a process locks before it changes leases of a consumer."""


class Leases:
    """Share the partitions of a consumer between its processes.

    A lease ends by the database's clock, unless it is renewed or released before. Its holder may
    read the partition; a process that continues without one is fenced by the cursor's epoch,
    which `CursorStore.enter` raises.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._letters = DeadLetters(tables)

    def claim(
        self,
        connection: Connection,
        consumer: str,
        owner: str,
        wanted: Sequence[int],
        *,
        seconds: float,
        share: bool,
    ) -> Claimed:
        """Renew all leases of a process, and take a fair share of the free ones.

        It waits for other claims, and never for a page that is being applied.

        The transaction is this claim's own. The partitions `wanted` may be read now, and leases
        last for some seconds. A process that does not `share` takes all partitions that are free,
        and does not count as a member.

        Raises:
            ConfigurationError: the name of the process is empty or too long.
            StoreUnavailable: the transaction's snapshot is older than other leases; try again.
        """
        if not 0 < len(owner) <= NAME_LENGTH:
            raise ConfigurationError(f"A process's name has 1 to {NAME_LENGTH} characters.")
        self._lock_leases(connection, consumer)
        now = unix_time(connection)
        members = self._join(connection, consumer, owner, now, seconds) if share else {owner}
        leases = self._read_leases(connection, consumer, wanted)
        held = frozenset(number for number, (holder, _) in leases.items() if holder == owner)
        needed = frozenset(wanted)
        elsewhere = {
            number: (holder, expires_at)
            for number, (holder, expires_at) in leases.items()
            if number in needed and holder not in {None, owner} and expires_at > now
        }
        most = len(wanted)
        if share:
            # Partitions of processes that do not share are not divided among the members.
            apart = sum(holder not in members for holder, _ in elsewhere.values())
            most = fair_share(members, owner, len(wanted) - apart)
        free = needed - held - elsewhere.keys()
        taken, surplus = divide(held & needed, free, most)
        lease = {"owner": owner, "expires_at": now + seconds}
        has = held | taken
        if self._write_leases(connection, consumer, lease, taken, now) != len(has):
            raise StoreUnavailable(
                f"The leases of consumer {consumer!r} have changed since this transaction began: "
                "claim in a transaction of its own, and try again."
            )
        epochs, ended = self._read_cursors(connection, consumer, has)
        return Claimed(
            held=has,
            surplus=surplus,
            elsewhere={number: expires_at for number, (_, expires_at) in elsewhere.items()},
            ended=ended,
            letters=self._letters.partitions_due(connection, consumer),
            epochs=epochs,
        )

    def release(
        self, connection: Connection, consumer: str, owner: str, partitions: Collection[int]
    ) -> None:
        """Release leases of a process, so that other processes may take them at once."""
        self._lock_leases(connection, consumer)
        columns = self._tables.leases.c
        mine = self._update(consumer).where(columns.owner == owner)
        connection.execute(
            mine.where(columns.partition.in_(sorted(partitions))), {"owner": None, "expires_at": 0}
        )

    def leave(self, connection: Connection, consumer: str, owner: str) -> None:
        """Release all leases of a process, and remove it from the members."""
        self._lock_leases(connection, consumer)
        mine = self._update(consumer).where(self._tables.leases.c.owner == owner)
        connection.execute(mine, {"owner": None, "expires_at": 0})
        columns = self._tables.members.c
        connection.execute(
            self._tables.members.delete().where(
                columns.consumer == consumer, columns.owner == owner
            )
        )

    def end(self, connection: Connection, consumer: str) -> None:
        """Delete the leases and the members of a consumer that no process runs, for an operator.

        A process that starts meanwhile waits for this transaction.

        Raises:
            ConfigurationError: a process holds a lease, or shares the partitions.
        """
        self._lock_leases(connection, consumer)
        now = unix_time(connection)
        for table in (self._tables.leases, self._tables.members):
            columns = table.c
            mine = columns.consumer == consumer
            runs = select(columns.owner).where(
                mine, columns.owner != _LOCK, columns.expires_at > now
            )
            if (owner := connection.scalar(runs.limit(1))) is not None:
                raise ConfigurationError(
                    f"Consumer {consumer!r} runs in the process {owner!r}: end it first. A process "
                    "that was killed counts until its lease has run out."
                )
            connection.execute(table.delete().where(mine))

    def is_held(self, connection: Connection, consumer: str, partition: int, owner: str) -> bool:
        """Return whether a process holds a partition's lease now."""
        columns = self._tables.leases.c
        # A locking read, since a snapshot may be older than the loss of the lease.
        query = (
            select(columns.owner)
            .where(
                is_row(self._tables.leases, consumer, partition),
                columns.owner == owner,
                columns.expires_at > UnixTime(),
            )
            .with_for_update(read=True)
        )
        return connection.execute(query).first() is not None

    def _lock_leases(self, connection: Connection, consumer: str) -> None:
        """Lock the leases of a consumer for this transaction.

        A process that is suspended here keeps other processes from renewing their leases.
        """
        database_of(connection).limit_idle(connection, LONGEST_CLAIM)
        # A write, so that SQLite takes its lock, and of one row, so that claims do not deadlock.
        row = {"consumer": consumer, "owner": _LOCK, "expires_at": 0}
        upsert(connection, self._tables.members, row, {"expires_at": 0})

    def _join(
        self, connection: Connection, consumer: str, owner: str, now: float, seconds: float
    ) -> set[str]:
        """Add or renew a member, and delete expired ones; return the names of the rest."""
        members, columns = self._tables.members, self._tables.members.c
        query = select(columns.owner, columns.expires_at).where(
            columns.consumer == consumer, columns.owner != _LOCK
        )
        rows = connection.execute(query).all()
        gone = [row.owner for row in rows if row.expires_at <= now and row.owner != owner]
        if gone:
            connection.execute(
                members.delete().where(columns.consumer == consumer, columns.owner.in_(gone))
            )
        row = {"consumer": consumer, "owner": owner, "expires_at": now + seconds}
        upsert(connection, members, row, {"expires_at": now + seconds})
        return {owner, *(row.owner for row in rows)}.difference(gone)

    def _read_leases(
        self, connection: Connection, consumer: str, wanted: Sequence[int]
    ) -> dict[int, tuple[str | None, float]]:
        """Return the owner and the end of each lease, after inserting missing rows."""
        columns = self._tables.leases.c
        query = select(columns.partition, columns.owner, columns.expires_at).where(
            columns.consumer == consumer
        )
        found = {row.partition: (row.owner, row.expires_at) for row in connection.execute(query)}
        new = {partition: (None, 0.0) for partition in sorted(wanted) if partition not in found}
        rows = [{"consumer": consumer, "partition": number, "expires_at": 0} for number in new]
        insert_ignore(connection, self._tables.leases, rows)
        return found | new

    def _write_leases(
        self,
        connection: Connection,
        consumer: str,
        lease: Mapping[str, Any],
        taken: Collection[int],
        now: float,
    ) -> int:
        """Renew the leases of an owner, and take free ones; return how many it has."""
        columns, update = self._tables.leases.c, self._update(consumer)
        mine = update.where(columns.owner == lease["owner"])
        count = connection.execute(mine, lease).rowcount
        if taken:
            free = or_(columns.owner.is_(None), columns.expires_at <= now)
            one = update.where(columns.partition == bindparam("taken"), free)
            rows = [{"taken": number, **lease} for number in sorted(taken)]
            # One by one, as asyncpg does not count the rows of several.
            count += sum(connection.execute(one, row).rowcount for row in rows)
        return count

    def _update(self, consumer: str) -> Update:
        return self._tables.leases.update().where(self._tables.leases.c.consumer == consumer)

    def _read_cursors(
        self, connection: Connection, consumer: str, held: Collection[int]
    ) -> tuple[dict[int, int], frozenset[int]]:
        """Return the epochs of held cursors, and the partitions that were read to their ends."""
        columns = self._tables.cursors.c
        query = select(columns.partition, columns.epoch, columns.ended).where(
            columns.consumer == consumer, or_(columns.ended, columns.partition.in_(sorted(held)))
        )
        rows = connection.execute(database_of(connection).skip_locked(connection, query)).all()
        epochs = {row.partition: row.epoch for row in rows if row.partition in held}
        return epochs, frozenset(row.partition for row in rows if row.ended)
