"""Find the cursor of a moment, of an id or of a number of events, and count a reader's lag."""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    and_,
    case,
    func,
    literal,
    literal_column,
    select,
    true,
)
from sqlalchemy import types as sql

from zeroeventhub.databases import database_of
from zeroeventhub.databases.index_hint import IndexHint
from zeroeventhub.databases.json_form import json_form
from zeroeventhub.databases.port import Database
from zeroeventhub.databases.statements import as_utc
from zeroeventhub.errors import BadCursor, ConfigurationError
from zeroeventhub.protocol import Lag, TypeFilter
from zeroeventhub.publisher.archive_reader import ArchiveReader
from zeroeventhub.publisher.cursor import HIGHEST_POSITION
from zeroeventhub.publisher.keyset import LIMIT, ONE, NearRows, join_events, parameter
from zeroeventhub.publisher.mapping import UNREADABLE, as_moment, unreadable
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.page_query import TypeCondition

# This OFFSET skips nothing, but keeps the database from scanning the events in the order of
# positions, which it prefers if it overestimates how many match.
_NONE: ColumnElement[int] = literal_column("0")


MOST = 1_000_000
"""How many events `lag` counts at most, which takes a database half a second."""

MOST_LOOKED_UP = 100_000
"""The same if positions are in a side table, so that the database looks up each event."""

AT_ONCE = 100_000
"""Positions that a statement examines at most to find the place after a number of events, few
enough even if the database has to look up each event."""


