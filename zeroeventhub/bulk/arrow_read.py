"""Read a feed into data frames: all partitions side by side, as one stream of record batches."""

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, zip_longest
from threading import Condition, Event, Thread
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from zeroeventhub.bulk.columns import Columns, default_schema
from zeroeventhub.bulk.connection import LIMITS, Connection
from zeroeventhub.bulk.offsets import Offsets, Range
from zeroeventhub.bulk.options import LATEST, Boundary, Moments, ReadOptions, origins_of
from zeroeventhub.bulk.plan import Plan, Share
from zeroeventhub.bulk.range_reader import RangeReader
from zeroeventhub.client import Client
from zeroeventhub.errors import ConfigurationError, require
from zeroeventhub.protocol import LARGEST_PAGE, TypeFilter

PIECE = 4
"""Pages of a piece that one thread reads, and the most that wait in it to be handed over."""

Cursors: TypeAlias = dict[int, str]

OnProgress: TypeAlias = Callable[[int, int | None], object]
"""Called with how many events were handed over, and about how many there are, None if unknown."""


class _Batch(NamedTuple):
    """The rows of a page or of a file's part, and the cursor of its partition after them."""

    rows: pa.RecordBatch
    partition: int
    cursor: str


@dataclass(eq=False)
class _Piece:
    """A range that a thread reads, with the batches that wait to be handed over."""

    one: Range
    batches: deque[_Batch] = field(default_factory=deque)
    is_begun: bool = False
    is_read: bool = False


class _ParallelReader:
    """Read the pieces of partitions in threads, and hand their batches over in order.

    The threads refer to this object, which does not refer to the stream: a stream that the caller
    drops is garbage-collected, and ends the threads.
    """

    def __init__(
        self,
        client: Client,
        columns: Columns,
        options: ReadOptions,
        shares: list[Share],
        readers: int,
    ) -> None:
        self._client = client
        self._columns = columns
        self._options = options
        self._readers = readers
        self._cursors = {one.partition: {one.partition: one.start} for one in shares}
        # The pieces of a partition are handed over in order, and read side by side.
        self._lanes = [deque(map(_Piece, one.pieces)) for one in shares]
        rounds = zip_longest(*self._lanes)
        self._waiting = deque(one for one in chain.from_iterable(rounds) if one is not None)
        self._under_way = 0
        self._changed = Condition()
        self._error: BaseException | None = None
        self._over = Event()

    @property
    def cursors(self) -> Cursors:
        """Return the cursors after the batches that have been handed over."""
        with self._changed:
            return dict(chain.from_iterable(one.items() for one in self._cursors.values()))

    def batches(self) -> Generator[tuple[_Piece, _Batch], None, None]:
        """Start the threads, and yield what they read."""
        threads = [
            Thread(target=self._read, name=f"read_arrow-{number}", daemon=True)
            for number in range(self._readers)
        ]
        try:
            for thread in threads:
                thread.start()
            while (found := self._next()) is not None:
                yield found
            for thread in threads:
                thread.join()
        finally:
            # Threads of a reader that was given up end after the request under way.
            with self._changed:
                self._over.set()
                self._changed.notify_all()

    def move(self, piece: _Piece, batch: _Batch) -> None:
        """Move the cursor of a partition past a batch."""
        with self._changed:
            planned = piece.one.partition
            if not piece.is_begun:
                # If the partition was replaced, its heirs have been read up to here as well.
                piece.is_begun = True
                self._cursors[planned] = {planned: piece.one.start}
            self._cursors[planned][batch.partition] = batch.cursor

    def _next(self) -> tuple[_Piece, _Batch] | None:
        """Wait for a batch, and take it; return None after the last one."""
        with self._changed:
            while self._error is None:
                for place, lane in enumerate(self._lanes):
                    while lane and lane[0].is_read and not lane[0].batches:
                        lane.popleft()
                        self._under_way -= 1
                        self._changed.notify_all()
                    if lane and lane[0].batches:
                        # The next batch comes from another partition, if one is there.
                        self._lanes.append(self._lanes.pop(place))
                        self._changed.notify_all()
                        return lane[0], lane[0].batches.popleft()
                if not any(self._lanes):
                    return None
                self._changed.wait()
            raise self._error

    def _read(self) -> None:
        """Read pieces, in a thread."""
        with_headers = self._columns.with_headers
        try:
            # A client of its own, on the same connections: another thread that learns of new
            # partitions would send their token with requests for those that this one knows.
            client = copy(self._client)
            connection = Connection(client, self._options, over=self._over)
            with closing(connection):
                reader = RangeReader(connection, self._options, with_headers=with_headers)
                while (piece := self._take_piece()) is not None:
                    for batch in _batches(reader, self._columns, piece.one):
                        if not self._put(piece, batch):
                            return
                    with self._changed:
                        piece.is_read = True
                        self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - raised where the batches are read
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _take_piece(self) -> _Piece | None:
        """Take the next piece, once few others wait to be handed over; None after the last."""
        with self._changed:
            while self._under_way >= 2 * self._readers and not self._over.is_set():
                self._changed.wait()
            if self._over.is_set() or not self._waiting:
                return None
            self._under_way += 1
            return self._waiting.popleft()

    def _put(self, piece: _Piece, batch: _Batch) -> bool:
        """Add a batch to a piece, once there is room; return False if the read has ended."""
        with self._changed:
            while len(piece.batches) >= PIECE and not self._over.is_set():
                self._changed.wait()
            piece.batches.append(batch)
            self._changed.notify_all()
            return not self._over.is_set()


