"""How a feed with a database behind it is trimmed, sync or async."""

from asyncio import to_thread
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.archived.sealer import Sealer
from zeroeventhub.publisher.deleting import async_delete_all, delete_all, unheard
from zeroeventhub.publisher.trimming.cut import SILENCE, Cut
from zeroeventhub.publisher.trimming.plan import TrimPlan
from zeroeventhub.publisher.trimming.trimmer import Trimmer

__all__ = ["ROWS", "AsyncTrimming", "Trimming"]

ROWS = 1_000
"""How many events a batch of trimming deletes, at most."""


class Trimming:
    """Trim a feed through a sync engine."""

    _engine: Engine
    _trimmer: Trimmer | None
    _sealer: Sealer | None
    _ask: Callable[..., Any]

    def plan_trim(
        self,
        *,
        older_than: timedelta | None = None,
        below: int | str | None = None,
        sealed: int | Callable[[], int] | None = None,
        silence: timedelta = SILENCE,
    ) -> TrimPlan:
        """Say which events would be trimmed, and what holds it back; nothing is changed.

        Args:
            older_than: events that happened so long ago, if all before them did.
            below: events below this position, or before this cursor.
            sealed: events up to this position, which are kept elsewhere; or what tells it. If the
                feed has an archive, what is not in that stays in any case.
            silence: for how long a consumer that registers its progress is waited for if it is not
                heard of; a minute at least. With an archive nobody is waited for.

        Raises:
            ConfigurationError: nothing is given, the feed has no `retention`, or its archive is
                that of another feed.
            Gone: its archive has another history than the table.
            Unavailable: the horizon is not known yet, or the archive's store did not answer.
        """
        cut = Cut(older_than=older_than, below=below, sealed=sealed, silence=silence)
        if self._sealer is not None:
            cut = replace(cut, kept=self._sealer.kept())
        plan: TrimPlan = self._ask(_known(self._trimmer).plan, cut)
        return plan

    def trim(
        self, plan: TrimPlan, *, rows: int = ROWS, told: Callable[[int, int], None] = unheard
    ) -> int:
        """Delete what a plan says from the table, in batches; return how many events are gone.

        Each is a transaction with the mark that tells of it: stop anywhere, and plan anew.

        Args:
            plan: made by `plan_trim`.
            rows: how many events a batch deletes, at most.
            told: is called behind each batch with how many events are gone, and up to where.

        Raises:
            Unavailable: others have kept what is to be deleted locked, however often it was tried.
        """
        step = _known(self._trimmer).step(plan, rows)
        return delete_all(self._engine, step, 0, told)


class AsyncTrimming:
    """Trim a feed through an async engine."""

    _engine: AsyncEngine
    _trimmer: Trimmer | None
    _sealer: Sealer | None
    _ask: Callable[..., Any]

    async def plan_trim(
        self,
        *,
        older_than: timedelta | None = None,
        below: int | str | None = None,
        sealed: int | Callable[[], int] | None = None,
        silence: timedelta = SILENCE,
    ) -> TrimPlan:
        """Say which events would be trimmed; see `Trimming.plan_trim`."""
        cut = Cut(older_than=older_than, below=below, sealed=sealed, silence=silence)
        if self._sealer is not None:
            cut = replace(cut, kept=await to_thread(self._sealer.kept))
        plan: TrimPlan = await self._ask(_known(self._trimmer).plan, cut)
        return plan

    async def trim(
        self, plan: TrimPlan, *, rows: int = ROWS, told: Callable[[int, int], None] = unheard
    ) -> int:
        """Delete what a plan says from the table; see `Trimming.trim`."""
        step = _known(self._trimmer).step(plan, rows)
        return await async_delete_all(self._engine, step, 0, told)


def _known(trimmer: Trimmer | None) -> Trimmer:
    """Refuse to trim a feed that would not know of it."""
    if trimmer is None:
        raise ConfigurationError(
            "Nobody would know what was trimmed of this feed: give it a place to keep that, "
            "TableFeed(…, retention=Retention())."
        )
    return trimmer
