"""The consumer: pages in, effects and cursor committed in one transaction."""

import asyncio
import math
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from functools import partial
from time import monotonic
from types import FrameType
from typing import Any, ClassVar, Generic, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.client import AsyncClient, Client
from zeroeventhub.consumer.concurrency import Tasks, Threads
from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.follower import Follower
from zeroeventhub.consumer.page import AsyncPendingPage, DecodeHint, PendingPage
from zeroeventhub.consumer.runner import Runner
from zeroeventhub.consumer.steps import Deliver, Discover, Fetch, Pause, Step
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.consumer.store_session import carry_out, expect_transactions, in_store
from zeroeventhub.coroutines import blocking, maybe_await, next_step
from zeroeventhub.errors import BadRequest, ConfigurationError, Gone, ZeroEventHubError
from zeroeventhub.protocol import FIRST, LAST

_AnyClient = TypeVar("_AnyClient", Client, AsyncClient)


@dataclass(eq=False, repr=False)
class _Consumer(Config, Generic[_AnyClient]):
    """Follow a feed by the options of a consumer."""

    client: _AnyClient
    _client_type: ClassVar[type[Client | AsyncClient]]
    _engine_type: ClassVar[type[Engine | AsyncEngine]]
    _wrong_engine: ClassVar[str]

    def __post_init__(self) -> None:
        """Check the options; raise ConfigurationError if one is out of its range."""
        client: object = self.client
        kinds = Client | AsyncClient | str
        if isinstance(client, kinds) and not isinstance(client, self._client_type):
            raise ConfigurationError(
                f"The client of {type(self).__name__} is of the class "
                f"{self._client_type.__name__}, not {type(client).__name__}."
            )
        store: object = self.store
        if not isinstance(store, CursorStore):
            raise ConfigurationError(
                f"A consumer keeps its cursors in a CursorStore, such as CursorStore(engine), not "
                f"in an object of the class {type(store).__name__}."
            )
        super().__post_init__()
        # A copy: another user of the client may discover a new layout, which this one must notice.
        self.client = copy(self.client)
        self._was_stopped = False
        self._wakes: list[Callable[[], object]] = []

    def stop(self) -> None:
        """End before the next page; a stopped consumer cannot be started again.

        Call it for a Consumer from any thread or signal handler, for an AsyncConsumer in its event
        loop.
        """
        self._was_stopped = True
        for wake in tuple(self._wakes):
            wake()

    @contextmanager
    def _woken_by(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call a function when the consumer is stopped, for the length of a block."""
        self._wakes.append(wake)
        try:
            yield
        finally:
            self._wakes.remove(wake)

    def _check_engine(self) -> None:
        if not isinstance(self.store.engine, self._engine_type):
            raise ConfigurationError(self._wrong_engine)

    async def _run(
        self,
        concurrency: Threads | Tasks,
        apply: Callable[..., object],
        sessions: Callable[[], Any] | None,
        stop_on_signal: Callable[[], object] | None,
    ) -> None:
        """Apply everything; with threads, this never suspends."""
        self._check_engine()
        runner = Runner(self, concurrency, apply, sessions, lambda: self._was_stopped)
        signals = stop_on_signals(stop_on_signal) if stop_on_signal else nullcontext()
        with signals, self._woken_by(runner.wake):
            async with _ProgressReporter(self).running(concurrency):
                await runner.run()

    async def _pages(self, concurrency: Any, kind: type[Any]) -> AsyncGenerator[Any, None]:
        """Yield pages of a class, one partition after the other, without leases."""
        hint, reporter, bell = DecodeHint(), _ProgressReporter(self), concurrency.queue()
        prefetcher = concurrency.prefetcher(self, hint)
        steps = Follower(self, lambda: self._was_stopped).steps()

        async def do(step: Step) -> Any:
            if isinstance(step, Fetch):
                return await prefetcher.fetch(step)
            if isinstance(step, Pause):
                self.log.waits(step)
                return await concurrency.get(bell, step.begin())
            self._check_engine()
            if isinstance(step, Discover):
                await expect_transactions(self.store)
                return await maybe_await(self.client.discover())
            return await in_store(self.store, carry_out, self, "", step)

        go_on: Callable[[], Step] = partial(next, steps)
        try:
            with self._woken_by(partial(bell.put_nowait, None)):
                while (step := next_step(go_on)) is not None:
                    if reporter.is_due:
                        await reporter.report()
                    if isinstance(step, Deliver):
                        if step.ahead is not None:
                            await prefetcher.start(step.ahead)
                        events, cursor = step.page.events, step.page.cursor
                        content = (step.partition, events, cursor, step.place, self, hint)
                        yield kind(*content, step.ahead)
                        hint.learn(events)
                        go_on = partial(steps.send, None)
                        continue
                    try:
                        go_on = partial(steps.send, await do(step))
                    except ZeroEventHubError as error:
                        go_on = partial(steps.throw, error)
                await reporter.report()
        finally:
            await prefetcher.close()


class Consumer(_Consumer[Client]):
    """Follow a feed and keep the cursors in a database.

    Run it with a function that applies events: it reads partitions in parallel, and shares them
    with all processes that run a consumer of this name. Or iterate to get pages, one partition
    after the other, and commit each in the transaction of its effects; the consumer reads a page
    again that was not committed.

    Pages in memory take at most 2 * concurrency * the client's `limits.page_bytes`, in bytes as the
    feed sent them: for each partition in work, the page that is applied and the next one.

    Example:
        client = Client("https://shop.example/orders")
        Consumer(client, store, "billing").run(apply)

    Args:
        client: reads the feed.
        store: keeps the cursors; made with a sync engine.
        name: the consumer's name, the key of its cursors: use one name per feed.
        start: where a consumer that has no cursors yet starts: FIRST, LAST, or a cursor. Its first
            process sets LAST in all partitions of the feed. Each then begins at the end that its
            first answer finds: events that came before, if only while no process ran, are skipped.
            In partitions that the feed adds later it starts at the first event.
        partitions: the partitions to read; None for all. A process that names them reads those
            that no other process reads, and does not share them out.
        follow: wait for more events at the head; otherwise end there.
        limit: how many events to request in a page; None to leave it to the feed.
        types: the types of events to request; None for all. A feed that does not announce the
            extension "event-types" may send events of other types as well.
        poll_interval: seconds between two requests at the head, 0 or more. Where a run has more
            partitions than `concurrency`, those without news are asked less often, down to every 5
            seconds.
        attempts: how often a request to the feed or the store is tried, with growing pauses,
            before its error is raised, 1 or more; None for no limit.
        concurrency: how many partitions are in work at a time, 1 or more; further ones take turns.
        lanes: how many events of a page are applied at a time, those of one key in order, 1 or
            more.
        lease: seconds after which another process takes over the partitions of one that died, more
            than 0.
        failures: what to do with a page whose handler raises.
        models: how `run` reads the data of CloudEvents, by their type: a model, or a function that
            returns one, which gets what its annotation says, such as the model of an older version.
            See docs/schemas.md.
        key: returns the key of an event; events of one key stay in order. By default a
            CloudEvent's partitionkey or subject.
        identity: returns the id by which the inbox recognizes an event; by default a CloudEvent's
            source and id.
        inbox: whether to drop events that were applied before; None for feeds that do not promise
            to publish an event only once.
        inbox_days: how many days the inbox remembers an event, more than 0.
        observer: its methods are called as the work goes on.
        register_progress: report the committed cursors to the publisher, every ten seconds and at
            the end, so that trimming waits for them; see docs/retention.md.
        synchronous_commit: whether PostgreSQL writes each page of `run` to disk before the next one
            is applied. If False, a crash of the database's server may lose effects and cursor of
            the last pages, always together, and the consumer reads these pages again.

    Raises:
        ConfigurationError: an option is out of its range.
    """

    _client_type = Client
    _engine_type = Engine
    _wrong_engine = "A Consumer's store has a sync Engine; or use AsyncConsumer."

    def __iter__(self) -> Iterator[PendingPage]:
        """Yield pages that have events, one partition after the other, without leases."""
        pages = self._pages(Threads(), PendingPage)
        try:
            while True:
                try:
                    page = blocking(anext(pages))
                except StopAsyncIteration:
                    return
                yield page
        finally:
            blocking(pages.aclose())

    def run(
        self,
        apply: Callable[..., object],
        *,
        sessions: Callable[[], Any] | None = None,
        handle_signals: bool = False,
    ) -> None:
        """Apply everything in transactions that move the cursors, until stopped.

        Each partition has its own thread, so several threads call `apply` at a time. The process
        leases its partitions, and returns them to other processes when it ends. A process that was
        suspended for longer than a lease is fenced when it commits.

        Args:
            apply: writes the effects through the transaction that is its first argument.
            sessions: makes an ORM session of the store's engine, if `apply` takes a session.
            handle_signals: stop at SIGTERM and SIGINT, after the pages in work: for programs that
                only consume. It does not wait for requests at the head, which end with the program.
                In other programs call `stop` when the program ends.

        Raises:
            Halted: a partition has halted, because `apply` raised in every try.
            ConfigurationError: several threads cannot use the store's engine, or `handle_signals`
                is set outside of the main thread.
        """
        threads = Threads(ends_process=handle_signals)
        blocking(self._run(threads, apply, sessions, self.stop if handle_signals else None))


class AsyncConsumer(_Consumer[AsyncClient]):
    """Follow a feed and keep the cursors in a database, asynchronously.

    The arguments are those of Consumer, with an AsyncClient and a store made with an AsyncEngine.

    Example:
        async with httpx.AsyncClient() as http:
            client = AsyncClient("https://shop.example/orders", http)
            await AsyncConsumer(client, store, "billing").run(apply)
    """

    _client_type = AsyncClient
    _engine_type = AsyncEngine
    _wrong_engine = "An AsyncConsumer's store has an AsyncEngine; or use Consumer."

    def __aiter__(self) -> AsyncIterator[AsyncPendingPage]:
        """Yield pages that have events, one partition after the other, without leases."""
        return self._pages(Tasks(), AsyncPendingPage)

    async def run(
        self,
        apply: Callable[..., object],
        *,
        sessions: Callable[[], Any] | None = None,
        handle_signals: bool = False,
    ) -> None:
        """Apply everything in transactions that move the cursors; see `Consumer.run`.

        Each partition has its own task. `stop` cancels requests for pages. `apply` is a coroutine
        function, or an ordinary one that gets a sync connection or session.
        """
        stop = partial(asyncio.get_running_loop().call_soon_threadsafe, self.stop)
        await self._run(Tasks(), apply, sessions, stop if handle_signals else None)


REPORT_INTERVAL = 10.0
"""Seconds between two reports of progress."""

UNCHANGED = 3600.0
"""Seconds after which a cursor is reported again that has not changed."""

LAST_REPORT = 5.0
"""Seconds for which a consumer that ends waits for its last report."""

_NOT_REPORTED = "The consumer's progress was not reported to the publisher: %s"


class _ProgressReporter:
    """Tell the publisher how far a consumer has committed, every ten seconds and at the end."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._is_on = config.register_progress
        self._last = -math.inf
        self._reported: dict[int, tuple[str, float]] = {}

    @property
    def is_due(self) -> bool:
        """Return whether it is time for a report."""
        return self._is_on and monotonic() - self._last >= REPORT_INTERVAL

    async def report(self) -> None:
        """Report what has been committed; a failed report is sent again the next time."""
        if not self._is_on:
            return
        config = self._config
        try:
            cursors = await in_store(config.store, self._cursors)
            now = self._last = monotonic()
            for partition, cursor in sorted(cursors.items()):
                known, at = self._reported.get(partition, ("", -math.inf))
                is_known = known == cursor and now - at < UNCHANGED
                if is_known or cursor in {FIRST, LAST}:
                    continue
                try:
                    await maybe_await(
                        config.client.register_progress(config.name, partition, cursor)
                    )
                except (BadRequest, Gone) as error:
                    # Of this partition alone, which the feed may no longer have.
                    config.log.left_undone(_NOT_REPORTED, error, partition)
                self._reported[partition] = cursor, monotonic()
        except Exception as error:  # noqa: BLE001 - logged: the next report may succeed
            self._last = monotonic()
            # A feed without the extension gets no second report.
            self._is_on = not isinstance(error, ConfigurationError)
            config.log.left_undone(_NOT_REPORTED, error)

    @asynccontextmanager
    async def running(self, concurrency: Any) -> AsyncIterator[None]:
        """Report from a thread or task for the length of a block, and at its end."""
        if not self._is_on:
            yield
            return
        ended = concurrency.event()

        async def go_on() -> None:
            while not ended.is_set():
                await concurrency.wait(ended, REPORT_INTERVAL)
                await self.report()

        job = concurrency.start(go_on(), f"{self._config.name}, progress")
        try:
            yield
        finally:
            ended.set()
            with concurrency.shield():
                await concurrency.join(job, LAST_REPORT)

    def _cursors(self, connection: Connection) -> dict[int, str]:
        """Return cursors that no crash of the database can undo once this transaction commits."""
        cursors = self._config.store.cursors(connection, self._config.name)
        if not self._config.synchronous_commit:
            # A commit that waits for the disk waits for all earlier ones, if it has an id at all.
            connection.exec_driver_sql("SET LOCAL synchronous_commit TO on")
            connection.exec_driver_sql("SELECT txid_current()")
        return cursors


_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_stops: list[Callable[[], object]] = []
"""The `stop` functions of this process's runs that handle signals."""

_previous: dict[int, Any] = {}
"""The handlers that were installed before the first of these runs began."""


@contextmanager
def stop_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Stop at the first SIGTERM or SIGINT; a second one ends the process as usual.

    Several runs may overlap and end in any order: one signal stops all of them, and calls the
    handler that the program had installed before.

    Raises:
        ConfigurationError: this is not the main thread, which alone can handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError(
            "Only the main thread can handle signals: run the consumer there, or call stop() "
            "where the program ends, without handle_signals."
        )
    _stops.append(stop)
    if not _previous:
        for number in _SIGNALS:
            _previous[number] = signal.getsignal(number)
            signal.signal(number, _handle)
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops:
            _restore()


def _handle(number: int, frame: FrameType | None) -> None:
    previous = _previous.get(number)
    _restore()
    for stop in _stops:
        stop()
    # Not the default handlers of Python and asyncio, which would end the program at once.
    if callable(previous) and previous is not signal.default_int_handler:
        bound_to = getattr(getattr(previous, "func", previous), "__self__", None)
        if not isinstance(bound_to, asyncio.Runner):
            previous(number, frame)


def _restore() -> None:
    for number, handler in _previous.items():
        if signal.getsignal(number) is _handle:  # else the program has installed another since
            # None: the handler was not set from Python, and Python cannot restore it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    _previous.clear()
