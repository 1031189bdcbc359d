"""Requests that wait at the head of a feed: one poll of the head serves all of them."""

import math
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar, cast
from weakref import WeakValueDictionary

import anyio
import anyio.lowlevel
from starlette.types import Receive

from zeroeventhub.errors import Unavailable, ZeroEventHubError
from zeroeventhub.protocol import Page
from zeroeventhub.server.request import PageRequest
from zeroeventhub.server.sending import READER, AdmissionQueue, call_soon, is_ending, on_behalf_of

BATCH = 4
"""How many requests are woken at once: their answers take a millisecond or two."""

PAUSE = 0.005
"""Seconds at most between one batch and the next."""


_Found = TypeVar("_Found")


@dataclass(eq=False, slots=True)
class _Waiter:
    """A request that waits in its own task."""

    scope: anyio.CancelScope  # that it waits in
    is_woken: bool = False  # whether to continue, either with the result or by computing it

    def wake(self) -> None:
        self.is_woken = True
        self.scope.cancel()


async def _wake_in_batches(waiters: Iterable[_Waiter]) -> None:
    """Wake a few at a time, and let other tasks run in between; all at once if cancelled."""
    left = iter(waiters)
    began = anyio.current_time()
    try:
        with anyio.CancelScope(shield=True):
            for number, waiter in enumerate(left, 1):
                waiter.wake()
                if number % BATCH == 0:
                    await anyio.lowlevel.checkpoint()
                    # A pause as long as the batch took leaves half of the time to other tasks.
                    await anyio.sleep(min(anyio.current_time() - began, PAUSE))
                    began = anyio.current_time()
    finally:
        for waiter in left:
            waiter.wake()


class _Outcome(NamedTuple):
    found: Any
    error: Exception | None = None
    traceback: TracebackType | None = None


class SingleFlight(Generic[_Found]):
    """Compute a result once for all requests that wait for it.

    The first request computes it by `find`, which is called with the names of the waiting readers;
    if that request is cancelled, the next takes over.
    """

    def __init__(self, find: Callable[[Collection[str]], Awaitable[_Found]]) -> None:
        self._find = find
        self._readers: set[str] = set()
        self._is_computing = False
        self._waiters: dict[_Waiter, None] = {}
        self._outcome: _Outcome | None = None

    async def result(
        self, receive: Receive | None = None, *, deadline: float = math.inf
    ) -> tuple[_Found | None, bool]:
        """Wait for the result until the deadline, or until the request's reader has gone.

        Args:
            receive: reports that the reader has gone; None to wait for the result in any case.
            deadline: until when to wait with `receive`, by the clock of the event loop.

        Returns:
            The result, None if there is none in time, and whether this request has computed it.
        """
        is_own = False
        self._readers.add(READER.get())
        while self._outcome is None:
            is_own = not self._is_computing
            if is_own:
                await self._compute(receive, deadline)
            elif await self._wait(receive, deadline):
                continue
            if self._outcome is None:
                return None, is_own
        if self._outcome.error is not None:
            # Each raise would extend the traceback of the error that all these requests share.
            raise self._outcome.error.with_traceback(self._outcome.traceback)
        return cast("_Found", self._outcome.found), is_own

    async def _wait(self, receive: Receive | None, deadline: float) -> bool:
        """Wait; return whether another request has woken this one."""
        waiter = _Waiter(anyio.CancelScope(deadline=deadline))
        self._waiters[waiter] = None
        goes_on = False
        try:
            with waiter.scope:
                await (anyio.sleep_forever() if receive is None else _until_gone(receive))
            goes_on = waiter.is_woken
        finally:
            self._waiters.pop(waiter, None)
            if waiter.is_woken and not goes_on:  # gone at the same moment
                self._wake_next()
        return goes_on

    async def _compute(self, receive: Receive | None, deadline: float) -> None:
        self._is_computing = True
        try:
            if receive is None:
                await self._take_outcome()
                return
            with anyio.CancelScope(deadline=deadline) as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(_cancel_when_gone, receive, scope)
                    await self._take_outcome()
                    group.cancel_scope.cancel()
        finally:
            self._is_computing = False
            if self._outcome is None:
                self._wake_next()
            else:
                waiters, self._waiters = self._waiters, {}
                await _wake_in_batches(waiters)

    async def _take_outcome(self) -> None:
        try:
            self._outcome = _Outcome(await self._find(self._readers))
        except Exception as error:  # noqa: BLE001 - raised for all waiting requests
            self._outcome = _Outcome(None, error, error.__traceback__)

    def _wake_next(self) -> None:
        """Wake one of the waiting requests, which then computes the result for all."""
        if self._outcome is None and not self._is_computing:
            waiter = next(iter(self._waiters), None)
            if waiter is not None:
                del self._waiters[waiter]
                waiter.wake()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    await _until_gone(receive)
    scope.cancel()


