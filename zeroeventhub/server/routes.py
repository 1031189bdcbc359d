"""The routes of a feed: what each of them answers, and all of them for an application to mount."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast
from zlib import crc32

import msgspec
from starlette.responses import Response
from starlette.routing import Route
from starlette.status import HTTP_201_CREATED

from zeroeventhub.errors import ConfigurationError, FeedFailure, Gone, NotFound
from zeroeventhub.extensions import APPEND, EXTENSIONS, PROGRESS, SCHEMAS, WAIT, Extension
from zeroeventhub.feed import AsyncFeed, Feed, FeedSource
from zeroeventhub.protocol import (
    CLOUDEVENTS,
    EVERY_TYPE,
    FIRST,
    LAST,
    Event,
    KeyPage,
    Page,
    Schemas,
)
from zeroeventhub.server.app import Answer, FeedApp, Observer, RouteApp
from zeroeventhub.server.appends import Appends
from zeroeventhub.server.auth import Access, Authorize, Quota, Quotas, everybody
from zeroeventhub.server.feed_runner import FeedRunner
from zeroeventhub.server.pages import PageCache
from zeroeventhub.server.problems import Log, check_help
from zeroeventhub.server.request import (
    FeedRequest,
    PageRequest,
    expect_extension,
    limit_in,
    number_in,
    only_partition,
    parameters,
    read_extension_request,
    read_page_request,
    read_v1_request,
)
from zeroeventhub.server.responses import FRESH, Renderer
from zeroeventhub.server.sending import Sender
from zeroeventhub.server.server_sent_events import server_sent_events as answer_server_sent_events
from zeroeventhub.settings import Capacity
from zeroeventhub.wire import CLOUDEVENTS_BATCH_TYPE, NDJSON_TYPE
from zeroeventhub.wire.documents import encode_answer, encode_document, encode_info
from zeroeventhub.wire.json_schema import DIALECT
from zeroeventhub.wire.ndjson import encode_page_v1, one_line

JSON_TYPE = "application/json"
SCHEMA_TYPE = "application/schema+json"
ASYNCAPI_TYPE = "application/vnd.aai.asyncapi+json;version=3.0.0"


async def discover(app: FeedApp, request: FeedRequest) -> Response:
    """Answer with the feed's description, or with pages of ZeroEventHub v1."""
    if parameters(request, optional=["n"]):  # a client of v1 gives the number of partitions
        return await _events_v1(app, request)
    info = await app.runner.info(request)
    info = replace(info, extensions=info.extensions | app.renderer.extensions)
    return Response(encode_info(info), media_type=JSON_TYPE, headers=FRESH)


