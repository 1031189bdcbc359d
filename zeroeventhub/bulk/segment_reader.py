"""Read files of an archive, a range of bytes at a time, within bounds."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from io import RawIOBase
from os import SEEK_END, SEEK_SET
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import httpx
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from zeroeventhub.bulk.columns import RangePage
from zeroeventhub.bulk.connection import Connection
from zeroeventhub.bulk.offsets import Range
from zeroeventhub.bulk.options import TIMEOUT
from zeroeventhub.client.redaction import Redaction, requested
from zeroeventhub.client.requests import may_pass
from zeroeventhub.errors import (
    Gone,
    ProtocolError,
    TokenChanged,
    TransientError,
    Unavailable,
    Unreachable,
)
from zeroeventhub.protocol import SegmentPart, Segments

Read = Callable[[int, int], bytes]
"""Return bytes of a file: from where, and how many."""

_HEADERS = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "zeroeventhub"}
_EXTENSIONS = {"timeout": TIMEOUT.as_dict()}

_PATIENCE = 30.0
"""Seconds that a range of bytes may take to arrive, however short it is."""

_SLOWEST = 64 * 1024
"""The least rate in bytes per second at which a longer range has to arrive."""

_LARGEST = 256 * 1024 * 1024
"""The most bytes of a footer, of a range, and of an unpacked row group; publishers write some
mebibytes."""

_MOVED_ON = {
    httpx.codes.BAD_REQUEST,  # of S3, if the credentials have expired that signed the URL
    httpx.codes.UNAUTHORIZED,
    httpx.codes.FORBIDDEN,
    httpx.codes.NOT_FOUND,
    httpx.codes.GONE,
}
"""The answers of a store to a URL that has expired, or whose file was replaced."""


class _RangedFile(RawIOBase):
    """A file of a known size that pyarrow reads by ranges, as Parquet needs."""

    def __init__(self, read: Read, size: int) -> None:
        self._read = read
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        start = self._size if whence == SEEK_END else 0  # pyarrow seeks from no other place
        self._at = min(max(start + offset, 0), self._size)
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length > _LARGEST:
            raise ProtocolError("A file that the feed names has a part that is too large.")
        if length:
            content = self._read(self._at, length)
            if len(content) != length:
                raise Unreachable("A file that the feed names is shorter than it says.")
            buffer[:length] = content
            self._at += length
        return length


def _read_file(path: str) -> Read:
    def read(start: int, length: int) -> bytes:
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - the path is what it was given as
                file.seek(start)
                return file.read(length)
        except OSError as error:
            raise Unreachable(
                f"A file that the feed names cannot be read on this machine ({error.strerror}): "
                "share its folder with every machine and user that reads, or set the option "
                "readSegments (read_segments) to false."
            ) from None

    return read


def _read_http(url: str, http: httpx.Client) -> Read:
    address = httpx.URL(url)
    redaction = Redaction(address, http)

    def read(start: int, length: int) -> bytes:
        wanted = {"Range": f"bytes={start}-{start + length - 1}", **_HEADERS}
        # Not by the client's own method, which would add the headers that the feed gets.
        request = httpx.Request("GET", address, headers=wanted, extensions=_EXTENSIONS)
        former = requested.set((redaction, url))
        try:
            sent = http.send(request, stream=True, auth=None, follow_redirects=False)
            with closing(sent) as answer:
                _expect_range(answer)
                return _read_body(answer, length)
        except httpx.HTTPError as error:  # also of a hook of the caller's
            # The error's text may have the URL in it, which grants access to the file.
            raise Unreachable(
                f"A file that the feed names cannot be reached: {type(error).__name__}."
            ) from None
        finally:
            requested.reset(former)

    return read


def _expect_range(answer: httpx.Response) -> None:
    """Refuse an answer that is not a range of the file's bytes, unencoded."""
    status = answer.status_code
    if status in _MOVED_ON or may_pass(status):
        raise Unreachable(f"A file that the feed names was refused with status {status}.")
    if status != httpx.codes.PARTIAL_CONTENT:
        raise ProtocolError(
            f"The server of a file that the feed names answered a request for a range of bytes "
            f"with status {status}."
        )
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise ProtocolError("A file that the feed names came in a content coding.")


def _read_body(answer: httpx.Response, length: int) -> bytes:
    """Read the bytes of a range; give up an answer that is longer or too slow."""
    content = bytearray()
    deadline = time.monotonic() + max(_PATIENCE, length / _SLOWEST)
    for piece in answer.iter_raw():
        content += piece
        if len(content) > length:
            raise ProtocolError("The server of a file that the feed names sent too many bytes.")
        if time.monotonic() > deadline:
            raise Unreachable("A file that the feed names arrives too slowly.")
    return bytes(content)


_COLUMNS = {"position": pa.int64(), "partition": pa.int32(), "data": pa.string()}
_READ = ["position", "data"]
_REFUSED = (pa.ArrowException, OSError)

