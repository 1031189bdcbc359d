"""The query that reads a page, and the one that finds events which no page would show."""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    bindparam,
    select,
)

from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.protocol import Event, Partition, TypeFilter
from zeroeventhub.publisher.partition_hash import outside
from zeroeventhub.publisher.row_query import RowQuery
from zeroeventhub.publisher.type_condition import TypeCondition

__all__ = ["PageQuery", "Stretch"]

PAGE_BYTES = 8 * 1024 * 1024
"""How much data a page holds at most, unless a single event is larger."""

FILTERED_ROWS = 50_000
"""How many rows a page looks at in search of events of certain types, at most."""


@dataclass
class Stretch:
    """Hold what was read behind a position.

    Attributes:
        events: the events.
        positions: where they are.
        last: the last position that was read and the event at it, which may be a deleted one;
            None if there was none.
        until: the position up to which it was read.
        full: whether it ended for its size, before `until`.
    """

    until: int
    events: list[Event] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    last: tuple[int, Event | None] | None = None
    full: bool = False


class PageQuery:
    """Select the events of a table, in order.

    Args:
        rows: reads them.
        partitions: the partitions that there are to read.
        ids: the partitions that events may be in, read or not.
        types: filters events by type; None if the feed does not know types.
    """

    def __init__(
        self,
        rows: RowQuery,
        partitions: Collection[Partition],
        ids: Collection[int],
        types: TypeCondition | None = None,
    ) -> None:
        self._rows = rows
        self._source = rows.source
        self._closed = [partition.id for partition in partitions if partition.closed]
        self._ids = sorted(ids)
        self._types = types
        position: ColumnElement[Any] = self._source.position
        self._behind = [position > bindparam("after", type_=BigInteger)]
        if self._source.partition is not None:
            self._behind.append(self._source.partition == bindparam("partition", type_=Integer))
        # Without an upper bound, so that no statistics, however old, can make a plan that reads
        # and sorts everything up to it. What comes from above it is cut off afterwards.
        self._all = rows.select(self._behind, _LIMIT)
        self._window = (
            select(position)
            .select_from(self._source.table)
            .where(*self._behind)
            .order_by(position)
            .offset(FILTERED_ROWS - 1)
            .limit(1)
        )
        # A short range, whose upper bound does no harm.
        self._range = [*self._behind, position <= bindparam("until", type_=BigInteger)]
        self._filtered = lru_cache(maxsize=100)(self._build_filtered)

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
    ) -> Stretch:
        """Read events above one position and not above another, whole."""
        if after >= until:
            return Stretch(until)
        values = {"after": after, "limit": limit}
        if self._source.partition is not None:
            values["partition"] = partition
        if types is None:
            query = self._all
        else:
            end = connection.scalar(self._window, values)
            until = until if end is None else min(until, end)
            query, values = self._filtered(types), {**values, "until": until}
        stretch = Stretch(until)
        size = 0
        rows = self._rows.read(connection, query, values)
        for position, event in rows:
            if position > until:
                return stretch
            if event is not None:
                size += len(event.raw)
                if stretch.events and size > PAGE_BYTES:
                    stretch.full = True
                    return stretch
                stretch.events.append(event)
                stretch.positions.append(position)
            stretch.last = position, event
        stretch.full = len(rows) == limit and rows[-1][0] < until
        return stretch

    def _build_filtered(self, types: TypeFilter) -> Select[Any]:
        chosen = None if self._types is None else self._types.condition(types)
        return self._rows.select(self._range, _LIMIT, chosen=chosen)

    def refuse_strays(self, connection: Connection) -> None:
        """Refuse events that no partition would ever show.

        Raises:
            ConfigurationError: there are some.
        """
        column = self._source.partition
        if column is None:
            return
        stray = (
            select(column)
            .select_from(self._source.table)
            .where(outside(column, self._ids))
            .limit(1)
        )
        if row := connection.execute(stray).first():
            raise ConfigurationError(
                f"There is an event in partition {row[0]}, but the feed's partitions are "
                f"{_listed(self._ids)}: no consumer would ever see it."
            )

    def await_ends(self, connection: Connection, *, settled: int) -> None:
        """Refuse to call a closed partition read while its last events are not settled.

        Raises:
            Unavailable: some are not.
        """
        source = self._source
        if source.partition is None or not self._closed:
            return
        queries = []
        if source.waiting is not None:  # first, for they leave it for where the second looks
            column = source.waiting.c.partition
            queries.append(select(column).where(column.in_(self._closed)))
        queries.append(
            select(source.partition)
            .select_from(source.table)
            .where(source.position > settled, source.partition.in_(self._closed))
        )
        for query in queries:
            if connection.execute(query.limit(1)).first():
                raise Unavailable(
                    "The last events of a closed partition are not settled yet.", retry_after=1
                )


_LIMIT: ColumnElement[int] = bindparam("limit", type_=Integer)


def _listed(partitions: list[int]) -> str:
    """Name partitions in a few characters, however many there are."""
    if len(partitions) > 1 and partitions == list(range(partitions[0], partitions[-1] + 1)):
        return f"{partitions[0]} to {partitions[-1]}"
    return ", ".join(map(str, partitions))
