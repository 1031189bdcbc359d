"""Hand cursors of partitions that are gone to those that go on from there."""

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import ColumnElement, Connection, Table, and_, func, select

from zeroeventhub.consumer.store.tables import HANDED_OVER, Tables
from zeroeventhub.databases.clock import Moment
from zeroeventhub.databases.upsert import insert_ignore
from zeroeventhub.errors import StoreUnavailable

__all__ = ["inherit"]


def inherit(
    connection: Connection,
    tables: Tables,
    consumer: str,
    heirs: Mapping[int, Sequence[int]],
    remaining: Collection[int],
) -> None:
    """Hand cursors over; see `CursorStore.inherit`."""
    cursors, columns = tables.cursors, tables.cursors.c
    parents = sorted({parent for nearest in heirs.values() for parent in nearest})
    of_parents = and_(columns.consumer == consumer, columns.partition.in_(parents))
    # Locks the parents' rows: a commit under way on one of them ends before this goes on.
    connection.execute(cursors.update().where(of_parents).values(epoch=columns.epoch))
    # A locking read, since a snapshot may be older than that commit.
    query = select(columns.partition, columns.cursor).where(of_parents).with_for_update()
    known = {row.partition: row.cursor for row in connection.execute(query)}
    standing = {partition: cursor for partition, cursor in known.items() if cursor != HANDED_OVER}
    gone = [partition for partition in standing if partition not in remaining]
    _check_lanes(connection, tables, consumer, {parent: standing[parent] for parent in gone})
    for heir, nearest in sorted(heirs.items()):
        cursor = next((standing[parent] for parent in nearest if parent in standing), None)
        if cursor is None:
            continue
        row = {"consumer": consumer, "partition": heir, "cursor": cursor}
        insert_ignore(connection, cursors, [row])
        # An heir that was a parent itself, and was gone until now.
        connection.execute(
            cursors.update()
            .where(
                columns.consumer == consumer,
                columns.partition == heir,
                func.length(columns.cursor) == 0,
            )
            .values(cursor=cursor, epoch=columns.epoch + 1, ended=False, updated_at=Moment())
        )
    connection.execute(
        cursors.update()
        .where(columns.consumer == consumer, columns.partition.in_(gone))
        .values(cursor=HANDED_OVER, epoch=columns.epoch + 1, ended=False, updated_at=Moment())
    )
    _hand_letters_over(connection, tables, consumer, heirs, gone)
    connection.execute(tables.lanes.delete().where(_of(tables.lanes, consumer, gone)))


def _check_lanes(
    connection: Connection, tables: Tables, consumer: str, gone: Mapping[int, str]
) -> None:
    """Refuse to hand over a cursor behind which events are applied already.

    Raises:
        StoreUnavailable: there is one.
    """
    columns = tables.lanes.c
    query = select(columns.partition, columns.cursor).where(
        _of(tables.lanes, consumer, gone), columns.done > 0
    )
    for row in connection.execute(query.with_for_update(read=True)):
        if row.cursor == gone[row.partition]:
            raise StoreUnavailable(
                f"Partition {row.partition} is gone while lanes have applied a part of the page "
                "behind its cursor: the process that applies it has to finish. If there is none "
                "any more, set the cursor with `zeroeventhub cursors set`, and that part is "
                "applied again."
            )


def _hand_letters_over(
    connection: Connection,
    tables: Tables,
    consumer: str,
    heirs: Mapping[int, Sequence[int]],
    gone: Collection[int],
) -> None:
    """Let an heir apply dead letters again that nobody else would; their order is that of keys."""
    letters = tables.dead_letters
    for parent in gone:
        heir = min(heir for heir, nearest in heirs.items() if parent in nearest)
        connection.execute(
            letters.update().where(_of(letters, consumer, [parent])).values(partition=heir)
        )


def _of(table: Table, consumer: str, partitions: Collection[int]) -> ColumnElement[bool]:
    return and_(table.c.consumer == consumer, table.c.partition.in_(partitions))
