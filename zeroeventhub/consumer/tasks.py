"""Partitions that are read side by side, each in a task of its own, with one that reads ahead."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from zeroeventhub.client import AsyncClient
from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.landing import prepare_rows
from zeroeventhub.consumer.page import Wish
from zeroeventhub.consumer.page_transactions import PageTransactions, Result, Transact, Work
from zeroeventhub.consumer.run import Leave, Run, Turn
from zeroeventhub.consumer.steps import (
    Await,
    Claim,
    Deliver,
    Discover,
    Fetch,
    Load,
    Outcome,
    Pause,
    Start,
    Step,
    Stop,
)
from zeroeventhub.consumer.store_session import in_store_async
from zeroeventhub.driving import drive_async, drop_traceback
from zeroeventhub.errors import Fenced
from zeroeventhub.protocol import Page
from zeroeventhub.wire.ndjson import PageEvents

__all__ = ["AsyncPrefetcher", "Tasks"]


class AsyncPrefetcher:
    """Fetch and decode pages, one of them ahead of when it is asked for, in a task of its own.

    Args:
        client: reads the feed.
        config: the consumer's.
        wish: what the pages will be made into.
    """

    def __init__(self, client: AsyncClient, config: Config, wish: Wish) -> None:
        self._client = client
        self._config = config
        self._wish = wish
        self._step: Fetch | None = None
        self._page: asyncio.Future[Page] | None = None

    async def start(self, step: Fetch) -> None:
        """Begin to fetch; see `Prefetcher.start`."""
        if step == self._step:
            return
        await self.drop()
        self._step, self._page = step, asyncio.ensure_future(self._ask(step))

    def has(self, step: Fetch) -> bool:
        """Tell whether the page of a step is on its way, or here."""
        return step == self._step

    async def fetch(self, step: Fetch) -> Page:
        """Return the page of a step, or raise its error; see `Prefetcher.fetch`."""
        await self.start(step)
        assert self._page is not None  # noqa: S101 - it has just been started
        try:
            return await self._page
        finally:
            self._step = self._page = None

    def cancel(self) -> None:
        """Wait no longer for what is on its way."""
        if self._page is not None:
            self._page.cancel()

    async def drop(self) -> None:
        """Forget what came ahead."""
        page, self._step, self._page = self._page, None, None
        if page is not None:
            page.cancel()
            # Its error is nobody's: the page was not asked for.
            await asyncio.gather(page, return_exceptions=True)

    async def _ask(self, step: Fetch) -> Page:
        config, wish, started = self._config, self._wish, time.monotonic()
        page = await self._client.fetch(
            step.partition,
            step.cursor,
            limit=config.limit,
            types=config.types,
            wait=step.wait,
            data_type=wish.data_type,
        )
        seconds = time.monotonic() - started
        config.observer.fetched(config.name, step.partition, len(page.events), seconds)
        if wish.form is not None and isinstance(page.events, PageEvents):
            prepare_rows(wish.form, page.events)
        return page


class PartitionTask:
    """Read one partition until it is drained, or until stopped; see PartitionThread."""

    def __init__(
        self,
        start: Start,
        run: Run,
        client: AsyncClient,
        transactions: PageTransactions,
        report: Callable[[Outcome | BaseException], object],
    ) -> None:
        self._partition = start.partition.id
        self._run = run
        self._transactions = transactions
        self._report = report
        self._stopping = asyncio.Event()
        self._follower = run.follower(start, transactions, self._stopping.is_set)
        self._turn = Turn(run.workers)
        self._prefetcher = AsyncPrefetcher(client, run.config, transactions.wish)
        self._has_page = False
        self._has_read = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to read."""
        self._run.running.add(self._partition)
        name = f"{self._run.config.name}, partition {self._partition}"
        self._task = asyncio.create_task(self._read(), name=name)

    def finish(self) -> None:
        """End after the page at hand, or the one that is on its way."""
        self._stopping.set()

    def stop(self) -> None:
        """End after the page at hand; a page that is only on its way is not waited for."""
        self._stopping.set()
        self._prefetcher.cancel()

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
            drained = await drive_async(self._follower.steps(), self._carry_out)
        except Exception as error:  # noqa: BLE001 - the crew judges it
            self._run.log.ended(self._partition, error)
            return Outcome(self._partition, error, read=self._has_read)
        return Outcome(self._partition, drained=drained, read=self._has_read)

    async def _carry_out(self, step: Step | Transact) -> Any:
        if isinstance(step, Pause):
            # Who has a page keeps the turn, so that pages are never more than turns.
            if not self._has_page:
                await self._rest()
            self._run.log.waits(step, self._partition)
            drop_traceback(step.reason)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), step.seconds)
            return None
        if isinstance(step, Fetch):
            self._has_page = False
            if self._turn.is_long and not self._prefetcher.has(step):
                await self._rest()
        if self._turn.since is None:
            await self._turn.take_async()
        if isinstance(step, Fetch):
            page = await self._prefetcher.fetch(step)
            self._has_page = bool(page.events)
            self._has_read = True
            return page
        async with self._run.writers.slot_async():
            if isinstance(step, Transact):
                return await self._transact(step)
            return await self._keep(step)

    async def _transact(self, transact: Transact) -> list[Result]:
        transactions, works = self._transactions, transact.works
        step = works[0].step
        self._has_page = isinstance(step, Deliver)
        if isinstance(step, Deliver) and step.ahead is not None:
            await self._prefetcher.start(step.ahead)
        if len(works) == 1 or transactions.at_once == 1:
            return [await transactions.do_async(work) for work in works]
        free = asyncio.Semaphore(transactions.at_once)

        async def do(work: Work) -> Result:
            async with free:
                return await transactions.do_async(work)

        async with asyncio.TaskGroup() as lanes:
            tasks = [lanes.create_task(do(work)) for work in works]
        return [task.result() for task in tasks]

    async def _keep(self, step: Step) -> Any:
        config = self._run.config
        try:
            carry_out = partial(self._run.store_steps.carry_out, step)
            return await in_store_async(config.store, carry_out)
        except Fenced as error:
            if not isinstance(step, Load):
                self._run.log.fenced(self._partition, error)
            raise

    async def _rest(self) -> None:
        """Let others work."""
        await self._prefetcher.drop()
        self._turn.end()


