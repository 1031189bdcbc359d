"""What events say of themselves, column by column: CloudEvents by the thousand."""

from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from zeroeventhub.cloud_event import moment
from zeroeventhub.protocol import TypeFilter

__all__ = ["ATTRIBUTES", "Attributes", "joined"]

ATTRIBUTES = frozenset({"id", "type", "time", "key"})
"""What a CloudEvent may say of itself, as `zeroeventhub.cloud_event` reads it of one event."""

_TIME = pa.timestamp("us", "UTC")
_FIRST = pa.scalar(datetime.min.replace(tzinfo=UTC), _TIME)
_LAST = pa.scalar(datetime.max.replace(tzinfo=UTC), _TIME)


class _Envelope(msgspec.Struct):
    """Hold the members of a CloudEvent that are columns."""

    specversion: Any = msgspec.UNSET
    id: Any = None
    type: Any = None
    time: Any = None
    subject: Any = None
    partitionkey: Any = msgspec.UNSET


_decode_all = msgspec.json.Decoder(list[tuple[_Envelope]]).decode
_decode_one = msgspec.json.Decoder(_Envelope).decode


def joined(data: pa.StringArray) -> bytes:
    """Return one JSON array of the texts, each in an array of its own.

    So two halves of an object, which are none by themselves, do not become one; that a text becomes
    two shows in their number.
    """
    together = pa.ListArray.from_arrays(pa.array([0, len(data)], pa.int32()), data)
    text: bytes = pc.binary_join(together, "],\n[")[0].as_buffer().to_pybytes()
    return b"[[" + text + b"]]" if len(data) else b"[]"


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
        texts = pa.array(self._texts(name), pa.string())
        return _moments(texts) if name == "time" else texts

    def chosen(self, types: TypeFilter) -> list[bool]:
        """Tell of every event whether a filter lets it through."""
        names = self.column("type").to_pylist()
        return [types.skip if name is None else types.lets_through(name) for name in names]

    @cached_property
    def _envelopes(self) -> list[_Envelope]:
        """The events, decoded at once if all of them can be."""
        try:
            found = _decode_all(joined(self._data))
        except (msgspec.DecodeError, RecursionError):
            found = []
        if len(found) == len(self._data):
            return [one for (one,) in found]
        return [_envelope(raw.as_buffer()) for raw in self._data]

    def _texts(self, name: str) -> list[str | None]:
        if name == "key":
            values = [
                one.subject if one.partitionkey is msgspec.UNSET else one.partitionkey
                for one in self._envelopes
            ]
        else:
            values = [getattr(one, name) for one in self._envelopes]
        return [
            value if isinstance(value, str) and one.specversion is not msgspec.UNSET else None
            for value, one in zip(values, self._envelopes, strict=True)
        ]


def _envelope(raw: pa.Buffer) -> _Envelope:
    """Decode one event; one that is no object says nothing of itself."""
    try:
        return _decode_one(raw)
    except (msgspec.DecodeError, RecursionError):
        return _Envelope()


def _moments(texts: pa.StringArray) -> pa.Array:
    try:
        found = pc.cast(texts, _TIME)
        if not pc.any(pc.or_(pc.less(found, _FIRST), pc.greater(found, _LAST))).as_py():
            return found
    except pa.ArrowInvalid:
        pass  # Arrow knows fewer forms, and one of them is not of all events.
    return pa.array([None if text is None else moment(text) for text in texts.to_pylist()], _TIME)
