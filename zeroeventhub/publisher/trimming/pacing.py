"""When the next batch is deleted, and how often one is tried; no I/O."""

from collections.abc import Callable, Generator
from dataclasses import dataclass

from zeroeventhub.errors import Unavailable

__all__ = ["Batch", "paced", "unheard"]

TRIES = 10
"""How often a batch is tried that has to wait too long for somebody's locks."""

LEAST = 0.02
"""Seconds between two batches, at least: a feed sees by then that the first one has ended."""

LONGEST = 5.0
"""Seconds between two tries, at most."""


def unheard(events: int, position: int) -> None:
    """Tell nobody how far it is."""


@dataclass(frozen=True)
class Batch:
    """Hold what became of a batch.

    Attributes:
        events: how many were deleted.
        trimmed: where the mark is now.
        seconds: how long it took.
        error: why it could not be; None if it could.
    """

    events: int
    trimmed: int
    seconds: float
    error: Unavailable | None = None


def paced(until: int, told: Callable[[int, int], None]) -> Generator[float, Batch, int]:
    """Decide when to delete batches; they take half of the time, so that others get theirs.

    Args:
        until: the position up to which events are deleted.
        told: is called behind each batch with how many events are gone, and the mark's position.

    Yields:
        Seconds to wait before the next batch, whose outcome is sent back.

    Returns:
        How many events are gone.

    Raises:
        Unavailable: a batch could not be deleted, however often it was tried.
    """
    events = tries = 0
    pause = 0.0
    while True:
        batch = yield pause
        if batch.error is not None:
            tries += 1
            if tries == TRIES:
                raise batch.error
            pause = min(LEAST * 2**tries, LONGEST)
            continue
        tries = 0
        pause = max(batch.seconds, LEAST)
        events += batch.events
        if batch.events:
            told(events, batch.trimmed)
        if batch.trimmed >= until or not batch.events:
            return events
