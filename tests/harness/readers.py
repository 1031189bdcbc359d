"""Feeds that are served over HTTP, and their readers."""

import json
import threading
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
import httpx
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from starlette.applications import Starlette

from harness.engines import async_url
from harness.shop import orders
from harness.waiting import until
from harness.web import serving
from zeroeventhub import (
    FIRST,
    LAST,
    Capacity,
    Client,
    ConnectionPool,
    Event,
    FeedInfo,
    Observer,
    Page,
    Partition,
    Principal,
    TableFeed,
    feed_routes,
)
from zeroeventhub.errors import Diverged, FeedFailure, Forbidden
from zeroeventhub.extensions import EVENT_TYPES, EXTENSIONS, WAIT

PATIENCE = 20.0  # seconds after which a reader gives up an answer that does not come
READER = Principal(name="reader")
ONE = Capacity(connections=1, patience=PATIENCE)
TOKEN = "canary-0123456789abcdef"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
GOOD = {
    "": {},
    "/events": {"token": "1", "partition": 0, "cursor": FIRST},
    "/server-sent-events": {},
    "/http-feed": {},
    "/cursor-of-count": {"token": "1", "partition": 0, "cursor": FIRST, "events": 3},
}


def routes(shop, authorize=None, path="/orders", **options):
    """All routes of a feed over the orders."""
    feed = TableFeed(orders, data="data", type="kind", time="placed", cloudevents=True)
    options = {"http_feed": True, "server_sent_events": True, **options}
    return feed_routes(path, feed, shop, authorize=authorize, **options)


@contextmanager
def served(shop, authorize=None, **options):
    """Serve all routes of a feed over the orders; yield its URL."""
    with serving(Starlette(routes=routes(shop, authorize, **options))) as url:
        yield f"{url}/orders"


@contextmanager
def hosted(routes, engine=None, **options):
    """Serve an application of routes, which may use an async engine; yield its URL."""

    @asynccontextmanager
    async def lifespan(_):
        yield
        if isinstance(engine, AsyncEngine):
            await engine.dispose()

    with serving(Starlette(routes=routes, lifespan=lifespan, **options)) as url:
        yield url


@contextmanager
def mounted(feed, engine=None, *, beside=(), middleware=(), **options):
    """Serve a feed in an application that shows errors to everybody; yield its URL."""
    own = feed_routes("/orders", feed, engine, **options)
    with hosted([*own, *beside], engine, debug=True, middleware=middleware) as url:
        yield f"{url}/orders"


@contextmanager
def client_of(url, session=None, **options):
    """Yield a client of a feed, over an httpx client of the session's options if there are any."""
    with ConnectionPool(timeout=PATIENCE) if session is None else httpx.Client(**session) as http:
        yield Client(url, http, **options)


def engine_of(kind, engine, **options):
    """Return another engine of the same database, sync or async."""
    if kind == "sync":
        return create_engine(engine.url, **options)
    return create_async_engine(async_url(engine.url), **options)


def page_url(url, **parameters):
    """Return the URL of a page of FeedAPI v2."""
    asked = {"token": "1", "partition": 0, "cursor": FIRST, **parameters}
    return str(httpx.URL(f"{url}/events", params=asked))


def get(url, *, method="GET", headers=None, **parameters):
    """Ask for a page of FeedAPI v2."""
    address = page_url(url, **parameters)
    return httpx.request(method, address, headers=headers, timeout=PATIENCE)


def cursor_of(answer):
    """Return the cursor at the end of a page."""
    assert answer.status_code == 200, answer.text
    return json.loads(answer.text.splitlines()[-1])["cursor"]


def numbers(answer):
    """Return the numbers of the orders of a page."""
    assert answer.status_code == 200, answer.text
    *events, _ = map(json.loads, answer.text.splitlines())
    return [event["data"]["n"] for event in events]


def head_of(url):
    """Return the cursor behind the last event."""
    return cursor_of(get(url, cursor=LAST))


