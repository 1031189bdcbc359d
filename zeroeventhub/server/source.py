"""A feed as the endpoints see it: awaitable, whichever way it was written."""

from collections.abc import Awaitable, Callable
from inspect import isawaitable, iscoroutinefunction
from typing import Any

import anyio
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive

from zeroeventhub.capacity import Capacity
from zeroeventhub.errors import BadRequest, ConfigurationError, NotFound, TokenChanged
from zeroeventhub.feed import AsyncFeed, Feed, FeedSource
from zeroeventhub.protocol import EVENT_TYPES, WAIT, FeedInfo, Page, TypeFilter
from zeroeventhub.server.news import News

__all__ = ["Source", "expect_extension", "expect_partition", "is_idle"]

_NO_PARTITION = "The feed has no such partition."


class Source:
    """Call a feed without blocking the event loop, and ask it for nothing that it cannot do.

    Args:
        feed: a TableFeed, or a feed of the caller's own making.
        engine: the engine that a TableFeed reads through.
        capacity: how much the feed takes of the process and of its database.

    Raises:
        ConfigurationError: the engine does not fit the feed.
    """

    def __init__(
        self, feed: Feed | AsyncFeed | FeedSource, engine: Any, capacity: Capacity
    ) -> None:
        self._feed: Any = _bound(feed, engine, capacity)
        self.info: Callable[[], Awaitable[FeedInfo]] = _awaitable(self._feed.info)
        self._read = _awaitable(self._feed.read)
        self.news = News(self.call("head"))

    def has(self, method: str) -> bool:
        """Tell whether the feed has a method."""
        return hasattr(self._feed, method)

    def call(self, method: str) -> Callable[..., Awaitable[Any]]:
        """Return a method of the feed's; asking for one that it lacks is the caller's mistake."""

        async def late(*arguments: Any, **options: Any) -> Any:
            return await _awaitable(getattr(self._feed, method))(*arguments, **options)

        return late

    async def only(self, partition: int | None) -> tuple[FeedInfo, int]:
        """Return what the feed says of itself, and the partition that a request means.

        Args:
            partition: the one that it names; None if it names none.

        Raises:
            BadRequest: there is no such partition, or it has to be named.
        """
        info = await self.info()
        known = [one.id for one in info.partitions]
        if partition is None and len(known) == 1:
            return info, known[0]
        if partition is None:
            raise BadRequest("The feed has several partitions: say partition=… as well.")
        if partition not in known:
            raise BadRequest(_NO_PARTITION)
        return info, partition

    async def read(
        self,
        info: FeedInfo,
        partition: int,
        cursor: str,
        limit: int,
        *,
        types: TypeFilter | None = None,
        stop: str | None = None,
        each: bool = False,
    ) -> Page:
        """Read a page; a feed is given no options but those that were asked for."""
        options: dict[str, Any] = {}
        if types is not None and EVENT_TYPES in info.extensions:
            options["types"] = types
        if stop is not None:
            options["stop"] = stop
        if each:
            options["each"] = True
        page: Page = await self._read(partition, cursor, limit, **options)
        return page

    async def read_or_wait(
        self,
        info: FeedInfo,
        partition: int,
        cursor: str,
        limit: int,
        *,
        seconds: float,
        receive: Receive,
        **options: Any,
    ) -> Page:
        """Read a page; if there is nothing at the head, wait for it.

        Args:
            info: what the feed says of itself.
            partition: one of its partitions.
            cursor: where to read from.
            limit: how many events to return at most.
            seconds: how long to wait.
            receive: tells when whoever asked has gone.
            options: those of `read`.
        """
        deadline = anyio.current_time() + seconds
        while True:
            edition = self.news.edition
            page = await self.read(info, partition, cursor, limit, **options)
            if seconds <= 0 or not is_idle(page, cursor) or WAIT not in info.extensions:
                return page
            cursor = page.cursor
            with anyio.CancelScope(deadline=deadline) as waiting:
                await _until_gone(receive, waiting, self.news.after(edition))
            if waiting.cancelled_caught:
                return page


async def _until_gone(receive: Receive, scope: anyio.CancelScope, waiting: Awaitable[None]) -> None:
    """Wait, and cancel the scope if the connection is closed meanwhile."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await waiting
            group.cancel_scope.cancel()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the only task that fails is the one waited for


def expect_partition(info: FeedInfo, token: str, partition: int) -> None:
    """Check that the feed still is what a request takes it for.

    Raises:
        TokenChanged: the token is another by now.
        BadRequest: there is no such partition.
    """
    if token != info.token:
        raise TokenChanged("The token is not the feed's: discover its partitions again.")
    if all(partition != known.id for known in info.partitions):
        raise BadRequest(_NO_PARTITION)


def expect_extension(info: FeedInfo, extension: str) -> None:
    """Check that the feed has an extension.

    Raises:
        NotFound: it does not.
    """
    if extension not in info.extensions:
        raise NotFound(f"This feed does not have the extension {extension}.")


def is_idle(page: Page, cursor: str) -> bool:
    """Tell whether a page says that there is nothing to read for now."""
    nothing = not page.events and not page.stop_reached
    return nothing and (page.caught_up or page.cursor == cursor)


def _bound(
    feed: Feed | AsyncFeed | FeedSource, engine: Any, capacity: Capacity
) -> Feed | AsyncFeed:
    bind = getattr(feed, "bind", None)
    if bind is not None:
        if engine is None:
            raise ConfigurationError("This feed reads from a database: give its engine as well.")
        feed = bind(engine, capacity)
    elif engine is not None:
        raise ConfigurationError("This feed does not read from a database: give no engine.")
    if not (hasattr(feed, "info") and hasattr(feed, "read")):
        raise ConfigurationError(f"{feed!r} is not a feed: it has no info() and read().")
    return feed  # type: ignore[return-value] # checked just above


def _awaitable(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Call a method of a feed without blocking the event loop."""
    if iscoroutinefunction(method):
        return method

    async def in_thread(*arguments: Any, **options: Any) -> Any:
        result = await run_in_threadpool(method, *arguments, **options)
        # A decorator may hide that a method is asynchronous.
        return await result if isawaitable(result) else result

    return in_thread
