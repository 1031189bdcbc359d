"""Find places in a feed: its start, its head, the end of a number of events, and splits."""

from dataclasses import dataclass

from zeroeventhub.client import Client
from zeroeventhub.consumer.assignment import choose, ready
from zeroeventhub.consumer.steps import EmptyPages
from zeroeventhub.errors import ConfigurationError, CutPage
from zeroeventhub.protocol import (
    CURSOR_OF_COUNT,
    CURSOR_OF_TIME,
    FIRST,
    LAST,
    MOST_COUNTED,
    SPLITS,
    STOP,
    FeedInfo,
    Page,
    Partition,
)
from zeroeventhub.spark.connection import Connection
from zeroeventhub.spark.offsets import Offsets
from zeroeventhub.spark.options import EARLIEST, LATEST, Boundary, Moments, Options

__all__ = [
    "Places",
    "Reach",
]


@dataclass(frozen=True)
class Reach:
    """Say how far a read goes from a place.

    Attributes:
        cursor: where it ends.
        events: how many events lie between.
        at_head: whether nothing follows.
    """

    cursor: str
    events: int
    at_head: bool


class Walk:
    """Read through partitions on the driver.

    Args:
        connection: to the feed.
        options: how it is read.
        can_stop: whether the feed reads up to a cursor and no further.
    """

    def __init__(self, connection: Connection, options: Options, *, can_stop: bool) -> None:
        self._connection = connection
        self._options = options
        self._can_stop = can_stop

    def reach(self, partition: int, start: str, events: int | None, stop: str | None) -> Reach:
        """Read pages, and keep only where they end.

        Args:
            partition: the partition.
            start: where the read begins.
            events: how many events it has at most; None for as many as there are.
            stop: where it ends at the latest; None for the head.
        """
        cursor, end, found, at_head = start, start, 0, False
        empty_pages = EmptyPages()
        while not at_head and (events is None or found < events):
            size = self._options.page_size
            wanted = size if events is None else min(size, events - found)
            page = self.page(partition, cursor, wanted, stop)
            empty_pages.moves(page, partition, cursor)
            at_head = page.stop_reached or page.caught_up or page.cursor == cursor
            if 0 < len(page.events) < wanted and not self._can_stop:
                end = self._cut(partition, cursor, page)
            elif page.events:
                end = page.cursor
            found, cursor = found + len(page.events), page.cursor
        return Reach(end, found, at_head)

    def _cut(self, partition: int, start: str, page: Page) -> str:
        """Return where a page ends if it ends for the number of its events.

        At the head a page may end further on than its last event, at another place each time.
        """
        count = len(page.events)
        again = self.page(partition, start, count, None)
        return again.cursor if len(again.events) == count else page.cursor

    def page(self, partition: int, cursor: str, limit: int, stop: str | None) -> Page:
        """Fetch one page; an empty one where a feed is silent at its head."""

        def fetch(client: Client) -> Page:
            try:
                return client.fetch(partition, cursor, limit=limit, stop=stop)
            except CutPage:
                # Some feeds have nothing to say at their head, not even where it is (SPEC 19).
                if self._can_stop or client.fetch(partition, LAST, limit=1).cursor != cursor:
                    raise
                return Page([], cursor)

        return self._connection.ask(fetch)


