"""Encode and decode pages: the line format of ZeroEventHub v1 and FeedAPI v2.

A line is an event (`data`), a checkpoint (`cursor`), both, or a newer command that readers ignore.
Lines end in byte 0x0A alone: U+2028 and U+0085 are data.

The decoder first decodes the lines of a page without a statement of Python for each. Where one of
them is not valid, or may break a bound, it goes from line to line, and so finds the one that is.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from itertools import islice, repeat
from operator import attrgetter
from typing import Any, NoReturn, TypeAlias

import msgspec

from zeroeventhub.errors import CutPage, PageTooLarge, ProtocolError
from zeroeventhub.protocol import FIRST, LAST, Event, EventSequence, Page, is_cursor

BEFORE_EVENT, AFTER_EVENT = b'{"data":', b"}\n"

BETWEEN_EVENTS = AFTER_EVENT + BEFORE_EVENT
"""The bytes between the data of two events: data has no newline in it."""


@dataclass(frozen=True, eq=False, repr=False)
class Lines(EventSequence):
    """Events without headers, as one text.

    Attributes:
        text: the lines, as FeedAPI v2 has them (Events endpoint, Response).
        length: the number of lines.
    """

    text: bytes
    length: int

    @classmethod
    def of(cls, texts: list[bytes], *, on_one_line: bool = False) -> "Lines":
        """Make lines of the JSON of events, which may have line ends unless it is `on_one_line`."""
        if not texts:
            return cls(b"", 0)
        # One copy of the whole page: pages are large, and the system maps memory for each copy.
        parts = [BEFORE_EVENT + texts[0], *texts[1:]]
        parts[-1] += AFTER_EVENT
        text = BETWEEN_EVENTS.join(parts)
        if not on_one_line and (text.count(b"\n") != len(texts) or b"\r" in text):
            return cls.of([*map(one_line, texts)])
        return cls(text, len(texts))

    def __len__(self) -> int:
        """Return the number of events."""
        return self.length

    def _all(self) -> list[Event]:
        inner = self.text[len(BEFORE_EVENT) : -len(AFTER_EVENT)]
        return [*map(Event, inner.split(BETWEEN_EVENTS))] if self.length else []


def one_line(raw: bytes) -> bytes:
    """Put JSON on one line: its line ends are white space, because strings escape theirs.

    Readers in many languages end a line at a carriage return as well.
    """
    return raw.replace(b"\n", b" ").replace(b"\r", b" ")


def size_of(events: Sequence[Event]) -> int:
    """Return the number of bytes of the events' JSON."""
    if isinstance(events, Lines):
        return len(events.text) - len(BETWEEN_EVENTS) * len(events)
    return sum(len(event.raw) for event in events)


def chain_parts(parts: Sequence[Sequence[Event]]) -> Sequence[Event]:
    """Return the events of several parts, one part after the other."""
    parts = [part for part in parts if part]
    if len(parts) == 1:
        return parts[0]
    lines = [part for part in parts if isinstance(part, Lines)]
    if len(lines) == len(parts):
        return Lines(b"".join(part.text for part in lines), sum(map(len, lines)))
    return [event for part in parts for event in part]


_encode = msgspec.json.encode


def encode_page(page: Page) -> bytes:
    """Encode a page as FeedAPI v2 defines it (Events endpoint, Response)."""
    return b"".join(parts_of(page))


def parts_of(page: Page) -> tuple[bytes, bytes]:
    """Encode a page in two parts, the lines of its events and its checkpoint, to copy neither."""
    lines = page.events
    if not isinstance(lines, Lines):
        # An event made of bytes that are no JSON must not end its line early.
        lines = Lines.of([one_line(event.raw) for event in lines])
    flags = b',"caughtUp":true' if page.caught_up else b""
    flags += b',"stopReached":true' if page.stop_reached else b""
    return lines.text, b'{"cursor":%b%b}\n' % (_encode(page.cursor), flags)


