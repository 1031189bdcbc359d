"""Orderings with one thing wrong: torture that does not catch each of them proves nothing."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine, Table, TextClause, false, func, null, select, text

from harness.torture.mutant_feeds import LockingReads, XidOrder
from harness.torture.strategies import COLUMNS
from zeroeventhub import TableFeed
from zeroeventhub.capacity import Capacity
from zeroeventhub.errors import FeedFailure, Unavailable
from zeroeventhub.protocol import Page
from zeroeventhub.publisher.bound_feed import BoundFeed
from zeroeventhub.publisher.definition import Definition
from zeroeventhub.publisher.ordering import Ordering, mysql, postgresql
from zeroeventhub.publisher.ordering.mysql.observed import _WRITERS as _MYSQL_WRITERS
from zeroeventhub.publisher.ordering.mysql.server import is_mariadb
from zeroeventhub.publisher.ordering.port import Ddl, Events, Horizon, Source
from zeroeventhub.publisher.ordering.postgresql.gated import _MARKS
from zeroeventhub.publisher.ordering.postgresql.observed import _WRITERS
from zeroeventhub.publisher.ordering.postgresql.sequence import quoted_name
from zeroeventhub.publisher.ordering.postgresql.sequenced import ROUND

HASTE = 0.03
"""Seconds at most between what was read too early and the rest."""


@dataclass(frozen=True, kw_only=True)
class _Mutated(Definition):
    """Say that a feed has an ordering of one's own."""

    mutant: Callable[[Events], Ordering]

    def ordering(self, dialect: str) -> Ordering:
        """Make it, whatever the database."""
        return self.mutant(self.events)


class Mutant(TableFeed):
    """Publish a table in an ordering of one's own.

    Args:
        table: the table.
        ordering: makes the ordering.
    """

    def __init__(self, table: Table, ordering: Callable[[Events], Ordering]) -> None:
        super().__init__(table, **COLUMNS)
        told = {one.name: getattr(self._defined, one.name) for one in fields(self._defined)}
        self._defined = _Mutated(**told, mutant=ordering)

    def bind(self, engine: Engine, capacity: Capacity | None = None) -> Any:
        return _Tried(super().bind(engine, capacity))


@contextmanager
def _another_time() -> Iterator[None]:
    try:
        yield
    except FeedFailure as error:
        raise Unavailable("It went wrong for once.", retry_after=0) from error


class _Tried:
    """Try again where a mistake ends in an error, since another time it does not."""

    def __init__(self, feed: BoundFeed) -> None:
        self._feed = feed

    def read(self, partition: int, cursor: str, limit: int) -> Page:
        with _another_time():
            return self._feed.read(partition, cursor, limit)

    def head(self) -> int:
        with _another_time():
            return self._feed.head()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)


class Naive:
    """Trust that what is highest now has nothing left to come below it."""

    def __init__(self, events: Events) -> None:
        self.source = Source.of(events)

    def check(self, connection: Connection) -> None:
        """Take any table."""

    def step(self, connection: Connection) -> None:
        """Write nothing."""

    def horizon(self, connection: Connection) -> Horizon:
        """Return the highest position that anybody sees."""
        highest = connection.scalar(select(func.max(self.source.position))) or 0
        return Horizon(highest, highest)

    def ddl(self, connection: Connection) -> Ddl:
        """Need nothing."""
        return Ddl()