class Tasks:
    """Decide in the calling task which partitions to read, and read each in one of its own.

    Args:
        run: what they have in common.
        client: reads the feed.
        transactions: apply pages.
    """

    def __init__(self, run: Run, client: AsyncClient, transactions: PageTransactions) -> None:
        self._run = run
        self._client = client
        self._transactions = transactions
        self._news: asyncio.Queue[Outcome | BaseException | None] = asyncio.Queue()
        self._tasks: dict[int, PartitionTask] = {}
        self._outcomes: list[Outcome] = []

    def wake(self) -> None:
        """Let it be looked up whether to end; no partition begins another page then."""
        if self._run.stopped():
            for task in self._tasks.values():
                task.finish()
        self._news.put_nowait(None)

    async def drive(self) -> None:
        """Read until everything is read, or until stopped; give all leases back at the end."""
        try:
            await drive_async(self._run.crew().steps(), self._carry_out)
        finally:
            # What is left here runs in a run that was cancelled, and is cancelled with it.
            for task in self._tasks.values():
                task.cancel()
            for task in self._tasks.values():
                await task.join()
            await drive_async(self._run.leaving(), self._leave)

    async def _carry_out(self, step: Step) -> Any:
        match step:
            case Discover():
                info = await self._client.discover()
                self._transactions.inbox = self._run.discovered(info)
                return info
            case Start():
                task = PartitionTask(
                    step, self._run, self._client, self._transactions, self._news.put_nowait
                )
                task.start()
                self._tasks[step.partition.id] = task
                if self._run.stopped():
                    task.finish()
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
        store, steps = self._run.config.store, self._run.store_steps
        # Before all others: the renewal of a lease must not wait long for what it protects.
        async with self._run.writers.slot_async(first=True):
            result = await in_store_async(store, partial(steps.carry_out, step))
        if isinstance(step, Claim):
            self._run.claimed(result)
            if steps.is_pruning_due():
                async with self._run.writers.slot_async():
                    await in_store_async(store, steps.prune)
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

    async def _leave(self, _: Leave) -> None:
        async with self._run.writers.slot_async(first=True):
            await in_store_async(self._run.config.store, self._run.store_steps.leave)
