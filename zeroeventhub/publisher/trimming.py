"""Delete the oldest events of a feed's table, and move the feed's mark of what was trimmed."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Connection, Integer, Row, Select, func, literal_column, select

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.cursor import HIGHEST_POSITION, Place
from zeroeventhub.publisher.deletion import Batch, Deleted, delete_events
from zeroeventhub.publisher.keyset import LIMIT, ONE, NearRows
from zeroeventhub.publisher.progress import CLOCKS, Registry
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.retention import LowWaterMark, MarkTable

if TYPE_CHECKING:
    from zeroeventhub.archive.manifest import Manifest


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
    wanted: int
    held_back: tuple[str, ...] = ()
    made_at: float = field(default_factory=time.time)

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
            raise ConfigurationError("Say what to trim: older_than, below or sealed.")
        if self.older_than is not None and self.older_than < timedelta(0):
            raise ConfigurationError("No event is older than something that is still to come.")
        if self.silence.total_seconds() < CLOCKS:
            raise ConfigurationError(
                f"Clocks may be {CLOCKS:.0f} seconds apart, so a silence is no shorter than that: "
                "forget the consumers that are not to be waited for."
            )

    @property
    def until(self) -> int:
        """Return the highest position to trim, without regard to time."""
        until = HIGHEST_POSITION
        if isinstance(self.below, str):
            until = Place.of(self.below).position
        elif self.below is not None:
            until = self.below - 1
        if self.sealed is not None:
            until = min(until, self.sealed() if callable(self.sealed) else self.sealed)
        if self.kept is not None:
            until = min(until, self.kept.sealed)
        return max(until, 0)


_ONLY: ColumnElement[int] = literal_column("0", Integer)
"""The partition of every event in a feed without a partition column."""

MOST = 1_000_000
"""Events that are counted, at most."""

ROWS = 1_000
"""Events that a batch deletes by default."""


@dataclass(frozen=True, kw_only=True)
class Trimmer:
    """Trim a feed: plan it, and delete the events in batches."""

    reader: Reader
    near: NearRows  # of all partitions
    marks: MarkTable
    registry: Registry | None  # None as well where an archive keeps what is trimmed
    key: ColumnElement[Any] | None
    needed: ColumnElement[bool] | None  # whether a key is restored from an event

    def plan(self, connection: Connection, bound: TrimBound) -> TrimPlan:
        """Return what a trim would delete; change nothing."""
        settled, wanted = self.reader.removable(connection, bound.older_than)
        mark = self.marks.read(connection)
        if isinstance(bound.below, str):
            self.reader.vouch(connection, [bound.below])
        if bound.kept is not None and bound.kept.last is not None:
            self.reader.vouch_in_table(connection, bound.kept.last)
        wanted = min(wanted, bound.until)
        until, held_back = self._held_back(connection, bound, mark, wanted)
        if self.reader.ordering.needs_last_row:
            last = self.near.last(connection, 0, settled)
            if last is not None and last <= until:
                until = last - 1
                held_back.append("The last event stays: SQLite would give its number again.")
        if (needed := self._first_needed(connection, mark.trimmed, until)) is not None:
            until = needed.position - 1
            held_back.append(
                f"What lies above position {until} stays: the next event is of key {needed.key!r}, "
                "whose versions are counted and whose state is restored from it, as no snapshot of "
                "the key covers it."
            )
        first = self.near.first(connection, 0, mark.trimmed, until)
        last = None if first is None else self.near.last(connection, 0, until)
        if first is None or last is None:
            return TrimPlan(until=mark.trimmed, wanted=wanted, held_back=tuple(held_back))
        newest = self.reader.lookups.happened(connection, last)
        if bound.older_than is not None and newest is None:
            raise ConfigurationError(
                f"The event at position {last} has no time, so its age is not known: "
                "trim by position."
            )
        events = self._count(connection, mark.trimmed, until)
        return TrimPlan(
            events=min(events, MOST),
            exact=events <= MOST,
            first=first,
            until=last,
            oldest=self.reader.lookups.happened(connection, first),
            newest=newest,
            wanted=wanted,
            held_back=tuple(held_back),
        )

    def _held_back(
        self, connection: Connection, bound: TrimBound, mark: LowWaterMark, until: int
    ) -> tuple[int, list[str]]:
        """Return the position up to which consumers allow a trim, and a sentence about each."""
        if self.registry is None:
            return until, []
        reasons, lowest = [], until
        for one in self.registry.registered(connection):
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
        if self.key is None or self.needed is None:
            return None
        source = self.reader.ordering.source
        columns = source.position.label("position"), self.key.label("key")
        query: Select[Any] = select(*columns).select_from(source.join(source.table))
        query = self.near.above(query.where(self.needed), self.near.hint(connection))
        return connection.execute(query.limit(ONE), {"after": after, "until": until}).first()

    def _count(self, connection: Connection, after: int, until: int) -> int:
        query = self.near.rows(self.near.hint(connection), self.reader.ordering.source.position)
        some = query.limit(literal_column(str(MOST + 1))).subquery()
        counted = select(func.count()).select_from(some)
        return connection.scalar(counted, {"after": after, "until": until}) or 0

    def batch(self, plan: TrimPlan, rows: int) -> Batch:
        """Return the function that deletes the next `rows` events of a plan and moves the mark."""

        def delete_batch(connection: Connection, _: int) -> Deleted:
            mark, until = self.marks.locked(connection), plan.until
            if self.registry is not None:
                # Consumers that have registered since the plan was made limit the trim as well.
                until = self.registry.allowed_since(connection, plan.made_at, mark, until)
            values = {"after": mark.trimmed, "until": until, "limit": rows}
            source = self.reader.ordering.source
            partition = _ONLY if source.partition is None else source.partition
            columns = [source.position.label("position"), partition.label("partition")]
            columns += [source.table.c[name].label(name) for name in source.key]
            oldest = self.near.rows(self.near.hint(connection), *columns).limit(LIMIT)
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
