"""What a feed answers beside pages, to bytes and back: JSON documents, one an answer."""

from functools import cache
from itertools import pairwise
from typing import Annotated, Any, TypeVar

import msgspec

from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.protocol import (
    Count,
    Event,
    Extension,
    FeedInfo,
    GivenCursor,
    KeyPage,
    Lag,
    Partition,
    SegmentPart,
    Segments,
)
from zeroeventhub.wire.lines import one_line

__all__ = [
    "decode_answer",
    "decode_info",
    "decode_key_page",
    "encode_answer",
    "encode_info",
]

_encode = msgspec.json.encode

_Document = TypeVar("_Document")


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
    """Read names; what has another form is no extension that is known here."""
    try:
        names = msgspec.json.decode(listed, type=list[msgspec.Raw])
    except msgspec.ValidationError:
        return frozenset()
    return frozenset(
        msgspec.json.decode(name, type=str) for name in names if bytes(name).startswith(b'"')
    )


def encode_answer(extension: Extension, answer: Any) -> bytes:
    """Encode what the feed's method of an extension returned."""
    match answer:
        case KeyPage():
            return _encode_key_page(answer)  # its events are JSON already
        case Lag(events, seconds, exact):
            answer = {"events": events}
            answer |= {} if seconds is None else {"seconds": seconds}
            answer |= {} if exact else {"more": True}
        case Segments(parts, cursor):
            answer = {"segments": [*map(_segment, parts)], "cursor": cursor}
    document = {extension.member: answer} if extension.member else answer
    return msgspec.json.format(_encode(document), indent=2) + b"\n"


def decode_answer(extension: Extension, body: bytes) -> Any:
    """Decode what a feed answers for an extension, into what the feed's method returned.

    Raises:
        ProtocolError: the body does not hold it.
    """
    if extension.answer is KeyPage:
        return decode_key_page(body, 0)
    found = _decode(body, _form(extension))
    if extension.member:
        return getattr(found, extension.member)
    return found.read() if isinstance(found, _WireLag | _WireSegments) else found


@cache
def _form(extension: Extension) -> Any:
    """Return the type of the JSON document that holds the answer of an extension."""
    if extension.member:
        return msgspec.defstruct("_Answer", [(extension.member, extension.answer)])
    return {Lag: _WireLag, Segments: _WireSegments}.get(extension.answer, extension.answer)


class _WireLag(msgspec.Struct):
    events: Count
    seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    # Raw, because what is not a flag may be anything.
    more: msgspec.Raw = msgspec.Raw()

    def read(self) -> Lag:
        return Lag(self.events, self.seconds, exact=bytes(self.more) != b"true")


class _WireSegmentPart(msgspec.Struct, rename="camel"):
    url: str
    size: Count
    after: Count
    up_to: Count
    cursor: GivenCursor


class _WireSegments(msgspec.Struct):
    segments: list[_WireSegmentPart]
    cursor: GivenCursor

    def read(self) -> Segments:
        if any(part.after >= part.up_to for part in self.segments):
            raise ProtocolError("A segment of the answer ends before it begins.")
        parts = tuple(
            SegmentPart(part.url, part.size, part.after, part.up_to, part.cursor)
            for part in self.segments
        )
        return Segments(parts, self.cursor)


def _segment(part: SegmentPart) -> _WireSegmentPart:
    return _WireSegmentPart(part.url, part.size, part.after, part.upto, part.cursor)


def _encode_key_page(page: KeyPage) -> bytes:
    pairs = zip(page.versions, page.events, strict=True)
    lines = [
        b'{"version":%d,"data":%b}' % (version, one_line(event.raw)) for version, event in pairs
    ]
    more = b',"more":true' if page.more else b""
    return b'{"events":[\n%b\n]%b}\n' % (b",\n".join(lines), more)


class _WireVersion(msgspec.Struct):
    version: Annotated[int, msgspec.Meta(ge=1)]
    data: msgspec.Raw


class _WireKeyPage(msgspec.Struct):
    events: list[_WireVersion]
    # Raw, because what is not a flag may be anything.
    more: msgspec.Raw = msgspec.Raw()


def decode_key_page(body: bytes, after_version: int) -> KeyPage:
    """Decode events of a key.

    Args:
        body: the answer.
        after_version: the version after which they were asked for.

    Raises:
        ProtocolError: the body does not hold them, their versions do not rise, or there are more
            and none came.
    """
    wire = _decode(body, _WireKeyPage)
    versions = [entry.version for entry in wire.events]
    if any(one >= other for one, other in pairwise([after_version, *versions])):
        raise ProtocolError("The versions of a key do not rise.")
    more = bytes(wire.more) == b"true"
    if more and not versions:
        raise ProtocolError("There are more events of the key, and none came.")
    # A Raw holds on to the whole answer; a copy does not.
    return KeyPage([Event(bytes(entry.data)) for entry in wire.events], versions, more)


def _decode(body: bytes, form: type[_Document]) -> _Document:
    try:
        body.decode()  # what is passed over must be UTF-8 as well
        return msgspec.json.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if "matching regex" in str(error):  # of all that answers hold, cursors alone have a pattern
            raise ProtocolError("The feed gave a cursor that cannot be read from.") from error
        raise ProtocolError(f"The answer is not what was asked for: {error}") from error


def _number(partition: str | int) -> int:
    """Read a partition id: 0 to 32767, as a string of ASCII digits or as a number."""
    text = str(partition)
    if not (text.isascii() and text.isdigit() and len(text) <= 5):  # noqa: PLR2004 - 32767
        raise ValueError(f"{text!r} is not a partition id")
    return int(text)
