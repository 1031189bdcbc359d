"""When the next batch is deleted, and how often one is tried; no I/O."""

from collections.abc import Callable, Generator
from dataclasses import dataclass

from zeroeventhub.errors import Unavailable

__all__ = ["Batch", "Deleted", "paced", "unheard"]

TRIES = 10
"""How often a batch is tried that has to wait too long for somebody's locks."""

LEAST = 0.02
"""Seconds between two batches, at least: a feed sees by then that the first one has ended."""

LONGEST = 5.0
"""Seconds between two tries, at most."""


def unheard(events: int, position: int) -> None:
    """Tell nobody how far it is."""


@dataclass(frozen=True)
class Deleted:
    """Say what a batch has deleted.

    Attributes:
        events: how many.
        reached: the position behind which the next batch begins.
        is_last: whether nothing is left to do.
    """

    events: int
    reached: int
    is_last: bool


@dataclass(frozen=True)
class Batch:
    """Hold what became of a batch.

    Attributes:
        outcome: what it has deleted, or why it could not.
        seconds: how long it took.
    """

    outcome: Deleted | Unavailable
    seconds: float


def paced(after: int, told: Callable[[int, int], None]) -> Generator[tuple[float, int], Batch, int]:
    """Decide when to delete batches; they take half of the time, so that others get theirs.

    Args:
        after: the position behind which the first one begins.
        told: is called behind each batch with how many events are gone, and up to where.

    Yields:
        Seconds to wait before the next batch, and the position behind which it begins; what became
        of it is sent back.

    Returns:
        How many events are gone.

    Raises:
        Unavailable: a batch could not be deleted, however often it was tried.
    """
    events = tries = 0
    pause = 0.0
    while True:
        batch = yield pause, after
        outcome = batch.outcome
        if isinstance(outcome, Unavailable):
            tries += 1
            if tries == TRIES:
                raise outcome
            pause = min(LEAST * 2**tries, LONGEST)
            continue
        tries = 0
        pause, after = max(batch.seconds, LEAST), outcome.reached
        events += outcome.events
        told(events, after)
        if outcome.is_last:
            return events
