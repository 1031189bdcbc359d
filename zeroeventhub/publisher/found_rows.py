"""Find the positions of events that are known by something else, by an index of that."""

from typing import Any

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    Subquery,
    and_,
    literal_column,
    select,
    true,
)

from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.way import Way

__all__ = ["positions_of"]

# It leaves out nothing, and keeps the events from being looked for along their positions, which a
# database prefers where it takes them for more frequent than they are.
_NONE: ColumnElement[int] = literal_column("0")


def positions_of(
    source: Source, searched: Way, table: FromClause, *conditions: ColumnElement[bool]
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
