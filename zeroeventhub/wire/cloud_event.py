"""Read the attributes of CloudEvents.

The events of a feed are JSON of any form. An event with a member `specversion` is a CloudEvent
(CloudEvents 1.0, JSON Format); any other event has no attributes.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec

from zeroeventhub.errors import ProtocolError
from zeroeventhub.protocol import Event

_Data = TypeVar("_Data")


class CloudEvent(msgspec.Struct, Generic[_Data], kw_only=True):
    """Hold a CloudEvent with data of a model, as the annotation of `apply` asks for it.

    Example:
        def bill(connection, event: CloudEvent[dict[str, int]]) -> None:
            print(event.type, event.id, event.data["order"])
        Consumer(client, store, "billing").run(bill)

    Attributes:
        data: the event's data, as the model that the annotation names.
        specversion: the version of CloudEvents.
        id: the event's id, unique within its source.
        source: where the event comes from.
        type: the event's type.
        time: when it happened; None if the event does not say.
        subject: what it is about.
        partitionkey: the key within which events stay in order.
        dataschema: the address of the schema of its data.
        traceparent: the trace that it belongs to.
    """

    specversion: str
    id: str
    source: str
    type: str
    data: _Data
    time: datetime | None = None
    subject: str | None = None
    partitionkey: str | None = None
    dataschema: str | None = None
    traceparent: str | None = None


def attributes(event: Event) -> Mapping[str, Any]:
    """Return the members of a CloudEvent; an empty mapping for any other event."""
    try:
        data = event.data
    except ProtocolError:
        data = decodable_members(event)
    return data if isinstance(data, Mapping) and "specversion" in data else {}


def decodable_members(event: Event) -> dict[str, Any]:
    """Return the members of an object in which Python cannot decode something, such as 1e400."""
    found = {}
    try:
        for name, value in _raw_members(event.raw).items():
            with suppress(msgspec.DecodeError, RecursionError):
                found[name] = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        pass
    return found


_raw_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def event_id(event: Event) -> str | None:
    """Return the event's id (CloudEvents 1.0, Required Attributes)."""
    return _string(attributes(event).get("id"))


def event_identity(event: Event) -> str | None:
    """Return `source` and `id` together as text; None for an event without an id.

    Ids are unique within a source, and not empty (CloudEvents 1.0, Required Attributes).
    """
    identifier = event_id(event)
    if not identifier:
        return None
    return json.dumps([_string(attributes(event).get("source")), identifier])


def event_type(event: Event) -> str | None:
    """Return the event's type (CloudEvents 1.0, Required Attributes)."""
    return _string(attributes(event).get("type"))


def event_key(event: Event) -> str | None:
    """Return the key within which events stay in order: `partitionkey`, or else `subject`.

    CloudEvents 1.0, Optional Attributes; extension Partitioning.
    """
    found = attributes(event)
    # null is as good as absent (JSON Event Format 1.0, section 2.2)
    key = found.get("partitionkey")
    return _string(found.get("subject") if key is None else key)


def event_time(event: Event) -> datetime | None:
    """Return the event's time in UTC; see `moment` (CloudEvents 1.0, Optional Attributes)."""
    return moment(_string(attributes(event).get("time")) or "")


def moment(text: str) -> datetime | None:
    """Read a CloudEvent's time in UTC; None for a time without a zone, and for other text."""
    try:
        time = datetime.fromisoformat(text)
        return time.astimezone(UTC) if time.tzinfo else None
    except (ValueError, OverflowError):
        return None


def traceparent(event: Event) -> str | None:
    """Return the event's trace (W3C Trace Context): its attribute, or else its header of v1."""
    return _string(attributes(event).get("traceparent")) or event.headers.get("traceparent")


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None
