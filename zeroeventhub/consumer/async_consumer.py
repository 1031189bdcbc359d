"""The asynchronous consumer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from zeroeventhub.client import AsyncClient
from zeroeventhub.consumer.base import BaseConsumer
from zeroeventhub.consumer.page import AsyncPendingPage, Wish
from zeroeventhub.consumer.page_transactions import PageTransactions
from zeroeventhub.consumer.progress import AsyncProgressReporter
from zeroeventhub.consumer.run import Run
from zeroeventhub.consumer.signals import stop_on_signals
from zeroeventhub.consumer.steps import Deliver, Discover, Fetch, Pause, Step
from zeroeventhub.consumer.store_session import StoreSteps, async_engine, in_store_async
from zeroeventhub.consumer.tasks import AsyncPrefetcher, Tasks
from zeroeventhub.driving import next_step
from zeroeventhub.errors import ZeroEventHubError

__all__ = ["AsyncConsumer"]


class AsyncConsumer(BaseConsumer[AsyncClient]):
    """Follow a feed and keep the cursors in a database, asynchronously.

    The arguments are those of Consumer, with an AsyncClient and a store made with an AsyncEngine.
    """

    _client_type = AsyncClient

    async def __aiter__(self) -> AsyncIterator[AsyncPendingPage]:
        """Yield pages that have events, one partition after the other, without leases."""
        reporter = AsyncProgressReporter(self.client, self._config, self._log)
        wish = Wish()
        prefetcher = AsyncPrefetcher(self.client, self._config, wish)
        steps = self._follower().steps()
        bell = asyncio.Event()
        go_on: Callable[[], Step] = partial(next, steps)
        try:
            with self._woken_by(bell.set):
                while (step := next_step(go_on)) is not None:
                    if reporter.is_due:
                        await reporter.report()
                    if isinstance(step, Deliver):
                        if step.ahead is not None:
                            await prefetcher.start(step.ahead)
                        page = step.page
                        yield AsyncPendingPage(
                            step.partition, page.events, page.cursor, step.place, self._config, wish
                        )
                        go_on = partial(steps.send, None)
                        continue
                    try:
                        result = await self._carry_out(prefetcher, step, bell)
                        go_on = partial(steps.send, result)
                    except ZeroEventHubError as error:
                        go_on = partial(steps.throw, error)
                await reporter.report()
        finally:
            await prefetcher.drop()

    async def run(
        self,
        apply: Callable[..., object],
        *,
        sessions: Callable[[], Any] | None = None,
        handle_signals: bool = False,
    ) -> None:
        """Apply everything in transactions that move the cursors; see `Consumer.run`.

        Each partition is read in a task of its own. A page that is on its way when the consumer is
        stopped is not waited for. `apply` is a coroutine function, or an ordinary one that is given
        a sync connection or session.
        """
        log, engine = self._log, async_engine(self.store).sync_engine
        run = Run(self._config, engine, log, self._is_stopped)
        transactions = PageTransactions(self._config, apply, sessions, log, run.letters)
        tasks = Tasks(run, self.client, transactions)
        loop = asyncio.get_running_loop()
        stop = partial(loop.call_soon_threadsafe, self.stop)
        reporter = AsyncProgressReporter(self.client, self._config, log)
        signals = stop_on_signals(stop) if handle_signals else nullcontext()
        with signals, self._woken_by(tasks.wake):
            async with reporter.beside():
                await tasks.drive()

    async def _carry_out(self, prefetcher: AsyncPrefetcher, step: Step, bell: asyncio.Event) -> Any:
        match step:
            case Discover():
                return await self.client.discover()
            case Fetch():
                return await prefetcher.fetch(step)
            case Pause():
                self._log.waits(step)
                with suppress(TimeoutError):
                    await asyncio.wait_for(bell.wait(), step.seconds)
                return None
        carry_out = partial(StoreSteps(self._config).carry_out, step)
        return await in_store_async(self.store, carry_out)
