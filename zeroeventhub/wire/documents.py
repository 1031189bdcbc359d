"""Encode and decode the JSON documents of a feed: discovery, and the answers of extensions."""

from functools import cache
from itertools import pairwise
from typing import Annotated, Any, TypeVar

import msgspec

from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.extensions import Extension
from zeroeventhub.protocol import Count, Event, FeedInfo, KeyPage, Lag, Partition
from zeroeventhub.wire.ndjson import one_line

_Document = TypeVar("_Document")


class _WirePartition(msgspec.Struct, rename="camel", omit_defaults=True):
    # Some publishers send ids as numbers where the specification has strings.
    id: str | int
    closed: bool | None = False
    starts_after_partition: str | int | None = None
    cursor_from_partitions: list[str | int] | None = None


class _WireInfo(msgspec.Struct, rename="camel"):
    token: str
    partitions: list[_WirePartition] | None  # publishers in Go send null for none
    exactly_once: bool | None = False
    extensions: msgspec.Raw = msgspec.Raw(b"null")


def encode_document(document: Any) -> bytes:
    """Encode a document as JSON that people can read, too."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def encode_info(info: FeedInfo) -> bytes:
    """Encode a discovery document (FeedAPI v2, Discovery endpoint)."""
    partitions = [
        _WirePartition(
            str(one.id),
            one.closed,
            None if one.starts_after is None else str(one.starts_after),
            [*map(str, one.cursor_from)] or None,
        )
        for one in info.partitions
    ]
    document: dict[str, Any] = {
        "token": info.token,
        "partitions": partitions,
        "exactlyOnce": info.exactly_once,
    }
    if info.extensions:
        document["extensions"] = sorted(info.extensions)
    return encode_document(document)


def decode_info(body: bytes) -> FeedInfo:
    """Decode a discovery document (FeedAPI v2, Discovery endpoint)."""
    try:
        body.decode()  # also what the decoder skips must be UTF-8
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
            for entry in wire.partitions or ()
        )
    except (msgspec.DecodeError, ValueError, ConfigurationError, RecursionError) as error:
        raise ProtocolError(f"The answer is not a feed's discovery document: {error}") from error
    if len({partition.id for partition in partitions}) != len(partitions):
        raise ProtocolError("The discovery document names a partition twice.")
    return FeedInfo(partitions, wire.token, bool(wire.exactly_once), _names(wire.extensions))


def _names(listed: msgspec.Raw) -> frozenset[str]:
    """Read the names of extensions; ignore everything else (SPEC 2.3)."""
    try:
        names = msgspec.json.decode(listed, type=list[msgspec.Raw])
    except msgspec.ValidationError:
        return frozenset()
    return frozenset(
        msgspec.json.decode(name, type=str) for name in names if bytes(name).startswith(b'"')
    )


def encode_answer(extension: Extension, answer: Any) -> bytes:
    """Encode the result of a feed's method for an extension."""
    match answer:
        case KeyPage(events, versions, more):
            lines = [
                b'{"version":%d,"data":%b}' % (version, one_line(event.raw))
                for version, event in zip(versions, events, strict=True)
            ]
            end = b',"more":true' if more else b""
            return b'{"events":[\n%b\n]%b}\n' % (b",\n".join(lines), end)
        case Lag(counted, seconds, exact, held_back):
            answer = {"events": counted}
            answer |= {} if seconds is None else {"seconds": seconds}
            answer |= {} if exact else {"more": True}
            answer |= {} if held_back is None else {"heldBack": round(held_back, 3)}
    return encode_document({extension.member: answer} if extension.member else answer)


def decode_answer(extension: Extension, body: bytes) -> Any:
    """Decode the answer of an extension into the result of the feed's method."""
    if extension.answer is KeyPage:
        return decode_key_page(body, 0)
    found = _decode(body, _form(extension))
    if isinstance(found, _WireLag):
        exact = bytes(found.more) != b"true"
        return Lag(found.events, found.seconds, exact, found.held_back)
    return getattr(found, extension.member) if extension.member else found


@cache
def _form(extension: Extension) -> Any:
    """Return the type of the JSON document that holds the answer of an extension."""
    if extension.member:
        return msgspec.defstruct("_Answer", [(extension.member, extension.answer)])
    return _WireLag if extension.answer is Lag else extension.answer


class _WireLag(msgspec.Struct, rename="camel"):
    events: Count
    seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    held_back: Annotated[float, msgspec.Meta(ge=0)] | None = None
    # Raw, because a flag with any value but true counts as absent (SPEC 2.3).
    more: msgspec.Raw = msgspec.Raw()


class _WireVersion(msgspec.Struct):
    version: Annotated[int, msgspec.Meta(ge=1)]
    data: msgspec.Raw


class _WireKeyPage(msgspec.Struct):
    events: list[_WireVersion]
    # Raw, because a flag with any value but true counts as absent (SPEC 2.3).
    more: msgspec.Raw = msgspec.Raw()


def decode_key_page(body: bytes, after_version: int) -> KeyPage:
    """Decode the events of a key after a version.

    Raises:
        ProtocolError: the body is not such an answer, the versions do not rise, or an answer
            without events says that there are more.
    """
    wire = _decode(body, _WireKeyPage)
    versions = [entry.version for entry in wire.events]
    if any(one >= other for one, other in pairwise([after_version, *versions])):
        raise ProtocolError("The versions of a key do not rise.")
    more = bytes(wire.more) == b"true"
    if more and not versions:
        raise ProtocolError("The answer has no events, but announces more.")
    # A Raw holds on to the whole answer; a copy does not.
    return KeyPage([Event(bytes(entry.data)) for entry in wire.events], versions, more)


def _decode(body: bytes, form: type[_Document]) -> _Document:
    try:
        body.decode()  # also what the decoder skips must be UTF-8
        return msgspec.json.decode(body, type=form)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if "matching regex" in str(error):  # only cursors have a pattern
            raise ProtocolError("The feed gave a cursor that is not valid.") from error
        raise ProtocolError(f"The answer does not have the expected form: {error}") from error


def _number(partition: str | int) -> int:
    """Read a partition id: a number, or a string of up to five ASCII digits."""
    text = str(partition)
    if not (text.isascii() and text.isdigit() and len(text) <= 5):  # noqa: PLR2004 - 32767
        raise ValueError(f"{text!r} is not a partition id")
    return int(text)
