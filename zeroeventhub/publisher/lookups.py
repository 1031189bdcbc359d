"""Find the cursor of a moment, of an id or of a number of events, and count a reader's lag."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Enum,
    FromClause,
    Integer,
    Select,
    String,
    Subquery,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    func,
    literal,
    literal_column,
    select,
    true,
)
from sqlalchemy import types as sql

from zeroeventhub.databases import database_of
from zeroeventhub.databases.clock import as_utc
from zeroeventhub.databases.index_hint import IndexHint
from zeroeventhub.databases.json_form import json_form
from zeroeventhub.databases.port import Database
from zeroeventhub.errors import BadCursor, ConfigurationError, FeedFailure
from zeroeventhub.protocol import Lag, TypeFilter
from zeroeventhub.publisher.cursor import HIGHEST_POSITION
from zeroeventhub.publisher.keyset import HIGHEST, LIMIT, NearRows, given
from zeroeventhub.publisher.mapping import moment
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.page_query import TypeCondition

if TYPE_CHECKING:
    from zeroeventhub.publisher.archive_reader import ArchiveReader

__all__ = [
    "CountQuery",
    "IdQuery",
    "LagQuery",
    "TimeQuery",
    "same_as",
    "value_of",
]

_ONE: ColumnElement[int] = literal_column("1")

# Skips nothing, but keeps the database from scanning the events in the order of positions, which it
# prefers if it overestimates how many match.
_NONE: ColumnElement[int] = literal_column("0")


def positions_of(
    source: Source, searched: IndexHint, table: FromClause, *conditions: ColumnElement[bool]
) -> Subquery:
    """Select the positions of events, and their partitions if the feed has a column for them.

    The events are found by the conditions on columns of their table, with an index hint.
    """
    query: Select[Any]
    place = [source.position.label("position")]
    if source.partition is not None:
        place.append(source.partition.label("partition"))
    if source.events is None:
        query = select(*place).where(*conditions).offset(_NONE)
        return searched.through(query, table).subquery("found")
    references = [column.label(name) for name, column in source.key.items()]
    query = select(*references).where(*conditions).offset(_NONE)
    events = searched.through(query, table).subquery("event")
    same = and_(*(source.table.c[name] == events.c[name] for name in source.key))
    if source.lateral:
        position = select(*place).where(same).limit(_ONE).lateral("place")
        query = select(*position.c).select_from(events.join(position, true()))
    else:
        query = select(*place).select_from(events.join(source.table, same))
    return query.offset(_NONE).subquery("found")


def with_events(
    source: Source, events: FromClause, positions: Subquery, *, isouter: bool
) -> tuple[FromClause, ColumnElement[Any]]:
    """Join events to positions of a side table.

    Returns:
        The join, and a column that is NULL in the rows of deleted events if `isouter`.
    """
    if not source.lateral:
        joined = positions.join(events, source.same(positions), isouter=isouter)
        return joined, next(iter(source.key.values()))
    query: Select[Any] = select(_ONE.label("presence")).select_from(events)
    event = query.where(source.same(positions)).limit(_ONE).lateral("event")
    return positions.join(event, true(), isouter=isouter), event.c.presence


class TimeQuery:
    """Find the position before the first event of a moment or later.

    Times need not rise with positions: every event of the moment or later is above the result.

    Args:
        source: the table of the events' positions.
        rows: finds the rows next to a position, in all partitions.
        time: finds events by their time column; None to use the time at which the ordering gave
            an event its position, if it records that.
        archive: holds the events below its boundary; None if the table has all of them.
    """

    def __init__(
        self,
        source: Source,
        rows: NearRows,
        time: NearRows | None,
        archive: "ArchiveReader | None" = None,
    ) -> None:
        self._archive = archive
        self._source = source
        self._rows = rows
        self._time = time

    def position(
        self, connection: Connection, partition: int, moment: datetime, *, settled: int
    ) -> int:
        """Return the position after which all events of a moment or later follow.

        It is the horizon `settled` while no settled event is of the moment or later; after that,
        it is always the same position.

        Raises:
            ConfigurationError: the moment has no zone, or the feed does not know times.
        """
        moment = self._floored(connection, moment)
        end = 0 if self._archive is None else min(self._archive.boundary(connection), settled)
        if self._archive is None or not end:
            return self._in_table(connection, partition, moment, settled)
        # The time at which positions were given rises with the positions of all partitions.
        searched = None if self._time is None else partition
        first = self._archive.first_since(searched, moment, end)
        if first is not None:
            return first - 1
        return max(self._in_table(connection, partition, moment, settled), end)

    def before(
        self, connection: Connection, moment: datetime, partitions: Iterable[int], *, settled: int
    ) -> int:
        """Return the position at and below which all events of some partitions are older."""
        return min(
            self.position(connection, partition, moment, settled=settled)
            for partition in partitions
        )

    def _in_table(
        self, connection: Connection, partition: int, moment: datetime, settled: int
    ) -> int:
        if self._time is not None:
            return self._first(connection, partition, moment, self._time, settled)
        if self._source.given_at is not None:
            return self._bisect(connection, moment, self._source.given_at, settled)
        raise ConfigurationError(
            "This feed does not know the times of its events: say which column is their time."
        )

    def _floored(self, connection: Connection, moment: datetime) -> datetime:
        """Truncate a moment to the precision of the time column, as the database truncates times.

        An event written just after the moment may have got a time before it, and only the truncated
        moment finds that event.
        """
        if moment.tzinfo is None:
            raise ConfigurationError("A moment needs a time zone, such as datetime.now(UTC) has.")
        time = self._source.given_at if self._time is None else self._time.source.position
        kind = None if time is None else time.type.dialect_impl(connection.dialect)
        digits = database_of(connection).decimals(kind, is_side_table=self._time is None)
        unit = 10 ** (6 - digits)
        return moment.replace(microsecond=moment.microsecond // unit * unit)

    def _first(
        self,
        connection: Connection,
        partition: int,
        moment: datetime,
        searched: NearRows,
        settled: int,
    ) -> int:
        time = searched.source.position
        if not isinstance(time.type, sql.DateTime):
            raise ConfigurationError(
                f"A moment is found by a column of timestamps; {time} has the SQL type "
                f"{time.type!r}."
            )
        source = self._source
        stored = moment.astimezone(UTC)
        if not getattr(time.type, "timezone", False):
            stored = stored.replace(tzinfo=None)
        conditions = [database_of(connection).not_before(time, stored)]
        if source.partition is not None and source.events is None:
            conditions.append(source.partition == partition)
        hint = searched.hint(connection)
        found = positions_of(source, hint, searched.source.table, *conditions)
        query = select(func.min(found.c.position)).where(found.c.position <= given("until"))
        if source.partition is not None:
            query = query.where(found.c.partition == partition)
        first = connection.scalar(query, {"until": settled})
        return settled if first is None else int(first) - 1

    def _bisect(
        self, connection: Connection, moment: datetime, given_at: ColumnElement[Any], settled: int
    ) -> int:
        """Search by bisection, as these times rise with the positions of all partitions."""
        query = select(self._source.position, given_at).select_from(self._source.table)
        hint = self._rows.hint(connection)
        query = self._rows.above(query, hint, given("after"), HIGHEST).limit(_ONE)
        below, above = 0, settled
        while below < above:
            middle = (below + above) // 2
            row = connection.execute(query, {"after": middle}).first()
            if row is None or row[0] > above or as_utc(row[1]) >= moment:
                above = middle
            else:
                below = int(row[0])
        return below


class IdQuery:
    """Find the position of an event.

    Args:
        source: the table of the events' positions.
        identity: finds events by the column of ids; None if an event's id is its position.
        types: filters events by type; None if the feed does not know types.
        archive: holds the events below its boundary; None if the table has all of them.

    Attributes:
        are_positions: whether an event's id is its position.
    """

    def __init__(
        self,
        source: Source,
        identity: NearRows | None,
        types: TypeCondition | None = None,
        archive: "ArchiveReader | None" = None,
    ) -> None:
        self._archive = archive
        self._source = source
        self.are_positions = identity is None
        self._types = types
        self._searched = identity
        self._identity = source.position if identity is None else identity.source.position

    def position(
        self,
        connection: Connection,
        event_id: str,
        partition: int,
        *,
        until: int,
        types: TypeFilter | None = None,
    ) -> int:
        """Return the position of an event; also of a deleted one if its id was its position.

        Args:
            connection: to the feed's database.
            event_id: the id in the event's JSON.
            partition: the event's partition.
            until: the horizon, up to which events are searched.
            types: the types of events to search; None for all.

        Raises:
            BadCursor: no event of the partition and of these types has this id.
            Trimmed: the search in the archive gave up before the beginning.
            ConfigurationError: ids of this SQL type cannot be searched.
        """
        value = value_of(self._identity, event_id)
        if self._searched is None:
            if value is not None and 0 < value <= until:
                return int(value)
        elif value is not None:
            conditions = same_as(self._identity, value, database_of(connection))
            if types is not None and self._types is not None:
                conditions.append(self._types.condition(types))
            hint, table = self._searched.hint(connection), self._searched.source.table
            found = positions_of(self._source, hint, table, *conditions)
            query = select(func.max(found.c.position)).where(found.c.position <= given("until"))
            if self._source.partition is not None:
                query = query.where(found.c.partition == partition)
            if (position := connection.scalar(query, {"until": until})) is not None:
                return int(position)
            archive = self._archive
            if archive is not None and (end := min(archive.boundary(connection), until)):
                text = str(UUID(event_id)) if isinstance(value, UUID) else str(value)
                archived = archive.last_of(text, partition, end, types)
                if archived is not None:
                    return archived
        raise BadCursor("No event of this feed has this id.")


def same_as(
    column: ColumnElement[Any], value: Any, database: Database
) -> list[ColumnElement[bool]]:
    """Return the conditions that a column equals a value; an index serves the first of them."""
    if isinstance(column.type, Integer):
        return [column == literal(value, BigInteger)]  # it may be too large for the column
    same = [column == value]
    if isinstance(column.type, String):
        same.append(database.exact(column) == database.exact(literal(value, Text)))
    return same


def value_of(column: ColumnElement[Any], text: str) -> Any:
    """Convert the text of an id or a key to the column's type; None if it has no such value."""
    kind = column.type
    if isinstance(kind, Integer):
        if not _WHOLE.fullmatch(text):
            return None
        number = int(text)
        return number if -HIGHEST_POSITION <= number <= HIGHEST_POSITION else None
    if isinstance(kind, Uuid):
        try:
            value = UUID(text)
        except ValueError:
            return None
        return value if kind.as_uuid else str(value)
    if isinstance(kind, String) and not isinstance(kind, Enum):
        return None if "\0" in text else text
    raise ConfigurationError(
        f"An event is found by an id of text, whole numbers or UUIDs; {column} has the "
        f"SQL type {kind!r}."
    )


