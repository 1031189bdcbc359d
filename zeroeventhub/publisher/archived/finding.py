"""Moments, ids, counts, lags and splits of a feed whose history is in an archive."""

from bisect import bisect_left
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection

from zeroeventhub.errors import BadCursor, Trimmed
from zeroeventhub.protocol import Lag, TypeFilter
from zeroeventhub.publisher.archived.tier import GroupPlace, Tier
from zeroeventhub.publisher.keyset import NearRows
from zeroeventhub.publisher.lookups import CountQuery, IdQuery, LagQuery, TimeQuery, value_of
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.page_query import TypeCondition
from zeroeventhub.publisher.splits import FEW, Part, SplitQuery, cut

__all__ = [
    "ArchivedCounts",
    "ArchivedIds",
    "ArchivedLags",
    "ArchivedSplits",
    "ArchivedTimes",
]


class ArchivedCounts(CountQuery):
    """Find the event of a partition that is the last of so many.

    Args:
        tier: the archive.
        rows: finds the rows next to a place.
    """

    def __init__(self, tier: Tier, rows: NearRows) -> None:
        super().__init__(rows)
        self._tier = tier

    def find(
        self, connection: Connection, partition: int, events: int, *, after: int, until: int
    ) -> tuple[int, int]:
        """Return the position of the last of so many events, and how many they are."""
        boundary = self._tier.boundary(connection)
        position, found = after, 0
        end = min(boundary, until)
        for place in self._tier.groups(partition, after, end) if after < end else ():
            entry, left = place.entry, events - found
            if after < entry.first and entry.last <= end and _is_simple(place, left):
                position, found = entry.last, found + entry.events
                continue
            group = self._tier.group(place)
            start, stop = group.above(after), group.above(end)
            if count := min(group.count(start, stop), left):
                position, found = group.positions[group.index_of(start, count)], found + count
            if found == events:
                break
        if found == events or boundary >= until:
            return position, found
        last, more = super().find(
            connection, partition, events - found, after=max(after, boundary), until=until
        )
        return (last if more else position), found + more


def _is_simple(place: GroupPlace, left: int) -> bool:
    """Tell whether all places of a group have events, of which more are wanted."""
    return place.entry.places == place.entry.events < left


class ArchivedLags(LagQuery):
    """Count the events of a partition that lie behind a place.

    Args:
        tier: the archive.
        rows: finds the rows next to a place.
        time: as for `LagQuery`.
    """

    def __init__(self, tier: Tier, rows: NearRows, time: ColumnElement[Any] | None) -> None:
        super().__init__(rows, time)
        self._tier = tier

    def count(self, connection: Connection, partition: int, *, after: int, until: int) -> Lag:
        """Count events above one position and not above another."""
        boundary = self._tier.boundary(connection)
        end = min(boundary, until)
        places = events = 0
        first: datetime | None = None
        for place in self._tier.groups(partition, after, end) if after < end else ():
            group = None
            start, stop = 0, place.entry.places
            if not events or place.entry.last > end:
                group = self._tier.group(place)
                start, stop = group.above(after), group.above(end)
            count = place.entry.events if group is None else group.count(start, stop)
            if group is not None and count and not events:
                first = group.time(group.index_of(start, 1))
            places, events = places + stop - start, events + count
            if places > self._most:
                break
        hot = Lag(0, 0.0)
        if places <= self._most and boundary < until:
            hot = super().count(connection, partition, after=max(after, boundary), until=until)
        exact = hot.exact and places + hot.events <= self._most
        total = min(events + hot.events, self._most)
        if not events:
            return Lag(total, hot.seconds if exact or total else None, exact)
        age = None if first is None else (datetime.now(UTC) - first).total_seconds()
        return Lag(total, None if age is None else max(0.0, age), exact)


SEGMENTS = 64
"""How many segments are looked into for one question, at most; of others only their sizes count."""

GROUPS = 16
"""How many row groups are searched for an id, at most."""


class ArchivedTimes(TimeQuery):
    """Find the position before the first event of a moment or later.

    Args:
        tier: the archive.
        source: as for `TimeQuery`; so are the others.
        rows: see there.
        time: see there.
    """

    def __init__(self, tier: Tier, source: Source, rows: NearRows, time: NearRows | None) -> None:
        super().__init__(source, rows, time)
        self._tier = tier

    def position(
        self, connection: Connection, partition: int, moment: datetime, *, settled: int
    ) -> int:
        """Return the position after which all events of a moment or later lie."""
        end = min(self._tier.boundary(connection), settled)
        if not end:
            return super().position(connection, partition, moment, settled=settled)
        moment = self._floored(moment, connection.dialect)
        # The time at which positions were given rises with those of all partitions alike.
        searched = None if self._time is None else partition
        found: list[int] = []
        for place in self._tier.groups(
            searched, 0, end, lambda one: one.latest is not None and one.latest >= moment
        ):
            if found and place.segment.after >= min(found):
                break
            if place.entry.latest is not None and place.entry.latest >= moment:
                group = self._tier.group(place)
                index = group.first_since(moment)
                if index is not None and group.positions[index] <= end:
                    found.append(group.positions[index])
        if found:
            return min(found) - 1
        hot = super().position(connection, partition, moment, settled=settled)
        return max(hot, end)


