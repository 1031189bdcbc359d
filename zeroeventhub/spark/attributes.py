"""What events say of themselves, column by column: CloudEvents by the thousand."""

from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from zeroeventhub.cloud_event import event_id, event_key, event_time, event_type, moment
from zeroeventhub.protocol import Event, TypeFilter

__all__ = ["ATTRIBUTES", "Attributes", "joined"]

ATTRIBUTES = {"id": event_id, "type": event_type, "time": event_time, "key": event_key}
"""How each attribute is read of one event."""


class _Envelope(msgspec.Struct):
    """Hold the members of a CloudEvent that are columns."""

    specversion: Any = msgspec.UNSET
    id: Any = None
    type: Any = None
    time: Any = None
    subject: Any = None
    partitionkey: Any = msgspec.UNSET


_decode = msgspec.json.Decoder(list[_Envelope]).decode


def joined(data: pa.StringArray) -> bytes:
    """Return one JSON array of the texts."""
    together = pa.ListArray.from_arrays(pa.array([0, len(data)], pa.int32()), data)
    text: bytes = pc.binary_join(together, ",")[0].as_buffer().to_pybytes()
    return b"[" + text + b"]"


class Attributes:
    """Read the attributes of events.

    Args:
        data: the JSON of each event.
    """

    def __init__(self, data: pa.StringArray) -> None:
        self._data = data

    def column(self, name: str) -> pa.Array:
        """Return an attribute of every event, null where it has none.

        Args:
            name: one of ATTRIBUTES.
        """
        kind = pa.timestamp("us", "UTC") if name == "time" else pa.string()
        if self._envelopes is None:
            read = ATTRIBUTES[name]
            return pa.array([read(Event(raw.as_buffer().to_pybytes())) for raw in self._data], kind)
        texts = self._texts(name)
        return _moments(texts) if name == "time" else pa.array(texts, kind)

    def chosen(self, types: TypeFilter) -> list[bool]:
        """Tell of every event whether a filter lets it through."""
        names = self.column("type").to_pylist()
        return [types.skip if name is None else types.lets_through(name) for name in names]

    @cached_property
    def _envelopes(self) -> list[_Envelope] | None:
        """The events, if all of them can be decoded at once."""
        try:
            return _decode(joined(self._data))
        except (msgspec.DecodeError, RecursionError):
            return None

    def _texts(self, name: str) -> list[str | None]:
        envelopes = self._envelopes or []
        if name == "key":
            values = [
                one.subject if one.partitionkey is msgspec.UNSET else one.partitionkey
                for one in envelopes
            ]
        else:
            values = [getattr(one, name) for one in envelopes]
        return [
            value if isinstance(value, str) and one.specversion is not msgspec.UNSET else None
            for value, one in zip(values, envelopes, strict=True)
        ]


def _moments(texts: list[str | None]) -> pa.Array:
    kind = pa.timestamp("us", "UTC")
    try:
        return pc.cast(pa.array(texts, pa.string()), kind)
    except pa.ArrowInvalid:
        return pa.array([None if text is None else moment(text) for text in texts], kind)
