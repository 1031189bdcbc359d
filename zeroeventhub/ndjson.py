"""Bytes to pages and back: the line format of ZeroEventHub v1 and FeedAPI v2.

The only place that knows it, without any I/O. A line is an event (`data`), a checkpoint
(`cursor`), both, or something newer that is passed over. Lines end in byte 0x0A and in
nothing else: U+2028 and U+0085 are data.
"""

import math
from collections.abc import Collection, Iterable, Iterator
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec

from zeroeventhub.errors import ConfigurationError, CutPage, PageTooLarge, ProtocolError
from zeroeventhub.protocol import FIRST, LAST, Event, FeedInfo, Lag, Page, Partition, is_cursor

__all__ = ["MEDIA_TYPE", "PageDecoder", "decode_info", "encode_info", "encode_page"]

MEDIA_TYPE = "application/x-ndjson"

_encode = msgspec.json.encode

_Document = TypeVar("_Document")


def encode_page(page: Page) -> bytes:
    """Encode a page as FeedAPI v2 has it (Events endpoint, Response)."""
    lines = [b'{"data":%b}\n' % _one_line(event.raw) for event in page.events]
    lines.append(b"{%b}\n" % _checkpoint(page))
    return b"".join(lines)


def _checkpoint(page: Page) -> bytes:
    flags = b',"caughtUp":true' if page.caught_up else b""
    flags += b',"stopReached":true' if page.stop_reached else b""
    return b'"cursor":%b%b' % (_encode(page.cursor), flags)


def encode_page_v1(partition: int, page: Page, headers: Collection[str]) -> bytes:
    """Encode a page as ZeroEventHub v1 has it (Response).

    Args:
        partition: the partition that the page belongs to.
        page: its events and its checkpoint.
        headers: names of the headers to send; `_all` sends all.
    """
    prefix = b'{"partition":%d,' % partition
    lines = []
    for event in page.events:
        chosen = {
            name: value
            for name, value in event.headers.items()
            if name in headers or "_all" in headers
        }
        part = b'"headers":%b,' % _encode(chosen) if chosen else b""
        lines.append(b'%b%b"data":%b}\n' % (prefix, part, _one_line(event.raw)))
    lines.append(b'%b"cursor":%b}\n' % (prefix, _encode(page.cursor)))
    return b"".join(lines)


def _one_line(raw: bytes) -> bytes:
    """Keep JSON on its line: a newline in it is white space, for in strings it is escaped."""
    return raw.replace(b"\n", b" ")


def encode_info(info: FeedInfo) -> bytes:
    """Encode what a feed says of itself (FeedAPI v2, Discovery endpoint)."""
    partitions = []
    for partition in info.partitions:
        entry: dict[str, Any] = {"id": str(partition.id)}
        if partition.closed:
            entry["closed"] = True
        if partition.starts_after is not None:
            entry["startsAfterPartition"] = str(partition.starts_after)
        if partition.cursor_from:
            entry["cursorFromPartitions"] = [str(number) for number in partition.cursor_from]
        partitions.append(entry)
    document: dict[str, Any] = {
        "token": info.token,
        "partitions": partitions,
        "exactlyOnce": info.exactly_once,
    }
    if info.extensions:
        document["extensions"] = sorted(info.extensions)
    return msgspec.json.format(_encode(document), indent=2) + b"\n"


class _WirePartition(msgspec.Struct, rename="camel"):
    # Some publishers send ids as numbers where the specification has strings.
    id: str | int
    closed: bool | None = False
    starts_after_partition: str | int | None = None
    cursor_from_partitions: list[str | int] | None = None


class _WireInfo(msgspec.Struct, rename="camel"):
    token: str
    partitions: list[_WirePartition]
    exactly_once: bool | None = False
    extensions: msgspec.Raw = msgspec.Raw(b"null")


