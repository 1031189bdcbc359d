"""What an event says of itself, if it is a CloudEvent.

Events of a feed are JSON of any form. One that has `specversion` is a CloudEvent (CloudEvents 1.0,
JSON Format), and its attributes are known by name; of any other, nothing is known.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from zeroeventhub.errors import ProtocolError
from zeroeventhub.protocol import Event

__all__ = [
    "attributes",
    "event_id",
    "event_identity",
    "event_key",
    "event_time",
    "event_type",
    "moment",
    "traceparent",
]


def attributes(event: Event) -> Mapping[str, Any]:
    """Return the members of a CloudEvent; none of any other event.

    None as well of an event that Python cannot decode exactly: it is kept as it came.
    """
    try:
        data = event.data
    except ProtocolError:
        return {}
    return data if isinstance(data, Mapping) and "specversion" in data else {}


def event_id(event: Event) -> str | None:
    """Return the event's id (CloudEvents 1.0, Required Attributes)."""
    return _string(attributes(event).get("id"))


def event_identity(event: Event) -> str | None:
    """Return what no two events share: `source` and `id` together; None where there is no id.

    CloudEvents 1.0, Required Attributes: ids are unique within a source.
    """
    identifier = event_id(event)
    if identifier is None:
        return None
    return json.dumps([_string(attributes(event).get("source")), identifier])


def event_type(event: Event) -> str | None:
    """Return the event's type (CloudEvents 1.0, Required Attributes)."""
    return _string(attributes(event).get("type"))


def event_key(event: Event) -> str | None:
    """Return the key whose events stay in order: `partitionkey`, or `subject` where there is none.

    CloudEvents 1.0, Optional Attributes; extension Partitioning.
    """
    found = attributes(event)
    return _string(found.get("partitionkey", found.get("subject")))


def event_time(event: Event) -> datetime | None:
    """Return when the event happened, in UTC; None where it says so without a zone, or not at all.

    CloudEvents 1.0, Optional Attributes.
    """
    return moment(_string(attributes(event).get("time")) or "")


def moment(text: str) -> datetime | None:
    """Read a CloudEvent's time, in UTC; None where it has no zone, or is none."""
    try:
        time = datetime.fromisoformat(text)
        return time.astimezone(UTC) if time.tzinfo else None
    except (ValueError, OverflowError):
        return None


def traceparent(event: Event) -> str | None:
    """Return the trace that the event belongs to (W3C Trace Context; CloudEvents extension).

    A header of that name, as v1 feeds have, counts where the event itself has none.
    """
    return _string(attributes(event).get("traceparent")) or event.headers.get("traceparent")


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) else None
