"""The query that cuts a partition into pieces of nearly equal numbers of events."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
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

from zeroeventhub.publisher.near_rows import HIGHEST, NearRows, given
from zeroeventhub.publisher.split_plan import FEW, ROWS, Look, Part, Window, cut, places
from zeroeventhub.publisher.way import Way

__all__ = ["SplitQuery"]

BATCH = 32
"""How many lookups one statement makes, at most."""


class _Probe(NamedTuple):
    """Ask for the rows next to a place, on one side of it and no farther than an end."""

    place: int
    end: int
    above: bool


class SplitQuery:
    """Cut a partition's events into pieces that can be read side by side.

    It looks into an index 2,053 times at most, and 25 times more for each piece, and sees no more
    than 100 of its entries each time, but once 1,000.

    Args:
        rows: finds the rows next to a place.
    """

    def __init__(self, rows: NearRows) -> None:
        self._rows = rows
        self._statement = lru_cache(maxsize=100)(self._build)

    def positions(
        self, connection: Connection, partition: int, *, count: int, after: int, until: int
    ) -> list[int]:
        """Return the boundaries of pieces, each of the events above one and up to the next.

        Args:
            connection: to the feed's database.
            partition: one of the feed's.
            count: how many pieces; there are fewer if there are fewer events.
            after: the first boundary.
            until: the last one, a position at or below the horizon.

        Returns:
            Rising positions, those of rows but for the first and the last; the first twice if
            nothing can lie between.
        """
        if after >= until:
            return [after, after]
        boundaries = [after]
        if count > 1:
            for position in self._between(connection, partition, count, after, until):
                if position > boundaries[-1]:
                    boundaries.append(position)
        return [*boundaries, until]

    def _between(
        self, connection: Connection, partition: int, count: int, after: int, until: int
    ) -> list[int]:
        few = self._few(connection, partition, after, until)
        if len(few) < FEW:
            count = min(count, len(few))
            return [few[number * len(few) // count - 1] for number in range(1, count)]
        return self._last(
            connection,
            partition,
            self._search(connection, partition, count, low=few[0], until=until),
        )

    def _search(
        self,
        connection: Connection,
        partition: int,
        count: int,
        *,
        low: int,
        until: int,
        before: Sequence[Part] = (),
    ) -> list[int]:
        """Return places between pieces, at which there need not be rows.

        Args:
            connection: to the feed's database.
            partition: one of the feed's.
            count: how many pieces.
            low: the position of the first row.
            until: the last boundary.
            before: what is known of rows below the first one.
        """
        high = max(self._last(connection, partition, [until]), default=0)
        if low >= high:  # somebody is deleting them
            return cut(before, count) if before else []
        search = places(low, high, count, before)
        try:
            looks = next(search)
            while True:
                looks = search.send(self._look(connection, partition, looks))
        except StopIteration as end:
            found: list[int] = end.value
            return found

    def _few(self, connection: Connection, partition: int, after: int, until: int) -> list[int]:
        """Read the first positions."""
        near = self._near(0, FEW, self._rows.way(connection), above=True)
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
        probes = [
            probe
            for low, place, high in looks
            for probe in (_Probe(place, low, above=False), _Probe(place, high, above=True))
        ]
        windows = self._probe(connection, partition, probes, ROWS)
        return list(zip(windows[::2], windows[1::2], strict=True))

    def _probe(
        self, connection: Connection, partition: int, probes: Sequence[_Probe], rows: int
    ) -> list[Window]:
        windows = []
        way = self._rows.way(connection)
        for batch in _batches(probes):
            values = {"partition": partition}
            for number, probe in enumerate(batch):
                values |= {f"place_{number}": probe.place, f"end_{number}": probe.end}
            sides = tuple(probe.above for probe in batch)
            found = connection.execute(self._statement(sides, rows, way), values).all()
            for probe, (_, seen, low, high) in zip(batch, sorted(found), strict=True):
                near, far = (low, high) if probe.above else (high, low)
                windows.append(
                    Window(seen, near, far) if seen else Window(0, probe.place, probe.place)
                )
        return windows

    def _build(self, sides: Sequence[bool], rows: int, way: Way) -> CompoundSelect[Any]:
        """Put as many lookups as there are sides into one statement."""
        lookups = []
        for number, above in enumerate(sides):
            near = self._near(number, rows, way, above=above)
            position, end = near.c.position, given(f"end_{number}")
            columns: tuple[ColumnElement[Any], ...] = (
                literal_column(str(number)),
                func.count(),
                func.min(position),
                func.max(position),
            )
            # The end comes after the limit, so that it cannot change how rows are found.
            within = position <= end if above else position >= end
            lookups.append(select(*columns).select_from(near).where(within))
        return union_all(*lookups)

    def _near(self, number: int, rows: int, way: Way, *, above: bool) -> Subquery:
        """Select the positions next to the parameter `place_<number>`, on one side of it."""
        source, here = self._rows.source, given(f"place_{number}")
        query = select(source.position.label("position")).select_from(source.table)
        if above:
            query = self._rows.above(query, way, here, HIGHEST)
        else:
            query = self._rows.below(query, way, here)
        return query.limit(literal_column(str(rows))).subquery(f"near_{number}")


def _batches(probes: Sequence[_Probe]) -> Iterator[Sequence[_Probe]]:
    """Cut probes into batches whose sizes are powers of two, so that statements are few."""
    while probes:
        size = min(BATCH, 1 << len(probes).bit_length() - 1)
        yield probes[:size]
        probes = probes[size:]
