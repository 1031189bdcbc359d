"""The interface of the orderings, and the values that they exchange with a feed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import md5
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, Table, and_, func, inspect, select

from zeroeventhub.databases.index_hint import Keyset
from zeroeventhub.errors import ConfigurationError, Diverged, ZeroEventHubError
from zeroeventhub.publisher.cursor import HIGHEST_POSITION


@dataclass(frozen=True)
class Events:
    """The table of a feed's events, and the columns that an ordering uses.

    Attributes:
        key: the columns that identify an event: only the position, unless the ordering itself
            gives positions.
        partition: the column of partitions; None for one partition.
        time: the column of the time of an event, if the feed has one.
        append_only: the caller's promise that no row is ever deleted.
    """

    table: Table
    key: tuple[ColumnElement[Any], ...]
    partition: ColumnElement[Any] | None = None
    time: ColumnElement[Any] | None = None
    append_only: bool = False

    @property
    def position(self) -> ColumnElement[Any]:
        """Return the column of positions, for an ordering that does not give them itself."""
        (position,) = self.key
        return position

    def schema(self, connection: Connection) -> str | None:
        """Return the schema in which a connection finds the table; None for its default."""
        return connection.schema_for_object(self.table)

    def check_table(self, connection: Connection) -> None:
        """Refuse a table that does not exist, and a view."""
        look, schema = inspect(connection), self.schema(connection)
        if not look.has_table(self.table.name, schema=schema):
            raise ConfigurationError(f"There is no table {self.table.fullname!r}.")
        if self.table.name in look.get_view_names(schema=schema):
            raise ConfigurationError(
                f"{self.table.fullname!r} is a view: publish its table, and choose its columns by "
                "data=…"
            )

    def check_lowest(self, connection: Connection) -> None:
        """Refuse a table with positions below 1."""
        lowest = connection.scalar(select(func.min(self.position)))
        if lowest is not None and lowest < 1:
            raise ConfigurationError(
                f"{self.position} holds {lowest}; the positions of a feed start at 1."
            )


@dataclass(frozen=True)
class Source(Keyset):
    """The tables from which a feed reads positions and events.

    Attributes:
        table: the table of positions: that of the events, or a side table.
        given_at: the column of the time at which a position was given, which rises with it; None
            if the events hold their positions.
        events: the events' table, if `table` is a side table; else None.
        key: by column of the table, the column of the events that it refers to.
        waiting: the outbox of events without a position; None if every event has one.
        lateral: whether to look up events one by one with a lateral join, because the database
            might otherwise scan all of them to find those of a page.
    """

    given_at: ColumnElement[Any] | None = None
    events: Table | None = None
    key: Mapping[str, ColumnElement[Any]] = field(default_factory=dict)
    waiting: FromClause | None = None
    lateral: bool = False

    def join(self, positions: FromClause) -> FromClause:
        """Join events to some of the positions; a deleted event has NULLs."""
        if self.events is None:
            return positions
        return positions.outerjoin(self.events, self.same(positions))

    def same(self, positions: FromClause) -> ColumnElement[bool]:
        """Return the condition that an event belongs to a position."""
        return and_(*(positions.c[name] == column for name, column in self.key.items()))


@dataclass(frozen=True)
class Horizon:
    """How far a feed may be read now.

    Attributes:
        settled: the horizon: no event can still appear at or below it.
        highest: the highest position drawn so far; no cursor of this history is above it.
    """

    settled: int
    highest: int

    @property
    def drawn(self) -> int:
        """Return the highest position known to be drawn; a replica knows only those it has got."""
        return self.settled if self.highest == HIGHEST_POSITION else self.highest


@dataclass(frozen=True)
class Blocker:
    """An open write transaction, which may hold the horizon back.

    Attributes:
        pid: its process on the server; None for a prepared transaction.
        user: its database user.
        application: its application name; for a prepared transaction its global identifier.
        age: how long the transaction has been open.
        query_age: how long ago its last statement began; None for a prepared transaction.
    """

    pid: int | None
    user: str
    application: str
    age: timedelta
    query_age: timedelta | None

    def __str__(self) -> str:
        """Describe the transaction to the operator."""
        who = "prepared transaction" if self.pid is None else f"pid {self.pid}"
        line = f"{who} of {self.user}, open for {self.age.total_seconds():.1f} s"
        if self.query_age is not None:
            line += f", last statement {self.query_age.total_seconds():.1f} s ago"
        return line + (f" ({self.application!r})" if self.application else "")


@dataclass(frozen=True, kw_only=True)
class Ddl:
    """The statements that install an ordering in a database, and that remove it.

    Attributes:
        install: statements to run in one transaction; running them again changes nothing.
        backfill: statements to run after `install`, in the same transaction or another: they add
            the events from before, and no writer waits for them.
        uninstall: statements that remove everything that `install` creates, and nothing else.
    """

    install: tuple[str, ...] = ()
    backfill: tuple[str, ...] = ()
    uninstall: tuple[str, ...] = ()

    def fill(self, words: Mapping[str, str], created: Sequence[str] = ()) -> "Ddl":
        """Fill the placeholders of these statements; `created` run before those of `install`."""
        install, backfill, uninstall = (
            tuple(statement.format(**words) for statement in statements)
            for statements in (self.install, self.backfill, self.uninstall)
        )
        return Ddl(install=(*created, *install), backfill=backfill, uninstall=uninstall)


def digest(text: str) -> str:
    """Return a digest of 32 characters, for the names and versions of what is installed."""
    return md5(text.encode(), usedforsecurity=False).hexdigest()


def quoted(*names: str | None, quote: str = '"') -> str:
    """Quote a name of one or several parts; those that are None are left out."""
    return ".".join(f"{quote}{name.replace(quote, quote * 2)}{quote}" for name in names if name)


class Ordering(ABC):
    """Finds the horizon of a table; a process has one instance per feed, shared by its readers.

    Attributes:
        source: the tables from which the feed reads positions and events.
        unrestorable: why rows cannot get the positions back that they had; empty if they can.
        needs_last_row: whether the database gives the number of the last row again if the row is
            deleted; known only after `check`.
    """

    source: Source
    unrestorable = ""
    needs_last_row = False
    step: Callable[[Connection], str | None] | None = None
    """Returns the statement that gives positions, or None if there is none just now.

    The caller commits the statement alone, before it reads the horizon, so that no reader sees a
    position that may still be rolled back. None for an ordering that gives no positions.
    """
    fast_horizon: Callable[[Connection, float], Horizon] | None = None
    """Returns the horizon cheaply if nothing was drawn since the last reading.

    It is `horizon` without a transaction and its deadlines: the connection is in autocommit mode,
    and the number is how many seconds a statement may wait for a lock. None for an ordering that
    cannot do that.
    """

    def __init__(self, events: Events) -> None:
        self.source = Source(events.table, events.position, events.partition)
        self._events = events

    @abstractmethod
    def check(self, connection: Connection) -> None:
        """Refuse a table whose events cannot be put in a safe order.

        Raises:
            ConfigurationError: it names what the table lacks, and what to change.
        """

    @abstractmethod
    def horizon(self, connection: Connection) -> Horizon:
        """Return the horizon, without writing.

        Every statement that starts afterwards sees all events at or below it; hence the connection
        autocommits or is at READ COMMITTED.

        Raises:
            Unavailable: the horizon is not known yet.
        """

    def blockers(self, connection: Connection) -> list[Blocker]:  # noqa: ARG002 - for orderings that wait for writers
        """Return the open write transactions that may hold the horizon back, the oldest first."""
        return []

    def warnings(self, connection: Connection) -> list[tuple[str, str, str]]:  # noqa: ARG002 - for orderings that install something
        """Return what to mend in what is installed: a word for each, a sentence, and SQL."""
        return []

    def beyond(self) -> ZeroEventHubError:
        """Return the error for a cursor above the highest position."""
        return Diverged(
            "The cursor lies beyond the last event of this feed: it was given for another "
            "history, such as the one before a backup was restored."
        )

    def continue_after(self, connection: Connection, position: int) -> None:
        """Let the table draw its next number above a position; it may have no rows yet.

        An ordering that is `unrestorable` need not have it.
        """
        raise NotImplementedError

    def ddl(self, connection: Connection) -> Ddl:
        """Return the statements that create what the ordering needs besides the table.

        Raises:
            ConfigurationError: the table cannot be ordered in this way.
        """
        self.check(connection)
        return Ddl()
