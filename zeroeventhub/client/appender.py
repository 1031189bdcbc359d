"""Append events in the background, in batches and in their order."""

import asyncio
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent import futures
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, ClassVar, NamedTuple, Self

from zeroeventhub.client.client import AsyncClient, Client
from zeroeventhub.client.requests import send_until_answered
from zeroeventhub.coroutines import blocking, drop_traceback, maybe_await
from zeroeventhub.errors import (
    BadRequest,
    ConfigurationError,
    Forbidden,
    IdReused,
    InvalidEvent,
    NotAppended,
    OutOfSequence,
    ProtocolError,
    TooLarge,
    Unreachable,
)
from zeroeventhub.new_events import NewEvent
from zeroeventhub.protocol import Appended
from zeroeventhub.wire.new_events import encode_event

BATCH_BYTES = 1024 * 1024
"""Bytes of a batch at most, unless it is a single event."""

BUFFER_BYTES = 16 * BATCH_BYTES
"""Bytes of events that an appender holds at most."""

LONGEST_LINGER = 1_000_000
"""Seconds that an event waits for others at most: threads cannot wait for any number."""

OF_AN_EVENT = (BadRequest, Forbidden, IdReused, InvalidEvent, TooLarge)
"""The errors of a batch that one of its events may have caused."""


class _ReadFuture:
    """Record whether the caller has read the outcome of a future."""

    was_read = False

    def result(self, *arguments: Any) -> Any:
        self.exception(*arguments)
        return super().result()  # type: ignore[misc] # of a future

    def exception(self, *arguments: Any) -> Any:
        found = super().exception(*arguments)  # type: ignore[misc] # of a future
        self.was_read = True  # unless it has not come, or not in time
        return found


class _TaskFuture(_ReadFuture, asyncio.Future[Appended]):
    def __await__(self) -> Any:
        self.was_read = True
        return super().__await__()


class _ThreadFuture(_ReadFuture, futures.Future[Appended]):
    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # nobody can cancel an event that was handed over


class _TaskCondition(asyncio.Condition):
    """A condition whose `wait` takes a timeout."""

    async def wait(self, seconds: float | None = None) -> bool:  # type: ignore[override] # more
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await super().wait()
        return False


