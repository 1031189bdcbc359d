"""What is read of a segment: its index, a row group of it, and where its positions are."""

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

from zeroeventhub.archive.manifest import INDEX, GroupEntry, decode_index
from zeroeventhub.protocol import Event, TypeFilter
from zeroeventhub.wire.lines import BETWEEN_EVENTS, Lines, size_of

__all__ = [
    "Footer",
    "Group",
    "Places",
]

_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


class Footer:
    """Know where the row groups of a segment are.

    Args:
        content: the end of its file.
        size: the bytes of the whole file.
    """

    def __init__(self, content: bytes, size: int) -> None:
        self._metadata = parquet.read_metadata(BytesIO(b"PAR1" + content))
        self._size = size
        self.entries = decode_index(self._metadata.metadata[INDEX])
        self._of: dict[int, list[int]] = {}
        for number, entry in enumerate(self.entries):
            self._of.setdefault(entry.partition, []).append(number)
        self.weight = 4 * len(content)
        """How many bytes it takes, about."""

    @property
    def partitions(self) -> list[int]:
        """List the partitions that have events here."""
        return [*self._of]

    def groups(self, partition: int) -> list[int]:
        """Return the numbers of the groups of a partition, in order."""
        return self._of.get(partition, [])

    def group(self, number: int, content: bytes) -> "Group":
        """Read a group, given its bytes in the file."""
        return Group(self.entries[number], content, number, self._metadata, self._size)


class Group:
    """Hold the events of a row group.

    Args:
        entry: describes it.
        content: its bytes.
        number: of the group in its file.
        metadata: of the file.
        size: of the file.
    """

    def __init__(
        self, entry: GroupEntry, content: bytes, number: int, metadata: Any, size: int
    ) -> None:
        self.entry = entry
        self._content, self._number, self._metadata, self._size = content, number, metadata, size
        positions, self._data = self.columns("position", "data")
        self.positions: memoryview[int] = _numbers(positions, "q")
        """In order, also those whose events are no longer there."""
        self._ends = _numbers(self._data, "i")
        self.weight = entry.size + 12 * entry.places + entry.length
        """How many bytes it takes, about."""

    def above(self, position: int) -> int:
        """Return the index of the first place above a position."""
        return bisect_right(self.positions, position)

    def at(self, position: int) -> int | None:
        """Return the index of a position; None if there is nothing at it."""
        index = bisect_left(self.positions, position)
        found = index < len(self.positions) and self.positions[index] == position
        return index if found else None

    def fitting(self, rows: Sequence[int], room: int) -> int:
        """Count those of some rows, from the first one on, whose events fit into some bytes."""
        if isinstance(rows, range):
            end = bisect_right(self._ends, self._ends[rows.start] + room, rows.start, rows.stop + 1)
            return max(end - 1 - rows.start, 0)
        sizes = accumulate(self._ends[row + 1] - self._ends[row] for row in rows)
        return sum(1 for _ in takewhile(lambda size: size <= room, sizes))

    def event(self, index: int) -> Event | None:
        """Return the event at an index; None if it is no longer there."""
        raw = self._data[index].as_py()
        return None if raw is None else Event(raw.encode(), self._headers_at(index))

    def is_there(self, index: int) -> bool:
        """Return whether the event at an index is still there."""
        return bool(self._data[index].is_valid)

    @property
    def is_whole(self) -> bool:
        """Return whether all events are still there."""
        return not self._data.null_count

    def events(self, rows: Sequence[int]) -> tuple[Sequence[Event], int]:
        """Return the events of some rows that are there, and how many bytes they have."""
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
        """Return the indexes of the events that are there and that a filter lets through."""
        kinds = self._kinds
        wanted = [name for name in pc.unique(kinds).to_pylist() if types.lets_through(name or "")]
        chosen = pc.is_in(kinds, pa.array([one for one in wanted if one is not None], pa.string()))
        if None in wanted:
            chosen = pc.or_(chosen, pc.is_null(kinds))
        found: list[int] = pc.indices_nonzero(pc.and_(chosen, pc.is_valid(self._data))).to_pylist()
        return found

    def time(self, index: int) -> datetime | None:
        """Return the time of an event."""
        found: datetime | None = self._times[index].as_py()
        return found

    def first_since(self, moment: datetime) -> int | None:
        """Return the index of the first event of a moment or later."""
        since = pc.greater_equal(self._times, pa.scalar(moment, self._times.type))
        index = pc.index(pc.and_(pc.fill_null(since, False), pc.is_valid(self._data)), True).as_py()  # noqa: FBT003 - values of a column
        return None if index < 0 else int(index)

    def last_of(self, identity: str, allowed: Collection[int] | None = None) -> int | None:
        """Return the index of the last event of an id.

        Args:
            identity: the id.
            allowed: the indexes that count; None for all.
        """
        (ids,) = self.columns("id")
        same = pc.and_(pc.fill_null(pc.equal(ids, identity), False), pc.is_valid(self._data))  # noqa: FBT003 - a value of a column
        found = pc.indices_nonzero(same).to_pylist()
        return max((one for one in found if allowed is None or one in allowed), default=None)

    def count(self, start: int, stop: int) -> int:
        """Count the events from one index to another that are there."""
        part = self._data.slice(start, stop - start)
        return len(part) - int(part.null_count)

    def index_of(self, start: int, events: int) -> int:
        """Return the index of the last of so many events from an index on; there are as many."""
        if self.is_whole:
            return start + events - 1
        there = pc.indices_nonzero(pc.is_valid(self._data.slice(start)))
        return start + int(there[events - 1].as_py())

    @cached_property
    def _times(self) -> Any:
        return self.columns("time")[0]

    @cached_property
    def _kinds(self) -> Any:
        return self.columns("type")[0]

    @cached_property
    def _headers(self) -> Any:
        return self.columns("headers")[0]

    @cached_property
    def _has_headers(self) -> bool:
        return bool(self._headers.null_count < len(self._headers))

    def _headers_at(self, index: int) -> dict[str, str]:
        text = self._headers[index].as_py() if self._has_headers else None
        return {} if text is None else _decode_headers(text)

    def columns(self, *columns: str) -> list[Any]:
        """Read columns of the file."""
        part = _Part(self._content, self.entry.start, self._size)
        file = parquet.ParquetFile(part, metadata=self._metadata)
        table = file.read_row_group(self._number, columns=[*columns], use_threads=False)
        return [_whole(table.column(name)) for name in columns]


