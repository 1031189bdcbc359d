"""A table's feed bound to a sync or async engine: the methods that a program calls."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from sqlalchemy import Connection, event
from sqlalchemy.exc import SQLAlchemyError

from zeroeventhub.coroutines import blocking
from zeroeventhub.databases import database_of
from zeroeventhub.databases.error_codes import feed_error, free_cursors
from zeroeventhub.databases.port import Autocommit, read_only
from zeroeventhub.errors import ConfigurationError, FeedFailure, Gone, ZeroEventHubError
from zeroeventhub.extensions import EXTENSIONS
from zeroeventhub.feed import ArchiveMiss, hold_part
from zeroeventhub.new_events import Batch
from zeroeventhub.protocol import Appended, FeedInfo, Schemas, Segments
from zeroeventhub.publisher.checks import Finding
from zeroeventhub.publisher.definition import Definition
from zeroeventhub.publisher.deletion import (
    ROWS,
    SILENCE,
    Compactor,
    TrimBound,
    Trimmer,
    TrimPlan,
    delete_in_batches,
)
from zeroeventhub.publisher.progress import Registered
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.restoring import SKIPPED, WORKERS, Restored, Restorer
from zeroeventhub.publisher.sealing import (
    SEGMENT_BYTES,
    SEGMENT_EVENTS,
    Sealed,
    Sealer,
    SealOptions,
)
from zeroeventhub.times import ago
from zeroeventhub.wire.models import misfit

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")
_Part = TypeVar("_Part")


class Method(Generic[_Given, _Answer]):
    """Descriptor of a bound feed's method: plain with a sync engine, a coroutine with an async one.

    `work` is the method as a coroutine, which with a sync engine blocks wherever it waits, and
    `ask` the query of a method that has only one, and otherwise fetches parts of the archive.
    """

    def __init__(
        self,
        work: Callable[Concatenate[Any, _Given], Coroutine[Any, Any, _Answer]],
        ask: Callable[Concatenate[Reader, Connection, _Given], _Answer] | None = None,
    ) -> None:
        self._work = work
        self._ask = ask
        self.__doc__ = work.__doc__

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
        if feed is None:
            return self
        if self._ask is None or feed.fetches:
            return partial(feed.run, self._work)
        return partial(feed.with_connection, feed.run_query, partial(self._ask, feed.reader))

    if TYPE_CHECKING:  # pyright compares a descriptor itself with the method of a protocol

        def __call__(self, *arguments: _Given.args, **options: _Given.kwargs) -> Any:
            """Stand for the method of a feed of either kind."""


def query_method(
    ask: Callable[Concatenate[Reader, Connection, _Given], _Answer],
) -> Method[_Given, _Answer]:
    """Return a method of the feed that calls a method of its reader."""

    async def work(feed: "_Feed", /, *arguments: _Given.args, **options: _Given.kwargs) -> _Answer:
        return await feed.answer(partial(ask, feed.reader), *arguments, **options)

    work.__doc__ = ask.__doc__
    return Method(work, ask)


@dataclass(eq=False, repr=False)
class _Feed:
    """Hold the parts of a feed, and the methods that sync and async engines share.

    Attributes:
        seconds: the longest time of a statement that reads.
        fetches: whether to fetch missing parts of the archive; if not, ArchiveMiss is raised for
            them.
    """

    engine: Any
    seconds: float
    defined: Definition
    reader: Reader
    trimmer: Trimmer | None = None
    compactor: Compactor | None = None
    sealer: Sealer | None = None
    restorer: Restorer | None = None
    fetches: bool = True

    def __post_init__(self) -> None:
        """Prepare what makes the engine's connections read-only."""
        database = database_of(self.engine)
        self._session = database.read_only(self.engine.dialect, self.seconds)

    def without_fetching(self) -> Self:
        """Return a copy of the feed that raises ArchiveMiss for missing parts of its archive."""
        other = copy(self)
        other.fetches = False
        return other

    def on_commit(self, notify: Callable[[], None]) -> None:
        """Call a function at every commit through the engine; see `ExtendedFeed.on_commit`."""
        engine = getattr(self.engine, "sync_engine", self.engine)
        event.listen(engine, "commit", lambda _connection: notify())

    @property
    def has_open_digests(self) -> bool:
        """Return whether cursors have no secret, so that anyone can compute an event's digest."""
        return self.reader.history.has_open_digests

    @property
    def known_info(self) -> FeedInfo | None:
        """The feed's description, or None if `info` has to query the database first."""
        return None if monotonic() > self.reader.checks.due_at else self.reader.checks.info

    @Method
    async def info(self) -> FeedInfo:
        """Describe the feed; see `Feed.info`."""
        info = self.known_info
        return await self.answer(lambda _checked: self.reader.checks.info) if info is None else info

    read = query_method(Reader.read)
    read_pages = query_method(Reader.read_pages)
    vouch = query_method(Reader.vouch)
    horizon = query_method(Reader.horizon)
    splits = query_method(Reader.splits)
    lag = query_method(Reader.lag)
    cursor_of_count = query_method(Reader.cursor_of_count)
    read_key = query_method(Reader.read_key)
    cursor_of = query_method(Reader.cursor_of)
    cursor_after = query_method(Reader.cursor_after)
    cursor_at = query_method(Reader.cursor_at)

    if not TYPE_CHECKING:  # for the server, which looks up extension methods by name

        def __getattr__(self, name: str) -> Any:
            """Return the method of an extension, which calls the reader's of the same name."""
            if name and name in {extension.method for extension in EXTENSIONS.values()}:
                return query_method(getattr(Reader, name)).__get__(self, type(self))
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @Method
    async def head(self) -> int:
        """Return the horizon; see `ExtendedFeed.head`."""
        return await self._query(self._head)

    @Method
    async def check(self) -> list[Finding]:
        """Check everything that the feed relies on in its database, without changing it.

        What is missing becomes a finding, not an exception.

        Raises:
            Unavailable: the database or the archive cannot answer just now.
        """

        def look(connection: Connection) -> list[Finding]:
            with read_only(connection, self._session):
                return self.reader.checks.findings(connection)

        if self.reader.checks.archive is not None:
            await self._work(self.reader.checks.archive.archive.look)
        return await self._query(look)

    @Method
    async def schemas(self) -> Schemas:
        """Describe the data of events; see `ExtendedFeed.schemas`."""
        return _expect(self.defined.schemas, _NO_SCHEMAS)

    @Method
    async def segments(self, partition: int, cursor: str, *, stop: str | None = None) -> Segments:
        """Return the archive files that hold events; see `ExtendedFeed.segments`."""
        archive = self.reader.shared_archive
        found = await self.answer(self.reader.segments, partition, cursor, stop)
        return await self._work(archive.with_urls, *found)

    @Method
    async def plan_trim(
        self,
        *,
        older_than: timedelta | None = None,
        below: int | str | None = None,
        sealed: int | Callable[[], int] | None = None,
        silence: timedelta = SILENCE,
    ) -> TrimPlan:
        """Return which events `trim` would delete, and what limits that; change nothing.

        Args:
            older_than: trim events older than this, up to the first that is younger.
            below: trim events below this position, or before this cursor.
            sealed: trim events up to this position, which are kept elsewhere; or a function that
                returns it. Events that the feed's own archive lacks are never trimmed.
            silence: how long after its last report a consumer that registers its progress still
                keeps its unread events; a minute at least. A feed with an archive ignores it.

        Raises:
            ConfigurationError: no argument is given, the feed has no `retention`, or its archive
                belongs to another feed.
            Gone: the archive and the table have different histories.
            Unavailable: the horizon is not known yet, or the archive's store did not answer.
        """
        bound = TrimBound(older_than=older_than, below=below, sealed=sealed, silence=silence)
        if self.sealer is not None:
            bound = replace(bound, kept=await self._work(self.sealer.archive.look))
        trimmer = _expect(self.trimmer, _NO_TRIMMER)
        return await self.answer(trimmer.plan, bound)

    @Method
    async def trim(
        self,
        plan: TrimPlan,
        *,
        rows: int = ROWS,
        on_progress: Callable[[int, int], None] = lambda _events, _position: None,
    ) -> int:
        """Delete the events of a plan from the table, in batches; return how many were deleted.

        Each batch is one transaction that also moves the mark of what was trimmed. The caller may
        stop between batches, and make a new plan.

        Args:
            plan: made by `plan_trim`.
            rows: how many events a batch deletes, at most.
            on_progress: called after each batch with the number of deleted events and the last
                position.

        Raises:
            Gone: the table has another history than when the plan was made.
            Unavailable: writers kept the rows locked through all tries.
        """
        batch = _expect(self.trimmer, _NO_TRIMMER).batch(plan, rows)
        return await delete_in_batches(batch, 0, on_progress, self._query, self._sleep)

    @Method
    async def compact(
        self,
        *,
        older_than: timedelta | None = None,
        rows: int = ROWS,
        on_progress: Callable[[int, int], None] = lambda _events, _position: None,
    ) -> int:
        """Delete events that have a later event of the same key; return how many.

        Each batch is one transaction that also moves the mark of what was compacted. The caller
        may stop between batches, and start again.

        Args:
            older_than: keep events younger than this; None to compact up to the horizon.
            rows: how many events a batch examines, at most.
            on_progress: called after each batch with the number of deleted events and the last
                position examined.

        Raises:
            ConfigurationError: the feed has no `compaction`, or its archive belongs to another
                feed.
            Gone: the archive and the table have different histories.
            Unavailable: the archive's store did not answer, or writers kept the rows locked through
                all tries.
        """
        compactor = _expect(self.compactor, _NO_COMPACTION)
        kept = None if self.sealer is None else await self._work(self.sealer.archive.look)
        batch, after = await self.answer(compactor.plan, older_than, rows, kept)
        return await delete_in_batches(batch, after, on_progress, self._query, self._sleep)

    @Method
    async def seal(
        self,
        *,
        older_than: timedelta | None = None,
        segment_events: int = SEGMENT_EVENTS,
        segment_bytes: int = SEGMENT_BYTES,
        least: int = 1,
        on_progress: Callable[[int], None] = lambda _events: None,
    ) -> Sealed:
        """Write the events up to the horizon that the archive lacks into new segments of it.

        Any number of processes may seal at once, and each may die at any step: every event is in
        one segment only, and readers always see a complete archive.

        Args:
            older_than: leave out events younger than this; None to seal up to the horizon.
            segment_events: how many events a segment has at most.
            segment_bytes: how many bytes of JSON it has at most, roughly.
            least: the fewest events that make a segment; fewer stay in the table until there are
                more, unless they fill a segment.
            on_progress: called from time to time with how many events have been read.

        Raises:
            ConfigurationError: the feed has no archive, or the archive belongs to another feed.
            Gone: the archive and the table have different histories.
            Unavailable: the database or the store did not answer; seal again.
        """
        options = SealOptions(
            older_than=older_than,
            segment_events=segment_events,
            segment_bytes=segment_bytes,
            least=least,
            on_progress=on_progress,
        )
        return await _expect(self.sealer, _NO_ARCHIVE).seal(options, self.answer, self._work)

    @Method
    async def erase(self, *, ids: Collection[str] = (), keys: Collection[str] = ()) -> int:
        """Erase events from the feed's archive for good; return how many.

        Their positions remain, so every cursor stays valid. Rows in the table and copies that
        readers made are not erased: see docs/archive.md. After an interruption, call it again.

        Args:
            ids: erase the events with these ids, as text.
            keys: erase the events of these keys as well.

        Raises:
            ConfigurationError: the feed has no archive, or the archive belongs to another feed, or
                the feed has no column of ids or keys that were given.
            Unavailable: the archive's store did not answer.
        """
        return await self._work(_expect(self.sealer, _NO_ARCHIVE).erase, ids, keys)

    @Method
    async def register_progress(
        self, consumer: str, partition: int, cursor: str, *, principal: str = ""
    ) -> None:
        """Note how far a consumer has committed; see `ExtendedFeed.register_progress`."""
        registry = _expect(self.reader.registry, _NO_PROGRESS)
        registry.check(consumer, cursor)
        await self.answer(self.reader.read, partition, cursor, 1)
        await self._query(registry.note, consumer, partition, cursor, principal)

    @Method
    async def registered(self) -> list[Registered]:
        """Return the progress that consumers have registered, by name and partition."""
        return await self.answer(_expect(self.reader.registry, _NO_PROGRESS).registered)

    @Method
    async def forget_progress(self, consumer: str, *, principal: str | None = None) -> int:
        """Forget a consumer, so that trimming no longer waits for it.

        Args:
            consumer: its name.
            principal: the principal that registered the progress; None for every principal.

        Returns:
            How many registered partitions were deleted.
        """
        return await self._query(
            _expect(self.reader.registry, _NO_PROGRESS).forget, consumer, principal
        )

    @Method
    async def append(self, batches: Sequence[Batch]) -> list[list[Appended] | ZeroEventHubError]:
        """Append batches of events; see `ExtendedFeed.append`."""
        append = _expect(self.defined.append, _NO_APPEND).append
        refused = [misfit(batch, self.defined.checks) for batch in batches]
        fitting = [batch for batch, error in zip(batches, refused, strict=True) if error is None]
        outcomes = iter(await self._query(append, fitting, self.seconds) if fitting else ())
        return [next(outcomes) if error is None else error for error in refused]

    @Method
    async def producer_sequence(self, producer: str, *, principal: str = "") -> int:
        """Return the number of a producer's last batch; see `ExtendedFeed.producer_sequence`."""
        return await self.answer(
            _expect(self.defined.append, _NO_APPEND).sequence, producer, principal
        )

    async def _query(self, ask: Callable[..., _Answer], *arguments: Any, **options: Any) -> _Answer:
        raise NotImplementedError

    async def _work(self, call: Callable[..., _Answer], *arguments: Any) -> _Answer:
        """Call a function that takes a while and needs no connection."""
        return call(*arguments)

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - run by `blocking`

    async def answer(self, ask: Callable[..., _Answer], *arguments: Any, **options: Any) -> _Answer:
        """Run a read-only query; fetch missing parts of the archive without holding a connection.

        Raises:
            ArchiveMiss: a part has to be fetched, and this feed does not fetch.
        """
        held: list[object] = []
        while True:
            try:
                return await self._query(self.run_query, ask, *arguments, **options)
            except ArchiveMiss as missing:
                if not self.fetches:
                    raise
                load = missing.load
            hold_part(held, await self._work(load))

    def run_query(
        self, connection: Connection, ask: Callable[..., _Answer], *arguments: Any, **options: Any
    ) -> _Answer:
        """Run a query read-only, after the checks that are due."""
        checks = self.reader.checks
        if monotonic() > checks.due_at:
            # First, as a step may write to side tables that are not installed.
            with read_only(connection, self._session):
                checks.run(connection)
        try:
            give_positions = self.reader.ordering.step
            step = None if give_positions is None else give_positions(connection)
            with read_only(connection, self._session, step):
                try:
                    return ask(connection, *arguments, **options)
                except Gone:
                    checks.refuse_changes(connection)
                    raise
        except (FeedFailure, SQLAlchemyError):
            checks.due_at = -inf  # the next query checks the table first
            raise

    def _head(self, connection: Connection) -> int:
        """Return the horizon, without a transaction if the ordering allows it."""
        checks = self.reader.checks
        if not self.reader.has_fast_head or monotonic() > checks.due_at:
            return self.run_query(connection, self.reader.head)
        try:
            with read_only(connection, Autocommit()):
                return self.reader.fast_head(connection, self.seconds)
        except (FeedFailure, SQLAlchemyError):
            checks.due_at = -inf
            raise


