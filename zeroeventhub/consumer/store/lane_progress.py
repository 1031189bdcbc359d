"""How far a page has been applied by lanes that work on it side by side.

A page has one cursor, and moves it when all its lanes are done. Until then each lane notes in the
transaction of its effects how far it has come, so that a
process that reads the page again goes on there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Integer, Text, and_, bindparam, or_, select

from zeroeventhub.consumer.steps import Place
from zeroeventhub.consumer.store.tables import Tables, is_at
from zeroeventhub.databases import database_of
from zeroeventhub.databases.statements import insert_ignore
from zeroeventhub.errors import Fenced

__all__ = ["LaneProgress", "Lanes"]


@dataclass(frozen=True)
class LaneProgress:
    """Tell how far lanes have come after a cursor.

    Attributes:
        lanes: among how many lanes the keys of the events are divided.
        done: by lane, how many events after the cursor are decided for it, in the order of the
            partition; those before that number that are another lane's are not its business.
    """

    lanes: int
    done: Mapping[int, int]


class Lanes:
    """Note how far lanes have come.

    Args:
        tables: where that is kept.
    """

    def __init__(self, tables: Tables) -> None:
        self._table = tables.lanes
        self._cursors = tables.cursors
        # Built once, because every page that is committed by itself asks this. A locking read,
        # since a snapshot may be older than what lanes have committed.
        at = bindparam("at", type_=Text)
        row = self._is_row(bindparam("name", type_=Text), bindparam("number", type_=Integer))
        begun = select(self._table.c.lane).where(row, is_at(self._table.c.cursor, at)).limit(1)
        self._begun = begun.with_for_update(read=True)

    def progress(
        self, connection: Connection, consumer: str, partition: int, place: Place
    ) -> LaneProgress | None:
        """Return how far lanes have come after a cursor, in any epoch; None if none has begun."""
        columns = self._table.c
        query = (
            select(columns.lane, columns.lanes, columns.done)
            .where(self._is_row(consumer, partition), is_at(columns.cursor, place.cursor))
            .order_by(columns.lane)
        )
        rows = connection.execute(query).all()
        return LaneProgress(rows[0].lanes, {row.lane: row.done for row in rows}) if rows else None

    def has_begun(
        self, connection: Connection, consumer: str, partition: int, place: Place
    ) -> bool:
        """Return whether lanes have applied a part of what follows a cursor.

        Args:
            connection: a connection to the store, in a transaction that has moved the cursor:
                until it ends, no lane begins.
            consumer: the consumer's name.
            partition: the partition's id.
            place: where the cursor stood.
        """
        found = {"name": consumer, "number": partition, "at": place.cursor}
        return connection.execute(self._begun, found).first() is not None

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
        """Note that a lane has come further.

        Args:
            connection: a connection to the store, in the transaction of the lane's effects.
            consumer: the consumer's name.
            partition: the partition's id.
            place: where the page was read.
            lane: the lane, from 0.
            lanes: how many there are.
            before: how many events after the cursor were decided for it; 0 if it begins.
            after: how many are now.

        Raises:
            Fenced: the cursor has moved, or its epoch, or the lane has. Roll back.
        """
        columns = self._table.c
        self._lock(connection, consumer, partition, place)
        here = and_(
            is_at(columns.cursor, place.cursor), columns.lanes == lanes, columns.done == before
        )
        left_over = [~is_at(columns.cursor, place.cursor)] if before == 0 else []
        row = {"lanes": lanes, "cursor": place.cursor, "done": after}
        new = {"consumer": consumer, "partition": partition, "lane": lane, **row}
        # First, since an update that finds no row locks the gap on MariaDB and MySQL: lanes that
        # begin together would keep each other from inserting.
        if before == 0 and insert_ignore(connection, self._table, [new]):
            return
        update = self._table.update().where(
            self._is_row(consumer, partition), columns.lane == lane, or_(here, *left_over)
        )
        if connection.execute(update.values(row)).rowcount != 1:
            raise _fenced(consumer, partition)

    def clear(self, connection: Connection, consumer: str, partition: int) -> None:
        """Forget how far lanes have come, in the transaction that moves the cursor."""
        columns = self._table.c
        query = select(columns.lane).where(self._is_row(consumer, partition))
        # Row by row, since MariaDB and MySQL lock the gaps around those that a range deletes.
        rows = [{"number": lane} for lane in connection.scalars(query)]
        if rows:
            one = self._is_row(consumer, partition) & (columns.lane == bindparam("number"))
            connection.execute(self._table.delete().where(one), rows)

    def _lock(self, connection: Connection, consumer: str, partition: int, place: Place) -> None:
        """Keep the cursor where it is until this transaction ends; other lanes may do the same."""
        columns = self._cursors.c
        here = (
            columns.consumer == consumer,
            columns.partition == partition,
            is_at(columns.cursor, place.cursor),
            columns.epoch == place.epoch,
        )
        if not database_of(connection).locks_rows:
            # A write takes the one lock that there is.
            update = self._cursors.update().where(*here).values(epoch=columns.epoch)
            found = connection.execute(update).rowcount == 1
        else:
            query = select(columns.partition).where(*here).with_for_update(read=True)
            found = connection.execute(query).first() is not None
        if not found:
            raise _fenced(consumer, partition)

    def _is_row(self, consumer: Any, partition: Any) -> ColumnElement[bool]:
        columns = self._table.c
        return and_(columns.consumer == consumer, columns.partition == partition)


def _fenced(consumer: str, partition: int) -> Fenced:
    return Fenced(
        f"Partition {partition} of consumer {consumer!r} has moved since this page was read; roll "
        "back: another process has applied the lane, or may."
    )
