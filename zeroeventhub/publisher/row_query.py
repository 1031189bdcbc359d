"""Statements that read rows of a feed: positions, in their order, and the events at them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, UnaryExpression, select, true

from zeroeventhub.errors import FeedFailure
from zeroeventhub.protocol import Event
from zeroeventhub.publisher.mapping import Mapper
from zeroeventhub.publisher.ordering import Source

__all__ = ["Row", "RowQuery"]

Row = tuple[int, Event | None]
"""A position and the event at it; None for an event that has been deleted."""


class RowQuery:
    """Select positions and their events.

    Args:
        source: where they are read.
        mapper: turns rows into events.
    """

    def __init__(self, source: Source, mapper: Mapper) -> None:
        self.source = source
        self.recipe = mapper.recipe
        self._mapper = mapper

    def select(
        self,
        where: Sequence[ColumnElement[bool]],
        limit: ColumnElement[int],
        *,
        chosen: ColumnElement[bool] | None = None,
        backwards: bool = False,
    ) -> Select[Any]:
        """Build a statement for `read`.

        Args:
            where: which positions; the limit alone bounds them, or they are bounded here.
            limit: how many rows.
            chosen: which events, by columns of theirs.
            backwards: whether the highest positions come first.
        """
        if self.source.events is None:
            query = select(self.source.position.label("c0"), *self._mapper.columns)
            query = query.select_from(self.source.table).where(*where)
            order = self._order(self.source.position, backwards=backwards)
            if chosen is not None:
                query = query.where(chosen)
        else:
            # The positions first, so that no plan joins more than these.
            references = [self.source.table.c[name] for name in self.source.key]
            positions = (
                select(self.source.position.label("position"), *references)
                .select_from(self.source.table)
                .where(*where)
                .order_by(self._order(self.source.position, backwards=backwards))
            )
            if chosen is None:
                positions = positions.limit(limit)
            query, position = self._joined(positions, chosen)
            order = self._order(position, backwards=backwards)
        return query.order_by(order).limit(limit)

    def read(
        self, connection: Connection, query: Select[Any], values: Mapping[str, Any]
    ) -> list[Row]:
        """Read rows.

        Raises:
            FeedFailure: a row holds what its declared type does not allow.
        """
        try:
            rows = connection.execute(query, values).all()
        except (TypeError, ValueError, LookupError) as error:
            place = values.get("after", values.get("position"))
            raise FeedFailure(
                f"A row at position {place} or behind it does not hold what its column declares: "
                f"{error}"
            ) from error
        joined = self.source.events is not None
        return [
            (row[0], None if joined and row[-1] is None else self._mapper.event(row))
            for row in rows
        ]

    def _joined(
        self, positions: Select[Any], chosen: ColumnElement[bool] | None
    ) -> tuple[Select[Any], ColumnElement[Any]]:
        """Join events to positions; what has been deleted leaves NULLs."""
        page = positions.subquery("page")
        position = page.c.position.label("c0")
        presence = next(iter(self.source.key.values())).label("presence")
        columns = [*self._mapper.columns, presence]
        if not self.source.lateral:
            query = select(position, *columns).select_from(self.source.join(page))
            return query if chosen is None else query.where(chosen), page.c.position
        found = select(*columns).where(self.source.same(page)).limit(1)
        event = (found if chosen is None else found.where(chosen)).lateral("event")
        joined = page.join(event, true(), isouter=chosen is None)
        return select(position, *event.c).select_from(joined), page.c.position

    @staticmethod
    def _order(
        position: ColumnElement[Any], *, backwards: bool
    ) -> ColumnElement[Any] | UnaryExpression[Any]:
        return position.desc() if backwards else position
