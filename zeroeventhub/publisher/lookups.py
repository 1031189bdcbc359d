"""Queries beside those of pages: the place of a moment, of an id and of a count, and the lag."""

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Dialect,
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

# It leaves out nothing, and keeps the events from being looked for along their positions, which a
# database prefers where it takes them for more frequent than they are.
_NONE: ColumnElement[int] = literal_column("0")


def positions_of(
    source: Source, searched: IndexHint, table: FromClause, *conditions: ColumnElement[bool]
) -> Subquery:
    """Select the positions of events, and their partitions if there are any.

    Args:
        source: where positions are read.
        searched: how events are found by what is known of them.
        table: that of the events.
        conditions: what holds for the events, by columns of their table.
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
    if not source.lateral:
        return _joined(place, events.join(source.table, same))
    position = select(*place).where(same).limit(literal_column("1")).lateral("place")
    return _joined(position.c, events.join(position, true()))


def _joined(columns: Any, events: FromClause) -> Subquery:
    joined: Select[Any] = select(*columns).select_from(events)
    return joined.offset(_NONE).subquery("found")


class TimeQuery:
    """Find the position before the first event of a moment or later.

    Times need not rise with positions: no event of the moment or later lies before what is found.

    Args:
        source: where the events are read.
        rows: finds the rows next to a place, of all partitions alike.
        time: finds events by the column of their times; None to take the time at which an event
            was given its position, where the ordering keeps that.
        archive: has the events below its boundary; None if the table has all of them.
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
        """Return the position after which all events of a moment or later lie.

        Args:
            connection: to the feed's database.
            partition: one of the feed's.
            moment: with a time zone.
            settled: the horizon; what lies above it is not looked at.

        Returns:
            A position that stays the same from then on, or the horizon if no settled event is of
            the moment or later.

        Raises:
            ConfigurationError: the moment has no zone, or the feed does not know times.
        """
        moment = self._floored(moment, connection.dialect)
        end = 0 if self._archive is None else min(self._archive.boundary(connection), settled)
        if self._archive is None or not end:
            return self._in_table(connection, partition, moment, settled)
        # The time at which positions were given rises with those of all partitions alike.
        searched = None if self._time is None else partition
        first = self._archive.first_since(searched, moment, end)
        if first is not None:
            return first - 1
        return max(self._in_table(connection, partition, moment, settled), end)

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

    def _floored(self, moment: datetime, dialect: Dialect) -> datetime:
        """Cut a moment to the precision of the times that it is compared with.

        A database may have cut the time of an event that was written after the moment; uncut, the
        moment would lie behind it.

        Raises:
            ConfigurationError: the moment has no zone.
        """
        if moment.tzinfo is None:
            raise ConfigurationError("A moment needs a time zone, such as datetime.now(UTC) has.")
        time = self._source.given_at if self._time is None else self._time.source.position
        kind = None if time is None else time.type.dialect_impl(dialect)
        digits = database_of(dialect).decimals(kind, is_side_table=self._time is None)
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
        stored = _as_stored(moment, zoned=bool(getattr(time.type, "timezone", False)))
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
        """Search by halves: these times rise with the positions of all partitions."""
        query = select(self._source.position, given_at).select_from(self._source.table)
        hint = self._rows.hint(connection)
        query = self._rows.above(query, hint, given("after"), HIGHEST).limit(literal_column("1"))
        below, above = 0, settled
        while below < above:
            middle = (below + above) // 2
            row = connection.execute(query, {"after": middle}).first()
            if row is None or row[0] > above or _utc(row[1]) >= moment:
                above = middle
            else:
                below = int(row[0])
        return below


def _as_stored(moment: datetime, *, zoned: bool) -> datetime:
    """Give a moment the form of its column; without a zone it is in UTC."""
    moment = moment.astimezone(UTC)
    return moment if zoned else moment.replace(tzinfo=None)


def _utc(stored: datetime) -> datetime:
    return stored if stored.tzinfo else stored.replace(tzinfo=UTC)