_ROWS = 10_000
"""How many rows are unpacked at a time; a publisher writes no more into a row group."""


def read_part(
    part: SegmentPart, partition: int, after: int, http: httpx.Client
) -> Iterator[tuple[int, pa.StringArray]]:
    """Yield a partition's events after a position: JSON of some, and the position of the last."""
    after = max(after, part.after)
    url = urlsplit(part.url)
    read = (
        _read_file(url2pathname(url.path)) if url.scheme == "file" else _read_http(part.url, http)
    )
    source = _RangedFile(read, part.size)
    try:
        with parquet.ParquetFile(source, pre_buffer=True, page_checksum_verification=True) as file:
            _expect_columns(file.schema_arrow)
            for number in _groups(file.metadata, partition, after, part.upto):
                missing = file.metadata.row_group(number).num_rows
                for some in file.iter_batches(_ROWS, row_groups=[number], columns=_READ):
                    missing -= len(some)
                    rows = _between(some, after, part.upto)
                    if len(rows):
                        yield rows.column("position")[-1].as_py(), rows.column("data").drop_null()
                # pyarrow skips a page whose header it does not know, such as a damaged one.
                if missing:
                    raise ProtocolError("A file that the feed names has fewer rows than it says.")
    except _REFUSED as error:
        raise ProtocolError(f"A file that the feed names is not a segment: {error}") from error


def _expect_columns(schema: pa.Schema) -> None:
    for name, kind in _COLUMNS.items():
        if name not in schema.names or schema.field(name).type != kind:
            raise ProtocolError(f"A file that the feed names has no column {name} of {kind}.")


def _groups(metadata: parquet.FileMetaData, partition: int, after: int, upto: int) -> Sequence[int]:
    """Return the numbers of the row groups to read; refuse one that is too large."""
    found = [
        number
        for number in range(metadata.num_row_groups)
        if _holds(metadata, number, "partition", partition, partition)
        and _holds(metadata, number, "position", after + 1, upto)
    ]
    data = metadata.schema.names.index("data")
    for number in found:
        group = metadata.row_group(number)
        # A value of a dictionary takes its bytes once in the file, and once for each row when read.
        is_packed = any("DICTIONARY" in one for one in group.column(data).encodings)
        if is_packed or group.total_byte_size > _LARGEST:
            raise ProtocolError("A file that the feed names has a row group that is too large.")
    return found


def _holds(metadata: parquet.FileMetaData, number: int, name: str, low: int, high: int) -> bool:
    """Return whether a column of a row group may have values from `low` to `high`."""
    column = metadata.row_group(number).column(metadata.schema.names.index(name))
    found = column.statistics if column.is_stats_set else None
    if found is None or not found.has_min_max:
        raise ProtocolError(f"A file that the feed names has no statistics of its {name}.")
    return bool(found.min <= high and low <= found.max)


def _between(rows: pa.RecordBatch, after: int, upto: int) -> pa.RecordBatch:
    """Return the rows after one position, up to another."""
    at = rows.column("position")
    if len(at) and at[0].as_py() > after and at[-1].as_py() <= upto:
        return rows
    return rows.filter(pc.and_(pc.greater(at, after), pc.less_equal(at, upto)))


def read_segments(
    connection: Connection, one: Range
) -> Generator[tuple[RangePage, Range], None, Range]:
    """Yield each page of a range that is in files, and the rest after it; return the last rest."""
    budget, done = connection.retry_budget(), 0
    while (found := _segments(connection, one, is_begun=done > 0)).parts or done:
        try:
            if not found.parts or found.parts[0].upto < done:
                # The events up to `done` would come again.
                raise Unavailable(
                    "The feed no longer names a file of which a part has been read: another of its "
                    "processes may know it."
                )
            for part in found.parts:
                http = connection.client_for(part.url)
                for last, data in read_part(part, one.partition, done, http):
                    budget.failed, done = 0, last
                    yield RangePage(one.partition, data, part.cursor, None), one
                one, done = replace(one, start=part.cursor), 0
                # Without events, this page says that those of the part have all been read.
                nothing = pa.array([], pa.string())
                yield RangePage(one.partition, nothing, part.cursor, part.cursor), one
        except TransientError as error:
            # The URL may have expired, or its file been replaced: ask the feed for it again.
            connection.back_off(budget, error)
    return one


def _segments(connection: Connection, one: Range, *, is_begun: bool) -> Segments:
    try:
        found = connection.request(
            lambda client: client.segments(one.partition, one.start, stop=one.stop)
        )
    except Gone:
        # The caller requests pages next, and handles the loss.
        return Segments((), one.start)
    except TokenChanged as error:
        if not is_begun:
            raise
        # The read can go on from a position, which has no cursor in another partition.
        raise Unavailable(
            "The feed's partitions changed while a file was read: start the read again."
        ) from error
    if one.start in {part.cursor for part in found.parts}:
        raise ProtocolError("A file that the feed names ends where it begins.")
    return found
