"""Receive batches of events, and append those that wait in one transaction."""

import math
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import TracebackType

import anyio
from starlette.requests import ClientDisconnect

from zeroeventhub.errors import (
    BadRequest,
    Forbidden,
    ProtocolError,
    TooLarge,
    Unavailable,
    UnsupportedMediaType,
)
from zeroeventhub.new_events import Batch
from zeroeventhub.protocol import LARGEST_BATCH, LARGEST_BATCH_BYTES, Appended
from zeroeventhub.server.feed_runner import FeedRunner
from zeroeventhub.server.request import FeedRequest
from zeroeventhub.server.responses import LARGE
from zeroeventhub.server.sending import READER, AdmissionQueue
from zeroeventhub.settings import Capacity
from zeroeventhub.wire.compression import decompressor_of
from zeroeventhub.wire.new_events import decode_events

EVENT_BYTES = 600
"""Bytes of memory of an event besides its line, roughly."""

_HAS_ZSTD = find_spec("zstandard") is not None


@dataclass(eq=False)
class _Group:
    """Batches that are appended together."""

    # By their requests, in the order in which they came.
    batches: dict[object, Batch] = field(default_factory=dict)
    events: int = 0  # how many they have
    # By their writer, the requests that each append the group, if it is its writer's turn first.
    appenders: dict[str, anyio.CancelScope] = field(default_factory=dict)
    ended: anyio.Event = field(default_factory=anyio.Event)  # set when it has, or was cancelled
    # By request, where its events are, or why they are not in the log.
    outcomes: dict[object, list[Appended] | Exception] = field(default_factory=dict)
    traceback: TracebackType | None = None  # of an error which all of them share


class Appends:
    """Append the batches of a feed's writers, within the feed's capacity.

    One batch is appended at a time, and all that arrive meanwhile are then appended together: a
    commit costs the same for one event as for many. Writers take turns.
    """

    def __init__(self, runner: FeedRunner, capacity: Capacity) -> None:
        self._runner = runner
        self._capacity = capacity
        self._forming = _Group()
        # No request that has a place is refused in this line.
        self._turn = AdmissionQueue(1, queue=2 * capacity.queue, patience=math.inf, refusal="")
        self._requests = AdmissionQueue(
            capacity.queue, queue=0, patience=0, refusal="", keeps_some=True
        )
        self._bytes = AdmissionQueue(
            capacity.receiving_bytes, queue=0, patience=0, refusal="", keeps_some=True
        )

    async def append(
        self, request: FeedRequest, producer: str | None, sequence: int | None
    ) -> list[Appended]:
        """Append the batch of a request; return where its events are, once they are committed.

        Raises:
            Forbidden: the principal may not append one of the events.
            BadRequest: the batch is not one that the log can store.
            TooLarge: the batch, or an event of it, is too large.
            Unavailable: there are too many requests at a time, or this one arrives too slowly.
        """
        right = request.principal.append
        if right is None:
            raise Forbidden("You may not append to this feed.")
        if (producer is None) is not (sequence is None):
            raise BadRequest("A producer and its sequence go together: give both, or neither.")
        if not self._requests.fits(1):
            raise Unavailable("Too many writers append at a time.", retry_after=1)
        self._requests.take(1)
        body, decoded = bytearray(), 0
        try:
            with anyio.move_on_after(self._capacity.receiving_seconds) as patience:
                await self._receive(request, body)
            if patience.cancelled_caught:
                raise Unavailable("The batch took too long to arrive.", retry_after=1)
            media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            events = await self._runner.work(
                len(body), decode_events, bytes(body), media_type, large=LARGE
            )
            size = len(events) * EVENT_BYTES
            self._take_bytes(size, len(body))
            decoded = size
            for one in events:
                if not right.allows(one):
                    raise Forbidden(f"You may not append the event {one.id!r}: its type or key.")
            name, partitions = request.principal.name, right.partitions
            return await self._append(Batch(events, producer, sequence, name, partitions))
        finally:
            self._requests.take(-1)
            self._bytes.take(-len(body) - decoded)

    def _take_bytes(self, count: int, own: int) -> None:
        """Count more bytes of a batch, which has its own so far."""
        # A batch that is alone may have any size, or it never came through.
        if self._bytes.taken > own and not self._bytes.fits(count):
            raise Unavailable("Too many bytes arrive at a time.", retry_after=1)
        self._bytes.take(count)

    async def _receive(self, request: FeedRequest, body: bytearray) -> None:
        """Read and decompress a batch, and count its bytes as long as it is in memory."""
        coding = decompressor_of(request.headers.get("content-encoding", ""), zstd=_HAS_ZSTD)
        if coding is not None and not coding.name:
            known = "gzip or zstd" if _HAS_ZSTD else "gzip"
            raise UnsupportedMediaType(f"The feed reads batches that are compressed by {known}.")
        try:
            async for chunk in request.stream():
                for piece in filter(None, [chunk] if coding is None else coding.pieces(chunk)):
                    if len(body) + len(piece) > LARGEST_BATCH_BYTES:
                        raise TooLarge(f"A batch has at most {LARGEST_BATCH_BYTES:,} bytes.")
                    self._take_bytes(len(piece), len(body))
                    body += piece
        except ClientDisconnect:
            raise BadRequest("The writer left before its batch was complete.") from None
        except ProtocolError:
            raise BadRequest(f"The batch is not {coding and coding.name}.") from None
        if coding is not None and not coding.whole:
            raise BadRequest(f"The {coding.name} of the batch is not complete.")

    async def _append(self, batch: Batch) -> list[Appended]:
        """Append a batch together with those that come while the group before it is appended."""
        if self._forming.events + len(batch.events) > LARGEST_BATCH:
            self._forming = _Group()
        group, place = self._forming, object()
        group.batches[place] = batch
        group.events += len(batch.events)
        try:
            # One event wakes all: a lock would wake one request after the other.
            while not group.outcomes:
                if READER.get() in group.appenders:
                    await group.ended.wait()
                else:
                    with anyio.CancelScope() as scope:
                        await self._append_group(group, scope)
        except BaseException:  # cancelled
            if self._forming is group:  # else a later request would append the events, at any time
                del group.batches[place]
            raise
        outcome = group.outcomes[place]
        if isinstance(outcome, Exception):
            # Each raise would extend the traceback of the error that these requests share.
            raise outcome.with_traceback(group.traceback or outcome.__traceback__)
        return outcome

    async def _append_group(self, group: _Group, scope: anyio.CancelScope) -> None:
        """Append a group in its writer's turn; if this is cancelled, another of its requests does.

        Once it is appended, the other writers need no turn for it.
        """
        writer = READER.get()
        group.appenders[writer] = scope
        try:
            async with self._turn.acquire():
                if group.outcomes:  # since it got its turn
                    return
                if self._forming is group:
                    self._forming = _Group()
                try:
                    # After an append that was cancelled, its events may be in the log, which
                    # knows them.
                    found = await self._runner.call("append", [*group.batches.values()])
                    group.outcomes = dict(zip(group.batches, found, strict=True))
                except Exception as error:  # noqa: BLE001 - each request of the group reports it
                    group.outcomes = dict.fromkeys(group.batches, error)
                    group.traceback = error.__traceback__
        finally:
            del group.appenders[writer]
            for other in group.appenders.values() if group.outcomes else ():
                other.cancel()
            group.ended.set()
            group.ended = anyio.Event()
