"""Call a feed from the routes: await sync and async feeds, within the feed's capacity."""

import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import isawaitable, iscoroutinefunction, signature
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread

from zeroeventhub.errors import (
    ConfigurationError,
    FeedFailure,
    Forbidden,
    NotFound,
    TransientError,
    Unauthorized,
    Unavailable,
    ZeroEventHubError,
)
from zeroeventhub.extensions import WAIT
from zeroeventhub.feed import ArchiveMiss, AsyncFeed, Feed, FeedSource, hold_part
from zeroeventhub.protocol import FIRST, LAST, Event, EventSequence, FeedInfo, Page, is_cursor
from zeroeventhub.server.auth import EVERYBODY, Principal, Quotas
from zeroeventhub.server.long_poll import Found, HeadWatcher, LongPoll, SingleFlight, is_idle
from zeroeventhub.server.request import FeedRequest, PageRequest, visible_info
from zeroeventhub.server.sending import READER, AdmissionQueue, Sender, call_soon
from zeroeventhub.settings import Capacity
from zeroeventhub.wire.ndjson import size_of

_log = logging.getLogger("zeroeventhub.server")

_BUSY = "The feed has more requests than it can answer just now."

_SLOW = "The feed's archive has more requests than it can answer just now."

_AWAY = "The feed cannot reach what it reads from."

_LARGE = 256 * 1024
"""Bytes of a page that block the event loop for a millisecond, roughly."""

WSGI = "wsgi_environ"
"""What a2wsgi adds to the scope of a request: a server of WSGI, of which each request that waits
would hold a thread or a whole worker, so that there a feed does not wait."""

_Made = TypeVar("_Made")