LEAST_PAUSE = 2
"""Minimum pause between polls of a feed, as a multiple of one poll's duration; each further feed
that requests of this process wait for adds twice as much."""

QUIET_FRACTION = 0.01
"""The pause between two polls as a fraction of the time since the last change, within bounds."""

LONGEST_PAUSE = 20
"""The longest pause between polls of a quiet feed, as a multiple of the shortest."""

LONGEST = 0.005
"""Seconds by which a poll counts at most: one that waited for a connection predicts nothing."""

POLLS = 8
"""Of how many polls the shortest counts: a busy machine delays some of them."""

PAUSES = (0.0, 0.001, 0.002, 0.004, 0.008)
"""Seconds between polls after a commit was announced, until it is visible."""

IGNORE_SECONDS = 0.1
"""Seconds for which commits are ignored after one that brought no change."""


class HeadWatcher:
    """Wake waiting requests when the head of a feed changes; one instance per feed and process.

    It polls only while a request waits. Waiting requests hold no connection.

    Args:
        look: called with the last value of the head, and the page that all requests wait for, None
            if they wait for several; returns a value that changes with the head, and the page or
            None.
        interval: seconds between two polls; longer for a quiet feed, for slow polls, and while
            requests wait for many feeds of this process.
    """

    _watched: ClassVar[set["HeadWatcher"]] = set()
    """The watchers that poll now; several event loops may add to it."""

    def __init__(
        self,
        look: Callable[[Hashable, PageRequest | None], Awaitable[tuple[Hashable, Page | None]]],
        interval: float,
    ) -> None:
        self._look = look
        self._interval = interval
        self._wanted: Counter[PageRequest] = Counter()
        self._pages: dict[PageRequest, Page] = {}
        self._took: deque[float] = deque(maxlen=POLLS)
        self._changed_at = -math.inf
        self._last: Hashable = None
        self._flight = SingleFlight(self._watch)
        self._notify: Callable[[], object] | None = None
        self._is_notified = False
        # Kept when a change is found, which may be an earlier one than that of the commit. The
        # first poll only learns the head, and has all who wait read again: few do so early.
        self._pauses: Iterator[float] = iter(PAUSES[:1])
        self._ignore_until = -math.inf
        self.version = 0
        """The number of changes. Note it before a read, and wait until it differs."""

    async def after(self, version: int, wanted: PageRequest) -> Page | None:
        """Wait until the version differs from this one, or the server is ending.

        Returns:
            The wanted page, if the poll that saw the change has read it.
        """
        self._wanted[wanted] += 1
        try:
            while self.version == version and not is_ending():
                await self._flight.result()
            return self._pages.get(wanted)
        finally:
            self._wanted[wanted] -= 1
            if not self._wanted[wanted]:
                del self._wanted[wanted]
                self._pages.pop(wanted, None)

    def notify(self) -> None:
        """Poll soon, as a writer is committing; any thread may call this."""
        notify, self._notify = self._notify, None
        if notify is None:
            self._is_notified = True  # for the next pause
            return
        with suppress(RuntimeError):  # the event loop has ended
            notify()

    async def _watch(self, _: Collection[str]) -> None:
        """Poll the head until it has changed."""
        self._watched.add(self)
        try:
            while True:
                if (pause := next(self._pauses, None)) is not None:
                    await anyio.sleep(pause)
                elif await self._pause():
                    self._pauses = iter(PAUSES)
                    continue
                if is_ending():
                    self._change(self._last)  # wakes all waiting requests
                    return
                began = anyio.current_time()
                # Cancelling a query costs its connection, and all waiting requests need the result.
                with anyio.CancelScope(shield=True), on_behalf_of(""):
                    # Of several pages, the read of one would delay the others.
                    wanted = next(iter(self._wanted)) if len(self._wanted) == 1 else None
                    head, page = await self._look(self._last, wanted)
                if head != self._last:
                    self._change(head)
                    if wanted is not None and page is not None and wanted in self._wanted:
                        self._pages[wanted] = page
                    return
                self._took.append(anyio.current_time() - began)
        except ZeroEventHubError:
            self._change(None)  # all waiting requests meet the error when they read
        except Exception:
            self._flight = SingleFlight(self._watch)
            raise
        finally:
            self._watched.discard(self)

    async def _pause(self) -> bool:
        """Wait until the next poll is due or a commit is announced; return whether one was."""
        notified = anyio.Event()
        if anyio.current_time() > self._ignore_until:
            is_notified, self._is_notified = self._is_notified, False
            if is_notified:
                notified.set()
            self._notify = partial(call_soon(), notified.set)
        try:
            silence = anyio.current_time() - self._changed_at
            took = min(min(self._took, default=0.0), LONGEST)
            shared = LEAST_PAUSE * took * (2 * len(self._watched) - 1)
            longest = min(QUIET_FRACTION * silence, LONGEST_PAUSE * self._interval)
            with anyio.move_on_after(max(longest, self._interval, shared)):
                await notified.wait()
        finally:
            self._notify = None
        if notified.is_set():
            self._ignore_until = anyio.current_time() + IGNORE_SECONDS
        return notified.is_set()

    def _change(self, head: Hashable) -> None:
        self._last = head
        self._pages.clear()
        self._changed_at = anyio.current_time()
        self._ignore_until = -math.inf
        self._is_notified = False  # else the commit that brought this change would count twice
        self.version += 1
        self._flight = SingleFlight(self._watch)


