"""Take the oldest events out of a feed's table, and tell the feed."""

import time
from asyncio import to_thread
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Integer,
    Select,
    func,
    literal_column,
    select,
)
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.archived.sealing import Sealer
from zeroeventhub.publisher.cursor import HIGHEST_POSITION, Place
from zeroeventhub.publisher.deleting import (
    Deleted,
    Step,
    async_delete_all,
    delete_all,
    delete_beside,
    delete_events,
    unheard,
)
from zeroeventhub.publisher.history import History
from zeroeventhub.publisher.keyset import LIMIT, NearRows, Way, given
from zeroeventhub.publisher.ordering import NeedsLastRow, Ordering, Source
from zeroeventhub.publisher.progress import CLOCKS, Registry
from zeroeventhub.publisher.reader import Queries, Reader
from zeroeventhub.publisher.retention import Mark, Marks

if TYPE_CHECKING:
    from zeroeventhub.archive.manifest import Manifest

__all__ = [
    "ROWS",
    "AsyncTrimming",
    "Batches",
    "TrimPlan",
    "Trimmer",
    "Trimming",
]


@dataclass(frozen=True, kw_only=True)
class TrimPlan:
    """Say which events would be trimmed.

    Attributes:
        events: how many; at least so many if not `exact`.
        exact: whether they were all counted.
        first: the position of the first one; None if nothing would go.
        until: the position of the last one; that of the mark if nothing would go.
        oldest: when the first one happened; None where the feed does not know.
        newest: when the last one did.
        wanted: up to where more would go, were it not held back.
        held_back: by what, a sentence each.
        made_at: when it was made, in seconds since 1970.
    """

    events: int
    exact: bool
    first: int | None
    until: int
    oldest: datetime | None
    newest: datetime | None
    wanted: int
    held_back: tuple[str, ...] = ()
    made_at: float = field(default_factory=time.time)

    def __str__(self) -> str:
        """Describe it to people."""
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
"""For how long a consumer is waited for that is not heard of."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Say which events are to go: those for which all that is given holds.

    Attributes:
        older_than: they happened so long ago, and all before them did.
        below: they lie below this position, or before this cursor.
        sealed: they lie at this position or below, which is what has been kept elsewhere; or what
            tells it.
        silence: for how long a consumer that registers its progress may not have been heard of,
            and is waited for all the same.
        kept: what the feed's archive has; None where it has none.

    Raises:
        ConfigurationError: nothing is given, or it cannot be.
    """

    older_than: timedelta | None = None
    below: int | str | None = None
    sealed: int | Callable[[], int] | None = None
    silence: timedelta = SILENCE
    kept: "Manifest | None" = None

    def __post_init__(self) -> None:
        """Refuse what says nothing."""
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
        """Return the highest position at which an event may go, whatever its time."""
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


MOST = 1_000_000
"""How many events are counted, at most."""

_ONE: ColumnElement[int] = literal_column("1")