_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)

MOST = 1_000_000
"""How many events are counted at most, which takes a database half a second."""

MOST_LOOKED_UP = 100_000
"""The same if positions are in a side table, so that the database looks up each event."""


class LagQuery:
    """Count the events of a partition that follow a position.

    Args:
        rows: finds the rows next to a position.
        time: the time column; None to use the time at which the ordering gave an event its
            position, if it records that.
        archive: holds the events below its boundary; None if the table has all of them.
    """

    def __init__(
        self,
        rows: NearRows,
        time: ColumnElement[Any] | None,
        archive: "ArchiveReader | None" = None,
    ) -> None:
        self._archive = archive
        self._rows = rows
        self._source = source = rows.source
        column = source.given_at if time is None else time
        self._time = None if column is None else json_form(column, "time")
        self._most = MOST if source.events is None else MOST_LOOKED_UP
        self._statement = lru_cache(maxsize=2)(self._build)

    def count(self, connection: Connection, partition: int, *, after: int, until: int) -> Lag:
        """Count the events in (after, until]; raise FeedFailure if the first one's time is none."""
        if self._archive is None:
            return self._in_table(connection, partition, after, until)
        places, events, first, after = self._archive.measure(
            connection, partition, after=after, until=until, most=self._most
        )
        rest = Lag(0, 0.0)
        if places <= self._most:
            rest = self._in_table(connection, partition, after, until)
        exact = rest.exact and places + rest.events <= self._most
        total = min(events + rest.events, self._most)
        if not events:
            return Lag(total, rest.seconds if exact or total else None, exact)
        return Lag(total, _age(first), exact)

    def _in_table(self, connection: Connection, partition: int, after: int, until: int) -> Lag:
        if after >= until:
            return Lag(0, 0.0)
        query = self._statement(self._rows.hint(connection))
        values = {"partition": partition, "after": after, "until": until}
        places, events, first = connection.execute(query, values).one()
        exact = places <= self._most
        if not events:
            # All positions that were examined may belong to deleted events.
            return Lag(0, 0.0 if exact else None, exact)
        return Lag(min(events, self._most), _age(self.happened(connection, first)), exact)

    def _build(self, hint: IndexHint) -> Select[Any]:
        source = self._source
        references = [source.table.c[name] for name in source.key]
        query = select(source.position.label("position"), *references).select_from(source.table)
        query = self._rows.above(query, hint, given("after"), given("until"))
        near = query.limit(literal_column(str(self._most + 1))).subquery("near")
        found: FromClause = near
        presence: ColumnElement[Any] = near.c.position
        if source.events is not None:
            found, presence = with_events(source, source.events, near, isouter=True)
        columns: tuple[ColumnElement[Any], ...] = (
            func.count(),
            func.count(presence),
            func.min(case((presence.is_not(None), near.c.position))),
        )
        return select(*columns).select_from(found)

    def happened(self, connection: Connection, position: int) -> datetime | None:
        """Return when the event at a position happened; None if it has no time."""
        if self._time is None:
            return None
        query = (
            select(self._time.select)
            .select_from(self._source.join(self._source.table))
            .where(self._source.position == given("position"))
        )
        try:
            found = connection.scalar(query, {"position": position})
            if found is not None and self._time.convert is not None:
                found = self._time.convert(found)
            return None if found is None else moment(found)
        except (TypeError, ValueError, LookupError) as error:
            raise FeedFailure(f"The event at position {position} has no time: {error}") from error


