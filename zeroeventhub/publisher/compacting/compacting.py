"""How a feed with a database behind it is compacted, sync or async."""

import asyncio
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.publisher.compacting.compactor import Compactor, Span
from zeroeventhub.publisher.database_error import explained
from zeroeventhub.publisher.trimming.pacing import LEAST, LONGEST, TRIES, unheard
from zeroeventhub.publisher.trimming.patience import impatient

__all__ = ["ROWS", "AsyncCompacting", "Compacting"]

ROWS = 1_000
"""How many events a batch looks at, at most."""


@dataclass(frozen=True)
class _Looked:
    """Hold what became of a batch.

    Attributes:
        events: how many were deleted.
        reached: up to where events were looked at.
        seconds: how long it took.
        error: why it could not be; None if it could.
    """

    events: int
    reached: int
    seconds: float
    error: Unavailable | None = None


class Compacting:
    """Compact a feed through a sync engine."""

    _engine: Engine
    _compactor: Compactor | None
    _ask: Callable[..., Any]

    def compact(
        self,
        *,
        older_than: timedelta | None = None,
        rows: int = ROWS,
        told: Callable[[int, int], None] = unheard,
    ) -> int:
        """Delete events behind which there is a later one of their key; return how many.

        Each batch is a transaction with the mark that tells of it: stop anywhere, and begin anew.

        Args:
            older_than: leave what happened later than so long ago; None to go up to the horizon.
            rows: how many events a batch looks at, at most.
            told: is called behind each batch with how many events are gone, and up to where it
                looked.

        Raises:
            ConfigurationError: the feed does not say that it is compacted.
            Unavailable: others have kept what is to be deleted locked, however often it was tried.
        """
        compactor = _known(self._compactor)
        span: Span = self._ask(compactor.span, older_than)
        course = _course(span, told)
        pause, after = next(course)
        while True:
            time.sleep(pause)
            with self._engine.connect() as connection:
                looked = _batch(connection, compactor, span, after, rows)
            try:
                pause, after = course.send(looked)
            except StopIteration as end:
                return int(end.value)


class AsyncCompacting:
    """Compact a feed through an async engine."""

    _engine: AsyncEngine
    _compactor: Compactor | None
    _ask: Callable[..., Any]

    async def compact(
        self,
        *,
        older_than: timedelta | None = None,
        rows: int = ROWS,
        told: Callable[[int, int], None] = unheard,
    ) -> int:
        """Delete events behind which there is a later one; see `Compacting.compact`."""
        compactor = _known(self._compactor)
        span: Span = await self._ask(compactor.span, older_than)
        course = _course(span, told)
        pause, after = next(course)
        while True:
            await asyncio.sleep(pause)
            async with self._engine.connect() as connection:
                looked = await connection.run_sync(_batch, compactor, span, after, rows)
            try:
                pause, after = course.send(looked)
            except StopIteration as end:
                return int(end.value)


def _batch(
    connection: Connection, compactor: Compactor, span: Span, after: int, rows: int
) -> _Looked:
    """Compact some events, in a transaction of their own."""
    began = monotonic()
    try:
        with explained(), impatient(connection):
            events, reached = compactor.compact(connection, span, after, rows)
            connection.commit()
    except Unavailable as error:
        return _Looked(0, after, monotonic() - began, error)
    return _Looked(events, reached, monotonic() - began)


def _course(
    span: Span, told: Callable[[int, int], None]
) -> Generator[tuple[float, int], _Looked, int]:
    """Decide when to look at which events; batches take half of the time."""
    events = tries = 0
    pause, after = 0.0, span.after
    while True:
        looked = yield pause, after
        if looked.error is not None:
            tries += 1
            if tries == TRIES:
                raise looked.error
            pause = min(LEAST * 2**tries, LONGEST)
            continue
        tries = 0
        pause, after = max(looked.seconds, LEAST), looked.reached
        events += looked.events
        told(events, after)
        if after >= span.until:
            return events


def _known(compactor: Compactor | None) -> Compactor:
    if compactor is None:
        raise ConfigurationError(
            "This feed does not say that it keeps the last event of each key alone: "
            "TableFeed(…, key=…, compaction=Compaction(), retention=Retention())."
        )
    return compactor
