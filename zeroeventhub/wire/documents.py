"""What a feed answers beside pages, to bytes and back: JSON documents, one an answer."""

from itertools import pairwise
from typing import Annotated, Any, TypeVar

import msgspec

from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.protocol import (
    CountedCursor,
    Event,
    FeedInfo,
    KeyPage,
    Lag,
    Partition,
    SegmentPart,
    Segments,
)
from zeroeventhub.wire.lines import one_line
from zeroeventhub.wire.ndjson import expect_cursor

__all__ = [
    "decode_counted_cursor",
    "decode_cursor",
    "decode_info",
    "decode_key_page",
    "decode_lag",
    "decode_segments",
    "decode_splits",
    "encode_info",
    "encode_key_page",
    "encode_lag",
    "encode_segments",
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


def encode_key_page(page: KeyPage) -> bytes:
    """Encode events of a key, one a line."""
    pairs = zip(page.versions, page.events, strict=True)
    lines = [
        b'{"version":%d,"data":%b}' % (version, one_line(event.raw)) for version, event in pairs
    ]
    more = b',"more":true' if page.more else b""
    return b'{"events":[\n%b\n]%b}\n' % (b",\n".join(lines), more)


class _WireCursor(msgspec.Struct):
    cursor: str


class _WireCursors(msgspec.Struct):
    cursors: Annotated[list[str], msgspec.Meta(min_length=2)]


def decode_cursor(body: bytes) -> str:
    """Decode the cursor of a moment.

    Raises:
        ProtocolError: the body does not hold one.
    """
    return expect_cursor(_decode(body, _WireCursor).cursor)


def decode_splits(body: bytes) -> list[str]:
    """Decode the cursors between pieces of a partition.

    Raises:
        ProtocolError: the body does not hold two or more.
    """
    return [expect_cursor(cursor) for cursor in _decode(body, _WireCursors).cursors]


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


class _WireCountedCursor(msgspec.Struct):
    cursor: str
    events: Annotated[int, msgspec.Meta(ge=0)]


def decode_counted_cursor(body: bytes) -> CountedCursor:
    """Decode the cursor behind so many events.

    Raises:
        ProtocolError: the body does not hold one, or not how many they are.
    """
    wire = _decode(body, _WireCountedCursor)
    return CountedCursor(expect_cursor(wire.cursor), wire.events)


def encode_segments(segments: Segments) -> bytes:
    """Encode where events lie in files."""
    document = {
        "segments": [
            {
                "url": part.url,
                "size": part.size,
                "after": part.after,
                "upTo": part.upto,
                "cursor": part.cursor,
            }
            for part in segments.parts
        ],
        "cursor": segments.cursor,
    }
    return msgspec.json.format(_encode(document), indent=2) + b"\n"


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _WireSegmentPart(msgspec.Struct, rename="camel"):
    url: str
    size: _Count
    after: _Count
    up_to: _Count
    cursor: str


class _WireSegments(msgspec.Struct):
    segments: list[_WireSegmentPart]
    cursor: str


def decode_segments(body: bytes) -> Segments:
    """Decode where events lie in files.

    Raises:
        ProtocolError: the body does not say it.
    """
    wire = _decode(body, _WireSegments)
    parts = tuple(
        SegmentPart(one.url, one.size, one.after, one.up_to, expect_cursor(one.cursor))
        for one in wire.segments
    )
    if any(part.after >= part.upto for part in parts):
        raise ProtocolError("A segment of the answer ends before it begins.")
    return Segments(parts, expect_cursor(wire.cursor))


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
        after_version: the version behind which they were asked for.

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
        raise ProtocolError(f"The answer is not what was asked for: {error}") from error


def _number(partition: str | int) -> int:
    """Read a partition id: 0 to 32767, as a string of ASCII digits or as a number."""
    text = str(partition)
    if not (text.isascii() and text.isdigit() and len(text) <= 5):  # noqa: PLR2004 - 32767
        raise ValueError(f"{text!r} is not a partition id")
    return int(text)
