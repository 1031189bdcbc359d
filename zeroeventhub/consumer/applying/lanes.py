"""Divide a page by the keys of its events, for lanes that are applied beside each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from zeroeventhub.protocol import Event

__all__ = ["Division", "Part", "divide", "lane_of"]


@dataclass(frozen=True)
class Part:
    """Hold what one lane has still to do of a page.

    Attributes:
        lane: the lane.
        done: how many events behind the cursor were decided for it before.
        events: its events behind those.
    """

    lane: int
    done: int
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Division:
    """Hold a page, divided.

    Attributes:
        parts: what there is to do, for the lanes that have something to do.
        ahead: for lanes that have gone beyond the page, how many events behind its end are
            decided. A page that is read again may be shorter than it was.
    """

    parts: tuple[Part, ...]
    ahead: Mapping[int, int]


def lane_of(key: str | None, lanes: int) -> int:
    """Return the lane of a key: the same in every process, as long as there are as many lanes."""
    return 0 if key is None else crc32(key.encode("utf-8", "surrogatepass")) % lanes


def divide(
    events: Sequence[Event],
    key: Callable[[Event], str | None],
    *,
    lanes: int,
    done: Mapping[int, int],
) -> Division:
    """Divide a page, leaving out what is decided.

    Args:
        events: the events behind the cursor, in their order.
        key: returns the key of an event.
        lanes: how many lanes there are.
        done: by lane, how many events behind the cursor are decided for it: those before them
            that are its own.
    """
    if lanes == 1 and not done:
        return Division((Part(0, 0, tuple(events)),) if events else (), {})
    todo: dict[int, list[Event]] = {}
    for number, event in enumerate(events):
        lane = lane_of(key(event), lanes) if lanes > 1 else 0
        if number >= done.get(lane, 0):
            todo.setdefault(lane, []).append(event)
    parts = (Part(lane, done.get(lane, 0), tuple(mine)) for lane, mine in sorted(todo.items()))
    ahead = {lane: count - len(events) for lane, count in done.items() if count > len(events)}
    return Division(tuple(parts), ahead)
