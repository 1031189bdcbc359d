"""Delete events: trim the oldest, and compact all but the last of each key.

Both delete in batches while writers write and readers read.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import index
from time import monotonic
from typing import TYPE_CHECKING, Any, SupportsIndex

from sqlalchemy import (
    ColumnElement,
    Connection,
    Enum,
    Integer,
    Row,
    Select,
    String,
    and_,
    delete,
    exists,
    false,
    func,
    literal_column,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.sql.util import ClauseAdapter

from zeroeventhub.databases import database_of
from zeroeventhub.databases.port import Database
from zeroeventhub.databases.statements import portions
from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.publisher.cursor import HIGHEST_POSITION, Place
from zeroeventhub.publisher.definition import Definition
from zeroeventhub.publisher.keyset import LIMIT, ONE, NearRows, parameter
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.progress import CLOCKS, Registry
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.retention import LowWaterMark, MarkTable
from zeroeventhub.times import expect_age

if TYPE_CHECKING:
    from zeroeventhub.archive.manifest import Manifest

ROWS = 1_000
"""Events that a batch deletes or examines by default."""

TRIES = 10
"""How often a batch is tried while writers hold its locks for too long."""

LOCK_SECONDS = 1.0
"""Seconds that a batch waits for the locks of writers, at most."""

LEAST = 0.02
"""Seconds between two batches, at least: by then readers see that the first batch has ended."""

LONGEST = 5.0
"""Seconds between two tries, at most."""


@dataclass(frozen=True)
class Deleted:
    """What a batch has deleted: the number of events, up to a position, and whether it is the last.

    The next batch begins above the position.
    """

    events: int
    reached: int
    is_last: bool


Batch = Callable[[Connection, int], Deleted]
"""Delete some events above a position; the caller commits the transaction."""


async def delete_in_batches(
    batch: Batch,
    after: int,
    on_progress: Callable[[int, int], None],
    query: Callable[..., Awaitable[Deleted]],
    sleep: Callable[[float], Awaitable[None]],
) -> int:
    """Delete batches above a position until the last; return how many events were deleted.

    Between batches it pauses for as long as each has taken, so that writers get turns.
    """
    events = tries = 0
    pause = 0.0
    while True:
        await sleep(pause)
        began = monotonic()
        try:
            deleted = await query(_in_transaction, batch, after)
        except Unavailable:
            tries += 1
            if tries == TRIES:
                raise
            pause = min(LEAST * 2**tries, LONGEST)
            continue
        tries = 0
        pause, after = max(monotonic() - began, LEAST), deleted.reached
        events += deleted.events
        on_progress(events, after)
        if deleted.is_last:
            return events


def _check(rows: int) -> None:
    """Refuse batches without events."""
    if not rows >= 1:  # nor NaN
        raise ConfigurationError("rows has to be above zero.")


def _in_transaction(connection: Connection, batch: Batch, after: int) -> Deleted:
    database = database_of(connection)
    with database.lock_timeout(connection, LOCK_SECONDS), database.as_published(connection):
        deleted = batch(connection, after)
        connection.commit()
    return deleted


def delete_events(
    connection: Connection, source: Source, found: Sequence[Row[Any]], *, is_range: bool
) -> int:
    """Delete events; return how many.

    Each statement of the transaction sees the last commits. Each of the rows `found`, in order,
    ends with the columns of the source's key. They are a range if no row between them is left out.
    """
    table: Any = source.table
    here = source.position
    # For a range MariaDB and MySQL also lock the row after it, and wait for a writer to release it.
    if source.events is None and is_range and database_of(connection).deletes_ranges:
        chosen = here.between(found[0].position, found[-1].position)
        connection.execute(delete(table).where(chosen))
        return len(found)
    events = 0
    for part in portions(found):
        if source.events is not None:
            events += _delete_with_positions(connection, source, part)
        else:
            connection.execute(delete(table).where(here.in_([row.position for row in part])))
            events += len(part)
    return events


def _delete_with_positions(
    connection: Connection, source: Source, found: Sequence[Row[Any]]
) -> int:
    """Delete events whose positions are in a side table, and their positions; return how many.

    A writer may have inserted a deleted key again: that event still waits for a position, and is
    kept. The events are locked before the waiting ones are read, so that no insert comes between.

    Raises:
        ConfigurationError: an event is there, but not found by its key.
    """
    positions: Any = source.table
    events: Any = source.events
    keys = [tuple(row[-len(source.key) :]) for row in found]
    database = database_of(connection)
    known = [*map(database.as_stored, source.key.values())]
    same = tuple_(*known)
    chosen = source.position.in_([row.position for row in found])
    # What Python makes of a key may be the key of an event that stays.
    own = exists().where(source.same(positions), chosen)
    locked = select(*known).where(same.in_(keys), own).with_for_update()
    left = {tuple(row) for row in connection.execute(locked)}
    if len(left) < len(keys):
        # Some events are gone already, or are not found again by what was read of their keys.
        missed = select(ONE).select_from(positions.join(events, source.same(positions)))
        missed = missed.where(chosen, same.not_in(keys)).limit(ONE)
        if connection.execute(missed).first() is not None:
            names = ", ".join(map(str, source.key.values()))
            raise ConfigurationError(
                f"Rows are not found again by what is read of {names}, and would stay without "
                "their positions: let the key have a type that Python has for all its values."
            )
    if source.waiting is not None:
        waiting = [database.as_stored(source.waiting.c[name]) for name in source.key]
        query = select(*waiting).where(tuple_(*waiting).in_(keys))
        left -= {tuple(row) for row in connection.execute(query)}
    connection.execute(delete(positions).where(chosen))
    if left:
        connection.execute(delete(events).where(same.in_([*left])))
    return len(left)


@dataclass(frozen=True, kw_only=True)
class TrimPlan:
    """The events that a trim would delete.

    Attributes:
        events: their number; a lower bound if not `exact`.
        exact: whether all of them were counted.
        first: the position of the first one; None if there is nothing to trim.
        until: the position of the last one; that of the mark if there is nothing to trim.
        oldest: the time of the first one; None for a feed without times.
        newest: the time of the last one.
        cursor: the cursor after the last one; None if there is nothing to trim.
        wanted: the position up to which the bound alone would trim.
        held_back: the reasons that limit the trim, a sentence each.
        made_at: when the plan was made, in seconds since 1970.
    """

    events: int = 0
    exact: bool = True
    first: int | None = None
    until: int
    oldest: datetime | None = None
    newest: datetime | None = None
    cursor: str | None = None
    wanted: int
    held_back: tuple[str, ...] = ()
    made_at: float = field(default_factory=time.time)
    _made: float = field(default_factory=monotonic, init=False, repr=False, compare=False)

    @property
    def age(self) -> float:
        """Return the seconds since the plan was made, however the clock was set meanwhile."""
        return max(time.time() - self.made_at, monotonic() - self._made)

    def __str__(self) -> str:
        """Describe the plan to the operator."""
        if self.first is None:
            lines = [f"Nothing to trim: the mark is at position {self.until}."]
        else:
            count = f"{self.events:,}{'' if self.exact else ' or more'}"
            lines = [f"{count} events would go, positions {self.first} to {self.until}"]
            if self.oldest is not None and self.newest is not None:
                lines[0] += f", of {_moment(self.oldest)} to {_moment(self.newest)}"
            lines[0] += "."
        return "\n".join([*lines, *self.held_back])


def _moment(moment: datetime) -> str:
    return moment.isoformat(sep=" ", timespec="seconds")


SILENCE = timedelta(days=7)
"""How long trimming waits for a silent consumer by default."""


@dataclass(frozen=True, kw_only=True)
class TrimBound:
    """The bounds of `BoundFeed.plan_trim`, and the manifest of the feed's archive if it has one."""

    older_than: timedelta | None = None
    below: int | str | None = None
    sealed: int | Callable[[], int] | None = None
    silence: timedelta = SILENCE
    kept: "Manifest | None" = None

    def __post_init__(self) -> None:
        """Check the bounds."""
        if self.older_than is None and self.below is None and self.sealed is None:
            raise ConfigurationError(
                "Say what to trim: older_than (--older-than), below (--below) or sealed."
            )
        for age in (self.older_than, self.silence):
            if age is not None:
                expect_age(age)
        if self.older_than is not None and self.older_than < timedelta(0):
            raise ConfigurationError("older_than is zero or more.")
        if self.silence.total_seconds() < CLOCKS:
            raise ConfigurationError(
                f"silence is {CLOCKS:.0f} seconds or more, as clocks may differ by that much: "
                "forget the consumers that trimming need not wait for."
            )

    @property
    def until(self) -> int:
        """Return the highest position to trim, without regard to time."""
        until = HIGHEST_POSITION
        if isinstance(self.below, str):
            until = Place.of(self.below).position
        elif self.below is not None:
            until = _position("below", self.below) - 1
        if self.sealed is not None:
            sealed = self.sealed() if callable(self.sealed) else self.sealed
            until = min(until, _position("sealed", sealed))
        if self.kept is not None:
            until = min(until, self.kept.sealed)
        return max(until, 0)