class FeedRunner:
    """Call a feed without blocking the event loop.

    `feed_routes` documents the arguments; `on_waiting` is called with the number of requests that
    wait at the head, when it changes.

    Raises:
        ConfigurationError: the engine does not fit the feed.
    """

    def __init__(  # noqa: PLR0917 - each of another type
        self,
        feed: Feed | AsyncFeed | FeedSource,
        engine: Any,
        capacity: Capacity,
        sender: Sender,
        quotas: Quotas,
        on_waiting: Callable[[int], None],
    ) -> None:
        self._feed: Any = _bind(feed, engine, capacity)
        self._is_foreign = not hasattr(self._feed, "known_info")  # and its pages are checked
        self._has_threads = not any(
            iscoroutinefunction(getattr(self._feed, name, None)) for name in ("head", "read")
        )
        self.reads_several = self.has("read_pages")
        """Whether several pages can be read in one call."""
        queue = partial(
            AdmissionQueue, capacity.connections, queue=capacity.queue, patience=capacity.patience
        )
        self._connections = queue(refusal=_BUSY)
        self.answers = queue(refusal=_BUSY)
        """Admits answers of several pages, which stay in memory until they are complete."""
        self._archive = queue(refusal=_SLOW)
        # As many threads as admitted calls, so that none waits for a thread.
        self._threads = anyio.CapacityLimiter(capacity.connections)
        self._archive_threads = anyio.CapacityLimiter(capacity.connections)
        self.capacity = capacity
        self._sender = sender
        self._quotas = quotas
        self._not_begun: dict[tuple[str, PageRequest], SingleFlight[Found]] = {}
        self._head = HeadWatcher(self._look, capacity.look_seconds)
        on_commit = getattr(self._feed, "on_commit", None)
        if on_commit is not None and not iscoroutinefunction(on_commit):
            on_commit(self._head.notify)
        self._has_warned = False
        at_once = max(1, capacity.queue // 2)
        self._long_poll = LongPoll(self._head, self._begin, capacity.waiters, on_waiting, at_once)

    async def _look(
        self, seen: Hashable, wanted: PageRequest | None
    ) -> tuple[Hashable, Page | None]:
        """Return the head, and, if it is not the one seen, the page that requests wait for."""
        may_read = wanted is not None and self._sender.budget.fits(self._sender.page_bytes)
        if not (may_read and self._has_threads):
            return await self.call("head"), None
        head, page = await self.call(self._head_and_page, seen, wanted)
        return await head if isawaitable(head) else head, page

    def _head_and_page(self, seen: Hashable, wanted: PageRequest) -> tuple[Any, Page | None]:
        """Poll in one thread: to switch threads for the page takes as long as to read it."""
        head = self._feed.head()
        if isawaitable(head) or head == seen:
            return head, None
        with suppress(Exception):  # the request meets it when it reads the page itself
            page = self._feed.read(*wanted[:3], **wanted.options())
            if self._is_foreign:
                _expect_page(page)
            return head, page
        return head, None

    async def info(self, request: FeedRequest | None = None) -> FeedInfo:
        """Return the feed's description; for a request, of what it may see and ask for."""
        info: FeedInfo | None = getattr(self._feed, "known_info", None)
        if info is None:
            info = await self.call("info")
            if not isinstance(info, FeedInfo) or not isinstance(info.token, str | None):
                raise FeedFailure("A feed's info() returns a FeedInfo, whose token is a text.")
            if info.token is None:  # of a feed of ZeroEventHub v1 that this one relays
                info = replace(info, token=str(len(info.partitions)))
        if request is None:
            return info
        if WSGI in request.scope:
            info = replace(info, extensions=info.extensions - {WAIT})
        principal = request.principal
        return info if principal is EVERYBODY else self.visible_info(info, principal)

    def visible_info(self, info: FeedInfo, principal: Principal) -> FeedInfo:
        """Return a description of the feed without what a principal may not see."""
        if principal.partitions is None and principal.types is None:
            return info
        shown = visible_info(info, principal)
        if getattr(self._feed, "has_open_digests", False) and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "This feed has readers who may see only a part of it, and its cursors have no "
                "secret: with a forged cursor, a reader can check a guess of a hidden event. Give "
                "its TableFeed a cursor_secret."
            )
        return shown

    def has(self, method: str) -> bool:
        """Return whether the feed has a method; one that it inherits from the port does nothing."""
        found = getattr(self._feed, method, None)
        return found is not None and getattr(found, "__module__", None) != Feed.__module__

    @property
    def waiting(self) -> int:
        """Return how many requests wait at the head."""
        return self._long_poll.count

    @property
    def has_spare_room(self) -> bool:
        """Return whether there is capacity to read ahead of requests."""
        has_connections = self._connections.taken * 2 < self.capacity.connections
        return has_connections and self._sender.budget.fits(self._sender.page_bytes)

    async def call(
        self,
        method: str | Callable[..., Any],
        *arguments: Any,
        begin: Callable[[list[Any]], object] | None = None,
        **options: Any,
    ) -> Any:
        """Call a method of the feed, or a function, when a connection is free.

        If parts of the archive are missing, it fetches them without a connection, and calls again.
        It calls `begin` with the arguments just before the method; `begin` may change them.
        """
        held: list[object] = []
        while True:
            try:
                async with self._connections.acquire():
                    given = [*arguments]
                    if begin is not None:
                        begin(given)
                    called = getattr(self._feed, method) if isinstance(method, str) else method
                    if iscoroutinefunction(called):
                        return await called(*given, **options)
                    work = partial(called, *given, **options)
                    result = await anyio.to_thread.run_sync(work, limiter=self._threads)
                    # A decorator may hide that a method is asynchronous.
                    return await result if isawaitable(result) else result
            except ArchiveMiss as missing:
                load = missing.load
            except ZeroEventHubError as error:
                if not _is_of_upstream(error):
                    raise
                seconds = getattr(error, "retry_after", None)
                raise Unavailable(_AWAY, retry_after=seconds) from error
            async with self._archive.acquire():
                hold_part(held, await anyio.to_thread.run_sync(load, limiter=self._archive_threads))

    async def read(
        self, wanted: PageRequest, request: FeedRequest | None = None, *, seconds: float = 0.0
    ) -> Page:
        """Read a page; if there is nothing at the head, wait for it.

        Only a request waits, up to so many seconds, and at most as long as the feed's capacity
        allows; it notes how long it has `waited`. It may share a read with its reader's equal ones.
        """
        began, version = anyio.current_time(), self._head.version
        if request is None or self._connections.fits(1):
            found, is_own = await self._begin(wanted), True
        else:
            found, is_own = await self._begin_shared(wanted)
        if request is not None and seconds > 0 and is_idle(found.page, wanted.cursor):
            deadline = began + min(seconds, self.capacity.wait_seconds)
            began = anyio.current_time()
            account = self._quotas.count(request.principal, "waiters")
            try:
                wanted, found, is_own = await self._long_poll.page(
                    wanted, found, version, deadline=deadline, receive=request.receive
                )
            finally:
                account.waiters -= 1
            request.waited = anyio.current_time() - began
        page, is_part = found
        del found  # it would keep the page in memory, which may be dropped for lack of room
        size, budget = size_of(page.events), self._sender.budget
        # Other responses may have used the room meanwhile.
        if size and (is_part or (is_own and not budget.fits(size))):
            del page
            async with budget.acquire(self._sender.page_bytes):
                whole: Page = await self.call("read", *wanted[:3], **wanted.options())
                return whole
        if not is_own:
            async with budget.acquire(size):
                pass
        return page

    async def read_pages(
        self,
        wanted: PageRequest,
        count: int,
        make: Callable[[Page, PageRequest], _Made],
        take: Callable[[deque[tuple[PageRequest, _Made]]], object],
    ) -> None:
        """Read one page or more, and hand over each as soon as it is there.

        `make` makes something of each page and its request, in the thread that reads. `take` is
        called in the event loop to empty a queue of requests and what was made for them.
        """
        soon, made = call_soon(), deque[tuple[PageRequest, _Made]]()
        start, number = wanted, 0

        def begin(_arguments: list[Any]) -> None:
            nonlocal start, number
            start, number = wanted, 0

        def arrive(page: Page) -> None:
            nonlocal start, number
            made.append((start, make(page, start)))
            start, number = start._replace(cursor=page.cursor), number + 1
            soon(partial(take, made))

        if self.reads_several:
            pages = await self.call(
                "read_pages", *wanted[:3], count, begin=begin, on_page=arrive, **wanted.options()
            )
        else:
            pages = [await self.read(wanted)]
        for page in pages[number:]:
            arrive(page)
        take(made)

    async def work(
        self, size: int, function: Callable[..., _Made], *arguments: Any, large: int = _LARGE
    ) -> _Made:
        """Run a function on a page of this size, in a thread if it would block the event loop."""
        if size < large:
            return function(*arguments)
        self._sender.budget.take(size)
        try:
            return await anyio.to_thread.run_sync(function, *arguments, limiter=self._threads)
        finally:
            self._sender.budget.take(-size)

    async def _begin_shared(self, wanted: PageRequest) -> tuple[Found, bool]:
        """Read a page once for equal requests of a reader; return it, and whether this one did."""
        key = READER.get(), wanted
        flight = self._not_begun.get(key)
        if flight is None:
            begun = partial(self._not_begun.pop, key, None)
            flight = SingleFlight(lambda _: self._begin(wanted, begun))
            self._not_begun[key] = flight
        try:
            found, is_own = await flight.result()
        finally:
            if self._not_begun.get(key) is flight:  # refused, or cancelled, before it began
                del self._not_begun[key]
        return cast("Found", found), is_own  # never None, as there is no deadline

    async def _begin(self, wanted: PageRequest, begun: Callable[[], object] | None = None) -> Found:
        """Call `begun`, and read a page; if the send budget is used up, only one event of it."""
        is_part = False

        def begin(arguments: list[Any]) -> None:
            nonlocal is_part
            if begun is not None:
                begun()
            is_part = not self._sender.budget.fits(self._sender.page_bytes)
            if is_part:
                arguments[-1] = 1

        page: Page = await self.call("read", *wanted[:3], begin=begin, **wanted.options())
        if self._is_foreign:
            _expect_page(page)
        return Found(page, is_part)


