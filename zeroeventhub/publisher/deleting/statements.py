"""The statements that delete events, and their positions where those lie beside them."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, select, tuple_

from zeroeventhub.publisher.ordering import Source

__all__ = ["delete_beside", "delete_events"]


def delete_events(connection: Connection, source: Source, found: Sequence[Row[Any]]) -> int:
    """Delete events that lie at their positions; return how many.

    Args:
        connection: in a transaction.
        source: where the positions are.
        found: all rows of a range of them, in order.
    """
    table: Any = source.table
    here = source.position
    if connection.dialect.name in {"mysql", "mariadb"}:
        # In a range they would wait for the row behind it, which may be somebody's who writes.
        chosen = here.in_([row.position for row in found])
    else:
        chosen = here.between(found[0].position, found[-1].position)
    connection.execute(delete(table).where(chosen))
    return len(found)


def delete_beside(connection: Connection, source: Source, found: Sequence[Row[Any]]) -> int:
    """Delete positions that lie beside their events, and the events; return how many those were.

    A key may have come back since: an event that has it anew waits for a position of its own, and
    stays. The events are locked before it is looked who waits, so that none comes in between.

    Args:
        connection: in a transaction, each of whose statements sees the last commits.
        source: where the positions are.
        found: rows of them.
    """
    positions: Any = source.table
    events: Any = source.events
    keys = [tuple(row[-len(source.key) :]) for row in found]
    same = tuple_(*source.key.values())
    locked = select(*source.key.values()).where(same.in_(keys)).with_for_update()
    there = {tuple(row) for row in connection.execute(locked)}
    if source.waiting is not None:
        waiting = [source.waiting.c[name] for name in source.key]
        there -= {
            tuple(row)
            for row in connection.execute(select(*waiting).where(tuple_(*waiting).in_(keys)))
        }
    numbers = [row.position for row in found]
    connection.execute(delete(positions).where(source.position.in_(numbers)))
    if there:
        connection.execute(delete(events).where(same.in_([*there])))
    return len(there)