class BoundFeed(_Feed):
    """Read, trim, compact and archive a table's feed through a sync engine.

    Example:
        feed = TableFeed(orders, data="data", retention=Retention()).bind(engine)
        page = feed.read(0, FIRST, 100)
        feed.trim(feed.plan_trim(older_than=timedelta(days=30)))
    """

    def run(
        self, work: Callable[..., Coroutine[Any, Any, _Answer]], *arguments: Any, **options: Any
    ) -> _Answer:
        """Run a method."""
        return blocking(work(self, *arguments, **options))

    def with_connection(
        self, ask: Callable[..., _Answer], *arguments: Any, **options: Any
    ) -> _Answer:
        """Call a function with a connection of the engine, and the arguments."""
        try:
            with self.engine.connect() as connection:
                return ask(connection, *arguments, **options)
        except (SQLAlchemyError, OSError) as error:
            raise feed_error(error) from error

    def restore(
        self,
        *,
        newer_than: timedelta | None = None,
        skipped: int = SKIPPED,
        workers: int = WORKERS,
        on_progress: Callable[[int, int], None] = lambda _events, _total: None,
    ) -> Restored:
        """Write the events of the archive back into an empty table, at their positions.

        The feed can be read, and written to, as soon as this has begun: until all rows are there,
        readers get them from the archive. Rows are compared with the archive byte for byte. If the
        process dies, call it again.

        Args:
            newer_than: restore only segments with events younger than this, and leave older ones in
                the archive, from where the feed publishes them; None to restore all.
            skipped: how many positions after the last sealed one stay free: more than the events
                that were lost, so that no new event gets the position of one that readers know.
            workers: how many row groups are written at once, each through a connection.
            on_progress: called from time to time with the number of events that are there, and that
                of all events.

        Raises:
            ConfigurationError: the table has events, needs values that no event holds, or has an
                ordering that gives positions itself; or the feed has no archive, or that of another
                feed.
            FeedFailure: the table differs from the archive.
            Unavailable: the database or the store did not answer; call it again.
        """
        restorer = _expect(self.restorer, _NO_ARCHIVE)
        if skipped < 1 or workers < 1:
            raise ConfigurationError("skipped and workers have to be above zero.")
        since = None if newer_than is None else ago(newer_than)
        try:
            restorer.begin(self.engine, skipped)
            self.info()  # checks the table
            return restorer.restore(self.engine, since, workers, on_progress)
        except (SQLAlchemyError, OSError) as error:
            raise feed_error(error) from error

    async def _query(self, ask: Callable[..., _Answer], *arguments: Any, **options: Any) -> _Answer:
        return self.with_connection(ask, *arguments, **options)