def encode_page_v1(partition: int, page: Page, headers: Collection[str]) -> bytes:
    """Encode a page as ZeroEventHub v1 defines it (Response).

    `headers` are the names of the headers to send; `_all` sends all.
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
        lines.append(b'%b%b"data":%b}\n' % (prefix, part, one_line(event.raw)))
    lines.append(b'%b"cursor":%b}\n' % (prefix, _encode(page.cursor)))
    return b"".join(lines)


_WHITE_SPACE = b" \t\r"
"""What JSON allows between its parts, except the newline."""

_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Object(msgspec.Struct):
    """Match any object, and keep nothing of it."""


class _Line(msgspec.Struct, rename="camel", gc=False):
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    cursor: str | None = None
    # Raw, because a flag with any value but true counts as absent (SPEC 2.3).
    caught_up: msgspec.Raw = msgspec.Raw()
    stop_reached: msgspec.Raw = msgspec.Raw()
    partition: str | int | None = None
    headers: dict[str, str] | None = None


_UNSET = msgspec.UNSET
_decode_line = msgspec.json.Decoder(_Line).decode
_decode_lines = msgspec.json.Decoder(_Line).decode_lines

_data_of = attrgetter("data")

_SMALL = 1024
"""Chunks below so many bytes are joined: an object for each would take more memory."""

_MORE = 1_000
"""The number of lines that a page may have in addition to two for each event."""


@dataclass(frozen=True)
class PageBounds:
    """Bound a page, whether it comes as lines or as rows of Arrow.

    Attributes:
        page_bytes: the most bytes of a page.
        page_events: the most events; there may be twice as many lines, and 1,000 more.
        line_bytes: the most bytes of a line, without its newline.
    """

    page_bytes: float = math.inf
    page_events: float = math.inf
    line_bytes: float = math.inf

    @property
    def lines(self) -> float:
        """The most lines of a page."""
        return 2 * self.page_events + _MORE

    def refuse_bytes(self) -> NoReturn:
        """Refuse a page that is too long."""
        self._refuse(f"{self.page_bytes:,} bytes", "page_bytes")

    def check(self, *, events: int, lines: int, longest: int) -> None:
        """Raise PageTooLarge for too many events or lines so far, or for too long a line."""
        if longest > self.line_bytes:
            raise PageTooLarge(
                f"A line of the page is longer than {self.line_bytes:,} bytes: to read it, raise "
                "the client's Limits.line_bytes, and Limits.page_bytes above it."
            )
        if events > self.page_events:
            self._refuse(f"{self.page_events:,} events", "page_events")
        if lines > self.lines:
            self._refuse(f"{self.lines:,} lines", "page_events")

    def _refuse(self, bound: str, name: str) -> NoReturn:
        raise PageTooLarge(
            f"The page has more than {bound}: ask for fewer events with `limit`, or raise the "
            f"client's Limits.{name}."
        )


_UNBOUNDED = PageBounds()

_Decoded: TypeAlias = list[Any]
"""Lines with the fields of `_Line`, whose data is Raw or of the caller's type."""


@lru_cache(maxsize=64)
def _typed_decoder(data_type: Any) -> Any:
    """Return the decoder of lines whose data is of a type."""
    fields: list[Any] = [
        (field.name, data_type if field.name == "data" else field.type, field.default)
        for field in msgspec.structs.fields(_Line)
    ]
    model = msgspec.defstruct("Line", fields, rename="camel", gc=False)
    return msgspec.json.Decoder(model).decode_lines


class _Texts:
    """The JSON texts of a page's events, which are split when one of them is first read."""

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._all: list[bytes] | None = None

    def __getitem__(self, number: int) -> bytes:
        """Return the text of an event."""
        if self._all is None:
            lines = _decode_lines(self._text)
            self._all = [bytes(line.data) for line in lines if line.data is not _UNSET]
        return self._all[number]


class _DecodedEvent(Event, frozen=True, eq=False, gc=False):
    """An event whose data was decoded with its page; the base's `raw` holds its number there."""

    data: Any = None  # a field is read faster than the base's property
    _texts: Any = None  # not the page, whose list of events would make a circle

    @property  # type: ignore[misc] # it hides the base's field
    def raw(self) -> bytes:
        """The JSON text of the event's data."""
        text: bytes = self._texts[_number_of(self)]
        return text


_number_of = Event.raw.__get__  # type: ignore[attr-defined] # the field's own descriptor


@lru_cache(maxsize=64)
def _plain_decoder(data_type: Any) -> Callable[[bytes], Any]:
    """Return the decoder of a line with data alone; any other member is an error."""
    fields = [("data", msgspec.Raw if data_type is None else data_type)]
    model = msgspec.defstruct("Line", fields, forbid_unknown_fields=True, gc=False)
    return msgspec.json.Decoder(model).decode


