"""Test publishers and consumers of your own: feeds in memory, stores, faults, kills of a handler.

Nothing here opens a socket. What is sent is the protocol as it is on the wire.
"""

import asyncio
import re
import shutil
import sqlite3
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import InitVar, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import httpx

from zeroeventhub.client import AsyncClient, Client
from zeroeventhub.conformance.scripted_feed import Reply, problem
from zeroeventhub.coroutines import blocking, settled
from zeroeventhub.errors import BadCursor, ConfigurationError, ZeroEventHubError, printable, require
from zeroeventhub.protocol import CAUGHT_UP, FIRST, LAST, WAIT, Event, FeedInfo, Page
from zeroeventhub.wire.ndjson import PageDecoder
from zeroeventhub.wire.problem import problem_in

for _package in ("sqlalchemy", "greenlet", "starlette"):
    require(_package, extra="testing", user="zeroeventhub.testing")

# These need SQLAlchemy and Starlette:
from sqlalchemy import (  # noqa: E402
    Column,
    Connection,
    Engine,
    MetaData,
    NullPool,
    create_engine,
    delete,
    event,
    exists,
    inspect,
    select,
    text,
)
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine  # noqa: E402
from starlette.applications import Starlette  # noqa: E402

from zeroeventhub.consumer.config import Failures  # noqa: E402
from zeroeventhub.consumer.consumer import AsyncConsumer, Consumer  # noqa: E402
from zeroeventhub.consumer.observer import Observer  # noqa: E402
from zeroeventhub.consumer.steps import Pause  # noqa: E402
from zeroeventhub.consumer.store.cursor_store import CursorStore  # noqa: E402
from zeroeventhub.consumer.store_session import in_store  # noqa: E402
from zeroeventhub.event_log import EventLog, NewEvent  # noqa: E402
from zeroeventhub.server.routes import feed_routes  # noqa: E402

__all__ = [
    "Faults",
    "LogFeed",
    "MemoryFeed",
    "Pause",
    "async_check_handler",
    "async_client_of",
    "async_run_to_head",
    "async_sqlite_engine",
    "async_store_of",
    "check_handler",
    "client_of",
    "events_of",
    "feed_of",
    "no_pauses",
    "run_to_head",
    "sqlite_engine",
    "store_of",
]

_Found = TypeVar("_Found")

Prepare: TypeAlias = Callable[[Connection], object]
"""Creates tables and writes rows, such as `metadata.create_all`."""


# Feeds.


class MemoryFeed:
    """Publish events that are kept in memory; `feed_of` makes it.

    Requests with `wait` are answered as soon as an event is appended, from any thread.

    Example:
        feed = MemoryFeed([[{"order": 1}]])
        feed.append({"order": 2})
        assert [event.data["order"] for event in feed.read(0, FIRST, 10).events] == [1, 2]

    Args:
        partitions: the events of each partition, in order: what Event.of takes, or Events.
        exactly_once: whether the feed promises never to publish an event twice.
    """

    def __init__(self, partitions: Iterable[Iterable[Any]], *, exactly_once: bool = True) -> None:
        self._logs = [list(map(_event, events)) for events in partitions]
        described = FeedInfo.of(len(self._logs))
        self._info = replace(
            described, exactly_once=exactly_once, extensions=frozenset({CAUGHT_UP, WAIT})
        )
        self._listeners: list[Callable[[], None]] = []

    def append(self, *events: Any, partition: int = 0) -> None:
        """Publish events: what Event.of takes, or Events."""
        self._logs[partition] += map(_event, events)
        for notify in self._listeners:
            notify()

    def info(self) -> FeedInfo:
        """Describe the feed."""
        return self._info

    def read(self, partition: int, cursor: str, limit: int) -> Page:
        """Read the events that follow a cursor.

        Raises:
            BadCursor: the feed has not given the cursor.
        """
        log = self._logs[partition]
        place = {FIRST: "0", LAST: str(len(log))}.get(cursor, cursor)
        if not (place.isascii() and place.isdigit() and int(place) <= len(log)):
            raise BadCursor("A cursor of this feed is the number of the events before it.")
        events = log[int(place) : int(place) + limit]
        end = int(place) + len(events)
        return Page(events, str(end), caught_up=end == len(log))

    def head(self) -> int:
        """Return the number of all events."""
        return sum(map(len, self._logs))

    def on_commit(self, notify: Callable[[], None], /) -> None:
        """Call a function whenever events are appended."""
        self._listeners.append(notify)