class Places:
    """Find places in a feed whose layout is known.

    Args:
        connection: to the feed.
        options: which partitions are read, and how.
        info: the layout.
    """

    def __init__(self, connection: Connection, options: Options, info: FeedInfo) -> None:
        self._connection = connection
        self._options = options
        self._info = info
        self._walk = Walk(connection, options, can_stop=self.can_stop)
        self.partitions = [
            one
            for one in _parents_first(choose(info, options.partitions))
            if options.among is None or one.id in options.among
        ]

    @property
    def can_stop(self) -> bool:
        """Tell whether the feed reads up to a cursor and no further."""
        return STOP in self._info.extensions

    @property
    def can_split(self) -> bool:
        """Tell whether the feed cuts partitions into pieces that can be read."""
        return SPLITS in self._info.extensions

    def starts(self, boundary: Boundary) -> dict[int, str]:
        """Return where each partition is read from.

        Raises:
            ConfigurationError: offsets leave a partition out.
        """
        since = self._options.since
        if boundary == EARLIEST and since and CURSOR_OF_TIME in self._info.extensions:
            return self._found(Moments(since, {}))
        if isinstance(boundary, Offsets):
            return self._given(boundary)
        return self._found(boundary)

    def ends(self, boundary: Boundary) -> dict[int, str]:
        """Return where partitions are read to; offsets may leave some of them out."""
        if not isinstance(boundary, Offsets):
            return self._found(boundary)
        given = {one.id: boundary.place(one.id, one.cursor_from) for one in self.partitions}
        return {
            one: self._resolved(one, at) for one, at in given.items() if at not in {None, FIRST}
        }

    def first(self, partition: int) -> str:
        """Return the place before the first event: a real cursor where the feed can give one.

        That stays where it is when history is trimmed, so that the loss is noticed.
        """
        if not self.can_split:
            return FIRST
        return self._connection.ask(lambda client: client.splits(partition, 1))[0]

    def head(self, partition: int) -> str:
        """Return the place after the last event that is settled now."""
        return self._connection.ask(lambda client: client.fetch(partition, LAST, limit=1)).cursor

    def pieces(self, partition: int, count: int, start: str, stop: str | None) -> list[str]:
        """Return the cursors between pieces of a partition."""
        return self._connection.ask(
            lambda client: client.splits(partition, count, start=start, stop=stop)
        )

    def reach(self, partition: int, start: str, *, events: int | None, stop: str | None) -> Reach:
        """Return how far a read of some events goes.

        Args:
            partition: the partition.
            start: where the read begins.
            events: how many events it has at most; None for as many as there are.
            stop: where it ends at the latest; None for the head.
        """
        if not self.can_stop:
            return self._walk.reach(partition, start, events, None)
        if events is None:
            return self._all(partition, start, stop)
        if CURSOR_OF_COUNT not in self._info.extensions:
            return self._walk.reach(partition, start, events, stop)
        wanted = min(events, MOST_COUNTED)
        found = self._connection.ask(
            lambda client: client.cursor_of_count(partition, start, wanted, stop=stop)
        )
        # Where nothing is there to be read, the place is not moved, so that nothing is planned.
        cursor = found.cursor if found.events else start
        return Reach(cursor, found.events, found.events < wanted)

    def _all(self, partition: int, start: str, stop: str | None) -> Reach:
        """Look whether there is an event, and return where all of them end."""
        page = self._walk.page(partition, start, 1, stop)
        at_head = page.stop_reached or page.caught_up or page.cursor == start
        if at_head and not page.events:
            return Reach(start, 0, at_head=True)
        if stop is None:
            # Another process may answer, whose head lies before the event, or before the start.
            stop = self.head(partition)
            page = self._walk.page(partition, start, 1, stop)
        return Reach(stop if page.events else start, len(page.events), at_head=True)

    def _given(self, offsets: Offsets) -> dict[int, str]:
        places = {}
        for one in self.partitions:
            cursor = offsets.place(one.id, one.cursor_from)
            if cursor is None and one.starts_after is None:
                raise ConfigurationError(
                    f"The offsets name no cursor for partition {one.id} of the feed: _first is "
                    "its beginning, and the option partitions leaves a partition out."
                )
            places[one.id] = self._resolved(one.id, cursor)
        return places

    def _found(self, boundary: Boundary) -> dict[int, str]:
        return {one.id: self._find(one.id, boundary) for one in self.partitions}

    def _find(self, partition: int, boundary: Boundary) -> str:
        if isinstance(boundary, Moments):
            moment = boundary.of(partition)
            return self._connection.ask(lambda client: client.cursor_at(moment, partition))
        return self.head(partition) if boundary == LATEST else self.first(partition)

    def _resolved(self, partition: int, cursor: str | None) -> str:
        """Return a real cursor in the place of a name."""
        if cursor == LAST:
            return self.head(partition)
        return self.first(partition) if cursor in {None, FIRST} else str(cursor)


def _parents_first(chosen: tuple[Partition, ...]) -> list[Partition]:
    """Sort partitions so that each comes after the one that it starts after."""
    found: list[Partition] = []
    while len(found) < len(chosen):
        found += ready(chosen, [one.id for one in found])
    return found
