"""Send responses as fast as their readers receive them, within the capacity of a feed."""

import logging
import math
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import anyio
import anyio.lowlevel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Send

from zeroeventhub.errors import Unavailable
from zeroeventhub.settings import Capacity

_log = logging.getLogger("zeroeventhub.server")


@dataclass
class _Process:
    """Whether this process ends."""

    ending: bool = False


PROCESS = _Process()


def end_waits() -> None:
    """Answer all waiting requests of this process at once, and let no request wait from now on.

    A feed notices only uvicorn's shutdown by itself. With another server, call this when the server
    shuts down, such as in a handler of SIGTERM.
    """
    PROCESS.ending = True


def is_ending() -> bool:
    """Return whether the server is shutting down."""
    return PROCESS.ending or bool(getattr(_server(), "should_exit", False))


@cache
def _warn_once() -> None:
    """Warn of a server whose shutdown waits without a limit for readers that do not read."""
    config = getattr(_server(), "config", None)
    if config is not None and getattr(config, "timeout_graceful_shutdown", 0) is None:
        _log.warning(
            "This server's shutdown waits without a limit for readers that do not receive their "
            "answers: start uvicorn with --timeout-graceful-shutdown, such as 10."
        )


def _server() -> Any:
    """Return the uvicorn server that handles SIGTERM, if there is one."""
    # uvicorn announces its shutdown to an application only after all requests are done.
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return server if hasattr(server, "should_exit") else None


READER: ContextVar[str] = ContextVar("READER", default="")
"""The name of the principal whose request this task answers; empty if it serves several."""


@contextmanager
def on_behalf_of(reader: str) -> Iterator[None]:
    """Count the units that are taken in this context for a reader."""
    token = READER.set(reader)
    try:
        yield
    finally:
        READER.reset(token)


def call_soon() -> Callable[[Callable[[], object]], object]:
    """Return a function, for any thread, that has the event loop call another function soon."""
    token: Any = anyio.lowlevel.current_token()
    loop = getattr(token, "native_token", token)  # before anyio 4.11 they are the same
    soon: Callable[[Callable[[], object]], object]
    soon = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    return soon


class AdmissionQueue:
    """A fair queue for a limited number of units, such as connections or bytes.

    It admits the oldest request of the reader that holds the fewest units; readers with equal
    numbers take turns. It admits a request for more units than exist when no other request holds
    any. A named reader may occupy at most as many places of the queue as stay free.

    Args:
        units: how many units exist.
        queue: how many requests may wait.
        patience: seconds that a request may wait.
        refusal: the text of the error if the queue is too long, or too slow.
        keeps_some: whether a named reader may hold at most as many units as stay free, so that
            another reader gets some even while the first one holds its units for long.
    """

    def __init__(
        self, units: int, *, queue: int, patience: float, refusal: str, keeps_some: bool = False
    ) -> None:
        self._units = units
        self._longest = queue
        self._patience = patience
        self._refusal = refusal
        self._keeps_some = keeps_some
        self._queues: dict[str, dict[anyio.Event, int]] = {}
        self._taken_by: Counter[str] = Counter()
        self.taken = 0
        """How many units are in use."""

    @asynccontextmanager
    async def acquire(self, size: int = 1) -> AsyncIterator[None]:
        """Hold units for the length of a block; raise Unavailable if there are none in time."""
        if self.fits(size):
            self.take(size)
        else:
            await self._wait(READER.get(), size)
        try:
            yield
        finally:
            self.take(-size)

    def fits(self, size: int, first: str | None = None) -> bool:
        """Return whether units are free at once.

        For the reader `first` in the queue, whose turn it is, or for that of the current request,
        which would join the end of the queue.
        """
        reader = READER.get() if first is None else first
        if first is None and self._queues:
            fewest = min(map(self._taken_by.__getitem__, self._queues))
            if self._taken_by[reader] >= fewest:
                return False
        own = self._taken_by[reader] if self._keeps_some and reader else 0
        return not self.taken or own + size <= self._units - self.taken

    def take(self, size: int, first: str | None = None) -> None:
        """Take units without waiting, even beyond the limit; a negative size returns them.

        The reader is the `first` in the queue, or that of the current request.
        """
        reader = READER.get() if first is None else first
        self.taken += size
        self._taken_by[reader] += size
        if not self._taken_by[reader]:
            del self._taken_by[reader]
        if first is None and self._queues:
            self._admit()

    async def _wait(self, reader: str, size: int) -> None:
        left = self._longest - sum(map(len, self._queues.values()))
        queue = self._queues.get(reader, {})
        if left <= (len(queue) if reader else 0):
            raise Unavailable(self._refusal, retry_after=1)
        admitted = anyio.Event()
        queue[admitted] = size
        self._queues[reader] = queue
        try:
            with anyio.move_on_after(self._patience):
                await admitted.wait()
        except BaseException:
            if admitted.is_set():  # cancelled at the same moment
                self.take(-size)
            raise
        finally:
            self._leave(reader, admitted)
            self._admit()  # the next may need fewer units
        if not admitted.is_set():
            raise Unavailable(self._refusal, retry_after=1)

    def _admit(self) -> None:
        while self._queues:
            reader = min(self._queues, key=self._taken_by.__getitem__)
            admitted, size = next(iter(self._queues[reader].items()))
            if not self.fits(size, reader):
                return
            self._leave(reader, admitted)
            if reader in self._queues:  # after those that hold as few units
                self._queues[reader] = self._queues.pop(reader)
            self.take(size, reader)
            admitted.set()

    def _leave(self, reader: str, admitted: anyio.Event) -> None:
        queue = self._queues.get(reader, {})
        queue.pop(admitted, None)
        if not queue:
            self._queues.pop(reader, None)


