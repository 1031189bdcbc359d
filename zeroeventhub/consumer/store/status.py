"""What an operator sees of consumers: their cursors, leases and errors."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, and_, func, select

from zeroeventhub.consumer.store.tables import Tables, is_place, is_row
from zeroeventhub.databases.statements import as_utc, table_exists, unix_time


@dataclass(frozen=True)
class CursorStatus:
    """A consumer's cursor in a partition, and the lease of the process that reads it.

    Example:
        with engine.connect() as connection:
            for status in store.standings(connection, "billing"):
                print(status.partition, status.cursor, status.owner)

    Attributes:
        consumer: the consumer's name.
        partition: the partition's id.
        cursor: the committed cursor.
        epoch: how often another process or an operator has taken over the cursor.
        ended: whether the partition is closed, and was read to its end.
        updated_at: when the cursor was moved last, in UTC.
        owner: the process that holds the lease; None if no process does.
        lease_seconds: seconds until the lease ends if it is not renewed; None without a lease.
        error: the type and the text of the error of the last try to apply the page after the
            cursor; None if no try has failed since a process or operator entered or moved it.
        tries: how often the page after the cursor was tried; None without an error.
        halted_at: when the partition halted, in UTC; None unless it has halted.
        retried_since: when the first try failed, in UTC; None unless the page is tried again.
        retry_seconds: seconds until the page is tried again, below 0 once that is due; None unless
            it is tried again.
    """

    consumer: str
    partition: int
    cursor: str
    epoch: int
    ended: bool
    updated_at: datetime
    owner: str | None
    lease_seconds: float | None
    error: str | None = None
    tries: int | None = None
    halted_at: datetime | None = None
    retried_since: datetime | None = None
    retry_seconds: float | None = None


def summaries(found: Iterable[CursorStatus]) -> list[dict[str, Any]]:
    """Describe each consumer of statuses that are ordered by name: how many of what there are."""
    groups = [(name, [*group]) for name, group in groupby(found, lambda one: one.consumer)]
    return [
        {
            "consumer": name,
            "partitions": len(own),
            "processes": len({one.owner for one in own} - {None}),
            "updated_at": max(one.updated_at for one in own),
            "halted": sum(one.halted_at is not None for one in own),
            "retried": sum(one.retried_since is not None for one in own),
        }
        for name, own in groups
    ]


def read_statuses(
    connection: Connection, tables: Tables, consumer: str | None
) -> list[CursorStatus]:
    """Return the cursors of a consumer, or of all, ordered by name and partition."""
    cursors, leases, failures = tables.cursors, tables.leases, tables.failures
    columns = cursors.c
    now = unix_time(connection)
    held = and_(
        is_row(leases, columns.consumer, columns.partition),
        leases.c.owner.is_not(None),
        leases.c.expires_at > now,
    )
    left = (leases.c.expires_at - now).label("lease_seconds")
    query = (
        select(cursors, leases.c.owner, left)
        .outerjoin_from(cursors, leases, held)
        .where(func.length(columns.cursor) > 0)
        .order_by(columns.consumer, columns.partition)
    )
    if consumer is not None:
        query = query.where(columns.consumer == consumer)
    if table_exists(connection, failures):  # an older store has none
        # To enter, move or set the cursor is to clear the error.
        is_there = is_place(failures, columns.consumer, columns.partition, columns)
        retry = (failures.c.retry_at - now).label("retry_seconds")
        query = query.outerjoin(failures, is_there).add_columns(
            failures.c.error, failures.c.tries, failures.c.since, retry
        )
    found = []
    for row in connection.execute(query).mappings():
        status: dict[str, Any] = {**row, "updated_at": as_utc(row["updated_at"])}
        if since := status.pop("since", None):
            state = "halted_at" if row["retry_seconds"] is None else "retried_since"
            status[state] = as_utc(since)
        found.append(CursorStatus(**status))
    return found
