"""The routes of a feed: what each of them answers, and all of them for an application to mount."""

from dataclasses import replace
from functools import partial
from typing import Any
from zlib import crc32

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response
from starlette.routing import Route

from zeroeventhub.errors import ConfigurationError, FeedFailure, Gone
from zeroeventhub.feed import AsyncFeed, Feed, FeedSource
from zeroeventhub.protocol import (
    EVENT_TYPES,
    EXTENSIONS,
    FIRST,
    LAST,
    STOP,
    WAIT,
    Event,
    Extension,
    KeyPage,
)
from zeroeventhub.server.app import Answer, FeedApp, Observer, RouteApp
from zeroeventhub.server.auth import Access, Authorize, Quota, Quotas, everybody
from zeroeventhub.server.authorized_feed import AuthorizedFeed, expect_extension, expect_partition
from zeroeventhub.server.feed_runner import FeedRunner
from zeroeventhub.server.pages import PageCache
from zeroeventhub.server.problems import Log
from zeroeventhub.server.request import (
    FeedRequest,
    cursor_in,
    number_in,
    optional,
    optional_number,
    read_extension_request,
    read_v1_request,
    required,
    seconds_in,
    types_of,
)
from zeroeventhub.server.responses import FRESH, Renderer
from zeroeventhub.server.sending import Sender
from zeroeventhub.server.server_sent_events import server_sent_events as answer_server_sent_events
from zeroeventhub.settings import Capacity
from zeroeventhub.wire import NDJSON_TYPE
from zeroeventhub.wire.documents import encode_answer, encode_info
from zeroeventhub.wire.lines import one_line
from zeroeventhub.wire.ndjson import encode_page_v1

__all__ = ["feed_routes"]

JSON_TYPE = "application/json"


async def discover(app: FeedApp, request: FeedRequest, feed: AuthorizedFeed) -> Response:
    """Answer with the feed's description, or with pages of ZeroEventHub v1."""
    query = request.parameters()
    if "n" in query:  # a client of v1 gives the number of partitions that it expects
        return await _events_v1(app, request, query, feed)
    info = await feed.info()
    info = replace(info, extensions=info.extensions | app.renderer.extensions)
    return Response(encode_info(info), media_type=JSON_TYPE, headers=FRESH)


