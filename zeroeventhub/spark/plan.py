"""What the next tasks read: where a batch ends, its cut into ranges, and what of lost data."""

import math
from collections.abc import Callable, Iterable, Mapping, Sized
from functools import partial
from itertools import pairwise
from typing import TypeVar

from zeroeventhub.consumer.assignment import ready
from zeroeventhub.errors import ConfigurationError, Diverged, Gone, TokenChanged, Trimmed
from zeroeventhub.protocol import FIRST, MOST_SPLITS, FeedInfo, Partition
from zeroeventhub.spark.connection import Connection, log
from zeroeventhub.spark.offsets import Offsets, Range, chains
from zeroeventhub.spark.options import EARLIEST, LATEST, Options
from zeroeventhub.spark.places import Places, Reach

__all__ = [
    "WALKED",
    "Loss",
    "Plan",
]

_Found = TypeVar("_Found")
_Lost = TypeVar("_Lost", Trimmed, Diverged)

_ADVICE = (
    "Set failOnDataLoss to false to go on with what there is, or start again with a new checkpoint."
)


class Loss:
    """Stop where events are gone that were not read, or report it and go on.

    Args:
        fails: whether to stop.
    """

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def survive(
        self, partition: int, cursor: str, question: Callable[[str], _Found]
    ) -> _Found | None:
        """Ask something of a feed that starts at a cursor.

        Args:
            partition: the partition.
            cursor: the cursor.
            question: asks it of a cursor; of the earliest one where the other was trimmed.

        Returns:
            The answer; None if the cursor is of another history, in which there is no such place.

        Raises:
            Trimmed: events after the cursor are gone, and `fails` is set; or the place where the
                read was to end is gone.
            Diverged: the feed has another history by now, and `fails` is set.
        """
        try:
            return question(cursor)
        except Trimmed as error:
            if self._fails:
                raise _with_advice(partition, error) from None
            earliest = error.earliest or FIRST
            log.warning(
                "Events of partition %d after the cursor %s are gone, and were not read: the "
                "feed no longer has them. Going on at the earliest one, %s.",
                partition,
                cursor,
                earliest,
            )
        except Diverged as error:
            if self._fails:
                raise _with_advice(partition, error) from None
            log.warning(
                "The cursor %s of partition %d is of a history that the feed no longer has. Going "
                "on at its head: events before that may be missing.",
                cursor,
                partition,
            )
            return None
        try:
            return question(earliest)
        except Trimmed as error:
            # Where the read was to end is gone as well.
            raise _with_advice(partition, error) from None

    def pass_over(self, partition: int) -> None:
        """Pass over what was planned to be read from a partition that is gone.

        Raises:
            Gone: `fails` is set.
        """
        error = Gone(
            f"Partition {partition} of the feed is gone, and the rest of what was planned to be "
            "read from it cannot be found in other partitions."
        )
        if self._fails:
            raise Gone(f"{error} {_ADVICE}")
        log.warning("%s It was not read.", error)


def _with_advice(partition: int, error: _Lost) -> _Lost:
    message = f"Partition {partition} cannot be read on. {error} {_ADVICE}"
    if isinstance(error, Trimmed):
        return type(error)(message, earliest=error.earliest)
    return type(error)(message)


def advance(
    places: Places, loss: Loss, start: Offsets, limit: int | None, target: Offsets | None
) -> dict[int, Reach]:
    """Find the end of a micro-batch in every partition that has been begun, or is begun now.

    Where a partition has fewer events than its share, the rest of its share goes to the other
    partitions. A partition that starts after another is read once that one is closed and read to
    its end (SPEC 8.3).

    Args:
        places: of the feed.
        loss: what becomes of a place that is gone.
        start: where the micro-batch begins.
        limit: how many events it may have, though one of each partition is always allowed; None
            for no limit.
        target: offsets beyond which nothing is read; None for none.
    """
    ends: dict[int, Reach] = {}
    for one in places.partitions:
        if (cursor := start.place(one.id, one.cursor_from)) is not None:
            ends[one.id] = Reach(cursor, 0, at_head=False)
    left = math.inf if limit is None else limit
    rest, is_first = _within(places.partitions, target), True
    while rest and (is_first or left > 0):
        share = None if limit is None else max(1, int(left) // len(rest))
        for one in rest:
            # A busy partition leaves some events to the partitions after it in this list.
            if _waits(one, rest, ends) or not (is_first or left > 0):
                continue
            before = ends.get(one.id) or Reach(places.first(one.id), 0, at_head=False)
            stop = None if target is None else target.place(one.id, one.cursor_from)
            found = loss.survive(
                one.id,
                before.cursor,
                partial(places.reach, one.id, events=share, stop=stop),
            )
            if found is None:
                found = Reach(places.head(one.id), 0, at_head=True)
            left -= found.events
            ends[one.id] = Reach(found.cursor, before.events + found.events, found.at_head)
        rest = [one for one in rest if not _is_read(one.id, ends)]
        is_first = False
    return ends


def _within(partitions: Iterable[Partition], target: Offsets | None) -> list[Partition]:
    """Leave out partitions that are younger than the target."""
    return [
        one
        for one in partitions
        if target is None or target.place(one.id, one.cursor_from) not in {None, FIRST}
    ]


def _waits(one: Partition, rest: Iterable[Partition], ends: Mapping[int, Reach]) -> bool:
    """Tell whether a partition has to wait for one that is not read to its end."""
    parent = one.starts_after
    is_there = any(parent == other.id for other in rest)
    return is_there and parent is not None and not _is_read(parent, ends)


def _is_read(partition: int, ends: Mapping[int, Reach]) -> bool:
    return partition in ends and ends[partition].at_head


_Planned = TypeVar("_Planned")

WALKED = 100_000
"""Events of a micro-batch, unless an option says less, where the driver has to read pages."""


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
                # A partition that starts after another is begun when that one is read.
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
        """Plan for the layout that the feed has, and again if that changes in the meantime."""
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
        """Cut into pieces the ranges that no other range has to wait for."""
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