def _position(name: str, value: SupportsIndex) -> int:
    """Return a bound's position; refuse NaN, below which all events would go."""
    try:
        return index(value)
    except TypeError:
        raise ConfigurationError(f"{name} is a position, and {value!r} is none.") from None


_PARTITION_ZERO: ColumnElement[int] = literal_column("0", Integer)
"""The partition of every event in a feed without a partition column."""

MOST_COUNTED = 1_000_000
"""Events that are counted, at most."""


@dataclass(frozen=True, kw_only=True)
class Trimmer:
    """Trim a feed: plan it, and delete the events in batches."""

    reader: Reader
    defined: Definition
    all_near: NearRows
    near: NearRows
    marks: MarkTable
    registry: Registry | None  # None as well where an archive keeps what is trimmed

    def plan(self, connection: Connection, bound: TrimBound) -> TrimPlan:
        """Return what a trim would delete; change nothing."""
        settled, wanted = self.reader.removable(connection, bound.older_than)
        mark = self.marks.read(connection)
        if isinstance(bound.below, str):
            self.reader.vouch(connection, [bound.below])
        if bound.kept is not None and bound.kept.last is not None:
            self.reader.vouch_in_table(connection, bound.kept.last)
        held_back = self._limit_by_time(connection, bound, wanted, settled)
        wanted = min(wanted, bound.until)
        until, waiting = self._limit_by_consumers(connection, bound, mark, wanted)
        held_back += waiting
        for partition in self.defined.coming:
            unseen = self.near.first(connection, mark.trimmed, until, partition)
            if unseen is not None:
                until = unseen - 1
                held_back.append(
                    f"Events above position {until} stay: no reader can see those of partition "
                    f"{partition} yet."
                )
        if self.reader.ordering.needs_last_row:
            last = self.all_near.last(connection, settled)
            if last is not None and last <= until:
                until = last - 1
                held_back.append("The last event stays: SQLite would give its number again.")
        if (needed := self._first_needed(connection, mark.trimmed, until)) is not None:
            until = needed.position - 1
            held_back.append(
                f"Events above position {until} stay: the state of key {needed.key!r} is restored "
                "from the next event, which no snapshot covers."
            )
        first = self.all_near.first(connection, mark.trimmed, until)
        last = None if first is None else self.all_near.last(connection, until)
        if first is None or last is None:
            return TrimPlan(until=mark.trimmed, wanted=wanted, held_back=tuple(held_back))
        event = self._last_event(connection, until)
        newest = None if event is None else self.reader.lookups.happened(connection, event)
        if bound.older_than is not None and event is not None and newest is None:
            raise ConfigurationError(
                f"The event at position {event} has no time, so its age is not known: "
                "trim by position."
            )
        events = self._count(connection, mark.trimmed, until)
        return TrimPlan(
            events=min(events, MOST_COUNTED),
            exact=events <= MOST_COUNTED,
            first=first,
            until=last,
            oldest=self.reader.lookups.happened(connection, first),
            newest=newest,
            cursor=self.reader.history.cursors_at(connection, [last])[last],
            wanted=wanted,
            held_back=tuple(held_back),
        )

    def _limit_by_time(
        self, connection: Connection, bound: TrimBound, until: int, settled: int
    ) -> list[str]:
        """Return a sentence if the first event that is too young has a time in the future."""
        if bound.older_than is None or bound.until < until:
            return []
        following = self.all_near.first(connection, until, settled)
        # Not the time itself, as no datetime may be as late.
        soon = timedelta(seconds=-CLOCKS)
        if (
            following is None
            or self.reader.last_older_than(connection, soon, following) >= following
        ):
            return []
        reason = "the time of the next one lies in the future, as where a clock was ahead"
        return [f"Events above position {until} stay: {reason}. Trim them by position."]

    def _limit_by_consumers(
        self, connection: Connection, bound: TrimBound, mark: LowWaterMark, until: int
    ) -> tuple[int, list[str]]:
        """Return the position up to which consumers allow a trim, and a sentence about each."""
        if self.registry is None:
            return until, []
        reasons, lowest = [], until
        for one in self.registry.needed(connection):
            allowed = self.registry.allowed(connection, one, mark, until)
            if allowed is not None and allowed >= until:
                continue
            ago = timedelta(seconds=round(one.heard))
            where = f"in partition {one.partition}; last heard of {ago} ago"
            if allowed is None:
                reasons.append(
                    f"{one.name} has lost events already {where}: it holds nothing back."
                )
            elif one.heard > bound.silence.total_seconds():
                reasons.append(
                    f"{one.name} WILL LOSE EVENTS {where}: that is too long to wait for it."
                )
            else:
                lowest = min(lowest, allowed)
                reasons.append(f"{one.name} keeps what lies above position {allowed} {where}.")
        return lowest, reasons

    def _first_needed(self, connection: Connection, after: int, until: int) -> Row[Any] | None:
        """Return position and key of the first event from which a key is restored."""
        needed = self.defined.needed
        if needed is None:
            return None
        source = self.reader.ordering.source
        columns = source.position.label("position"), self.defined.attributes["key"].label("key")
        query: Select[Any] = select(*columns).select_from(source.join(source.table))
        query = self.all_near.above(query.where(needed), self.all_near.hint(connection))
        return connection.execute(query.limit(ONE), {"after": after, "until": until}).first()

    def _last_event(self, connection: Connection, until: int) -> int | None:
        """Return the position of the last event that is still there."""
        source = self.reader.ordering.source
        query: Select[Any] = select(source.position).select_from(source.join(source.table))
        if source.events is not None:
            query = query.where(next(iter(source.key.values())).is_not(None))
        hint = self.all_near.hint(connection)
        query = self.all_near.below(query, hint, parameter("until")).limit(ONE)
        found: int | None = connection.scalar(query, {"until": until})
        return found

    def _count(self, connection: Connection, after: int, until: int) -> int:
        hint, position = self.all_near.hint(connection), self.reader.ordering.source.position
        some = self.all_near.rows(hint, position).limit(literal_column(str(MOST_COUNTED + 1)))
        counted = select(func.count()).select_from(some.subquery())
        return connection.scalar(counted, {"after": after, "until": until}) or 0

    def batch(self, plan: TrimPlan, rows: int) -> Batch:
        """Return the function that deletes the next `rows` events of a plan and moves the mark."""
        _check(rows)

        def delete_batch(connection: Connection, _: int) -> Deleted:
            mark, until = self.marks.locked(connection), plan.until
            if plan.cursor is not None:
                # A failover may have replaced the history since the plan was made.
                self.reader.history.vouch_in_table(connection, plan.cursor)
            if self.registry is not None:
                # Consumers that have registered since the plan was made limit the trim as well.
                until = self.registry.allowed_since(connection, plan.age, mark, until)
            values = {"after": mark.trimmed, "until": until, "limit": rows}
            source = self.reader.ordering.source
            partition = _PARTITION_ZERO if source.partition is None else source.partition
            columns: list[ColumnElement[Any]]
            columns = [source.position.label("position"), partition.label("partition")]
            database = database_of(connection)
            columns += [database.as_stored(source.table.c[name]) for name in source.key]
            oldest = self.all_near.rows(self.all_near.hint(connection), *columns).limit(LIMIT)
            found = connection.execute(oldest, values).all()
            if not found:
                return Deleted(0, mark.trimmed, is_last=True)
            last = {row.partition: int(row.position) for row in found}
            trimmed = int(found[-1].position)
            cursors = self.reader.history.cursors_at(connection, {*last.values(), trimmed})
            ends = {partition: cursors[position] for partition, position in last.items()}
            self.marks.trim(connection, mark, trimmed, cursors[trimmed], ends)
            events = delete_events(connection, source, found, is_range=True)
            return Deleted(events, trimmed, is_last=trimmed >= plan.until)

        return delete_batch


