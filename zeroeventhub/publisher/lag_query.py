"""The query that counts the events behind a place, and finds how long ago the first happened."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Subquery,
    case,
    func,
    literal_column,
    select,
    true,
)

from zeroeventhub.errors import FeedFailure
from zeroeventhub.protocol import Lag
from zeroeventhub.publisher.json_form import json_form
from zeroeventhub.publisher.mapping import moment
from zeroeventhub.publisher.near_rows import NearRows, given
from zeroeventhub.publisher.way import Way

__all__ = ["LagQuery"]

MOST = 1_000_000
"""How many events are counted, at most: what a database does in half a second."""

MOST_LOOKED_UP = 100_000
"""The same where positions lie beside the events, and each event has to be looked up."""


class LagQuery:
    """Count the events of a partition that lie behind a place.

    Args:
        rows: finds the rows next to a place.
        time: the column of the time of an event; None to take the time at which it was given its
            position, where the ordering keeps that.
    """

    def __init__(self, rows: NearRows, time: ColumnElement[Any] | None) -> None:
        self._rows = rows
        self._source = source = rows.source
        told = source.given_at if time is None else time
        self._time = None if told is None else json_form(told, "time")
        self._most = MOST if source.events is None else MOST_LOOKED_UP
        self._statement = lru_cache(maxsize=2)(self._build)

    def count(self, connection: Connection, partition: int, *, after: int, until: int) -> Lag:
        """Count events above one position and not above another.

        Args:
            connection: to the feed's database.
            partition: one of the feed's.
            after: the place of the reader.
            until: the horizon.

        Raises:
            FeedFailure: the time of the first one is none.
        """
        if after >= until:
            return Lag(0, 0.0)
        query = self._statement(self._rows.way(connection))
        values = {"partition": partition, "after": after, "until": until}
        places, events, first = connection.execute(query, values).one()
        exact = places <= self._most
        if not events:
            # Places of events that are deleted may fill all that was looked at.
            return Lag(0, 0.0 if exact else None, exact)
        return Lag(min(events, self._most), self._age(connection, first), exact)

    def _build(self, way: Way) -> Select[Any]:
        source = self._source
        references = [source.table.c[name] for name in source.key]
        query = select(source.position.label("position"), *references).select_from(source.table)
        query = self._rows.above(query, way, given("after"), given("until"))
        near = query.limit(literal_column(str(self._most + 1))).subquery("near")
        found, presence = self._join(near)
        columns: tuple[ColumnElement[Any], ...] = (
            func.count(),
            func.count(presence),
            func.min(case((presence.is_not(None), near.c.position))),
        )
        return select(*columns).select_from(found)

    def _join(self, near: Subquery) -> tuple[FromClause, ColumnElement[Any]]:
        """Find which of the positions still have their events, and what is not NULL in those."""
        if self._source.events is None:
            return near, near.c.position
        presence: ColumnElement[Any] = next(iter(self._source.key.values()))
        if not self._source.lateral:
            return self._source.join(near), presence
        event: Select[Any] = select(literal_column("1").label("presence"))
        event = event.select_from(self._source.events).where(self._source.same(near))
        found = event.limit(1).lateral("event")
        return near.join(found, true(), isouter=True), found.c.presence

    def _age(self, connection: Connection, position: int) -> float | None:
        """Return how long ago the event at a position happened, by this machine's clock."""
        happened = self.happened(connection, position)
        if happened is None:
            return None
        # Clocks differ, and an event may have been given a time to come.
        return max(0.0, (datetime.now(UTC) - happened).total_seconds())

    def happened(self, connection: Connection, position: int) -> datetime | None:
        """Return when the event at a position happened; None where nobody knows.

        Raises:
            FeedFailure: its time is none.
        """
        if self._time is None:
            return None
        query = (
            select(self._time.select)
            .select_from(self._source.join(self._source.table))
            .where(self._source.position == given("position"))
        )
        try:
            told = connection.scalar(query, {"position": position})
            if told is not None and self._time.convert is not None:
                told = self._time.convert(told)
            return None if told is None else moment(told)
        except (TypeError, ValueError, LookupError) as error:
            raise FeedFailure(f"The event at position {position} has no time: {error}") from error
