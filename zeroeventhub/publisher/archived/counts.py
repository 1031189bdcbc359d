"""How many events lie behind a place, and which is the last of so many, also in an archive."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection

from zeroeventhub.protocol import Lag
from zeroeventhub.publisher.archived.tier import GroupPlace, Tier
from zeroeventhub.publisher.count_query import CountQuery
from zeroeventhub.publisher.lag_query import LagQuery
from zeroeventhub.publisher.near_rows import NearRows

__all__ = ["ArchivedCounts", "ArchivedLags"]


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