def kind(answer):
    """The kind of problem that an answer is."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.json()["type"].rpartition("/")[2]


def raising(error):
    """A hook that raises."""

    def hook(request):
        raise error

    return hook


class NoReaders(dict):
    """A hook that is false to Python, as an empty collection."""

    async def __call__(self, request):
        """Refuse every reader."""
        raise Forbidden("Nobody may read this feed.")


async def of_name(request):
    """Take readers by their word."""
    return Principal(name=request.query_params["name"])


def open_stream(url, stopped, *, headers=None, **parameters):
    """Read a stream until it ends, or until it is told to stop; return what came."""
    received = b""
    address = f"{url}/server-sent-events"
    with httpx.stream(
        "GET", address, params=parameters, headers=headers, timeout=PATIENCE
    ) as answer:
        assert answer.status_code == 200, answer.read()
        for chunk in answer.iter_raw():
            received += chunk
            if stopped(received):
                break
    return received


class Watcher(Observer):
    """See how many requests wait at the head, and what is answered."""

    def __init__(self):
        self.counts = [0]
        self.answers = []
        self.feeds = set()

    def waiting(self, feed, requests):
        self.feeds.add(feed)
        self.counts.append(requests)

    def answered(self, answered):
        self.answers.append(answered)

    def until_waiting(self, count):
        until(lambda: self.counts[-1] == count, f"{count} requests wait at the head")


class Everything:
    """A feed of one's own with the methods of all extensions, each of which calls `answer`."""

    METHODS = {"head", "read", "cursor_of", *(one.method for one in EXTENSIONS.values())}

    def __getattr__(self, name):
        """Be a feed with these methods."""
        if name not in self.METHODS:
            raise AttributeError(name)

        async def call(*arguments, **options):
            return self.answer(name, *arguments, **options)

        return call


class Numbers:
    """A feed of one's own whose events are the numbers below its count."""

    def __init__(self, count=0):
        self.count = count
        self.error = None
        self.reads, self.limits = [], []
        self.looks = self.inside = self.most = 0
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._open.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let no read end meanwhile."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def info(self):
        return FeedInfo((Partition(0),), "1", extensions=frozenset({WAIT}))

    def head(self):
        self.looks += 1
        if self.error is not None:
            raise self.error
        return self.count

    def read(self, partition, cursor, limit, *, each=False):
        with self._asked(cursor):
            self.limits.append(limit)
            count = self.count
            assert self._open.wait(PATIENCE)
            return self._page(cursor, limit, count)

    @contextmanager
    def _asked(self, cursor):
        with self._lock:
            self.reads.append(cursor)
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            yield
        finally:
            with self._lock:
                self.inside -= 1

    def _page(self, cursor, limit, count):
        if self.error is not None:
            raise self.error
        first = 0 if cursor == FIRST else count if cursor == LAST else int(cursor)
        end = min(first + limit, max(count, first))
        events = [Event(b'{"n":%d}' % number) for number in range(first, end)]
        cursors = [str(number + 1) for number in range(first, end)]
        return Page(events, str(end), caught_up=end >= count, cursors=cursors)


class Known(Numbers):
    """A feed with a fixed description, so that only pages are read."""

    known_info = property(Numbers.info)


class AsyncNumbers(Numbers):
    """The same, asynchronous."""

    async def info(self):
        return super().info()

    async def head(self):
        return super().head()

    async def read(self, partition, cursor, limit, *, each=False):
        with self._asked(cursor):
            count = self.count
            while not self._open.is_set():  # noqa: ASYNC110 - a thread sets it
                await anyio.sleep(0.002)
            return self._page(cursor, limit, count)


BOOK_PAGE = 1_050  # bytes that a publisher counts for a page of a book that it keeps


def read(url, *pages):
    """Read pages of a book, each of which is there."""
    for number in pages:
        answer = get(url, cursor=str(number) if number else FIRST)
        assert answer.text.startswith(f'{{"data":{number}}}\n'), answer.text


class Book:
    """A feed of pages with one event each, whose cursors are their numbers."""

    def __init__(self, last=9):
        self.asked = []
        self.last = last
        self.held = self.broken = self.gone = None
        self.turned = threading.Event()

    def info(self):
        return FeedInfo((Partition(0),), "1", extensions=frozenset({EVENT_TYPES}))

    def vouch(self, cursors):
        """Have one history for ever."""

    def read(self, partition, cursor, limit, *, types=None):
        number = 0 if cursor == FIRST else int(cursor)
        self.asked.append(number)
        if number == self.held:
            self.turned.wait(PATIENCE)
        if number == self.broken:
            raise FeedFailure("A page is torn.")
        if number == self.gone:
            raise Diverged("This is another book.")
        if number == self.last:
            return Page([], cursor, caught_up=True)
        return Page([Event(b"%d" % number)], str(number + 1), full=number + 1 < self.last)

    @contextmanager
    def holding(self, number):
        """Let no read of a page end meanwhile."""
        self.turned.clear()
        self.held = number
        try:
            yield
        finally:
            self.turned.set()
