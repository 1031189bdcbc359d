"""Encode and decode pages as Apache Arrow: an IPC stream whose rows are events and checkpoints.

A message of the stream is a marker, the length of its metadata, the metadata, and a body, whose
length is in the metadata (Arrow Columnar Format, Encapsulated message format). The metadata is a
FlatBuffer: the vtable of a table has the offset of each field. The decoder checks bounds there,
before pyarrow reads the message.
"""

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from zeroeventhub.errors import CutPage, FeedFailure, ProtocolError
from zeroeventhub.protocol import Page
from zeroeventhub.wire.ndjson import BETWEEN_EVENTS, PageBounds, PageDecoder, PageEvents

PREFIX = 8
"""Bytes of a message before its metadata."""

_MARKER = 0xFFFFFFFF

# Numbers of fields in Message.fbs; RecordBatch is the third type of header.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_RECORD_BATCH, _COMPRESSION = 3, 3


def metadata_length(prefix: bytes | bytearray) -> int:
    """Return the length of the metadata after a prefix; 0 at the end of the stream."""
    marker, length = struct.unpack_from("<Ii", prefix)
    if marker != _MARKER or length < 0:
        raise ProtocolError("The answer is not the Arrow stream that its Content-Type announces.")
    return int(length)


def body_length(metadata: bytes) -> int:
    """Return the length of a message's body."""
    try:
        field = _field(metadata, _follow(metadata, 0), _BODY_LENGTH)
        (length,) = struct.unpack_from("<q", metadata, field) if field else (0,)
    except struct.error:
        length = -1
    if length < 0:
        raise ProtocolError("A message of the Arrow stream has no valid length.")
    return int(length)


def is_packed(metadata: bytes) -> bool:
    """Return whether a message is a record batch with compressed buffers."""
    try:
        message = _follow(metadata, 0)
        kind, header = (_field(metadata, message, field) for field in (_HEADER_TYPE, _HEADER))
        if not (kind and header) or metadata[kind] != _RECORD_BATCH:
            return False
        return _field(metadata, _follow(metadata, header), _COMPRESSION) != 0
    except (struct.error, IndexError):
        raise ProtocolError("A message of the Arrow stream is broken.") from None


def _follow(buffer: bytes, place: int) -> int:
    (offset,) = struct.unpack_from("<I", buffer, place)
    return place + int(offset)


def _field(buffer: bytes, table: int, number: int) -> int:
    """Return the offset of a table's field; 0 if the table does not have it."""
    (back,) = struct.unpack_from("<i", buffer, table)
    vtable = table - back
    if vtable < 0:
        raise struct.error
    (size,) = struct.unpack_from("<H", buffer, vtable)
    entry = 4 + 2 * number
    if entry + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", buffer, vtable + entry)
    return table + int(offset) if offset else 0


ROWS = pa.schema([pa.field("data", pa.string()), pa.field("checkpoint", pa.string())])
"""The schema of a page: each row is a line of the NDJSON form."""

EVENTS = pa.schema([pa.field("data", pa.string(), nullable=False)])
"""The schema of decoded events: the JSON of each event's data, byte for byte."""


@dataclass(frozen=True)
class ArrowPage:
    """The events of one partition up to a checkpoint, as columns; see `Page`.

    Attributes:
        batches: the events in the partition's order, as record batches of the schema `EVENTS`.
        cursor: the checkpoint: the cursor from which the next page starts.
        caught_up: whether the page ended at the head.
        stop_reached: whether the page ends at the requested stop.
    """

    batches: Sequence[pa.RecordBatch]
    cursor: str
    caught_up: bool = False
    stop_reached: bool = False

    @classmethod
    def of(cls, page: Page) -> "ArrowPage":
        """Convert a page of lines."""
        events = page.events
        texts: Sequence[bytes | msgspec.Raw] = (
            events.texts() if isinstance(events, PageEvents) else [one.raw for one in events]
        )
        batches = [batch_of(string_array(texts))] if texts else []
        return cls(batches, page.cursor, page.caught_up, page.stop_reached)


def batch_of(data: pa.StringArray) -> pa.RecordBatch:
    """Make a record batch of the JSON of events."""
    return pa.record_batch([data], schema=EVENTS)


def string_array(texts: Sequence[bytes | msgspec.Raw]) -> pa.StringArray:
    """Make an array of texts in UTF-8.

    `pyarrow.array` would import pandas where it is installed, which takes half a second.
    """
    offsets = array("i", accumulate(map(len, texts), initial=0))
    buffers = map(pa.py_buffer, (offsets, b"".join(texts)))
    return pa.StringArray.from_buffers(len(texts), *buffers)


