"""What differs between threads and tasks: start work, wait, share slots, and fetch pages ahead.

A consumer is written once, as coroutines. In an AsyncConsumer they suspend; in a Consumer they
block their thread instead, and never suspend.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext, suppress
from contextvars import Context, copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

import anyio

from zeroeventhub.client.client import Client, PendingFetch
from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.event_insert import prepare_rows
from zeroeventhub.consumer.page import DecodeHint
from zeroeventhub.consumer.steps import Fetch, Stopped
from zeroeventhub.coroutines import blocking, maybe_await
from zeroeventhub.protocol import Page
from zeroeventhub.wire.ndjson import PageEvents

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


WORTH_A_THREAD = 0.002
"""Seconds that a feed takes to answer from which a thread fetches the next page ahead.

If the feed answers faster, passing pages between threads costs more than it saves.
"""

LONG_APPLY = 1.0
"""Seconds that a page takes to apply from which a thread receives the next page meanwhile: a
publisher aborts a response that its reader does not receive."""


class Prefetcher:
    """Fetch and decode pages, one of them ahead of time; `hint` is how their data is decoded."""

    def __init__(self, config: Config, hint: DecodeHint) -> None:
        self._config = config
        self._hint = hint
        self._step: Fetch | None = None

    def has(self, step: Fetch) -> bool:
        """Return whether the page of a step is being fetched, or has been."""
        return step == self._step

    async def start(self, step: Fetch) -> None:
        """Begin to fetch a page, unless that has begun: a page may be applied a second time."""
        raise NotImplementedError

    async def _fetch(
        self,
        step: Fetch,
        pending: PendingFetch | None = None,
        is_due: threading.Event | None = None,
    ) -> Page:
        """Fetch a page; decode a pending one when it is due."""
        config, hint, started = self._config, self._hint, time.monotonic()
        page: Page
        if pending is None:
            page = await maybe_await(
                config.client.fetch(
                    step.partition,
                    step.cursor,
                    limit=config.limit,
                    types=config.types,
                    wait=step.wait,
                    data_type=hint.data_type,
                )
            )
        else:
            cursor = pending.receive()
            if step.goes_on and cursor not in {None, step.cursor}:
                # The publisher works on the next page while this one is decoded.
                await self.start(Fetch(step.partition, cursor))
            if is_due is not None:
                is_due.wait()
            page = pending.page()
        seconds = time.monotonic() - started
        config.observer.fetched(config.name, step.partition, len(page.events), seconds)
        if hint.form is not None and isinstance(page.events, PageEvents):
            prepare_rows(hint.form, page.events)
        return page


_Order: TypeAlias = tuple[Fetch, Context, threading.Event | None]
"""What the separate thread fetches, in which context, and the event that tells it to decode what it
has received; None to decode it at once."""


class ThreadPrefetcher(Prefetcher):
    """Fetch ahead: request a page early, and read its response when the page is needed.

    A separate thread reads the response at once where rows can be prepared while a server of the
    database works, where pages take long to apply, and where the client cannot send a request
    ahead. It makes rows while the database stores those of the page before: any earlier, statements
    of that page would wait for the interpreter's lock.

    If `ends_process`, the process ends when the consumer is stopped: long polls are sent in the
    separate thread as well, so that nothing waits for their responses.
    """

    def __init__(self, config: Config, hint: DecodeHint, *, ends_process: bool = False) -> None:
        super().__init__(config, hint)
        client = config.client
        self._request: Callable[..., PendingFetch | None] | None = None
        if isinstance(client, Client) and client.sends_ahead:
            self._request = partial(client.begin_fetch, limit=config.limit, types=config.types)
        self._ends_process = ends_process
        self._is_cancelled = False
        self._pending: PendingFetch | None = None
        self._fetched_at = math.inf
        self._apply_seconds = 0.0  # that pages took; decays
        self._answer_seconds = math.inf  # that the feed took; decays until measured again
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._answers: SimpleQueue[Page | BaseException] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def start(self, step: Fetch) -> None:
        """Begin to fetch a page, unless that has begun: a page may be applied a second time."""
        if step == self._step:
            return
        if self._step is not None:
            self._give_up()
        prepares = self._hint.form is not None and not self._hint.form.yields
        if self._request is not None and not prepares and self._apply_seconds < LONG_APPLY:
            hint = self._hint
            self._pending = self._request(step.partition, step.cursor, data_type=hint.data_type)
            self._step = None if self._pending is None else step
        elif self._answer_seconds > WORTH_A_THREAD or prepares:
            self._start_thread(step, waits=prepares and self._request is not None)

    def _start_thread(self, step: Fetch, *, waits: bool = False) -> None:
        if self._thread is None:
            name = f"{threading.current_thread().name}, ahead"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no room for another thread: fetch the page when it is needed
                return
            self._thread = thread
        self._step = step
        if waits:
            self._hint.due[step] = threading.Event()
        self._orders.put((step, copy_context(), self._hint.due.get(step)))

    async def fetch(self, step: Fetch) -> Page:
        """Return the page of a step, or raise its error; it may have been fetched ahead."""
        self._apply_seconds = max(self._apply_seconds * 0.9, time.monotonic() - self._fetched_at)
        if step.wait and self._ends_process and step != self._step:
            self._give_up()
            self._start_thread(step)
        if self._is_cancelled:
            raise Stopped
        if step != self._step:
            if self._step is not None:
                self._give_up()
            started = time.monotonic() - time.thread_time()
            page = await self._fetch(step)
            self._fetched_at = time.monotonic()
            self._answer_seconds = self._fetched_at - time.thread_time() - started
            return page
        if self._hint.due:
            self._hint.set_due(step)
        pending, self._step, self._pending = self._pending, None, None
        answer = await self._fetch(step, pending) if pending is not None else self._answers.get()
        self._fetched_at = time.monotonic()
        if isinstance(answer, Page):
            # A fetch ahead is not measured, as threads wait for each other. Decay, so that a fetch
            # in this thread measures again soon.
            self._answer_seconds *= 0.9
            return answer
        try:
            raise answer
        finally:
            del answer  # else the error and its traceback would keep each other in memory

    def cancel(self) -> None:
        """Stop waiting for the separate thread, if the process ends; it cannot be cancelled."""
        if self._ends_process:
            self._is_cancelled = True
            self._answers.put(Stopped())

    def _give_up(self) -> None:
        """Drop the page that is fetched ahead; wait for it in a thread, to bound the memory."""
        self._hint.set_due(self._step)
        pending, step, self._pending, self._step = self._pending, self._step, None, None
        if pending is not None:
            pending.close()
        elif step is not None:
            self._answers.get()

    async def drop(self) -> None:
        """Drop the page fetched ahead, and end the thread."""
        if self._is_cancelled:
            await self.close()
            return
        self._give_up()
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()
            self._thread = None

    async def close(self) -> None:
        """Let the thread end after its present request."""
        if self._pending is not None:
            self._pending.close()
        self._hint.set_due(self._step)
        self._step = self._pending = None
        self._orders.put(None)

    def _work(self) -> None:
        while order := self._orders.get():
            step, context, is_due = order
            pending = None
            try:
                if is_due is not None and self._request is not None:
                    place = step.partition, step.cursor
                    pending = context.run(self._request, *place, data_type=self._hint.data_type)
                self._answers.put(context.run(blocking, self._fetch(step, pending, is_due)))
            except BaseException as error:  # noqa: BLE001 - raised where the page is asked for
                self._answers.put(error)


class TaskPrefetcher(Prefetcher):
    """Fetch every page in a task, so that a fetch can be cancelled."""

    _page: asyncio.Future[Page] | None = None
    _is_cancelled = False

    async def start(self, step: Fetch) -> None:
        """Begin to fetch a page, unless that has begun: a page may be applied a second time."""
        if step == self._step:
            return
        await self.drop()
        self._step, self._page = step, asyncio.ensure_future(self._fetch(step))

    async def fetch(self, step: Fetch) -> Page:
        """Return the page of a step, or raise its error; it may have been fetched ahead."""
        if self._is_cancelled:
            raise Stopped
        await self.start(step)
        assert self._page is not None  # noqa: S101 - it has just been started
        try:
            return await self._page
        finally:
            self._step = self._page = None

    def cancel(self) -> None:
        """Cancel the fetch, and refuse to begin another one."""
        self._is_cancelled = True
        if self._page is not None:
            self._page.cancel()

    async def drop(self) -> None:
        """Drop the page fetched ahead."""
        page, self._step, self._page = self._page, None, None
        if page is not None:
            page.cancel()
            # No caller needs this page, so its error must not be raised.
            await asyncio.gather(page, return_exceptions=True)

    close = drop


class Threads:
    """Run and wait in threads: no coroutine here suspends."""

    event = threading.Event
    queue = SimpleQueue
    shield = nullcontext

    def __init__(self, *, ends_process: bool = False) -> None:
        self.prefetcher = partial(ThreadPrefetcher, ends_process=ends_process)

    async def wait(self, event: threading.Event, seconds: float) -> None:
        """Wait for an event, for at most a number of seconds."""
        event.wait(seconds)

    async def get(self, queue: SimpleQueue[Any], seconds: float) -> list[Any]:
        """Return the next item of a queue in a list; an empty one after a number of seconds."""
        with suppress(Empty):
            return [queue.get(timeout=seconds)]
        return []

    async def take(self, slot: Future[None]) -> None:
        """Wait for a slot."""
        slot.result()

    def start(self, work: Coroutine[Any, Any, None], name: str) -> threading.Thread:
        """Start a thread for a coroutine that never suspends."""
        # A daemon, so that a second signal ends the process without waiting for the thread.
        thread = threading.Thread(
            target=copy_context().run, args=(blocking, work), name=name, daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the machine has no room for another thread
            work.close()
            raise
        return thread

    def abandon(self, job: threading.Thread) -> None:
        """Leave a thread alone: it ends after its present page."""

    async def join(self, job: threading.Thread, seconds: float | None = None) -> None:
        """Wait for the end of a thread, for at most a number of seconds."""
        job.join(seconds)

    async def all(
        self, do: Callable[[_Item], Coroutine[Any, Any, _Result]], items: Sequence[_Item], most: int
    ) -> list[_Result]:
        """Do something with all items, with at most `most` at a time."""
        with ThreadPoolExecutor(most, "zeroeventhub-lane") as lanes:
            # Each in a copy of this context, which holds the current trace.
            futures = [lanes.submit(copy_context().run, blocking, do(item)) for item in items]
        return [future.result() for future in futures]


class Tasks:
    """Run and wait in tasks; see `Threads`."""

    event = asyncio.Event
    queue = asyncio.Queue
    prefetcher = TaskPrefetcher
    # For what cleans up: a scope of anyio cancels each await of a task, and not only one.
    shield = partial(anyio.CancelScope, shield=True)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Wait for an event, for at most a number of seconds."""
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)

    async def get(self, queue: "asyncio.Queue[Any]", seconds: float) -> list[Any]:
        """Return the next item of a queue in a list; an empty one after a number of seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return [await queue.get()]
        return []

    async def take(self, slot: Future[None]) -> None:
        """Wait for a slot."""
        await asyncio.wrap_future(slot)

    def start(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """Start a task."""
        return asyncio.create_task(work, name=name)

    def abandon(self, job: "asyncio.Task[None]") -> None:
        """Cancel a task; its present page is rolled back."""
        job.cancel()

    async def join(self, job: "asyncio.Task[None]", seconds: float | None = None) -> None:
        """Wait for the end of a task; cancel it after a number of seconds."""
        _, running = await asyncio.wait([job], timeout=seconds)
        if running:
            job.cancel()
            await asyncio.wait([job])

    async def all(
        self, do: Callable[[_Item], Coroutine[Any, Any, _Result]], items: Sequence[_Item], most: int
    ) -> list[_Result]:
        """Do something with all items, with at most `most` at a time."""
        free = asyncio.Semaphore(most)

        async def one(item: _Item) -> _Result:
            async with free:
                return await do(item)

        async with asyncio.TaskGroup() as lanes:
            tasks = [lanes.create_task(one(item)) for item in items]
        return [task.result() for task in tasks]


Concurrency: TypeAlias = Threads | Tasks


class Limiter:
    """A fair semaphore: slots are given in the order of requests.

    Attributes:
        queue: the pending requests for a slot.
    """

    def __init__(self, number: int, concurrency: Concurrency) -> None:
        self._lock = threading.Lock()
        self._free = number
        self._concurrency = concurrency
        self.queue: deque[Future[None]] = deque()

    async def acquire(self, *, first: bool = False) -> None:
        """Wait for a slot, before all other requests if `first`."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            slot: Future[None] = Future()
            if first:
                self.queue.appendleft(slot)
            else:
                self.queue.append(slot)
        try:
            await self._concurrency.take(slot)
        except BaseException:  # the task was cancelled, or the thread interrupted
            # The slot may have been given in the same moment.
            if not slot.cancel():
                self.release()
            raise

    def release(self) -> None:
        """Return a slot, and give it to the next request."""
        with self._lock:
            while self.queue:
                slot = self.queue.popleft()
                # False if the reader was cancelled while it waited.
                if slot.set_running_or_notify_cancel():
                    break
            else:
                self._free += 1
                return
        slot.set_result(None)

    @asynccontextmanager
    async def slot(self, *, first: bool = False) -> AsyncIterator[None]:
        """Hold a slot for the length of a block."""
        await self.acquire(first=first)
        try:
            yield
        finally:
            self.release()
