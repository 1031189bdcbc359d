"""The parts of a segment that are read: its footer, a row group, and its index of positions."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cached_property
from io import SEEK_CUR, SEEK_END, SEEK_SET, BytesIO
from itertools import accumulate, takewhile
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from zeroeventhub.archive.manifest import INDEX, decode_index
from zeroeventhub.archive.segment_writer import as_batch
from zeroeventhub.protocol import Event, TypeFilter
from zeroeventhub.wire.arrow import string_array
from zeroeventhub.wire.ndjson import BETWEEN_EVENTS, Lines, size_of

_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


class Footer:
    """The index of a segment's row groups, from the end of its file of `size` bytes.

    Attributes:
        entries: describe the row groups, in order.
        groups: the numbers of the row groups of each partition, in order.
        weight: bytes in memory, roughly.
    """

    def __init__(self, content: bytes, size: int) -> None:
        self.metadata: Any = parquet.read_metadata(BytesIO(b"PAR1" + content))
        self.size = size
        self.entries = decode_index(self.metadata.metadata[INDEX])
        self.groups: dict[int, list[int]] = {}
        for number, entry in enumerate(self.entries):
            self.groups.setdefault(entry.partition, []).append(number)
        self.weight = 4 * len(content)


class Group:
    """The events of a row group, from its bytes in the file.

    Attributes:
        positions: the positions in order, also those of deleted events.
        weight: bytes in memory, roughly.
    """

    def __init__(self, footer: Footer, number: int, content: bytes) -> None:
        self._footer, self._number, self._content = footer, number, content
        self._read: dict[str, Any] = {}
        positions, self._data = self.columns("position", "data")
        self.positions = _numbers(positions, "q", len(positions))
        self._ends = _numbers(self._data, "i", len(positions) + 1)
        entry = footer.entries[number]
        self.weight = entry.size + 12 * entry.places + entry.length

    def above(self, position: int) -> int:
        """Return the index of the first position after one."""
        return bisect_right(self.positions, position)

    def at(self, position: int) -> int | None:
        """Return the index of a position; None if the group does not have it."""
        index = bisect_left(self.positions, position)
        found = index < len(self.positions) and self.positions[index] == position
        return index if found else None

    def fitting(self, rows: Sequence[int], room: int) -> int:
        """Return how many rows, from the first on, have events that fit into `room` bytes."""
        if isinstance(rows, range):
            end = bisect_right(self._ends, self._ends[rows.start] + room, rows.start, rows.stop + 1)
            return max(end - 1 - rows.start, 0)
        sizes = accumulate(self._ends[row + 1] - self._ends[row] for row in rows)
        return sum(1 for _ in takewhile(lambda size: size <= room, sizes))

    def event(self, index: int) -> Event | None:
        """Return the event at an index; None if it has been deleted."""
        raw = self._data[index].as_py()
        if raw is None:
            return None
        headers = self._column("headers")[index].as_py() if self._has_headers else None
        return Event(raw.encode(), {} if headers is None else _decode_headers(headers))

    def has_event(self, index: int) -> bool:
        """Return whether the event at an index has not been deleted."""
        return bool(self._data[index].is_valid)

    @property
    def is_whole(self) -> bool:
        """Return whether no event has been deleted."""
        return not self._data.null_count

    def events(self, rows: Sequence[int]) -> tuple[Sequence[Event], int]:
        """Return the events of some rows, without the deleted ones, and their size in bytes."""
        if self._has_headers:
            found = [event for row in rows if (event := self.event(row)) is not None]
            return found, size_of(found)
        if isinstance(rows, range):
            data = self._data.slice(rows.start, len(rows))
        else:
            data = self._data.take(pa.array(rows, pa.int64()))
        lines = _lines(data.drop_null() if data.null_count else data)
        return lines, size_of(lines)

    def of_types(self, types: TypeFilter) -> list[int]:
        """Return the indexes of the events that have the types of a filter."""
        kinds = self._column("type")
        wanted = [name for name in pc.unique(kinds).to_pylist() if types.lets_through(name or "")]
        chosen = pc.is_in(kinds, pa.array([one for one in wanted if one is not None], pa.string()))
        if None in wanted:
            chosen = pc.or_(chosen, pc.is_null(kinds))
        found: list[int] = pc.indices_nonzero(pc.and_(chosen, pc.is_valid(self._data))).to_pylist()
        return found

    def time(self, index: int) -> datetime | None:
        """Return the time of an event."""
        found: datetime | None = self._column("time")[index].as_py()
        return found

    def first_since(self, moment: datetime) -> int | None:
        """Return the index of the first event of a moment or later."""
        times = self._column("time")
        since = pc.greater_equal(times, pa.scalar(moment, times.type))
        found = pc.indices_nonzero(pc.and_(since, pc.is_valid(self._data)))
        return int(found[0].as_py()) if len(found) else None

    def last_of(self, event_id: str, allowed: Collection[int] | None = None) -> int | None:
        """Return the index of the last event of an id, among the `allowed` indexes if given."""
        (ids,) = self.columns("id")
        same = pc.and_(pc.equal(ids, event_id), pc.is_valid(self._data))
        found = pc.indices_nonzero(same).to_pylist()
        return max((one for one in found if allowed is None or one in allowed), default=None)

    def count(self, start: int, stop: int) -> int:
        """Count the events in a range of indexes, without the deleted ones."""
        part = self._data.slice(start, stop - start)
        return len(part) - int(part.null_count)

    def index_of(self, start: int, events: int) -> int:
        """Return the index of the last of `events` events from an index on."""
        if self.is_whole:
            return start + events - 1
        valid = pc.indices_nonzero(pc.is_valid(self._data.slice(start)))
        return start + int(valid[events - 1].as_py())

    @cached_property
    def _has_headers(self) -> bool:
        headers = self._column("headers")
        return bool(headers.null_count < len(headers))

    def _column(self, name: str) -> Any:
        """Return a column, which is read once."""
        if name not in self._read:
            (self._read[name],) = self.columns(name)
        return self._read[name]

    def rows(self, after: int, until: int) -> tuple[Any, int]:
        """Return the rows in (after, until] that are not erased, and the last position that is."""
        start, stop = self.above(after), self.above(until)
        names = self._footer.metadata.schema.names
        columns = dict(zip(names, self.columns(*names), strict=True))
        rows = as_batch(columns).slice(start, stop - start)
        there = pc.is_valid(rows.column("data"))
        erased = pc.max(rows.column("position").filter(pc.invert(there))).as_py()
        return rows.filter(there), erased or 0

    def columns(self, *columns: str) -> list[Any]:
        """Read columns of the group."""
        footer = self._footer
        part = _Part(self._content, footer.entries[self._number].start, footer.size)
        file = parquet.ParquetFile(part, metadata=footer.metadata)
        table = file.read_row_group(self._number, columns=[*columns], use_threads=False)
        return [table.column(name).combine_chunks() for name in columns]


class Places:
    """The partition of each position of a segment, from the file of its index."""

    def __init__(self, content: bytes) -> None:
        table = parquet.read_table(BytesIO(content), use_threads=False)
        self._positions = _numbers(table.column("position").combine_chunks(), "q", len(table))
        self._partitions = _numbers(table.column("partition").combine_chunks(), "i", len(table))
        self.weight = 12 * len(table)

    def below(self, position: int) -> tuple[int, int] | None:
        """Return the last position at or below one, and its partition; None if there is none."""
        index = bisect_right(self._positions, position) - 1
        return None if index < 0 else (self._positions[index], self._partitions[index])


class _Part(BytesIO):
    """A file of `size` bytes, of which only the part from `start` on is in memory."""

    def __init__(self, content: bytes, start: int, size: int) -> None:
        super().__init__(content)
        self._start, self._size = start, size

    def seek(self, place: int, whence: int = SEEK_SET) -> int:
        """Move to an offset of the whole file."""
        place += {SEEK_SET: 0, SEEK_CUR: self.tell(), SEEK_END: self._size}[whence]
        return super().seek(place - self._start) + self._start

    def tell(self) -> int:
        """Return the offset in the whole file."""
        return super().tell() + self._start


_BETWEEN: Any = string_array([BETWEEN_EVENTS])[0]


def _lines(data: Any) -> Lines:
    """Return the lines of events, none of which is NULL."""
    ends = pa.py_buffer(array("i", [0, len(data)]))  # see `string_array`
    lists = pa.Array.from_buffers(pa.list_(data.type), 1, [None, ends], children=[data])
    text = pc.binary_join(lists, _BETWEEN)[0].as_buffer()
    return Lines(b'{"data":%b}\n' % text.to_pybytes() if len(data) else b"", len(data))


def _numbers(column: Any, kind: Literal["i", "q"], count: int) -> "memoryview[int]":
    """View a column's numbers, or the ends of its texts, without a copy."""
    return memoryview(column.buffers()[1]).cast("B").cast(kind)[:count]
