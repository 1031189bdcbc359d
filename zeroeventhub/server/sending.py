"""Send answers to their readers, as fast as these take them, within the capacity of a feed."""

import logging
import math
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Send

from zeroeventhub.errors import Unavailable
from zeroeventhub.settings import Capacity

__all__ = [
    "READER",
    "Line",
    "Sending",
    "end_waits",
    "is_ending",
    "on_behalf_of",
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


READER: ContextVar[str] = ContextVar("READER", default="")
"""The name of the principal whose request this task answers; empty for nobody in particular."""


@contextmanager
def on_behalf_of(reader: str) -> Iterator[None]:
    """Count what is taken meanwhile as taken by a reader.

    Args:
        reader: its name; empty for nobody in particular.
    """
    token = READER.set(reader)
    try:
        yield
    finally:
        READER.reset(token)


class Line:
    """Share out what there is only so much of.

    The next one is whoever asked first of the reader who has least, and readers who have the same
    take turns. Who asks for more than there is gets it when nobody else has any. A reader with a
    name takes no more places in the line than it leaves to others: half of them, if it is alone.

    Args:
        room: how much there is.
        queue: how many may stand in line.
        patience: for how many seconds.
        refusal: what is said to those for whom the line is too long, or too slow.
        keeps_some: whether a reader with a name takes no more of the room than it leaves free, so
            that there is some for the next one, however long all others keep theirs.
    """

    def __init__(
        self, room: int, *, queue: int, patience: float, refusal: str, keeps_some: bool = False
    ) -> None:
        self._room = room
        self._longest = queue
        self._patience = patience
        self._refusal = refusal
        self._keeps_some = keeps_some
        self._queues: dict[str, dict[anyio.Event, int]] = {}
        self._taken_by: Counter[str] = Counter()
        self.taken = 0
        """How much is taken now."""

    @asynccontextmanager
    async def place(self, size: int = 1) -> AsyncIterator[None]:
        """Have some of the room for a while.

        Raises:
            Unavailable: the line is too long or too slow.
        """
        if self.fits(size):
            self._add(READER.get(), size)
        else:
            await self._stand(READER.get(), size)
        try:
            yield
        finally:
            self.take(-size)

    def fits(self, size: int) -> bool:
        """Tell whether there is room at once."""
        reader = READER.get()
        if self._queues and self._taken_by[reader] >= min(
            map(self._taken_by.__getitem__, self._queues)
        ):
            return False
        return self._has(reader, size)

    def take(self, size: int) -> None:
        """Take some at once, whatever there is; give it back as what is less than nothing."""
        self._add(READER.get(), size)
        self._call()

    async def _stand(self, reader: str, size: int) -> None:
        left = self._longest - sum(map(len, self._queues.values()))
        queue = self._queues.get(reader, {})
        if left <= (len(queue) if reader else 0):
            raise Unavailable(self._refusal, retry_after=1)
        called = anyio.Event()
        queue[called] = size
        self._queues[reader] = queue
        try:
            with anyio.move_on_after(self._patience):
                await called.wait()
        except BaseException:
            if called.is_set():  # it was its turn, and it is gone at the same moment
                self.take(-size)
            raise
        finally:
            self._leave(reader, called)
            self._call()  # the next may be content with less
        if not called.is_set():
            raise Unavailable(self._refusal, retry_after=1)

    def _call(self) -> None:
        while self._queues:
            reader = min(self._queues, key=self._taken_by.__getitem__)
            called, size = next(iter(self._queues[reader].items()))
            if not self._has(reader, size):
                return
            self._leave(reader, called)
            if reader in self._queues:  # behind those who have as little
                self._queues[reader] = self._queues.pop(reader)
            self._add(reader, size)
            called.set()

    def _leave(self, reader: str, called: anyio.Event) -> None:
        queue = self._queues.get(reader, {})
        queue.pop(called, None)
        if not queue:
            self._queues.pop(reader, None)

    def _add(self, reader: str, size: int) -> None:
        self.taken += size
        self._taken_by[reader] += size
        if not self._taken_by[reader]:
            del self._taken_by[reader]

    def _has(self, reader: str, size: int) -> bool:
        free = self._room - self.taken
        own = self._taken_by[reader] if self._keeps_some and reader else 0
        return not self.taken or own + size <= free


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
            queue=capacity.queue,
            patience=capacity.patience,
            refusal="Too much of the feed is on its way to readers who do not take it.",
            keeps_some=True,
        )

    @property
    def is_full(self) -> bool:
        """Tell whether so much is on its way that there is no room for another page."""
        return not self._room.fits(self._page)

    def fits(self, size: int) -> bool:
        """Tell whether there is room for an answer of so many bytes at once."""
        return self._room.fits(size)

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