def _batches(reader: RangeReader, columns: Columns, one: Range) -> Iterator[_Batch]:
    """Yield the rows of a range, each time up to a cursor."""
    rows: list[pa.RecordBatch] = []
    for page in reader.pages(one):
        rows.append(columns.batch(page))
        if page.cursor_after is not None:
            yield _Batch(_concatenate(rows), page.partition, page.cursor_after)
            rows = []


def _concatenate(rows: list[pa.RecordBatch]) -> pa.RecordBatch:
    found = [one for one in rows if one.num_rows] or rows[:1]
    if len(found) == 1:
        return found[0]
    columns = [pa.concat_arrays(each) for each in zip(*(one.columns for one in found), strict=True)]
    return pa.record_batch(columns, schema=found[0].schema)


@contextmanager
def _show_progress(progress: bool | OnProgress) -> Iterator[OnProgress]:
    """Yield the caller's function of the progress, or one that draws a bar."""
    if progress is not True:
        yield progress or (lambda _rows, _total: None)
        return
    require("rich", extra="cli", user="progress=True")
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn  # noqa: PLC0415

    columns = (*Progress.get_default_columns()[:-1], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns) as bar:
        task = bar.add_task("events", total=None)
        yield lambda rows, total: bar.update(task, completed=rows, total=total)