async def _events_v1(
    app: FeedApp, request: FeedRequest, query: QueryParams, feed: AuthorizedFeed
) -> Response:
    info, count = await feed.counted()
    known, limit, headers = read_v1_request(query, info, count)
    # The hint is the number of events in the whole answer (ZeroEventHub v1, Parameters).
    share = max(1, app.runner.rows(limit) // len(known))
    # An answer that is full leaves partitions out, which keep their cursors. Where it begins
    # changes with the cursors, so that no partition is left out for ever.
    cursors = [*known.items()]
    first = crc32(request.scope["query_string"]) % len(cursors)
    parts: dict[int, bytes] = {}
    async with app.runner.answers.acquire():
        for partition, cursor in cursors[first:] + cursors[:first]:
            if sum(map(len, parts.values())) >= app.runner.page_bytes:
                break
            page = await app.runner.read(feed.page(partition, cursor, share))
            parts[partition] = encode_page_v1(partition, page, headers)
            request.events += len(page.events)
    body = b"".join(part for _, part in sorted(parts.items()))
    return Response(body, media_type=NDJSON_TYPE, headers=FRESH)


async def events(app: FeedApp, request: FeedRequest, feed: AuthorizedFeed) -> Response:
    """Answer with a page (FeedAPI v2, Events endpoint)."""
    info, query = await feed.info(), request.parameters()
    token = required(query, "token")
    partition = number_in(required(query, "partition"), "partition")
    # The parameters of extensions that the feed lacks are ignored.
    stop = optional(query, "stop") if STOP in info.extensions else None
    wait = optional(query, "wait") if WAIT in info.extensions else None
    seconds = 0.0 if wait is None else seconds_in(wait, "wait")
    wanted = feed.page(
        partition,
        cursor_in(required(query, "cursor")),
        optional_number(query, "pagesizehint"),
        types=types_of(query) if EVENT_TYPES in info.extensions else None,
        stop=None if stop is None else cursor_in(stop, {FIRST, LAST}),
    )
    del query  # thousands may wait
    expect_partition(info, token, partition)
    shared = wanted if feed.is_shared(wanted) else None
    page = None if shared is None else await app.pages.get(shared)
    if page is None:
        # The place of LAST is what was asked for, and it is known at once.
        waits = request.method != "HEAD" and wanted.cursor != LAST
        try:
            found = await app.runner.read_or_wait(
                wanted,
                seconds=seconds if waits else 0.0,
                request=request,
                waiting=feed.waiting,
            )
        except Gone:
            app.pages.clear()
            raise
        page = await app.pages.encoded(found, shared)
    request.events = page.events
    if shared is not None and page.full and request.method != "HEAD":
        request.meanwhile = app.pages.read_ahead(shared, page)
    in_shared_cache = app.shared_cache and request.is_public
    return await app.renderer.response(request, page, shared=in_shared_cache)


async def extension_of(
    extension: Extension, _: FeedApp, request: FeedRequest, feed: AuthorizedFeed
) -> Response:
    """Answer what an extension describes."""
    info = await feed.info()
    expect_extension(info, extension.name)
    token, asked = read_extension_request(request.parameters(), extension)
    if token is not None:
        expect_partition(info, token, asked["partition"])
    found = await feed.ask(extension, asked)
    if isinstance(found, KeyPage):
        request.events = len(found.events)
    body = encode_answer(extension, asked["cursor"] if extension.is_put else found)
    return Response(body, media_type=JSON_TYPE, headers=FRESH)


BATCH_TYPE = "application/cloudevents-batch+json"


async def answer_http_feed(app: FeedApp, request: FeedRequest, feed: AuthorizedFeed) -> Response:
    """Answer with the events after the one that the client has (HTTP Feeds, Polling)."""
    query = request.parameters()
    timeout, last = optional(query, "timeout"), optional(query, "lastEventId")
    seconds = 0.0 if timeout is None else number_in(timeout, "timeout") / 1000
    info, partition = await feed.only(optional_number(query, "partition"))
    waits = WAIT in info.extensions and request.method != "HEAD"
    cursor = FIRST
    # Clients in JavaScript send the text "null" where they have no event yet.
    if last is not None and last not in {"", "null"}:
        cursor = await feed.cursor_of(last, partition)
    while True:
        page = await app.runner.read_or_wait(
            feed.page(partition, cursor, None),
            seconds=seconds if waits else 0.0,
            request=request,
            waiting=feed.waiting,
        )
        # A client without cursors cannot move on over what has been deleted.
        if page.events or page.caught_up or page.cursor == cursor:
            break
        cursor = page.cursor
    for event in page.events[:1]:
        _expect_cloud_event(event)
    request.events = len(page.events)
    body = b"[%b]\n" % b",\n".join(one_line(event.raw) for event in page.events)
    return Response(body, media_type=BATCH_TYPE, headers=FRESH)


class _CloudEvent(msgspec.Struct):
    specversion: str
    id: str


def _expect_cloud_event(event: Event) -> None:
    try:
        msgspec.json.decode(event.raw, type=_CloudEvent)
    except msgspec.DecodeError as error:
        raise FeedFailure(
            "An HTTP feed needs events that are CloudEvents; these are not. Give the TableFeed "
            "cloudevents=True."
        ) from error


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
        name: the routes' name, for `url_for`; pages have the name followed by ":events".
        authorize: says who may read, and what of it: a function of the request, sync or async,
            that returns a Principal or raises `Unauthorized` or `Forbidden`; anything else is a
            refusal. By default the one of a FeedAuthorization around the feed; where there is
            none, everybody reads everything. See docs/security.md.
        quota: default for principals without their own; anonymous readers share one.
        capacity: how much the feed takes of this process and of its database.
        observer: is called with requests and answers, such as one of `zeroeventhub.telemetry`.
        shared_cache: let caches that serve several clients, such as those of a CDN, keep pages
            that can never change. Only for a feed that everybody may read: such a cache gives
            what it has to every client.
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
        Renderer(runner, arrow=arrow, compressed=compressed),
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


def _need(runner: FeedRunner, method: str, what: str) -> None:
    if not runner.has(method):
        raise ConfigurationError(f"{what} needs a feed that has {method}(), as a TableFeed has.")
