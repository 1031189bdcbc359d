"""Checks of a handler: kills at every place, events that come twice, and poison events."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    MetaData,
    Table,
    delete,
    event,
    exists,
    inspect,
    select,
    text,
)

from zeroeventhub.consumer.config import Failures
from zeroeventhub.consumer.consumer import AsyncConsumer, Consumer
from zeroeventhub.consumer.observer import Observer
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.consumer.store_session import in_store
from zeroeventhub.coroutines import blocking
from zeroeventhub.errors import ConfigurationError, ZeroEventHubError, printable
from zeroeventhub.protocol import Event
from zeroeventhub.testing.consumers import Prepare, any_run_to_head, async_store_of, store_of
from zeroeventhub.testing.feeds import (
    MemoryFeed,
    async_client_of,
    client_of,
    event_of,
    partitions_of,
)

_Found = TypeVar("_Found")

Effects: TypeAlias = Callable[[Connection], object]
"""Reads the effects of a handler, to be compared."""


def check_handler(
    apply: Callable[..., object],
    events: Iterable[Any],
    *,
    store: CursorStore | None = None,
    prepare: Prepare | None = None,
    effects: Effects | None = None,
    sessions: Callable[[], Any] | None = None,
    start: Callable[[], object] | None = None,
    page_events: int = 3,
    twice: bool = False,
    poison: Iterable[Any] = (),
) -> None:
    """Check that a handler applies every event once, wherever its process is killed.

    The events are consumed in an empty database, then again, and then once for each place of a
    kill: after every statement of a page's transaction, before its commit and after it. Each time
    the consumer is started again after the kill, and the effects in the database have to be those
    of the first run. Statements that write past the transaction fail the check at once.

    Args:
        apply: the handler, as for `Consumer.run`.
        events: what Event.of takes, or Events; or a list of such lists, one for each partition.
        store: a store in a database whose tables are all empty: the check empties them again before
            each run, and at its end. By default, a SQLite database of its own.
        prepare: called before each run: creates the tables of the handler if they do not exist,
            and writes the rows that it expects.
        effects: reads the effects. By default all rows of all tables, without numbers that
            PostgreSQL and MariaDB draw by themselves, as they differ after a rollback.
        sessions: as for `Consumer.run`.
        start: does what your program does when it starts, such as to empty a cache.
        page_events: the most events of a page.
        twice: whether the handler also has to bear that each event comes twice, without an inbox.
        poison: events that the handler must refuse: each has to become a dead letter, without
            other effects.

    Raises:
        AssertionError: in sentences, what broke at which step.
        ConfigurationError: a table of the store's database is not empty.
    """
    options = (prepare, effects, sessions, start, page_events)
    check = _HandlerCheck(store or store_of(), apply, partitions_of(events), *options)
    blocking(check.run(twice=twice, poison=poison))


async def async_check_handler(
    apply: Callable[..., object],
    events: Iterable[Any],
    *,
    store: CursorStore | None = None,
    prepare: Prepare | None = None,
    effects: Effects | None = None,
    sessions: Callable[[], Any] | None = None,
    start: Callable[[], object] | None = None,
    page_events: int = 3,
    twice: bool = False,
    poison: Iterable[Any] = (),
) -> None:
    """Check a handler of an AsyncConsumer, whose store has an AsyncEngine; see `check_handler`."""
    options = (prepare, effects, sessions, start, page_events)
    check = _HandlerCheck(store or async_store_of(), apply, partitions_of(events), *options)
    await check.run(twice=twice, poison=poison)


_NAME = "handler-check"
_PLAIN = "Nothing went wrong"
_OWN_TABLES = "zeroeventhub_"
_WRITES = re.compile(
    r"(?:\s|/\*.*?\*/|--[^\n]*\n)*"
    r"(?:insert|update|delete|replace|merge|copy|create|alter|drop|truncate"
    r"|with\b.*\b(?:insert\s+into|merge\s+into|delete\s+from|update\s+\S+\s.*\bset))\b",
    re.IGNORECASE | re.DOTALL,
)
_AT_MOST = 200
"""The most characters of a row, a statement or an error that a sentence shows."""


class _Killed(BaseException):
    """Raised where the process of a handler is killed, and at every statement after that."""


_watching: ContextVar["_Watch | None"] = ContextVar("_watching", default=None)
"""The watch of the page whose transaction this thread or task is in."""


class _Watch(Observer):
    """Count the places where a handler can be killed, and kill it at one of them."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.places = 0  # so far
        self.place = ""  # describes the place of the kill
        self.outside = ""  # a statement that wrote past the transaction
        self._kill_at = kill_at
        self._is_dead = False
        self._page_connection: Any = None
        self._page = ""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the statements of all engines in a block."""
        hooks = (
            ("before_cursor_execute", self._before_statement),
            ("after_cursor_execute", self._after_statement),
            ("commit", self._before_commit),
        )
        for name, hook in hooks:
            event.listen(Engine, name, hook)
        try:
            yield
        finally:
            for name, hook in hooks:
                event.remove(Engine, name, hook)

    @contextmanager
    def applying(self, consumer: str, partition: int, events: Sequence[Event]) -> Iterator[None]:
        """Watch the transaction of a page."""
        del consumer
        first = printable(events[0].raw.decode(errors="replace"), longest=_AT_MOST)
        self._page = f"the page of partition {partition} that begins with {first}"
        self._page_connection = None
        token = _watching.set(self)
        try:
            yield
            self._pass("after the commit")
        finally:
            _watching.reset(token)

    def _before_statement(
        self, connection: Connection, _cursor: Any, statement: str, *_: Any
    ) -> None:
        self._expect_alive()
        if _watching.get() is not self:
            return
        driver = connection.connection.dbapi_connection
        if self._page_connection is None:  # the statement that moves the cursor
            self._page_connection = driver
        elif driver is not self._page_connection and _WRITES.match(statement):
            self.outside = _shorten(statement)
            self._kill()

    def _after_statement(
        self, _connection: Connection, cursor: Any, statement: str, *_: Any
    ) -> None:
        try:
            self._pass(f"after the statement {_shorten(statement)!r}")
        except _Killed:
            cursor.close()  # SQLite keeps its lock as long as a cursor of many rows is open
            raise

    def _before_commit(self, _connection: Connection) -> None:
        self._expect_alive()
        self._pass("before the commit")

    def _pass(self, place: str) -> None:
        """Count a place in the transaction of a page; kill the handler at the place of the kill."""
        if _watching.get() is not self:
            return
        if self.places == self._kill_at:
            self.place = f"{place}, in {self._page}"
            self._kill()
        self.places += 1

    def _kill(self) -> None:
        self._is_dead = True
        raise _Killed

    def _expect_alive(self) -> None:
        if self._is_dead:
            raise _Killed


@dataclass
class _HandlerCheck:
    """Run a handler in a database that is emptied before each run, and compare the effects."""

    store: CursorStore
    apply: Callable[..., object]
    partitions: list[list[Event]]
    prepare: Prepare | None
    effects: Effects | None
    sessions: Callable[[], Any] | None
    start: Callable[[], object] | None
    page_events: int

    async def run(self, *, twice: bool, poison: Iterable[Any]) -> None:
        """Check everything; the arguments are those of `check_handler`."""
        await self._do(self._begin)
        try:
            await self._check_kills()
            if twice:
                doubled = [[each for each in log for _ in range(2)] for log in self.partitions]
                await self._check_scenario("Each event came twice", doubled)
            if poisonous := list(map(event_of, poison)):
                await self._check_poison(poisonous)
        finally:
            await self._do(self._empty)

    def _begin(self, connection: Connection) -> None:
        """Create all tables, and expect that none of them had rows before."""
        self.store.create_tables(connection)
        _expect_empty(connection)
        if self.prepare is not None:
            self.prepare(connection)
        self._metadata = _reflected(connection)

    def _empty(self, connection: Connection) -> None:
        """Delete all rows, and let SQLite number from 1 on again."""
        for table in reversed(self._metadata.sorted_tables):
            connection.execute(delete(table))
        if inspect(connection).has_table("sqlite_sequence"):  # SQLite's own
            connection.execute(text("DELETE FROM sqlite_sequence"))

    def _read(self, connection: Connection) -> object:
        if self.effects is not None:
            return self.effects(connection)
        tables = self._metadata.sorted_tables
        return {
            table.name: _rows(connection, table)
            for table in tables
            if not table.name.startswith(_OWN_TABLES)
        }

    def _set_up(self, connection: Connection) -> object:
        """Prepare an empty database; return its effects so far."""
        self._empty(connection)
        if self.prepare is not None:
            self.prepare(connection)
        return self._read(connection)

    def _forget_processes(self, connection: Connection) -> None:
        """Delete the leases of a process that was killed, as if they had run out."""
        for table in (self.store.tables.leases, self.store.tables.members):
            connection.execute(delete(table))

    async def _check_kills(self) -> None:
        untouched = await self._do(self._set_up)
        witness = await self._consume(_PLAIN, self.partitions)
        self._expected = await self._do(self._read)
        if self._expected == untouched:
            raise AssertionError(
                "The handler has left no effect in the database: without one there is nothing to "
                "check. It may keep its state in memory, or in another database."
            )
        await self._check_scenario(
            "The events were applied again, in an emptied database",
            self.partitions,
            " The handler keeps state in memory, or writes what differs each time, such as the "
            "time of day: then give `effects`.",
        )
        scenarios = [("The handler was killed {}, and started again", True)]
        if self.start is not None:  # else the process is the same in both
            scenarios.append(
                ("The transaction was rolled back {}, and the same process tried again", False)
            )
        for scenario, starts in scenarios:
            for place in range(witness.places):
                await self._check_kill(place, scenario, starts=starts)

    async def _check_kill(self, place: int, scenario: str, *, starts: bool) -> None:
        await self._do(self._set_up)
        killed = await self._consume(_PLAIN, self.partitions, kill_at=place)
        if killed.place:
            scenario = scenario.format(killed.place)
            await self._consume(scenario, self.partitions, starts=starts)
            await self._compare(scenario)

    async def _check_scenario(
        self, scenario: str, partitions: Sequence[Sequence[Event]], hint: str = ""
    ) -> None:
        await self._do(self._set_up)
        await self._consume(scenario, partitions)
        await self._compare(scenario, hint)

    async def _check_poison(self, poison: Sequence[Event]) -> None:
        first, *rest = self.partitions
        middle = len(first) // 2
        mixed = [[*first[:middle], *poison, *first[middle:]], *rest]
        scenario = "There were poison events"
        await self._do(self._set_up)
        await self._consume(scenario, mixed, failures=Failures(tries=1, then="set-aside"))
        letters = await self._do(self.store.dead_letters.letters, _NAME)
        refused = [letter.event for letter in letters]
        for one in poison:
            if one not in refused:
                raise AssertionError(f"{scenario}, and the handler raised nothing at {_show(one)}.")
        for letter in letters:
            if letter.event not in poison:
                shown = _show(letter.event)
                raise AssertionError(
                    f"{scenario}, and the handler also refused {shown}: {letter.error}"
                )
        await self._compare(scenario)

    async def _consume(
        self,
        scenario: str,
        partitions: Sequence[Sequence[Event]],
        *,
        kill_at: int | None = None,
        starts: bool = True,
        failures: Failures = Failures(tries=1),  # noqa: B008 - it is frozen
    ) -> _Watch:
        """Start the consumer, and run it to the head, or to where it is killed."""
        await self._do(self._forget_processes)
        if self.start is not None and starts:
            self.start()
        watch, feed = _Watch(kill_at), MemoryFeed(partitions)
        options: dict[str, Any] = {
            "limit": self.page_events,
            "attempts": 1,
            "concurrency": 1,  # so that the kills come at the same places
            "failures": failures,
            "inbox": False,
            "observer": watch,
        }
        try:
            with watch.watched():
                consumer: Consumer | AsyncConsumer
                if isinstance(self.store.engine, Engine):
                    consumer = Consumer(client_of(feed), self.store, _NAME, **options)
                else:
                    consumer = AsyncConsumer(async_client_of(feed), self.store, _NAME, **options)
                await any_run_to_head(consumer, self.apply, self.sessions)
        except _Killed:
            pass
        except ZeroEventHubError as error:
            cause = error.__cause__ or error
            raise AssertionError(
                f"{scenario}, and yet the handler could not apply its events: "
                f"{type(cause).__name__}: {printable(str(cause), longest=1_000)}"
            ) from error
        if watch.outside:
            raise AssertionError(
                f"The handler wrote past the transaction that it was given, by a connection of its "
                f"own: {watch.outside!r}. A kill before the commit leaves that effect behind, and "
                "it comes twice."
            )
        return watch

    async def _compare(self, scenario: str, hint: str = "") -> None:
        found = await self._do(self._read)
        if found != self._expected:
            raise AssertionError(f"{scenario}, and {_difference(self._expected, found)}{hint}")

    async def _do(self, act: Callable[..., _Found], *arguments: Any) -> _Found:
        """Call a function with a connection, in a transaction of its own."""
        return await in_store(self.store, act, *arguments)


def _reflected(connection: Connection) -> MetaData:
    metadata = MetaData()
    metadata.reflect(connection)
    return metadata


def _expect_empty(connection: Connection) -> None:
    """Raise ConfigurationError unless all tables of a database are empty."""
    for table in _reflected(connection).sorted_tables:
        if connection.scalar(select(exists(select(table)))):
            raise ConfigurationError(
                f"The table {table.name} has rows, which the check of a handler would delete: give "
                "it the store of an empty database."
            )


def _rows(connection: Connection, table: Table) -> Counter[str]:
    """Read all rows of a table, as texts."""
    columns = filter(_is_written, table.c)
    return Counter(repr(tuple(row)) for row in connection.execute(select(*columns)))


def _is_written(column: Column[Any]) -> bool:
    """Return whether writers give the values of a column, and not the database."""
    default = str(getattr(column.server_default, "arg", ""))
    return column.identity is None and column.autoincrement is not True and "nextval" not in default


def _difference(expected: Any, found: Any) -> str:
    """Say in a sentence how effects differ from those that were expected."""
    if not (isinstance(expected, dict) and isinstance(found, dict)):
        return f"the effects were {_shorten(repr(found))} instead of {_shorten(repr(expected))}."
    parts = []
    for name in sorted({*expected, *found}):
        before, after = expected.get(name, Counter()), found.get(name, Counter())
        for said, rows in (("lacked rows", before - after), ("had too many rows", after - before)):
            if rows:
                parts.append(
                    f"the table {name} {said}: {_shorten(', '.join(rows))} ({rows.total()})"
                )
    return f"{'; '.join(parts)}."


def _show(one: Event) -> str:
    return _shorten(one.raw.decode(errors="replace"))


def _shorten(words: str) -> str:
    return printable(" ".join(words.split()), longest=_AT_MOST)
