"""Bytes to pages, as they come: an Arrow IPC stream whose rows are events and checkpoints."""

import math
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from zeroeventhub.arrow.arrow_page import ROWS, ArrowPage, batch_of
from zeroeventhub.arrow.message import PREFIX, body_length, is_packed, metadata_length
from zeroeventhub.errors import CutPage, PageTooLarge, ProtocolError
from zeroeventhub.ndjson import PageDecoder
from zeroeventhub.protocol import Page

__all__ = ["ArrowDecoder"]

_REFUSED = (pa.ArrowException, OSError, ValueError, MemoryError)


class ArrowDecoder:
    """Collect the bytes of a response into a page; see `PageDecoder`.

    Args:
        partition: the partition that was asked for.
        page_bytes: the longest page to take.
        page_events: the most events to take, and the most checkpoints.
        line_bytes: the longest JSON of an event to take.
    """

    def __init__(
        self,
        partition: int,
        *,
        page_bytes: float = math.inf,
        page_events: float = math.inf,
        line_bytes: float = math.inf,
    ) -> None:
        self._partition = partition
        self._page_bytes = page_bytes
        self._page_events = page_events
        self._line_bytes = line_bytes
        self._taken = 0
        self._rest = bytearray()
        self._needed = PREFIX  # bytes that have to be there for another look
        self._has_schema = False
        self._events = 0
        self._checkpoints = 0
        self._settled: list[pa.RecordBatch] = []
        self._tail: list[pa.RecordBatch] = []
        self._checkpoint: Page | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes.

        Raises:
            ProtocolError: a whole message is not one that the protocol allows.
            PageTooLarge: the page, or an event of it, is longer than it may be; what was read
                before that stands.
        """
        self._rest += chunk
        while message := self._next_message():
            self._take(message)

    def page(self) -> ArrowPage:
        """Return the events up to the last checkpoint.

        Raises:
            CutPage: there was no checkpoint.
        """
        last = self._checkpoint
        if last is None:
            raise CutPage("The page ended before its checkpoint; it has to be read again.")
        # Events behind it were cut off with the rest: they are there to be read.
        caught_up = last.caught_up and not self._tail
        return ArrowPage(self._settled, last.cursor, caught_up, last.stop_reached)

    def _next_message(self) -> bytes:
        """Take a message out of what came; nothing if it is not there as a whole."""
        while len(self._rest) >= self._needed:
            start = end = PREFIX + metadata_length(self._rest)
            self._expect_room(start)
            if len(self._rest) < start:
                self._needed = start
                break
            if start > PREFIX:
                metadata = bytes(self._rest[PREFIX:start])
                end += body_length(metadata)
                self._expect_room(end)
                if len(self._rest) < end:
                    self._needed = end  # the metadata, of any length, is read no third time
                    break
                if is_packed(metadata):
                    # What it holds is bounded by nothing before it is unpacked.
                    raise ProtocolError("The Arrow stream is compressed, which no page may be.")
            with memoryview(self._rest) as rest:
                message = bytes(rest[:end])
            del self._rest[:end]
            self._needed = PREFIX
            self._taken += end
            if end > PREFIX:
                return message
        return b""

    def _take(self, message: bytes) -> None:
        try:
            read = pa.ipc.read_message(pa.py_buffer(message))
            if not self._has_schema:
                self._expect_schema(read)
                return
            batch = pa.ipc.read_record_batch(read, ROWS)
            batch.validate(full=True)
        except _REFUSED as error:
            raise ProtocolError(f"A message of the Arrow stream is broken: {error}") from error
        self._expect_bounds(batch)
        self._take_rows(*batch.columns)

    def _expect_schema(self, message: pa.Message) -> None:
        # What is no schema must not be read as one: pyarrow does not look.
        if message.type != "schema" or not pa.ipc.read_schema(message).equals(ROWS):
            raise ProtocolError("The Arrow stream has other columns than a page has.")
        self._has_schema = True

    def _take_rows(self, data: pa.StringArray, checkpoints: pa.StringArray) -> None:
        start = 0
        has_some = checkpoints.null_count < len(checkpoints)
        for row in pc.indices_nonzero(checkpoints.is_valid()).to_pylist() if has_some else ():
            self._take_events(data[start : row + 1])
            self._checkpoint = self._read_checkpoint(checkpoints[row].as_py())
            self._settled += self._tail
            self._tail = []
            start = row + 1
        self._take_events(data[start:])

    def _take_events(self, data: pa.StringArray) -> None:
        found = data.drop_null() if data.null_count else data
        if len(found):
            self._events += len(found)
            self._tail.append(batch_of(found))

    def _read_checkpoint(self, line: str) -> Page:
        """Read a checkpoint, which is a line of its own."""
        decoder = PageDecoder(self._partition)
        decoder.feed(line.encode() + b"\n")
        try:
            page = decoder.page()
        except CutPage:
            page = None
        if page is None or page.events:
            raise ProtocolError("A checkpoint of the page is none.")
        return page

    def _expect_bounds(self, batch: pa.RecordBatch) -> None:
        self._checkpoints += batch.num_rows - batch.column(1).null_count
        if self._checkpoints > self._page_events:  # each costs as much as some events
            self._refuse_page(f"{self._page_events:,} checkpoints", "page_events")
        if self._events + batch.num_rows - batch.column(0).null_count > self._page_events:
            self._refuse_page(f"{self._page_events:,} events", "page_events")
        # No text in few bytes is too long.
        longest = (pc.max(pc.binary_length(column)).as_py() or 0 for column in batch.columns)
        if batch.nbytes > self._line_bytes and max(longest) > self._line_bytes:
            raise PageTooLarge(
                f"An event of the page is longer than {self._line_bytes:,} bytes: to read it, "
                "raise the client's Limits.line_bytes."
            )

    def _expect_room(self, more: int) -> None:
        if self._taken + more > self._page_bytes:
            self._rest.clear()
            self._refuse_page(f"{self._page_bytes:,} bytes", "page_bytes")

    def _refuse_page(self, bound: str, name: str) -> NoReturn:
        raise PageTooLarge(
            f"The page has more than {bound}: ask for fewer events with `limit`, or raise the "
            f"client's Limits.{name}."
        )
