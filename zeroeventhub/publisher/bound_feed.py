"""A table's feed bound to an engine, sync or async: what a program asks of it, and does to it."""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine
from copy import copy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from sqlalchemy import Connection, event

from zeroeventhub.at_hand import NotAtHand, keep
from zeroeventhub.databases import database_of
from zeroeventhub.databases.errors import explained
from zeroeventhub.databases.read_only import Autocommit, read_only
from zeroeventhub.driving import drive, drive_async
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import EXTENSIONS, FeedInfo, Segments
from zeroeventhub.publisher import compacting, trimming
from zeroeventhub.publisher.checks import Finding
from zeroeventhub.publisher.compacting import Compactor
from zeroeventhub.publisher.deleting import delete_in_batches
from zeroeventhub.publisher.progress import Registered, Registry
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.sealing import (
    SEGMENT_BYTES,
    SEGMENT_EVENTS,
    Sealed,
    Sealer,
    SealOptions,
)
from zeroeventhub.publisher.steps import Query, Step, Steps, Work
from zeroeventhub.publisher.trimming import SILENCE, TrimBound, Trimmer, TrimPlan

__all__ = [
    "AsyncBoundFeed",
    "BoundFeed",
]

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")
_Part = TypeVar("_Part")


class Method(Generic[_Given, _Answer]):
    """Be a method of bound feeds: plain with a sync engine, a coroutine with an async one.

    Args:
        steps: what it does.
    """

    def __init__(self, steps: Callable[Concatenate[Any, _Given], Steps[_Answer]]) -> None:
        self._steps = steps
        self.__doc__ = steps.__doc__

    @overload
    def __get__(self, feed: None, owner: Any) -> Self: ...

    @overload
    def __get__(self, feed: "BoundFeed", owner: Any) -> Callable[_Given, _Answer]: ...

    @overload
    def __get__(
        self, feed: "AsyncBoundFeed", owner: Any
    ) -> Callable[_Given, Coroutine[Any, Any, _Answer]]: ...

    def __get__(self, feed: Any, owner: Any) -> Any:
        """Return the method of a feed."""
        return self if feed is None else partial(feed.run, self._steps)


def question(
    ask: Callable[Concatenate[Reader, Connection, _Given], _Answer],
) -> Method[_Given, _Answer]:
    """Return the method that asks a feed's reader something."""

    def asked(
        feed: "_Feed", /, *arguments: _Given.args, **options: _Given.kwargs
    ) -> Steps[_Answer]:
        return feed.answer(lambda connection: ask(feed.reader, connection, *arguments, **options))

    asked.__doc__ = ask.__doc__
    return Method(asked)


