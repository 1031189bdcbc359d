"""The loop of trimming and compaction: delete in batches while writers write and readers read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

from sqlalchemy import Connection, Row, delete, select, tuple_

from zeroeventhub.databases import database_of
from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.bound_feed_steps import Pause, Query, Steps
from zeroeventhub.publisher.ordering import Source

TRIES = 10
"""Tries of a batch while writers hold its locks for too long."""

LOCK_SECONDS = 1.0
"""Seconds that a batch waits for the locks of writers, at most."""

LEAST = 0.02
"""Seconds between two batches, at least: by then readers see that the first one has ended."""

LONGEST = 5.0
"""Seconds between two tries, at most."""


@dataclass(frozen=True)
class Deleted:
    """What a batch has deleted: the number of events, up to a position, and whether it is the last.

    The next batch begins above the position.
    """

    events: int
    reached: int
    is_last: bool


Batch = Callable[[Connection, int], Deleted]
"""Delete some events above a position; the caller commits the transaction."""


def delete_in_batches(
    batch: Batch, after: int, on_progress: Callable[[int, int], None]
) -> Steps[int]:
    """Delete batches above a position until the last; return how many events were deleted.

    Between batches it pauses for as long as each has taken, so that writers get turns.

    Raises:
        Unavailable: a batch failed in all of its tries.
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
        on_progress(events, after)
        if deleted.is_last:
            return events


def _in_transaction(batch: Batch, after: int, connection: Connection) -> Deleted:
    with database_of(connection).lock_timeout(connection, LOCK_SECONDS):
        deleted = batch(connection, after)
        connection.commit()
    return deleted


def delete_events(
    connection: Connection, source: Source, found: Sequence[Row[Any]], *, is_range: bool
) -> int:
    """Delete events; return how many.

    Args:
        connection: in a transaction, each of whose statements sees the last commits.
        source: the table of the positions.
        found: the rows to delete, in order; each ends with the columns of the source's key.
        is_range: whether these are all rows between the first and the last of them.
    """
    if source.events is not None:
        return _delete_with_positions(connection, source, found)
    table: Any = source.table
    here = source.position
    # For a range MariaDB and MySQL also lock the row after it, and wait for a writer to release it.
    if is_range and database_of(connection).deletes_ranges:
        chosen = here.between(found[0].position, found[-1].position)
    else:
        chosen = here.in_([row.position for row in found])
    connection.execute(delete(table).where(chosen))
    return len(found)


def _delete_with_positions(
    connection: Connection, source: Source, found: Sequence[Row[Any]]
) -> int:
    """Delete events whose positions are in a side table, and their positions; return how many.

    A writer may have inserted a deleted key again: that event still waits for a position, and is
    kept. The events are locked before the waiting ones are read, so that no insert comes between.
    """
    positions: Any = source.table
    events: Any = source.events
    keys = [tuple(row[-len(source.key) :]) for row in found]
    same = tuple_(*source.key.values())
    locked = select(*source.key.values()).where(same.in_(keys)).with_for_update()
    left = {tuple(row) for row in connection.execute(locked)}
    if source.waiting is not None:
        waiting = [source.waiting.c[name] for name in source.key]
        query = select(*waiting).where(tuple_(*waiting).in_(keys))
        left -= {tuple(row) for row in connection.execute(query)}
    numbers = [row.position for row in found]
    connection.execute(delete(positions).where(source.position.in_(numbers)))
    if left:
        connection.execute(delete(events).where(same.in_([*left])))
    return len(left)