class IdQuery:
    """Find the position of an event.

    Args:
        source: where events are read.
        identity: finds events by the column of ids; None if an event's id is its position.
        types: filters events by type; None if the feed does not know types.
        archive: has the events below its boundary; None if the table has all of them.

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
        """Return the position of an event; of one that is gone, too, if its id was its position.

        Args:
            connection: to the feed's database.
            event_id: as the event has it in JSON.
            partition: where it is.
            until: the horizon; what lies above it is not looked at.
            types: the types of events to look at; None for all.

        Raises:
            BadCursor: no event of the partition, and of these types, has this id.
            Trimmed: there may be one in the archive, too far back to be looked for.
            ConfigurationError: ids of this type cannot be looked for.
        """
        end = 0 if self._archive is None else min(self._archive.boundary(connection), until)
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
            if self._archive is not None and end:
                text = str(UUID(event_id)) if isinstance(value, UUID) else str(value)
                archived = self._archive.last_of(text, partition, end, types)
                if archived is not None:
                    return archived
        raise BadCursor("No event of this feed has this id.")


def same_as(
    column: ColumnElement[Any], value: Any, database: Database
) -> list[ColumnElement[bool]]:
    """Return what holds where a column is a value; the first condition is served by an index."""
    if isinstance(column.type, Integer):
        return [column == literal(value, BigInteger)]  # larger than the column's, even
    same = [column == value]
    if isinstance(column.type, String):
        same.append(database.exact(column) == database.exact(literal(value, Text)))
    return same


def value_of(column: ColumnElement[Any], text: str) -> Any:
    """Return what a column holds for the text of an id or a key; None if it cannot hold it.

    Raises:
        ConfigurationError: values of its type cannot be looked for.
    """
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
"""How many events are counted, at most: what a database does in half a second."""

MOST_LOOKED_UP = 100_000
"""The same where positions lie beside the events, and each event has to be looked up."""


class LagQuery:
    """Count the events of a partition that lie behind a place.

    Args:
        rows: finds the rows next to a place.
        time: the column of the time of an event; None to take the time at which it was given its
            position, where the ordering keeps that.
        archive: has the events below its boundary; None if the table has all of them.
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
            # Places of events that are deleted may fill all that was looked at.
            return Lag(0, 0.0 if exact else None, exact)
        return Lag(min(events, self._most), _age(self.happened(connection, first)), exact)

    def _build(self, hint: IndexHint) -> Select[Any]:
        source = self._source
        references = [source.table.c[name] for name in source.key]
        query = select(source.position.label("position"), *references).select_from(source.table)
        query = self._rows.above(query, hint, given("after"), given("until"))
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


def _age(happened: datetime | None) -> float | None:
    """Return how long ago something happened, by this machine's clock."""
    # Clocks differ, and an event may have been given a time to come.
    return None if happened is None else max(0.0, (datetime.now(UTC) - happened).total_seconds())


AT_ONCE = 100_000
"""How many positions a statement looks at, at most: what takes no database long, also where each
event has to be looked up."""

# Written out, as LIMIT is.
_LOOKED_AT: ColumnElement[int] = bindparam("looked_at", type_=Integer, literal_execute=True)
_BEFORE: ColumnElement[int] = bindparam("before", type_=Integer, literal_execute=True)

_ONE: ColumnElement[int] = literal_column("1")


class CountQuery:
    """Find the event of a partition that is the last of so many.

    Args:
        rows: finds the rows next to a place.
        archive: has the events below its boundary; None if the table has all of them.
    """

    def __init__(self, rows: NearRows, archive: "ArchiveReader | None" = None) -> None:
        self._archive = archive
        self._rows = rows
        self._source = rows.source
        self._statement = lru_cache(maxsize=2)(self._build)
        self._window = lru_cache(maxsize=2)(self._build_window)

    def find(
        self, connection: Connection, partition: int, events: int, *, after: int, until: int
    ) -> tuple[int, int]:
        """Return the position of the last of so many events, and how many they are.

        Args:
            connection: to the feed's database.
            partition: one of the feed's.
            events: how many are wanted; there are fewer if that is all.
            after: the position behind which they are counted.
            until: the one up to which they are.
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
                # Places of events that are deleted may have filled all that was looked at.
                after = self._end(connection, hint, values)
                looked_at = min(2 * looked_at, AT_ONCE)
        return position, found

    def _end(self, connection: Connection, hint: IndexHint, values: dict[str, int]) -> int:
        """Return the last position that was looked at, where there were too few events."""
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
        """Select the positions of events that are there, in order."""
        source = self._source
        if source.events is None:
            return self._above(hint, source.position.label("position"))
        order = [source.position.label("position")]
        if source.partition is not None:
            order.insert(0, source.partition.label("partition"))
        references = [source.table.c[name] for name in source.key]
        # The positions first, so that no plan joins more than these.
        near = self._above(hint, *order, *references).limit(_LOOKED_AT)
        page = near.subquery("near")
        if source.lateral:
            event: Select[Any] = select(_ONE.label("presence"))
            event = event.select_from(source.events).where(source.same(page)).limit(_ONE)
            joined = page.join(event.lateral("event"), true())
        else:
            joined = page.join(source.events, source.same(page))
        # In the whole order of the positions, so that there is nothing to sort.
        ordered = [page.c[each.name] for each in order]
        query: Select[Any] = select(page.c.position).select_from(joined)
        return query.order_by(*ordered)

    def _build_window(self, hint: IndexHint) -> Select[Any]:
        """Find where a statement ended that looked at as many positions as it may."""
        query = self._above(hint, self._source.position)
        return query.offset(_BEFORE).limit(_ONE)

    def _above(self, hint: IndexHint, *columns: ColumnElement[Any]) -> Select[Any]:
        query = select(*columns).select_from(self._source.table)
        return self._rows.above(query, hint, given("after"), given("until"))
