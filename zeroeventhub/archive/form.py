"""The form of a segment: Parquet, in row groups of one partition each, and an index of those."""

from datetime import datetime

import msgspec
import pyarrow as pa

__all__ = ["INDEX", "PLACES", "SCHEMA", "GroupEntry", "decode_index", "encode_index"]

SCHEMA = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("id", pa.string()),
        pa.field("type", pa.string()),
        pa.field("time", pa.timestamp("us", "UTC")),
        pa.field("key", pa.string()),
        pa.field("headers", pa.string()),
        pa.field("data", pa.string()),
    ]
)
"""The columns: `data` is the event's JSON, byte for byte; NULL where the event is no longer there.

`headers` is a JSON object, and NULL where there are none.
"""

PLACES = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
    ]
)
"""What lies beside a segment of several partitions: its positions in order, and where each is."""

INDEX = b"zeroeventhub"
"""The name under which a file's own metadata have its index."""


class GroupEntry(msgspec.Struct, frozen=True, array_like=True):
    """Describe a row group: events of one partition that follow each other.

    Attributes:
        partition: the partition.
        first: the first position.
        last: the last one.
        places: how many positions there are.
        events: how many of them have their event.
        size: how many bytes the events have.
        start: where the group begins in the file.
        length: how many bytes it has there.
        check: a checksum of them.
        earliest: the earliest time of an event; None where none has a time.
        latest: the latest one.
        lowest: the lowest id; None where no event has one.
        highest: the highest one.
    """

    partition: int
    first: int
    last: int
    places: int
    events: int
    size: int
    start: int
    length: int
    check: int
    earliest: datetime | None
    latest: datetime | None
    lowest: str | None
    highest: str | None


encode_index = msgspec.json.Encoder().encode
decode_index = msgspec.json.Decoder(tuple[GroupEntry, ...]).decode
