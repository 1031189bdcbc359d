"""Write segments, and rewrite them without erased events."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from io import BytesIO
from secrets import token_hex
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from zeroeventhub.archive.manifest import (
    INDEX,
    PLACES,
    SCHEMA,
    GroupEntry,
    Segment,
    digest_of,
    encode_index,
)

GROUP_EVENTS = 10_000
"""Positions of a row group at most: a reader fetches whole groups."""

GROUP_BYTES = 4 * 1024 * 1024
"""Bytes of JSON in a row group at most, unless a single event is larger."""

_BY_PARTITION = [("partition", "ascending"), ("position", "ascending")]


def as_batch(columns: Mapping[str, Sequence[Any]]) -> pa.RecordBatch:
    """Return rows, given by columns of `SCHEMA`; missing columns are NULL or 0."""
    rows = len(columns["position"])
    arrays = [
        pa.array(columns[field.name], field.type)
        if field.name in columns
        else _default(field, rows)
        for field in SCHEMA
    ]
    return pa.record_batch(arrays, schema=SCHEMA)


@dataclass(frozen=True)
class WrittenSegment:
    """A segment that is not in an archive yet: its description, and its one or two files."""

    segment: Segment
    content: bytes
    places: bytes | None


class SegmentWriter:
    """Write a segment of events, which are added in the order of positions.

    The events of each partition are held until they fill a row group, which is then compressed.

    Attributes:
        size: bytes of JSON so far.
        places: the number of positions so far.
    """

    def __init__(self) -> None:
        self._sink = BytesIO()
        self._writer = parquet.ParquetWriter(
            self._sink,
            SCHEMA,
            compression="zstd",
            compression_level=3,
            use_dictionary=["type", "key", "headers"],
            column_encoding=dict.fromkeys(["position", "time"], "DELTA_BINARY_PACKED"),
            write_page_checksum=True,  # for programs that read the file without this library
            write_statistics=["position", "partition", "type", "time"],
        )
        self._groups: list[GroupEntry] = []
        self._waiting: dict[int, _Waiting] = {}
        self._seen: list[pa.RecordBatch] = []
        self.size = 0
        self.places = 0

    def add(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Add rows by columns of `SCHEMA`, in order of positions; missing ones are NULL or 0."""
        self.add_batch(as_batch(columns))

    def add_batch(self, batch: pa.RecordBatch) -> None:
        """Add rows of `SCHEMA`; the positions of each partition rise."""
        self._seen.append(batch.select(PLACES.names))
        self.places += len(batch)
        self.size += _size(batch.column("data"))
        for part in _by_partition(batch):
            waiting = self._waiting.setdefault(part.column("partition")[0].as_py(), _Waiting())
            waiting.add(part)
            if waiting.is_full:
                self._write(waiting.groups(last=False))

    def finish(self, after: int, upto: int, last: str) -> WrittenSegment:
        """Return the segment of the positions in (after, upto]; `last` is the cursor at its end."""
        for partition in sorted(self._waiting):
            self._write(self._waiting[partition].groups(last=True))
        end, groups = self._sink.tell(), self._groups
        self._writer.add_key_value_metadata({INDEX: encode_index(groups)})
        self._writer.close()
        content = self._sink.getvalue()
        places = None if len(self._waiting) == 1 else _places(self._seen)
        times = [time for one in groups for time in (one.earliest, one.latest) if time]
        segment = Segment(
            name=f"{after:019}-{upto:019}-{token_hex(8)}",
            after=after,
            upto=upto,
            places=self.places,
            events=sum(group.events for group in groups),
            size=len(content),
            sha256=sha256(content).hexdigest(),
            footer=len(content) - end,
            footer_check=crc32(content[end:]),
            last=last,
            earliest=min(times, default=None),
            latest=max(times, default=None),
            footer_digest=digest_of(content[end:]),
            places_digest="" if places is None else digest_of(places),
            written=datetime.now(UTC),
        )
        return WrittenSegment(segment, content, places)

    def _write(self, groups: Iterable[pa.Table]) -> None:
        for group in groups:
            start = self._sink.tell()
            self._writer.write_table(group)
            with self._sink.getbuffer() as written:
                self._groups.append(_entry(group, start, written[start:]))