def decode_info(body: bytes) -> FeedInfo:
    """Decode what a feed says of itself (FeedAPI v2, Discovery endpoint).

    Raises:
        ProtocolError: the body is not a discovery document.
    """
    try:
        body.decode()  # what is passed over must be UTF-8 as well
        wire = msgspec.json.decode(body, type=_WireInfo)
        partitions = tuple(
            Partition(
                id=_number(entry.id),
                closed=bool(entry.closed),
                starts_after=(
                    None
                    if entry.starts_after_partition is None
                    else _number(entry.starts_after_partition)
                ),
                cursor_from=tuple(map(_number, entry.cursor_from_partitions or ())),
            )
            for entry in wire.partitions
        )
    except (msgspec.DecodeError, ValueError, ConfigurationError, RecursionError) as error:
        raise ProtocolError(f"The answer is not a feed's discovery document: {error}") from error
    if len({partition.id for partition in partitions}) != len(partitions):
        raise ProtocolError("The discovery document names a partition twice.")
    return FeedInfo(partitions, wire.token, bool(wire.exactly_once), _names(wire.extensions))


def _names(listed: msgspec.Raw) -> frozenset[str]:
    """Read names; what is there in another form is somebody else's, and nothing known here."""
    try:
        names = msgspec.json.decode(listed, type=list[msgspec.Raw])
    except msgspec.ValidationError:
        return frozenset()
    return frozenset(
        msgspec.json.decode(name, type=str) for name in names if bytes(name).startswith(b'"')
    )


def encode_lag(lag: Lag) -> bytes:
    """Encode how many events lie behind a cursor."""
    document: dict[str, Any] = {"events": lag.events}
    if lag.seconds is not None:
        document["seconds"] = lag.seconds
    if not lag.exact:
        document["more"] = True
    return msgspec.json.format(_encode(document), indent=2) + b"\n"


class _WireCursor(msgspec.Struct):
    cursor: str


class _WireCursors(msgspec.Struct):
    cursors: Annotated[list[str], msgspec.Meta(min_length=2)]


def decode_cursor(body: bytes) -> str:
    """Decode the cursor of a moment.

    Raises:
        ProtocolError: the body does not hold one.
    """
    return _expect_cursor(_decode(body, _WireCursor).cursor)


def decode_splits(body: bytes) -> list[str]:
    """Decode the cursors between pieces of a partition.

    Raises:
        ProtocolError: the body does not hold two or more.
    """
    return [_expect_cursor(cursor) for cursor in _decode(body, _WireCursors).cursors]


class _WireLag(msgspec.Struct):
    events: Annotated[int, msgspec.Meta(ge=0)]
    seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    # Raw, because what is not a flag may be anything.
    more: msgspec.Raw = msgspec.Raw()


def decode_lag(body: bytes) -> Lag:
    """Decode how many events lie behind a cursor.

    Raises:
        ProtocolError: the body does not say it.
    """
    wire = _decode(body, _WireLag)
    return Lag(wire.events, wire.seconds, exact=bytes(wire.more) != b"true")


def _decode(body: bytes, form: type[_Document]) -> _Document:
    try:
        body.decode()  # what is passed over must be UTF-8 as well
        return msgspec.json.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"The answer is not what was asked for: {error}") from error


def _number(partition: str | int) -> int:
    """Read a partition id: 0 to 32767, as a string of ASCII digits or as a number."""
    text = str(partition)
    if not (text.isascii() and text.isdigit() and len(text) <= 5):  # noqa: PLR2004 - 32767
        raise ValueError(f"{text!r} is not a partition id")
    return int(text)


_WHITE_SPACE = b" \t\r"
"""What JSON allows between its parts and no line ends with."""


def _expect_cursor(cursor: str) -> str:
    """Refuse a cursor that could not be read from."""
    if cursor in {FIRST, LAST} or not is_cursor(cursor):
        raise ProtocolError("The feed gave a cursor that cannot be read from.")
    return cursor


def _is_object(line: bytes) -> bool:
    """Tell whether bytes are a JSON object from its beginning to its end."""
    try:
        line.decode()
        msgspec.json.decode(line, type=_Object)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


class _Object(msgspec.Struct):
    """Any object: nothing of it is kept."""


class _Line(msgspec.Struct, rename="camel"):
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    cursor: str | None = None
    # Raw, because what is not a flag may be anything.
    caught_up: msgspec.Raw = msgspec.Raw()
    stop_reached: msgspec.Raw = msgspec.Raw()
    partition: str | int | None = None
    headers: dict[str, str] | None = None


