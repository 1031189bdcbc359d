"""How far a micro-batch goes in each partition: events are shared out, and order is kept."""

from collections.abc import Collection
from dataclasses import replace
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
    left = limit
    while (left is None or left > 0) and (ready := _ready(places.partitions, ends, target)):
        share = None if left is None else max(1, left // len(ready))
        for one in ready:
            stop = None if target is None else target.place(one.id, one.cursor_from)
            before = ends.get(one.id) or Reach(places.first(one.id), 0, at_head=False)
            found = loss.survive(
                one.id,
                before.cursor,
                partial(places.reach, one.id, events=share, stop=stop),
            )
            if found is None:
                found = Reach(places.head(one.id), 0, at_head=True)
            ends[one.id] = replace(found, events=before.events + found.events)
        if limit is not None:
            left = limit - sum(reach.events for reach in ends.values())
    return ends


def _ready(
    partitions: Collection[Partition], ends: dict[int, Reach], target: Offsets | None
) -> list[Partition]:
    """Name the partitions in which there may be more to read."""
    known = {one.id for one in partitions}
    drained = {
        one.id for one in partitions if one.closed and one.id in ends and ends[one.id].at_head
    }
    return [
        one
        for one in partitions
        if not (one.id in ends and ends[one.id].at_head)
        and one.starts_after not in known - drained
        # What is younger than the target is left for another time.
        and (target is None or target.place(one.id, one.cursor_from) not in {None, FIRST})
    ]
