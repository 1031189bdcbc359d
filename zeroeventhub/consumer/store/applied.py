"""What a consumer has applied, beside its cursors: the progress of lanes, and the inbox of ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Integer, Text, and_, bindparam, or_, select

from zeroeventhub.consumer.steps import Place
from zeroeventhub.consumer.store.dead_letters import digest
from zeroeventhub.consumer.store.tables import Tables, is_at, is_place, is_row
from zeroeventhub.databases import database_of
from zeroeventhub.databases.statements import insert_ignore, portions, unix_time
from zeroeventhub.errors import ConfigurationError, Fenced, StoreUnavailable


@dataclass(frozen=True)
class LaneProgress:
    """How far lanes have come after a cursor.

    Attributes:
        lanes: the number of lanes that the keys of the events are divided among.
        done: by lane, how many events after the cursor, in the order of the partition, are decided
            for it: those of the lane are applied, and those of other lanes do not concern it.
    """

    lanes: int
    done: Mapping[int, int]


class Lanes:
    """Store how far parallel lanes have applied a page.

    A page has one cursor, which moves when all its lanes are done. Until then each lane stores its
    progress in the transaction of its effects, so that a process that reads the page again
    continues there. All methods run in the caller's transaction.
    """

    def __init__(self, tables: Tables) -> None:
        self._table = tables.lanes
        self._cursors = tables.cursors
        # Built once, because every page that is committed one by one needs it. A locking read, as
        # a snapshot may be older than what lanes have committed.
        at = bindparam("at", type_=Text)
        row = is_row(self._table, bindparam("name", type_=Text), bindparam("number", type_=Integer))
        begun = select(self._table.c.lane).where(row, is_at(self._table.c.cursor, at)).limit(1)
        self._begun = begun.with_for_update(read=True)

    def progress(
        self, connection: Connection, consumer: str, partition: int, place: Place
    ) -> LaneProgress | None:
        """Return the progress after a cursor, of any epoch; None if no lane has begun."""
        columns = self._table.c
        query = (
            select(columns.lane, columns.lanes, columns.done)
            .where(is_row(self._table, consumer, partition), is_at(columns.cursor, place.cursor))
            .order_by(columns.lane)
        )
        rows = connection.execute(query).all()
        return LaneProgress(rows[0].lanes, {row.lane: row.done for row in rows}) if rows else None

    def expect_none(
        self, connection: Connection, consumer: str, partition: int, place: Place
    ) -> None:
        """Raise ConfigurationError if lanes have applied a part of what follows a place.

        The transaction must have moved the cursor: until it ends, no lane begins.
        """
        found = {"name": consumer, "number": partition, "at": place.cursor}
        if connection.execute(self._begun, found).first() is not None:
            raise ConfigurationError(
                f"Lanes of consumer {consumer!r} have applied a part of this page of partition "
                f"{partition}: roll back, and let `run` finish the page before you iterate over "
                "pages."
            )

    def check_gone(self, connection: Connection, consumer: str, cursors: Mapping[int, str]) -> None:
        """Raise StoreUnavailable if lanes have applied events after the cursor of a gone partition.

        `cursors` has the cursors of the partitions that are gone.
        """
        columns = self._table.c
        query = select(columns.partition, columns.cursor).where(
            columns.consumer == consumer, columns.partition.in_(cursors), columns.done > 0
        )
        for row in connection.execute(query.with_for_update(read=True)):
            if row.cursor == cursors[row.partition]:
                raise StoreUnavailable(
                    f"Partition {row.partition} is gone while lanes have applied a part of the "
                    "page after its cursor: the process that applies it has to finish. If it is "
                    "gone too, set the cursor with `zeroeventhub cursors set`, and that part is "
                    "applied again."
                )

    def advance(
        self,
        connection: Connection,
        consumer: str,
        partition: int,
        place: Place,
        *,
        lane: int,
        lanes: int,
        before: int,
        after: int,
    ) -> None:
        """Store that a lane has advanced, in the transaction of its effects.

        `before` is how many events after the cursor were decided for the lane, one of `lanes`, and
        `after` how many are decided now; a lane begins at 0.

        Raises:
            Fenced: the cursor, its epoch, or the lane has moved. Roll back.
        """
        columns = self._table.c
        self._lock(connection, consumer, partition, place)
        here = and_(
            is_at(columns.cursor, place.cursor), columns.lanes == lanes, columns.done == before
        )
        left_over = [~is_at(columns.cursor, place.cursor)] if before == 0 else []
        row = {"lanes": lanes, "cursor": place.cursor, "done": after}
        new = {"consumer": consumer, "partition": partition, "lane": lane, **row}
        # Insert first: on MariaDB and MySQL an update that finds no row locks the gap, and lanes
        # that begin together would block each other's inserts.
        if before == 0 and insert_ignore(connection, self._table, [new]):
            return
        update = self._table.update().where(
            is_row(self._table, consumer, partition), columns.lane == lane, or_(here, *left_over)
        )
        if connection.execute(update.values(row)).rowcount != 1:
            raise _lane_moved(consumer, partition)

    def clear(self, connection: Connection, consumer: str, partition: int) -> None:
        """Delete a partition's progress, in the transaction that moves its cursor."""
        columns = self._table.c
        query = select(columns.lane).where(is_row(self._table, consumer, partition))
        # Row by row, as MariaDB and MySQL lock the gaps around rows that a range deletes.
        rows = [{"number": lane} for lane in connection.scalars(query)]
        if rows:
            one = is_row(self._table, consumer, partition) & (columns.lane == bindparam("number"))
            connection.execute(self._table.delete().where(one), rows)

    def _lock(self, connection: Connection, consumer: str, partition: int, place: Place) -> None:
        """Lock the cursor until this transaction ends, shared with other lanes."""
        cursors = self._cursors
        here = is_place(cursors, consumer, partition, place)
        if not database_of(connection).locks_rows:
            # A write takes the database's only lock.
            update = cursors.update().where(here).values(epoch=cursors.c.epoch)
            found = connection.execute(update).rowcount == 1
        else:
            query = select(cursors.c.partition).where(here).with_for_update(read=True)
            found = connection.execute(query).first() is not None
        if not found:
            raise _lane_moved(consumer, partition)


def _lane_moved(consumer: str, partition: int) -> Fenced:
    return Fenced(
        f"Partition {partition} of consumer {consumer!r} has moved since this page was read; roll "
        "back: another process has applied the lane or may apply it."
    )


_DAY = 86400.0


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
        for some in portions(digests):
            query = select(columns.digest).where(
                columns.consumer == consumer, columns.digest.in_(some)
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
