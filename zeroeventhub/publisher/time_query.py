"""The query that finds the place of a moment in a feed."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    func,
    literal_column,
    select,
    type_coerce,
)
from sqlalchemy import types as sql

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.found_rows import positions_of
from zeroeventhub.publisher.near_rows import HIGHEST, NearRows, given
from zeroeventhub.publisher.ordering import Source

__all__ = ["TimeQuery"]


class TimeQuery:
    """Find the position before the first event of a moment or later.

    Times need not rise with positions: no event of the moment or later lies before what is found.

    Args:
        source: where the events are read.
        rows: finds the rows next to a place, of all partitions alike.
        time: finds events by the column of their times; None to take the time at which an event
            was given its position, where the ordering keeps that.
    """

    def __init__(self, source: Source, rows: NearRows, time: NearRows | None) -> None:
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
        if dialect.name == "sqlite":
            # CURRENT_TIMESTAMP writes seconds; the trigger of "sequenced" writes milliseconds.
            digits = 3 if self._time is None else 0
        else:
            time = self._source.given_at if self._time is None else self._time.source.position
            kind = None if time is None else time.type.dialect_impl(dialect)
            attribute, default = ("precision", 6) if dialect.name == "postgresql" else ("fsp", 0)
            stated = getattr(kind, attribute, None)
            digits = default if stated is None else stated
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
        conditions = [_not_before(time, moment, connection.dialect.name)]
        if source.partition is not None and source.events is None:
            conditions.append(source.partition == partition)
        way = searched.way(connection)
        found = positions_of(source, way, searched.source.table, *conditions)
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
        way = self._rows.way(connection)
        query = self._rows.above(query, way, given("after"), HIGHEST).limit(literal_column("1"))
        below, above = 0, settled
        while below < above:
            middle = (below + above) // 2
            row = connection.execute(query, {"after": middle}).first()
            if row is None or row[0] > above or _utc(row[1]) >= moment:
                above = middle
            else:
                below = int(row[0])
        return below


def _not_before(time: ColumnElement[Any], moment: datetime, dialect: str) -> ColumnElement[bool]:
    stored = _as_stored(moment, zoned=bool(getattr(time.type, "timezone", False)))
    if dialect != "sqlite":
        return time >= stored
    # There a time is text, with a fraction or, as CURRENT_TIMESTAMP writes it, without; the
    # shortest form of a moment comes before all others of the same one.
    text = stored.replace(tzinfo=None).isoformat(sep=" ")
    return type_coerce(time, sql.String) >= (text.rstrip("0") if "." in text else text)


def _as_stored(moment: datetime, *, zoned: bool) -> datetime:
    """Give a moment the form of its column; without a zone it is in UTC."""
    moment = moment.astimezone(UTC)
    return moment if zoned else moment.replace(tzinfo=None)


def _utc(stored: datetime) -> datetime:
    return stored if stored.tzinfo else stored.replace(tzinfo=UTC)