class _Feed:
    """Hold the parts of a feed, and what is done with them whatever the engine.

    Args:
        engine: reads and changes the feed's table.
        seconds: for a statement that reads.
        reader: answers questions.
        trimmer: trims the table; None where no mark says what was trimmed.
        compactor: deletes what later events stand for; None where all events are kept.
        registry: has the progress of consumers; None where that is not kept.
        sealer: seals the table into an archive; None where there is none.
    """

    def __init__(
        self,
        engine: Any,
        seconds: float,
        reader: Reader,
        *,
        trimmer: Trimmer | None = None,
        compactor: Compactor | None = None,
        registry: Registry | None = None,
        sealer: Sealer | None = None,
    ) -> None:
        self._engine = engine
        self._seconds = seconds
        self._session = database_of(engine).read_only(engine.dialect, seconds)
        self.reader = reader
        """Answers questions, through connections."""
        self._trimmer = trimmer
        self._compactor = compactor
        self._registry = registry
        self._sealer = sealer
        self.fetches = True
        """Whether missing parts of the archive are fetched; else NotAtHand is raised for them."""

    def without_fetching(self) -> Self:
        """Return the same feed, which raises NotAtHand for what is missing of its archive."""
        other = copy(self)
        other.fetches = False
        return other

    def on_commit(self, told: Callable[[], None]) -> None:
        """Call back on every commit through the engine; see `ExtendedFeed.on_commit`."""
        engine = getattr(self._engine, "sync_engine", self._engine)
        event.listen(engine, "commit", lambda _connection: told())

    @property
    def has_open_digests(self) -> bool:
        """Tell whether everybody can make the digest that a cursor holds of an event."""
        return self.reader.has_open_digests

    @property
    def known_info(self) -> FeedInfo | None:
        """Describe the feed, if the database need not be asked for it; see `info`."""
        return None if self.reader.checks.are_due else self.reader.info

    @Method
    def info(self) -> Steps[FeedInfo]:
        """Describe the feed; see `Feed.info`."""
        known = self.known_info
        if known is not None:
            return known
        return (yield from self.answer(self.reader.described))

    read = question(Reader.read)
    read_pages = question(Reader.read_pages)
    vouch = question(Reader.vouch)
    horizon = question(Reader.horizon)
    splits = question(Reader.splits)
    lag = question(Reader.lag)
    cursor_of_count = question(Reader.cursor_of_count)
    read_key = question(Reader.read_key)
    cursor_of = question(Reader.cursor_of)
    cursor_after = question(Reader.cursor_after)
    cursor_at = question(Reader.cursor_at)

    if not TYPE_CHECKING:  # for the server, which finds methods by their names

        def __getattr__(self, name: str) -> Any:
            """Return the method of an extension, by the reader's method of its name."""
            if name and name in {extension.method for extension in EXTENSIONS.values()}:
                return question(getattr(Reader, name)).__get__(self, type(self))
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @Method
    def head(self) -> Steps[int]:
        """Return the horizon; see `ExtendedFeed.head`."""
        head: int = yield Query(self._head)
        return head

    @Method
    def check(self) -> Steps[list[Finding]]:
        """Look at everything that the feed relies on in its database, and change nothing.

        What is missing is among the findings, and not raised.

        Raises:
            Unavailable: the database cannot answer just now.
        """

        def look(connection: Connection) -> list[Finding]:
            with read_only(connection, self._session):
                return self.reader.checks.findings(connection)

        findings: list[Finding] = yield Query(look)
        return findings

    @Method
    def segments(self, partition: int, cursor: str, *, stop: str | None = None) -> Steps[Segments]:
        """Return the files in which events lie; see `ExtendedFeed.segments`."""
        archive = self.reader.shared_archive
        found = yield from self.answer(
            lambda connection: self.reader.segments(connection, partition, cursor, stop)
        )
        named: Segments = yield Work(partial(archive.named, *found))
        return named

    @Method
    def plan_trim(
        self,
        *,
        older_than: timedelta | None = None,
        below: int | str | None = None,
        sealed: int | Callable[[], int] | None = None,
        silence: timedelta = SILENCE,
    ) -> Steps[TrimPlan]:
        """Say which events would be trimmed, and what holds it back; nothing is changed.

        Args:
            older_than: events that happened so long ago, if all before them did.
            below: events below this position, or before this cursor.
            sealed: events up to this position, which are kept elsewhere; or what returns it. If the
                feed has an archive, what is not in that stays in any case.
            silence: how long a consumer that registers its progress may be silent and still hold
                events back; a minute at least. With an archive no consumer holds any back.

        Raises:
            ConfigurationError: nothing is given, the feed has no `retention`, or its archive is
                that of another feed.
            Gone: its archive has another history than the table.
            Unavailable: the horizon is not known yet, or the archive's store did not answer.
        """
        bound = TrimBound(older_than=older_than, below=below, sealed=sealed, silence=silence)
        if self._sealer is not None:
            bound = replace(bound, kept=(yield Work(self._sealer.kept)))
        trimmer = _expect(self._trimmer, _NO_TRIMMER)
        return (yield from self.answer(lambda connection: trimmer.plan(connection, bound)))

    @Method
    def trim(
        self,
        plan: TrimPlan,
        *,
        rows: int = trimming.ROWS,
        told: Callable[[int, int], None] = lambda _events, _position: None,
    ) -> Steps[int]:
        """Delete what a plan says from the table, in batches; return how many events are gone.

        Each is a transaction with the mark that says so: stop anywhere, and plan anew.

        Args:
            plan: made by `plan_trim`.
            rows: how many events a batch deletes, at most.
            told: is called after each batch with how many events are gone, and up to where.

        Raises:
            Unavailable: writers have kept what is to be deleted locked, however often it was tried.
        """
        batch = _expect(self._trimmer, _NO_TRIMMER).batch(plan, rows)
        return (yield from delete_in_batches(batch, 0, told))

    @Method
    def compact(
        self,
        *,
        older_than: timedelta | None = None,
        rows: int = compacting.ROWS,
        told: Callable[[int, int], None] = lambda _events, _position: None,
    ) -> Steps[int]:
        """Delete events that a later one of their key follows; return how many.

        Each batch is a transaction with the mark that says so: stop anywhere, and begin anew.

        Args:
            older_than: leave what happened later than so long ago; None to go up to the horizon.
            rows: how many events a batch looks at, at most.
            told: is called after each batch with how many events are gone, and up to where it
                looked.

        Raises:
            ConfigurationError: the feed does not say that it is compacted.
            Unavailable: writers have kept what is to be deleted locked, however often it was tried.
        """
        compactor = _expect(self._compactor, _NO_COMPACTION)
        span = yield from self.answer(lambda connection: compactor.span(connection, older_than))
        return (yield from delete_in_batches(compactor.batch(span, rows), span.after, told))

    @Method
    def seal(
        self,
        *,
        older_than: timedelta | None = None,
        segment_events: int = SEGMENT_EVENTS,
        segment_bytes: int = SEGMENT_BYTES,
        least: int = 1,
        told: Callable[[int], None] = lambda _events: None,
    ) -> Steps[Sealed]:
        """Write what is settled, and not in the feed's archive yet, into segments of it.

        Any number of processes may do so at once, and any of them may die: what is in a segment is
        in one, and the archive is whole at every moment.

        Args:
            older_than: leave what happened later than so long ago; None to go up to the horizon.
            segment_events: how many events a segment has at most.
            segment_bytes: how much JSON it has, about, at most.
            least: how many events are worth a segment; fewer wait until there are more.
            told: is called now and then with how many events have been read.

        Raises:
            ConfigurationError: the feed has no archive, or that of another feed.
            Gone: the archive has another history than the table.
            Unavailable: the database or the store did not answer; seal again.
        """
        options = SealOptions(
            older_than=older_than,
            segment_events=segment_events,
            segment_bytes=segment_bytes,
            least=least,
            told=told,
        )
        return (yield from _expect(self._sealer, _NO_ARCHIVE).seal(options, self.answer))

    @Method
    def erase(self, *, ids: Collection[str] = (), keys: Collection[str] = ()) -> Steps[int]:
        """Take events out of the feed's archive for good; return how many.

        Their positions stay, so that all cursors do. What is still in the table is not touched, nor
        what readers have kept: see docs/archive.md. Stopped anywhere, do it again.

        Args:
            ids: of the events, as text.
            keys: of more of them.

        Raises:
            ConfigurationError: the feed has no archive, or that of another feed, or no column of
                what is given.
            Unavailable: the archive's store did not answer.
        """
        sealer = _expect(self._sealer, _NO_ARCHIVE)
        erased: int = yield Work(partial(sealer.erase, ids, keys))
        return erased

    @Method
    def register_progress(
        self, consumer: str, partition: int, cursor: str, *, principal: str = ""
    ) -> Steps[None]:
        """Note how far a consumer has committed; see `ExtendedFeed.register_progress`."""
        registry = _expect(self._registry, _NO_PROGRESS)
        registry.check(consumer, cursor)
        yield from self.answer(lambda found: self.reader.read(found, partition, cursor, 1))
        yield Query(lambda found: registry.note(found, consumer, partition, cursor, principal))

    @Method
    def registered(self) -> Steps[list[Registered]]:
        """Return how far consumers have said that they have come, by name and partition."""
        return (yield from self.answer(_expect(self._registry, _NO_PROGRESS).registered))

    @Method
    def forget_progress(self, consumer: str, *, principal: str | None = None) -> Steps[int]:
        """Forget a consumer, so that trimming no longer waits for it.

        Args:
            consumer: its name.
            principal: who said how far it has come; None for every principal.

        Returns:
            How many places of it were known.
        """
        registry = _expect(self._registry, _NO_PROGRESS)
        forgotten: int = yield Query(lambda found: registry.forget(found, consumer, principal))
        return forgotten

    def answer(self, ask: Callable[[Connection], _Answer]) -> Steps[_Answer]:
        """Ask something read-only; what it misses of the archive is fetched without a connection.

        Args:
            ask: asks it.

        Raises:
            NotAtHand: something has to be fetched, and this feed does not.
        """
        query = Query(partial(self._visit, ask))
        held: list[object] = []
        while True:
            try:
                answer: _Answer = yield query
            except NotAtHand as missing:
                if not self.fetches:
                    raise
                load = missing.load
            else:
                return answer
            keep(held, (yield Work(load)))

    def _visit(self, ask: Callable[[Connection], _Answer], connection: Connection) -> _Answer:
        """Ask the database something, and give the connection back as it was."""
        reader, checks = self.reader, self.reader.checks
        if checks.are_due:
            # Before anything is written: what writes may not be installed.
            with read_only(connection, self._session):
                checks.look_if_due(connection)
        with (
            checks.doubting(),
            read_only(connection, self._session, reader.step(connection)),
            checks.looking_twice(connection),
        ):
            return ask(connection)

    def _head(self, connection: Connection) -> int:
        """Return the horizon, without a transaction where that can be done."""
        if not self.reader.may_glance:
            return self._visit(self.reader.head, connection)
        with self.reader.checks.doubting(), read_only(connection, Autocommit()):
            return self.reader.glance(connection, self._seconds)


