"""Delete batch by batch, with an engine of either kind."""

import asyncio
import time
from collections.abc import Callable
from time import monotonic

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.database_error import explained
from zeroeventhub.publisher.deleting.pacing import Batch, Deleted, paced
from zeroeventhub.publisher.deleting.patience import impatient

__all__ = ["Step", "async_delete_all", "delete_all"]

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
