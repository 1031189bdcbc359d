"""Statements that read rows of a feed: positions, in their order, and the events at them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Subquery,
    case,
    func,
    literal_column,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import aggregate_order_by

from zeroeventhub.errors import FeedFailure
from zeroeventhub.lines import SEPARATOR
from zeroeventhub.protocol import Event
from zeroeventhub.publisher.mapping import Mapper
from zeroeventhub.publisher.near_rows import NearRows
from zeroeventhub.publisher.rows import Rows

__all__ = ["Choice", "RowQuery"]

Choice = Callable[[Select[Any]], Select[Any]]
"""Choose among positions that a query selects, and put them in order."""


class RowQuery:
    """Select positions and their events.

    Args:
        near: finds them.
        mapper: turns rows into events.
        dialect: the database, by SQLAlchemy's name for it. PostgreSQL makes the JSON of most events
            by itself.
        joins: whether it joins them to one text, so that there is nothing to do for each of them.
        also: what else is selected of an event, behind all else.
        placed: what else is selected of its position, behind that.
    """

    def __init__(
        self,
        near: NearRows,
        mapper: Mapper,
        dialect: str,
        *,
        joins: bool = False,
        also: Sequence[ColumnElement[Any]] = (),
        placed: Sequence[ColumnElement[Any]] = (),
    ) -> None:
        self.near = near
        self._also = [each.label(f"a{index}") for index, each in enumerate(also)]
        self._placed = [each.label(f"p{index}") for index, each in enumerate(placed)]
        self.source = near.source
        self._mapper = mapper
        self._json = mapper.json
        if dialect == "postgresql":
            is_beside = near.source.events is None
            self._json = mapper.text(near.source.position if is_beside else None)
            self._joins = joins and self._json is not None
        else:
            self._joins = False

    def select(
        self,
        choose: Choice,
        limit: ColumnElement[int],
        *,
        chosen: ColumnElement[bool] | None = None,
        backwards: bool = False,
        each: bool = False,
    ) -> Select[Any]:
        """Build a statement for `read`.

        Args:
            choose: chooses the positions, all of one partition or one by one.
            limit: how many rows.
            chosen: which events, by columns of theirs.
            backwards: whether the highest positions come first.
            each: whether the position of each event is wanted.
        """
        query = self._rows(choose, limit, chosen, backwards=backwards)
        return self._together(query.subquery("row"), each=each) if self._joins else query

    def read(self, connection: Connection, query: Select[Any], values: Mapping[str, Any]) -> Rows:
        """Read rows.

        Raises:
            FeedFailure: a row holds what its declared type does not allow.
        """
        rows = self.fetch(connection, query, values)
        if self._joins:
            return Rows.of_joined(rows[0])
        return Rows.of(rows, self.event) if self._json is None else Rows.of_json(rows)

    @property
    def is_json(self) -> bool:
        """Tell whether the database makes the JSON of events by itself."""
        return self._json is not None

    @staticmethod
    def fetch(connection: Connection, query: Select[Any], values: Mapping[str, Any]) -> list[Any]:
        """Read rows as the database has them.

        Raises:
            FeedFailure: a row holds what its declared type does not allow.
        """
        try:
            return list(connection.execute(query, values).all())
        except (TypeError, ValueError, LookupError) as error:
            place = values.get("after", values.get("position"))
            raise FeedFailure(
                f"A row at position {place} or behind it does not hold what its column declares: "
                f"{error}"
            ) from error

    def event(self, row: Any) -> Event | None:
        """Make the event of a row; None of one that has been deleted."""
        if self.source.events is not None and row[-1] is None:
            return None
        return self._mapper.event(row)

    def _rows(
        self,
        choose: Choice,
        limit: ColumnElement[int],
        chosen: ColumnElement[bool] | None,
        *,
        backwards: bool,
    ) -> Select[Any]:
        source = self.source
        if source.events is None:
            query = select(source.position.label("c0"), *self._columns, *self._also, *self._placed)
            query = query.select_from(source.table)
            return choose(query if chosen is None else query.where(chosen)).limit(limit)
        # The positions first, so that no plan joins more than these.
        references = [source.table.c[name] for name in source.key]
        order = [source.position.label("position")]
        if source.partition is not None:
            order.insert(0, source.partition.label("partition"))
        chosen_of = select(*order, *references, *self._placed)
        positions = choose(chosen_of.select_from(source.table))
        if chosen is None:
            positions = positions.limit(limit)
        page = positions.subquery("page")
        # In the whole order of the positions, so that there is nothing to sort.
        ordered = [page.c[each.name] for each in order]
        query = self._joined(page, chosen)
        query = query.order_by(*(each.desc() if backwards else each for each in ordered))
        return query.limit(limit)

    @property
    def _columns(self) -> list[ColumnElement[Any]]:
        """List what is selected of an event."""
        return self._mapper.columns if self._json is None else [self._json.label("c1")]

    def _joined(self, page: Subquery, chosen: ColumnElement[bool] | None) -> Select[Any]:
        """Join events to positions; what has been deleted leaves NULLs."""
        position = page.c.position.label("c0")
        presence = next(iter(self.source.key.values())).label("presence")
        columns = [*self._columns, *self._also, presence]
        placed = [page.c[each.name] for each in self._placed]
        if not self.source.lateral:
            query = select(position, *self._read(columns, placed))
            query = query.select_from(self.source.join(page))
            # The types of deleted events are NULL, as those of others are. In a CASE, so that the
            # join stays one that begins with the positions.
            is_there = presence.element.is_not(None)
            return query if chosen is None else query.where(case((is_there, chosen)))
        found = select(*columns).where(self.source.same(page)).limit(1)
        event = (found if chosen is None else found.where(chosen)).lateral("event")
        joined = page.join(event, true(), isouter=chosen is None)
        return select(position, *self._read([*event.c], placed)).select_from(joined)

    def _read(
        self, columns: Sequence[ColumnElement[Any]], placed: Sequence[ColumnElement[Any]]
    ) -> list[ColumnElement[Any]]:
        """Choose what is read of an event, whose last column tells whether it is there."""
        *columns, presence = columns
        if self._json is None:
            return [*columns, *placed, presence]
        json, *also = columns
        return [case((presence.is_not(None), json)).label("c1"), *also, *placed]

    @staticmethod
    def _together(rows: Subquery, *, each: bool) -> Select[Any]:
        """Join the JSON of rows to one text."""
        position, json = rows.c
        separator: ColumnElement[str] = literal_column(f"chr({ord(SEPARATOR)})")
        line = func.coalesce(json, literal_column("''"))
        positions = func.array_agg(aggregate_order_by(position, position))
        return select(
            func.count(),
            func.max(position),
            func.string_agg(line, aggregate_order_by(separator, position)),
            func.coalesce(func.max(func.octet_length(json)), literal_column("0")),
            func.count(json),
            positions.filter(json.is_not(None)) if each else literal_column("NULL"),
        ).select_from(rows)