class Found(NamedTuple):
    """A page, or only one event of it if the send budget was used up."""

    page: Page
    is_part: bool


_VersionedFound: TypeAlias = tuple[int, Found] | None
"""The version of the head before a page was read, and the page; None when the server is ending."""

_TOO_MANY = "Too many requests wait at the head of this feed."


class LongPoll:
    """Let requests wait for an event, and read once for all equal requests.

    Args:
        head: watches the head.
        read: reads a page.
        most: how many requests may wait at once.
        on_change: called with the number of waiting requests, when it changes.
        at_once: how many of their pages may be read at once, which leaves places in the feed's
            queue to requests that do not wait.
    """

    def __init__(
        self,
        head: HeadWatcher,
        read: Callable[[PageRequest], Awaitable[Found]],
        most: int,
        on_change: Callable[[int], None],
        at_once: int,
    ) -> None:
        self._head = head
        self._read = read
        self._most = most
        self._on_change = on_change
        self.count = 0  # how many requests wait
        self._reading = AdmissionQueue(
            at_once, queue=2 * most, patience=math.inf, refusal=_TOO_MANY
        )
        # A flight exists for as long as requests wait in it.
        self._flights: WeakValueDictionary[tuple[PageRequest, int], SingleFlight[_VersionedFound]]
        self._flights = WeakValueDictionary()

    async def page(
        self, wanted: PageRequest, found: Found, version: int, *, deadline: float, receive: Receive
    ) -> tuple[PageRequest, Found, bool]:
        """Wait for a page that is not idle.

        `found` is idle, and was read at a version of the head. It waits until a deadline by the
        clock of the event loop, or until `receive` reports that the reader has gone.

        Returns:
            The request, moved on to the cursor that it has reached; its page, or the last idle one
            at the deadline or when the server is ending; and whether this request has read the page
            itself.
        """
        if self.count >= self._most:
            raise Unavailable(_TOO_MANY, retry_after=1)
        is_own = True
        self.count += 1
        try:
            self._on_change(self.count)
            while is_idle(found.page, wanted.cursor):
                if found.page.cursor != wanted.cursor:
                    wanted = wanted._replace(cursor=found.page.cursor)
                key = wanted, version
                flight = self._flights.get(key)
                if flight is None:
                    flight = self._flights[key] = SingleFlight(partial(self._wait_and_read, key))
                versioned, is_own = await flight.result(receive, deadline=deadline)
                if versioned is None:
                    break
                version, found = versioned
        finally:
            self.count -= 1
            self._on_change(self.count)
        return wanted, found, is_own

    async def _wait_and_read(
        self, key: tuple[PageRequest, int], readers: Collection[str]
    ) -> _VersionedFound:
        """Wait for a change, and read the page once for all requests that wait for it."""
        wanted, version = key
        try:
            page = await self._head.after(version, wanted)
        except Exception:
            # The next request polls again; the version is the same, as nothing was read.
            self._flights.pop(key, None)
            raise
        if is_ending():
            return None
        version = self._head.version
        if page is not None:
            return version, Found(page, is_part=False)
        # A read for several readers counts for none: it must not queue after the reads of one.
        reader = READER.get() if len(readers) == 1 else ""
        # Cancelling the read would cost its connection.
        with anyio.CancelScope(shield=True), on_behalf_of(reader):
            async with self._reading.acquire():
                found = await self._read(wanted)
        return version, found


def is_idle(page: Page, cursor: str) -> bool:
    """Return whether a page says that there is nothing to read for now."""
    nothing = not page.events and not page.stop_reached
    return nothing and (page.caught_up or page.cursor == cursor)
