"""What the driver plans: where a read starts, where it ends, and how it falls into tasks."""

from collections.abc import Callable, Sized
from itertools import pairwise
from typing import TypeVar

from zeroeventhub._follow.layout_order import ready
from zeroeventhub.errors import ConfigurationError, TokenChanged
from zeroeventhub.protocol import MOST_SPLITS, FeedInfo
from zeroeventhub.spark.advance import advance
from zeroeventhub.spark.connection import Connection
from zeroeventhub.spark.loss import Loss
from zeroeventhub.spark.offsets import Offsets, Range, chains
from zeroeventhub.spark.options import EARLIEST, LATEST, Options
from zeroeventhub.spark.places import Places

__all__ = ["WALKED", "Plan"]

_Planned = TypeVar("_Planned")

WALKED = 100_000
"""Events of a micro-batch that the driver has to read through, where nobody set a limit."""


class Plan:
    """Plan reads of a feed.

    Args:
        connection: to the feed.
        options: what is asked of it.
    """

    def __init__(self, connection: Connection, options: Options) -> None:
        self._connection = connection
        self._options = options
        self._loss = Loss(fails=options.fails_on_loss)

    def batch(self) -> list[list[Range]]:
        """Plan a batch, whose end is fixed now.

        Returns:
            The tasks: each is one range or more, to be read one after the other.
        """
        return self._planned(self._batch)

    def begin(self) -> Offsets:
        """Return where a stream starts."""

        def begin(places: Places, info: FeedInfo) -> Offsets:
            starts = places.starts(self._options.starting or LATEST)
            if self._options.starting == EARLIEST:
                # Others are begun when the ones before them are read.
                starts = {one.id: starts[one.id] for one in ready(places.partitions, ())}
            counts = {} if places.can_stop else dict.fromkeys(starts, 0)
            return Offsets.within(info, starts, counts)

        return self._planned(begin)

    def head(self) -> Offsets | None:
        """Return where every partition ends now; None for a feed that cannot stop there."""

        def head(places: Places, info: FeedInfo) -> Offsets | None:
            return Offsets.within(info, places.ends(LATEST)) if places.can_stop else None

        return self._planned(head)

    def advance(self, start: Offsets, limit: int | None, target: Offsets | None) -> Offsets:
        """Return where a micro-batch ends.

        Args:
            start: where it begins.
            limit: how many events it may have, though one of each partition is always allowed;
                None for no limit.
            target: offsets beyond which nothing is read; None for none.
        """
        return self._planned(lambda places, info: self._advance(places, info, start, limit, target))

    def tasks(self, start: Offsets, end: Offsets) -> list[list[Range]]:
        """Return the tasks of a micro-batch between two offsets."""
        planned = chains(start, end)
        if len(planned) >= self._options.min_partitions:
            return planned
        return self._planned(lambda places, _: self._cut(places, planned))

    def _planned(self, make: Callable[[Places, FeedInfo], _Planned]) -> _Planned:
        """Plan for the layout that the feed has, and again whenever that changes meanwhile."""
        patience = self._connection.patience()
        while True:
            info = self._connection.ask(lambda client: client.discover())
            try:
                return make(Places(self._connection, self._options, info), info)
            except TokenChanged as error:
                self._connection.wait_out(patience, error)

    def _batch(self, places: Places, _: FeedInfo) -> list[list[Range]]:
        options = self._options
        starts = places.starts(options.starting or EARLIEST)
        if not places.can_stop:
            return self._walked(places, starts)
        if places.can_split and options.ending == LATEST:
            # One answer has the head and the pieces before it.
            ranges = [
                one
                for partition, start in starts.items()
                for one in self._pieces(places, partition, self._share(starts), start, None)
            ]
            return [[one] for one in ranges]
        ends = places.ends(options.ending)
        ranges = [
            Range(partition, start, ends[partition])
            for partition, start in starts.items()
            if partition in ends
        ]
        return self._cut(places, [[one] for one in ranges if one.start != one.stop])

    def _walked(self, places: Places, starts: dict[int, str]) -> list[list[Range]]:
        """Plan ranges of a feed that does not stop by itself: by the number of their events."""
        if self._options.ending != LATEST:
            raise ConfigurationError(
                "This feed cannot be read up to an offset, because it does not have the extension "
                "stop: leave the end away, and the batch ends where the feed does."
            )
        found = {
            one: places.reach(one, start, events=None, stop=None) for one, start in starts.items()
        }
        return [
            [Range(one, starts[one], reach.cursor, reach.events)]
            for one, reach in found.items()
            if reach.events
        ]

    def _share(self, planned: Sized) -> int:
        """Return into how many pieces each range is cut, so that there are tasks enough."""
        return min(-(-self._options.min_partitions // max(len(planned), 1)), MOST_SPLITS)

    def _pieces(
        self, places: Places, partition: int, count: int, start: str, stop: str | None
    ) -> list[Range]:
        cursors = self._loss.survive(
            partition, start, lambda cursor: places.pieces(partition, count, cursor, stop)
        )
        found = [] if cursors is None else pairwise(cursors)
        return [Range(partition, *pair) for pair in found if pair[0] != pair[1]]

    def _cut(self, places: Places, planned: list[list[Range]]) -> list[list[Range]]:
        """Cut ranges that no other has to wait for into pieces."""
        share = self._share(planned)
        if not places.can_split or share == 1:
            return planned
        listed = {one.id for one in places.partitions}
        tasks = []
        for chain in planned:
            one = chain[0]
            if len(chain) == 1 and one.partition in listed:
                pieces = self._pieces(places, one.partition, share, one.start, one.stop)
                tasks += [[piece] for piece in pieces]
            else:
                tasks.append(chain)
        return tasks

    def _advance(
        self,
        places: Places,
        info: FeedInfo,
        start: Offsets,
        limit: int | None,
        target: Offsets | None,
    ) -> Offsets:
        if limit is None and not places.can_stop:
            limit = WALKED
        ends = advance(places, self._loss, start, limit, target)
        cursors = {one: reach.cursor for one, reach in ends.items()}
        if places.can_stop:
            return Offsets.within(info, cursors)
        counts = {one: start.counts.get(one, 0) + reach.events for one, reach in ends.items()}
        return Offsets.within(info, cursors, counts)
