"""The routes of a feed, for an application to mount."""

from typing import Any

from starlette.routing import Route

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.feed import AsyncFeed, Feed, FeedSource
from zeroeventhub.server.endpoint import Endpoint, explained
from zeroeventhub.server.http_feed import HttpFeed
from zeroeventhub.server.server_sent_events import ServerSentEvents
from zeroeventhub.server.source import Source

__all__ = ["feed_routes"]


def feed_routes(
    path: str,
    feed: Feed | AsyncFeed | FeedSource,
    engine: Any = None,
    *,
    name: str = "feed",
    shared_cache: bool = False,
    http_feed: bool = False,
    server_sent_events: bool = False,
) -> list[Route]:
    """Return the routes of a feed, for an application of Starlette or FastAPI.

    `path` answers discovery (FeedAPI v2) and pages of ZeroEventHub v1; `path`/events answers
    pages of FeedAPI v2; `path`/cursor, `path`/splits and `path`/lag answer what discovery
    announces. Give them to an application as `routes`, or extend its own with them.

    Args:
        path: where the feed is mounted, such as "/departures".
        feed: a TableFeed, or a feed of your own making.
        engine: the SQLAlchemy Engine or AsyncEngine that a TableFeed reads through.
        name: the routes' name, for `url_for`; pages have the name with ":events" behind it.
        shared_cache: let caches that serve several clients, such as those of a CDN, keep pages
            that can never change. Only for a feed that everybody may read: what such a cache
            has, it gives to whoever asks.
        http_feed: answer at `path`/http-feed as HTTP Feeds has it; for events that are
            CloudEvents.
        server_sent_events: stream events at `path`/server-sent-events.

    Raises:
        ConfigurationError: the path or the engine does not fit the feed, or the feed lacks what
            another way of reading it needs.
    """
    path = "/" + path.strip("/")
    below = path.rstrip("/")
    source = Source(feed, engine)
    endpoint = Endpoint(source, shared_cache=shared_cache)
    routes = [
        Route(path, explained(endpoint.discover), name=name),
        Route(f"{below}/events", explained(endpoint.events), name=f"{name}:events"),
        Route(f"{below}/cursor", explained(endpoint.cursor), name=f"{name}:cursor"),
        Route(f"{below}/splits", explained(endpoint.splits), name=f"{name}:splits"),
        Route(f"{below}/lag", explained(endpoint.lag), name=f"{name}:lag"),
    ]
    if http_feed:
        _need(source, "cursor_of", "An HTTP feed")
        answer = explained(HttpFeed(source).answer)
        routes.append(Route(f"{below}/http-feed", answer, name=f"{name}:http-feed"))
    if server_sent_events:
        _need(source, "head", "A stream of server-sent events")
        answer = explained(ServerSentEvents(source).answer)
        routes.append(
            Route(f"{below}/server-sent-events", answer, name=f"{name}:server-sent-events")
        )
    return routes


def _need(source: Source, method: str, what: str) -> None:
    if not source.has(method):
        raise ConfigurationError(f"{what} needs a feed that has {method}(), as a TableFeed has.")