@dataclass(frozen=True, kw_only=True)
class Compactor:
    """Compact a feed by the column of its keys; what is `needed` to restore a key stays."""

    reader: Reader
    defined: Definition
    all_near: NearRows
    marks: MarkTable
    tombstone: ColumnElement[Any] | None
    keep_tombstones: timedelta

    def plan(
        self,
        connection: Connection,
        older_than: timedelta | None,
        rows: int,
        kept: "Manifest | None",
    ) -> tuple[Batch, int]:
        """Return the function that examines up to `rows` events, and the position to begin after.

        It deletes superseded events up to the horizon that are old enough.
        """
        _check(rows)
        if kept is not None and kept.last is not None:
            # Once the event there is compacted, sealing cannot tell a table of another history.
            self.reader.vouch_in_table(connection, kept.last)
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
        source, database = self.reader.ordering.source, database_of(connection)
        key, needed = self.defined.attributes["key"], self.defined.needed
        gone = self._has_other(database, later=True)
        if self.tombstone is not None:
            is_old = source.position <= parameter("tombstones")
            deletes_none = ~self._has_other(database, later=False)
            conditions = [self.tombstone, key.is_not(None), is_old, deletes_none]
            if self.defined.grows:
                # A partition without events would be gone for a process that starts later.
                other: Any = source.table.alias("other")
                partition: Any = ClauseAdapter(other).traverse(source.partition)
                is_later = other.c[str(source.position.key)] > source.position
                query = (
                    select(ONE).select_from(other).where(partition == source.partition, is_later)
                )
                conditions.append(exists(query.correlate(source.table)))
            gone = or_(gone, and_(*conditions))
        if needed is not None:
            gone = and_(gone, ~needed)
        columns: list[ColumnElement[Any]]
        columns = [source.position.label("position"), gone.label("is_gone")]
        columns += [database.as_stored(source.table.c[name]) for name in source.key]
        query = select(*columns).select_from(source.join(source.table))
        hint = self.all_near.hint(connection)
        return self.all_near.above(query, hint).limit(LIMIT)

    def _has_other(self, database: Database, *, later: bool) -> ColumnElement[bool]:
        """Return the condition that a later event has the same key, or an earlier one that stays.

        It stays in another partition, or because it is needed. False if the key is NULL.
        """
        source = self.reader.ordering.source
        positions: Any = source.table
        other: Any = positions.alias("other")
        if source.events is None:
            rows = events = other
        else:
            events = source.events.alias("other_event")
            pairs = [(other.c[name], str(one.key)) for name, one in source.key.items()]
            same = and_(*(one == events.c[name] for one, name in pairs))
            if source.lateral:
                # It would read all later positions for each event, as it takes them for few.
                other = select(*other.c).where(same).limit(ONE).lateral("place")
                same = true()
            rows = events.join(other, same)
        own, needed = self.defined.attributes["key"], self.defined.needed
        position, key = other.c[str(source.position.key)], events.c[str(own.key)]
        query = select(ONE).select_from(rows).where(key == own)
        if isinstance(key.type, String) and not isinstance(key.type, Enum):
            # The table's collation may take texts for equal that are different keys to readers.
            query = query.where(database.exact(key) == database.exact(own))
        partition: Any = None
        if source.partition is not None:
            partition = ClauseAdapter(other).traverse(source.partition)
        if later:
            query = query.where(position > source.position, position <= parameter("settled"))
            if partition is not None:
                query = query.where(partition == source.partition)
        else:
            stays = [] if needed is None else [ClauseAdapter(events).traverse(needed)]
            if partition is not None:
                stays.append(partition != source.partition)
            query = query.where(position < source.position, or_(false(), *stays))
        outer = [positions] if source.events is None else [positions, source.events]
        return exists(query.correlate(*outer))