def _age(happened: datetime | None) -> float | None:
    """Return how long ago something happened, by this machine's clock."""
    # Clocks differ, and a writer may give an event a future time.
    return None if happened is None else max(0.0, (datetime.now(UTC) - happened).total_seconds())


AT_ONCE = 100_000
"""Positions that a statement examines at most, few enough even if the database has to look up each
event."""

# A literal, as LIMIT is.
_LOOKED_AT: ColumnElement[int] = bindparam("looked_at", type_=Integer, literal_execute=True)
_BEFORE: ColumnElement[int] = bindparam("before", type_=Integer, literal_execute=True)


class CountQuery:
    """Find the position after a number of events of a partition."""

    def __init__(self, rows: NearRows, archive: "ArchiveReader | None" = None) -> None:
        self._archive = archive
        self._rows = rows
        self._source = rows.source
        self._statement = lru_cache(maxsize=2)(self._build)
        self._window = lru_cache(maxsize=2)(self._build_window)

    def find(
        self, connection: Connection, partition: int, events: int, *, after: int, until: int
    ) -> tuple[int, int]:
        """Return the position of the last event counted in (after, until], and the count.

        The count is smaller than `events` if the range has fewer.
        """
        hint, position, found = self._rows.hint(connection), after, 0
        if self._archive is not None:
            position, found, after = self._archive.count(
                connection, partition, events, after=after, until=until
            )
        looked_at = min(events - found, AT_ONCE)
        while found < events and after < until:
            values = {"partition": partition, "after": after, "until": until}
            values |= {"limit": min(events - found, looked_at), "looked_at": looked_at}
            count, last = connection.execute(self._statement(hint), values).one()
            if count:
                found += count
                position = after = last
            if count < values["limit"]:
                # All positions that were examined may belong to deleted events: continue.
                after = self._end(connection, hint, values)
                looked_at = min(2 * looked_at, AT_ONCE)
        return position, found

    def _end(self, connection: Connection, hint: IndexHint, values: dict[str, int]) -> int:
        """Return the last position that a statement examined without finding enough events."""
        if self._source.events is None:
            return values["until"]
        end = connection.scalar(self._window(hint), values | {"before": values["looked_at"] - 1})
        return values["until"] if end is None else int(end)

    def _build(self, hint: IndexHint) -> Select[Any]:
        """Count the first events, and find the last of them."""
        found = self._present(hint).limit(LIMIT).subquery("found")
        columns: tuple[ColumnElement[Any], ...] = (func.count(), func.max(found.c.position))
        return select(*columns).select_from(found)

    def _present(self, hint: IndexHint) -> Select[Any]:
        """Select the positions of events that are not deleted, in order."""
        source = self._source
        if source.events is None:
            return self._above(hint, source.position.label("position"))
        order = [source.position.label("position")]
        if source.partition is not None:
            order.insert(0, source.partition.label("partition"))
        references = [source.table.c[name] for name in source.key]
        # The positions in a subquery, so that no plan joins more than these.
        near = self._above(hint, *order, *references).limit(_LOOKED_AT)
        page = near.subquery("near")
        joined, _ = with_events(source, source.events, page, isouter=False)
        # By all columns of the positions' order, so that the database need not sort.
        ordered = [page.c[each.name] for each in order]
        query: Select[Any] = select(page.c.position).select_from(joined)
        return query.order_by(*ordered)

    def _build_window(self, hint: IndexHint) -> Select[Any]:
        """Find the last position that a statement may examine."""
        query = self._above(hint, self._source.position)
        return query.offset(_BEFORE).limit(_ONE)

    def _above(self, hint: IndexHint, *columns: ColumnElement[Any]) -> Select[Any]:
        query = select(*columns).select_from(self._source.table)
        return self._rows.above(query, hint, given("after"), given("until"))