class ArchivedIds(IdQuery):
    """Find the position of an event.

    Args:
        tier: the archive.
        source: as for `IdQuery`; so are the others.
        identity: see there.
        types: see there.
    """

    def __init__(
        self,
        tier: Tier,
        source: Source,
        identity: NearRows | None,
        types: TypeCondition | None = None,
    ) -> None:
        super().__init__(source, identity, types)
        self._tier = tier

    def position(
        self,
        connection: Connection,
        event_id: str,
        partition: int,
        *,
        until: int,
        types: TypeFilter | None = None,
    ) -> int:
        """Return the position of an event.

        Raises:
            BadCursor: no event of the partition, and of these types, has this id.
            Trimmed: there may be one in the archive, too far back to be looked for.
        """
        end = min(self._tier.boundary(connection), until)
        try:
            return super().position(connection, event_id, partition, until=until, types=types)
        except BadCursor:
            value = value_of(self._identity, event_id)
            if not end or value is None or self._searched is None:
                raise
            text = str(UUID(event_id)) if isinstance(value, UUID) else str(value)
            found = self._of_id(text, partition, end, types)
            if found is None:
                raise
            return found

    def _of_id(
        self, event_id: str, partition: int, end: int, types: TypeFilter | None
    ) -> int | None:
        """Search back from the newest segment."""
        searched = 0
        segments = self._tier.segments(0, end)
        for segment in reversed(segments[-SEGMENTS:]):
            places = [*self._tier.groups(partition, segment.after, min(segment.upto, end))]
            for place in reversed(places):
                entry = place.entry
                if entry.lowest is None or not entry.lowest <= event_id <= (entry.highest or ""):
                    continue
                if searched == GROUPS:
                    raise self._too_far
                searched += 1
                group = self._tier.group(place)
                allowed = None if types is None else group.of_types(types)
                index = group.last_of(event_id, allowed)
                if index is not None and group.positions[index] <= end:
                    return group.positions[index]
        if len(segments) > SEGMENTS:
            raise self._too_far
        return None

    @property
    def _too_far(self) -> Trimmed:
        return Trimmed(
            "The event of this id, if there is one, lies too far back in the archive to be looked "
            "for: read on from a cursor."
        )


class ArchivedSplits(SplitQuery):
    """Cut a partition's events into pieces that can be read side by side.

    Args:
        tier: the archive.
        rows: finds the rows next to a place.
        partitions: those that events may be in.
    """

    def __init__(self, tier: Tier, rows: NearRows, partitions: Collection[int]) -> None:
        super().__init__(rows)
        self._tier = tier
        self._partitions = len(partitions)

    def _between(
        self, connection: Connection, partition: int, count: int, after: int, until: int
    ) -> list[int]:
        boundary = self._tier.boundary(connection)
        if after >= boundary:
            return super()._between(connection, partition, count, after, until)
        end = min(boundary, until)
        parts = self._parts(partition, after, end)
        few = [] if until <= boundary else self._few(connection, partition, boundary, until)
        rows = sum(part.rows for part in parts)
        if rows + len(few) < FEW:
            positions = [*self._positions(partition, after, end), *few]
            count = min(count, len(positions))
            return [positions[number * len(positions) // count - 1] for number in range(1, count)]
        if len(few) < FEW:
            # Half a position, so that a place within it is one of a row.
            hot = [Part(position - 1, position, 1.0) for position in few]
            found = cut([*parts, *hot], count)
        else:
            found = self._search(
                connection, partition, count, low=few[0], until=until, before=parts
            )
        ends = [part.high for part in parts]
        # In the archive at the end of what holds the place: nothing has to be fetched for that.
        cold = [
            ends[min(bisect_left(ends, place), len(ends) - 1)]
            for place in found
            if place <= boundary
        ]
        above = [place for place in found if place > boundary]
        return [*cold, *(self._last(connection, partition, above) if above else [])]

    def _parts(self, partition: int, after: int, end: int) -> list[Part]:
        """Return how many rows there are, and where: by groups, or by segments if they are many."""
        segments = self._tier.segments(after, end)
        if len(segments) > SEGMENTS:
            return [Part(one.after, one.upto, one.places / self._partitions) for one in segments]
        parts = []
        for place in self._tier.groups(partition, after, end):
            entry = place.entry
            rows, last = entry.places, entry.last
            if entry.first <= after or entry.last > end:
                group = self._tier.group(place)
                start, stop = group.above(after), group.above(end)
                rows, last = stop - start, group.positions[stop - 1]
            if rows:
                parts.append(Part(max(entry.first - 1, after), last, rows))
        return parts

    def _positions(self, partition: int, after: int, end: int) -> list[int]:
        return [
            position
            for place in self._tier.groups(partition, after, end)
            for group in [self._tier.group(place)]
            for position in group.positions[group.above(after) : group.above(end)]
        ]