class BoundFeed(_Feed):
    """Read a table's feed, and look after it, through a sync engine.

    Example:
        feed = TableFeed(orders, data="data", retention=Retention()).bind(engine)
        page = feed.read(0, FIRST, 100)
        feed.trim(feed.plan_trim(older_than=timedelta(days=30)))
    """

    def run(
        self,
        steps: Callable[Concatenate[Any, _Given], Steps[_Answer]],
        *arguments: _Given.args,
        **options: _Given.kwargs,
    ) -> _Answer:
        """Carry out the steps of a method."""
        return drive(steps(self, *arguments, **options), self._carry_out)

    def _carry_out(self, step: Step) -> Any:
        if isinstance(step, Query):
            with explained(), self._engine.connect() as connection:
                return step.call(connection)
        if isinstance(step, Work):
            return step.call()
        time.sleep(step.seconds)
        return None


class AsyncBoundFeed(_Feed):
    """Read a table's feed, and look after it, through an async engine: its methods are awaited."""

    async def run(
        self,
        steps: Callable[Concatenate[Any, _Given], Steps[_Answer]],
        *arguments: _Given.args,
        **options: _Given.kwargs,
    ) -> _Answer:
        """Carry out the steps of a method; work is done in a thread."""
        return await drive_async(steps(self, *arguments, **options), self._carry_out)

    async def _carry_out(self, step: Step) -> Any:
        if isinstance(step, Query):
            with explained():
                async with self._engine.connect() as connection:
                    return await connection.run_sync(step.call)
        if isinstance(step, Work):
            return await asyncio.to_thread(step.call)
        await asyncio.sleep(step.seconds)
        return None


_NO_TRIMMER = (
    "Trimming needs a place to keep what was trimmed, so that late readers get 410: "
    "TableFeed(…, retention=Retention())."
)
_NO_COMPACTION = (
    "This feed does not say that it keeps the last event of each key alone: "
    "TableFeed(…, key=…, compaction=Compaction(), retention=Retention())."
)
_NO_ARCHIVE = "This feed has no archive to be sealed into: TableFeed(…, archive=Archive(…))."
_NO_PROGRESS = (
    "This feed has no place to keep how far consumers have come: TableFeed(…, progress=Progress())."
)


def _expect(part: _Part | None, missing: str) -> _Part:
    """Return a part of a feed.

    Raises:
        ConfigurationError: it has none; in these words.
    """
    if part is None:
        raise ConfigurationError(missing)
    return part
