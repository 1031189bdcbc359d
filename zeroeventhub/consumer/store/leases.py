"""Which process of a consumer reads which partition, and until when."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Update, bindparam, or_, select

from zeroeventhub.consumer.steps import Claimed
from zeroeventhub.consumer.store.dead_letters import DeadLetters
from zeroeventhub.consumer.store.tables import NAME_LENGTH, Tables
from zeroeventhub.databases import database_of
from zeroeventhub.databases.clock import UnixTime, unix_time
from zeroeventhub.databases.statements import insert_ignore, upsert
from zeroeventhub.errors import ConfigurationError, StoreUnavailable

__all__ = ["Division", "Leases", "divide", "fair_share"]


@dataclass(frozen=True)
class Division:
    """Hold what becomes of the partitions that a process holds or may take.

    Attributes:
        taken: free partitions that it takes.
        surplus: partitions that it holds and that belong to other processes.
    """

    taken: frozenset[int]
    surplus: frozenset[int]


def fair_share(members: Collection[str], owner: str, partitions: int) -> int:
    """Return how many partitions belong to a member: as many as to any other, or one more.

    Args:
        members: all members, of whom the first in order get what cannot be divided.
        owner: one of them.
        partitions: how many partitions there are.
    """
    each, left = divmod(partitions, len(members))
    return each + (sorted(members).index(owner) < left)


def divide(held: Collection[int], free: Collection[int], most: int) -> Division:
    """Keep what is held and take what is free, up to a number of partitions.

    The lowest come first, so that a claim that is repeated finds the same surplus.

    Args:
        held: the partitions that the process holds.
        free: those that no process holds.
        most: how many belong to it.
    """
    taken = sorted(free)[: max(0, most - len(held))]
    return Division(frozenset(taken), frozenset(sorted(held)[most:]))


LONGEST_TURN = 10.0
"""Seconds after which PostgreSQL ends a claim that has stalled, for which other processes wait."""

_TURN = ""
"""The member that is none: a process that changes leases of a consumer locks its row first."""


class Leases:
    """Share the partitions of a consumer between its processes.

    A lease ends when its time is up by the database's clock, unless it is renewed or given back
    before. Who holds one may read the partition; what fences a process that goes on without is
    the epoch of the cursor, which `CursorStore.enter` raises.

    Args:
        tables: where leases and members are kept.
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
        """Renew all leases of a process, and take a fair share of those that are free.

        It waits for other claims, and never for a page that is being applied.

        Args:
            connection: a connection to the store, in a transaction of this claim's own.
            consumer: the consumer's name.
            owner: the process, by a name that no other one has.
            wanted: the partitions that it may read now.
            seconds: how long the leases hold.
            share: whether it shares the partitions with other processes; one that does not takes
                all that are free, and is no member.

        Raises:
            ConfigurationError: the process has no name, or too long a one.
            StoreUnavailable: the transaction saw leases as they were before.
        """
        if not 0 < len(owner) <= NAME_LENGTH:
            raise ConfigurationError(f"A process's name has 1 to {NAME_LENGTH} characters.")
        self._take_turn(connection, consumer)
        now = unix_time(connection)
        members = self._join(connection, consumer, owner, now, seconds) if share else {owner}
        leases = self._found(connection, consumer, wanted)
        held = frozenset(number for number, (holder, _) in leases.items() if holder == owner)
        elsewhere = {
            number: (holder, expires_at)
            for number, (holder, expires_at) in leases.items()
            if number in wanted and holder not in {None, owner} and expires_at > now
        }
        most = len(wanted)
        if share:
            # Processes that do not share are no members, and their partitions are not shared out.
            apart = sum(holder not in members for holder, _ in elsewhere.values())
            most = fair_share(members, owner, len(wanted) - apart)
        free = frozenset(wanted) - held - elsewhere.keys()
        division = divide(held.intersection(wanted), free, most)
        lease = {"owner": owner, "expires_at": now + seconds}
        has = held | division.taken
        if self._hold(connection, consumer, lease, division.taken, now) != len(has):
            raise StoreUnavailable(
                f"The leases of consumer {consumer!r} have changed since this transaction began: "
                "claim in a transaction of its own, and try again."
            )
        epochs, ended = self._standing(connection, consumer, has)
        return Claimed(
            held=has,
            surplus=division.surplus,
            elsewhere={number: expires_at for number, (_, expires_at) in elsewhere.items()},
            ended=ended,
            letters=self._letters.partitions_due(connection, consumer),
            epochs=epochs,
        )

    def release(
        self, connection: Connection, consumer: str, owner: str, partitions: Collection[int]
    ) -> None:
        """Release leases, so that other processes may take them at once.

        Args:
            connection: a connection to the store, in a transaction of its own.
            consumer: the consumer's name.
            owner: the process; leases that it does not hold stay as they are.
            partitions: the partitions that it no longer reads.
        """
        self._take_turn(connection, consumer)
        columns = self._tables.leases.c
        mine = self._update(consumer).where(columns.owner == owner)
        connection.execute(
            mine.where(columns.partition.in_(sorted(partitions))), {"owner": None, "expires_at": 0}
        )

    def leave(self, connection: Connection, consumer: str, owner: str) -> None:
        """Release all leases, and leave the members.

        Args:
            connection: a connection to the store, in a transaction of its own.
            consumer: the consumer's name.
            owner: the process.
        """
        self._take_turn(connection, consumer)
        mine = self._update(consumer).where(self._tables.leases.c.owner == owner)
        connection.execute(mine, {"owner": None, "expires_at": 0})
        columns = self._tables.members.c
        connection.execute(
            self._tables.members.delete().where(
                columns.consumer == consumer, columns.owner == owner
            )
        )

    def is_held(self, connection: Connection, consumer: str, partition: int, owner: str) -> bool:
        """Return whether a process holds a partition's lease now."""
        columns = self._tables.leases.c
        # A locking read, since a snapshot may be older than the loss of the lease.
        query = (
            select(columns.owner)
            .where(
                columns.consumer == consumer,
                columns.partition == partition,
                columns.owner == owner,
                columns.expires_at > UnixTime(),
            )
            .with_for_update(read=True)
        )
        return connection.execute(query).first() is not None

    def _take_turn(self, connection: Connection, consumer: str) -> None:
        """Lock the leases of a consumer for this transaction.

        A process that is suspended here keeps the other processes from renewing their leases.
        """
        database_of(connection).limit_idle(connection, LONGEST_TURN)
        # A write, for which SQLite takes its lock, and of one row, so that none wait in a ring.
        row = {"consumer": consumer, "owner": _TURN, "expires_at": 0}
        upsert(connection, self._tables.members, row, {"expires_at": 0})

    def _join(
        self, connection: Connection, consumer: str, owner: str, now: float, seconds: float
    ) -> set[str]:
        """Become or stay a member; forget those whose time is up, and return the rest."""
        members, columns = self._tables.members, self._tables.members.c
        query = select(columns.owner, columns.expires_at).where(
            columns.consumer == consumer, columns.owner != _TURN
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

    def _found(
        self, connection: Connection, consumer: str, wanted: Sequence[int]
    ) -> dict[int, tuple[str | None, float]]:
        """Return who holds each lease and until when, with a row for every one that is wanted."""
        columns = self._tables.leases.c
        query = select(columns.partition, columns.owner, columns.expires_at).where(
            columns.consumer == consumer
        )
        found = {row.partition: (row.owner, row.expires_at) for row in connection.execute(query)}
        new = {partition: (None, 0.0) for partition in sorted(wanted) if partition not in found}
        rows = [{"consumer": consumer, "partition": number, "expires_at": 0} for number in new]
        insert_ignore(connection, self._tables.leases, rows)
        return found | new

    def _hold(
        self,
        connection: Connection,
        consumer: str,
        lease: Mapping[str, Any],
        taken: Collection[int],
        now: float,
    ) -> int:
        """Renew what the owner of a lease holds, and take what is free; return how many it has."""
        columns, update = self._tables.leases.c, self._update(consumer)
        mine = update.where(columns.owner == lease["owner"])
        count = connection.execute(mine, lease).rowcount
        if taken:
            free = or_(columns.owner.is_(None), columns.expires_at <= now)
            one = update.where(columns.partition == bindparam("taken"), free)
            rows = [{"taken": number, **lease} for number in sorted(taken)]
            count += connection.execute(one, rows).rowcount
        return count

    def _update(self, consumer: str) -> Update:
        return self._tables.leases.update().where(self._tables.leases.c.consumer == consumer)

    def _standing(
        self, connection: Connection, consumer: str, held: Collection[int]
    ) -> tuple[dict[int, int], frozenset[int]]:
        """Return the epochs of these cursors, and which partitions were read to their ends."""
        columns = self._tables.cursors.c
        query = select(columns.partition, columns.epoch, columns.ended).where(
            columns.consumer == consumer, or_(columns.ended, columns.partition.in_(sorted(held)))
        )
        rows = connection.execute(database_of(connection).skip_locked(connection, query)).all()
        epochs = {row.partition: row.epoch for row in rows if row.partition in held}
        return epochs, frozenset(row.partition for row in rows if row.ended)