class Trimmer:
    """Trim a feed.

    Args:
        reader: reads it.
        ordering: knows its order.
        marks: the feed's.
        queries: ask of the feed's table.
        batches: deletes events.
        registry: knows how far consumers say that they have come; None where nobody does, or loses
            anything.
        version: the column of an event's number within its key; None where there are none.
    """

    def __init__(
        self,
        reader: Reader,
        ordering: Ordering,
        marks: Marks,
        queries: Queries,
        batches: Batches,
        *,
        registry: Registry | None = None,
        version: ColumnElement[int] | None = None,
    ) -> None:
        self._reader = reader
        self._ordering = ordering
        self._marks = marks
        self._times = queries.times
        self._lags = queries.lags
        self._version = version
        self._batches = batches
        self._registry = registry
        self._near = NearRows.of_all(ordering.source)

    def plan(self, connection: Connection, cut: Cut) -> TrimPlan:
        """Say what would go; nothing is changed."""
        # What no reader can have seen is not to be lost.
        self._reader.checks.refuse_unpublished(connection)
        settled = self._reader.head(connection)
        mark = self._marks.read(connection)
        if isinstance(cut.below, str):
            self._reader.vouch(connection, [cut.below])
        if cut.kept is not None and cut.kept.last is not None:
            self._reader.vouch_in_table(connection, cut.kept.last)
        until = wanted = min(cut.until, settled)
        if cut.older_than is not None:
            moment = datetime.now(UTC) - cut.older_than
            until = wanted = min(until, self.before(connection, moment, settled))
        until, held_back = self._held_back(connection, cut, mark, until)
        if isinstance(self._ordering, NeedsLastRow) and self._ordering.needs_last_row:
            last = self._near.last(connection, 0, settled)
            if last is not None and last <= until:
                until = last - 1
                held_back.append("The last event stays: SQLite would give its number again.")
        versioned = self._first_with_version(connection, mark.trimmed, until)
        if versioned is not None:
            until = versioned - 1
            held_back.append(
                f"What lies above position {until} stays, for a key's versions are counted on from "
                "there, and whoever restores what it is about wants all of them."
            )
        return self._described(
            connection,
            mark.trimmed,
            until,
            wanted=wanted,
            held_back=held_back,
            by_time=cut.older_than,
        )

    def _first_with_version(self, connection: Connection, after: int, until: int) -> int | None:
        """Return the position of the first event that has a version; None if none has."""
        if self._version is None:
            return None
        source = self._ordering.source
        query = select(source.position).select_from(source.join(source.table))
        query = query.where(self._version.is_not(None))
        query = self._near.above(query, self._near.way(connection), given("after"), given("until"))
        values = {"after": after, "until": until}
        found: int | None = connection.scalar(query.limit(_ONE), values)
        return found

    def _held_back(
        self, connection: Connection, cut: Cut, mark: Mark, until: int
    ) -> tuple[int, list[str]]:
        """Return up to where consumers let events go, and what is to be said of them."""
        if self._registry is None:
            return until, []
        said, lowest = [], until
        for one in self._registry.registered(connection):
            allowed = self._registry.allowed(connection, one, mark, until)
            if allowed is not None and allowed >= until:
                continue
            where = f"in partition {one.partition}; last heard of {_ago(one.heard)} ago"
            if allowed is None:
                said.append(f"{one.name} has lost events already {where}: it holds nothing back.")
            elif one.heard > cut.silence.total_seconds():
                said.append(
                    f"{one.name} WILL LOSE EVENTS {where}: that is too long to wait for it."
                )
            else:
                lowest = min(lowest, allowed)
                said.append(f"{one.name} keeps what lies above position {allowed} {where}.")
        return lowest, said

    def before(self, connection: Connection, moment: datetime, settled: int) -> int:
        """Return the position at and below which all events happened before a moment."""
        found = [
            self._times.position(connection, partition, moment, settled=settled)
            for partition in self._marks.partitions
        ]
        return min(found)

    def _described(
        self,
        connection: Connection,
        mark: int,
        until: int,
        *,
        wanted: int,
        held_back: list[str],
        by_time: Any,
    ) -> TrimPlan:
        first = self._near.first(connection, 0, mark, until)
        last = None if first is None else self._near.last(connection, 0, until)
        if first is None or last is None:
            return TrimPlan(
                events=0,
                exact=True,
                first=None,
                until=mark,
                oldest=None,
                newest=None,
                wanted=wanted,
                held_back=tuple(held_back),
            )
        newest = self._lags.happened(connection, last)
        if by_time is not None and newest is None:
            raise ConfigurationError(
                f"The event at position {last} has no time, so it cannot be told how old it is: "
                "trim by position."
            )
        events = self._count(connection, mark, until)
        return TrimPlan(
            events=min(events, MOST),
            exact=events <= MOST,
            first=first,
            until=last,
            oldest=self._lags.happened(connection, first),
            newest=newest,
            wanted=wanted,
            held_back=tuple(held_back),
        )

    def _count(self, connection: Connection, after: int, until: int) -> int:
        source = self._ordering.source
        query = select(source.position).select_from(source.table)
        query = self._near.above(query, self._near.way(connection), given("after"), given("until"))
        some = query.limit(literal_column(str(MOST + 1))).subquery()
        counted = select(func.count()).select_from(some)
        return connection.scalar(counted, {"after": after, "until": until}) or 0

    def step(self, plan: TrimPlan, rows: int) -> Step:
        """Return what deletes some of the oldest events.

        Args:
            plan: says which.
            rows: how many at most.
        """
        return lambda connection, _: self._batches.delete(
            connection, plan.until, rows, plan.made_at
        )


