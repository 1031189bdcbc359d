"""The events of a partition in a file of Parquet, whose row groups have one partition each."""

from collections.abc import Iterable, Iterator, Sequence

import httpx
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from zeroeventhub.errors import ProtocolError
from zeroeventhub.protocol import SegmentPart
from zeroeventhub.spark.ranged_file import RangedFile, opened

__all__ = ["read_part"]

_COLUMNS = {"position": pa.int64(), "partition": pa.int32(), "data": pa.string()}
_READ = ["position", "data"]
_REFUSED = (pa.ArrowException, OSError)

_LARGEST_GROUP = 256 * 1024 * 1024
"""Bytes of a row group, unpacked, that are read: a publisher's own have some mebibytes."""

_PIECE = 4 * 1024 * 1024
"""Bytes of rows that are handed on at once."""

_ROWS = 10_000
"""How many rows are unpacked at a time."""


def read_part(
    part: SegmentPart, partition: int, after: int, http: httpx.Client
) -> Iterator[tuple[int, pa.StringArray]]:
    """Yield the events of a part, some rows at a time.

    Args:
        part: says where they are.
        partition: whose events are wanted.
        after: the position behind which they have not been read yet.
        http: sends requests to whoever has the file.

    Yields:
        The position of the last event, and the JSON of each.

    Raises:
        ProtocolError: the file is not of the form that a segment has.
        Unreachable: it cannot be read just now, or no longer by its URL.
    """
    after = max(after, part.after)
    source = RangedFile(opened(part.url, http), part.size)
    try:
        with parquet.ParquetFile(source, pre_buffer=True) as file:
            _expect_columns(file.schema_arrow)
            for number in _groups(file.metadata, partition, after, part.upto):
                for some in _pieces(file.iter_batches(_ROWS, row_groups=[number], columns=_READ)):
                    rows = _between(some, after, part.upto)
                    if len(rows):
                        data = rows.column("data").drop_null().combine_chunks()
                        yield rows.column("position")[-1].as_py(), data
    except _REFUSED as error:
        raise ProtocolError(f"A file that the feed names is no segment: {error}") from error


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Put batches together, up to some mebibytes."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(one.nbytes for one in held) >= _PIECE:
            yield pa.Table.from_batches(held)
            held.clear()
    if held:
        yield pa.Table.from_batches(held)


def _expect_columns(schema: pa.Schema) -> None:
    for name, kind in _COLUMNS.items():
        if name not in schema.names or schema.field(name).type != kind:
            raise ProtocolError(f"A file that the feed names has no column {name} of {kind}.")


def _groups(metadata: parquet.FileMetaData, partition: int, after: int, upto: int) -> Sequence[int]:
    """Return the numbers of the row groups that have such events.

    Raises:
        ProtocolError: one of them is too large to be read.
    """
    found = [
        number
        for number in range(metadata.num_row_groups)
        if _holds(_bounds(metadata, number, "partition"), partition, partition)
        and _holds(_bounds(metadata, number, "position"), after + 1, upto)
    ]
    data = metadata.schema.names.index("data")
    for number in found:
        group = metadata.row_group(number)
        # A value of a dictionary takes its bytes once in the file, and once for each row when read.
        is_packed = any("DICTIONARY" in one for one in group.column(data).encodings)
        if is_packed or group.total_byte_size > _LARGEST_GROUP:
            raise ProtocolError("A file that the feed names has a row group that is too large.")
    return found


def _holds(bounds: tuple[int, int], low: int, high: int) -> bool:
    return bounds[0] <= high and low <= bounds[1]


def _bounds(metadata: parquet.FileMetaData, number: int, name: str) -> tuple[int, int]:
    """Return the lowest and the highest value of a column in a row group."""
    group = metadata.row_group(number)
    column = group.column(metadata.schema.names.index(name))
    found = column.statistics if column.is_stats_set else None
    if found is None or not found.has_min_max:
        raise ProtocolError(f"A file that the feed names does not say where its {name} is.")
    return found.min, found.max


def _between(rows: pa.Table, after: int, upto: int) -> pa.Table:
    """Return the rows above one position and not above another."""
    at = rows.column("position")
    if len(at) and at[0].as_py() > after and at[-1].as_py() <= upto:
        return rows
    return rows.filter(pc.and_(pc.greater(at, after), pc.less_equal(at, upto)))
