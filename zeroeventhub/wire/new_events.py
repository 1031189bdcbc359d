"""Encode and decode the batches of events that writers send."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal, cast

import msgspec

from zeroeventhub.errors import BadRequest, ConfigurationError, TooLarge, UnsupportedMediaType
from zeroeventhub.new_events import IN_A_LIST, NewEvent, make_events, runs_of
from zeroeventhub.protocol import LARGEST_BATCH, LARGEST_BATCH_BYTES, LARGEST_EVENT_BYTES
from zeroeventhub.wire import CLOUDEVENTS_BATCH_TYPE, NDJSON_TYPE
from zeroeventhub.wire.ndjson import one_line


class _Line(msgspec.Struct, omit_defaults=True, rename={"expected_version": "expectedVersion"}):
    id: str
    type: str
    data: msgspec.Raw
    key: str | None = None
    expected_version: int | None = None


class _CloudEvent(msgspec.Struct, rename={"expected_version": "expectedversion", "key": "subject"}):
    specversion: Literal["1.0"]
    id: str
    source: str
    type: str
    data: msgspec.Raw = msgspec.Raw(b"null")
    key: str | None = None
    expected_version: int | None = None
    # Refused: bytes that are not JSON cannot be stored.
    data_base64: msgspec.UnsetType = msgspec.UNSET


_line = msgspec.json.Decoder(_Line).decode
_cloud_events = msgspec.json.Decoder(list[_CloudEvent]).decode
_decode = msgspec.json.Decoder().decode
_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode

encoder = msgspec.json.Encoder(enc_hook=str.__str__)
"""Encodes texts of other classes, such as NumPy's, as the texts that they are."""


def decode_events(body: bytes, media_type: str) -> list[NewEvent]:
    """Decode the events of a batch, whose data stays the JSON that was sent, without spaces.

    The body is decompressed, and its form in lower case and without parameters.

    Raises:
        UnsupportedMediaType: the form is not one of a batch.
        TooLarge: the batch has too many events, or one of them is too large.
        BadRequest: the body is not of that form, or an event cannot be stored.
    """
    try:
        body.decode()  # also what the decoder skips must be UTF-8
    except UnicodeDecodeError:
        raise BadRequest("The batch is not UTF-8.") from None
    if media_type == NDJSON_TYPE:
        _expect_few(body.count(b"\n") + (not body.endswith(b"\n")))
        lines = body.removesuffix(b"\n").split(b"\n")
        events = _all_new("Line", _decode_lines(lines))
    elif media_type == CLOUDEVENTS_BATCH_TYPE:
        events = _all_new("Event", _array(body))
    else:
        raise UnsupportedMediaType(
            f"A batch of events is {NDJSON_TYPE} or {CLOUDEVENTS_BATCH_TYPE}."
        )
    try:
        [*runs_of(events)]
    except ConfigurationError as error:
        raise BadRequest(str(error)) from None
    return events


def decode_event(line: bytes, number: int) -> NewEvent:
    """Decode an event on a line; errors name the number of the line."""
    return _new(f"Line {number}", _decode_line(number, line))


def encode_events(events: Iterable[NewEvent]) -> list[bytes]:
    """Encode a batch, each event as a line.

    Raises:
        ConfigurationError: one of them is not an event, or cannot be stored.
        TooLarge: the batch has too many events or bytes, or one of them is too large.
    """
    if not isinstance(cast("object", events), Iterable):
        raise ConfigurationError(IN_A_LIST)
    lines = [encode_event(event) for event in events]
    _expect_few(len(lines))
    if sum(map(len, lines)) > LARGEST_BATCH_BYTES:
        raise TooLarge(f"A batch has at most {LARGEST_BATCH_BYTES:,} bytes.")
    return lines


def encode_event(event: NewEvent) -> bytes:
    """Encode an event as a line."""
    if not isinstance(cast("object", event), NewEvent):
        raise ConfigurationError(f"A log appends NewEvent(…), not {type(event).__name__}.")
    data = one_line(event.text.encode())
    if len(data) > LARGEST_EVENT_BYTES:
        raise TooLarge(f"The data of an event has at most {LARGEST_EVENT_BYTES:,} bytes.")
    raw = msgspec.Raw(data)
    line = _Line(event.id, event.type, raw, event.key, event.expected_version)
    return encoder.encode(line) + b"\n"


def _decode_lines(lines: Sequence[bytes]) -> list[_Line]:
    try:
        return [*map(_line, lines)]
    except (msgspec.DecodeError, RecursionError):  # to find the number of the line
        return [_decode_line(*one) for one in enumerate(lines, 1)]


def _decode_line(number: int, line: bytes) -> _Line:
    try:
        line.decode()  # also what the decoder skips must be UTF-8
        return _line(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"Line {number} is not an event: {error}.") from None


def _array(body: bytes) -> list[_CloudEvent]:
    try:
        found = _cloud_events(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"The body is not a batch of CloudEvents: {error}.") from None
    _expect_few(len(found))
    if not found:
        raise BadRequest("The batch has no events.")
    return found


def _expect_few(events: int) -> None:
    if events > LARGEST_BATCH:
        raise TooLarge(f"A batch has at most {LARGEST_BATCH:,} events.")


def _all_new(place: str, sent: Sequence[_Line | _CloudEvent]) -> list[NewEvent]:
    """Return events; several are made together, and `_new` finds the one that is wrong."""
    data = b"[%b]" % b",".join([one.data for one in sent])
    if len(sent) > 1 and len(data) <= LARGEST_EVENT_BYTES:
        with suppress(msgspec.DecodeError, ConfigurationError, RecursionError):
            _decode(data)
            return make_events(sent, _raws(msgspec.json.format(data, indent=-1)))
    return [_new(f"{place} {number}", one) for number, one in enumerate(sent, 1)]


def _new(place: str, sent: _Line | _CloudEvent) -> NewEvent:
    """Return an event that every database stores and every reader can decode."""
    data = bytes(sent.data)
    if len(data) > LARGEST_EVENT_BYTES:
        raise TooLarge(f"{place}: the data of an event has at most {LARGEST_EVENT_BYTES:,} bytes.")
    try:
        compact = msgspec.Raw(msgspec.json.format(data, indent=-1))
        new = NewEvent(sent.type, compact, sent.key, sent.id, sent.expected_version)
        _ = new.text
    except (msgspec.DecodeError, ConfigurationError, RecursionError) as error:
        raise BadRequest(f"{place}: {error}") from None
    return new
