"""Partitions that are read side by side, each in a task of its own."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from zeroeventhub._follow import Await, Claim, Discover, Outcome, Pause, Start, Step, Stop
from zeroeventhub.consumer.access import AsyncAccess
from zeroeventhub.consumer.applying.delivery import AsyncDeliveries
from zeroeventhub.consumer.driving import drive_async
from zeroeventhub.consumer.running.partition_task import PartitionTask
from zeroeventhub.consumer.running.run import Leave, Run

__all__ = ["Tasks"]


class Tasks:
    """Decide in the calling task which partitions to read, and read each in one of its own.

    Args:
        run: what they have in common.
        access: reaches the feed and the store.
        apply: applies what was read.
        sessions: makes ORM sessions, where `apply` asks for one.
    """

    def __init__(
        self,
        run: Run,
        access: AsyncAccess,
        apply: Callable[..., object],
        sessions: Callable[[], Any] | None,
    ) -> None:
        self._run = run
        self._access = access
        self._deliveries = AsyncDeliveries(run.options, apply, sessions)
        self._news: asyncio.Queue[Outcome | BaseException | None] = asyncio.Queue()
        self._tasks: dict[int, PartitionTask] = {}
        self._outcomes: list[Outcome] = []

    def wake(self) -> None:
        """Let it be looked up whether to end."""
        self._news.put_nowait(None)

    async def drive(self) -> None:
        """Read until everything is read, or until stopped; give all leases back at the end."""
        try:
            await drive_async(self._run.crew().steps(), self._carry_out)
        finally:
            await self._end()

    async def _carry_out(self, step: Step) -> Any:
        match step:
            case Discover():
                info = await self._access.discover()
                self._deliveries.inbox = self._run.discovered(info)
                return info
            case Start():
                task = PartitionTask(
                    step, self._run, self._access, self._deliveries, self._news.put_nowait
                )
                task.start()
                self._tasks[step.partition.id] = task
            case Stop():
                for partition in step.partitions & self._tasks.keys():
                    self._tasks[partition].stop()
            case Await():
                return await self._await(step.seconds)
            case Pause():
                self._run.log.waits(step)
                with suppress(TimeoutError):
                    async with asyncio.timeout(step.seconds):
                        while not self._run.stopped():
                            await self._listen()
            case _:
                return await self._keep(step)
        return None

    async def _keep(self, step: Step) -> Any:
        # Before all others: the renewal of a lease must not wait long for what it protects.
        async with self._run.writers.one_async(first=True):
            result = await self._access.keep(self._run.book.carry_out, step)
        if isinstance(step, Claim):
            self._run.claimed(result)
            if self._run.book.is_pruning_due():
                async with self._run.writers.one_async():
                    await self._access.keep(self._run.book.prune)
        return result

    async def _await(self, seconds: float) -> tuple[Outcome, ...]:
        if not self._outcomes:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._listen()
        outcomes, self._outcomes = tuple(self._outcomes), []
        for outcome in outcomes:
            await self._tasks.pop(outcome.partition).join()
        return outcomes

    async def _listen(self) -> None:
        """Collect how readings ended, as soon as one has, or there is something to look up."""
        self._note(await self._news.get())
        while not self._news.empty():
            self._note(self._news.get_nowait())

    def _note(self, news: Outcome | BaseException | None) -> None:
        if isinstance(news, BaseException):
            raise news
        if news is not None:
            self._outcomes.append(news)

    async def _end(self) -> None:
        # What is left here runs in a run that was cancelled, and is cancelled with it.
        for task in self._tasks.values():
            task.cancel()
        for task in self._tasks.values():
            await task.join()
        await drive_async(self._run.leaving(), self._leave)

    async def _leave(self, _: Leave) -> None:
        async with self._run.writers.one_async(first=True):
            await self._access.keep(self._run.book.leave)