class Lookups:
    """Find positions by a time, by an id or by a number of events, and count a reader's lag.

    Without a column of times, the time of an event is that at which the ordering gave it its
    position, if it records that.

    Attributes:
        times: finds events by their time column; None without one.
        ids: finds events by the column of ids; None if an event's id is its position.
        searches: those of both that have queries: ids of some types cannot be searched.
    """

    def __init__(
        self,
        near: NearRows,
        all_near: NearRows,
        *,
        time: ColumnElement[Any] | None,
        identity: ColumnElement[Any] | None,
        types: TypeCondition | None,
        archive: ArchiveReader | None,
    ) -> None:
        self._near = near
        self._all_near = all_near
        self._source = source = near.source
        self._types = types
        self._archive = archive
        table = source.table if source.events is None else source.events
        self.times: NearRows | None = None
        self.ids: NearRows | None = None
        if time is not None:
            partition = source.partition if source.events is None else None
            self.times = NearRows(Source(table, time, partition))
        if identity is not None:
            self.ids = NearRows(Source(table, identity, None))
        self.searches = [] if self.times is None else [self.times]
        if self.ids is not None and is_searched(self.ids.source.position):
            self.searches.append(self.ids)
        column = source.given_at if time is None else time
        self._time = None if column is None else json_form(column, "time")
        self._most = MOST if source.events is None else MOST_LOOKED_UP
        self._counting = lru_cache(maxsize=2)(self._build_counting)

    def last(self, connection: Connection, until: int) -> int:
        """Return the last position in the table at or below `until`; 0 if there is none."""
        return self._all_near.last(connection, until) or 0

    def of_time(
        self, connection: Connection, partition: int, moment: datetime, *, settled: int
    ) -> int:
        """Return the position after which all events of a moment or later follow.

        It is the horizon `settled` while no settled event is of the moment or later; after that,
        it is always the same position. Times need not rise with positions.
        """
        end = 0
        if self._archive is not None and (end := min(self._archive.boundary(connection), settled)):
            # The time at which positions were given rises with the positions of all partitions.
            searched = None if self.times is None else partition
            since = self._truncate(connection, moment)
            first = self._archive.first_since(searched, since, end)
            if first is not None:
                return first - 1
        return max(self.of_time_in_table(connection, partition, moment, settled=settled), end)

    def of_time_in_table(
        self, connection: Connection, partition: int, moment: datetime, *, settled: int
    ) -> int:
        """Return the same position, though times of events that the table lacks do not count."""
        moment = self._truncate(connection, moment)
        if self.times is not None:
            return self._first(connection, partition, moment, self.times, settled)
        if self._source.given_at is not None:
            return self._bisect(connection, moment, self._source.given_at, settled)
        raise ConfigurationError(
            "This feed does not know the times of its events: say which column is their time."
        )

    def _truncate(self, connection: Connection, moment: datetime) -> datetime:
        """Truncate a moment to the precision of the time column, as the database truncates times.

        An event written just after the moment may have got a time before it, and only the truncated
        moment finds that event.
        """
        if moment.tzinfo is None:
            raise ConfigurationError("A moment needs a time zone, such as datetime.now(UTC) has.")
        time = self._source.given_at if self.times is None else self.times.source.position
        if time is None:
            return moment
        database = database_of(connection)
        digits = database.decimals(connection, time, is_side_table=self.times is None)
        unit = 10 ** (6 - digits)
        return moment.replace(microsecond=moment.microsecond // unit * unit)

    def _first(
        self,
        connection: Connection,
        partition: int,
        moment: datetime,
        times: NearRows,
        settled: int,
    ) -> int:
        """Return the position before the first event of a moment or later by the time column."""
        source, time = self._source, times.source.position
        if not isinstance(time.type, sql.DateTime):
            raise ConfigurationError(
                f"A moment is found by a column of timestamps; {time} has the SQL type "
                f"{time.type!r}."
            )
        utc = moment.astimezone(UTC).replace(tzinfo=None)
        conditions = [database_of(connection).not_before(time, utc)]
        if source.partition is not None and source.events is None:
            conditions.append(source.partition == partition)
        first = self._position(
            connection, times, conditions, func.min, partition=partition, until=settled
        )
        return settled if first is None else first - 1

    def _bisect(
        self, connection: Connection, moment: datetime, given_at: ColumnElement[Any], settled: int
    ) -> int:
        """Search by bisection, as these times rise with the positions of all partitions."""
        hint = self._all_near.hint(connection)
        query = self._all_near.rows(hint, self._source.position, given_at).limit(ONE)
        below, above = 0, settled
        while below < above:
            middle = (below + above) // 2
            row = connection.execute(query, {"after": middle, "until": above}).first()
            if row is None or as_utc(row[1]) >= moment:
                above = middle
            else:
                below = int(row[0])
        return below

    def of_id(
        self,
        connection: Connection,
        event_id: str,
        partition: int,
        *,
        until: int,
        types: TypeFilter | None = None,
    ) -> int:
        """Return the position of an event; also of a deleted one if its id was its position.

        Raises:
            BadCursor: no event of the partition and of these types has this id.
            Trimmed: the search in the archive gave up before the beginning.
            ConfigurationError: ids of this SQL type cannot be searched.
        """
        identity = self._source.position if self.ids is None else self.ids.source.position
        value = value_of(identity, event_id)
        if self.ids is None:
            if value is not None and 0 < value <= until:
                return int(value)
        elif value is not None:
            conditions = same_as(identity, value, database_of(connection))
            if types is not None and self._types is not None:
                conditions.append(self._types.condition(types))
            found = self._position(
                connection, self.ids, conditions, func.max, partition=partition, until=until
            )
            archive = self._archive if found is None else None
            if archive is not None and (end := min(archive.boundary(connection), until)):
                found = archive.last_of(str(value), partition, end, types)
            if found is not None:
                return found
        raise BadCursor("No event of this feed has this id.")

    def _position(
        self,
        connection: Connection,
        searched: NearRows,
        conditions: Iterable[ColumnElement[bool]],
        extreme: Callable[[ColumnElement[Any]], ColumnElement[Any]],
        *,
        partition: int,
        until: int,
    ) -> int | None:
        """Return the `extreme` position, up to `until`, of the events that fit conditions."""
        source, table = self._source, searched.source.table
        place = [source.position.label("position")]
        if source.partition is not None:
            place.append(source.partition.label("partition"))
        columns = place
        if source.events is not None:
            columns = [column.label(name) for name, column in source.key.items()]
        query: Select[Any] = select(*columns).where(*conditions).offset(_NONE)
        query = searched.hint(connection).through(query, table)
        if source.events is not None:
            events = query.subquery("event")
            same = and_(*(source.table.c[name] == events.c[name] for name in source.key))
            if source.lateral:
                position = select(*place).where(same).limit(ONE).lateral("place")
                query = select(*position.c).select_from(events.join(position, true()))
            else:
                query = select(*place).select_from(events.join(source.table, same))
            query = query.offset(_NONE)
        found = query.subquery("found")
        query = select(extreme(found.c.position)).where(found.c.position <= parameter("until"))
        if source.partition is not None:
            query = query.where(found.c.partition == partition)
        result = connection.scalar(query, {"until": until})
        return None if result is None else int(result)

    def lag(self, connection: Connection, partition: int, *, after: int, until: int) -> Lag:
        """Count the events in (after, until]; raise FeedFailure if the first one's time is none."""
        if self._archive is None:
            return self._lag_in_table(connection, partition, after, until)
        boundary = self._archive.boundary(connection)
        end = min(boundary, until)
        places, events, first = self._archive.measure(partition, after, end, self._most)
        rest = Lag(0, 0.0)
        if places <= self._most:
            rest = self._lag_in_table(connection, partition, max(after, boundary), until)
        exact = rest.exact and places + rest.events <= self._most
        total = min(events + rest.events, self._most)
        if not events:
            return Lag(total, rest.seconds if exact or total else None, exact)
        return Lag(total, _age(first), exact)

    def _lag_in_table(self, connection: Connection, partition: int, after: int, until: int) -> Lag:
        if after >= until:
            return Lag(0, 0.0)
        limit = self._most + 1
        places, events, first, *_ = self._count(connection, partition, after, until, limit)
        exact = places <= self._most
        if not events:
            # All positions that were examined may belong to deleted events.
            return Lag(0, 0.0 if exact else None, exact)
        return Lag(min(events, self._most), _age(self.happened(connection, first)), exact)

    def _count(
        self, connection: Connection, partition: int, after: int, until: int, limit: int
    ) -> Any:
        """Examine the first positions in (after, until]; see `_build_counting`."""
        query = self._counting(self._near.hint(connection))
        values = {"partition": partition, "after": after, "until": until, "limit": limit}
        return connection.execute(query, values).one()

    def _build_counting(self, hint: IndexHint) -> Select[Any]:
        """Count positions and events, and find the first and last event, and the last position."""
        source = self._source
        references = [source.table.c[name] for name in source.key]
        query = self._near.rows(hint, source.position.label("position"), *references)
        near = query.limit(LIMIT).subquery("near")
        found: FromClause = near
        count: ColumnElement[Any] = func.count()
        there: ColumnElement[Any] = near.c.position
        if source.events is not None:
            found, _, presence = join_events(source, near)
            count, there = func.count(presence), case((presence.is_not(None), near.c.position))
        columns: tuple[ColumnElement[Any], ...] = (
            func.count(),
            count,
            func.min(there),
            func.max(there),
            func.max(near.c.position),
        )
        return select(*columns).select_from(found)

    def happened(self, connection: Connection, position: int) -> datetime | None:
        """Return when the event at a position happened; None if it has no time."""
        if self._time is None:
            return None
        query = (
            select(self._time.select)
            .select_from(self._source.join(self._source.table))
            .where(self._source.position == parameter("position"))
        )
        try:
            found = connection.scalar(query, {"position": position})
            if found is not None and self._time.convert is not None:
                found = self._time.convert(found)
            return None if found is None else as_moment(found)
        except UNREADABLE as error:
            raise unreadable(f"The event at position {position}", error, "has no time") from error

    def of_count(
        self, connection: Connection, partition: int, events: int, *, after: int, until: int
    ) -> tuple[int, int]:
        """Return the position of the last event counted in (after, until], and the count.

        The count is smaller than `events` if the range has fewer.
        """
        position, found = after, 0
        if self._archive is not None:
            boundary = self._archive.boundary(connection)
            position, found = self._archive.count(partition, after, min(boundary, until), events)
            after = max(after, boundary)
        limit = min(events - found, AT_ONCE)
        while found < events and after < until:
            places, count, _, last, end = self._count(connection, partition, after, until, limit)
            left = events - found
            if count > left:  # the last one that is wanted comes earlier
                limit = max(left, limit // 2)
                continue
            if count:
                position, found = last, found + count
            after = end if places == limit else until
            # More positions at once where some belong to deleted events.
            limit = min(left - count if count == places else 2 * limit, AT_ONCE)
        return position, found


def _age(happened: datetime | None) -> float | None:
    """Return how long ago something happened, by this machine's clock."""
    # Clocks differ, and a writer may give an event a future time.
    return None if happened is None else max(0.0, (datetime.now(UTC) - happened).total_seconds())


def same_as(
    column: ColumnElement[Any], value: Any, database: Database
) -> list[ColumnElement[bool]]:
    """Return the conditions that a column equals a value; an index serves the first of them."""
    if isinstance(column.type, sql.Integer):
        return [column == literal(value, sql.BigInteger)]  # it may be too large for the column
    same = [column == value]
    if isinstance(column.type, sql.String):
        same.append(database.exact(column) == database.exact(literal(value, sql.Text)))
    return same


def is_searched(identity: ColumnElement[Any]) -> bool:
    """Return whether events can be found by a column of ids."""
    try:
        value_of(identity, "")
    except ConfigurationError:
        return False
    return True


def value_of(column: ColumnElement[Any], text: str) -> Any:
    """Convert the text of an id or a key to the column's type; None if it has no such value."""
    kind = column.type
    if isinstance(kind, sql.Integer):
        if not _WHOLE.fullmatch(text):
            return None
        number = int(text)
        return number if -HIGHEST_POSITION <= number <= HIGHEST_POSITION else None
    if isinstance(kind, sql.Uuid):
        try:
            value = UUID(text)
        except ValueError:
            return None
        return value if kind.as_uuid else str(value)
    if isinstance(kind, sql.String) and not isinstance(kind, sql.Enum):
        return None if "\0" in text else text
    raise ConfigurationError(
        f"An event is found by an id of text, whole numbers or UUIDs; {column} has the "
        f"SQL type {kind!r}."
    )


_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)
