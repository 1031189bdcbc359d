"""Delete all but the last event of each key from a feed declared with `compaction`."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, exists, false, or_, select
from sqlalchemy.sql.util import ClauseAdapter

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.deletion import Batch, Deleted, delete_events
from zeroeventhub.publisher.keyset import LIMIT, ONE, NearRows, parameter
from zeroeventhub.publisher.mapping import Expression
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.retention import MarkTable


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """Declare that a feed keeps the last event of each key, and may delete earlier ones.

    Example:
        compaction = Compaction(tombstone=orders.c.kind == "deleted")
        feed = TableFeed(
            orders, key="customer", time="placed", retention=Retention(), compaction=compaction
        )
        feed.bind(engine).compact(older_than=timedelta(days=1))

    Attributes:
        tombstone: a column or an expression that is true for an event that deletes its key; None
            if no event does.
        keep_tombstones: how long such an event is kept, by the feed's `time`: a consumer that
            stops for longer misses the deletion.

    Raises:
        ConfigurationError: the time is below zero.
    """

    tombstone: Expression | None = None
    keep_tombstones: timedelta = timedelta(days=7)

    def __post_init__(self) -> None:
        """Check the time."""
        if self.keep_tombstones < timedelta(0):
            raise ConfigurationError("Tombstones are kept for some time, and not for less than 0.")


ROWS = 1_000
"""Events that a batch examines by default."""


@dataclass(frozen=True, kw_only=True)
class Compactor:
    """Compact a feed by the column of its keys; what is `needed` to restore a key stays."""

    reader: Reader
    near: NearRows  # of all partitions
    marks: MarkTable
    key: ColumnElement[Any]
    tombstone: ColumnElement[Any] | None
    keep_tombstones: timedelta
    needed: ColumnElement[bool] | None

    def plan(
        self, connection: Connection, older_than: timedelta | None, rows: int
    ) -> tuple[Batch, int]:
        """Return the function that examines up to `rows` events, and the position to begin after.

        It deletes superseded events up to the horizon that are old enough.
        """
        settled, until = self.reader.removable(connection, older_than)
        tombstones = 0
        if self.tombstone is not None:
            # The last event of all stays: some databases would give its number again.
            before = self.reader.last_older_than(connection, self.keep_tombstones, settled)
            tombstones = min(before, until, settled - 1)
        bounds = {"until": until, "settled": settled, "tombstones": tombstones, "limit": rows}

        def delete_batch(connection: Connection, after: int) -> Deleted:
            self.marks.locked(connection)
            seen = connection.execute(self._next(connection), {**bounds, "after": after}).all()
            events, found = 0, [row for row in seen if row.is_gone]
            if found:
                self.marks.thin(connection, int(found[-1].position))
                events = delete_events(
                    connection, self.reader.ordering.source, found, is_range=False
                )
            reached = int(seen[-1].position) if len(seen) == rows else until
            return Deleted(events, reached, is_last=reached >= until)

        return delete_batch, self.marks.read(connection).trimmed

    def _next(self, connection: Connection) -> Select[Any]:
        """Select the next events, each with whether it is superseded or an old tombstone."""
        source = self.reader.ordering.source
        gone = or_(self._is_superseded(), self._is_old_tombstone())
        if self.needed is not None:
            gone = and_(gone, ~self.needed)
        columns = [source.position.label("position"), gone.label("is_gone")]
        columns += [source.table.c[name].label(name) for name in source.key]
        query = select(*columns).select_from(source.join(source.table))
        hint = self.near.hint(connection)
        return self.near.above(query, hint).limit(LIMIT)

    def _is_superseded(self) -> ColumnElement[bool]:
        """Return the condition that a later event has the same key; false if the key is NULL."""
        source = self.reader.ordering.source
        positions: Any = source.table
        later: Any = positions.alias("later")
        position = later.c[str(source.position.key)]
        if source.events is None:
            rows, key = later, later.c[str(self.key.key)]
        else:
            events = source.events.alias("later_event")
            key = events.c[str(self.key.key)]
            pairs = [(later.c[name], str(one.key)) for name, one in source.key.items()]
            rows = later.join(events, and_(*(one == events.c[name] for one, name in pairs)))
        is_later = and_(position > source.position, position <= parameter("settled"))
        query = select(ONE).select_from(rows).where(key == self.key, is_later)
        if source.partition is not None:
            partition = ClauseAdapter(later).traverse(source.partition)
            query = query.where(partition == source.partition)
        outer = [positions] if source.events is None else [positions, source.events]
        return exists(query.correlate(*outer))

    def _is_old_tombstone(self) -> ColumnElement[bool]:
        if self.tombstone is None:
            return false()
        is_old = self.reader.ordering.source.position <= parameter("tombstones")
        return and_(self.tombstone, self.key.is_not(None), is_old)
