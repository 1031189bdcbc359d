"""Delete events batch by batch, while writers write and readers read: one loop for all of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from sqlalchemy import Connection, Row, delete, select, tuple_

from zeroeventhub.databases import database_of
from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.steps import Pause, Query, Steps

__all__ = [
    "Batch",
    "Deleted",
    "delete_events",
    "delete_in_batches",
]

TRIES = 10
"""How often a batch is tried that has to wait too long for the locks of writers."""

LEAST = 0.02
"""Seconds between two batches, at least: a feed sees by then that the first one has ended."""

LONGEST = 5.0
"""Seconds between two tries, at most."""


@dataclass(frozen=True)
class Deleted:
    """Say what a batch has deleted.

    Attributes:
        events: how many.
        reached: the position above which the next batch begins.
        is_last: whether nothing is left to do.
    """

    events: int
    reached: int
    is_last: bool


Batch = Callable[[Connection, int], Deleted]
"""Deletes some events that lie above a position, in a transaction that is committed after it."""


def delete_in_batches(batch: Batch, after: int, told: Callable[[int, int], None]) -> Steps[int]:
    """Delete until nothing is left to do, in half of the time, so that writers get the other half.

    Args:
        batch: deletes one.
        after: the position above which the first one begins.
        told: is called after each batch with how many events are gone, and up to where.

    Returns:
        How many events are gone.

    Raises:
        Unavailable: a batch could not be deleted, however often it was tried.
    """
    events = tries = 0
    pause = 0.0
    while True:
        yield Pause(pause)
        began = monotonic()
        try:
            deleted: Deleted = yield Query(partial(_in_transaction, batch, after))
        except Unavailable:
            tries += 1
            if tries == TRIES:
                raise
            pause = min(LEAST * 2**tries, LONGEST)
            continue
        tries = 0
        pause, after = max(monotonic() - began, LEAST), deleted.reached
        events += deleted.events
        told(events, after)
        if deleted.is_last:
            return events


def _in_transaction(batch: Batch, after: int, connection: Connection) -> Deleted:
    with database_of(connection).lock_timeout(connection, PATIENCE):
        deleted = batch(connection, after)
        connection.commit()
    return deleted


PATIENCE = 1.0
"""Seconds that a batch waits for the locks of writers, at most."""


def delete_events(
    connection: Connection, source: Source, found: Sequence[Row[Any]], *, is_range: bool
) -> int:
    """Delete events; return how many.

    Args:
        connection: in a transaction, each of whose statements sees the last commits.
        source: where the positions are.
        found: rows of them, in order, which end with the columns of the source's key.
        is_range: whether these are all that lie between the first and the last of them.
    """
    if source.events is not None:
        return _delete_beside(connection, source, found)
    table: Any = source.table
    here = source.position
    # In a range MariaDB and MySQL would wait for the row after it, which a writer may hold.
    if is_range and database_of(connection).deletes_ranges:
        chosen = here.between(found[0].position, found[-1].position)
    else:
        chosen = here.in_([row.position for row in found])
    connection.execute(delete(table).where(chosen))
    return len(found)


def _delete_beside(connection: Connection, source: Source, found: Sequence[Row[Any]]) -> int:
    """Delete positions that lie beside their events, and the events; return how many those were.

    A key may have come back since: an event that has it anew waits for a position of its own, and
    stays. The events are locked before the waiting ones are read, so that none comes in between.
    """
    positions: Any = source.table
    events: Any = source.events
    keys = [tuple(row[-len(source.key) :]) for row in found]
    same = tuple_(*source.key.values())
    locked = select(*source.key.values()).where(same.in_(keys)).with_for_update()
    there = {tuple(row) for row in connection.execute(locked)}
    if source.waiting is not None:
        waiting = [source.waiting.c[name] for name in source.key]
        there -= {
            tuple(row)
            for row in connection.execute(select(*waiting).where(tuple_(*waiting).in_(keys)))
        }
    numbers = [row.position for row in found]
    connection.execute(delete(positions).where(source.position.in_(numbers)))
    if there:
        connection.execute(delete(events).where(same.in_([*there])))
    return len(there)