_decode_line = msgspec.json.Decoder(_Line).decode


class PageDecoder:
    """Collect the bytes of a response into a page.

    Feed it chunks as they come, then ask for the page once. Events after the last
    checkpoint are dropped: they will be sent again.

    Args:
        partition: the partition that was asked for.
        page_bytes: the longest page to take.
        page_events: the most events to take.
        line_bytes: the longest line to take, without its newline.
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
        self._length = 0
        self._rest = bytearray()
        self._settled: list[Event] = []
        self._tail: list[Event] = []
        self._checkpoint: _Line | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes.

        Raises:
            ProtocolError: a whole line is not one that the protocol allows.
            PageTooLarge: the page, or a line of it, is longer than it may be; what was read
                before that stands.
        """
        room = self._page_bytes - self._length
        self._length += len(chunk)
        if len(chunk) > room:
            chunk = chunk[: int(room)]
        *lines, rest = chunk.split(b"\n")
        if lines:
            # No line of few bytes is too long, and few lines are not too many.
            few = len(self._rest) + len(chunk) <= self._line_bytes
            few = few and self._events + len(lines) <= self._page_events
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
            self._take(lines if few else self._bounded(lines))
        self._rest += rest
        if len(self._rest) > self._line_bytes:
            self._refuse_line()
        if self._length > self._page_bytes:
            self._refuse_page(f"{self._page_bytes:,} bytes", "page_bytes")

    @property
    def _events(self) -> int:
        return len(self._settled) + len(self._tail)

    def _bounded(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """Yield lines as they are taken, until one is too long or brings an event too many."""
        for line in lines:
            if len(line) > self._line_bytes:
                self._refuse_line()
            yield line
            if self._events > self._page_events:
                self._refuse_page(f"{self._page_events:,} events", "page_events")

    def _refuse_line(self) -> NoReturn:
        self._rest.clear()
        raise PageTooLarge(
            f"A line of the page is longer than {self._line_bytes:,} bytes: to read it, raise the "
            "client's Limits.line_bytes."
        )

    def _refuse_page(self, bound: str, name: str) -> NoReturn:
        raise PageTooLarge(
            f"The page has more than {bound}: ask for fewer events with `limit`, or raise the "
            f"client's Limits.{name}."
        )

    @property
    def has_checkpoint(self) -> bool:
        """Tell whether there is a page in what came so far."""
        return self._checkpoint is not None

    def page(self) -> Page:
        """Return the events up to the last checkpoint.

        Raises:
            CutPage: there was no checkpoint.
        """
        # A publisher may leave out the last newline; what was cut short is no whole object.
        rest = bytes(self._rest)
        if _is_object(rest):
            self._take([rest])
        if self._checkpoint is None or self._checkpoint.cursor is None:
            raise CutPage("The page ended before its checkpoint; it has to be read again.")
        # Events behind it were cut off with the rest: they are there to be read.
        whole = not self._tail
        return Page(
            self._settled,
            self._checkpoint.cursor,
            caught_up=whole and bytes(self._checkpoint.caught_up) == b"true",
            stop_reached=bytes(self._checkpoint.stop_reached) == b"true",
        )

    def _take(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if not line.strip(_WHITE_SPACE):
                continue
            parsed = self._parse(line)
            if parsed.data is msgspec.UNSET and not parsed.cursor:
                continue
            if parsed.partition is not None and str(parsed.partition) != str(self._partition):
                raise ProtocolError(
                    f"A line of partition {parsed.partition} came "
                    f"in a page of partition {self._partition}."
                )
            if parsed.data is not msgspec.UNSET:
                self._tail.append(Event(bytes(parsed.data), parsed.headers or {}))
            if parsed.cursor:
                _expect_cursor(parsed.cursor)
                self._settled += self._tail
                self._tail = []
                self._checkpoint = parsed

    @staticmethod
    def _parse(line: bytes) -> _Line:
        try:
            line.decode()  # what is passed over unparsed must be UTF-8 as well
            return _decode_line(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"A line of the page is not of the protocol: {error}") from error
