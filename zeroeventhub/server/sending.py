"""Send answers to their readers, as fast as these take them, within the capacity of a feed."""

import logging
import math
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Send

from zeroeventhub.capacity import Capacity
from zeroeventhub.errors import Unavailable

__all__ = [
    "Line",
    "Sending",
    "end_waits",
    "is_ending",
]

_log = logging.getLogger("zeroeventhub.server")


@dataclass
class _Process:
    """Hold what is known of this process."""

    ending: bool = False
    remarked: bool = False


PROCESS = _Process()


def end_waits() -> None:
    """Answer all who wait in this process at once, and let nobody wait any more.

    Needed with servers other than uvicorn, whose end a feed does not notice by itself: call it
    when the server has been told to end, such as in a handler of SIGTERM.
    """
    PROCESS.ending = True


def is_ending() -> bool:
    """Tell whether the server has been told to end."""
    return PROCESS.ending or bool(getattr(_server(), "should_exit", False))


def remark() -> None:
    """Warn, once, of a server that waits without an end for readers who do not read."""
    if PROCESS.remarked:
        return
    PROCESS.remarked = True
    config = getattr(_server(), "config", None)
    if config is not None and getattr(config, "timeout_graceful_shutdown", 0) is None:
        _log.warning(
            "This server does not end while a reader takes nothing of its answer: give uvicorn "
            "--timeout-graceful-shutdown, such as 10."
        )


def _server() -> Any:
    """Return the server of uvicorn's that ends at SIGTERM, if there is one: the signal tells it.

    uvicorn tells an application nothing until all of its requests are done.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return server if hasattr(server, "should_exit") else None


class Line:
    """Share out what there is only so much of, in the order of asking.

    Who takes more than there is gets it when nobody else has any.

    Args:
        room: how much there is.
        capacity: how many may stand in line, and for how long.
        refusal: what is said to those for whom the line is too long, or too slow.
    """

    def __init__(self, room: int, capacity: Capacity, refusal: str) -> None:
        self._room = room
        self._longest = capacity.queue
        self._patience = capacity.patience
        self._refusal = refusal
        self._queue: dict[anyio.Event, int] = {}
        self.taken = 0
        """How much is taken now."""

    @asynccontextmanager
    async def place(self, size: int = 1) -> AsyncIterator[None]:
        """Have some of the room for a while.

        Raises:
            Unavailable: the line is too long or too slow.
        """
        if self.fits(size):
            self.taken += size
        else:
            await self._stand(size)
        try:
            yield
        finally:
            self.take(-size)

    def fits(self, size: int) -> bool:
        """Tell whether there is room at once."""
        return not self._queue and self._has(size)

    def take(self, size: int) -> None:
        """Take some at once, whatever there is; give it back as what is less than nothing."""
        self.taken += size
        self._call()

    async def _stand(self, size: int) -> None:
        if len(self._queue) >= self._longest:
            raise Unavailable(self._refusal, retry_after=1)
        called = anyio.Event()
        self._queue[called] = size
        try:
            with anyio.move_on_after(self._patience):
                await called.wait()
        except BaseException:
            if called.is_set():  # it was its turn, and it is gone at the same moment
                self.take(-size)
            raise
        finally:
            self._queue.pop(called, None)
            self._call()  # the next may be content with less
        if not called.is_set():
            raise Unavailable(self._refusal, retry_after=1)

    def _call(self) -> None:
        while self._queue:
            called, size = next(iter(self._queue.items()))
            if not self._has(size):
                return
            del self._queue[called]
            self.taken += size
            called.set()

    def _has(self, size: int) -> bool:
        return not self.taken or self.taken + size <= self._room


PIECE = 512 * 1024
"""How many bytes are given to the server at once; a piece of a larger body is a copy."""

BUFFERED = 64 * 1024
"""How many bytes servers hold for a reader before they let the next ones wait."""


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
            if len(body) > BUFFERED:
                # Cut one by one: many readers may be slow to take the same page.
                for start in range(0, len(body), PIECE):
                    piece = body if len(body) <= PIECE else body[start : start + PIECE]
                    patience.deadline = anyio.current_time() + self._seconds
                    await send({"type": message["type"], "body": piece, "more_body": True})
                message = {**message, "body": b""}  # it waits until the reader has taken the last
            patience.deadline = anyio.current_time() + self._seconds
            await send(message)
        finally:
            self._room.take(-len(body))
        patience.deadline = math.inf  # the next may be long in coming
