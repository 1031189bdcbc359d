"""Delete events batch by batch, beside those who write and read."""

import asyncio
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

from sqlalchemy import Connection, Engine, Row, delete, select, tuple_
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.read_only import explained, time_bound

__all__ = [
    "Deleted",
    "Step",
    "async_delete_all",
    "delete_all",
    "delete_beside",
    "delete_events",
    "unheard",
]

TRIES = 10
"""How often a batch is tried that has to wait too long for somebody's locks."""

LEAST = 0.02
"""Seconds between two batches, at least: a feed sees by then that the first one has ended."""

LONGEST = 5.0
"""Seconds between two tries, at most."""


def unheard(events: int, position: int) -> None:
    """Tell nobody how far it is."""


@dataclass(frozen=True)
class Deleted:
    """Say what a batch has deleted.

    Attributes:
        events: how many.
        reached: the position behind which the next batch begins.
        is_last: whether nothing is left to do.
    """

    events: int
    reached: int
    is_last: bool


@dataclass(frozen=True)
class Batch:
    """Hold what became of a batch.

    Attributes:
        outcome: what it has deleted, or why it could not.
        seconds: how long it took.
    """

    outcome: Deleted | Unavailable
    seconds: float


def paced(after: int, told: Callable[[int, int], None]) -> Generator[tuple[float, int], Batch, int]:
    """Decide when to delete batches; they take half of the time, so that others get theirs.

    Args:
        after: the position behind which the first one begins.
        told: is called behind each batch with how many events are gone, and up to where.

    Yields:
        Seconds to wait before the next batch, and the position behind which it begins; what became
        of it is sent back.

    Returns:
        How many events are gone.

    Raises:
        Unavailable: a batch could not be deleted, however often it was tried.
    """
    events = tries = 0
    pause = 0.0
    while True:
        batch = yield pause, after
        outcome = batch.outcome
        if isinstance(outcome, Unavailable):
            tries += 1
            if tries == TRIES:
                raise outcome
            pause = min(LEAST * 2**tries, LONGEST)
            continue
        tries = 0
        pause, after = max(batch.seconds, LEAST), outcome.reached
        events += outcome.events
        told(events, after)
        if outcome.is_last:
            return events


PATIENCE = 1.0
"""Seconds that a batch waits for the locks of others, at most."""

_ON_MYSQL = ("innodb_lock_wait_timeout", "lock_wait_timeout")


@contextmanager
def impatient(connection: Connection) -> Iterator[None]:
    """Let the statements of a transaction see the last commits, and wait for nobody for long."""
    name = connection.dialect.name
    if name == "sqlite":
        yield
        return
    connection = connection.execution_options(isolation_level="READ COMMITTED")
    if name == "postgresql":
        connection.exec_driver_sql(f"SELECT {time_bound('lock_timeout', PATIENCE)}")
        yield
        return
    kept = ", ".join(f"@zeroeventhub_{each} = @@SESSION.{each}" for each in _ON_MYSQL)
    set_ = ", ".join(f"SESSION {each} = {max(1, int(PATIENCE))}" for each in _ON_MYSQL)
    back = ", ".join(f"SESSION {each} = @zeroeventhub_{each}" for each in _ON_MYSQL)
    connection.exec_driver_sql(f"SET {kept}, {set_}")
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(f"SET {back}")


def delete_events(connection: Connection, source: Source, found: Sequence[Row[Any]]) -> int:
    """Delete events that lie at their positions; return how many.

    Args:
        connection: in a transaction.
        source: where the positions are.
        found: all rows of a range of them, in order.
    """
    table: Any = source.table
    here = source.position
    if connection.dialect.name in {"mysql", "mariadb"}:
        # In a range they would wait for the row behind it, which may be somebody's who writes.
        chosen = here.in_([row.position for row in found])
    else:
        chosen = here.between(found[0].position, found[-1].position)
    connection.execute(delete(table).where(chosen))
    return len(found)


def delete_beside(connection: Connection, source: Source, found: Sequence[Row[Any]]) -> int:
    """Delete positions that lie beside their events, and the events; return how many those were.

    A key may have come back since: an event that has it anew waits for a position of its own, and
    stays. The events are locked before it is looked who waits, so that none comes in between.

    Args:
        connection: in a transaction, each of whose statements sees the last commits.
        source: where the positions are.
        found: rows of them.
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


Step = Callable[[Connection, int], Deleted]
"""Delete some events from behind a position on, in a transaction that is committed behind it."""


def delete_all(engine: Engine, step: Step, after: int, told: Callable[[int, int], None]) -> int:
    """Delete until nothing is left to do; return how many events are gone.

    Args:
        engine: of the feed's database.
        step: deletes a batch.
        after: the position behind which the first one begins.
        told: is called behind each batch with how many events are gone, and up to where.

    Raises:
        Unavailable: a batch could not be deleted, however often it was tried.
    """
    course = paced(after, told)
    pause, after = next(course)
    while True:
        time.sleep(pause)
        with engine.connect() as connection:
            batch = _batch(connection, step, after)
        try:
            pause, after = course.send(batch)
        except StopIteration as end:
            return int(end.value)


async def async_delete_all(
    engine: AsyncEngine, step: Step, after: int, told: Callable[[int, int], None]
) -> int:
    """Delete until nothing is left to do with asyncio, as `delete_all` does."""
    course = paced(after, told)
    pause, after = next(course)
    while True:
        await asyncio.sleep(pause)
        async with engine.connect() as connection:
            batch = await connection.run_sync(_batch, step, after)
        try:
            pause, after = course.send(batch)
        except StopIteration as end:
            return int(end.value)


def _batch(connection: Connection, step: Step, after: int) -> Batch:
    """Delete a batch in a transaction of its own, of a connection that nobody is in one of."""
    began = monotonic()
    outcome: Deleted | Unavailable
    try:
        with explained(), impatient(connection):
            outcome = step(connection, after)
            connection.commit()
    except Unavailable as error:
        outcome = error
    return Batch(outcome, monotonic() - began)
