"""The answers of a feed: FeedAPI v2, ZeroEventHub v1, the extensions, and HTTP Feeds."""

from dataclasses import replace
from zlib import crc32

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response

from zeroeventhub.errors import FeedFailure, Gone
from zeroeventhub.protocol import FIRST, LAST, WAIT, Event, Extension, KeyPage
from zeroeventhub.server.app import FeedApp
from zeroeventhub.server.authorized_feed import AuthorizedFeed, expect_extension, expect_partition
from zeroeventhub.server.request import (
    FeedRequest,
    number_in,
    optional,
    optional_number,
    read_events_request,
    read_extension_request,
    read_v1_request,
)
from zeroeventhub.server.responses import FRESH
from zeroeventhub.wire import NDJSON_TYPE
from zeroeventhub.wire.documents import encode_answer, encode_info
from zeroeventhub.wire.lines import text_of
from zeroeventhub.wire.ndjson import encode_page_v1

__all__ = ["discover", "events", "extension_of", "http_feed"]

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
    wanted = read_v1_request(query, info, count)
    # The hint is the number of events in the whole answer (ZeroEventHub v1, Parameters).
    share = max(1, app.runner.rows(wanted.limit) // len(wanted.cursors))
    # An answer that is full leaves partitions out, which keep their cursors. Where it begins
    # changes with the cursors, so that no partition is left out for ever.
    cursors = [*wanted.cursors.items()]
    first = crc32(request.scope["query_string"]) % len(cursors)
    parts: dict[int, bytes] = {}
    async with app.runner.several():
        for partition, cursor in cursors[first:] + cursors[:first]:
            if sum(map(len, parts.values())) >= app.runner.page_bytes:
                break
            page = await feed.read(feed.page(partition, cursor, share))
            parts[partition] = encode_page_v1(partition, page, wanted.headers)
            request.events += len(page.events)
    body = b"".join(part for _, part in sorted(parts.items()))
    return Response(body, media_type=NDJSON_TYPE, headers=FRESH)


async def events(app: FeedApp, request: FeedRequest, feed: AuthorizedFeed) -> Response:
    """Answer with a page (FeedAPI v2, Events endpoint)."""
    info = await feed.info()
    asked = read_events_request(request.parameters(), info.extensions)
    expect_partition(info, asked.token, asked.partition)
    wanted = feed.page(
        asked.partition, asked.cursor, asked.limit, types=asked.types, stop=asked.stop
    )
    shared = wanted if feed.is_shared(wanted) else None
    page = None if shared is None else await app.pages.get(shared)
    if page is None:
        # The place of LAST is what was asked for, and it is known at once.
        waits = request.method != "HEAD" and asked.cursor != LAST
        try:
            found = await feed.read_or_wait(
                wanted, seconds=asked.wait if waits else 0.0, request=request
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


async def http_feed(_: FeedApp, request: FeedRequest, feed: AuthorizedFeed) -> Response:
    """Answer with the events behind the one that the client has (HTTP Feeds, Polling)."""
    query = request.parameters()
    timeout, last = optional(query, "timeout"), optional(query, "lastEventId")
    seconds = 0.0 if timeout is None else number_in(timeout, "timeout") / 1000
    info, partition = await feed.only(optional_number(query, "partition"))
    waits = WAIT in info.extensions and request.method != "HEAD"
    # Clients in JavaScript send the text "null" where they have no event yet.
    has_event = last not in {None, "", "null"}
    cursor = await feed.cursor_of(last, partition) if last and has_event else FIRST
    while True:
        page = await feed.read_or_wait(
            feed.page(partition, cursor, None), seconds=seconds if waits else 0.0, request=request
        )
        # A client without cursors cannot move on over what has been deleted.
        if page.events or page.caught_up or page.cursor == cursor:
            break
        cursor = page.cursor
    for event in page.events[:1]:
        _expect_cloud_event(event)
    request.events = len(page.events)
    body = b"[%b]\n" % text_of(page.events, b",\n")
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
