"""Find cursors in a feed: its start, its head, the end of a number of events, and splits."""

from dataclasses import dataclass

from zeroeventhub.bulk.connection import Connection
from zeroeventhub.bulk.offsets import Offsets, Range, parents_first
from zeroeventhub.bulk.options import EARLIEST, LATEST, Boundary, Moments, ReadOptions
from zeroeventhub.client import Client
from zeroeventhub.consumer.steps import EmptyPages, choose
from zeroeventhub.errors import ConfigurationError, CutPage
from zeroeventhub.extensions import CURSOR_OF_COUNT, CURSOR_OF_TIME, SPLITS, STOP
from zeroeventhub.protocol import FIRST, LAST, MOST_COUNTED, FeedInfo, Page

_SAMPLED = 100
"""Pieces of a range with very many events, of which one is counted."""


@dataclass(frozen=True)
class Scan:
    """The end of a read.

    Attributes:
        at_head: whether no event follows.
    """

    cursor: str
    events: int
    at_head: bool


class Boundaries:
    """Find cursors in a feed with a known layout.

    Attributes:
        info: the layout.
        partitions: those to read, each after the one that it starts after.
        can_stop: whether the feed has the extension stop: it reads up to a cursor and no further.
        can_split: whether the feed divides partitions into ranges.
        can_count: whether the feed counts the events between two cursors.
    """

    def __init__(self, connection: Connection, options: ReadOptions, info: FeedInfo) -> None:
        self._connection = connection
        self._options = options
        self.info = info
        self.can_stop = STOP in info.extensions
        self.can_split = SPLITS in info.extensions
        self.can_count = CURSOR_OF_COUNT in info.extensions
        try:
            chosen = {one.id: one for one in choose(info, options.partitions)}
        except ConfigurationError as error:
            raise ConfigurationError(f"{error} Change the option partitions.") from None
        order = parents_first({one.id: one.starts_after for one in chosen.values()})
        self.partitions = [
            chosen[one] for one in order if options.among is None or one in options.among
        ]

    def starts(self, boundary: Boundary) -> dict[int, str]:
        """Return where each partition is read from; refuse offsets that leave one out."""
        since = self._options.since
        if boundary == EARLIEST and since and CURSOR_OF_TIME in self.info.extensions:
            boundary = Moments(since, {})
        if not isinstance(boundary, Offsets):
            return {one.id: self._find(one.id, boundary) for one in self.partitions}
        cursors = {}
        for one in self.partitions:
            cursor = boundary.cursor(one.id, one.cursor_from)
            is_new = one.starts_after is not None or self._options.begins_new_partitions
            if cursor is None and not is_new:
                raise ConfigurationError(
                    f"startingOffsets has no cursor for partition {one.id} of the feed: _first is "
                    "its beginning, and the option partitions leaves a partition out."
                )
            cursors[one.id] = self._resolve(one.id, cursor)
        return cursors

    def ends(self, boundary: Boundary) -> dict[int, str]:
        """Return where partitions are read to; offsets may leave some of them out."""
        if not isinstance(boundary, Offsets):
            return {one.id: self._find(one.id, boundary) for one in self.partitions}
        given = {one.id: boundary.cursor(one.id, one.cursor_from) for one in self.partitions}
        return {one: self._resolve(one, at) for one, at in given.items() if at not in {None, FIRST}}

    def _find(self, partition: int, boundary: str | Moments) -> str:
        if isinstance(boundary, Moments):
            if CURSOR_OF_TIME not in self.info.extensions:
                raise ConfigurationError(
                    "This feed does not have the extension cursor-of-time: leave times out, or "
                    f"give cursors by {self._options.words.start} and {self._options.words.stop}."
                )
            moment = boundary.of(partition)
            return self._connection.request(lambda client: client.cursor_at(moment, partition))
        return self.head(partition) if boundary == LATEST else self.first(partition)

    def _resolve(self, partition: int, cursor: str | None) -> str:
        """Return the cursor that FIRST or LAST stands for now; any other cursor as it is."""
        if cursor == LAST:
            return self.head(partition)
        return self.first(partition) if cursor in {None, FIRST} else str(cursor)

    def first(self, partition: int) -> str:
        """Return the cursor before the first event; FIRST if the feed cannot resolve it.

        A real cursor does not move when history is trimmed, so that the reader notices the loss.
        """
        return self.pieces(partition, 1)[0] if self.can_split else FIRST

    def head(self, partition: int) -> str:
        """Return the cursor after the last event that is settled now."""
        return self._connection.request(
            lambda client: client.fetch(partition, LAST, limit=1)
        ).cursor

    def pieces(
        self, partition: int, count: int, start: str = FIRST, stop: str | None = None
    ) -> list[str]:
        """Return the cursors that divide a range of a partition."""
        return self._connection.request(
            lambda client: client.splits(partition, count, start=start, stop=stop)
        )

    def count(self, one: Range) -> int:
        """Return how many events a range has; an estimate if these are very many."""
        found = self._count_events(one.partition, one.start, one.stop)
        if found < MOST_COUNTED:
            return found
        pieces = self.pieces(one.partition, _SAMPLED, one.start, one.stop)
        middle = len(pieces) // 2
        sample = pieces[middle - 1 : middle + 1]
        return (len(pieces) - 1) * self._count_events(one.partition, *sample)

    def _count_events(self, partition: int, start: str, stop: str) -> int:
        return self._connection.request(
            lambda client: client.cursor_of_count(partition, start, MOST_COUNTED, stop=stop)
        ).events

    def past(self, one: Range) -> str:
        """Return the end of a range; its start if it has an event, or ends before its start."""
        page = self._first_page(one.partition, one.start, one.stop)
        return one.start if page.events else page.cursor

    def scan(self, partition: int, start: str, *, events: int | None, stop: str | None) -> Scan:
        """Return where a read of at most `events` events ends, `stop` or the head at the latest."""
        if not self.can_stop:
            return self._scan_pages(partition, start, events, None)
        if events is None:
            return self._scan_all(partition, start, stop)
        if not self.can_count:
            return self._scan_pages(partition, start, events, stop)
        wanted = min(events, MOST_COUNTED)
        found = self._connection.request(
            lambda client: client.cursor_of_count(partition, start, wanted, stop=stop)
        )
        # Without events the cursor does not move, so that nothing is planned.
        cursor = found.cursor if found.events else start
        return Scan(cursor, found.events, found.events < wanted)

    def _scan_all(self, partition: int, start: str, stop: str | None) -> Scan:
        """Find out whether there is an event, and where all events end."""
        page = self._page(partition, start, 1, stop)
        if not page.events and (page.stop_reached or page.caught_up or page.cursor == start):
            return Scan(start, 0, at_head=True)
        if stop is None:
            # Another process of the feed may answer, and its head may lie before the start.
            stop = self.head(partition)
        found = self._first_page(partition, start, stop).events
        return Scan(stop if found else start, len(found), at_head=True)

    def _first_page(self, partition: int, start: str, stop: str) -> Page:
        """Return a page with the first event of a range; an empty one at the end if it has none."""
        page, empty_pages = self._page(partition, start, 1, stop), EmptyPages()
        # Pages without events pass by those that this reader may not see.
        while not page.events and not page.stop_reached and page.cursor != start:
            empty_pages.moves(page, partition, start)
            start = page.cursor
            page = self._page(partition, start, 1, stop)
        return page

    def _scan_pages(self, partition: int, start: str, events: int | None, stop: str | None) -> Scan:
        """Read pages, and keep only where they end."""
        cursor, end, found, at_head = start, start, 0, False
        empty_pages = EmptyPages()
        while not at_head and (events is None or found < events):
            size = self._options.page_size
            wanted = size if events is None else min(size, events - found)
            page = self._page(partition, cursor, wanted, stop)
            empty_pages.moves(page, partition, cursor)
            at_head = page.stop_reached or page.caught_up or page.cursor == cursor
            if 0 < len(page.events) < wanted and not self.can_stop:
                end = self._cut(partition, cursor, page)
            elif page.events:
                end = page.cursor
            found, cursor = found + len(page.events), page.cursor
        return Scan(end, found, at_head)

    def _cut(self, partition: int, start: str, page: Page) -> str:
        """Return where a page ends if a request asks for exactly its number of events."""
        # At the head a page may end after its last event, at another cursor each time.
        count = len(page.events)
        again = self._page(partition, start, count, None)
        return again.cursor if len(again.events) == count else page.cursor

    def _page(self, partition: int, cursor: str, limit: int, stop: str | None) -> Page:
        """Fetch one page; an empty one if the feed sends nothing at its head."""

        def fetch(client: Client) -> Page:
            try:
                return client.fetch(partition, cursor, limit=limit, stop=stop)
            except CutPage:
                # Some feeds send nothing at their head, not even a cursor (SPEC 19).
                if self.can_stop or client.fetch(partition, LAST, limit=1).cursor != cursor:
                    raise
                return Page([], cursor)

        return self._connection.request(fetch)
