"""Statements that read rows of a feed: positions, in their order, and the events at them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Subquery, select, true

from zeroeventhub.errors import FeedFailure
from zeroeventhub.protocol import Event
from zeroeventhub.publisher.mapping import Mapper
from zeroeventhub.publisher.near_rows import NearRows

__all__ = ["Choice", "Row", "RowQuery"]

Choice = Callable[[Select[Any]], Select[Any]]
"""Choose among positions that a query selects, and put them in order."""

Row = tuple[int, Event | None]
"""A position and the event at it; None for an event that has been deleted."""


class RowQuery:
    """Select positions and their events.

    Args:
        near: finds them.
        mapper: turns rows into events.
    """

    def __init__(self, near: NearRows, mapper: Mapper) -> None:
        self.near = near
        self.source = near.source
        self._mapper = mapper

    def select(
        self,
        choose: Choice,
        limit: ColumnElement[int],
        *,
        chosen: ColumnElement[bool] | None = None,
        backwards: bool = False,
    ) -> Select[Any]:
        """Build a statement for `read`.

        Args:
            choose: chooses the positions, all of one partition or one by one.
            limit: how many rows.
            chosen: which events, by columns of theirs.
            backwards: whether the highest positions come first.
        """
        source = self.source
        if source.events is None:
            query = select(source.position.label("c0"), *self._mapper.columns)
            query = query.select_from(source.table)
            return choose(query if chosen is None else query.where(chosen)).limit(limit)
        # The positions first, so that no plan joins more than these.
        references = [source.table.c[name] for name in source.key]
        order = [source.position.label("position")]
        if source.partition is not None:
            order.insert(0, source.partition.label("partition"))
        positions = choose(select(*order, *references).select_from(source.table))
        if chosen is None:
            positions = positions.limit(limit)
        page = positions.subquery("page")
        # In the whole order of the positions, so that there is nothing to sort.
        ordered = [page.c[each.name] for each in order]
        query = self._joined(page, chosen)
        query = query.order_by(*(each.desc() if backwards else each for each in ordered))
        return query.limit(limit)

    def read(
        self, connection: Connection, query: Select[Any], values: Mapping[str, Any]
    ) -> Iterator[Row]:
        """Read rows, and make their events one by one as they are asked for.

        Raises:
            FeedFailure: a row holds what its declared type does not allow.
        """
        try:
            rows = list(connection.execute(query, values).all())
        except (TypeError, ValueError, LookupError) as error:
            place = values.get("after", values.get("position"))
            raise FeedFailure(
                f"A row at position {place} or behind it does not hold what its column declares: "
                f"{error}"
            ) from error
        rows.reverse()
        return self._events(rows)

    def _events(self, rows: list[Any]) -> Iterator[Row]:
        """Make events from the last row to the first, and let go of each row for its event."""
        joined = self.source.events is not None
        while rows:
            row = rows.pop()
            yield row[0], None if joined and row[-1] is None else self._mapper.event(row)

    def _joined(self, page: Subquery, chosen: ColumnElement[bool] | None) -> Select[Any]:
        """Join events to positions; what has been deleted leaves NULLs."""
        position = page.c.position.label("c0")
        presence = next(iter(self.source.key.values())).label("presence")
        columns = [*self._mapper.columns, presence]
        if not self.source.lateral:
            query = select(position, *columns).select_from(self.source.join(page))
            return query if chosen is None else query.where(chosen)
        found = select(*columns).where(self.source.same(page)).limit(1)
        event = (found if chosen is None else found.where(chosen)).lateral("event")
        joined = page.join(event, true(), isouter=chosen is None)
        return select(position, *event.c).select_from(joined)
