"""Read a range of a partition in a task of Spark."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from zeroeventhub.client import Client
from zeroeventhub.consumer.steps import moves_cursor
from zeroeventhub.errors import ProtocolError, TokenChanged, Trimmed, Unavailable
from zeroeventhub.protocol import EVENT_TYPES, SEGMENTS, FeedInfo
from zeroeventhub.spark.columns import AnyPage, Columns, RangePage, events_of
from zeroeventhub.spark.connection import Connection, log, log_to_stderr
from zeroeventhub.spark.offsets import Range
from zeroeventhub.spark.options import Options
from zeroeventhub.spark.plan import DataLossPolicy
from zeroeventhub.spark.segment_reader import SegmentReader


class RangeReader:
    """Read ranges of a feed, as pages of files or of the feed itself."""

    def __init__(self, connection: Connection, options: Options, *, with_headers: bool) -> None:
        self._connection = connection
        self._options = options
        self._with_headers = with_headers
        self._loss = DataLossPolicy(fails=options.fail_on_data_loss)
        self._segments = SegmentReader(connection)
        self._info: FeedInfo | None = None

    def pages(self, one: Range) -> Iterator[RangePage]:
        """Yield the pages of a range; the next page is fetched while one is used."""
        # A thread fetches ahead: httpx waits, and decoding releases the GIL. It holds two pages.
        with ThreadPoolExecutor(1) as ahead:
            pages = self._read(one)
            coming = ahead.submit(next, pages, None)
            while (page := coming.result()) is not None:
                coming = ahead.submit(next, pages, None)
                if page.count:
                    yield page

    def _read(self, one: Range) -> Iterator[RangePage]:
        """Yield the pages of a range, also if its partition was split after the plan."""
        budget = self._connection.retry_budget()
        rest = [one]
        while rest:
            # The partition may have been split, so that other partitions have the range now.
            found, rest = self._found(rest[0]), rest[1:]
            if not found:
                continue
            current, rest = found[0], [*found[1:], *rest]
            try:
                for page, left in self._read_partition(current):
                    budget.failed = 0
                    current = left
                    yield page
            except TokenChanged as error:
                self._connection.back_off(budget, error)
                self._info = None
                rest = [current, *rest]

    def _found(self, one: Range) -> list[Range]:
        """Return the ranges that have a range's events in the feed's current layout (SPEC 8.4)."""
        partitions = self._layout().partitions
        if any(partition.id == one.partition for partition in partitions):
            return [one]
        heirs = [heir.id for heir in partitions if one.partition in heir.cursor_from]
        if not heirs or one.count is not None:
            self._loss.skip(one.partition)
            return []
        return [replace(one, partition=heir) for heir in heirs]

    def _layout(self) -> FeedInfo:
        if self._info is None:
            self._info = self._connection.request(lambda client: client.discover())
        return self._info

    def _read_partition(self, one: Range) -> Iterator[tuple[RangePage, Range]]:
        """Yield each page with the rest of the range after it."""
        if self._has_segments(one):
            one = yield from self._segments.read(one)
        budget = self._connection.retry_budget()
        while one.count is None or one.count > 0:
            page = self._fetch(one)
            if page is None:
                return
            events = events_of(page)
            moved = moves_cursor(events, one.partition, one.start, page.cursor)
            if not moved and not page.stop_reached:
                # These events are settled, but a replica that answers may lack them yet.
                lacking = Unavailable(
                    f"The feed lacks events of partition {one.partition} that it had when this "
                    "read was planned."
                )
                self._connection.back_off(budget, lacking)
                continue
            budget.failed = 0
            is_filtered = self._filters and one.count is None
            taken = events if one.count is None else min(events, one.count)
            left = None if one.count is None else one.count - taken
            if left == 0 and taken == events and not self._ends_together(one, page.cursor):
                raise ProtocolError(
                    f"The feed ends pages of partition {one.partition} at other cursors than when "
                    "this read was planned. Without the extension stop it cannot be read again "
                    "exactly: start again from other offsets."
                )
            one = replace(one, start=page.cursor, count=left)
            yield RangePage(one.partition, page, taken, is_filtered), one
            if page.stop_reached:
                return

    def _ends_together(self, one: Range, cursor: str) -> bool:
        """Return whether a page ends where its range does."""
        # At its head, a feed that ignores page sizes may end the same page at another cursor.
        return cursor == one.stop or not any(
            self._connection.request(
                partial(Client.fetch, partition=one.partition, cursor=at, limit=1)
            ).events
            for at in (cursor, one.stop)
        )

    def _has_segments(self, one: Range) -> bool:
        """Return whether events of a range may be read from files."""
        return (
            self._options.read_segments
            and SEGMENTS in self._layout().extensions
            and one.count is None
            # Files have all types of events, and no headers.
            and self._options.types is None
            and not self._with_headers
        )

    @property
    def _filters(self) -> bool:
        return EVENT_TYPES in self._layout().extensions

    def _fetch(self, one: Range) -> AnyPage | None:
        # A range by count was planned with events of all types.
        types = self._options.types if self._filters and one.count is None else None
        size = self._options.page_size
        limit = size if one.count is None else min(size, one.count)
        stop = one.stop if one.count is None else None

        def fetch(client: Client, cursor: str) -> AnyPage:
            if self._with_headers:
                return client.fetch(
                    one.partition, cursor, limit=limit, headers=["_all"], types=types, stop=stop
                )
            return client.fetch_arrow(one.partition, cursor, limit=limit, types=types, stop=stop)

        try:
            return self._loss.request(
                one.partition,
                one.start,
                lambda cursor: self._connection.request(lambda client: fetch(client, cursor)),
            )
        except Trimmed:
            if self._options.fail_on_data_loss:
                raise
            # All events of the range are gone.
            return None


class Task(InputPartition):
    """The ranges of a task, in the order in which they are read."""

    def __init__(self, ranges: tuple[Range, ...]) -> None:
        super().__init__(ranges)
        self.ranges = ranges


def tasks_of(planned: list[list[Range]]) -> list[InputPartition]:
    """Return tasks for Spark; an empty plan is one task without ranges."""
    return [Task(tuple(ranges)) for ranges in planned] or [Task(())]


def read_task(
    partition: InputPartition, columns: Columns, options: Options
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task."""
    log_to_stderr()
    ranges = partition.ranges if isinstance(partition, Task) else ()
    rows, size = 0, 0
    with closing(Connection(options)) as connection:
        reader = RangeReader(connection, options, with_headers=columns.with_headers)
        for one in ranges:
            for page in reader.pages(one):
                for batch in columns.batches(page):
                    rows, size = rows + batch.num_rows, size + batch.nbytes
                    yield batch
    if ranges:
        numbers = ", ".join(str(one.partition) for one in ranges)
        log.info("Read partition %s: %s events, %s bytes.", numbers, f"{rows:,}", f"{size:,}")