class _ThreadCondition:
    """The same for threads; its coroutines block and never suspend."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self.notify_all = self._condition.notify_all

    async def __aenter__(self) -> None:
        self._condition.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._condition.release()

    async def wait(self, seconds: float | None = None) -> bool:
        return self._condition.wait(seconds)


class _Entry(NamedTuple):
    id: str
    line: bytes
    since: float
    future: Any


class _BaseAppender:
    """Append events in the background; `Appender` documents the arguments."""

    _client_type: ClassVar[type[Any]]
    _condition: ClassVar[Any]
    _future: ClassVar[Any]
    _end: Callable[[], Awaitable[None]]
    """Waits until no request is sent any more, but not for the answers."""
    _is_in_job: Callable[[], bool]
    """Returns whether the caller is called by what sends the requests, and makes room."""

    def __init__(
        self,
        client: Any,
        *,
        producer: str | None = None,
        batch: int = 1_000,
        linger: float = 0.005,
        buffer: int = 10_000,
    ) -> None:
        if not isinstance(client, self._client_type):
            raise ConfigurationError(
                f"{type(self).__name__} appends by {self._client_type.__name__}, not by "
                f"{type(client).__name__}."
            )
        are_whole = type(batch) is int and type(buffer) is int
        if not are_whole or batch < 1 or buffer < 1 or not 0 <= linger <= LONGEST_LINGER:
            raise ConfigurationError(
                "A batch and a buffer hold one event or more, in whole numbers, and `linger` is 0 "
                f"to {LONGEST_LINGER:,} seconds."
            )
        self._client = client
        self._producer = producer
        self._sequence: int | None = None
        self._batch = batch
        self._linger = linger
        self._buffer = buffer
        self._changed = self._condition()
        # In order; the first ones may be in a request that has no answer yet.
        self._entries: deque[_Entry] = deque()
        self._bytes = 0
        self._settled = 0
        self._flushed = 0
        self._failed: deque[tuple[str, Any]] = deque()
        self._is_open = False
        self._has_given_up = False
        self._job: Any = None

    async def _enter(self) -> None:
        async with self._changed:
            if self._is_open or self._entries:
                raise ConfigurationError(
                    "An appender is in one `with` block at a time: make another appender."
                )
            self._is_open = True

    async def _leave(self, kind: type[BaseException] | None) -> None:
        async with self._changed:
            self._is_open = False
            self._changed.notify_all()
        try:
            if kind is None or issubclass(kind, Exception | SystemExit | GeneratorExit):
                await self._flush()
        finally:
            await self._end()  # if this was interrupted, some events have no answer

    async def _append(self, event: NewEvent) -> Any:
        line = encode_event(event)
        if event.expected_version is not None:
            raise ConfigurationError(
                "An appender puts events into batches itself, and so takes no event that expects a "
                "version: append that event by Client.append."
            )
        async with self._changed:
            while self._is_open and self._has_no_room(len(line)) and not self._is_in_job():
                await self._changed.wait()
            if not self._is_open:
                raise ConfigurationError("An appender takes events within its `with` block.")
            if len(self._failed) >= self._buffer:
                self._raise_refusals()
            entry = _Entry(event.id, line, time.monotonic(), self._future())
            self._entries.append(entry)
            self._bytes += len(line)
            if len(self._entries) == 1 or self._is_due():
                self._changed.notify_all()
        return entry.future

    async def _flush(self) -> None:
        async with self._changed:
            if self._is_in_job():
                raise ConfigurationError(
                    "The appender cannot wait for itself: flush it elsewhere than in a callback of "
                    "its futures, or in what handles its log."
                )
            goal = self._flushed = self._settled + len(self._entries)
            self._changed.notify_all()
            while self._settled < goal and not self._has_given_up:
                await self._changed.wait()
            self._raise_refusals()
            if self._settled < goal:
                error = Unreachable("The appender was cancelled before the log had answered.")
                raise NotAppended(str(error), errors={one.id: error for one in self._entries})

    def _has_no_room(self, size: int) -> bool:
        held = len(self._entries)
        return held >= self._buffer or (held > 0 and self._bytes + size > BUFFER_BYTES)

    def _is_due(self) -> bool:
        """Return whether the first events need not wait for more."""
        return (
            not self._is_open
            or self._flushed > self._settled
            or len(self._entries) >= min(self._batch, self._buffer)
            or self._bytes >= BATCH_BYTES
        )

    def _raise_refusals(self) -> None:
        errors = {id_: future.exception() for id_, future in self._failed if not future.was_read}
        self._failed.clear()
        if errors:
            first, error = next(iter(errors.items()))
            count = f"{len(errors):,} of the events"
            raise NotAppended(
                f"The log has refused {count}. The error of {first!r}: {error}", errors=errors
            ) from error

    async def _run(self) -> None:
        try:
            while batch := await self._next_batch():
                await self._send(batch)
        finally:
            if self._entries:  # it was cancelled
                await self._give_up()

    async def _give_up(self) -> None:
        async with self._changed:
            self._is_open, self._has_given_up = False, True
            for entry in self._entries:
                entry.future.cancel()
            self._changed.notify_all()

    async def _next_batch(self) -> list[_Entry]:
        """Return the next events to send; none at the end."""
        async with self._changed:
            while self._is_open and not self._entries:
                await self._changed.wait()
            while not self._is_due():
                left = self._entries[0].since + self._linger - time.monotonic()
                if left <= 0:
                    break
                await self._changed.wait(left)
            batch: list[_Entry] = []
            size = 0
            for entry in islice(self._entries, self._batch):
                size += len(entry.line)
                if batch and size > BATCH_BYTES:
                    break
                batch.append(entry)
            return batch

    async def _send(self, batch: Sequence[_Entry]) -> None:
        """Append a batch; if the log refuses it, append its halves, down to single events."""
        outcome: list[Appended] | Exception
        try:
            outcome = await send_until_answered(
                partial(self._send_once, batch),
                self._client._pause,  # noqa: SLF001 - its own
                None,
            )
        except Exception as error:  # noqa: BLE001 - the futures get it
            drop_traceback(error)
            outcome = error
        if isinstance(outcome, OF_AN_EVENT) and len(batch) > 1:
            middle = len(batch) // 2
            await self._send(batch[:middle])
            await self._send(batch[middle:])
        else:
            await self._settle(batch, outcome)

    async def _send_once(self, batch: Sequence[_Entry]) -> list[Appended]:
        sequence = None
        if self._producer is not None:
            if self._sequence is None:
                self._sequence = await maybe_await(self._client.producer_sequence(self._producer))
            sequence = self._sequence + 1
        lines = [entry.line for entry in batch]
        try:
            answers: list[Appended] = await self._client._send_events(  # noqa: SLF001 - its own
                lines, self._producer, sequence
            )
        except ProtocolError:
            self._sequence = None  # the log may have counted the batch, and is asked
            raise
        except IdReused:
            await self._expect_next(sequence)
            raise
        self._sequence = sequence
        return answers

    async def _expect_next(self, sequence: int | None) -> None:
        """Raise OutOfSequence if the log has a batch of this sequence: parts of it would be new."""
        if sequence is None:
            return
        last = await maybe_await(self._client.producer_sequence(self._producer))
        if last >= sequence:
            raise OutOfSequence(
                f"Another process has appended batch {sequence} of producer {self._producer!r}: "
                f"the last one is {last}.",
                sequence=last,
            )

    async def _settle(self, batch: Sequence[_Entry], outcome: list[Appended] | Exception) -> None:
        async with self._changed:
            for place, (id_, line, _, future) in enumerate(batch):
                self._entries.popleft()
                self._bytes -= len(line)
                is_cancelled = future.done()  # as was the task that awaited it
                if isinstance(outcome, Exception):
                    unread = self._future() if is_cancelled else future
                    unread.set_exception(outcome)
                    self._failed.append((id_, unread))
                elif not is_cancelled:
                    future.set_result(outcome[place])
            self._settled += len(batch)
            while self._failed and self._failed[0][1].was_read:
                self._failed.popleft()
            self._changed.notify_all()


class AsyncAppender(_BaseAppender):
    """Append events in the background, asynchronously.

    The arguments are those of Appender, with an AsyncClient. Appender has the same methods.

    Example:
        async with AsyncAppender(client) as appender:
            future = await appender.append(NewEvent("order.paid", {"order": 17}, key="17"))
            print((await future).partition)
    """

    _client_type = AsyncClient
    _condition = _TaskCondition
    _future = _TaskFuture

    async def __aenter__(self) -> Self:
        """Begin to take events."""
        await self._enter()
        self._job = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Flush, and end; if the block was cancelled, give up what the log has not answered."""
        await self._leave(kind)

    async def append(self, event: NewEvent) -> asyncio.Future[Appended]:
        """Hand over an event; see `Appender.append`. Await the future for the log's answer."""
        future: asyncio.Future[Appended] = await self._append(event)
        return future

    async def flush(self) -> None:
        """Wait until the log has answered to all events so far; see `Appender.flush`.

        Raises:
            NotAppended: as there; or the block was cancelled before the log had answered.
        """
        await self._flush()

    async def _end(self) -> None:
        if self._entries:
            self._job.cancel()
        await asyncio.wait([self._job])

    def _is_in_job(self) -> bool:
        return asyncio.current_task() is self._job


