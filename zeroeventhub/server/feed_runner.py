"""Call a feed from the routes: await sync and async feeds, within the feed's capacity."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.feed import ArchiveMiss, AsyncFeed, Feed, FeedSource, hold_part
from zeroeventhub.protocol import FeedInfo, Page
from zeroeventhub.server.long_poll import Found, HeadWatcher, LongPoll, SingleFlight, is_idle
from zeroeventhub.server.request import FeedRequest, PageRequest
from zeroeventhub.server.sending import READER, AdmissionQueue, Sender
from zeroeventhub.settings import Capacity
from zeroeventhub.wire.lines import size_of

__all__ = ["FeedRunner"]

_log = logging.getLogger("zeroeventhub.server")

_PAGE = 1_000
"""How many events a page has if the request does not set a limit."""

_BUSY = "The feed is asked more than it can answer just now."

_SLOW = "The feed's archive is asked more than it can answer just now."

_LARGE = 256 * 1024
"""Bytes of a page that block the event loop for a millisecond, roughly."""

_Made = TypeVar("_Made")


class FeedRunner:
    """Call a feed without blocking the event loop.

    Args:
        feed: a TableFeed, or another implementation of Feed.
        engine: the engine that a TableFeed reads through.
        capacity: the feed's limits in this process and in its database.
        sender: limits the bytes of responses in memory.
        on_waiting: called with the number of requests that wait at the head, when it changes.

    Raises:
        ConfigurationError: the engine does not fit the feed.
    """

    def __init__(
        self,
        feed: Feed | AsyncFeed | FeedSource,
        engine: Any,
        capacity: Capacity,
        sender: Sender,
        on_waiting: Callable[[int], None],
    ) -> None:
        self._feed: Any = _bound(feed, engine, capacity)
        queue = partial(
            AdmissionQueue,
            capacity.connections,
            queue=capacity.queue,
            patience=capacity.patience,
        )
        self._connections = queue(refusal=_BUSY)
        self.answers = queue(refusal=_BUSY)
        """For answers of several pages, which are in memory until their end."""
        self._archive = queue(refusal=_SLOW)
        # As many threads as admitted calls, so that none waits for a thread.
        self._threads = anyio.CapacityLimiter(capacity.connections)
        self._archive_threads = anyio.CapacityLimiter(capacity.connections)
        self._capacity = capacity
        self._sender = sender
        self._not_begun: dict[tuple[str, PageRequest], SingleFlight[Found]] = {}
        self.page_bytes = capacity.page_bytes
        """How much data an answer of several pages holds, about; see `Capacity`."""
        self._head = HeadWatcher(partial(self.call, "head"), capacity.look_seconds)
        on_commit = getattr(self._feed, "on_commit", None)
        if on_commit is not None and not iscoroutinefunction(on_commit):
            on_commit(self._head.notify)
        self._has_warned = False
        at_once = max(1, capacity.queue // 2)
        self._long_poll = LongPoll(
            self._head, self._begin_page, capacity.waiters, on_waiting, at_once
        )

    async def info(self) -> FeedInfo:
        """Return the feed's description; a TableFeed mostly needs no query for it."""
        known: FeedInfo | None = getattr(self._feed, "known_info", None)
        if known is not None:
            return known
        found: FeedInfo = await self.call("info")
        return found

    def warn_of_guesses(self) -> None:
        """Warn, once, that readers of a part of the feed can confirm what is hidden."""
        if getattr(self._feed, "has_open_digests", False) and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "This feed has readers who may see only a part of it, and no secret: a reader who "
                "makes up a cursor learns whether a guess of a hidden event is right. Give its "
                "TableFeed a cursor_secret."
            )

    def has(self, method: str) -> bool:
        """Return whether the feed has a method."""
        return hasattr(self._feed, method)

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the feed when it is this request's turn."""
        return await self._in_turn(partial(self._call, method, *arguments, **options))

    def rows(self, limit: int | None) -> int:
        """Return how many events a page has at most; None asks for the default."""
        return min(max(_PAGE if limit is None else limit, 1), self._capacity.page_events)

    @property
    def has_spare_room(self) -> bool:
        """Return whether there is capacity to read ahead of requests."""
        return self._connections.taken * 2 < self._capacity.connections and not self._sender.is_full

    async def read_pages(self, wanted: PageRequest, count: int) -> list[Page]:
        """Read pages, each where the one before ends.

        Args:
            wanted: the first one.
            count: how many, if the feed can read several at once.
        """
        if not self.has("read_pages"):
            return [await self.read(wanted)]
        start = wanted.partition, wanted.cursor, wanted.limit
        pages: list[Page] = await self.call("read_pages", *start, count, **wanted.options)
        return pages

    async def read(self, wanted: PageRequest) -> Page:
        """Read a page."""
        return await self._whole_page(wanted, await self._begin_page(wanted))

    async def read_or_wait(
        self,
        wanted: PageRequest,
        *,
        seconds: float,
        request: FeedRequest,
        waiting: Callable[[], AbstractContextManager[object]],
    ) -> Page:
        """Read a page; if there is nothing at the head, wait for it.

        Args:
            wanted: the page.
            seconds: how long to wait, if the feed's capacity allows that.
            request: the request; its `waited` is set to the seconds that it waited.
            waiting: the context to enter while the request waits.
        """
        began, version = anyio.current_time(), self._head.version
        found, is_own = await self._shared_page(wanted)
        if seconds > 0 and is_idle(found.page, wanted.cursor):
            deadline = began + min(seconds, self._capacity.wait_seconds)
            began = anyio.current_time()
            with waiting():
                wanted, found, is_own = await self._long_poll.page(
                    wanted, found, version, deadline=deadline, receive=request.receive
                )
            request.waited = anyio.current_time() - began
        whole = self._whole_page(wanted, found, is_own=is_own)
        del found  # this reference would keep a page in memory that is dropped for lack of room
        return await whole

    async def work(
        self, size: int, function: Callable[..., _Made], *arguments: Any, large: int = _LARGE
    ) -> _Made:
        """Run a function on a page, in a thread if the page would block the event loop.

        Args:
            size: bytes of the page.
            function: the function.
            arguments: its arguments.
            large: bytes from which to use a thread.
        """
        if size < large:
            return function(*arguments)
        self._sender.budget.take(size)
        try:
            return await anyio.to_thread.run_sync(function, *arguments, limiter=self._threads)
        finally:
            self._sender.budget.take(-size)

    async def _shared_page(self, wanted: PageRequest) -> tuple[Found, bool]:
        """Read a page once for all equal requests of a reader that arrive before the read starts.

        Returns:
            The page, and whether this request has read it itself.
        """
        key = READER.get(), wanted
        flight = self._not_begun.get(key)
        if flight is None:
            begun = partial(self._not_begun.pop, key, None)
            flight = SingleFlight(lambda _: self._begin_page(wanted, begun))
            self._not_begun[key] = flight
        found, is_own = await flight.result()
        return cast("Found", found), is_own  # there is no end to its time

    async def _begin_page(
        self, wanted: PageRequest, begun: Callable[[], object] = lambda: None
    ) -> Found:
        """Read a page; if the send budget is used up, only one event of it.

        Args:
            wanted: the page.
            begun: called when it is the request's turn, before anything is read.
        """

        async def read() -> Found:
            begun()
            is_full = self._sender.is_full
            page = await self._read(wanted._replace(limit=1) if is_full else wanted)
            return Found(page, is_full)

        return await self._in_turn(read)

    async def _whole_page(self, wanted: PageRequest, found: Found, *, is_own: bool = True) -> Page:
        """Return a page once the send budget has room for it, and read its rest then.

        Args:
            wanted: the page.
            found: the part that was read.
            is_own: whether only this request holds the page.
        """
        page, is_part = found
        size = size_of(page.events)
        # Other responses may have used the room meanwhile.
        if size and (is_part or (is_own and not self._sender.budget.fits(size))):
            del found, page
            async with self._sender.budget.acquire(self._sender.page_bytes):
                return await self._in_turn(partial(self._read, wanted))
        if not is_own:
            async with self._sender.budget.acquire(size):
                pass
        return page

    async def _read(self, wanted: PageRequest) -> Page:
        start = wanted.partition, wanted.cursor, wanted.limit
        page: Page = await self._call("read", *start, **wanted.options)
        return page

    async def _in_turn(self, ask: Callable[[], Awaitable[_Made]]) -> _Made:
        """Call the feed when a connection is free; fetch missing archive parts without it."""
        held: list[object] = []
        while True:
            try:
                async with self._connections.acquire():
                    return await ask()
            except ArchiveMiss as missing:
                load = missing.load
            async with self._archive.acquire():
                hold_part(held, await anyio.to_thread.run_sync(load, limiter=self._archive_threads))

    async def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the feed without blocking the event loop."""
        called = getattr(self._feed, method)
        if iscoroutinefunction(called):
            return await called(*arguments, **options)
        work = partial(called, *arguments, **options)
        result = await anyio.to_thread.run_sync(work, limiter=self._threads)
        # A decorator may hide that a method is asynchronous.
        return await result if isawaitable(result) else result


def _bound(
    feed: Feed | AsyncFeed | FeedSource, engine: Any, capacity: Capacity
) -> Feed | AsyncFeed:
    bind = getattr(feed, "bind", None)
    if bind is not None:
        if engine is None:
            raise ConfigurationError("This feed reads from a database: give its engine as well.")
        feed = bind(engine, capacity)
        feed = getattr(feed, "without_fetching", lambda: feed)()
    elif engine is not None:
        raise ConfigurationError("This feed does not read from a database: give no engine.")
    if not (hasattr(feed, "info") and hasattr(feed, "read")):
        raise ConfigurationError(f"{feed!r} is not a feed: it has no info() and read().")
    return feed  # type: ignore[return-value] # checked just above
