"""Cut a partition into pieces of about the same size, for parallel readers."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from heapq import nlargest
from itertools import count as count_from
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    Subquery,
    func,
    literal_column,
    select,
    union_all,
)

from zeroeventhub.databases.index_hint import IndexHint
from zeroeventhub.publisher.archive_reader import ArchiveReader
from zeroeventhub.publisher.keyset import HIGHEST, NearRows, Part, parameter

ROWS = 100
"""Rows that a look reads on each side: about as many as a leaf of an index holds."""

OPENED, OPENED_A_PIECE = 512, 6
"""Intervals that are opened, each by two looks: a fixed number, and more for each piece."""

OPENED_IF_DENSE = 64
"""The fixed number as long as every look has found a row at nearly every position: no interval can
hold more rows than it seems to, and gaps that would matter are wide enough to be found."""

DENSE = 0.9
"""Rows per position from which rows count as dense."""

OPENED_AT_ONCE = 32
"""Intervals that are chosen at once, at most."""

FEW = 1_000
"""Positions up to which they are read and cut exactly, without an estimate."""

GOLDEN = 0.6180339887498949
"""The golden ratio: its multiples avoid any regular pattern in the positions."""


class Look(NamedTuple):
    """A request for the rows next to a place: from `low` up to it, and above it up to `high`."""

    low: int
    place: int
    high: int


class Window(NamedTuple):
    """The rows found on one side of a place: their number, the nearest and the farthest."""

    rows: int
    near: int
    far: int

    @property
    def is_whole(self) -> bool:
        """Return whether these are all the rows on this side."""
        return self.rows < ROWS

    @property
    def density(self) -> float:
        """Return the number of rows per position."""
        return 0.0 if self.is_whole else (self.rows - 1) / abs(self.far - self.near)


class _Interval:
    """A range of rows, with what a look has found in it."""

    def __init__(
        self, look: Look, below: Window, above: Window, *, left: float, right: float
    ) -> None:
        self.look, self.below, self.above = look, below, above
        self.left, self.right = left, right
        self.unseen_below = 0 if below.is_whole else below.far - look.low
        self.unseen_above = 0 if above.is_whole else look.high - above.far
        # Include the gap that the place is in: a random place falls into a gap as often as gaps
        # occur, so the density is right on average.
        self.density = (below.rows + above.rows - 1) / max(1, above.far - below.far)
        densest = max(left, right, below.density, above.density)
        self.potential = densest * (self.unseen_below + self.unseen_above)

    def opened(self) -> Iterator[tuple[int, int, float, float]]:
        """Yield the intervals on the sides of the place, with the densities at their ends."""
        if self.unseen_below:
            yield self.look.low, self.below.near, self.left, self.below.density
        if self.unseen_above:
            yield self.above.near, self.look.high, self.above.density, self.right

    def parts(self, *, opened: bool = False) -> Iterator[Part]:
        """Yield estimates for its parts; with `opened`, without the intervals beside the place."""
        below, above = self.below, self.above
        if not (opened and self.unseen_below):
            yield Part(self.look.low, below.far, self.unseen_below * self.density)
            yield Part(below.far, below.near, below.rows)
        if not (opened and self.unseen_above):
            yield Part(above.near, above.far, above.rows)
            yield Part(above.far, self.look.high, self.unseen_above * self.density)


def places(
    low: int,
    high: int,
    count: int,
    see: Callable[[list[Look]], list[tuple[Window, Window]]],
    before: Sequence[Part] = (),
) -> list[int]:
    """Find places that cut the rows in [low, high] into pieces of nearly equal numbers of rows.

    `see` returns the windows below and above the places of looks, and `before` are the parts below
    the first row, which are cut as well. The places are in order, with or without rows at them.
    """
    numbers = count_from(1)
    wanted = [(low, high, 0.0, 0.0)]
    parts = [*before]
    intervals: list[_Interval] = []
    opened, most_opened = 0, OPENED_IF_DENSE + OPENED_A_PIECE * count
    while wanted:
        looks = []
        for start, end, *_ in wanted:
            # A place in the middle half of an interval of two rows or more.
            share = 0.25 + next(numbers) * GOLDEN % 1 / 2
            looks.append(Look(start, min(start + int((end - start) * share), end - 1), end))
        for look, (below, above), (*_, left, right) in zip(looks, see(looks), wanted, strict=True):
            interval = _Interval(look, below, above, left=left, right=right)
            if interval.density < DENSE:
                most_opened = OPENED + OPENED_A_PIECE * count
            if interval.potential:
                intervals.append(interval)
            else:
                parts += interval.parts()
        # The widest intervals, and those that may hold the most rows not looked at yet.
        most = min(most_opened - opened, max(2, len(intervals) // 4), OPENED_AT_ONCE)
        chosen = nlargest(most // 2, intervals, key=lambda each: each.look.high - each.look.low)
        rest = [interval for interval in intervals if interval not in chosen]
        chosen += nlargest(most - most // 2, rest, key=lambda each: each.potential)
        opened += len(chosen)
        for interval in chosen:
            intervals.remove(interval)
            parts += interval.parts(opened=True)
        wanted = [side for interval in chosen for side in interval.opened()]
    for interval in intervals:
        parts += interval.parts()
    return cut(parts, count)


def cut(parts: Iterable[Part], count: int) -> list[int]:
    """Return the places between pieces of nearly equal numbers of rows."""
    filled = sorted(part for part in parts if part.rows > 0)
    share = sum(part.rows for part in filled) / count
    found = list[int]()
    passed = 0.0
    for part in filled:
        while (number := len(found) + 1) < count and number * share <= passed + part.rows:
            within = (number * share - passed) / part.rows
            found.append(part.low + int((part.high - part.low) * within))
        passed += part.rows
    return found


BATCH = 32
"""Lookups that one statement makes, at most."""


class _Probe(NamedTuple):
    """A request for the rows on one side of a place, up to an end."""

    place: int
    end: int
    above: bool


class SplitQuery:
    """Cut a partition's events into pieces that can be read in parallel.

    It reads an index 2,053 times at most, or 261 times where rows are dense, plus 25 times for each
    piece: once 1,000 entries, and 100 at most each other time. The archive, if any, holds the
    events below its boundary.
    """

    def __init__(self, rows: NearRows, archive: ArchiveReader | None = None) -> None:
        self._rows = rows
        self._archive = archive
        self._statement = lru_cache(maxsize=100)(self._build)

    def positions(
        self, connection: Connection, partition: int, *, count: int, after: int, until: int
    ) -> list[int]:
        """Return the boundaries of pieces in (after, until], which is at or below the horizon.

        A piece is the events above one boundary and up to the next.

        Returns:
            Rising positions from `after` to `until`; all between them are those of rows. There are
            fewer pieces than `count` if the range has fewer events, and one if it is empty.
        """
        if after >= until:
            return [after, after]
        boundaries = [after]
        if count > 1:
            for position in self._between(connection, partition, count, after, until):
                if boundaries[-1] < position < until:
                    boundaries.append(position)
        return [*boundaries, until]

    def _between(
        self, connection: Connection, partition: int, count: int, after: int, until: int
    ) -> list[int]:
        boundary, parts = after, list[Part]()
        if self._archive is not None:
            boundary = max(after, self._archive.boundary(connection))
            if after < boundary:
                parts = self._archive.parts(partition, after, min(boundary, until))
        few: list[int] = []
        if until > boundary:
            few = self._first_positions(connection, partition, boundary, until)
        if sum(part.rows for part in parts) + len(few) < FEW:
            positions = few
            if self._archive is not None and parts:
                end = min(boundary, until)
                positions = self._archive.positions(partition, after, end) + few
            count = min(count, len(positions))
            return [positions[number * len(positions) // count - 1] for number in range(1, count)]
        if len(few) < FEW:
            # A part of one position for each row, so that every cut is at a row.
            found = cut([*parts, *(Part(position - 1, position, 1.0) for position in few)], count)
        else:
            low, high = few[0], max(self._last(connection, partition, [until]), default=0)
            see = partial(self._look, connection, partition)
            is_there = low < high  # unless a trim is deleting the rows
            found = places(low, high, count, see, parts) if is_there else cut(parts, count)
        ends = [part.high for part in parts]
        # In the archive, cut at the end of the part that holds the place: the manifest or footer
        # has that position, so nothing has to be fetched.
        archived = [
            ends[min(bisect_left(ends, place), len(ends) - 1)]
            for place in found
            if place <= boundary
        ]
        in_table = [place for place in found if place > boundary]
        return archived + self._last(connection, partition, in_table)

    def _first_positions(
        self, connection: Connection, partition: int, after: int, until: int
    ) -> list[int]:
        """Read the first positions."""
        near = self._near(0, FEW, self._rows.hint(connection), above=True)
        query = select(near.c.position).order_by(near.c.position)
        positions = connection.scalars(query, {"partition": partition, "place_0": after})
        return [position for position in positions if position <= until]

    def _last(self, connection: Connection, partition: int, at: Sequence[int]) -> list[int]:
        """Find the last rows at or below some places."""
        probes = [_Probe(place, 0, above=False) for place in at]
        return [
            window.near for window in self._probe(connection, partition, probes, 1) if window.rows
        ]

    def _look(
        self, connection: Connection, partition: int, looks: list[Look]
    ) -> list[tuple[Window, Window]]:
        probes = []
        for low, place, high in looks:
            probes += [_Probe(place, low, above=False), _Probe(place, high, above=True)]
        windows = self._probe(connection, partition, probes, ROWS)
        return list(zip(windows[::2], windows[1::2], strict=True))

    def _probe(
        self, connection: Connection, partition: int, probes: Sequence[_Probe], rows: int
    ) -> list[Window]:
        windows = []
        hint = self._rows.hint(connection)
        while probes:
            # Batches have sizes of powers of two, so that few statements differ.
            size = min(BATCH, 1 << len(probes).bit_length() - 1)
            batch, probes = probes[:size], probes[size:]
            values = {"partition": partition}
            for number, probe in enumerate(batch):
                values |= {f"place_{number}": probe.place, f"end_{number}": probe.end}
            sides = tuple(probe.above for probe in batch)
            found = connection.execute(self._statement(sides, rows, hint), values).all()
            for probe, (_, seen, low, high) in zip(batch, sorted(found), strict=True):
                near, far = (low, high) if probe.above else (high, low)
                windows.append(
                    Window(seen, near, far) if seen else Window(0, probe.place, probe.place)
                )
        return windows

    def _build(self, sides: Sequence[bool], rows: int, hint: IndexHint) -> CompoundSelect[Any]:
        """Put as many lookups as there are sides into one statement."""
        lookups = []
        for number, above in enumerate(sides):
            near = self._near(number, rows, hint, above=above)
            position, end = near.c.position, parameter(f"end_{number}")
            columns: tuple[ColumnElement[Any], ...] = (
                literal_column(str(number)),
                func.count(),
                func.min(position),
                func.max(position),
            )
            # Outside the subquery with the limit, so that the end cannot change its plan.
            within = position <= end if above else position >= end
            lookups.append(select(*columns).select_from(near).where(within))
        return union_all(*lookups)

    def _near(self, number: int, rows: int, hint: IndexHint, *, above: bool) -> Subquery:
        """Select the positions next to the parameter `place_<number>`, on one side of it."""
        source, here = self._rows.source, parameter(f"place_{number}")
        query = select(source.position.label("position")).select_from(source.table)
        if above:
            query = self._rows.above(query, hint, here, HIGHEST)
        else:
            query = self._rows.below(query, hint, here)
        return query.limit(literal_column(str(rows))).subquery(f"near_{number}")