class Appender(_BaseAppender):
    """Append events in the background: in batches, in their order, until the log has answered.

    One batch is on its way at a time. A batch whose answer was lost is sent again, and the log
    recognizes its events by their ids. A batch that the log refuses is sent again in halves, so
    that one refused event keeps no other out of the log. Threads may share an appender, within one
    `with` block.

    Example:
        with Appender(client) as appender:
            for order in range(1000):
                appender.append(NewEvent("order.paid", {"order": order}, id=f"paid-{order}"))

    Args:
        client: the client of the log.
        producer: a name under which the log counts the batches, so that it refuses those of a
            second process of this name; None to count none.
        batch: how many events are a batch at most, 1 or more; it has at most one mebibyte, too.
        linger: seconds that an event waits at most for others, 0 to 1,000,000; a full batch is
            sent at once.
        buffer: how many events without an answer are in memory at most, 1 or more; 16 mebibytes,
            too.

    Raises:
        ConfigurationError: the client is of another kind, or a number is out of its range.
    """

    _client_type = Client
    _condition = _ThreadCondition
    _future = _ThreadFuture
    _process: int | None = None

    def __enter__(self) -> Self:
        """Begin to take events."""
        blocking(self._enter())
        self._process = os.getpid()
        run = partial(blocking, self._run())
        self._job = threading.Thread(target=run, name="appender", daemon=True)
        self._job.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Flush, and end.

        After KeyboardInterrupt, a thread goes on as long as the process does. A generator that is
        left to the end of the process flushes nothing: close it before.

        Raises:
            NotAppended: as `flush`.
        """
        # Elsewhere there is no thread: Python has ended it, wherever it was, or this is a fork.
        if not sys.is_finalizing() and self._is_own:
            blocking(self._leave(kind))

    def append(self, event: NewEvent) -> futures.Future[Appended]:
        """Hand over an event; wait while the buffer is full.

        A callback of a future does not wait, nor does what handles the appender's own log.

        Args:
            event: an event that expects no version.

        Returns:
            A future whose result says where the event is in the log, or whose exception is the
            error with which the log refused it.

        Raises:
            ConfigurationError: the event cannot be stored, expects a version, or is given outside
                of the `with` block, or in a process that was forked within it.
            TooLarge: its data is larger than a mebibyte.
            NotAppended: as `flush`, if as many events were refused as the buffer has room for, and
                the caller has not read their futures.
        """
        self._expect_own()
        future: futures.Future[Appended] = blocking(self._append(event))
        return future

    def flush(self) -> None:
        """Wait until the log has answered to all events so far.

        Raises:
            NotAppended: the log has refused events whose futures the caller has not read. Each
                event is named once, however often this is called.
            ConfigurationError: this process was forked within the `with` block.
        """
        self._expect_own()
        blocking(self._flush())

    @property
    def _is_own(self) -> bool:
        """Whether this process has begun the block: the thread is not in those forked from it."""
        return self._process in {None, os.getpid()}

    def _expect_own(self) -> None:
        if not self._is_own:
            raise ConfigurationError(
                "An appender takes events in the process that has begun its `with` block: begin "
                "one after the fork."
            )

    async def _end(self) -> None:
        if not self._entries:
            self._job.join()

    def _is_in_job(self) -> bool:
        return threading.current_thread() is self._job
