"""A feed as the endpoints see it: awaitable, whichever way it was written."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread

from zeroeventhub.at_hand import NotAtHand, Parts
from zeroeventhub.errors import BadRequest, ConfigurationError, NotFound, TokenChanged
from zeroeventhub.feed import AsyncFeed, Feed, FeedSource
from zeroeventhub.protocol import EVENT_TYPES, WAIT, FeedInfo, Page, TypeFilter
from zeroeventhub.server.long_poll import Found, Gathering, News, Question, Waiting, is_idle
from zeroeventhub.server.request import FeedRequest
from zeroeventhub.server.sending import READER, Line, Sending
from zeroeventhub.settings import Capacity
from zeroeventhub.wire.lines import size_of

__all__ = ["NO_PARTITION", "Source", "expect_extension", "expect_partition"]

NO_PARTITION = "The feed has no such partition."
"""Said of a partition that does not exist, and of one that whoever asks may not know of."""

_log = logging.getLogger("zeroeventhub.server")

_PAGE = 1_000
"""How many events a page has where nobody says how many."""

_BUSY = "The feed is asked more than it can answer just now."

_SLOW = "The feed's archive is asked more than it can answer just now."

_LARGE = 256 * 1024
"""How many bytes of a page keep the event loop for a millisecond, or nearly."""

_Made = TypeVar("_Made")


class Source:
    """Call a feed without blocking the event loop, and ask it for nothing that it cannot do.

    Args:
        feed: a TableFeed, or a feed of the caller's own making.
        engine: the engine that a TableFeed reads through.
        capacity: how much the feed takes of the process and of its database.
        sending: has room for what is read.
        told: is told how many requests wait at the head, when that changes.

    Raises:
        ConfigurationError: the engine does not fit the feed.
    """

    def __init__(
        self,
        feed: Feed | AsyncFeed | FeedSource,
        engine: Any,
        capacity: Capacity,
        sending: Sending,
        told: Callable[[int], None],
    ) -> None:
        self._feed: Any = _bound(feed, engine, capacity)
        line = partial(Line, capacity.connections, queue=capacity.queue, patience=capacity.patience)
        self._line = line(refusal=_BUSY)
        self._several = line(refusal=_BUSY)
        self._fetching = line(refusal=_SLOW)
        # Whoever has a place has a thread: nobody waits for one.
        self._threads = anyio.CapacityLimiter(capacity.connections)
        self._fetchers = anyio.CapacityLimiter(capacity.connections)
        self._connections = capacity.connections
        self._sending = sending
        self._unbegun: dict[tuple[str, Question], Gathering[Found]] = {}
        self._most = capacity.page_events
        self.page_bytes = capacity.page_bytes
        """How much data an answer of several pages holds, about; see `Capacity`."""
        self._longest = capacity.wait_seconds
        self.news = News(self.call("head"), capacity.look_seconds)
        on_commit = getattr(self._feed, "on_commit", None)
        if on_commit is not None and not iscoroutinefunction(on_commit):
            on_commit(self.news.hurry)
        self._has_warned = False
        at_once = max(1, capacity.queue // 2)
        self._waiting = Waiting(self.news, self._page, capacity.waiters, told, at_once)

    async def info(self) -> FeedInfo:
        """Return what the feed says of itself; a TableFeed mostly knows it by heart."""
        known: FeedInfo | None = getattr(self._feed, "known_info", None)
        if known is not None:
            return known
        found: FeedInfo = await self.call("info")()
        return found

    def warn_of_guesses(self) -> None:
        """Tell the log, once, that readers of a part of the feed can confirm what is hidden."""
        if getattr(self._feed, "has_open_digests", False) and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "This feed has readers who may see only a part of it, and no secret: a reader who "
                "makes up a cursor learns whether a guess of a hidden event is right. Give its "
                "TableFeed a cursor_secret."
            )

    def has(self, method: str) -> bool:
        """Tell whether the feed has a method."""
        return hasattr(self._feed, method)

    def call(self, method: str) -> Callable[..., Awaitable[Any]]:
        """Return a method of the feed's; asking for one that it lacks is the caller's mistake."""

        async def late(*arguments: Any, **options: Any) -> Any:
            return await self._in_line(partial(self._ask, method, *arguments, **options))

        return late

    def several(self) -> AbstractAsyncContextManager[None]:
        """Be one of a few for whom an answer of several pages is read: they are held until its end.

        Raises:
            Unavailable: there were too many, for some time.
        """
        return self._several.place()

    def rows(self, limit: int | None) -> int:
        """Return how many events a page has at most, whatever was asked for; None for nothing."""
        return min(max(_PAGE if limit is None else limit, 1), self._most)

    @property
    def has_spare_room(self) -> bool:
        """Tell whether something may be read that nobody waits for."""
        return self._line.taken * 2 < self._connections and not self._sending.is_full

    def question(
        self, info: FeedInfo, partition: int, cursor: str, limit: int | None, **options: Any
    ) -> Question:
        """Return what `read` asks the feed for, given the same."""
        return _question(info, partition, cursor, self.rows(limit), **options)

    async def read_pages(self, question: Question, count: int) -> list[Page]:
        """Read pages, each where the one before ends.

        Args:
            question: what to read of the first one.
            count: how many, if the feed can read several at once.
        """
        if not self.has("read_pages"):
            return [await self._whole(question, await self._page(question))]
        place = question.partition, question.cursor, question.limit
        options = dict(question.options)
        read = partial(self._ask, "read_pages", *place, count, **options)
        pages: list[Page] = await self._in_line(read)
        return pages

    async def read(
        self, info: FeedInfo, partition: int, cursor: str, limit: int | None, **options: Any
    ) -> Page:
        """Read a page.

        Args:
            info: what the feed says of itself.
            partition: one of its partitions.
            cursor: where to read from.
            limit: how many events were asked for.
            options: types, stop and each, as `ExtendedFeed.read` has them; a feed is given none
                but those that were asked for, and that it knows.
        """
        question = self.question(info, partition, cursor, limit, **options)
        return await self._whole(question, await self._page(question))

    async def read_or_wait(
        self,
        info: FeedInfo,
        partition: int,
        cursor: str,
        limit: int | None,
        *,
        seconds: float,
        request: FeedRequest,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
        **options: Any,
    ) -> Page:
        """Read a page; if there is nothing at the head, wait for it.

        Args:
            info: what the feed says of itself.
            partition: one of its partitions.
            cursor: where to read from.
            limit: how many events were asked for.
            seconds: how long to wait, if the feed lets anybody wait so long.
            request: whose it is; its `waited` is set to the seconds that it waited.
            waiting: what to be in for as long as there is nothing to read.
            options: those of `read`.
        """
        question = self.question(info, partition, cursor, limit, **options)
        began, edition = anyio.current_time(), self.news.edition
        found, is_own = await self._shared(question)
        if seconds > 0 and is_idle(found.page, cursor) and WAIT in info.extensions:
            deadline, began = began + min(seconds, self._longest), anyio.current_time()
            with waiting():
                question, found, is_own = await self._waiting.page(
                    question, found, edition, deadline=deadline, receive=request.receive
                )
            request.waited = anyio.current_time() - began
        whole = self._whole(question, found, is_own=is_own)
        del found  # or else this would keep a page that is dropped for want of room
        return await whole

    async def work(
        self, size: int, function: Callable[..., _Made], *arguments: Any, large: int = _LARGE
    ) -> _Made:
        """Work on a page where it keeps nobody waiting: in a thread, if the page is large.

        Args:
            size: how many bytes there are to work on.
            function: what to do.
            arguments: given to it.
            large: how many bytes keep the event loop for too long.
        """
        if size < large:
            return function(*arguments)
        with self._sending.held(size):
            return await anyio.to_thread.run_sync(function, *arguments, limiter=self._threads)

    async def _shared(self, question: Question) -> tuple[Found, bool]:
        """Read a page for all of a reader's who ask the same before it is begun: none is older.

        Returns:
            It, and whether it was read by whoever asks, and not by another.
        """
        key = READER.get(), question
        gathering = self._unbegun.get(key)
        if gathering is None:
            begun = partial(self._unbegun.pop, key, None)
            gathering = Gathering(lambda _: self._page(question, begun))
            self._unbegun[key] = gathering
        found, is_own = await gathering.result()
        return cast("Found", found), is_own  # there is no end to its time

    async def _page(self, question: Question, begun: Callable[[], object] = lambda: None) -> Found:
        """Read a page, or one event of it if too much is on its way.

        Args:
            question: what to read.
            begun: is called when it is its turn, before anything is read.
        """

        async def read() -> Found:
            begun()
            is_full = self._sending.is_full
            page = await self._read(question._replace(limit=1) if is_full else question)
            return Found(page, is_full)

        return await self._in_line(read)

    async def _whole(self, question: Question, found: Found, *, is_own: bool = True) -> Page:
        """Return a page when there is room for it: no more is held than that, and is read at once.

        Args:
            question: what was asked for it.
            found: what was read.
            is_own: whether it was read for who asks; else others hold it as well.
        """
        page, is_part = found
        size = size_of(page.events)
        # Others may have taken the room meanwhile.
        if size and (is_part or (is_own and not self._sending.fits(size))):
            del found, page
            async with self._sending.room():
                return await self._in_line(partial(self._read, question))
        if not is_own:
            async with self._sending.room(size):
                pass
        return page

    async def _read(self, question: Question) -> Page:
        options = dict(question.options)
        page: Page = await self._ask(
            "read", question.partition, question.cursor, question.limit, **options
        )
        return page

    async def _in_line(self, ask: Callable[[], Awaitable[_Made]]) -> _Made:
        """Ask when it is one's turn; nobody waits for what another has to fetch first."""
        parts = Parts()
        while True:
            try:
                async with self._line.place():
                    return await ask()
            except NotAtHand as missing:
                load = missing.load
            async with self._fetching.place():
                parts.keep(await anyio.to_thread.run_sync(load, limiter=self._fetchers))

    async def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the feed's without blocking the event loop."""
        called = getattr(self._feed, method)
        if iscoroutinefunction(called):
            return await called(*arguments, **options)
        work = partial(called, *arguments, **options)
        result = await anyio.to_thread.run_sync(work, limiter=self._threads)
        # A decorator may hide that a method is asynchronous.
        return await result if isawaitable(result) else result


def _question(
    info: FeedInfo,
    partition: int,
    cursor: str,
    limit: int,
    *,
    types: TypeFilter | None = None,
    stop: str | None = None,
    each: bool = False,
) -> Question:
    options: dict[str, Any] = {}
    if types is not None and EVENT_TYPES in info.extensions:
        options["types"] = types
    if stop is not None:
        options["stop"] = stop
    if each:
        options["each"] = True
    return Question(partition, cursor, limit, tuple(options.items()))


def expect_partition(info: FeedInfo, token: str, partition: int) -> None:
    """Check that the feed still is what a request takes it for.

    Raises:
        TokenChanged: the token is another by now.
        BadRequest: there is no such partition.
    """
    if token != info.token:
        raise TokenChanged(
            f"The feed's token is {info.token!r}: it changes with the partitions. A GET of the "
            "feed's address without parameters shows both."
        )
    if all(partition != known.id for known in info.partitions):
        raise BadRequest(NO_PARTITION)


def expect_extension(info: FeedInfo, extension: str) -> None:
    """Check that the feed has an extension.

    Raises:
        NotFound: it does not.
    """
    if extension not in info.extensions:
        raise NotFound(f"This feed does not have the extension {extension}.")


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