class PageEvents(EventSequence):
    """The events of a decoded page, which are made when one of them is first read.

    Args:
        lines: the lines with events.
        text: the received text of these lines; it may have other lines between them.
        data_type: the type that their data was decoded as; None where it was not decoded.

    Attributes:
        prepared: results that a consumer has computed ahead, by their purpose.
    """

    def __init__(self, lines: _Decoded, text: bytes, data_type: Any) -> None:
        self._count = len(lines)
        self._text = text
        self._data_type = data_type
        self._lines: _Decoded | None = lines
        self._events: list[Event] | None = None
        self.prepared: dict[Any, Any] = {}

    def __len__(self) -> int:
        """Return the number of events, without making the events."""
        return self._count

    @property
    def made(self) -> Sequence[Event]:
        """The events, or none if none of them has been read."""
        return self._events or ()

    @property
    def has_read_data(self) -> bool:
        """Whether the caller has read the data of the last event, which was decoded only then."""
        return bool(self._events) and self._events[-1]._data is not _UNSET  # type: ignore[index] # noqa: SLF001 - of the protocol

    def decoded(self, data_type: Any) -> list[Any] | None:
        """Return the data of all events, decoded as a type in one call; None if one does not fit.

        Each call returns new values, because the caller may change them.
        """
        lines, self._lines = self._lines, None
        if lines is None or data_type != self._data_type:
            try:
                lines = _typed_decoder(data_type)(self._text)
            except Exception:  # noqa: BLE001 - a model of the caller's may raise anything
                return None
        return [line.data for line in lines or () if line.data is not _UNSET]

    def texts(self) -> list[msgspec.Raw]:
        """Return the JSON of all events, without making the events."""
        return [line.data for line in self._undecoded()]

    def _undecoded(self) -> _Decoded:
        """Return the lines, whose data is Raw; the page does not keep them."""
        lines, self._lines = self._lines, None
        if lines is None or self._data_type is not None:
            lines = [line for line in _decode_lines(self._text) if line.data is not _UNSET]
        return lines

    def _all(self) -> list[Event]:
        if self._events is None:
            lines = self._lines
            if lines is not None and self._data_type is Any:
                self._lines = None
                data, texts = map(_data_of, lines), _Texts(self._text)
                numbers: Any = range(len(lines))
                made = map(_DecodedEvent, numbers, repeat({}), repeat(None), data, repeat(texts))
                self._events = [*made]
                return self._events
            lines = self._undecoded()
            has_headers = bool(lines) and isinstance(lines[0], _Line)
            headers = (line.headers or {} for line in lines) if has_headers else repeat({})
            self._events = [*map(Event, map(bytes, map(_data_of, lines)), headers)]
        return self._events


def restore_data(events: Iterable[Event]) -> None:
    """Undo what a caller has changed in the decoded data of events, which come again."""
    for event in events.made if isinstance(events, PageEvents) else events:
        is_decoded = isinstance(event, _DecodedEvent)
        name, data = ("data", msgspec.json.decode(event.raw)) if is_decoded else ("_data", _UNSET)
        msgspec.structs.force_setattr(event, name, data)