class _Blind:
    """A connection that finds no lock."""

    def __init__(self, connection: Connection, locks: TextClause, table: Table) -> None:
        self._connection = connection
        self._locks = locks
        self._found = connection.execute(select(null()).where(false())).freeze()

    def scalars(self, statement: Any, values: Any = None) -> Any:
        if statement is self._locks:
            return self._found().scalars()
        return self._connection.scalars(statement, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class _Hasty(_Blind):
    """A connection that has read the locks before anything else is read, and some time before."""

    def __init__(self, connection: Connection, locks: TextClause, table: Table) -> None:
        super().__init__(connection, locks, table)
        self._found = connection.execute(locks, {"table": quoted_name(connection, table)}).freeze()
        time.sleep(random.random() * HASTE)


def _reading(ordering: type[Ordering], locks: TextClause, through: type[_Blind]) -> type[Ordering]:
    class Misread(ordering):
        def horizon(self, connection: Connection) -> Horizon:
            return super().horizon(through(connection, locks, self._events.table))

    return Misread


def _rewritten(ordering: type[Ordering], *changes: tuple[str, str], before: str = "") -> Any:
    """Install an ordering with some of its SQL changed, and a statement of one's own before it."""

    class Rewritten(ordering):
        def check(self, connection: Connection) -> None:
            """Take what is installed."""

        def ddl(self, connection: Connection) -> Ddl:
            ddl = super().ddl(connection)
            digest = self._tables.digest
            (sequencer,) = (line for line in ddl.install if changes[0][0] in line)
            mutant = sequencer
            for old, new in changes:
                assert old in mutant, f"{old!r} is no longer there to be changed"
                mutant = mutant.replace(old, new.format(digest=digest))
            first = (before.format(digest=digest),) if before else ()
            rest = (mutant if line is sequencer else line for line in ddl.install)
            return Ddl(install=(*first, *rest), backfill=ddl.backfill, uninstall=ddl.uninstall)

    return Rewritten


class _Forgetful(mysql.Observed):
    """Take prepared transactions whose connection is gone for ended."""

    def _read_prepared(self, connection: Connection) -> list[str]:
        return []


class _Hurried(mysql.Observed):
    """Read who writes before the last number drawn, and some time before."""

    def horizon(self, connection: Connection) -> Horizon:
        return super().horizon(_Swapped(connection))


class _Swapped:
    """A connection that answers who writes from before the number was asked for."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._writers: Any = None

    def execute(self, statement: TextClause, values: Any = None) -> Any:
        if statement.text.startswith("SHOW CREATE TABLE"):
            table = statement.text.split("`")[-2]
            writers = text(_MYSQL_WRITERS[is_mariadb(self._connection)])
            named = {"schema": None, "name": table}
            self._writers = self._connection.execute(writers, named).freeze()
            time.sleep(random.random() * HASTE)
        elif values and self._writers:
            return self._writers()
        return self._connection.execute(statement, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


# Positions come from a sequence, and everybody gives them to rows that nobody else has locked.
_BY_ALL = _rewritten(
    postgresql.Sequenced,
    (" FOR UPDATE SKIP LOCKED", ""),
    ("ORDER BY number LIMIT amount", "ORDER BY number LIMIT amount FOR UPDATE SKIP LOCKED"),
    ("state.last + row_number() OVER (ORDER BY number)", "nextval('public.mutant_{digest}')"),
    (
        "state.last := state.last + moved",
        """state.last := pg_sequence_last_value('public.mutant_{digest}'::regclass);
        PERFORM pg_sleep(random() * 0.03)""",
    ),
    before="CREATE SEQUENCE IF NOT EXISTS public.mutant_{digest}",
)

MUTANTS: dict[tuple[str, str], Callable[[Table], Any]] = {
    ("postgresql", "naive"): partial(Mutant, ordering=Naive),
    ("postgresql", "in the order of transaction ids"): XidOrder,
    ("postgresql", "observed, locks read before the number"): partial(
        Mutant, ordering=_reading(postgresql.Observed, _WRITERS, _Hasty)
    ),
    ("postgresql", "observed, nobody waited for"): partial(
        Mutant, ordering=_reading(postgresql.Observed, _WRITERS, _Blind)
    ),
    ("postgresql", "gated, marks read before the number"): partial(
        Mutant, ordering=_reading(postgresql.Gated, _MARKS, _Hasty)
    ),
    ("postgresql", "gated, marks ignored"): partial(
        Mutant, ordering=_reading(postgresql.Gated, _MARKS, _Blind)
    ),
    ("postgresql", "sequenced by everybody at once"): partial(Mutant, ordering=_BY_ALL),
    ("postgresql", "sequenced, low mark that waits for nobody"): partial(
        Mutant,
        ordering=_rewritten(
            postgresql.Sequenced,
            ("virtualtransaction = ANY (state.holders)", "false"),
            (f"state.low + {ROUND}", "state.low"),
        ),
    ),
    ("mariadb", "observed, writers read before the number"): partial(Mutant, ordering=_Hurried),
    ("mariadb", "observed, prepared transactions forgotten"): partial(Mutant, ordering=_Forgetful),
    ("mariadb", "sequenced by everybody at once"): partial(
        Mutant, ordering=_rewritten(mysql.Sequenced, ("FOR UPDATE SKIP LOCKED", ""))
    ),
    ("mariadb", "naive"): partial(Mutant, ordering=Naive),
    ("mariadb", "locking reads"): LockingReads,
}
"""What publishes a table wrongly, by its database and by what is wrong."""
