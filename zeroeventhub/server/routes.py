"""The routes of a feed, for an application to mount."""

from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.routing import Route

from zeroeventhub.errors import ConfigurationError, require
from zeroeventhub.feed import AsyncFeed, Feed, FeedSource
from zeroeventhub.protocol import EXTENSIONS
from zeroeventhub.server.app import Answer, Answering, Desk, Endpoint, Observer
from zeroeventhub.server.auth import Access, Authorize, Quota, everybody
from zeroeventhub.server.http_feed import HttpFeed
from zeroeventhub.server.pages import Pages
from zeroeventhub.server.responses import PageForms, content_codings
from zeroeventhub.server.sending import Sending
from zeroeventhub.server.server_sent_events import ServerSentEvents
from zeroeventhub.server.source import Source
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
    capacity = capacity or Capacity()
    if shared_cache and authorize is not None and authorize is not everybody:
        raise ConfigurationError(
            "A shared cache gives what it has to whoever asks: leave shared_cache out of a feed "
            "that not everybody may read."
        )
    access = Access(authorize, quota, patience=capacity.patience)
    observer = observer or Observer()
    sending = Sending(capacity)
    source = Source(feed, engine, capacity, sending, partial(observer.waiting, name))
    pages = Pages(source, capacity)
    forms = PageForms(
        source, _arrow_encoder() if arrow else None, content_codings() if compressed else ()
    )
    endpoint = Endpoint(source, access, pages, forms, shared_cache=shared_cache)
    desk = Desk(name, access, sending, observer)

    def route(path: str, kind: str, answer: Answer, method: str = "GET") -> Route:
        known = name if kind == "discovery" else f"{name}:{kind}"
        return Route(path, Answering(kind, answer, desk), methods=[method], name=known)

    routes = [
        route(path, "discovery", endpoint.discover),
        route(f"{below}/events", "events", endpoint.events),
        *(
            route(
                f"{below}/{extension.path}",
                extension.path,
                partial(endpoint.extension, extension),
                "PUT" if extension.is_put else "GET",
            )
            for extension in EXTENSIONS.values()
            if extension.path
        ),
    ]
    if http_feed:
        _need(source, "cursor_of", "An HTTP feed")
        routes.append(route(f"{below}/http-feed", "http-feed", HttpFeed(source, access).answer))
    if server_sent_events:
        _need(source, "head", "A stream of server-sent events")
        kind = "server-sent-events"
        routes.append(route(f"{below}/{kind}", kind, ServerSentEvents(source, access).answer))
    return routes


def _arrow_encoder() -> Callable[[bytes], bytes]:
    require("pyarrow", extra="arrow", user="A feed that sends Arrow")
    from zeroeventhub.wire.arrow import encode_page  # noqa: PLC0415 - of another extra

    return encode_page


def _need(source: Source, method: str, what: str) -> None:
    if not source.has(method):
        raise ConfigurationError(f"{what} needs a feed that has {method}(), as a TableFeed has.")