class ArrowRead:
    """Hold what `read_arrow` reads: a stream of Arrow, and the cursors where it has ended.

    Polars, DuckDB, pandas and pyarrow take it as it is, by the protocol of Arrow's C streams.

    Example:
        read = read_arrow("https://shop.example/orders")
        table = pyarrow.table(read)
        following = read_arrow("https://shop.example/orders", start=read.cursors)

    Attributes:
        schema: the columns.
        reader: the stream, which can be read once. Requests begin with its first batch.
    """

    def __init__(
        self,
        columns: Columns,
        source: _ParallelReader,
        *,
        given: Mapping[int, str],
        total: int | None,
        progress: bool | OnProgress,
    ) -> None:
        self.schema = columns.schema
        self.reader = pa.RecordBatchReader.from_batches(
            self.schema, _with_progress(source, columns, total, progress)
        )
        self._source = source
        self._given = given

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Hand the stream to another library."""
        return self.reader.__arrow_c_stream__(requested_schema)

    @property
    def cursors(self) -> Cursors:
        """By partition, the cursor after the rows that have been handed over until now.

        Another read, a consumer or Spark goes on from there, without a gap and without repeating a
        row. Take them when the rows are where they belong.
        """
        return {**self._given, **self._source.cursors}


def _with_progress(
    source: _ParallelReader, columns: Columns, total: int | None, progress: bool | OnProgress
) -> Iterator[pa.RecordBatch]:
    """Yield batches with rows, and tell how many rows there have been."""
    rows = 0
    with closing(source.batches()) as batches, _show_progress(progress) as show:
        for piece, batch in batches:
            rows += batch.rows.num_rows
            show(rows, total)
            # Last: if something is raised before, the rows have not been handed over.
            source.move(piece, batch)
            if batch.rows.num_rows:
                yield batch.rows
    if rows:
        columns.warn_of_unseen()


def read_arrow(
    feed: Client | str,
    *,
    schema: pa.Schema | None = None,
    start: Mapping[int, str] | datetime | None = None,
    stop: Mapping[int, str] | datetime | None = None,
    partitions: Collection[int] | None = None,
    types: TypeFilter | None = None,
    readers: int = 4,
    page_size: int = LARGEST_PAGE,
    read_segments: bool = True,
    segment_origins: Collection[str] = (),
    progress: bool | OnProgress = False,
) -> ArrowRead:
    """Read a feed into data frames, all partitions side by side.

    A partition's rows come in its order, those of different partitions as they arrive. The end is
    fixed in this call. Memory is bounded: 8 pages, or what files have of them, for each reader.

    Args:
        feed: the feed's address, or a client with your authentication, certificates and limits.
        schema: the columns: some of partition, cursor, id, type, time, key and data, which are the
            default, or members of the events' JSON.
        start: the cursors of an earlier read, or a moment; by default the first event. Partitions
            that the cursors do not name are new, and are read from their first event.
        stop: cursors or a moment to stop at; by default the head when the read begins. Partitions
            that the cursors do not name are not read.
        partitions: those to read; by default all.
        types: the types of events to read; by default all.
        readers: how many threads send requests, 1 or more.
        page_size: how many events to request at once, 1 to 10,000: lower it for large events.
        read_segments: whether to read old events from files, if the feed shares them.
        segment_origins: where such files may be, besides the feed's own origin and signed URLs of
            object stores: origins such as `https://cdn.example`, or `file://`.
        progress: True to draw a bar; or a function that takes how many rows have been handed over
            and about how many there are, None if that is unknown.

    Raises:
        ConfigurationError: an argument or a column cannot work.
        FeedError: the feed refused a request.
        TransientError: the feed could not be reached, and ten attempts failed.
        ProtocolError: the server is not a feed. To read the stream by its `reader` may raise these
            as well, and this one if an event does not fit the schema; a library that takes the
            stream raises an error of its own with their text.
    """
    if readers < 1 or not 1 <= page_size <= LARGEST_PAGE:
        raise ConfigurationError("readers is 1 or more, and page_size is 1 to 10,000.")
    try:
        origins = origins_of(segment_origins)
    except ValueError:
        raise ConfigurationError(
            "segment_origins is a list of origins, such as https://cdn.example or file://."
        ) from None
    starting = _boundary(start)
    options = ReadOptions(
        starting=starting,
        ending=_boundary(stop) or LATEST,
        partitions=None if partitions is None else tuple(partitions),
        page_size=page_size,
        read_segments=read_segments,
        segment_origins=origins,
        types=types,
        begins_new_partitions=True,
    )
    columns = Columns(default_schema(with_headers=False) if schema is None else schema, options)
    client = feed if isinstance(feed, Client) else Client(feed, limits=LIMITS)
    with closing(Connection(client, options)) as connection:
        shares = Plan(connection, options).shares(PIECE * page_size, readers)
    counts = [one.events for one in shares]
    return ArrowRead(
        columns,
        _ParallelReader(client, columns, options, shares, readers),
        given=starting.cursors if isinstance(starting, Offsets) else {},
        total=None if None in counts else sum(one or 0 for one in counts),
        progress=progress,
    )


def _boundary(place: Mapping[int, str] | datetime | None) -> Boundary | None:
    if isinstance(place, datetime):
        return Moments(place, {})
    return None if place is None else Offsets.of(place)
