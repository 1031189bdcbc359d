"""The consumer: pages in, effects and cursor committed in one transaction."""

from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from zeroeventhub.client import Client
from zeroeventhub.consumer.base import BaseConsumer
from zeroeventhub.consumer.page import PendingPage, Wish
from zeroeventhub.consumer.page_transactions import PageTransactions
from zeroeventhub.consumer.progress import ProgressReporter
from zeroeventhub.consumer.run import Run
from zeroeventhub.consumer.signals import stop_on_signals
from zeroeventhub.consumer.steps import Deliver, Discover, Fetch, Pause, Step
from zeroeventhub.consumer.store_session import StoreSteps, in_store, sync_engine
from zeroeventhub.consumer.threads import Prefetcher, Threads
from zeroeventhub.driving import next_step
from zeroeventhub.errors import ZeroEventHubError

__all__ = ["Consumer"]


class Consumer(BaseConsumer[Client]):
    """Follow a feed and keep the cursors in a database.

    Run it with a function that applies events: partitions are read side by side, and shared with
    all processes that run a consumer of this name. Or iterate to get pages, one partition after
    the other, and commit each in the transaction of its effects; a page that is not committed is
    read again.

    What is fetched and not yet applied takes at most 2 * concurrency * the client's
    `limits.page_bytes`, in bytes as the feed sent them: of every partition that is worked on, the
    page that is applied, and the one behind it.

    Args:
        client: reads the feed.
        store: keeps the cursors; made with a sync engine.
        name: the consumer's name: its key in the store.
        start: where a consumer that has no cursors yet starts: FIRST, LAST, or a cursor. In
            partitions that come later it starts at the first event.
        partitions: the partitions to read; None for all. A process that names them reads those
            that nobody else reads, and is given no share of others.
        follow: wait for more events at the head; otherwise end there.
        limit: how many events to ask for in a page.
        types: the types of events to ask for; None for all.
        poll_interval: seconds between two looks at the head.
        attempts: how often a request to the feed or the store is tried, with growing pauses,
            before its error is raised; None for no limit.
        concurrency: how many partitions are worked on at a time; more of them take turns.
        lanes: how many events of a page are applied at a time, those of one key in order.
        lease: seconds after which the partitions of a process that died are read by another.
        failures: what becomes of a page whose handler raises.
        key: says which events have to stay in order; by default a CloudEvent's partitionkey or
            subject.
        identity: says which events are the same; by default a CloudEvent's source and id.
        inbox: whether to drop events that were applied before; None for feeds that do not promise
            to publish an event only once.
        inbox_days: how many days the inbox remembers an event.
        observer: is told of the work.
        register_progress: tell the publisher what has been committed, every ten seconds and at the
            end, so that trimming waits for it; see docs/retention.md.
        synchronous_commit: whether PostgreSQL has a page of `run` on disk before the next one is
            applied. Without, effects and cursor of the last pages may be lost, together, where the
            database's server crashes, and these pages are read again.

    Raises:
        ConfigurationError: an option is out of its range.
    """

    _client_type = Client

    def __iter__(self) -> Iterator[PendingPage]:
        """Yield pages that have events, one partition after the other, without leases."""
        reporter = ProgressReporter(self.client, self._config, self._log)
        wish = Wish()
        prefetcher = Prefetcher(self.client, self._config, wish)
        steps = self._follower().steps()
        bell: SimpleQueue[None] = SimpleQueue()
        go_on: Callable[[], Step] = partial(next, steps)
        with self._woken_by(partial(bell.put, None)), closing(prefetcher):
            while (step := next_step(go_on)) is not None:
                if reporter.is_due:
                    reporter.report()
                if isinstance(step, Deliver):
                    if step.ahead is not None:
                        prefetcher.start(step.ahead)
                    page = step.page
                    yield PendingPage(
                        step.partition, page.events, page.cursor, step.place, self._config, wish
                    )
                    go_on = partial(steps.send, None)
                    continue
                try:
                    go_on = partial(steps.send, self._carry_out(prefetcher, step, bell))
                except ZeroEventHubError as error:
                    go_on = partial(steps.throw, error)
            reporter.report()

    def run(
        self,
        apply: Callable[..., object],
        *,
        sessions: Callable[[], Any] | None = None,
        handle_signals: bool = False,
    ) -> None:
        """Apply everything in transactions that move the cursors, until stopped.

        Each partition is read in a thread of its own, so `apply` is called in several at a time.
        Partitions are leased: a process that ends gives them to the others, and one that died, or
        was stopped for longer than a lease, is fenced when it commits.

        Args:
            apply: writes the effects, through the transaction that it is given first.
            sessions: makes an ORM session of the store's engine, where `apply` asks for one.
            handle_signals: stop at SIGTERM and SIGINT, after the pages at hand: for programs that
                do nothing but consume. Elsewhere call `stop` when the program ends.

        Raises:
            Halted: a partition stands still, because `apply` went on raising.
            ConfigurationError: the store's engine cannot be used by several threads, or signals
                are to be handled and this is not the main thread.
        """
        log, stopped = self._log, self._is_stopped
        run = Run(self._config, sync_engine(self.store), log, stopped)
        transactions = PageTransactions(self._config, apply, sessions, log, run.letters)
        threads = Threads(run, self.client, transactions)
        reporter = ProgressReporter(self.client, self._config, log)
        signals = stop_on_signals(self.stop) if handle_signals else nullcontext()
        with signals, self._woken_by(threads.wake), reporter.beside():
            threads.drive()

    def _carry_out(self, prefetcher: Prefetcher, step: Step, bell: SimpleQueue[None]) -> Any:
        match step:
            case Discover():
                return self.client.discover()
            case Fetch():
                return prefetcher.fetch(step)
            case Pause():
                self._log.waits(step)
                with suppress(Empty):
                    bell.get(timeout=step.seconds)
                return None
        return in_store(self.store, partial(StoreSteps(self._config).carry_out, step))
