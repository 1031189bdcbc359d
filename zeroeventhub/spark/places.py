"""Where the driver's cursors come from: beginnings, heads, moments, and places further on."""

from zeroeventhub._follow.layout_order import choose, ready
from zeroeventhub._follow.pages import reaches_head
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import (
    CURSOR_OF_COUNT,
    CURSOR_OF_TIME,
    FIRST,
    LAST,
    MOST_COUNTED,
    SPLITS,
    STOP,
    FeedInfo,
    Partition,
)
from zeroeventhub.spark.connection import Connection
from zeroeventhub.spark.offsets import Offsets
from zeroeventhub.spark.options import EARLIEST, LATEST, Boundary, Moments, Options
from zeroeventhub.spark.walk import Reach, Walk

__all__ = ["Places"]


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
        """Return the place behind the last event that is settled now."""
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
        if not page.events and (page.stop_reached or reaches_head(page, start)):
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
    """Sort partitions so that each comes behind the one that it starts after."""
    found: list[Partition] = []
    while len(found) < len(chosen):
        found += ready(chosen, [one.id for one in found])
    return found