def _is_of_upstream(error: ZeroEventHubError) -> bool:
    """Return whether a feed could not read what it reads from, such as for want of credentials."""
    if isinstance(error, TransientError):
        return not isinstance(error, Unavailable)
    return bool(error.shown) and isinstance(error, Unauthorized | Forbidden | NotFound)


def _expect_page(page: Any) -> None:
    """Raise FeedFailure for what a feed of one's own may return in place of a page."""
    if not isinstance(page, Page):
        raise FeedFailure(f"A feed's read() returns a Page; here it is a {type(page).__name__}.")
    events: Sequence[object] = page.events
    if not isinstance(events, EventSequence):
        for event in events:
            if not isinstance(event, Event):
                kind = type(event).__name__
                raise FeedFailure(f"A Page has Events, of Event.of(…); here it has a {kind}.")
    cursor: object = page.cursor
    if not isinstance(cursor, str) or cursor in {FIRST, LAST} or not is_cursor(cursor):
        raise FeedFailure(
            "The cursor of a Page is a text of up to 4,096 printable characters of ASCII, but not "
            f"{FIRST} and {LAST}; here it is another {type(cursor).__name__}."
        )


def _bind(feed: Feed | AsyncFeed | FeedSource, engine: Any, capacity: Capacity) -> Feed | AsyncFeed:
    bind = getattr(feed, "bind", None)
    if bind is not None:
        if engine is None:
            raise ConfigurationError("This feed reads from a database: give its engine as well.")
        feed = bind(engine, capacity)
        feed = getattr(feed, "without_fetching", lambda: feed)()
    if not (hasattr(feed, "info") and hasattr(feed, "read")):
        raise ConfigurationError(f"{feed!r} is not a feed: it has no info() and read().")
    if bind is None and engine is not None:
        raise ConfigurationError("This feed does not read from a database: give no engine.")
    read_pages = getattr(feed, "read_pages", None)
    if read_pages is not None:
        try:
            signature(read_pages).bind(0, "", 1, 1, on_page=None)
        except TypeError as error:
            raise ConfigurationError(f"{feed!r} cannot read pages ahead: {error}.") from error
    return feed  # type: ignore[return-value] # checked just above
