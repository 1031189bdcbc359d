"""Lanes: the parts of a page that are applied in parallel, events of one key in one lane.

Each lane has its own transaction, which also stores the lane's progress; a last one moves the
cursor. A crash in between neither loses events nor repeats them.
"""

from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

from sqlalchemy import Connection

from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.steps import Advance, Deliver, Place
from zeroeventhub.consumer.store.applied import LaneProgress
from zeroeventhub.protocol import Event


def move_cursor(
    config: Config,
    step: Deliver | Advance,
    cursor: str,
    connection: Connection,
    *,
    lanes: bool,
    beyond: LaneProgress | None,
) -> None:
    """Move a cursor; if lanes have begun, keep only their progress beyond it."""
    store, name, partition = config.store, config.name, step.partition
    store.advance(connection, name, partition, step.place, cursor)
    if lanes:
        store.lanes.clear(connection, name, partition)
    if beyond is None:
        return
    place = Place(cursor, step.place.epoch)
    for lane, done in beyond.done.items():
        store.lanes.advance(
            connection, name, partition, place, lane=lane, lanes=beyond.lanes, before=0, after=done
        )


def divide(
    events: Sequence[Event],
    key: Callable[[Event], str | None],
    *,
    lanes: int,
    done: Mapping[int, int],
) -> dict[int, tuple[Event, ...]]:
    """Divide a page by the keys of its events; return the events to apply by lane.

    `done` is the number of events after the cursor that are decided already, by lane.
    """
    todo: dict[int, list[Event]] = {}
    for number, event in enumerate(events):
        name = key(event) if lanes > 1 else None
        # For one number of lanes, the same in every process.
        lane = 0 if name is None else crc32(name.encode("utf-8", "surrogatepass")) % lanes
        if number >= done.get(lane, 0):
            todo.setdefault(lane, []).append(event)
    return {lane: tuple(mine) for lane, mine in sorted(todo.items())}
