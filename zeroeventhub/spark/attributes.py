"""What events say of themselves, column by column: CloudEvents by the thousand."""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from zeroeventhub.cloud_event import moment
from zeroeventhub.protocol import TypeFilter

__all__ = ["ATTRIBUTES", "Attributes", "texts_of"]

ATTRIBUTES = frozenset({"id", "type", "time", "key"})
"""What a CloudEvent may say of itself, as `zeroeventhub.cloud_event` reads it of one event."""

_TIME = pa.timestamp("us", "UTC")


# No JSON refers to itself: looking for circles in thousands of events would take longer than to
# decode them.
class _Envelope(msgspec.Struct, gc=False):
    """Hold the members of a CloudEvent that are columns."""

    specversion: Any = msgspec.UNSET
    id: Any = None
    type: Any = None
    time: Any = None
    subject: Any = None
    partitionkey: Any = msgspec.UNSET


_decode = msgspec.json.Decoder(_Envelope).decode


def texts_of(data: pa.StringArray) -> Iterator[memoryview]:
    """Yield the bytes of each text, where they lie."""
    if not len(data):
        return
    _, offsets, values = data.buffers()
    places = memoryview(offsets).cast("i")[data.offset : data.offset + len(data) + 1]
    view = memoryview(values or b"")
    for start, end in pairwise(places):
        yield view[start:end]


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
        found = pa.array(self._texts(name), pa.string())
        return _moments(found) if name == "time" else found

    def chosen(self, types: TypeFilter) -> list[bool]:
        """Tell of every event whether a filter lets it through."""
        names = self.column("type").to_pylist()
        return [types.skip if name is None else types.lets_through(name) for name in names]

    @cached_property
    def _envelopes(self) -> list[_Envelope]:
        """The events, as far as they are objects."""
        return [*map(_envelope, texts_of(self._data))]

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


def _envelope(text: memoryview) -> _Envelope:
    """Decode one event; one that is no object says nothing of itself."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, RecursionError):
        return _Envelope()


@cache
def _python_moments() -> tuple[pa.Scalar, pa.Scalar]:
    """Return the first and the last moment of Python.

    Not before they are asked for: pyarrow imports pandas for the first value that it is given, and
    who plans a read has none.
    """
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    return pa.scalar(first, _TIME), pa.scalar(last, _TIME)


def _moments(texts: pa.StringArray) -> pa.Array:
    try:
        found = pc.cast(texts, _TIME)
        first, last = _python_moments()
        if not pc.any(pc.or_(pc.less(found, first), pc.greater(found, last))).as_py():
            return found
    except pa.ArrowInvalid:
        pass  # Arrow knows fewer forms, and one of them is not of all events.
    return pa.array([None if text is None else moment(text) for text in texts.to_pylist()], _TIME)
