"""What trims a feed, sync or async: a plan, and batches that carry it out."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, literal_column, select

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.deleting import Step
from zeroeventhub.publisher.near_rows import NearRows, given
from zeroeventhub.publisher.ordering import NeedsLastRow, Ordering
from zeroeventhub.publisher.progress.registry import Registry
from zeroeventhub.publisher.queries import Queries
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.retention import Mark, Marks
from zeroeventhub.publisher.trimming.batches import Batches
from zeroeventhub.publisher.trimming.cut import Cut
from zeroeventhub.publisher.trimming.plan import TrimPlan

__all__ = ["Trimmer"]

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
