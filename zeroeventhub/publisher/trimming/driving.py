"""Delete batch by batch, with an engine of either kind."""

import asyncio
import time
from collections.abc import Callable

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.trimming.pacing import paced
from zeroeventhub.publisher.trimming.plan import TrimPlan
from zeroeventhub.publisher.trimming.trimmer import Trimmer

__all__ = ["async_trim", "known", "trim"]


def trim(
    trimmer: Trimmer, engine: Engine, plan: TrimPlan, rows: int, told: Callable[[int, int], None]
) -> int:
    """Carry out a plan; return how many events are gone; see `Trimming.trim`."""
    course = paced(plan.until, told)
    pause = next(course)
    while True:
        time.sleep(pause)
        with engine.connect() as connection:
            batch = trimmer.batch(connection, plan, rows)
        try:
            pause = course.send(batch)
        except StopIteration as end:
            return int(end.value)


async def async_trim(
    trimmer: Trimmer,
    engine: AsyncEngine,
    plan: TrimPlan,
    rows: int,
    told: Callable[[int, int], None],
) -> int:
    """Carry out a plan with asyncio, as `trim` does."""
    course = paced(plan.until, told)
    pause = next(course)
    while True:
        await asyncio.sleep(pause)
        async with engine.connect() as connection:
            batch = await connection.run_sync(trimmer.batch, plan, rows)
        try:
            pause = course.send(batch)
        except StopIteration as end:
            return int(end.value)


def known(trimmer: Trimmer | None) -> Trimmer:
    """Refuse to trim a feed that would not know of it."""
    if trimmer is None:
        raise ConfigurationError(
            "Nobody would know what was trimmed of this feed: give it a place to keep that, "
            "TableFeed(…, retention=Retention())."
        )
    return trimmer
