"""The query that reads a page, and the one that finds events which no page would show."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    bindparam,
    or_,
    select,
    true,
)

from zeroeventhub.errors import ConfigurationError, FeedFailure
from zeroeventhub.protocol import Event, Page
from zeroeventhub.publisher.cursor import encode_position
from zeroeventhub.publisher.mapping import Mapper
from zeroeventhub.publisher.ordering import Source

__all__ = ["PageQuery"]

PAGE_BYTES = 8 * 1024 * 1024
"""How much data a page holds at most, unless a single event is larger."""


class PageQuery:
    """Select the events of a table, in order.

    Args:
        source: where they are read.
        partitions: how many there are.
        mapper: turns rows into events.
    """

    def __init__(self, source: Source, partitions: int, mapper: Mapper) -> None:
        self._source = source
        self._partitions = partitions
        self._mapper = mapper
        self._page = _rows(source, mapper) if source.events is None else _joined(source, mapper)

    def page(
        self, connection: Connection, partition: int, *, after: int, until: int, limit: int
    ) -> Page:
        """Read a page whole: events above one position and not above another.

        It moves on over events that have been deleted.
        """
        if after >= until:
            return Page([], encode_position(after))
        # Without the upper bound, so that no statistics, however old, can make a plan that reads
        # and sorts everything up to it. What comes from above it is cut off here.
        values = {"after": after, "limit": limit}
        if self._source.partition is not None:
            values["partition"] = partition
        events: list[Event] = []
        size = 0
        try:
            rows = connection.execute(self._page, values).all()
        except (TypeError, ValueError, LookupError) as error:
            raise FeedFailure(
                f"A row behind position {after} does not hold what its column declares: {error}"
            ) from error
        for row in rows:
            if row[0] > until:
                break
            if self._source.events is not None and row[-1] is None:
                after = row[0]
                continue
            event = self._mapper.event(row)
            size += len(event.raw)
            if events and size > PAGE_BYTES:
                break
            events.append(event)
            after = row[0]
        return Page(events, encode_position(after))

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
            .where(or_(column < 0, column >= self._partitions, column.is_(None)))
            .limit(1)
        )
        if row := connection.execute(stray).first():
            raise ConfigurationError(
                f"There is an event in partition {row[0]}, but the feed's "
                f"partitions go from 0 to {self._partitions - 1}: no consumer would ever see it."
            )


def _rows(source: Source, mapper: Mapper) -> Select[Any]:
    return _limited(source, source.position.label("c0"), *mapper.columns)


def _joined(source: Source, mapper: Mapper) -> Select[Any]:
    """Take the positions of a page first, so that no plan joins more than a page."""
    references = [source.table.c[name] for name in source.key]
    page = _limited(source, source.position.label("position"), *references).subquery("page")
    position = page.c.position.label("c0")
    presence = next(iter(source.key.values())).label("presence")
    if source.lateral:
        event = select(*mapper.columns, presence).where(source.same(page)).limit(1).lateral("event")
        query = select(position, *event.c).select_from(page.outerjoin(event, true()))
    else:
        query = select(position, *mapper.columns, presence).select_from(source.join(page))
    return query.order_by(page.c.position)


def _limited(source: Source, *columns: ColumnElement[Any]) -> Select[Any]:
    query = (
        select(*columns)
        .select_from(source.table)
        .where(source.position > bindparam("after", type_=BigInteger))
        .order_by(source.position)
        .limit(bindparam("limit", type_=Integer))
    )
    if source.partition is None:
        return query
    return query.where(source.partition == bindparam("partition", type_=Integer))
