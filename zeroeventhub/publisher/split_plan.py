"""Where to cut a partition: what to look at, and what follows from it; no I/O.

No database knows how many rows lie between two positions without reading them all. So they are
estimated: a look at a place shows the rows next to it on both sides, how close together they are
there, and any hole that the place is in. What lies between two places is taken to be as close
together as around a third, and where most may be hidden, one looks again.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from heapq import nlargest
from itertools import count as count_from
from typing import NamedTuple

__all__ = ["FEW", "OPENED", "OPENED_A_PIECE", "ROWS", "Look", "Part", "Window", "cut", "places"]

ROWS = 100
"""How many rows a look shows on each side: about as many as a leaf of an index holds."""

OPENED, OPENED_A_PIECE = 512, 6
"""How many intervals are opened, each by two looks: so many, and so many more for each piece."""

OPENED_AT_ONCE = 32
"""How many of them are chosen at once, at most."""

FEW = 1_000
"""How many positions are simply read, if there are no more."""

GOLDEN = 0.6180339887498949
"""Its multiples fall in step with no pattern in the numbers."""


class Look(NamedTuple):
    """Ask what is next to a place: from `low` up to it, and above it up to `high`."""

    low: int
    place: int
    high: int


class Window(NamedTuple):
    """Hold how many rows were seen on one side of a place, the nearest one and the farthest."""

    rows: int
    near: int
    far: int

    @property
    def is_whole(self) -> bool:
        """Tell whether there are no others on this side."""
        return self.rows < ROWS

    @property
    def density(self) -> float:
        """Return how many rows there are for each position."""
        return 0.0 if self.is_whole else (self.rows - 1) / abs(self.far - self.near)


class Part(NamedTuple):
    """Say how many rows there are, probably, between two positions."""

    low: int
    high: int
    rows: float


class _Interval:
    """Hold what a look has shown of the rows from one to another."""

    def __init__(
        self, look: Look, below: Window, above: Window, *, left: float, right: float
    ) -> None:
        self.look, self.below, self.above = look, below, above
        self.left, self.right = left, right
        self.unseen_below = 0 if below.is_whole else below.far - look.low
        self.unseen_above = 0 if above.is_whole else look.high - above.far
        densest = max(left, right, below.density, above.density)
        self.potential = densest * (self.unseen_below + self.unseen_above)

    def opened(self) -> Iterator[tuple[int, int, float, float]]:
        """Yield the intervals on the sides of the place, with the densities at their ends."""
        if self.unseen_below:
            yield self.look.low, self.below.near, self.left, self.below.density
        if self.unseen_above:
            yield self.above.near, self.look.high, self.above.density, self.right

    def parts(self, *, opened: bool = False) -> Iterator[Part]:
        """Yield what is in it, except for what has been opened."""
        below, above = self.below, self.above
        # With the hole that the place is in: a place anywhere is as likely in a hole as there are
        # holes, and so this is right in the mean.
        density = (below.rows + above.rows - 1) / max(1, above.far - below.far)
        if not (opened and self.unseen_below):
            yield Part(self.look.low, below.far, self.unseen_below * density)
            yield Part(below.far, below.near, below.rows)
        if not (opened and self.unseen_above):
            yield Part(above.near, above.far, above.rows)
            yield Part(above.far, self.look.high, self.unseen_above * density)


def places(
    low: int, high: int, count: int, before: Sequence[Part] = ()
) -> Generator[list[Look], list[tuple[Window, Window]], list[int]]:
    """Find places that cut rows into pieces of nearly equal numbers of rows.

    Args:
        low: the position of the first row.
        high: the position of the last one.
        count: how many pieces.
        before: what is known of rows below the first one, which are cut as well.

    Yields:
        Looks, for what is below and above their places.

    Returns:
        The places between the pieces, in order; there need not be rows at them.
    """
    parts = yield from _parts(low, high, count)
    return cut([*before, *parts], count)


def cut(parts: Iterable[Part], count: int) -> list[int]:
    """Return the places between pieces of nearly equal numbers of rows."""
    return [*_cut(sorted(part for part in parts if part.rows > 0), count)]


def _parts(
    low: int, high: int, count: int
) -> Generator[list[Look], list[tuple[Window, Window]], list[Part]]:
    """Estimate how many rows there are, and where."""
    numbers = count_from(1)
    wanted = [(low, high, 0.0, 0.0)]
    parts: list[Part] = []
    intervals: list[_Interval] = []
    budget = OPENED + OPENED_A_PIECE * count
    while wanted:
        looks = [_look(low, high, next(numbers)) for low, high, *_ in wanted]
        windows = yield looks
        for look, (below, above), (*_, left, right) in zip(looks, windows, wanted, strict=True):
            interval = _Interval(look, below, above, left=left, right=right)
            if interval.potential:
                intervals.append(interval)
            else:
                parts += interval.parts()
        chosen = _choose(intervals, min(budget, max(2, len(intervals) // 4), OPENED_AT_ONCE))
        budget -= len(chosen)
        for interval in chosen:
            intervals.remove(interval)
            parts += interval.parts(opened=True)
        wanted = [side for interval in chosen for side in interval.opened()]
    for interval in intervals:
        parts += interval.parts()
    return parts


def _choose(intervals: list[_Interval], most: int) -> list[_Interval]:
    """Choose where most rows may be, and where there is most room for what no look has met."""
    wide = nlargest(most // 2, intervals, key=lambda each: each.look.high - each.look.low)
    others = [interval for interval in intervals if interval not in wide]
    return wide + nlargest(most - most // 2, others, key=lambda each: each.potential)


def _look(low: int, high: int, number: int) -> Look:
    """Choose a place in the middle half of an interval of two rows or more."""
    share = 0.25 + number * GOLDEN % 1 / 2
    return Look(low, min(low + int((high - low) * share), high - 1), high)


def _cut(parts: list[Part], count: int) -> Iterator[int]:
    """Yield the places between pieces of equal numbers of rows."""
    share = sum(part.rows for part in parts) / count
    passed, number = 0.0, 1
    for part in parts:
        while number < count and number * share <= passed + part.rows:
            within = (number * share - passed) / part.rows
            yield part.low + int((part.high - part.low) * within)
            number += 1
        passed += part.rows
