"""How a feed with a database behind it is compacted, sync or async."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.compacting.compactor import Compactor, Span
from zeroeventhub.publisher.deleting import async_delete_all, delete_all, unheard

__all__ = ["ROWS", "AsyncCompacting", "Compacting"]

ROWS = 1_000
"""How many events a batch looks at, at most."""


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
        return delete_all(self._engine, compactor.step(span, rows), span.after, told)


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
        step = compactor.step(span, rows)
        return await async_delete_all(self._engine, step, span.after, told)


def _known(compactor: Compactor | None) -> Compactor:
    if compactor is None:
        raise ConfigurationError(
            "This feed does not say that it keeps the last event of each key alone: "
            "TableFeed(…, key=…, compaction=Compaction(), retention=Retention())."
        )
    return compactor
