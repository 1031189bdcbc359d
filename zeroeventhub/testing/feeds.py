"""Feeds of tests, in memory or a log in SQLite; clients of them without sockets; and faults."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from typing import Any

import httpx
from sqlalchemy import Engine, MetaData
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette

from zeroeventhub.client import AsyncClient, Client
from zeroeventhub.conformance.scripted_feed import Reply, problem
from zeroeventhub.errors import BadCursor, ConfigurationError, printable
from zeroeventhub.event_log import EventLog
from zeroeventhub.extensions import CAUGHT_UP, WAIT
from zeroeventhub.new_events import NewEvent
from zeroeventhub.protocol import FIRST, LAST, Event, FeedInfo, Page
from zeroeventhub.server.routes import feed_routes
from zeroeventhub.settings import Capacity
from zeroeventhub.testing.consumers import sqlite_engine
from zeroeventhub.wire.ndjson import PageDecoder
from zeroeventhub.wire.problem import problem_in


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
        self._logs = [list(map(event_of, events)) for events in partitions]
        described = FeedInfo.of(len(self._logs))
        self._info = replace(
            described, exactly_once=exactly_once, extensions=frozenset({CAUGHT_UP, WAIT})
        )
        self._listeners: list[Callable[[], None]] = []

    def append(self, *events: Any, partition: int = 0) -> None:
        """Publish events: what Event.of takes, or Events; all of them, or none."""
        if not 0 <= partition < len(self._logs):
            raise ConfigurationError(f"The feed has no partition {partition}: it counts from 0.")
        self._logs[partition] += [*map(event_of, events)]
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
    return MemoryFeed(partitions_of(events), exactly_once=exactly_once)


def partitions_of(events: Iterable[Any]) -> list[list[Event]]:
    """Return the events of each partition; a list of anything but lists is that of one."""
    given = list(events)
    partitions = given if given and all(isinstance(one, list) for one in given) else [given]
    return [list(map(event_of, events)) for events in partitions]


def event_of(data: Any) -> Event:
    """Return an event as it is, and make one of anything else."""
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
    body: bytes = response
    if not isinstance(response, bytes):
        body = response.content if hasattr(response, "content") else response.data
    if status != httpx.codes.OK:
        detail = problem_in(body).detail or printable(body.decode(errors="replace"), longest=300)
        raise AssertionError(f"A page was requested, and status {status} came: {detail}")
    decoder = PageDecoder(partition)
    decoder.feed(body)
    return decoder.page()


class Faults:
    """Let the next requests for pages fail, each by one fault, before pages are sent again.

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
        """How many faults are still to be sent."""
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

    def take(self, url: httpx.URL, body: bytes) -> Reply | None:
        """Return the fault that replaces the body of an answer; None without one."""
        # A feed may have such an address itself.
        is_page = url.path.endswith("/events") and "cursor" in url.params
        return self._next.pop(0)(body) if self._next and is_page else None


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


class _Transport(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Send requests to an ASGI application of this process; those of threads in a loop apart."""

    def __init__(self, app: Any, faults: Faults) -> None:
        self._inner = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._faults = faults

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await self._inner.handle_async_request(request)
        # Not `aread`, which unpacks what is compressed: the client does.
        body = b"".join([piece async for piece in response.aiter_raw()])
        reply = self._faults.take(request.url, body)
        if reply is None:
            return httpx.Response(
                response.status_code, headers=response.headers, stream=_Body(body)
            )
        if reply.hang_up:
            raise httpx.ReadError("The connection was reset, as the test has asked for.")
        headers = [("Content-Type", str(reply.media_type)), *reply.headers]
        stream = _Body(reply.body[: reply.cut], is_cut=reply.cut is not None)
        return httpx.Response(reply.status, headers=headers, stream=stream)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        sent = self.handle_async_request(request)
        return asyncio.run_coroutine_threadsafe(sent, _event_loop(os.getpid())).result()


@cache
def _event_loop(_process: int) -> asyncio.AbstractEventLoop:
    """Return the event loop in which all applications of a process run that threads read."""
    running: Future[asyncio.AbstractEventLoop] = Future()

    async def run() -> None:
        running.set_result(asyncio.get_running_loop())
        await asyncio.Event().wait()

    # A daemon, as the threads are that it starts: none keeps the process from ending.
    name = "zeroeventhub.testing"
    threading.Thread(target=asyncio.run, args=(run(),), name=name, daemon=True).start()
    return running.result()


LONGEST_WAIT = 0.2
"""Seconds that a request waits at the head at most, so that a consumer is soon stopped."""


def _app_of(feed: Any, engine: Any, path: str) -> Any:
    if callable(feed):
        return feed
    capacity = Capacity(wait_seconds=LONGEST_WAIT)
    return Starlette(routes=feed_routes(path, feed, engine, capacity=capacity))


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
        feed: a Feed, AsyncFeed or TableFeed, where a request waits at the head for 0.2 seconds at
            most; or an ASGI application that serves one.
        engine: the engine that a TableFeed reads through.
        path: the address of the feed in the application.
        headers: sent with every request, such as credentials.
        faults: the faults of the next pages.
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
    transport = _Transport(_app_of(feed, engine, path), faults or Faults())
    http = httpx.AsyncClient(transport=transport, headers=headers)
    return AsyncClient(f"http://feed.test{path}", http)
