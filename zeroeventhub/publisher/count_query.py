"""The query that finds the place behind so many events."""

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
    true,
)

from zeroeventhub.publisher.near_rows import LIMIT, NearRows, given
from zeroeventhub.publisher.way import Way

__all__ = ["CountQuery"]

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
    """

    def __init__(self, rows: NearRows) -> None:
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
        way, position, found = self._rows.way(connection), after, 0
        looked_at = min(events, AT_ONCE)
        while found < events and after < until:
            values = {"partition": partition, "after": after, "until": until}
            values |= {"limit": min(events - found, looked_at), "looked_at": looked_at}
            count, last = connection.execute(self._statement(way), values).one()
            if count:
                found += count
                position = after = last
            if count < values["limit"]:
                # Places of events that are deleted may have filled all that was looked at.
                after = self._end(connection, way, values)
                looked_at = min(2 * looked_at, AT_ONCE)
        return position, found

    def _end(self, connection: Connection, way: Way, values: dict[str, int]) -> int:
        """Return the last position that was looked at, where there were too few events."""
        if self._source.events is None:
            return values["until"]
        end = connection.scalar(self._window(way), values | {"before": values["looked_at"] - 1})
        return values["until"] if end is None else int(end)

    def _build(self, way: Way) -> Select[Any]:
        """Count the first events, and find the last of them."""
        found = self._present(way).limit(LIMIT).subquery("found")
        columns: tuple[ColumnElement[Any], ...] = (func.count(), func.max(found.c.position))
        return select(*columns).select_from(found)

    def _present(self, way: Way) -> Select[Any]:
        """Select the positions of events that are there, in order."""
        source = self._source
        if source.events is None:
            return self._above(way, source.position.label("position"))
        order = [source.position.label("position")]
        if source.partition is not None:
            order.insert(0, source.partition.label("partition"))
        references = [source.table.c[name] for name in source.key]
        # The positions first, so that no plan joins more than these.
        near = self._above(way, *order, *references).limit(_LOOKED_AT)
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

    def _build_window(self, way: Way) -> Select[Any]:
        """Find where a statement ended that looked at as many positions as it may."""
        query = self._above(way, self._source.position)
        return query.offset(_BEFORE).limit(_ONE)

    def _above(self, way: Way, *columns: ColumnElement[Any]) -> Select[Any]:
        query = select(*columns).select_from(self._source.table)
        return self._rows.above(query, way, given("after"), given("until"))