async def _events_v1(app: FeedApp, request: FeedRequest) -> Response:
    whole, capacity = await app.runner.info(), app.runner.capacity
    info, count = app.runner.visible_info(whole, request.principal), len(whole.partitions)
    known, limit, headers = read_v1_request(request, info, count, capacity.page_events)
    # The limit is for the whole answer (ZeroEventHub v1, Parameters).
    share = max(1, limit // len(known))
    types = request.principal.narrowed(None)
    # A full answer has no events of further partitions, but returns their cursors: published
    # clients go on with the cursors of an answer alone. The first partition changes with the
    # cursors, so that each has its turn.
    cursors = [*known.items()]
    first = crc32(request.scope["query_string"]) % len(cursors)
    parts: dict[int, bytes] = {}
    async with app.runner.answers.acquire():
        for partition, cursor in cursors[first:] + cursors[:first]:
            if sum(map(len, parts.values())) >= capacity.page_bytes and cursor != LAST:
                page = Page([], cursor)
            else:
                page = await app.runner.read(PageRequest(partition, cursor, share, types))
            parts[partition] = encode_page_v1(partition, page, headers)
            request.events += len(page.events)
    body = b"".join(part for _, part in sorted(parts.items()))
    return Response(body, media_type=NDJSON_TYPE, headers=FRESH)


async def events(app: FeedApp, request: FeedRequest) -> Response:
    """Answer with a page (FeedAPI v2, Events endpoint)."""
    info = await app.runner.info(request)
    wanted, seconds = read_page_request(request, info, app.runner.capacity.page_events)
    # A page at LAST changes with each event, and pages of some types are for one principal only.
    is_last = wanted.cursor == LAST
    shared = None if is_last or request.principal.types is not None else wanted
    page = None if shared is None else await app.pages.get(shared)
    if page is None:
        if is_last or request.method == "HEAD":  # the answer to LAST is its cursor, known at once
            seconds = 0.0
        try:
            found = await app.runner.read(wanted, request, seconds=seconds)
        except Gone:
            app.pages.clear()
            raise
        page = await app.pages.encoded(found, shared)
    request.events = page.events
    if shared is not None and page.full and request.method != "HEAD":
        request.meanwhile = app.pages.read_ahead(shared, page)
    in_shared_cache = app.shared_cache and request.hook is None
    return await app.renderer.response(request, page, shared=in_shared_cache)


async def extension_of(
    extensions: Mapping[str, Extension], app: FeedApp, request: FeedRequest
) -> Response:
    """Answer a request to a path by the extension of its verb."""
    extension = extensions["GET" if request.method == "HEAD" else request.method]
    info, principal = await app.runner.info(request), request.principal
    expect_extension(info, extension.name)
    asked = read_extension_request(request, extension, info, app.runner.capacity.page_events)
    if extension.verb == "POST":
        events = await app.appends.append(request, asked["producer"], asked["sequence"])
        body = encode_answer(extension, events)
        return Response(body, HTTP_201_CREATED, media_type=JSON_TYPE, headers=FRESH)
    arguments = [asked[one.name] for one in extension.parameters if not one.argument]
    options = {one.argument: asked[one.name] for one in extension.parameters if one.argument}
    if "principal" in extension.context:
        options["principal"] = principal.name
    if "partitions" in extension.context and principal.partitions is not None:
        options["partitions"] = principal.partitions
    found = await app.runner.call(extension.method, *arguments, **options)
    if extension.name == PROGRESS and app.on_progress is not None:
        app.on_progress(principal.name, asked["consumer"], asked["partition"], asked["cursor"])
    if extension.name == SCHEMAS:
        found = found.seen_by(principal.narrowed(None))
    if isinstance(found, KeyPage):
        request.events = len(found.events)
    body = encode_answer(extension, asked["cursor"] if extension.verb == "PUT" else found)
    return Response(body, media_type=JSON_TYPE, headers=FRESH)


async def answer_http_feed(app: FeedApp, request: FeedRequest) -> Response:
    """Answer with the events after the one that the client has (HTTP Feeds, Polling)."""
    query = parameters(request, optional=["timeout", "lastEventId", "partition"])
    last = query.get("lastEventId")
    seconds = number_in(query.get("timeout", "0"), "timeout") / 1000
    info = await app.runner.info(request)
    partition = only_partition(info, query)
    if WAIT not in info.extensions or request.method == "HEAD":
        seconds = 0.0
    types, cursor = request.principal.narrowed(None), FIRST
    # Clients in JavaScript send the text "null" where they have no event yet.
    if last is not None and last not in {"", "null"}:
        options: dict[str, Any] = {} if types is None else {"types": types}
        cursor = await app.runner.call("cursor_of", last, partition, **options)
    limit = limit_in(None, app.runner.capacity.page_events)
    while True:
        wanted = PageRequest(partition, cursor, limit, types)
        page = await app.runner.read(wanted, request, seconds=seconds)
        # A client without cursors cannot move on past deleted events.
        if page.events or page.caught_up or page.cursor == cursor:
            break
        if await request.is_disconnected():
            break
        cursor = page.cursor
    for event in page.events[:1]:
        _expect_cloud_event(event)
    request.events = len(page.events)
    body = b"[%b]\n" % b",\n".join(one_line(event.raw) for event in page.events)
    return Response(body, media_type=CLOUDEVENTS_BATCH_TYPE, headers=FRESH)


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


async def answer_schema(app: FeedApp, request: FeedRequest) -> Response:
    """Answer with the schema of one type: what a CloudEvent's `dataschema` can name."""
    expect_extension(await app.runner.info(request), SCHEMAS)
    name = parameters(request, "type")["type"]
    schema = (await _visible_schemas(app, request)).types.get(name)
    if schema is None:
        raise NotFound("The feed publishes no schema of this type.")
    return Response(encode_document(schema), media_type=SCHEMA_TYPE, headers=FRESH)


async def answer_asyncapi(app: FeedApp, request: FeedRequest) -> Response:
    """Answer with the feed's description in AsyncAPI 3."""
    expect_extension(await app.runner.info(request), SCHEMAS)
    path, root = request.url.path.removesuffix("/asyncapi"), request.scope.get("root_path", "")
    if not path.startswith(f"{root}/"):  # a proxy has removed it, and the server has not added it
        path = root + path
    found = await _visible_schemas(app, request)
    body = encode_document(_asyncapi(app.name, path, found))
    return Response(body, media_type=ASYNCAPI_TYPE, headers=FRESH)


async def _visible_schemas(app: FeedApp, request: FeedRequest) -> Schemas:
    """Return the schemas of the types that the principal may see (SPEC 9.16)."""
    found: Schemas = await app.runner.call("schemas")
    return found.seen_by(request.principal.narrowed(None))


def _asyncapi(title: str, path: str, found: Schemas) -> dict[str, Any]:
    """Return the AsyncAPI document of a feed that is mounted at a path."""
    messages, definitions = {}, {}
    for number, (name, schema) in enumerate(found.types.items()):
        # References in a schema begin at its document's root, which is another one here.
        key = f"message{number}"
        definitions[key] = _rebase(schema, f"#/components/schemas/{key}")
        payload: dict[str, Any] = {"$ref": f"#/components/schemas/{key}"}
        if found.envelope == CLOUDEVENTS:
            kind = {"type": "string"} if name == EVERY_TYPE else {"const": name}
            payload = {
                "type": "object",
                "required": ["specversion", "id", "source", "type", "data"],
                "properties": {"type": kind, "data": payload},
            }
        messages[key] = {"name": name, "contentType": "application/json", "payload": payload}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": "1"},
        "defaultContentType": "application/json",
        "channels": {"events": {"address": f"{path}/events", "messages": messages}},
        "operations": {"publish": {"action": "send", "channel": {"$ref": "#/channels/events"}}},
        "components": {"schemas": definitions},
    }


