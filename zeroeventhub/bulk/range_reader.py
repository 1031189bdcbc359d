"""Read ranges of partitions, page by page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from zeroeventhub.bulk.columns import RangePage
from zeroeventhub.bulk.connection import Connection
from zeroeventhub.bulk.offsets import Range
from zeroeventhub.bulk.options import ReadOptions
from zeroeventhub.bulk.plan import DataLossPolicy
from zeroeventhub.bulk.segment_reader import read_segments
from zeroeventhub.client import Client
from zeroeventhub.consumer.steps import EmptyPages, moves_cursor
from zeroeventhub.errors import ProtocolError, TokenChanged, Unavailable
from zeroeventhub.extensions import EVENT_TYPES, SEGMENTS
from zeroeventhub.protocol import FeedInfo, Page
from zeroeventhub.wire.arrow import ArrowPage, string_array


class RangeReader:
    """Read ranges of a feed, as pages of files or of the feed itself."""

    def __init__(self, connection: Connection, options: ReadOptions, *, with_headers: bool) -> None:
        self._connection = connection
        self._options = options
        self._with_headers = with_headers
        self._loss = DataLossPolicy(options)
        self._info: FeedInfo | None = None

    def pages(self, one: Range) -> Iterator[RangePage]:
        """Yield the pages of a range, also if its partition was split after the plan.

        The last page of a file has no events, and the cursor after them.
        """
        budget = self._connection.retry_budget()
        rest = [one]
        while rest:
            # The partition may have been split, so that other partitions have the range now.
            found, rest = self._current_ranges(rest[0]), rest[1:]
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

    def _current_ranges(self, one: Range) -> list[Range]:
        """Return the ranges that have a range's events in the feed's current layout (SPEC 8.4)."""
        budget, heirs = self._connection.retry_budget(), list[int]()
        while not heirs:
            partitions = self._layout().partitions
            if any(partition.id == one.partition for partition in partitions):
                return [one]
            heirs = [heir.id for heir in partitions if one.partition in heir.cursor_from]
            if not heirs:
                # A process of the feed that has an older layout than the plan may have answered.
                unlisted = TokenChanged(f"The feed does not show partition {one.partition}.")
                try:
                    self._connection.back_off(budget, unlisted)
                except TokenChanged:
                    break
                self._info = None
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
            one = yield from read_segments(self._connection, one)
        budget = self._connection.retry_budget()
        empty_pages = EmptyPages()
        while one.count is None or one.count > 0:
            page = self._fetch(one)
            if page is None:
                return
            data, headers = _events(page)
            events = len(data)
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
            if events:
                empty_pages.count = 0
            elif not page.stop_reached:
                empty_pages.add(page.cursor, one.partition)
            is_filtered = self._filters(one)
            taken = events if one.count is None else min(events, one.count)
            left = None if one.count is None else one.count - taken
            if left == 0 and taken == events and not self._ends_together(one, page.cursor):
                raise ProtocolError(
                    f"The feed ends pages of partition {one.partition} at other cursors than when "
                    "this read was planned. Without the extension stop it cannot be read again "
                    "exactly: start again from other offsets."
                )
            # A page that is longer than the range ends after it.
            one = replace(one, start=one.stop if left == 0 else page.cursor, count=left)
            data, headers = data.slice(0, taken), headers[:taken]
            yield RangePage(one.partition, data, page.cursor, one.start, headers, is_filtered), one
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

    def _filters(self, one: Range) -> bool:
        """Return whether the feed filters by type; a range by count was planned with all types."""
        return one.count is None and EVENT_TYPES in self._layout().extensions

    def _fetch(self, one: Range) -> ArrowPage | Page | None:
        types = self._options.types if self._filters(one) else None
        size = self._options.page_size
        limit = size if one.count is None else min(size, one.count)
        stop = one.stop if one.count is None else None

        def fetch(client: Client, cursor: str) -> ArrowPage | Page:
            if self._with_headers:
                return client.fetch(
                    one.partition, cursor, limit=limit, headers=["_all"], types=types, stop=stop
                )
            return client.fetch_arrow(one.partition, cursor, limit=limit, types=types, stop=stop)

        return self._loss.request(
            one.partition,
            one.start,
            lambda cursor: self._connection.request(lambda client: fetch(client, cursor)),
        )


def _events(page: ArrowPage | Page) -> tuple[pa.StringArray, Sequence[Mapping[str, str]]]:
    """Return the JSON of a page's events, and their headers if they were requested."""
    if isinstance(page, Page):
        texts = string_array([one.raw for one in page.events])
        return texts, [one.headers for one in page.events]
    columns = [batch.column(0) for batch in page.batches] or [pa.array([], pa.string())]
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns), ()