class PageDecoder:
    """Decode the bytes of a response into a page.

    Call `feed` with each chunk, then `page`. The page ends at the last checkpoint: the publisher
    sends the events after it again.

    `data_type` is what the caller will decode the events as; see `PageEvents.decoded`.
    """

    def __init__(
        self, partition: int, bounds: PageBounds = _UNBOUNDED, *, data_type: Any = None
    ) -> None:
        self._partition = str(partition)
        self._bounds = bounds
        self._room = bounds.page_bytes
        self._data_type = data_type
        self._chunks: list[bytes | bytearray] = []

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes.

        Raises:
            PageTooLarge: the page is longer than `page_bytes`; the bytes within it are kept.
        """
        kept = chunk if len(chunk) <= self._room else chunk[: int(self._room)]
        if len(kept) >= _SMALL:
            self._chunks.append(kept)
        elif self._chunks and isinstance(self._chunks[-1], bytearray):
            self._chunks[-1] += kept
        else:
            self._chunks.append(bytearray(kept))
        self._room -= len(chunk)
        if self._room < 0:
            self._room = 0
            self._bounds.refuse_bytes()

    def next_cursor(self) -> str | None:
        """Return where a whole page says that the next one starts, before its events are decoded.

        None at the head, and for a page whose last line is no checkpoint.
        """
        body = b"".join(self._chunks)
        self._chunks = [body]
        try:
            line = _decode_line(body[body.rfind(b"\n", 0, -1) + 1 :])
        except _UNDECODABLE:
            return None
        return None if bytes(line.caught_up) == b"true" else line.cursor

    def page(self, *, is_whole: bool = True) -> Page:
        """Return the events up to the last checkpoint within the bounds.

        The last newline of a whole body, one that was received to its end, may be missing.

        Raises:
            CutPage: the page has no checkpoint.
            PageTooLarge: the page has no checkpoint within the bounds.
            ProtocolError: the protocol does not allow one of the lines.
        """
        body = b"".join(self._chunks)
        # A publisher may leave out the last newline; a line that was cut is not a whole object.
        if is_whole and not body.endswith(b"\n") and _is_object(body[body.rfind(b"\n") + 1 :]):
            body += b"\n"
        found, is_last = self._decode_plain(body), True
        if found is None:
            lines = self._decode_all(body, _decode_line)
            parsed = self._decode_each(body) if lines is None else lines
            before, tail, last, upto, too_large = self._split(parsed)
            if last is None:
                error = CutPage("The page ended before its checkpoint: read it again.")
                raise too_large or error
            text, is_last = body, not tail
            if lines is None or tail:
                text = b"\n".join(body.split(b"\n", upto)[:-1])
            found = PageEvents(before, text, None), last
        events, checkpoint = found
        return Page(
            events,
            checkpoint.cursor,
            # Events followed this checkpoint, so the next page has them.
            caught_up=is_last and bytes(checkpoint.caught_up) == b"true",
            stop_reached=bytes(checkpoint.stop_reached) == b"true",
        )

    def _decode_plain(self, body: bytes) -> tuple[PageEvents, Any] | None:
        """Decode events with data alone and one checkpoint at the end; None for any other page."""
        try:
            checkpoint = _decode_line(body[body.rfind(b"\n", 0, -1) + 1 :])
        except _UNDECODABLE:
            return None
        is_plain = checkpoint.data is _UNSET and checkpoint.partition is None
        if not is_plain or not checkpoint.cursor:
            return None
        for data_type in (self._data_type, None) if self._data_type is not None else (None,):
            lines = self._decode_all(body, _plain_decoder(data_type), last=-1)
            if lines is not None:
                _expect_cursor(checkpoint.cursor)
                return PageEvents(lines, body, data_type), checkpoint
        return None

    def _decode_all(
        self, body: bytes, decode: Callable[[bytes], Any], last: int | None = None
    ) -> _Decoded | None:
        """Decode all lines up to `last`; None where one is not valid, or may break a bound."""
        bounds = self._bounds
        if len(body) > bounds.line_bytes or not body.endswith(b"\n"):
            return None
        # A stream of bytes yields lines in a quarter of the time of `split`, and only as many as
        # are needed to see that the page has too many: each takes many times its bytes.
        lines = [*islice(BytesIO(body), int(min(bounds.page_events, len(body))) + 2)][:last]
        if len(lines) > bounds.page_events:
            return None
        try:
            if not body.isascii():
                body.decode()  # also what the decoder skips must be UTF-8
            found = [*map(decode, lines)]
        except Exception:  # noqa: BLE001 - a model of the caller's may raise anything
            return None
        # Fewer where a model has raised StopIteration, which ends `map`.
        return found if len(found) == len(lines) else None

    def _decode_each(self, text: bytes) -> Iterator[_Line]:
        """Decode line by line, up to the first line that breaks a bound."""
        events, bounds = 0, self._bounds
        most = -1 if bounds.lines == math.inf else int(bounds.lines)
        *lines, rest = text.split(b"\n", most)
        for number, line in enumerate(lines, start=1):
            bounds.check(events=events, lines=0, longest=len(line))
            try:
                line.decode()  # also what the decoder skips must be UTF-8
                parsed = _decode_line(line)
            except _UNDECODABLE as error:
                if begin := line.strip(_WHITE_SPACE)[:1]:
                    # Publishers in Go write the text of an error after the lines: a cut page.
                    if number > 1 and number == len(lines) and not rest and begin != b"{":
                        return
                    raise ProtocolError(f"A line of the page is not valid: {error}") from error
                parsed = _Line()
            events += parsed.data is not _UNSET
            bounds.check(events=events, lines=0, longest=0)
            yield parsed
        more = rest.count(b"\n")
        bounds.check(events=events, lines=len(lines) + more, longest=0 if more else len(rest))

    def _split(
        self, lines: Iterable[Any]
    ) -> tuple[_Decoded, _Decoded, Any, int, PageTooLarge | None]:
        """Divide a page at its last checkpoint; refuse a line that is not valid.

        Returns:
            The lines of the events before it, and of those after it; the checkpoint, None for a
            page without one; the number of lines up to it; and the error of a bound that a later
            line breaks, if any.
        """
        before: _Decoded = []
        tail: _Decoded = []
        checkpoint, number, count, error = None, 0, 0, None
        try:
            for number, line in enumerate(lines, start=1):
                if line.data is _UNSET and not line.cursor:
                    continue
                if line.partition is not None and str(line.partition) != self._partition:
                    raise ProtocolError(
                        f"A line of partition {line.partition} came "
                        f"in a page of partition {self._partition}."
                    )
                if line.data is not _UNSET:
                    tail.append(line)
                if line.cursor:
                    _expect_cursor(line.cursor)
                    before += tail
                    tail, checkpoint, count = [], line, number
        except PageTooLarge as too_large:
            error = too_large
        return before, tail, checkpoint, count, error


def _expect_cursor(cursor: str) -> None:
    if cursor in {FIRST, LAST} or not is_cursor(cursor):
        raise ProtocolError("The feed gave a cursor that is not valid.")


def _is_object(line: bytes) -> bool:
    """Return whether bytes are one whole JSON object."""
    try:
        line.decode()
        msgspec.json.decode(line, type=_Object)
    except _UNDECODABLE:
        return False
    return True