class Places:
    """Know in which partition each position of a segment is.

    Args:
        content: of the file beside it.
    """

    def __init__(self, content: bytes) -> None:
        table = parquet.read_table(BytesIO(content), use_threads=False)
        self._positions = _numbers(_whole(table.column("position")), "q")
        self._partitions = _numbers(_whole(table.column("partition")), "i")
        self.weight = 12 * len(self._positions)
        """How many bytes it takes, about."""

    def below(self, position: int) -> tuple[int, int] | None:
        """Return the last position at or below one, and its partition; None if there is none."""
        index = bisect_right(self._positions, position) - 1
        return None if index < 0 else (self._positions[index], self._partitions[index])


class _Part(BytesIO):
    """Be a file of which only one row group is there.

    Args:
        content: of the group.
        start: where it begins.
        size: of the whole file.
    """

    def __init__(self, content: bytes, start: int, size: int) -> None:
        super().__init__(content)
        self._start, self._size = start, size

    def seek(self, place: int, whence: int = SEEK_SET) -> int:
        """Go to a place of the whole file."""
        place += {SEEK_SET: 0, SEEK_CUR: self.tell(), SEEK_END: self._size}[whence]
        return super().seek(place - self._start) + self._start

    def tell(self) -> int:
        """Return the place in the whole file."""
        return super().tell() + self._start


def _lines(data: Any) -> Lines:
    """Make lines of events that are all there."""
    lists = pa.ListArray.from_arrays(pa.array([0, len(data)], pa.int32()), data)
    text = pc.binary_join(lists, BETWEEN_EVENTS.decode())[0].as_buffer()
    return Lines(b'{"data":%b}\n' % text.to_pybytes() if len(data) else b"", len(data))


def _whole(column: Any) -> Any:
    """Return a column in one piece, from its beginning."""
    found = column.combine_chunks()
    return found.chunk(0) if isinstance(found, pa.ChunkedArray) else found


def _numbers(column: Any, kind: Literal["i", "q"]) -> "memoryview[int]":
    """Look at the numbers of a column, or at where its texts end, without a copy of them."""
    extra = 1 if kind == "i" and not pa.types.is_integer(column.type) else 0
    buffer = column.buffers()[1]
    start, stop = column.offset, column.offset + len(column) + extra
    return memoryview(buffer).cast("B").cast(kind)[start:stop]