_REFUSED = (pa.ArrowException, OSError, ValueError, MemoryError)


class ArrowDecoder:
    """Decode the bytes of a response into a page; see `PageDecoder`.

    For the bounds, a row counts as a line of the length of its JSON.
    """

    def __init__(self, partition: int, bounds: PageBounds) -> None:
        self._partition = partition
        self._bounds = bounds
        self._taken = 0
        self._message = bytearray(PREFIX)  # as far as its length is known
        self._filled = 0
        self._has_schema = False
        self._events = 0
        self._rows = 0
        self._settled: list[pa.RecordBatch] = []
        self._tail: list[pa.RecordBatch] = []
        self._checkpoint: Page | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes.

        Raises:
            ProtocolError: the protocol does not allow one of the messages.
            PageTooLarge: the page breaks a bound; the messages before that are kept.
        """
        rest = memoryview(chunk)
        while rest:
            end = min(self._filled + len(rest), len(self._message))
            part, rest = rest[: end - self._filled], rest[end - self._filled :]
            with memoryview(self._message) as message:
                message[self._filled : end] = part
            self._filled = end
            if end == len(self._message):
                self._continue()

    def page(self, *, is_whole: bool = True) -> ArrowPage:  # noqa: ARG002 - as that of lines
        """Return the events up to the last checkpoint."""
        last = self._checkpoint
        if last is None:
            raise CutPage("The page ended before its checkpoint: read it again.")
        # Events followed this checkpoint, so the next page has them.
        caught_up = last.caught_up and not self._tail
        return ArrowPage(self._settled, last.cursor, caught_up, last.stop_reached)

    def _continue(self) -> None:
        """Make room for the next bytes that the message announces, or take it if it is whole."""
        message, start = self._message, PREFIX + metadata_length(self._message)
        end = start
        if self._filled >= start > PREFIX:
            metadata = bytes(message[PREFIX:start])
            end += body_length(metadata)
            if self._filled == end and is_packed(metadata):
                # The size of its content is unknown before it is decompressed.
                raise ProtocolError("The Arrow stream has compressed buffers; refused.")
        if self._taken + end > self._bounds.page_bytes:
            self._message, self._filled = bytearray(PREFIX), 0
            self._bounds.refuse_bytes()
        if self._filled < end:
            self._message = bytearray(end)
            self._message[: self._filled] = message
            return
        self._message, self._filled = bytearray(PREFIX), 0
        self._taken += end
        if end > PREFIX:
            self._take(message)

    def _take(self, message: bytearray) -> None:
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
        # pyarrow does not check the type before it reads a schema.
        if message.type != "schema" or not pa.ipc.read_schema(message).equals(ROWS):
            raise ProtocolError("The Arrow stream does not have the columns of a page.")
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
        """Decode a checkpoint, which has the form of a line."""
        decoder = PageDecoder(self._partition)
        decoder.feed(line.encode() + b"\n")
        try:
            page = decoder.page()
        except CutPage:
            page = None
        if page is None or page.events:
            raise ProtocolError("A text in the page's column checkpoint is not a checkpoint.")
        return page

    def _expect_bounds(self, batch: pa.RecordBatch) -> None:
        events, longest = batch.num_rows - batch.column(0).null_count, 0
        self._rows += batch.num_rows
        # A small batch has no long text.
        if batch.nbytes > self._bounds.line_bytes:
            sizes = (pc.max(pc.binary_length(column)).as_py() or 0 for column in batch.columns)
            longest = max(sizes)
        self._bounds.check(events=self._events + events, lines=self._rows, longest=longest)


_START, _END = ROWS.serialize(), b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The first message of a stream, its schema, and the marker of its end."""


def encode_page(events: bytes, checkpoint: bytes) -> bytes:
    """Encode a page as an Arrow IPC stream: a batch of its events, and one of its checkpoint."""
    columns = [[pa.nulls(1, pa.string()), string_array([checkpoint[:-1]])]]
    if events:
        data = _split(events)
        columns.insert(0, [data, pa.nulls(len(data), pa.string())])
    batches = (pa.record_batch(each, schema=ROWS).serialize() for each in columns)
    return b"".join([_START, *batches, _END])


def _split(events: bytes) -> pa.StringArray:
    try:
        text = string_array([events[len(b'{"data":') : -len(b"}\n")]])
        text.validate(full=True)
    except (pa.ArrowException, OverflowError) as error:
        raise FeedFailure(f"A page cannot be sent as Arrow: {error}") from error
    lines = pc.split_pattern(text, BETWEEN_EVENTS.decode()).values
    # White space around a value is not part of it, as in the NDJSON form.
    return pc.ascii_trim(lines, characters=" \t\r")
