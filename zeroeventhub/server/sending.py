"""Send an answer to its reader, as fast as the reader takes it."""

import logging
import math
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import anyio
import anyio.lowlevel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Send

from zeroeventhub.capacity import Capacity
from zeroeventhub.server.line import Line
from zeroeventhub.server.shutdown import remark

__all__ = ["Sending"]

_log = logging.getLogger("zeroeventhub.server")

PIECE = 512 * 1024
"""How many bytes are given to the server at once; a piece of a larger body is a copy."""


class Sending:
    """Send answers, within the capacity of a feed.

    Args:
        capacity: how much may be on its way, and for how long.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._seconds = capacity.sending_seconds
        self._page = min(capacity.page_bytes, capacity.sending_bytes)
        self._room = Line(
            capacity.sending_bytes,
            capacity,
            "Too much of the feed is on its way to readers who do not take it.",
        )

    @property
    def is_full(self) -> bool:
        """Tell whether so much is on its way that there is no room for another page."""
        return not self._room.fits(self._page)

    def room(self, size: int | None = None) -> AbstractAsyncContextManager[None]:
        """Have room for an answer that is being found; what it does not need comes free behind it.

        The answer takes its own when it is made ready and sent: without a pause behind this.

        Args:
            size: of the answer in bytes, where that is known; a whole page by default.

        Raises:
            Unavailable: there is no room, and there was none for some time.
        """
        return self._room.place(self._page if size is None else size)

    @contextmanager
    def held(self, size: int) -> Iterator[None]:
        """Count bytes of an answer that is there, and so takes its room."""
        self._room.take(size)
        try:
            yield
        finally:
            self._room.take(-size)

    async def send(self, response: Response, request: Request, send: Send) -> None:
        """Send an answer in pieces; it is given up when its reader takes none for too long."""
        remark()

        with anyio.CancelScope() as patience:

            async def patient(message: Message) -> None:
                await self._send(message, send, patience)

            await response(request.scope, request.receive, patient)
        if patience.cancelled_caught:
            # What is missing shows: by the answer's length, or the end of a stream that has none.
            _log.info(
                "An answer was given up: its reader took nothing of it for %g s.", self._seconds
            )

    async def _send(self, message: Message, send: Send, patience: anyio.CancelScope) -> None:
        body = message.get("body", b"")
        self._room.take(len(body))  # all of it, for as long as there is some of it left to send
        try:
            # Cut one by one: many readers may be slow to take the same page.
            last = max(len(body) - 1, 0) // PIECE
            for number in range(last):
                piece = body[number * PIECE : (number + 1) * PIECE]
                patience.deadline = anyio.current_time() + self._seconds
                await send({"type": message["type"], "body": piece, "more_body": True})
                await anyio.lowlevel.checkpoint()  # others go on, whether or not it made us wait
            patience.deadline = anyio.current_time() + self._seconds
            await send({**message, "body": body[last * PIECE :]} if last else message)
        finally:
            self._room.take(-len(body))
        patience.deadline = math.inf  # the next may be long in coming
