"""A feed as a stream of server-sent events, whose ids are cursors."""

import logging
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from zeroeventhub.errors import ZeroEventHubError
from zeroeventhub.protocol import WAIT, FeedInfo, Page
from zeroeventhub.server.caching import FRESH
from zeroeventhub.server.endpoint import rows
from zeroeventhub.server.parameters import StreamRequest, read_stream_request
from zeroeventhub.server.principal import Principal
from zeroeventhub.server.source import Source, expect_extension

__all__ = ["ServerSentEvents"]

_log = logging.getLogger("zeroeventhub.server")

MEDIA_TYPE = "text/event-stream"

HEARTBEAT = 15.0
"""Seconds of silence before a comment shows that the stream is alive."""

# Proxies that hold answers back until they are whole would hold these back for ever.
HEADERS = {**FRESH, "X-Accel-Buffering": "no"}


class ServerSentEvents:
    """Stream a partition to clients that know server-sent events.

    Args:
        source: the feed.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    async def answer(self, request: Request, principal: Principal) -> Response:
        """Answer with all events behind a cursor, and those to come (HTML, Server-sent events)."""
        wanted = read_stream_request(request.query_params, request.headers.get("last-event-id"))
        info, partition = await self._source.only(wanted.partition)
        expect_extension(info, WAIT)  # without it, one would ask over and over
        # Read before the status is sent, so that what is wrong is said by it.
        page = await self._read(info, partition, wanted.cursor, wanted)
        if request.method == "HEAD":
            # A stream has no length to name.
            return StreamingResponse(iter(()), media_type=MEDIA_TYPE, headers=HEADERS)
        stream = self._stream(request, info, partition, wanted, page)
        return StreamingResponse(stream, media_type=MEDIA_TYPE, headers=HEADERS)

    async def _read(
        self, info: FeedInfo, partition: int, cursor: str, wanted: StreamRequest
    ) -> Page:
        return await self._source.read(
            info, partition, cursor, rows(None), types=wanted.types, each=True
        )

    async def _stream(
        self, request: Request, info: FeedInfo, partition: int, wanted: StreamRequest, page: Page
    ) -> AsyncIterator[bytes]:
        """Send pages until the feed fails or changes its partitions: then the client comes back."""
        cursor = wanted.cursor
        try:
            while True:
                moved, cursor = page.cursor != cursor, page.cursor
                yield _encode(page, moved=moved)
                if (await self._source.info()).token != info.token:
                    return
                page = await self._source.read_or_wait(
                    info,
                    partition,
                    cursor,
                    rows(None),
                    seconds=HEARTBEAT,
                    receive=request.receive,
                    types=wanted.types,
                    each=True,
                )
        except ZeroEventHubError as error:
            _log.warning("A stream of server-sent events ended: %s", error)


def _encode(page: Page, *, moved: bool) -> bytes:
    parts = [
        b"id: %b\ndata: %b\n\n" % (cursor.encode(), _one_line(event.raw))
        for cursor, event in zip(page.cursors, page.events, strict=True)
    ]
    if moved and page.cursor != (page.cursors[-1] if page.cursors else ""):
        # An id without data is remembered by clients, and no event.
        parts.append(b"id: %b\n\n" % page.cursor.encode())
    return b"".join(parts) or b":\n\n"


def _one_line(raw: bytes) -> bytes:
    """Keep JSON on its line: what ends one is white space in JSON."""
    return raw.replace(b"\r", b" ").replace(b"\n", b" ")