def _ago(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


ROWS = 1_000
"""How many events a batch of trimming deletes, at most."""


class Trimming:
    """Trim a feed through a sync engine."""

    _engine: Engine
    _trimmer: Trimmer | None
    _sealer: Sealer | None
    _ask: Callable[..., Any]

    def plan_trim(
        self,
        *,
        older_than: timedelta | None = None,
        below: int | str | None = None,
        sealed: int | Callable[[], int] | None = None,
        silence: timedelta = SILENCE,
    ) -> TrimPlan:
        """Say which events would be trimmed, and what holds it back; nothing is changed.

        Args:
            older_than: events that happened so long ago, if all before them did.
            below: events below this position, or before this cursor.
            sealed: events up to this position, which are kept elsewhere; or what tells it. If the
                feed has an archive, what is not in that stays in any case.
            silence: for how long a consumer that registers its progress is waited for if it is not
                heard of; a minute at least. With an archive nobody is waited for.

        Raises:
            ConfigurationError: nothing is given, the feed has no `retention`, or its archive is
                that of another feed.
            Gone: its archive has another history than the table.
            Unavailable: the horizon is not known yet, or the archive's store did not answer.
        """
        cut = Cut(older_than=older_than, below=below, sealed=sealed, silence=silence)
        if self._sealer is not None:
            cut = replace(cut, kept=self._sealer.kept())
        plan: TrimPlan = self._ask(_known(self._trimmer).plan, cut)
        return plan

    def trim(
        self, plan: TrimPlan, *, rows: int = ROWS, told: Callable[[int, int], None] = unheard
    ) -> int:
        """Delete what a plan says from the table, in batches; return how many events are gone.

        Each is a transaction with the mark that tells of it: stop anywhere, and plan anew.

        Args:
            plan: made by `plan_trim`.
            rows: how many events a batch deletes, at most.
            told: is called behind each batch with how many events are gone, and up to where.

        Raises:
            Unavailable: others have kept what is to be deleted locked, however often it was tried.
        """
        step = _known(self._trimmer).step(plan, rows)
        return delete_all(self._engine, step, 0, told)


class AsyncTrimming:
    """Trim a feed through an async engine."""

    _engine: AsyncEngine
    _trimmer: Trimmer | None
    _sealer: Sealer | None
    _ask: Callable[..., Any]

    async def plan_trim(
        self,
        *,
        older_than: timedelta | None = None,
        below: int | str | None = None,
        sealed: int | Callable[[], int] | None = None,
        silence: timedelta = SILENCE,
    ) -> TrimPlan:
        """Say which events would be trimmed; see `Trimming.plan_trim`."""
        cut = Cut(older_than=older_than, below=below, sealed=sealed, silence=silence)
        if self._sealer is not None:
            cut = replace(cut, kept=await to_thread(self._sealer.kept))
        plan: TrimPlan = await self._ask(_known(self._trimmer).plan, cut)
        return plan

    async def trim(
        self, plan: TrimPlan, *, rows: int = ROWS, told: Callable[[int, int], None] = unheard
    ) -> int:
        """Delete what a plan says from the table; see `Trimming.trim`."""
        step = _known(self._trimmer).step(plan, rows)
        return await async_delete_all(self._engine, step, 0, told)


def _known(trimmer: Trimmer | None) -> Trimmer:
    """Refuse to trim a feed that would not know of it."""
    if trimmer is None:
        raise ConfigurationError(
            "Nobody would know what was trimmed of this feed: give it a place to keep that, "
            "TableFeed(…, retention=Retention())."
        )
    return trimmer
