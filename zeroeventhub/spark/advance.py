"""How far a micro-batch goes in each partition: events are shared out, and order is kept."""

import math
from collections.abc import Iterable, Mapping
from functools import partial

from zeroeventhub.protocol import FIRST, Partition
from zeroeventhub.spark.loss import Loss
from zeroeventhub.spark.offsets import Offsets
from zeroeventhub.spark.places import Places
from zeroeventhub.spark.walk import Reach

__all__ = ["advance"]


def advance(
    places: Places, loss: Loss, start: Offsets, limit: int | None, target: Offsets | None
) -> dict[int, Reach]:
    """Find the end of a micro-batch in every partition that has been begun, or is begun now.

    What some partitions do not have is shared out among the others. A partition that starts after
    another one is read on when that is closed and read to its end (SPEC 8.3).

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
            # A busy partition leaves something to one that it stands before.
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
    """Leave what is younger than the target for another time."""
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
