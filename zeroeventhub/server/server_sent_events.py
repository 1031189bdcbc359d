"""A feed as a stream of server-sent events, whose ids are cursors."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from zeroeventhub.errors import Forbidden, Unauthorized
from zeroeventhub.extensions import EVENT_TYPES, WAIT
from zeroeventhub.protocol import FIRST, FeedInfo, Page
from zeroeventhub.server.app import FeedApp
from zeroeventhub.server.request import (
    FeedRequest,
    PageRequest,
    cursor_in,
    expect_extension,
    only_partition,
    parameters,
    types_of,
)
from zeroeventhub.server.responses import FRESH
from zeroeventhub.server.sending import is_ending
from zeroeventhub.wire.ndjson import one_line

_log = logging.getLogger("zeroeventhub.server")

MEDIA_TYPE = "text/event-stream"

HEARTBEAT = 15.0
"""Seconds of silence before a comment shows that the stream is alive, and seconds until the
reader's permissions are checked again."""

EVENTS = 100
"""Events of one piece of a stream: thousands of streams may hold a piece in memory."""

# A proxy that buffers responses until they are complete would buffer a stream for ever.
HEADERS = {**FRESH, "X-Accel-Buffering": "no"}


async def server_sent_events(app: FeedApp, request: FeedRequest) -> Response:
    """Answer with all events after a cursor, and those to come (HTML, Server-sent events)."""
    info = await app.runner.info(request)
    types = {"event-types", "skip-event-types"} if EVENT_TYPES in info.extensions else set()
    query = parameters(request, optional={"cursor", "partition", *types})
    # The header comes from a client that reconnects; it takes precedence over the parameter.
    cursor = request.headers.get("last-event-id") or query.get("cursor")
    start = FIRST if cursor is None else cursor_in(cursor)
    partition = only_partition(info, query)
    expect_extension(info, WAIT)  # without it, the stream would read over and over
    limit = min(EVENTS, app.runner.capacity.page_events)
    shown = types_of(query, request.principal)
    wanted = PageRequest(partition, start, limit, shown, each=True)
    # Read before the status is sent, so that it can report an error.
    page = await app.runner.read(wanted)
    # The stream will wait: a principal that may not wait is refused before the status is sent.
    app.quotas.count(request.principal, "waiters").waiters -= 1
    # A response to HEAD has no body: the stream has no length to announce.
    stream = iter(()) if request.method == "HEAD" else _blocks(app, request, info, wanted, page)
    return StreamingResponse(stream, media_type=MEDIA_TYPE, headers=HEADERS)


async def _blocks(
    app: FeedApp, request: FeedRequest, info: FeedInfo, wanted: PageRequest, page: Page
) -> AsyncIterator[bytes]:
    """Send pages until the feed fails or changes, or the principal's permissions change."""
    check_at = anyio.current_time() + HEARTBEAT
    # The response itself notices when its reader has left; some servers can be asked only once.
    never: Any = anyio.sleep_forever
    waiting = FeedRequest(request.scope, never)
    waiting.principal = request.principal
    try:
        while True:
            moved = page.cursor != wanted.cursor
            wanted = wanted._replace(cursor=page.cursor)
            yield _encode(page, moved=moved)
            if anyio.current_time() >= check_at:
                hook = request.hook
                if (
                    hook is not None
                    and await app.access.identify(request, hook) != request.principal
                ):
                    return
                check_at = anyio.current_time() + HEARTBEAT
            if is_ending() or (await app.runner.info()).token != info.token:
                return
            # Always some time, so that the stream waits at the head.
            left = max(0.001, check_at - anyio.current_time())
            page = await app.runner.read(wanted, waiting, seconds=min(HEARTBEAT, left))
    except (Unauthorized, Forbidden, HTTPException):
        # The text is the hook's, and may repeat a token.
        _log.info("A stream of server-sent events ended: its reader may not read any more.")


def _encode(page: Page, *, moved: bool) -> bytes:
    parts = [
        b"id: %b\ndata: %b\n\n" % (cursor.encode(), one_line(event.raw))
        for cursor, event in zip(page.cursors, page.events, strict=True)
    ]
    if moved and page.cursor != (page.cursors[-1] if page.cursors else ""):
        # Clients remember an id without data, and report no event.
        parts.append(b"id: %b\n\n" % page.cursor.encode())
    return b"".join(parts) or b":\n\n"
