"""The asynchronous consumer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

from zeroeventhub._follow import Deliver, Discover, Fetch, Pause, Step
from zeroeventhub.client import AsyncClient
from zeroeventhub.consumer.access import AsyncAccess
from zeroeventhub.consumer.applying.pending_page import AsyncPendingPage
from zeroeventhub.consumer.driving import next_step
from zeroeventhub.consumer.following import Following
from zeroeventhub.consumer.running.run import Run
from zeroeventhub.consumer.running.stopping import stop_on_signals
from zeroeventhub.consumer.running.tasks import Tasks
from zeroeventhub.consumer.telling import AsyncTeller
from zeroeventhub.errors import ZeroEventHubError

__all__ = ["AsyncConsumer"]


class AsyncConsumer(Following[AsyncClient]):
    """Follow a feed and keep the cursors in a database, asynchronously.

    The arguments are those of Consumer, with an AsyncClient and a store made with an AsyncEngine.
    """

    _client_type = AsyncClient

    async def __aiter__(self) -> AsyncIterator[AsyncPendingPage]:
        """Yield pages that have events, one partition after the other, without leases."""
        access = AsyncAccess(self.client, self._options, self._reading)
        teller = AsyncTeller(self.client, access, self._options, self._log)
        steps = self._follower().steps()
        bell = asyncio.Event()
        go_on: Callable[[], Step] = partial(next, steps)
        with self._woken_by(bell.set):
            while (step := next_step(go_on)) is not None:
                if teller.is_due:
                    await teller.tell()
                if isinstance(step, Deliver):
                    yield AsyncPendingPage.of(self._options, step)
                    go_on = partial(steps.send, None)
                    continue
                try:
                    go_on = partial(steps.send, await self._carry_out(access, step, bell))
                except ZeroEventHubError as error:
                    go_on = partial(steps.throw, error)
            await teller.tell()

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
        access = AsyncAccess(self.client, self._options, self._reading)
        engine = access.engine.sync_engine
        run = Run(self._options, self._reading, engine, self._is_stopped)
        tasks = Tasks(run, access, apply, sessions)
        loop = asyncio.get_running_loop()
        stop = partial(loop.call_soon_threadsafe, self.stop)
        teller = AsyncTeller(self.client, access, self._options, self._log)
        signals = stop_on_signals(stop) if handle_signals else nullcontext()
        with signals, self._woken_by(tasks.wake):
            async with teller.beside():
                await tasks.drive()

    async def _carry_out(self, access: AsyncAccess, step: Step, bell: asyncio.Event) -> Any:
        match step:
            case Discover():
                return await access.discover()
            case Fetch():
                return await access.fetch(step)
            case Pause():
                self._log.waits(step)
                with suppress(TimeoutError):
                    await asyncio.wait_for(bell.wait(), step.seconds)
                return None
        return await access.keep(self._book.carry_out, step)