PIECE = 512 * 1024
"""How many bytes are passed to the server at once; a piece of a larger body is a copy."""

BUFFERED = 64 * 1024
"""How many bytes a server buffers for a reader before `send` waits."""


class ResponseInParts(Response):
    """A response that is sent in parts: to join a large page to its checkpoint is to copy it."""

    def __init__(self, parts: Sequence[bytes], *, media_type: str, headers: dict[str, str]) -> None:
        headers = headers | {"Content-Length": str(sum(map(len, parts)))}
        super().__init__(media_type=media_type, headers=headers)
        self.parts = parts


class Sender:
    """Send responses within the send budget of a feed."""

    def __init__(self, capacity: Capacity) -> None:
        self._seconds = capacity.sending_seconds
        self.page_bytes = min(capacity.page_bytes, capacity.sending_bytes)
        """The room that a page of unknown size needs."""
        self.budget = AdmissionQueue(
            capacity.sending_bytes,
            queue=capacity.queue,
            patience=capacity.patience,
            refusal="Answers to slow readers use up the feed's send budget.",
            keeps_some=True,
        )
        """The bytes of answers in memory and on their way. To wait for room, acquire the bytes of
        an answer, release them, and send it without waiting in between: `send` takes its own."""

    async def send(self, response: Response, request: Request, send: Send) -> None:
        """Send a response; give it up if its reader receives nothing of it for too long."""
        _warn_once()
        is_stream = isinstance(response, StreamingResponse)
        parts: Sequence[bytes] = ()
        if isinstance(response, ResponseInParts):
            parts = response.parts
        elif not is_stream:
            parts = (bytes(response.body),)
        size = sum(map(len, parts))
        self.budget.take(size)  # all of it, while some of it is left to send
        try:
            with anyio.CancelScope(deadline=anyio.current_time() + self._seconds) as patience:
                if is_stream:
                    in_pieces = partial(self._send_in_pieces, patience, send)
                    await response(request.scope, request.receive, in_pieces)
                elif size <= BUFFERED:
                    await response(request.scope, request.receive, send)
                else:
                    await self._send_parts(response, parts, patience, send)
        finally:
            self.budget.take(-size)
        if patience.cancelled_caught:
            # The reader notices, as bytes are missing, or the end of a chunked stream.
            _log.info("An answer was aborted: its reader received nothing for %g s.", self._seconds)

    async def _send_parts(
        self, response: Response, parts: Sequence[bytes], patience: anyio.CancelScope, send: Send
    ) -> None:
        """Send a large response; each piece of its body has a deadline of its own."""
        start = "http.response.start"
        await send({"type": start, "status": response.status_code, "headers": response.raw_headers})
        # The last message waits until the reader has the piece before it.
        last = parts[-1] if len(parts[-1]) <= BUFFERED else b""
        for part in parts if not last else parts[:-1]:
            await self._send_large(part, patience, send)
        await send({"type": "http.response.body", "body": last})

    async def _send_large(self, body: bytes, patience: anyio.CancelScope, send: Send) -> None:
        """Send a large part of a body in pieces."""
        # Each piece is cut when it is sent, as many readers may be slow to take a page.
        for start in range(0, len(body), PIECE):
            piece = body if len(body) <= PIECE else body[start : start + PIECE]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            patience.deadline = anyio.current_time() + self._seconds

    async def _send_in_pieces(
        self, patience: anyio.CancelScope, send: Send, message: Message
    ) -> None:
        """Send a message of a response; each piece of its body has a deadline of its own."""
        body = message.get("body", b"")
        self.budget.take(len(body))  # all of it, while some of it is left to send
        try:
            patience.deadline = anyio.current_time() + self._seconds
            if len(body) > BUFFERED:
                await self._send_large(body, patience, send)
                # An empty message: the server waits until the reader has the last piece.
                message = {**message, "body": b""}
            await send(message)
        finally:
            self.budget.take(-len(body))
        patience.deadline = math.inf  # the next message of a stream may be long in coming
