"""Lanes: the parts of a page that are applied in parallel, events of one key in one lane.

Each lane has its own transaction, which also stores the lane's progress; a last one moves the
cursor. A crash in between neither loses events nor repeats them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from zlib import crc32

from sqlalchemy import Connection

from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.steps import Advance, Deliver, Place
from zeroeventhub.consumer.store.applied import LaneProgress
from zeroeventhub.protocol import Event


class PageLanes:
    """Divide a page into lanes, and store how far each is.

    Attributes:
        parts: for each lane its events, and the function that stores that they are applied; empty
            if one lane has all events.
        rest: the events that are left for the transaction that moves the cursor.
        beyond: the progress of lanes beyond the page's end; None without any.
    """

    def __init__(self, config: Config, step: Deliver, progress: LaneProgress | None) -> None:
        self._config = config
        self._step = step
        self._lanes = config.lanes if progress is None else progress.lanes
        self._done = {} if progress is None else progress.done
        parts, ahead = divide(step.page.events, config.key, lanes=self._lanes, done=self._done)
        self.parts = [
            (mine, partial(self._advance, lane)) for lane, mine in parts.items() if len(parts) > 1
        ]
        self.rest: Sequence[Event] = next(iter(parts.values())) if len(parts) == 1 else ()
        self._has_begun = progress is not None or len(parts) > 1
        self.beyond = LaneProgress(self._lanes, ahead) if ahead else None

    def _advance(self, lane: int, connection: Connection) -> None:
        """Store that a lane is at the page's end, or raise Fenced."""
        step, name = self._step, self._config.name
        self._config.store.lanes.advance(
            connection,
            name,
            step.partition,
            step.place,
            lane=lane,
            lanes=self._lanes,
            before=self._done.get(lane, 0),
            after=len(step.page.events),
        )

    def finish(self, connection: Connection) -> None:
        """Move the cursor to the page's end, or raise Fenced."""
        step, beyond = self._step, self.beyond
        move_cursor(
            self._config, step, step.page.cursor, connection, lanes=self._has_begun, beyond=beyond
        )


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
) -> tuple[dict[int, tuple[Event, ...]], Mapping[int, int]]:
    """Divide a page by the keys of its events, without the events that are decided already.

    `done` is the number of events after the cursor that are decided, by lane. A page that is read
    again may be shorter than it was: the result has the events to apply by lane, and for each lane
    that is beyond the page's end the number of decided events after it.
    """
    todo: dict[int, list[Event]] = {}
    for number, event in enumerate(events):
        lane = lane_of(key(event), lanes) if lanes > 1 else 0
        if number >= done.get(lane, 0):
            todo.setdefault(lane, []).append(event)
    ahead = {lane: count - len(events) for lane, count in done.items() if count > len(events)}
    return {lane: tuple(mine) for lane, mine in sorted(todo.items())}, ahead


def lane_of(key: str | None, lanes: int) -> int:
    """Return the lane of a key: for one number of lanes, the same in every process."""
    return 0 if key is None else crc32(key.encode("utf-8", "surrogatepass")) % lanes