class AsyncBoundFeed(_Feed):
    """Read, trim, compact and archive a table's feed through an async engine: await its methods."""

    async def run(
        self, work: Callable[..., Awaitable[_Answer]], *arguments: Any, **options: Any
    ) -> _Answer:
        """Run a method."""
        return await work(self, *arguments, **options)

    async def with_connection(
        self, ask: Callable[..., _Answer], *arguments: Any, **options: Any
    ) -> _Answer:
        """Call a function with a connection of the engine, and the arguments."""
        try:
            async with self.engine.connect() as connection:
                answer: _Answer = await connection.run_sync(ask, *arguments, **options)
                return answer
        except (SQLAlchemyError, OSError) as error:
            raise feed_error(error) from error
        except asyncio.CancelledError as error:
            free_cursors(error)
            raise

    _query = with_connection

    async def _work(self, call: Callable[..., _Answer], *arguments: Any) -> _Answer:
        return await asyncio.to_thread(call, *arguments)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


_NO_TRIMMER = (
    "Trimming needs a place to keep what was trimmed, so that late readers get 410: "
    "TableFeed(…, retention=Retention())."
)
_NO_COMPACTION = (
    "This feed does not declare that it may be compacted: "
    "TableFeed(…, key=…, compaction=Compaction(), retention=Retention())."
)
_NO_ARCHIVE = "This feed has no archive to be sealed into: TableFeed(…, archive=Archive(…))."
_NO_SCHEMAS = "This feed does not describe its events: TableFeed(…, schemas={…})."
_NO_APPEND = "This feed's log takes no events over HTTP: EventLog(…, append=True)."
_NO_PROGRESS = (
    "This feed has no place to keep how far consumers have come: "
    "TableFeed(…, progress=Progress()), or the table that `zeroeventhub ddl --progress` prints."
)


def _expect(part: _Part | None, missing: str) -> _Part:
    """Return a part of a feed, or raise ConfigurationError if the feed lacks it."""
    if part is None:
        raise ConfigurationError(missing)
    return part
