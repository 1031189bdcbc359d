"""The query that reads a page, and the one that finds events which no page would show."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    bindparam,
    func,
    literal_column,
    select,
)

from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.lines import joined, size_of
from zeroeventhub.protocol import Event, Partition, TypeFilter
from zeroeventhub.publisher.near_rows import HIGHEST, LIMIT, given
from zeroeventhub.publisher.partition_hash import outside
from zeroeventhub.publisher.portions import Portions
from zeroeventhub.publisher.row_query import RowQuery
from zeroeventhub.publisher.rows import NO_ROWS, Row, Rows
from zeroeventhub.publisher.type_condition import TypeCondition
from zeroeventhub.publisher.way import Way

__all__ = ["PageQuery", "Stretch"]

FILTERED_ROWS = 50_000
"""How many rows a page looks at in search of events of certain types, at most."""

LONG = 65_000
"""Bytes of an event from which on its line, with its frame, may be longer than consumers take."""

_log = logging.getLogger("zeroeventhub.publisher")

_ONE: ColumnElement[int] = literal_column("1")

# Written out, as LIMIT is.
_BEFORE: ColumnElement[int] = bindparam("before", type_=Integer, literal_execute=True)


@dataclass
class Stretch:
    """Hold what was read behind a position.

    Attributes:
        until: the position up to which it was read.
        parts: the events, as they were read.
        positions: where they are, if anybody asked.
        last: the last position that was read and the event at it, which may be a deleted one;
            None if there was none.
        size: of the events, in bytes.
        full: whether it ended for its size, before `until`.
    """

    until: int
    parts: list[Sequence[Event]] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    last: Row | None = None
    size: int = 0
    full: bool = False

    @property
    def events(self) -> Sequence[Event]:
        """Return the events."""
        return joined(self.parts)

    def add(self, rows: Rows) -> None:
        """Take in rows that lie behind those that are there."""
        if rows.events:
            self.parts.append(rows.events)
        self.positions += rows.positions
        self.last = rows.last or self.last
        self.size += size_of(rows.events)


class PageQuery:
    """Select the events of a table, in order.

    Args:
        rows: reads them.
        partitions: the partitions that there are to read.
        ids: the partitions that events may be in, read or not.
        types: filters events by type; None if the feed does not know types.
        page_bytes: how much data a page holds at most, unless a single event is larger.

    Attributes:
        ids: the partitions that events may be in, read or not.
        longest: how many bytes the longest event had that was read.
    """

    def __init__(
        self,
        rows: RowQuery,
        partitions: Collection[Partition],
        ids: Collection[int],
        types: TypeCondition | None = None,
        *,
        page_bytes: int,
    ) -> None:
        self._rows = rows
        self._source = rows.source
        self._closed = [partition.id for partition in partitions if partition.closed]
        self.ids = ids
        self._types = types
        self._page_bytes = page_bytes
        self._portions = Portions()
        self._has_warned = False
        self.longest = 0
        self._statement = lru_cache(maxsize=100)(self._build)
        self._window = lru_cache(maxsize=2)(self._build_window)

    @property
    def others(self) -> bool:
        """Tell whether there are events between those of a partition."""
        return self._source.partition is not None

    def read(
        self,
        connection: Connection,
        partition: int,
        *,
        after: int,
        until: int,
        limit: int,
        types: TypeFilter | None = None,
        each: bool = False,
        begun: Stretch | None = None,
        looked_at: int = 0,
    ) -> Stretch:
        """Read events above one position and not above another, whole.

        Args:
            connection: to the database.
            partition: one of the feed's.
            after: a position.
            until: another.
            limit: how many rows to look at, at most.
            types: which events; None for all.
            each: whether the position of each event is wanted.
            begun: what was read before these; None for nothing.
            looked_at: how many rows were looked at for it.
        """
        stretch = Stretch(until) if begun is None else begun
        if after >= until:
            return stretch
        way = self._rows.near.way(connection)
        values = {"partition": partition, "after": after, "until": until}
        if types is not None:
            before = {"before": FILTERED_ROWS - looked_at - 1}
            end = connection.scalar(self._window(way), values | before)
            values["until"] = stretch.until = until = until if end is None else end
        query = self._statement(way, types, each)
        while True:
            portion = self._portions.rows(limit, self._page_bytes - stretch.size)
            rows = self._rows.read(connection, query, {**values, "limit": portion})
            self._portions.learn(rows)
            if rows.largest > self.longest:
                self.longest = rows.largest
                if self.longest > LONG and not self._has_warned:
                    self._warn_of_long_line(connection, query, values, rows)
            if (room := self._page_bytes - stretch.size) < size_of(rows.events):
                stretch.full = True
                fitting = rows.fitting(room)
                if not stretch.parts and len(rows.events[0].raw) > room:
                    fitting += 1  # The first event of a page always fits.
                # What is read again is settled.
                values["limit"] = fitting
                rows = self._rows.read(connection, query, values) if fitting else NO_ROWS
            stretch.add(rows)
            if stretch.full or rows.count < portion or rows.last is None:
                return stretch
            limit -= portion
            values["after"] = rows.last[0]
            if limit == 0 or values["after"] == until:
                stretch.full = values["after"] < until
                return stretch

    def _warn_of_long_line(
        self, connection: Connection, query: Select[Any], values: Mapping[str, Any], rows: Rows
    ) -> None:
        """Tell the log, once, of an event whose line some consumers cannot take (SPEC 16)."""
        for index, event in enumerate(rows.events):
            if len(event.raw) > LONG:
                count = index + 1
                for gap in rows.gaps:
                    count += gap < count
                last = self._rows.read(connection, query, {**values, "limit": count}).last
                _log.warning(
                    "The event at position %s has %d bytes: consumers in Go end a page without an "
                    "error at a line above 65,535 bytes, and stay there. Publish smaller events, "
                    "such as a reference to what is large.",
                    last and last[0],
                    len(event.raw),
                )
                self._has_warned = True
                return

    def _build(self, way: Way, types: TypeFilter | None, each: bool) -> Select[Any]:
        chosen = None
        if types is not None and self._types is not None:
            chosen = self._types.condition(types)
        near = self._rows.near
        return self._rows.select(
            lambda query: near.above(query, way, given("after"), given("until")),
            LIMIT,
            chosen=chosen,
            each=each,
        )

    def _build_window(self, way: Way) -> Select[Any]:
        """Find where a page ends that would look at too many rows."""
        source, near = self._source, self._rows.near
        query = select(source.position).select_from(source.table)
        query = near.above(query, way, given("after"), given("until"))
        return query.offset(_BEFORE).limit(_ONE)

    def largest_partition(self, connection: Connection, until: int) -> int | None:
        """Return the largest partition that an event is in, up to one; None if there is none."""
        source, way = self._source, self._rows.near.way(connection)
        assert source.partition is not None  # noqa: S101 - only a feed with a column grows
        query = select(func.max(source.partition)).select_from(source.table)
        query = way.through(query.where(source.partition <= until), source.table)
        largest: int | None = connection.scalar(query)
        return largest

    def refuse_unpublished(self, connection: Connection) -> None:
        """Refuse a table with events that are in no partition of the feed.

        Raises:
            ConfigurationError: there are some.
        """
        source, way = self._source, self._rows.near.way(connection)
        if source.partition is None:
            return
        for beside in outside(source.partition, self.ids):
            query = select(source.partition).select_from(source.table).where(beside)
            query = way.through(query.order_by(source.partition), source.table).limit(_ONE)
            if row := connection.execute(query).first():
                raise ConfigurationError(
                    f"There is an event in partition {row[0]}, but the feed's partitions are "
                    f"{_listed(sorted(self.ids))}: no consumer sees it. Move it to one of them, "
                    "or give the feed more partitions."
                )

    def await_ends(self, connection: Connection, *, settled: int) -> None:
        """Refuse to call a closed partition read while its last events are not settled.

        Raises:
            Unavailable: some are not.
        """
        source, near = self._source, self._rows.near
        if source.partition is None or not self._closed:
            return
        found = None
        if source.waiting is not None:  # first, for they leave it for where the others look
            column = source.waiting.c.partition
            found = connection.execute(
                select(column).where(column.in_(self._closed)).limit(_ONE)
            ).first()
        query = select(_ONE).select_from(source.table)
        query = near.above(query, near.way(connection), given("after"), HIGHEST).limit(_ONE)
        for number in self._closed:
            values = {"partition": number, "after": settled}
            found = found or connection.execute(query, values).first()
        if found:
            raise Unavailable(
                "The last events of a closed partition are not settled yet.", retry_after=1
            )


def _listed(partitions: list[int]) -> str:
    """Name partitions in a few characters, however many there are."""
    if len(partitions) > 1 and partitions == list(range(partitions[0], partitions[-1] + 1)):
        return f"{partitions[0]} to {partitions[-1]}"
    return ", ".join(map(str, partitions))
