"""The reading of one partition, in a task of its own."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from zeroeventhub._follow import (
    Advance,
    Deliver,
    Fetch,
    Load,
    Outcome,
    Pause,
    Redeliver,
    Start,
    Step,
)
from zeroeventhub.consumer.access import AsyncAccess
from zeroeventhub.consumer.applying.delivery import AsyncDeliveries
from zeroeventhub.consumer.driving import drive_async, let_go
from zeroeventhub.consumer.running.ahead import AsyncAhead
from zeroeventhub.consumer.running.run import Run
from zeroeventhub.consumer.running.turns import Turn
from zeroeventhub.errors import Fenced
from zeroeventhub.protocol import Page

__all__ = ["PartitionTask"]


class PartitionTask:
    """Read one partition until it is drained, or until stopped; see PartitionThread."""

    def __init__(
        self,
        start: Start,
        run: Run,
        access: AsyncAccess,
        deliveries: AsyncDeliveries,
        report: Callable[[Outcome | BaseException], object],
    ) -> None:
        self._partition = start.partition.id
        self._run = run
        self._access = access
        self._deliveries = deliveries
        self._report = report
        self._stopping = asyncio.Event()
        self._decisions = run.follower(start, self._stopping.is_set)
        self._turn = Turn(run.turns)
        self._ahead = AsyncAhead(access.fetch)
        self._has_page = False
        self._has_read = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read."""
        self._run.running.add(self._partition)
        name = f"{self._run.options.name}, partition {self._partition}"
        self._task = asyncio.create_task(self._read(), name=name)

    def stop(self) -> None:
        """End after the page at hand; a page that is only on its way is not waited for."""
        self._stopping.set()
        self._ahead.cancel()

    def cancel(self) -> None:
        """End now, and leave nothing of the page at hand."""
        if self._task is not None:
            self._task.cancel()

    async def join(self) -> None:
        """Wait for the end."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _read(self) -> None:
        ending: Outcome | BaseException
        try:
            ending = await self._outcome()
        except Exception as error:  # noqa: BLE001 - an observer must not raise, but nobody may wait
            ending = Outcome(self._partition, error)
        except asyncio.CancelledError as error:
            # A page that was on its way is given up when stopped.
            stopped = self._stopping.is_set()
            ending = Outcome(self._partition, read=self._has_read) if stopped else error
        except BaseException as error:  # noqa: BLE001 - raised in the task that runs
            ending = error
        await self._rest()
        self._run.running.discard(self._partition)
        self._report(ending)

    async def _outcome(self) -> Outcome:
        try:
            drained = await drive_async(self._decisions.steps(), self._carry_out)
        except Exception as error:  # noqa: BLE001 - the crew judges it
            self._run.log.ended(self._partition, error)
            return Outcome(self._partition, error, read=self._has_read)
        return Outcome(self._partition, drained=drained, read=self._has_read)

    async def _carry_out(self, step: Step) -> Any:
        if isinstance(step, Pause):
            # Who has a page keeps the turn, so that pages are never more than turns.
            if not self._has_page:
                await self._rest()
            self._run.log.waits(step, self._partition)
            let_go(step.reason)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), step.seconds)
            return None
        if isinstance(step, Fetch):
            return await self._fetch(step)
        await self._turn.take_async()
        try:
            async with self._run.writers.one_async():
                return await self._write(step)
        except Fenced as error:
            if not isinstance(step, Load):
                self._run.log.fenced(self._partition, error)
            raise

    async def _fetch(self, step: Fetch) -> Page:
        if self._turn.is_long and not self._ahead.has(step):
            await self._rest()
        await self._turn.take_async()
        page = await self._ahead.fetch(step)
        self._has_page = bool(page.events)
        self._has_read = True
        return page

    async def _write(self, step: Step) -> Any:
        match step:
            case Deliver():
                if step.ahead is not None:
                    await self._ahead.start(step.ahead)
                await self._deliveries.deliver(step)
                self._has_page = False
            case Advance():
                await self._deliveries.advance(step)
            case Redeliver():
                await self._deliveries.redeliver(step)
                self._run.redelivered(self._partition)
            case _:
                return await self._access.keep(self._run.book.carry_out, step)
        return None

    async def _rest(self) -> None:
        """Let others work."""
        await self._ahead.drop()
        self._turn.give_back()