class _Waiting:
    """Events of a partition that do not fill a row group yet."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._size = 0

    @property
    def is_full(self) -> bool:
        """Return whether the events fill a row group."""
        return self._rows >= GROUP_EVENTS or self._size >= GROUP_BYTES

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows in order."""
        self._batches.append(batch)
        self._rows += len(batch)
        self._size += _size(batch.column("data"))

    def groups(self, *, last: bool) -> Iterator[pa.Table]:
        """Yield row groups; keep the rest unless `last`, which yields it as a smaller group."""
        table = pa.Table.from_batches(self._batches, SCHEMA)
        self._batches.clear()
        self._rows = self._size = start = 0
        while start < len(table):
            part = table.slice(start, GROUP_EVENTS).combine_chunks()
            fitting = _fitting(part)
            if not last and fitting == len(part) < GROUP_EVENTS:
                self.add(part.to_batches()[0])
                return
            yield part.slice(0, fitting)
            start += fitting


def _by_partition(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide a batch into the events of each partition, in order."""
    bounds = pc.min_max(batch.column("partition")).as_py()
    if bounds["min"] == bounds["max"]:
        yield batch
        return
    batch = batch.sort_by(_BY_PARTITION)
    start = 0
    for end in pc.run_end_encode(batch.column("partition")).run_ends.to_pylist():
        yield batch.slice(start, end - start)
        start = end


def _places(seen: Sequence[pa.RecordBatch]) -> bytes:
    sink = BytesIO()
    places = pa.Table.from_batches(seen).sort_by("position")
    parquet.write_table(
        places.cast(PLACES),
        sink,
        compression="zstd",
        use_dictionary=["partition"],
        column_encoding={"position": "DELTA_BINARY_PACKED"},
    )
    return sink.getvalue()


def _fitting(part: pa.Table) -> int:
    """Return how many events fit into a row group."""
    sizes = pc.cast(pc.fill_null(pc.binary_length(part.column("data")), 0), pa.int64())
    within = pc.sum(pc.less_equal(pc.cumulative_sum(sizes), GROUP_BYTES)).as_py()
    return max(int(within), 1)


def _entry(part: pa.Table, start: int, content: memoryview) -> GroupEntry:
    data = part.column("data")
    times, ids = pc.min_max(part.column("time")).as_py(), pc.min_max(part.column("id")).as_py()
    return GroupEntry(
        partition=part.column("partition")[0].as_py(),
        first=part.column("position")[0].as_py(),
        last=part.column("position")[-1].as_py(),
        places=len(part),
        events=len(data) - data.null_count,
        size=_size(data),
        start=start,
        length=len(content),
        check=crc32(content),
        earliest=times["min"],
        latest=times["max"],
        lowest=ids["min"],
        highest=ids["max"],
        digest=digest_of(content),
    )


def _default(field: Any, rows: int) -> Any:
    """Return the values of a column that was not given."""
    return (
        pa.nulls(rows, field.type) if field.nullable else pa.repeat(pa.scalar(0, field.type), rows)
    )


def _size(data: Any) -> int:
    return int(pc.sum(pc.binary_length(data)).as_py() or 0)


def merged(contents: Iterable[bytes], segments: Sequence[Segment]) -> WrittenSegment:
    """Write consecutive segments, given by their files as well, as one."""
    writer = SegmentWriter()
    for content in contents:
        for batch in parquet.read_table(BytesIO(content), schema=SCHEMA).to_batches():
            writer.add_batch(batch)
    return writer.finish(segments[0].after, segments[-1].upto, segments[-1].last)


_ERASED = ("id", "key", "headers", "data")
"""The columns that may identify a person; positions, types and times stay."""


def without(
    content: bytes,
    segment: Segment,
    ids: Collection[str],
    keys: Collection[str],
    cursor_at: Callable[[int], str],
) -> tuple[WrittenSegment | None, int]:
    """Rewrite a segment without the events of some ids and keys.

    Returns:
        The new segment, None if it has no such events, and the number of erased events.
    """
    table = parquet.read_table(BytesIO(content), schema=SCHEMA)
    gone = pc.or_(_among(table.column("id"), ids), _among(table.column("key"), keys))
    events = pc.sum(pc.and_(gone, pc.is_valid(table.column("data")))).as_py() or 0
    if not events:
        return None, 0
    for name in _ERASED:
        field = SCHEMA.field(name)
        kept = pc.if_else(gone, pa.scalar(None, field.type), table.column(name))
        table = table.set_column(SCHEMA.get_field_index(name), field, kept)
    last = segment.last
    at_end = pc.equal(table.column("position"), segment.upto)
    if pc.any(pc.and_(gone, at_end)).as_py():
        last = cursor_at(segment.upto)
    writer = SegmentWriter()
    for batch in table.to_batches():
        writer.add_batch(batch)
    return writer.finish(segment.after, segment.upto, last), events


def _among(column: Any, values: Collection[str]) -> Any:
    return pc.is_in(column, pa.array([*values], pa.string()))
