"""The routes of a feed, for an application to mount."""

from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.routing import Route

from zeroeventhub.errors import ConfigurationError, require
from zeroeventhub.feed import AsyncFeed, Feed, FeedSource
from zeroeventhub.protocol import EXTENSIONS
from zeroeventhub.server.app import Answer, FeedApp, Observer, RouteApp
from zeroeventhub.server.auth import Access, Authorize, Quota, Quotas, everybody
from zeroeventhub.server.endpoints import discover, events, extension_of
from zeroeventhub.server.endpoints import http_feed as answer_http_feed
from zeroeventhub.server.feed_runner import FeedRunner
from zeroeventhub.server.pages import PageCache
from zeroeventhub.server.problems import Log
from zeroeventhub.server.responses import Renderer, content_codings
from zeroeventhub.server.sending import Sender
from zeroeventhub.server.server_sent_events import server_sent_events as answer_server_sent_events
from zeroeventhub.settings import Capacity

__all__ = ["feed_routes"]


def feed_routes(
    path: str,
    feed: Feed | AsyncFeed | FeedSource,
    engine: Any = None,
    *,
    name: str = "feed",
    authorize: Authorize | None = None,
    quota: Quota | None = None,
    capacity: Capacity | None = None,
    observer: Observer | None = None,
    shared_cache: bool = False,
    http_feed: bool = False,
    server_sent_events: bool = False,
    arrow: bool = False,
    compressed: bool = False,
) -> list[Route]:
    """Return the routes of a feed, for an application of Starlette or FastAPI.

    `path` answers discovery (FeedAPI v2) and pages of ZeroEventHub v1; `path`/events answers
    pages of FeedAPI v2; `path`/cursor, `path`/splits, `path`/lag, `path`/cursor-of-count,
    `path`/segments and `path`/key-history answer what discovery announces, and `path`/progress
    takes in, by PUT, how far consumers have come. Give them to an application as `routes`, or
    extend its own with them.

    Args:
        path: where the feed is mounted, such as "/departures".
        feed: a TableFeed, or a feed of your own making.
        engine: the SQLAlchemy Engine or AsyncEngine that a TableFeed reads through.
        name: the routes' name, for `url_for`; pages have the name with ":events" behind it.
        authorize: says who may read, and what of it: a function of the request, sync or async,
            that returns a Principal or raises `Unauthorized` or `Forbidden`; what else it does
            lets nobody in. By default the one of a FeedAuthorization around the feed; where there
            is none, everybody reads everything. See docs/security.md.
        quota: of each reader whose Principal has none; all who are not told apart share one.
        capacity: how much the feed takes of this process and of its database.
        observer: hears of requests and answers, such as one of `zeroeventhub.telemetry`.
        shared_cache: let caches that serve several clients, such as those of a CDN, keep pages
            that can never change. Only for a feed that everybody may read: what such a cache
            has, it gives to whoever asks.
        http_feed: answer at `path`/http-feed as HTTP Feeds has it; for events that are
            CloudEvents.
        server_sent_events: stream events at `path`/server-sent-events.
        arrow: send pages as Arrow record batches to clients that prefer them.
        compressed: pack pages of FeedAPI v2 for clients that ask for zstd, where that is installed,
            or gzip; of a feed that is read over slow networks, with no proxy before it that does.

    Raises:
        MissingExtra: `arrow` needs pyarrow, of the extra "arrow".
        ConfigurationError: the path or the engine does not fit the feed, the feed lacks what
            another way of reading it needs, or a shared cache would give to everybody what only
            some may read.
    """
    path = "/" + path.strip("/")
    below = path.rstrip("/")
    capacity, observer = capacity or Capacity(), observer or Observer()
    if shared_cache and authorize is not None and authorize is not everybody:
        raise ConfigurationError(
            "A shared cache gives what it has to every client: leave shared_cache out of a feed "
            "that not everybody may read."
        )
    access, sender = Access(authorize, patience=capacity.patience), Sender(capacity)
    runner = FeedRunner(feed, engine, capacity, sender, partial(observer.waiting, name))
    app = FeedApp(
        name,
        access,
        Quotas(quota),
        runner,
        PageCache(runner, capacity),
        Renderer(
            runner, _arrow_encoder() if arrow else None, content_codings() if compressed else ()
        ),
        sender,
        observer,
        shared_cache,
        Log(name),
    )
    answers: dict[str, Answer] = {"events": events}
    for extension in EXTENSIONS.values():
        if extension.path:
            answers[extension.path] = partial(extension_of, extension)
    if http_feed:
        _need(runner, "cursor_of", "An HTTP feed")
        answers["http-feed"] = answer_http_feed
    if server_sent_events:
        _need(runner, "head", "A stream of server-sent events")
        answers["server-sent-events"] = answer_server_sent_events
    puts = {extension.path for extension in EXTENSIONS.values() if extension.is_put}
    below_it = (
        Route(
            f"{below}/{route}",
            RouteApp(app, route, answer),
            methods=["PUT" if route in puts else "GET"],
            name=f"{name}:{route}",
        )
        for route, answer in answers.items()
    )
    return [
        Route(path, RouteApp(app, "discovery", discover), methods=["GET"], name=name),
        *below_it,
    ]


def _arrow_encoder() -> Callable[[bytes], bytes]:
    require("pyarrow", extra="arrow", user="A feed that sends Arrow")
    from zeroeventhub.wire.arrow import encode_page  # noqa: PLC0415 - of another extra

    return encode_page


def _need(runner: FeedRunner, method: str, what: str) -> None:
    if not runner.has(method):
        raise ConfigurationError(f"{what} needs a feed that has {method}(), as a TableFeed has.")