def feed_of(events: Iterable[Any] = (), *, exactly_once: bool = True) -> MemoryFeed:
    """Return a feed of events in memory, for `client_of`, `feed_routes`, or to be read as it is.

    Args:
        events: what Event.of takes, or Events; or a list of such lists, one for each partition.
        exactly_once: whether the feed promises never to publish an event twice.
    """
    return MemoryFeed(_partitions_of(events), exactly_once=exactly_once)


def _partitions_of(events: Iterable[Any]) -> list[list[Event]]:
    given = list(events)
    partitions = given if given and all(isinstance(one, list) for one in given) else [given]
    return [list(map(_event, events)) for events in partitions]


def _event(data: Any) -> Event:
    return data if isinstance(data, Event) else Event.of(data)


class LogFeed:
    """Publish events from a table of SQLite, as in production: an EventLog and its feed.

    Example:
        log_feed = LogFeed(partitions=2)
        log_feed.append(NewEvent("order.paid", {"order": 17}, key="17"))
        page = client_of(log_feed.feed).fetch(1, FIRST)

    Args:
        partitions: the number of partitions.
        options: options of a TableFeed, such as `cloudevents`.

    Attributes:
        engine: the engine of the database, an empty one.
        log: the log.
        feed: its feed, which reads through the engine.
    """

    def __init__(self, partitions: int = 1, **options: Any) -> None:
        metadata = MetaData()
        self.engine = sqlite_engine()
        self.log = EventLog(metadata, "events", partitions=partitions)
        metadata.create_all(self.engine)
        self.feed = self.log.feed(**options).bind(self.engine)

    def append(self, *events: NewEvent) -> None:
        """Append events in a transaction of their own."""
        with self.engine.begin() as connection:
            self.log.append(connection, events)


def events_of(response: Any, partition: int = 0) -> Page:
    """Return the events and the cursor of a page that a test has requested by itself.

    Args:
        response: the response of a test client, such as those of Starlette, FastAPI, Flask and
            httpx, with status 200; or the bytes of its body.
        partition: the partition that was requested, for pages of ZeroEventHub v1.

    Raises:
        AssertionError: the response has another status.
        CutPage: the page has no checkpoint.
        ProtocolError: it is no page.
    """
    status = getattr(response, "status_code", httpx.codes.OK)
    body = response if isinstance(response, bytes) else _body_of(response)
    if status != httpx.codes.OK:
        detail = problem_in(body).detail or printable(body.decode(errors="replace"), longest=300)
        raise AssertionError(f"A page was requested, and status {status} came: {detail}")
    decoder = PageDecoder(partition)
    decoder.feed(body)
    return decoder.page()


def _body_of(response: Any) -> bytes:
    body: bytes = response.content if hasattr(response, "content") else response.data
    return body


# Clients without sockets, and faults.


