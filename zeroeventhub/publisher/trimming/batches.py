"""Delete events in batches, each a short transaction with the mark that tells of it."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    literal_column,
    select,
)

from zeroeventhub.publisher.deleting import Deleted, delete_beside, delete_events
from zeroeventhub.publisher.history import History
from zeroeventhub.publisher.near_rows import LIMIT, NearRows, given
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.progress.registry import Registry
from zeroeventhub.publisher.retention import Marks
from zeroeventhub.publisher.way import Way

__all__ = ["Batches"]

_ONLY: ColumnElement[int] = literal_column("0", Integer)
"""The partition of events that are not divided."""


class Batches:
    """Delete the oldest events of a table, some at a time.

    Args:
        source: where the feed's positions are read.
        history: gives the cursor of the mark.
        marks: the feed's.
        registry: knows how far consumers say that they have come; None where nobody does, or loses
            anything.
    """

    def __init__(
        self, source: Source, history: History, marks: Marks, registry: Registry | None = None
    ) -> None:
        self._source = source
        self._near = NearRows(replace(source, partition=None))
        self._history = history
        self._marks = marks
        self._registry = registry
        self._oldest = lru_cache(maxsize=2)(self._build)

    def delete(self, connection: Connection, until: int, rows: int, since: float) -> Deleted:
        """Delete the oldest events, and raise the mark.

        Args:
            connection: in a transaction, each of whose statements sees the last commits.
            until: the position above which nothing is deleted.
            rows: how many events at most.
            since: when consumers were asked how far they are, in seconds since 1970; those that
                have registered by now are heard as well.
        """
        mark, wanted = self._marks.locked(connection), until
        if self._registry is not None:
            until = self._registry.allowed_since(connection, since, mark, until)
        way = self._near.way(connection)
        values = {"after": mark.trimmed, "until": until, "limit": rows}
        found = connection.execute(self._oldest(way), values).all()
        if not found:
            return Deleted(0, mark.trimmed, is_last=True)
        last = {row.partition: int(row.position) for row in found}
        trimmed = int(found[-1].position)
        cursors = self._history.cursors_at(connection, {*last.values(), trimmed})
        ends = {partition: cursors[position] for partition, position in last.items()}
        connection.execute(self._marks.raising(mark, trimmed, cursors[trimmed], ends))
        delete = delete_events if self._source.events is None else delete_beside
        events = delete(connection, self._source, found)
        return Deleted(events, trimmed, is_last=trimmed >= wanted)

    def _build(self, way: Way) -> Select[Any]:
        """Select the oldest events that are left."""
        source = self._source
        partition = _ONLY if source.partition is None else source.partition
        columns = [source.position.label("position"), partition.label("partition")]
        columns += [source.table.c[name].label(name) for name in source.key]
        query = select(*columns).select_from(source.table)
        return self._near.above(query, way, given("after"), given("until")).limit(LIMIT)
