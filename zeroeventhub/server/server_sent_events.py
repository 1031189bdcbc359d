"""A feed as a stream of server-sent events, whose ids are cursors."""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from zeroeventhub.errors import Forbidden, Unauthorized
from zeroeventhub.protocol import WAIT, FeedInfo, Page
from zeroeventhub.server.auth import Access, Principal
from zeroeventhub.server.request import FeedRequest, StreamRequest, read_stream_request
from zeroeventhub.server.responses import FRESH
from zeroeventhub.server.sending import is_ending
from zeroeventhub.server.source import Source, expect_extension
from zeroeventhub.server.view import View
from zeroeventhub.wire.lines import one_line

__all__ = ["ServerSentEvents"]

_log = logging.getLogger("zeroeventhub.server")

MEDIA_TYPE = "text/event-stream"

HEARTBEAT = 15.0
"""Seconds of silence before a comment shows that the stream is alive, and seconds until it is asked
again whether the reader may read."""

EVENTS = 100
"""How many events are sent at once: thousands may stream, and each holds what it sends."""

# Proxies that hold answers back until they are whole would hold these back for ever.
HEADERS = {**FRESH, "X-Accel-Buffering": "no"}


class ServerSentEvents:
    """Stream a partition to clients that know server-sent events.

    Args:
        source: the feed.
        access: knows who may read it.
    """

    def __init__(self, source: Source, access: Access) -> None:
        self._source = source
        self._access = access

    async def answer(self, request: FeedRequest, principal: Principal) -> Response:
        """Answer with all events behind a cursor, and those to come (HTML, Server-sent events)."""
        view = View(self._source, self._access, principal)
        wanted = read_stream_request(
            request.query_params,
            request.headers.get("last-event-id"),
            (await view.info()).extensions,
        )
        info, partition = await view.only(wanted.partition)
        expect_extension(info, WAIT)  # without it, one would ask over and over
        # Read before the status is sent, so that what is wrong is said by it.
        page = await view.read(
            info, partition, wanted.cursor, EVENTS, types=wanted.types, each=True
        )
        with view.waiting():
            pass  # sooner or later it will: a reader who must not is told by the status as well
        if request.method == "HEAD":
            # A stream has no length to name.
            return StreamingResponse(iter(()), media_type=MEDIA_TYPE, headers=HEADERS)
        stream = _Stream(view, _Watch(self._access, request, principal), info, partition, wanted)
        return StreamingResponse(stream.blocks(page), media_type=MEDIA_TYPE, headers=HEADERS)


class _Watch:
    """Ask again and again whether a reader still may see what it sees.

    Args:
        access: knows it.
        request: the reader's.
        principal: who it was at first.
    """

    def __init__(self, access: Access, request: FeedRequest, principal: Principal) -> None:
        self.request = request
        self._access = access
        self._principal = principal
        self._due = anyio.current_time() + HEARTBEAT

    @property
    def left(self) -> float:
        """Seconds until it has to be asked again; always some, so that it can be waited for."""
        return max(0.001, self._due - anyio.current_time())

    async def has_changed(self) -> bool:
        """Tell whether the reader's rights are others by now, if it is time to ask."""
        if anyio.current_time() < self._due:
            return False
        principal = await self._access.identify(self.request)
        self._due = anyio.current_time() + HEARTBEAT
        return principal != self._principal


@dataclass(frozen=True)
class _Stream:
    """Hold what a stream is about."""

    view: View
    watch: _Watch
    info: FeedInfo
    partition: int
    wanted: StreamRequest

    async def blocks(self, page: Page) -> AsyncIterator[bytes]:
        """Send pages until the feed fails or changes, or the reader's rights do.

        The client comes back then, and is told what there is to tell.
        """
        cursor = self.wanted.cursor
        try:
            while True:
                moved, cursor = page.cursor != cursor, page.cursor
                yield _encode(page, moved=moved)
                if await self.watch.has_changed() or await self._has_changed():
                    return
                page = await self.view.read_or_wait(
                    self.info,
                    self.partition,
                    cursor,
                    EVENTS,
                    seconds=min(HEARTBEAT, self.watch.left),
                    request=self.watch.request,
                    types=self.wanted.types,
                    each=True,
                )
        except (Unauthorized, Forbidden, HTTPException):
            # The words are the hook's, and may repeat a token.
            _log.info("A stream of server-sent events ended: its reader may not read any more.")

    async def _has_changed(self) -> bool:
        """Tell whether the feed's partitions are others by now, or its server is ending."""
        return is_ending() or (await self.view.info()).token != self.info.token


def _encode(page: Page, *, moved: bool) -> bytes:
    parts = [
        b"id: %b\ndata: %b\n\n" % (cursor.encode(), one_line(event.raw))
        for cursor, event in zip(page.cursors, page.events, strict=True)
    ]
    if moved and page.cursor != (page.cursors[-1] if page.cursors else ""):
        # An id without data is remembered by clients, and no event.
        parts.append(b"id: %b\n\n" % page.cursor.encode())
    return b"".join(parts) or b":\n\n"
