"""What a bound feed does, step by step: written once, carried out by a sync or an async engine."""

import asyncio
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.databases.errors import explained

__all__ = [
    "Pause",
    "Query",
    "Step",
    "Steps",
    "Work",
    "carry_out",
    "carry_out_async",
]

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Query:
    """Call a function with a connection of the feed's engine."""

    call: Callable[[Connection], Any]


@dataclass(frozen=True)
class Work:
    """Call a function that takes a while and needs no connection."""

    call: Callable[[], Any]


@dataclass(frozen=True)
class Pause:
    """Wait for some seconds."""

    seconds: float


Step: TypeAlias = Query | Work | Pause

Steps: TypeAlias = Generator[Step, Any, _Answer]
"""Decisions: each step is yielded, its result is sent back, and its error is raised there."""


def carry_out(engine: Engine, step: Step) -> Any:
    """Carry out a step with a sync engine."""
    if isinstance(step, Query):
        with explained(), engine.connect() as connection:
            return step.call(connection)
    if isinstance(step, Work):
        return step.call()
    time.sleep(step.seconds)
    return None


async def carry_out_async(engine: AsyncEngine, step: Step) -> Any:
    """Carry out a step with an async engine; work is done in a thread."""
    if isinstance(step, Query):
        with explained():
            async with engine.connect() as connection:
                return await connection.run_sync(step.call)
    if isinstance(step, Work):
        return await asyncio.to_thread(step.call)
    await asyncio.sleep(step.seconds)
    return None
