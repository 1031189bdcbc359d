"""What an operator sees of cursors, and does to them."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, and_, func, select

from zeroeventhub.consumer.store.tables import HANDED_OVER, Tables
from zeroeventhub.databases.clock import Moment, as_utc, unix_time
from zeroeventhub.databases.upsert import insert_ignore
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import FIRST, HIGHEST_PARTITION, is_cursor

__all__ = ["CursorStatus", "reset", "set_cursor", "standings"]


@dataclass(frozen=True)
class CursorStatus:
    """Tell where a consumer stands in a partition.

    Attributes:
        consumer: the consumer's name.
        partition: the partition's id.
        cursor: where it stands.
        epoch: how often the right to move the cursor has passed on.
        ended: whether the partition is closed, and was read to its end.
        updated_at: when the cursor was moved last, in UTC.
        owner: the process that holds the lease; None if nobody does.
        lease_seconds: for how long it holds it yet, unless it renews it; None if nobody does.
    """

    consumer: str
    partition: int
    cursor: str
    epoch: int
    ended: bool
    updated_at: datetime
    owner: str | None
    lease_seconds: float | None


def standings(connection: Connection, tables: Tables, consumer: str | None) -> list[CursorStatus]:
    """Return where consumers stand; see `CursorStore.standings`."""
    columns, leases = tables.cursors.c, tables.leases.c
    now = unix_time(connection)
    held = and_(
        leases.consumer == columns.consumer,
        leases.partition == columns.partition,
        leases.owner.is_not(None),
        leases.expires_at > now,
    )
    query = (
        select(tables.cursors, leases.owner, (leases.expires_at - now).label("lease_seconds"))
        .outerjoin_from(tables.cursors, tables.leases, held)
        .where(func.length(columns.cursor) > 0)
        .order_by(columns.consumer, columns.partition)
    )
    if consumer is not None:
        query = query.where(columns.consumer == consumer)
    return [
        CursorStatus(
            row.consumer,
            row.partition,
            row.cursor,
            row.epoch,
            row.ended,
            as_utc(row.updated_at),
            row.owner,
            row.lease_seconds,
        )
        for row in connection.execute(query)
    ]


def set_cursor(
    connection: Connection, tables: Tables, consumer: str, partition: int, cursor: str
) -> None:
    """Put a cursor where an operator wants it; see `CursorStore.set`."""
    _check(cursor)
    if not 0 <= partition <= HIGHEST_PARTITION:
        raise ConfigurationError(f"A partition's id goes from 0 to {HIGHEST_PARTITION}.")
    columns = tables.cursors.c
    update = (
        tables.cursors.update()
        .where(columns.consumer == consumer, columns.partition == partition)
        .values(cursor=cursor, epoch=columns.epoch + 1, ended=False, updated_at=Moment())
    )
    if connection.execute(update).rowcount == 0:
        row = {"consumer": consumer, "partition": partition, "cursor": FIRST}
        insert_ignore(connection, tables.cursors, [row])
        connection.execute(update)
    _forget(connection, tables, ("lanes",), consumer, [partition])


def reset(
    connection: Connection,
    tables: Tables,
    consumer: str,
    partitions: Collection[int] | None,
    cursor: str,
) -> int:
    """Let a consumer start again; see `CursorStore.reset`."""
    _check(cursor)
    columns = tables.cursors.c
    update = (
        tables.cursors.update()
        .where(columns.consumer == consumer, func.length(columns.cursor) > 0)
        .values(cursor=cursor, epoch=columns.epoch + 1, ended=False, updated_at=Moment())
    )
    if partitions is not None:
        update = update.where(columns.partition.in_(sorted(partitions)))
    count = connection.execute(update).rowcount
    _forget(connection, tables, ("lanes", "dead_letters"), consumer, partitions)
    if partitions is not None:
        # Events that came by way of partitions which are gone come again by their heirs.
        query = select(columns.partition).where(
            columns.consumer == consumer, columns.cursor == HANDED_OVER
        )
        partitions = {*partitions, *connection.scalars(query)}
    _forget(connection, tables, ("inbox",), consumer, partitions)
    return count


def _forget(
    connection: Connection,
    tables: Tables,
    names: Collection[str],
    consumer: str,
    partitions: Collection[int] | None,
) -> None:
    for name in names:
        table = getattr(tables, name)
        delete = table.delete().where(table.c.consumer == consumer)
        if partitions is not None:
            delete = delete.where(table.c.partition.in_(sorted(partitions)))
        connection.execute(delete)


def _check(cursor: str) -> None:
    if not is_cursor(cursor):
        raise ConfigurationError(
            "A cursor has 1 to 4096 printable ASCII characters, as the feed has given it."
        )