def _rebase(schema: Any, root: str) -> Any:
    """Return a schema whose references begin at another root."""
    if isinstance(schema, list):
        return [_rebase(one, root) for one in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {}
    for name, value in schema.items():
        if name == "$ref" and isinstance(value, str) and value.startswith("#"):
            moved[name] = root + value[1:]
        elif (name, value) != ("$schema", DIALECT):
            moved[name] = _rebase(value, root)
    return moved


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
    help_url: str = "",
) -> list[Route]:
    """Return the routes of a feed, for an application of Starlette or FastAPI.

    `path` serves discovery (FeedAPI v2) and pages of ZeroEventHub v1. `path`/events serves pages of
    FeedAPI v2. `path`/cursor, `path`/splits, `path`/lag, `path`/cursor-of-count, `path`/segments,
    `path`/key-history, `path`/schemas, `path`/schema and `path`/asyncapi serve the extensions that
    discovery lists. A PUT of `path`/progress registers how far a consumer has come, and a DELETE
    withdraws that. A POST of `path`/append appends events to a log that accepts them.

    Pass the routes to an application as its `routes`, or append them to its own.

    Args:
        path: where the feed is mounted, such as "/departures".
        feed: a TableFeed, or an own implementation of Feed.
        engine: the SQLAlchemy Engine or AsyncEngine that a TableFeed reads through.
        name: the name of the route of `path`, for `url_for`; the other routes have this name with
            a suffix, such as ":events".
        authorize: a function of the request, sync or async, that returns a Principal, or raises
            `Unauthorized` or `Forbidden`; anything else is a refusal. By default the hook of a
            FeedAuthorization around the feed; without one, the feed is public. See
            docs/security.md.
        quota: default for principals without their own; anonymous readers share one.
        capacity: the limits of the feed in this process and in its database.
        observer: is notified of answered and waiting requests, such as one of
            `zeroeventhub.telemetry`.
        shared_cache: let caches that serve several clients, such as those of a CDN, store pages
            that can never change. Only for a feed without `authorize`: such a cache sends what it
            stores to every client.
        http_feed: answer HTTP Feeds at `path`/http-feed; the events have to be CloudEvents.
        server_sent_events: stream events at `path`/server-sent-events.
        arrow: send pages as Arrow record batches to clients that prefer them.
        compressed: compress pages of FeedAPI v2 for clients that accept gzip, or zstd if it is
            installed. Useful over slow networks, if no proxy compresses.
        help_url: the address of your page of errors, such as the one that `make docs` writes; each
            problem document then names its kind's part of that page.

    Raises:
        MissingExtra: `arrow` needs pyarrow, of the extra "arrow".
        ConfigurationError: the path or the engine does not fit the feed, the feed lacks a method
            that an option needs, an option has another type, `shared_cache` is given together with
            `authorize`, or `help_url` is not a URL.
    """
    if not isinstance(cast("object", path), str):
        raise ConfigurationError(
            f'The path of a feed, such as "/orders", comes first; {path!r} is none.', "path"
        )
    path = "/" + path.strip("/")
    below = path.rstrip("/")
    for option, given, kind in (("quota", quota, Quota), ("capacity", capacity, Capacity)):
        if given is not None and not isinstance(given, kind):
            raise ConfigurationError(f"{option} is a {kind.__name__}, not {given!r}.", option)
    capacity = capacity or Capacity()
    if shared_cache and authorize is not None and authorize is not everybody:
        raise ConfigurationError(
            "A shared cache sends what it stores to every client: leave shared_cache out of a feed "
            "with an authorize hook."
        )
    check_help(help_url)
    access, sender = Access(authorize, patience=capacity.patience), Sender(capacity)
    quotas, on_waiting = Quotas(quota), partial((observer or Observer()).waiting, name)
    runner = FeedRunner(feed, engine, capacity, sender, quotas, on_waiting)
    app = FeedApp(
        name,
        access,
        quotas,
        runner,
        PageCache(runner, sender, capacity),
        Renderer(runner, arrow=arrow, compressed=compressed),
        Appends(runner, capacity),
        sender,
        observer,
        shared_cache,
        Log(name),
        help_url=help_url,
    )
    answers: dict[str, Answer] = {"events": events}
    # Routes are tried in turn, so that those of most requests come first.
    verbs: dict[str, dict[str, Extension]] = {EXTENSIONS[APPEND].path: {}}
    for extension in EXTENSIONS.values():
        if extension.path:
            verbs.setdefault(extension.path, {})[extension.verb] = extension
    answers |= {route: partial(extension_of, extensions) for route, extensions in verbs.items()}
    answers |= {"schema": answer_schema, "asyncapi": answer_asyncapi}
    if http_feed:
        _expect_method(runner, "cursor_of", "An HTTP feed")
        answers["http-feed"] = answer_http_feed
    if server_sent_events:
        _expect_method(runner, "head", "A stream of server-sent events")
        answers["server-sent-events"] = answer_server_sent_events
    below_it = (
        Route(
            f"{below}/{route}",
            RouteApp(app, route, answer),
            methods=[*verbs.get(route, ["GET"])],
            name=f"{name}:{route}",
        )
        for route, answer in answers.items()
    )
    discovery = Route(path, RouteApp(app, "discovery", discover), methods=["GET"], name=name)
    return [*below_it, discovery]


def _expect_method(runner: FeedRunner, method: str, what: str) -> None:
    if not runner.has(method):
        raise ConfigurationError(f"{what} needs a feed that has {method}(), as a TableFeed has.")
