"""Cut a partition into pieces of about the same size, for parallel readers."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from heapq import nlargest
from itertools import count as count_from
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    Select,
    func,
    literal_column,
    select,
    union_all,
)

from zeroeventhub.databases.index_hint import IndexHint
from zeroeventhub.publisher.archive_reader import ArchiveReader, Span
from zeroeventhub.publisher.keyset import HIGHEST, NearRows, parameter

ROWS = 100
"""Rows that a look reads on each side: about as many as a leaf of an index holds."""

LOOKS, LOOKS_A_PIECE = 1_024, 12
"""Looks that are made: a fixed number, and more for each piece."""

LOOKS_IF_DENSE = 128
"""The fixed number as long as every look has found a row at nearly every position: no range can
hold more rows than it seems to, and gaps that would matter are wide enough to be found."""

DENSE = 0.9
"""Rows per position from which rows count as dense."""

LOOKS_AT_ONCE = 64
"""Looks that are chosen at once, at most."""

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


class _Unseen(NamedTuple):
    """A range between what looks have seen.

    Attributes:
        left: the rows per position at its beginning; 0 if they are not known.
        right: those at its end.
        density: those around the look beside it.
    """

    low: int
    high: int
    left: float = 0.0
    right: float = 0.0
    density: float = 0.0

    @property
    def width(self) -> int:
        """Return the number of positions."""
        return self.high - self.low

    @property
    def potential(self) -> float:
        """Return how many rows it may have."""
        return max(self.left, self.right, self.density) * self.width


def places(
    low: int,
    high: int,
    count: int,
    see: Callable[[list[Look]], list[tuple[Window, Window]]],
    before: Sequence[Span] = (),
) -> list[int]:
    """Find places that cut the rows in [low, high] into pieces of nearly equal numbers of rows.

    `see` returns the windows below and above the places of looks, and `before` are the spans below
    the first row, which are cut as well. The places are in order, with or without rows at them.
    """
    numbers = count_from(1)
    spans = [*before]
    unseen, chosen = list[_Unseen](), [_Unseen(low, high)]
    looked, most_looks = 0, LOOKS_IF_DENSE + LOOKS_A_PIECE * count
    while chosen:
        looks = []
        for one in chosen:
            # A place in the middle half.
            share = 0.25 + next(numbers) * GOLDEN % 1 / 2
            looks.append(
                Look(one.low, min(one.low + int(one.width * share), one.high - 1), one.high)
            )
        for one, (below, above) in zip(chosen, see(looks), strict=True):
            # Include the gap that the place is in: a random place falls into a gap as often as
            # gaps occur, so the density is right on average.
            density = (below.rows + above.rows - 1) / max(1, above.far - below.far)
            if density < DENSE:
                most_looks = LOOKS + LOOKS_A_PIECE * count
            spans.append(Span(below.far, below.near, below.rows))
            spans.append(Span(above.near, above.far, above.rows))
            if not below.is_whole:
                unseen.append(_Unseen(one.low, below.far, one.left, below.density, density))
            if not above.is_whole:
                unseen.append(_Unseen(above.far, one.high, above.density, one.right, density))
        looked += len(chosen)
        unseen = [each for each in unseen if each.width]
        # The widest ranges, and those that may have the most rows.
        most = min(most_looks - looked, max(4, len(unseen) // 4), LOOKS_AT_ONCE)
        chosen = nlargest(most // 2, unseen, key=lambda each: each.width)
        rest = [each for each in unseen if each not in chosen]
        chosen += nlargest(most - most // 2, rest, key=lambda each: each.potential)
        unseen = [each for each in rest if each not in chosen]
    return cut(
        [*spans, *(Span(one.low, one.high, one.width * one.density) for one in unseen)], count
    )


def cut(spans: Iterable[Span], count: int) -> list[int]:
    """Return the places between pieces of nearly equal numbers of rows."""
    filled = sorted(span for span in spans if span.rows > 0)
    share = sum(span.rows for span in filled) / count
    found = list[int]()
    passed = 0.0
    for span in filled:
        while (number := len(found) + 1) < count and number * share <= passed + span.rows:
            within = (number * share - passed) / span.rows
            found.append(span.low + int((span.high - span.low) * within))
        passed += span.rows
    return found


BATCH = 16
"""Looks that one statement makes, at most."""


class SplitQuery:
    """Cut a partition's events into pieces that can be read in parallel.

    It reads an index 2,053 times at most, or 261 times where rows are dense, plus 26 times for each
    piece: once 1,000 entries, and 100 at most each other time. The archive, if any, holds the
    events below its boundary.
    """

    def __init__(self, rows: NearRows, archive: ArchiveReader | None) -> None:
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
        boundary, spans = after, list[Span]()
        if self._archive is not None:
            boundary = max(after, self._archive.boundary(connection))
            spans = self._archive.spans(partition, after, min(boundary, until))
        query = self._rows.rows(self._rows.hint(connection), self._rows.source.position)
        values = {"partition": partition, "after": boundary, "until": until}
        few = [*connection.scalars(query.limit(literal_column(str(FEW))), values)]
        if self._archive is not None and sum(span.rows for span in spans) + len(few) < FEW:
            spans = _single(self._archive.positions(partition, after, min(boundary, until)))
        if len(few) < FEW:
            found = cut([*spans, *_single(few)], count)
        else:
            low, high = few[0], max(self._last(connection, partition, [until]), default=0)
            see = partial(self._look, connection, partition)
            is_there = low < high  # unless a trim is deleting the rows
            found = places(low, high, count, see, spans) if is_there else cut(spans, count)
            in_table = [place for place in found if place > boundary]
            found[len(found) - len(in_table) :] = self._last(connection, partition, in_table)
        ends = [span.high for span in spans]
        # In the archive, cut at the end of the span that holds the place: the manifest or footer
        # has that position, so nothing has to be fetched.
        return [
            place if place > boundary else ends[min(bisect_left(ends, place), len(ends) - 1)]
            for place in found
        ]

    def _last(self, connection: Connection, partition: int, at: Sequence[int]) -> list[int]:
        """Find the last rows at or below some places."""
        looks = [Look(0, place, place) for place in at]
        found = self._look(connection, partition, looks, rows=1)
        return [below.near for below, _ in found if below.rows]

    def _look(
        self, connection: Connection, partition: int, looks: Sequence[Look], rows: int = ROWS
    ) -> list[tuple[Window, Window]]:
        windows = []
        hint = self._rows.hint(connection)
        while looks:
            # Batches have sizes of powers of two, so that few statements differ.
            size = min(BATCH, 1 << len(looks).bit_length() - 1)
            batch, looks = looks[:size], looks[size:]
            values = {"partition": partition}
            for number, look in enumerate(batch):
                values |= {f"{name}_{number}": at for name, at in look._asdict().items()}
            found = sorted(connection.execute(self._statement(size, rows, hint), values).all())
            for (_, place, _), below, above in zip(batch, found[::2], found[1::2], strict=True):
                _, fewer, far_below, near_below = below
                _, more, near_above, far_above = above
                windows.append(
                    (
                        Window(fewer, near_below or place, far_below or place),
                        Window(more, near_above or place, far_above or place),
                    )
                )
        return windows

    def _build(self, size: int, rows: int, hint: IndexHint) -> CompoundSelect[Any]:
        """Put so many looks into one statement, each with a row below its place and one above."""
        near, position = self._rows, self._rows.source.position.label("position")
        query = select(position).select_from(near.source.table)
        lookups: list[Select[Any]] = []
        for number in range(size):
            low, place, high = (parameter(f"{name}_{number}") for name in Look._fields)
            sides = near.below(query, hint, place), near.above(query, hint, place, HIGHEST)
            for side in sides:
                name = f"near_{len(lookups)}"
                found = side.limit(literal_column(str(rows))).subquery(name).c.position
                columns: tuple[ColumnElement[Any], ...] = (
                    literal_column(str(len(lookups))),
                    func.count(),
                    func.min(found),
                    func.max(found),
                )
                # Outside the subquery with the limit, so that the ends cannot change its plan.
                lookups.append(select(*columns).where(found.between(low, high)))
        return union_all(*lookups)


def _single(positions: Iterable[int]) -> list[Span]:
    """Return spans of one row each, so that they are cut at rows."""
    return [Span(position, position, 1.0) for position in positions]
