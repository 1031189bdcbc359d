"""The two routes of a feed: discovery, which is also where v1 reads, and events."""

from collections.abc import Awaitable, Callable
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from zeroeventhub.errors import BadRequest, ConfigurationError, TokenChanged, ZeroEventHubError
from zeroeventhub.feed import AsyncFeed, Feed, FeedSource
from zeroeventhub.ndjson import MEDIA_TYPE, encode_info, encode_page, encode_page_v1
from zeroeventhub.protocol import FeedInfo, Page
from zeroeventhub.server.parameters import is_v1, read_events_request, read_v1_request
from zeroeventhub.server.problem import problem

__all__ = ["feed_routes"]

DEFAULT_PAGE = 1_000
LARGEST_PAGE = 10_000


def feed_routes(
    path: str, feed: Feed | AsyncFeed | FeedSource, engine: Any = None, *, name: str = "feed"
) -> list[Route]:
    """Return the routes of a feed, for an application of Starlette or FastAPI.

    `path` answers discovery (FeedAPI v2) and pages of ZeroEventHub v1; `path`/events answers
    pages of FeedAPI v2. Give them to an application as `routes`, or extend its own with them.

    Args:
        path: where the feed is mounted, such as "/departures".
        feed: a TableFeed, or a feed of your own making.
        engine: the SQLAlchemy Engine or AsyncEngine that a TableFeed reads through.
        name: the routes' name, for `url_for`; pages have the name with ":events" behind it.

    Raises:
        ConfigurationError: the path or the engine does not fit the feed.
    """
    path = "/" + path.strip("/")
    endpoint = _Endpoint(_bound(feed, engine))
    return [
        Route(path, endpoint.discover, name=name),
        Route(f"{path.rstrip('/')}/events", endpoint.events, name=f"{name}:events"),
    ]


def _bound(feed: Feed | AsyncFeed | FeedSource, engine: Any) -> Feed | AsyncFeed:
    bind = getattr(feed, "bind", None)
    if bind is not None:
        if engine is None:
            raise ConfigurationError("This feed reads from a database: give its engine as well.")
        feed = bind(engine)
    elif engine is not None:
        raise ConfigurationError("This feed does not read from a database: give no engine.")
    if not (hasattr(feed, "info") and hasattr(feed, "read")):
        raise ConfigurationError(f"{feed!r} is not a feed: it has no info() and read().")
    return feed  # type: ignore[return-value] # checked just above


def _awaitable(method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Call a method of a feed without blocking the event loop."""
    if iscoroutinefunction(method):
        return method

    async def in_thread(*arguments: Any) -> Any:
        result = await run_in_threadpool(method, *arguments)
        # A decorator may hide that a method is asynchronous.
        return await result if isawaitable(result) else result

    return in_thread


class _Endpoint:
    """Answer requests for one feed. Every page is whole before its status is sent."""

    def __init__(self, feed: Feed | AsyncFeed) -> None:
        self._info = _awaitable(feed.info)
        self._read = _awaitable(feed.read)

    async def discover(self, request: Request) -> Response:
        try:
            info: FeedInfo = await self._info()
            if is_v1(request.query_params):
                return await self._events_v1(request, info)
        except ZeroEventHubError as error:
            return problem(error)
        return Response(encode_info(info), media_type="application/json", headers=_FRESH)

    async def events(self, request: Request) -> Response:
        try:
            wanted = read_events_request(request.query_params)
            info: FeedInfo = await self._info()
            if wanted.token != info.token:
                raise TokenChanged("The token is not the feed's: discover its partitions again.")
            if all(wanted.partition != partition.id for partition in info.partitions):
                raise BadRequest("The feed has no such partition.")
            page: Page = await self._read(wanted.partition, wanted.cursor, _rows(wanted.limit))
        except ZeroEventHubError as error:
            return problem(error)
        return Response(encode_page(page), media_type=MEDIA_TYPE, headers=_FRESH)

    async def _events_v1(self, request: Request, info: FeedInfo) -> Response:
        wanted = read_v1_request(request.query_params, info)
        # The hint is the number of events in the whole answer (ZeroEventHub v1, Parameters).
        share = max(1, _rows(wanted.limit) // len(wanted.cursors))
        parts = []
        for partition, cursor in wanted.cursors.items():
            page: Page = await self._read(partition, cursor, share)
            parts.append(encode_page_v1(partition, page, wanted.headers))
        return Response(b"".join(parts), media_type=MEDIA_TYPE, headers=_FRESH)


_FRESH = {"Cache-Control": "no-store"}


def _rows(limit: int | None) -> int:
    return DEFAULT_PAGE if limit is None else min(max(limit, 1), LARGEST_PAGE)
