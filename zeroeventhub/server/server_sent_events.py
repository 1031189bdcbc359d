"""A feed as a stream of server-sent events, whose ids are cursors."""

import logging
from collections.abc import AsyncIterator

import anyio
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from zeroeventhub.errors import Forbidden, Unauthorized
from zeroeventhub.protocol import EVENT_TYPES, FIRST, WAIT, FeedInfo, Page
from zeroeventhub.server.app import FeedApp
from zeroeventhub.server.authorized_feed import AuthorizedFeed, expect_extension
from zeroeventhub.server.request import (
    FeedRequest,
    PageRequest,
    cursor_in,
    optional,
    optional_number,
    types_of,
)
from zeroeventhub.server.responses import FRESH
from zeroeventhub.server.sending import is_ending
from zeroeventhub.wire.lines import one_line

__all__ = ["server_sent_events"]

_log = logging.getLogger("zeroeventhub.server")

MEDIA_TYPE = "text/event-stream"

HEARTBEAT = 15.0
"""Seconds of silence before a comment shows that the stream is alive, and seconds until the
reader's permissions are checked again."""

EVENTS = 100
"""How many events are sent at once: thousands may stream, and each holds what it sends."""

# Proxies that hold answers back until they are whole would hold these back for ever.
HEADERS = {**FRESH, "X-Accel-Buffering": "no"}


async def server_sent_events(app: FeedApp, request: FeedRequest, feed: AuthorizedFeed) -> Response:
    """Answer with all events after a cursor, and those to come (HTML, Server-sent events)."""
    query = request.parameters()
    # The header is of a client that has been cut off; it counts before the parameter.
    cursor = request.headers.get("last-event-id") or optional(query, "cursor")
    start = FIRST if cursor is None else cursor_in(cursor)
    types = types_of(query) if EVENT_TYPES in (await feed.info()).extensions else None
    info, partition = await feed.only(optional_number(query, "partition"))
    expect_extension(info, WAIT)  # without it, one would ask over and over
    wanted = feed.page(partition, start, EVENTS, types=types, each=True)
    # Read before the status is sent, so that what is wrong is said by it.
    page = await app.runner.read(wanted)
    with feed.waiting():
        pass  # it may some time: the status also keeps out a reader that may not read
    if request.method == "HEAD":
        # A stream has no length to name.
        return StreamingResponse(iter(()), media_type=MEDIA_TYPE, headers=HEADERS)
    stream = _blocks(app, request, feed, info, wanted, page=page)
    return StreamingResponse(stream, media_type=MEDIA_TYPE, headers=HEADERS)


async def _blocks(
    app: FeedApp,
    request: FeedRequest,
    feed: AuthorizedFeed,
    info: FeedInfo,
    wanted: PageRequest,
    *,
    page: Page,
) -> AsyncIterator[bytes]:
    """Send pages until the feed fails or changes, or the principal's permissions do.

    The client comes back then, and its request is answered with what there is to say.
    """
    check_at = anyio.current_time() + HEARTBEAT
    try:
        while True:
            moved = page.cursor != wanted.cursor
            wanted = wanted._replace(cursor=page.cursor)
            yield _encode(page, moved=moved)
            if anyio.current_time() >= check_at:
                if await app.access.identify(request) != request.principal:
                    return
                check_at = anyio.current_time() + HEARTBEAT
            if is_ending() or (await feed.info()).token != info.token:
                return
            # Always some time, so that it can be waited for.
            left = max(0.001, check_at - anyio.current_time())
            page = await app.runner.read_or_wait(
                wanted, seconds=min(HEARTBEAT, left), request=request, waiting=feed.waiting
            )
    except (Unauthorized, Forbidden, HTTPException):
        # The words are the hook's, and may repeat a token.
        _log.info("A stream of server-sent events ended: its reader may not read any more.")


def _encode(page: Page, *, moved: bool) -> bytes:
    parts = [
        b"id: %b\ndata: %b\n\n" % (cursor.encode(), one_line(event.raw))
        for cursor, event in zip(page.cursors, page.events, strict=True)
    ]
    if moved and page.cursor != (page.cursors[-1] if page.cursors else ""):
        # An id without data is remembered by clients, and no event.
        parts.append(b"id: %b\n\n" % page.cursor.encode())
    return b"".join(parts) or b":\n\n"