class Faults:
    """Let the next pages of a feed go wrong, one after the other, before all goes well again.

    Example:
        faults = Faults()
        client = client_of(feed_of([{"order": 1}]), faults=faults)
        faults.unavailable(retry_after=30)
        run_to_head(Consumer(client, store, "billing"), apply)
    """

    def __init__(self) -> None:
        self._next: list[Callable[[bytes], Reply]] = []

    @property
    def pending(self) -> int:
        """How many faults have not come yet."""
        return len(self._next)

    def cut_page(self, after: int | None = None) -> None:
        """Break off the next page after a number of bytes; by default, in its middle."""
        self._next.append(lambda body: Reply(body, cut=len(body) // 2 if after is None else after))

    def token_changed(self) -> None:
        """Answer the next request for a page with 409: the partitions have changed."""
        self._add(problem(409, "token-changed"))

    def trimmed(self, earliest: str | None = None) -> None:
        """Answer the next request for a page with 410: its events were trimmed.

        Args:
            earliest: the first cursor of the events that are kept; None to say nothing of it.
        """
        members = {} if earliest is None else {"earliestCursor": earliest}
        self._add(problem(410, "trimmed", **members))

    def unavailable(self, retry_after: int = 1) -> None:
        """Answer the next request for a page with 503, to be sent again after some seconds."""
        refusal = problem(503, "unavailable")
        self._add(replace(refusal, headers=(("Retry-After", str(retry_after)),)))

    def reset(self) -> None:
        """Reset the connection at the next request for a page."""
        self._add(Reply(hang_up=True))

    def _add(self, reply: Reply) -> None:
        self._next.append(lambda _: reply)

    def take(self, path: str, body: bytes) -> Reply | None:
        """Return the fault that comes instead of a body from a path; None if all is well."""
        return self._next.pop(0)(body) if self._next and path.endswith("/events") else None


class _Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body, or the beginning of one, after which the connection breaks off."""

    def __init__(self, body: bytes, *, is_cut: bool = False) -> None:
        self._body, self._is_cut = body, is_cut

    def __iter__(self) -> Iterator[bytes]:
        yield self._body
        if self._is_cut:
            raise httpx.RemoteProtocolError("The page was cut, as the test has asked for.")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


class _AsyncTransport(httpx.AsyncBaseTransport):
    """Send requests to an ASGI application of this process."""

    def __init__(self, app: Any, faults: Faults) -> None:
        self._inner = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._faults = faults

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; return its response, or the next fault."""
        response = await self._inner.handle_async_request(request)
        # Not `aread`, which unpacks what is compressed: the client does.
        body = b"".join([piece async for piece in response.aiter_raw()])
        reply = self._faults.take(request.url.path, body)
        if reply is None:
            return httpx.Response(
                response.status_code, headers=response.headers, stream=_Body(body)
            )
        if reply.hang_up:
            raise httpx.ReadError("The connection was reset, as the test has asked for.")
        headers = [("Content-Type", str(reply.media_type)), *reply.headers]
        stream = _Body(reply.body[: reply.cut], is_cut=reply.cut is not None)
        return httpx.Response(reply.status, headers=headers, stream=stream)


class _Transport(httpx.BaseTransport):
    """The same for threads: the application runs in an event loop of its own thread."""

    def __init__(self, app: Any, faults: Faults) -> None:
        self._inner = _AsyncTransport(app, faults)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and return its whole response."""
        sent = self._inner.handle_async_request(request)
        return asyncio.run_coroutine_threadsafe(sent, _event_loop()).result()


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop in which all applications run that are read by threads."""
    running: Future[asyncio.AbstractEventLoop] = Future()

    async def run() -> None:
        running.set_result(asyncio.get_running_loop())
        await asyncio.Event().wait()

    # A daemon, as the threads are that it starts: none keeps the process from ending.
    name = "zeroeventhub.testing"
    threading.Thread(target=asyncio.run, args=(run(),), name=name, daemon=True).start()
    return running.result()


def _app_of(feed: Any, engine: Any, path: str) -> Any:
    return feed if callable(feed) else Starlette(routes=feed_routes(path, feed, engine))


def client_of(
    feed: Any,
    engine: Engine | AsyncEngine | None = None,
    *,
    path: str = "/feed",
    headers: Mapping[str, str] | None = None,
    faults: Faults | None = None,
) -> Client:
    """Return a client of a feed in this process, which is sent real requests without a socket.

    Args:
        feed: a Feed, AsyncFeed or TableFeed; or an ASGI application that serves one.
        engine: the engine that a TableFeed reads through.
        path: the address of the feed in the application.
        headers: sent with every request, such as credentials.
        faults: lets pages go wrong.
    """
    transport = _Transport(_app_of(feed, engine, path), faults or Faults())
    return Client(f"http://feed.test{path}", httpx.Client(transport=transport, headers=headers))


def async_client_of(
    feed: Any,
    engine: Engine | AsyncEngine | None = None,
    *,
    path: str = "/feed",
    headers: Mapping[str, str] | None = None,
    faults: Faults | None = None,
) -> AsyncClient:
    """Return an AsyncClient of a feed in this process; see `client_of`."""
    transport = _AsyncTransport(_app_of(feed, engine, path), faults or Faults())
    http = httpx.AsyncClient(transport=transport, headers=headers)
    return AsyncClient(f"http://feed.test{path}", http)


# Databases and stores.


def sqlite_engine() -> Engine:
    """Return an engine of an empty SQLite database, which several threads may use.

    It is a file that is removed with the engine: a database in memory has one connection, and a
    consumer uses several.
    """
    file, opened = _new_file()
    # Without a pool, no connection is left to be closed by whoever drops the engine.
    engine = create_engine(f"sqlite:///{file}", poolclass=NullPool)
    return _tend(engine, file, opened)


def async_sqlite_engine() -> AsyncEngine:
    """Return an AsyncEngine of an empty SQLite database; see `sqlite_engine`."""
    require("aiosqlite", extra="testing", user="An AsyncEngine of SQLite")
    file, opened = _new_file()
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}", poolclass=NullPool)
    _tend(engine.sync_engine, file, opened)
    return engine


def _new_file() -> tuple[Path, sqlite3.Connection]:
    """Return the file of an empty database, and a connection to it.

    While one connection is open, SQLite keeps the file of its log, instead of making it anew for
    every transaction.
    """
    file = Path(tempfile.mkdtemp(prefix="zeroeventhub-"), "test.db")
    opened = sqlite3.connect(file, check_same_thread=False)
    opened.execute("PRAGMA journal_mode=WAL").close()
    opened.execute("SELECT * FROM sqlite_master").close()
    return file, opened


def _tend(engine: Engine, file: Path, opened: sqlite3.Connection) -> Engine:
    """Let an engine not wait for the disk, and remove its database with it."""

    def forget_the_disk(connection: Any, _record: Any) -> None:
        connection.cursor().execute("PRAGMA synchronous=OFF")

    def remove() -> None:
        opened.close()
        shutil.rmtree(file.parent, ignore_errors=True)

    event.listen(engine, "connect", forget_the_disk)
    weakref.finalize(engine, remove)
    return engine


def store_of(prepare: Prepare | None = None) -> CursorStore:
    """Return a store in an empty SQLite database, with its tables.

    Args:
        prepare: creates your own tables there, such as `metadata.create_all`.
    """
    return _store(sqlite_engine(), prepare)


def async_store_of(prepare: Prepare | None = None) -> CursorStore:
    """Return a store for an AsyncConsumer in an empty SQLite database; see `store_of`.

    Args:
        prepare: creates your own tables there, such as `metadata.create_all`.
    """
    return _store(async_sqlite_engine(), prepare)


def _store(engine: Engine | AsyncEngine, prepare: Prepare | None) -> CursorStore:
    store = CursorStore(engine)
    sync = create_engine(f"sqlite:///{engine.url.database}", poolclass=NullPool)
    with sync.begin() as connection:
        store.create_tables(connection)
        if prepare is not None:
            prepare(connection)
    return store


# Time, and runs to the head.

LONGEST_PAUSE = 0.001
"""Seconds of a pause in a test: other threads get their turn."""

MOST_RETRIES = 1000
"""Pauses after errors from which on a consumer tries for ever."""


@contextmanager
def no_pauses() -> Iterator[list[Pause]]:
    """Let the pauses of all consumers take no time in a block; yield those that were made.

    A Pause has its `seconds`, and the error that was its `reason`: None at the head of the feed.

    Raises:
        AssertionError: in a consumer that has tried again a thousand times.
    """
    pauses: list[Pause] = []
    former = Pause.begin

    def begin(self: Pause) -> float:
        pauses.append(self)
        if self.reason is not None and len(pauses) > MOST_RETRIES:
            raise AssertionError(
                f"The consumer has tried again {MOST_RETRIES:,} times: {self.reason}"
            ) from self.reason
        return min(former(self), LONGEST_PAUSE)

    Pause.begin = begin  # type: ignore[method-assign]
    try:
        yield pauses
    finally:
        Pause.begin = former  # type: ignore[method-assign]


def run_to_head(
    consumer: Consumer, apply: Callable[..., object], *, sessions: Callable[[], Any] | None = None
) -> list[Pause]:
    """Run a consumer until it has applied all that is there, without pauses; return these.

    It is run as it would be otherwise, but for `follow`.

    Args:
        consumer: the consumer, which is left as it is.
        apply: as for `Consumer.run`.
        sessions: as for `Consumer.run`.

    Raises:
        Halted: `apply` has raised in every try.
        ZeroEventHubError: the feed has refused to be read.
    """
    return blocking(_run_to_head(consumer, apply, sessions))


async def async_run_to_head(
    consumer: AsyncConsumer,
    apply: Callable[..., object],
    *,
    sessions: Callable[[], Any] | None = None,
) -> list[Pause]:
    """Run an AsyncConsumer until it has applied all that is there; see `run_to_head`."""
    return await _run_to_head(consumer, apply, sessions)


async def _run_to_head(
    consumer: Consumer | AsyncConsumer,
    apply: Callable[..., object],
    sessions: Callable[[], Any] | None,
) -> list[Pause]:
    with no_pauses() as pauses:
        await settled(replace(consumer, follow=False).run(apply, sessions=sessions))
    return pauses


# Checks of a handler.


def check_handler(
    apply: Callable[..., object],
    events: Iterable[Any],
    *,
    store: CursorStore | None = None,
    prepare: Prepare | None = None,
    effects: Callable[[Connection], object] | None = None,
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
    scenes = _Scenes(
        store or store_of(), apply, events, prepare, effects, sessions, start, page_events
    )
    blocking(scenes.check(twice=twice, poison=poison))


async def async_check_handler(
    apply: Callable[..., object],
    events: Iterable[Any],
    *,
    store: CursorStore | None = None,
    prepare: Prepare | None = None,
    effects: Callable[[Connection], object] | None = None,
    sessions: Callable[[], Any] | None = None,
    start: Callable[[], object] | None = None,
    page_events: int = 3,
    twice: bool = False,
    poison: Iterable[Any] = (),
) -> None:
    """Check a handler of an AsyncConsumer, whose store has an AsyncEngine; see `check_handler`."""
    scenes = _Scenes(
        store or async_store_of(), apply, events, prepare, effects, sessions, start, page_events
    )
    await scenes.check(twice=twice, poison=poison)


_NAME = "handler-check"
_OWN_TABLES = "zeroeventhub_"
_WRITES = re.compile(
    r"\s*(?:insert|update|delete|replace|merge|copy|create|alter|drop|truncate)\b", re.IGNORECASE
)
_AT_MOST = 200
"""The most characters of a row, a statement or an error that a sentence shows."""


class _Killed(BaseException):
    """Raised where the process of a handler is killed, and at whatever it does after that."""


_watching: ContextVar["_Watch | None"] = ContextVar("_watching", default=None)
"""The watch of the page whose transaction this thread or task is in."""


class _Watch(Observer):
    """Count the places where a handler can be killed, and kill it at one of them.

    Attributes:
        places: the number of places so far.
        place: describes the place of the kill.
        outside: a statement that wrote past the transaction; empty if none has.
    """

    def __init__(self, kill_at: int | None = None) -> None:
        self.places = 0
        self.place = ""
        self.outside = ""
        self._kill_at = kill_at
        self._is_dead = False
        self._own: Any = None
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
        self._own = None
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
        if self._own is None:  # the statement that moves the cursor
            self._own = driver
        elif driver is not self._own and _WRITES.match(statement):
            self.outside = _short(statement)
            self._die()

    def _after_statement(self, _connection: Connection, _: Any, statement: str, *__: Any) -> None:
        self._pass(f"after the statement {_short(statement)!r}")

    def _before_commit(self, _connection: Connection) -> None:
        self._expect_alive()
        self._pass("before the commit")

    def _pass(self, place: str) -> None:
        """Come to a place in the transaction of a page, perhaps that of the kill."""
        if _watching.get() is not self:
            return
        if self.places == self._kill_at:
            self.place = f"{place}, in {self._page}"
            self._die()
        self.places += 1

    def _die(self) -> None:
        self._is_dead = True
        raise _Killed

    def _expect_alive(self) -> None:
        if self._is_dead:
            raise _Killed


@dataclass
class _Scenes:
    """Run a handler in a database that is emptied before each run, and compare the effects."""

    store: CursorStore
    apply: Callable[..., object]
    events: InitVar[Iterable[Any]]
    prepare: Prepare | None
    effects: Callable[[Connection], object] | None
    sessions: Callable[[], Any] | None
    start: Callable[[], object] | None
    page_events: int

    def __post_init__(self, events: Iterable[Any]) -> None:
        self._partitions = _partitions_of(events)

    async def check(self, *, twice: bool, poison: Iterable[Any]) -> None:
        """Check everything; the arguments are those of `check_handler`."""
        await self._do(self.store.create_tables)
        await self._do(_expect_empty)
        try:
            await self._check_kills()
            if twice:
                doubled = [[each for each in log for _ in range(2)] for log in self._partitions]
                await self._check_scene("Each event came twice", doubled)
            if poisonous := list(map(_event, poison)):
                await self._check_poison(poisonous)
        finally:
            await self._do(_empty)

    async def _check_kills(self) -> None:
        untouched = await self._set_up()
        witness = await self._run("Nothing went wrong", self._partitions)
        self._expected = await self._do(self.effects or _rows)
        if self._expected == untouched:
            raise AssertionError(
                "The handler has left no effect in the database: without one there is nothing to "
                "check. It may keep its state in memory, or in another database."
            )
        await self._check_scene(
            "The events were applied a second time, in an emptied database, and nothing went wrong",
            self._partitions,
            " The handler keeps state in memory, or writes what differs each time, such as the "
            "time of day: then give `effects`.",
        )
        for place in range(witness.places):
            await self._set_up()
            killed = await self._run("Nothing went wrong", self._partitions, kill_at=place)
            if killed.place:
                scene = f"The handler was killed {killed.place}, and started again"
                await self._run(scene, self._partitions)
                await self._compare(scene)

    async def _check_scene(
        self, scene: str, partitions: Sequence[Sequence[Event]], hint: str = ""
    ) -> None:
        await self._set_up()
        await self._run(scene, partitions)
        await self._compare(scene, hint)

    async def _check_poison(self, poison: Sequence[Event]) -> None:
        first, *rest = self._partitions
        middle = len(first) // 2
        mixed = [[*first[:middle], *poison, *first[middle:]], *rest]
        scene = "There were poison events"
        await self._set_up()
        await self._run(scene, mixed, failures=Failures(tries=1, then="set-aside"))
        letters = await self._do(self.store.dead_letters.letters, _NAME)
        refused = [letter.event for letter in letters]
        for one in poison:
            if one not in refused:
                raise AssertionError(f"{scene}, and the handler raised nothing at {_shown(one)}.")
        for letter in letters:
            if letter.event not in poison:
                raise AssertionError(
                    f"{scene}, and the handler also refused {_shown(letter.event)}: {letter.error}"
                )
        await self._compare(scene)

    async def _set_up(self) -> object:
        """Prepare an empty database; return its effects so far."""
        await self._do(_empty)
        if self.prepare is not None:
            await self._do(self.prepare)
        return await self._do(self.effects or _rows)

    async def _run(
        self,
        scene: str,
        partitions: Sequence[Sequence[Event]],
        *,
        kill_at: int | None = None,
        failures: Failures = Failures(tries=1),  # noqa: B008 - it is frozen
    ) -> _Watch:
        """Start the consumer, and run it to the head, or to where it is killed."""
        tables = self.store.tables
        for table in (tables.leases, tables.members):  # a process that was killed has left them
            await self._do(lambda connection, of: connection.execute(delete(of)), table)
        if self.start is not None:
            self.start()
        watch, feed = _Watch(kill_at), MemoryFeed(partitions)
        is_sync = isinstance(self.store.engine, Engine)
        options: dict[str, Any] = {
            "limit": self.page_events,
            "attempts": 1,
            "concurrency": 1,  # so that the kills come at the same places
            "failures": failures,
            "inbox": False,
            "observer": watch,
        }
        consumer: Consumer | AsyncConsumer = (
            Consumer(client_of(feed), self.store, _NAME, **options)
            if is_sync
            else AsyncConsumer(async_client_of(feed), self.store, _NAME, **options)
        )
        try:
            with watch.watched():
                await _run_to_head(consumer, self.apply, self.sessions)
        except _Killed:
            pass
        except ZeroEventHubError as error:
            cause = error.__cause__ or error
            raise AssertionError(
                f"{scene}, and yet the handler could not apply its events: "
                f"{type(cause).__name__}: {printable(str(cause), longest=1_000)}"
            ) from error
        if watch.outside:
            raise AssertionError(
                f"The handler wrote past the transaction that it was given, by a connection of its "
                f"own: {watch.outside!r}. A kill before the commit leaves that effect behind, and "
                "it comes twice."
            )
        return watch

    async def _compare(self, scene: str, hint: str = "") -> None:
        found = await self._do(self.effects or _rows)
        if found != self._expected:
            raise AssertionError(f"{scene}, and {_difference(self._expected, found)}{hint}")

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


def _empty(connection: Connection) -> None:
    """Delete all rows of a database, and let SQLite number from 1 on again."""
    for table in reversed(_reflected(connection).sorted_tables):
        connection.execute(delete(table))
    if connection.dialect.name == "sqlite" and inspect(connection).has_table("sqlite_sequence"):
        connection.execute(text("DELETE FROM sqlite_sequence"))


def _rows(connection: Connection) -> dict[str, Counter[str]]:
    """Read all rows of a handler's tables, as texts."""
    return {
        table.name: Counter(
            repr(tuple(row)) for row in connection.execute(select(*filter(_is_given, table.c)))
        )
        for table in _reflected(connection).sorted_tables
        if not table.name.startswith(_OWN_TABLES)
    }


def _is_given(column: Column[Any]) -> bool:
    """Return whether the values of a column are given, and not drawn by the database."""
    default = str(getattr(column.server_default, "arg", ""))
    return column.identity is None and column.autoincrement is not True and "nextval" not in default


def _difference(expected: Any, found: Any) -> str:
    """Say in a sentence how effects differ from those that were expected."""
    if not (isinstance(expected, dict) and isinstance(found, dict)):
        return f"the effects were {_short(repr(found))} instead of {_short(repr(expected))}."
    parts = []
    for name in sorted({*expected, *found}):
        before, after = expected.get(name, Counter()), found.get(name, Counter())
        parts += [f"the table {name} lacked the row {_short(row)}" for row in before - after]
        parts += [f"the table {name} had the row {_short(row)} too much" for row in after - before]
    return f"{'; '.join(parts[:4])}."


def _shown(one: Event) -> str:
    return _short(one.raw.decode(errors="replace"))


def _short(words: str) -> str:
    return printable(" ".join(words.split()), longest=_AT_MOST)
