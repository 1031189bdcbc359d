"""The port of the strategies: what a feed asks of an ordering."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

from sqlalchemy import ColumnElement, Connection, FromClause, Table, and_

from zeroeventhub.publisher.cursor import HIGHEST_POSITION

__all__ = [
    "Blocker",
    "Ddl",
    "Events",
    "FastHorizon",
    "Horizon",
    "Ordering",
    "Source",
]


@dataclass(frozen=True)
class Events:
    """Say what an ordering needs to know of a feed's events.

    Attributes:
        table: where they are.
        key: the columns that identify an event; one, the position, unless positions are given
            by the ordering itself.
        partition: the column of partitions; None for one partition.
        time: the column of the time of an event, if there is one.
        append_only: the caller's promise that no row is ever deleted.
    """

    table: Table
    key: tuple[ColumnElement[Any], ...]
    partition: ColumnElement[Any] | None = None
    time: ColumnElement[Any] | None = None
    append_only: bool = False

    @property
    def position(self) -> ColumnElement[Any]:
        """Return the column of positions, where the table has one."""
        (position,) = self.key
        return position


@dataclass(frozen=True)
class Source:
    """Say where positions are read, and the events at them.

    Attributes:
        table: holds the positions; that of the events, or one beside it.
        position: the column in whose order events are read.
        partition: the column of partitions; None for one partition.
        given_at: the time at which a position was given, which rises with it; None where
            positions come with their events.
        events: where the table is one beside that of the events: that of the events.
        key: by column of the table, the column of the events that it refers to.
        waiting: where events wait that have no position yet; None if they all have one.
        lateral: whether events are looked up one by one by a lateral join, because the database
            might otherwise read through all of them to find those of a page.
    """

    table: FromClause
    position: ColumnElement[Any]
    partition: ColumnElement[Any] | None
    given_at: ColumnElement[Any] | None = None
    events: Table | None = None
    key: Mapping[str, ColumnElement[Any]] = field(default_factory=dict)
    waiting: FromClause | None = None
    lateral: bool = False

    @classmethod
    def of(cls, events: Events) -> "Source":
        """Read a table that holds the positions of its events."""
        return cls(events.table, events.position, events.partition)

    def join(self, positions: FromClause) -> FromClause:
        """Join events to some of the positions; what has been deleted leaves NULLs."""
        if self.events is None:
            return positions
        return positions.outerjoin(self.events, self.same(positions))

    def same(self, positions: FromClause) -> ColumnElement[bool]:
        """Tell whether an event is the one that a position belongs to."""
        return and_(*(positions.c[name] == column for name, column in self.key.items()))


@dataclass(frozen=True)
class Horizon:
    """Say how far a feed may be read now.

    Attributes:
        settled: the horizon: what is at or below it stays as it is.
        highest: the highest position drawn so far; no cursor of this history lies above it.
    """

    settled: int
    highest: int

    @property
    def drawn(self) -> int:
        """Return the highest position known to be drawn; a replica knows those that it has."""
        return self.settled if self.highest == HIGHEST_POSITION else self.highest


@dataclass(frozen=True)
class Blocker:
    """Name a writer that is open, and so may hold the horizon back.

    Attributes:
        pid: its process on the server; None for a prepared transaction.
        user: who it is.
        application: what it calls itself; for a prepared transaction its global identifier.
        age: how long its transaction has been open.
        query_age: how long ago its last statement began; None for a prepared transaction.
    """

    pid: int | None
    user: str
    application: str
    age: timedelta
    query_age: timedelta | None

    def __str__(self) -> str:
        """Describe it to people."""
        who = "prepared transaction" if self.pid is None else f"pid {self.pid}"
        line = f"{who} of {self.user}, open for {self.age.total_seconds():.1f} s"
        if self.query_age is not None:
            line += f", last statement {self.query_age.total_seconds():.1f} s ago"
        return line + (f" ({self.application!r})" if self.application else "")


@dataclass(frozen=True, kw_only=True)
class Ddl:
    """Hold the statements that an ordering adds to a database, and those that take them back.

    Attributes:
        install: statements to run in one transaction; running them again changes nothing.
        backfill: statements to run after it, in a transaction of their own if need be: they take
            in what was there before, and keep no writer waiting.
        uninstall: statements that remove all of it and nothing else.
    """

    install: tuple[str, ...] = ()
    backfill: tuple[str, ...] = ()
    uninstall: tuple[str, ...] = ()


class Ordering(ABC):
    """Know the horizon of a table; one instance a feed and process, shared by its readers.

    Attributes:
        source: where the table's events are read in their order.
    """

    source: Source

    @property
    def needs_last_row(self) -> bool:
        """Tell whether the number of the last row would be given again without it.

        It is known once the table has been checked.
        """
        return False

    @abstractmethod
    def check(self, connection: Connection) -> None:
        """Refuse a table whose events cannot be put in a safe order.

        Raises:
            ConfigurationError: what the table lacks, and what to change.
        """

    def step(self, connection: Connection) -> str | None:  # noqa: ARG002 - for orderings that give positions
        """Return the statement that gives positions, where an ordering gives them; else None.

        It is committed, by itself, before the horizon is asked for: what may still be rolled back
        is shown to no reader.
        """
        return None

    @abstractmethod
    def horizon(self, connection: Connection) -> Horizon:
        """Return the horizon; nothing is written.

        What is at or below it is visible to every statement that starts afterwards, as each of a
        connection that autocommits, or of a transaction at READ COMMITTED.

        Raises:
            Unavailable: it is not known yet.
        """

    def blockers(self, connection: Connection) -> list[Blocker]:  # noqa: ARG002 - for orderings that wait for writers
        """Name the open writers that may hold the horizon back, the oldest first."""
        return []

    def ddl(self, connection: Connection) -> Ddl:
        """Return what the ordering needs in the database beside the table itself.

        Raises:
            ConfigurationError: the table cannot be ordered in this way.
        """
        self.check(connection)
        return Ddl()


@runtime_checkable
class FastHorizon(Protocol):
    """Know the horizon at little cost where nothing has been drawn since it was last asked for."""

    def fast_horizon(self, connection: Connection, seconds: float) -> Horizon:
        """Return the horizon as `Ordering.horizon` does, without a transaction and its deadlines.

        Args:
            connection: each of its statements is a transaction of its own.
            seconds: for which a statement may wait for a lock.

        Raises:
            Unavailable: it is not known yet.
        """
