"""Partitions that are read side by side, each in a thread of its own, with one that reads ahead."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from zeroeventhub.client import Client
from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.landing import prepare_rows
from zeroeventhub.consumer.page import Wish
from zeroeventhub.consumer.page_transactions import PageTransactions, Result, Transact
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
from zeroeventhub.consumer.store_session import in_store
from zeroeventhub.driving import drive, drop_traceback
from zeroeventhub.errors import Fenced
from zeroeventhub.protocol import Page
from zeroeventhub.wire.ndjson import PageEvents

__all__ = ["Prefetcher", "Threads"]


class Prefetcher:
    """Fetch and decode pages, one of them ahead of when it is asked for, in a thread of its own.

    Args:
        client: reads the feed.
        config: the consumer's.
        wish: what the pages will be made into.
    """

    def __init__(self, client: Client, config: Config, wish: Wish) -> None:
        self._client = client
        self._config = config
        self._wish = wish
        self._step: Fetch | None = None
        self._orders: SimpleQueue[tuple[Fetch, Context] | None] = SimpleQueue()
        self._answers: SimpleQueue[Page | BaseException] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, step: Fetch) -> None:
        """Begin to fetch, unless that has begun: a page at hand may be applied a second time."""
        if step == self._step:
            return
        if self._step is not None:
            self._answers.get()  # what is on its way arrives first, so that memory is bounded
        if self._thread is None:
            name = f"{threading.current_thread().name}, ahead"
            self._thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread.start()
        self._step = step
        self._orders.put((step, copy_context()))

    def has(self, step: Fetch) -> bool:
        """Tell whether the page of a step is on its way, or here."""
        return step == self._step

    def fetch(self, step: Fetch) -> Page:
        """Return the page of a step, or raise its error: what came ahead, if it was for this."""
        known, self._step = self._step, None
        if known is not None:
            answer = self._answers.get()
            if known == step:
                if isinstance(answer, Page):
                    return answer
                try:
                    raise answer
                finally:
                    del answer  # what is raised knows this frame, which must not know it
            del answer
        return self._ask(step)

    def drop(self) -> None:
        """Forget what came ahead, and end the thread."""
        if self._step is not None:
            self._step = None
            self._answers.get()
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Let the thread end by itself, with what it has on its way."""
        self._step = None
        self._orders.put(None)

    def _ask(self, step: Fetch) -> Page:
        config, wish, started = self._config, self._wish, time.monotonic()
        page = self._client.fetch(
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

    def _work(self) -> None:
        while order := self._orders.get():
            step, context = order
            try:
                self._answers.put(context.run(self._ask, step))
            except BaseException as error:  # noqa: BLE001 - raised where the page is asked for
                self._answers.put(error)


class PartitionThread:
    """Read one partition until it is drained, or until stopped.

    Args:
        start: what to read.
        run: what it has in common with other partitions.
        client: reads the feed.
        transactions: apply pages.
        report: is told, in this thread, how the reading ended.
    """

    def __init__(
        self,
        start: Start,
        run: Run,
        client: Client,
        transactions: PageTransactions,
        report: Callable[[Outcome | BaseException], object],
    ) -> None:
        self._partition = start.partition.id
        self._run = run
        self._transactions = transactions
        self._report = report
        self._stopping = threading.Event()
        self._follower = run.follower(start, transactions, self._stopping.is_set)
        self._turn = Turn(run.workers)
        self._prefetcher = Prefetcher(client, run.config, transactions.wish)
        self._has_page = False
        self._has_read = False
        # A daemon, so that a second signal ends the process as always: nothing of it stays.
        self._thread = threading.Thread(
            target=copy_context().run,
            args=(self._read,),
            name=f"{run.config.name}, partition {self._partition}",
            daemon=True,
        )

    def start(self) -> None:
        """Begin to read."""
        self._run.running.add(self._partition)
        self._thread.start()

    def stop(self) -> None:
        """End after the page at hand."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    def _read(self) -> None:
        ending: Outcome | BaseException
        try:
            ending = self._outcome()
        except Exception as error:  # noqa: BLE001 - an observer must not raise, but nobody may wait
            ending = Outcome(self._partition, error)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that runs
            ending = error
        self._rest()
        self._run.running.discard(self._partition)
        self._report(ending)

    def _outcome(self) -> Outcome:
        try:
            drained = drive(self._follower.steps(), self._carry_out)
        except Exception as error:  # noqa: BLE001 - the crew judges it
            self._run.log.ended(self._partition, error)
            return Outcome(self._partition, error, read=self._has_read)
        return Outcome(self._partition, drained=drained, read=self._has_read)

    def _carry_out(self, step: Step | Transact) -> Any:
        if isinstance(step, Pause):
            # Who has a page keeps the turn, so that pages are never more than turns.
            if not self._has_page:
                self._rest()
            self._run.log.waits(step, self._partition)
            drop_traceback(step.reason)
            self._stopping.wait(step.seconds)
            return None
        if isinstance(step, Fetch):
            self._has_page = False
            if self._turn.is_long and not self._prefetcher.has(step):
                self._rest()
        if self._turn.since is None:
            self._turn.take()
        if isinstance(step, Fetch):
            page = self._prefetcher.fetch(step)
            self._has_page = bool(page.events)
            self._has_read = True
            return page
        if waiting := self._run.writers.acquire():
            waiting.result()
        try:
            return self._transact(step) if isinstance(step, Transact) else self._keep(step)
        finally:
            self._run.writers.release()

    def _transact(self, transact: Transact) -> list[Result]:
        transactions, works = self._transactions, transact.works
        step = works[0].step
        self._has_page = isinstance(step, Deliver)
        if isinstance(step, Deliver) and step.ahead is not None:
            self._prefetcher.start(step.ahead)
        if len(works) == 1:
            return [transactions.do(works[0])]
        with ThreadPoolExecutor(transactions.at_once, "zeroeventhub-lane") as lanes:
            # Each in a context of its own, as it was here: traces are kept in it.
            futures = [lanes.submit(copy_context().run, transactions.do, work) for work in works]
        return [future.result() for future in futures]

    def _keep(self, step: Step) -> Any:
        config = self._run.config
        try:
            return in_store(config.store, partial(self._run.store_steps.carry_out, step))
        except Fenced as error:
            if not isinstance(step, Load):
                self._run.log.fenced(self._partition, error)
            raise

    def _rest(self) -> None:
        """Let others work."""
        self._prefetcher.drop()
        self._turn.end()


class Threads:
    """Decide in the calling thread which partitions to read, and read each in one of its own.

    Args:
        run: what they have in common.
        client: reads the feed.
        transactions: apply pages.
    """

    def __init__(self, run: Run, client: Client, transactions: PageTransactions) -> None:
        self._run = run
        self._client = client
        self._transactions = transactions
        self._news: SimpleQueue[Outcome | BaseException | None] = SimpleQueue()
        self._threads: dict[int, PartitionThread] = {}
        self._outcomes: list[Outcome] = []

    def wake(self) -> None:
        """Let all end that is to end, and it be looked up what is."""
        if self._run.stopped():
            for thread in tuple(self._threads.values()):
                thread.stop()
        self._news.put(None)

    def drive(self) -> None:
        """Read until everything is read, or until stopped; give all leases back at the end."""
        try:
            drive(self._run.crew().steps(), self._carry_out)
        finally:
            for thread in self._threads.values():
                thread.stop()
            for thread in self._threads.values():
                thread.join()
            drive(self._run.leaving(), self._leave)

    def _carry_out(self, step: Step) -> Any:
        match step:
            case Discover():
                info = self._client.discover()
                self._transactions.inbox = self._run.discovered(info)
                return info
            case Start():
                thread = PartitionThread(
                    step, self._run, self._client, self._transactions, self._news.put
                )
                self._threads[step.partition.id] = thread
                if self._run.stopped():
                    thread.stop()
                thread.start()
            case Stop():
                for partition in step.partitions & self._threads.keys():
                    self._threads[partition].stop()
            case Await():
                return self._await(step.seconds)
            case Pause():
                self._run.log.waits(step)
                end = time.monotonic() + step.seconds
                while not self._run.stopped() and (left := end - time.monotonic()) > 0:
                    self._listen(left)
            case _:
                return self._keep(step)
        return None

    def _keep(self, step: Step) -> Any:
        store, steps = self._run.config.store, self._run.store_steps
        # Before all others: the renewal of a lease must not wait long for what it protects.
        with self._run.writers.slot(first=True):
            result = in_store(store, partial(steps.carry_out, step))
        if isinstance(step, Claim):
            self._run.claimed(result)
            if steps.is_pruning_due():
                with self._run.writers.slot():
                    in_store(store, steps.prune)
        return result

    def _await(self, seconds: float) -> tuple[Outcome, ...]:
        if not self._outcomes:
            self._listen(seconds)
        outcomes, self._outcomes = tuple(self._outcomes), []
        for outcome in outcomes:
            self._threads.pop(outcome.partition).join()
        return outcomes

    def _listen(self, seconds: float) -> None:
        """Collect how readings ended; return when one has, or there is something to look up."""
        try:
            self._note(self._news.get(timeout=seconds))
            while True:
                self._note(self._news.get_nowait())
        except Empty:
            return

    def _note(self, news: Outcome | BaseException | None) -> None:
        if isinstance(news, BaseException):
            raise news
        if news is not None:
            self._outcomes.append(news)

    def _leave(self, _: Leave) -> None:
        with self._run.writers.slot(first=True):
            in_store(self._run.config.store, self._run.store_steps.leave)
