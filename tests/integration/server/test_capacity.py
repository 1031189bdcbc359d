"""What a feed takes of the service around it, over real HTTP, and what happens beyond that."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager

import anyio
import httpx
import pytest
from harness.shop import metadata, orders, place
from harness.stalled import answer, ask, asking, everything
from harness.web import serving
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from zeroeventhub import FIRST, LAST, TableFeed, feed_routes
from zeroeventhub.capacity import Capacity
from zeroeventhub.protocol import WAIT, Event, FeedInfo, Page, Partition
from zeroeventhub.server import Observer

PATIENCE = 60
SOON = 10
"""Seconds in which what is not kept waiting is answered, with much to spare."""


def page_url(url, **parameters):
    """Return the URL of a page."""
    asked = {"token": "1", "partition": 0, "cursor": FIRST, **parameters}
    return str(httpx.URL(f"{url}/events", params=asked))


def get(url, **parameters):
    """Ask for a page."""
    return httpx.get(page_url(url, **parameters), timeout=PATIENCE)


@contextmanager
def mounted(feed, engine=None, *, beside=(), capacity=None, lifespan=None, **options):
    """Serve a feed and other routes; yield the feed's URL."""
    routes = feed_routes("/orders", feed, engine, capacity=capacity, **options)
    with serving(Starlette(routes=[*routes, *beside], lifespan=lifespan)) as url:
        yield f"{url}/orders"


def beside(url):
    """Return the URL of the host's own endpoint."""
    return url.removesuffix("/orders") + "/health"


class Slow:
    """A feed of one's own, which answers when it is let."""

    def __init__(self):
        self.proceed = threading.Event()
        self.asked = self.most = self.inside = 0
        self._lock = threading.Lock()

    def info(self):
        return FeedInfo((Partition(0),), "1", extensions=frozenset({WAIT}))

    def read(self, partition, cursor, limit):
        with self._lock:
            self.asked += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.proceed.wait(PATIENCE)
        with self._lock:
            self.inside -= 1
        return Page([], "1", caught_up=True)

    def head(self):
        return 1


class AsyncSlow(Slow):
    """The same, asynchronous."""

    async def info(self):
        return super().info()

    async def read(self, partition, cursor, limit):
        self.asked += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        while not self.proceed.is_set():  # noqa: ASYNC110 - a thread sets it
            await anyio.sleep(0.01)
        self.inside -= 1
        return Page([], "1", caught_up=True)

    async def head(self):
        return 1


def eventually(condition):
    """Wait until something is so."""
    ending = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ending
        time.sleep(0.01)


@pytest.mark.parametrize("connections", [3, 45])
@pytest.mark.parametrize("kind", [Slow, AsyncSlow])
def test_feed_is_asked_by_so_many_at_once(kind, connections):
    """A feed works on as many questions as it has connections; the others stand in line."""
    feed = kind()

    def health(_):
        return PlainTextResponse("well")

    route = Route("/health", health)  # in one of the forty threads of the host
    with (
        mounted(
            feed, beside=[route], capacity=Capacity(connections=connections, patience=60)
        ) as url,
        ThreadPoolExecutor(60) as pool,
    ):
        asking_ = [pool.submit(get, url, cursor=number) for number in range(60)]
        eventually(lambda: feed.inside == connections)
        assert httpx.get(beside(url), timeout=SOON).text == "well"
        assert not any(one.done() for one in asking_)
        feed.proceed.set()
        assert {one.result().status_code for one in asking_} == {200}
    assert (feed.most, feed.asked) == (connections, 60)


def test_line_is_left_in_time():
    """Who stands in line for too long is told to come again, and who finds it full at once."""
    feed = Slow()
    capacity = Capacity(connections=1, patience=0.3, queue=2)
    with mounted(feed, capacity=capacity) as url, ThreadPoolExecutor(10) as pool:
        first = pool.submit(get, url)
        eventually(lambda: feed.inside == 1)
        others = [pool.submit(get, url, cursor=number) for number in range(6)]
        for one in others:
            refused = one.result()
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["type"].endswith("/unavailable")
        feed.proceed.set()
        assert first.result().status_code == 200
        assert get(url).status_code == 200


@pytest.fixture
def shop(sqlite):
    """An engine of a database with some orders."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 5)
    return sqlite


def test_discovery_does_not_stand_in_line(shop):
    """What a feed knows of itself it says at once, however busy its database is."""
    busy, proceed = threading.Event(), threading.Event()

    @event.listens_for(shop, "before_cursor_execute")
    def hold(connection, cursor, statement, *_):
        if busy.is_set() and "orders" in statement:
            proceed.wait(PATIENCE)

    with (
        mounted(TableFeed(orders, data="data"), shop, capacity=Capacity(connections=1)) as url,
        ThreadPoolExecutor(2) as pool,
    ):
        assert get(url).status_code == 200
        busy.set()
        held = pool.submit(get, url)
        time.sleep(0.3)
        assert httpx.get(url, timeout=SOON).status_code == 200
        assert not held.done()
        proceed.set()
        assert held.result().status_code == 200


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_waiters_hold_no_connection(kind, engine, async_url):
    """Two hundred who wait leave the only connection to the host, and are told of what comes."""
    metadata.create_all(engine)
    one = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 20}
    writing = create_engine(engine.url)
    if kind == "sync":
        reading = create_engine(engine.url, **one)

        def health(_):
            with reading.connect() as connection:
                return PlainTextResponse(str(connection.scalar(text("SELECT 1"))))

    else:
        reading = create_async_engine(async_url, **one)

        async def health(_):
            async with reading.connect() as connection:
                return PlainTextResponse(str(await connection.scalar(text("SELECT 1"))))

    @asynccontextmanager
    async def lifespan(_):
        yield
        if kind == "async":
            await reading.dispose()

    options = {"beside": [Route("/health", health)], "lifespan": lifespan}
    feed = TableFeed(orders, data="data")
    capacity = Capacity(patience=60)
    with mounted(feed, reading, capacity=capacity, **options) as url:
        cursor = json.loads(get(url, cursor=LAST).text)["cursor"]
        with asking(page_url(url, cursor=cursor, wait=30), 200) as waiting:
            time.sleep(1)
            for _ in range(5):
                assert httpx.get(beside(url), timeout=SOON).text == "1"
            with writing.begin() as connection:
                place(connection, 1)
            found = [answer(connection) for connection in waiting]
    assert {status for status, _, _ in found} == {200}
    assert {body.count(b'"data"') for _, _, body in found} == {1}
    writing.dispose()
    if kind == "sync":
        reading.dispose()


def test_host_that_uses_up_its_pool_is_met_with_a_503(shop):
    """A feed that gets no connection says so when the pool's own patience is over."""
    reading = create_engine(shop.url, pool_size=1, max_overflow=0, pool_timeout=0.3)
    with mounted(TableFeed(orders, data="data"), reading) as url:
        assert get(url).status_code == 200
        with reading.connect():
            refused = get(url)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert get(url).status_code == 200
    reading.dispose()


class Counts(Observer):
    """Remember what is told."""

    def __init__(self):
        self.waiters = []
        self.answers = []

    def waiting(self, feed, requests):
        self.waiters.append((feed, requests))

    def answered(self, answered):
        self.answers.append(answered)


def test_so_many_may_wait_for_so_long(shop):
    """One waiter more than there may be is told to come again; nobody waits longer than allowed."""
    counts = Counts()
    capacity = Capacity(waiters=3, wait_seconds=1.5)
    with mounted(
        TableFeed(orders, data="data"), shop, capacity=capacity, observer=counts, name="shop"
    ) as url:
        cursor = json.loads(get(url, cursor=LAST).text)["cursor"]
        began = time.monotonic()
        with asking(page_url(url, cursor=cursor, wait=30), 3) as waiting:
            eventually(lambda: ("shop", 3) in counts.waiters)
            refused = get(url, cursor=cursor, wait=30)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert get(url, cursor=cursor).status_code == 200
            found = [answer(connection) for connection in waiting]
        assert 1 < time.monotonic() - began < SOON
    assert [(status, json.loads(body)["cursor"]) for status, _, body in found] == [
        (200, cursor)
    ] * 3
    assert counts.waiters[-1] == ("shop", 0)
    assert max(counts.waiters) == ("shop", 3)
    assert sum(answered.waited > 1 for answered in counts.answers) == 3


def test_page_has_so_many_events(shop):
    """However many events are asked for, a page has no more than the capacity says."""
    with mounted(TableFeed(orders, data="data"), shop, capacity=Capacity(page_events=2)) as url:
        for asked in ({}, {"pagesizehint": 4}, {"pagesizehint": "9" * 50}):
            assert get(url, **asked).text.count('"data"') == 2
        v1 = httpx.get(url, params={"n": 1, "cursor0": FIRST, "pagesizehint": 5})
        assert v1.text.count('"data"') == 2


def test_page_holds_so_many_bytes(shop):
    """A page ends where it holds enough, at least with one event, and the next goes on there."""
    with mounted(TableFeed(orders, data="data"), shop, capacity=Capacity(page_bytes=1)) as url:
        cursor, seen = FIRST, []
        for _ in range(5):
            *events, checkpoint = map(json.loads, get(url, cursor=cursor).text.splitlines())
            assert len(events) == 1
            seen.append(events[0]["data"]["n"])
            cursor = checkpoint["cursor"]
    assert seen == [0, 1, 2, 3, 4]


class Large:
    """A feed of one's own: pages of some mebibytes, all the same."""

    def __init__(self, size):
        self.page = Page([Event(b'{"n":"%b"}' % (b"x" * size))], "1")
        self.pages = 0

    async def info(self):
        return FeedInfo((Partition(0),), "1")

    async def read(self, partition, cursor, limit):
        if cursor == "head":
            return Page([], "head", caught_up=True)
        self.pages += limit > 1
        return self.page


MEBIBYTE = 1024 * 1024


def test_answers_on_their_way_are_bounded():
    """Readers that do not read fill the room there is; who needs some is told to come again."""
    feed = Large(6 * MEBIBYTE)
    room = {"sending_bytes": 20 * MEBIBYTE, "page_bytes": 6 * MEBIBYTE, "sending_seconds": 60}
    capacity = Capacity(connections=1, patience=0.3, **room)
    with mounted(feed, capacity=capacity) as url, ExitStack() as stack:
        readers = [
            stack.enter_context(ask(page_url(url, cursor=number), room=4096))
            for number in range(20)
        ]
        eventually(lambda: feed.pages >= 3)
        time.sleep(1)
        assert feed.pages in {3, 4}  # one more may be read for each connection
        refused = get(url)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert get(url, cursor="head").status_code == 200
        for reader in readers:
            reader.close()
        eventually(lambda: get(url).status_code == 200)


class Two:
    """A feed of one's own of two partitions, which counts the answers that hold half of theirs."""

    def __init__(self):
        self.halves = self.most = 0

    async def info(self):
        return FeedInfo((Partition(0), Partition(1)), "1")

    async def read(self, partition, cursor, limit):
        await anyio.sleep(0.02)
        self.halves += 1 if partition == 0 else -1
        self.most = max(self.most, self.halves)
        return Page([], "1", caught_up=True)


def test_answers_of_several_pages_are_read_for_a_few_at_once():
    """Pages are held until an answer is whole only for as many as there are connections."""
    feed, v1 = Two(), {"n": 2, "cursor0": FIRST, "cursor1": FIRST}
    capacity = Capacity(connections=2, patience=60)
    with mounted(feed, capacity=capacity) as url, ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(httpx.get, url, params=v1, timeout=PATIENCE) for _ in range(20)]
        assert {one.result().status_code for one in asked} == {200}
    assert 1 <= feed.most <= 2


def test_page_larger_than_the_room_is_sent_alone():
    """What is larger than all there is room for is sent when nothing else is on its way."""
    feed = Large(3 * MEBIBYTE)
    capacity = Capacity(sending_bytes=MEBIBYTE, page_bytes=MEBIBYTE, patience=0.3)
    with mounted(feed, capacity=capacity) as url:
        for _ in range(3):
            assert len(get(url).content) > 3 * MEBIBYTE


def test_answer_that_nobody_takes_is_given_up(caplog):
    """A reader that takes nothing loses its connection, and never has a page that looks whole."""
    caplog.set_level("INFO", "zeroeventhub.server")
    feed = Large(16 * MEBIBYTE)
    with mounted(feed, capacity=Capacity(sending_seconds=0.4)) as url:
        with ask(page_url(url), room=4096) as reader:
            eventually(lambda: "An answer was given up" in caplog.text)
            received = everything(reader)
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert len(body) < length
        assert len(get(url).content) == length


def test_slow_reader_that_takes_something_is_served():
    """A reader may take long for a page, as long as it goes on taking pieces of it."""
    feed, began = Large(3 * MEBIBYTE), time.monotonic()
    with (
        mounted(feed, capacity=Capacity(sending_seconds=4)) as url,
        ask(page_url(url), room=64 * 1024) as reader,
    ):
        received = bytearray()
        while len(received) < 3 * MEBIBYTE:
            chunk = reader.recv(64 * 1024)
            assert chunk
            received += chunk
            time.sleep(0.1)
    assert time.monotonic() - began > 4


def test_answers_without_a_body_are_sent(shop):
    """HEAD and 304 have the headers of the page and nothing else."""
    with mounted(TableFeed(orders, data="data"), shop) as url:
        first = json.loads(get(url, pagesizehint=1).text.splitlines()[-1])["cursor"]
        whole = get(url, cursor=first, pagesizehint=2)
        tag = whole.headers["etag"]
        known = httpx.get(
            page_url(url, cursor=first, pagesizehint=2), headers={"If-None-Match": tag}
        )
        assert (known.status_code, known.content) == (304, b"")
        head = httpx.head(page_url(url, cursor=first, pagesizehint=2))
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(len(whole.content))


def test_one_read_answers_all_who_stand_in_line_with_the_same_question():
    """A page is read for all who ask for it before it is begun, and for nobody who asks later."""
    feed = Slow()
    capacity = Capacity(connections=1, patience=60)
    with mounted(feed, capacity=capacity) as url, ThreadPoolExecutor(30) as pool:
        first = pool.submit(get, url)
        eventually(lambda: feed.inside == 1)
        others = [pool.submit(get, url) for _ in range(29)]
        time.sleep(1)
        assert feed.asked == 1
        feed.proceed.set()
        assert {one.result().status_code for one in (first, *others)} == {200}
    assert 2 <= feed.asked < 10


def test_one_read_answers_all_who_ask_the_same(shop):
    """What comes is read once for all who wait for it with the same question."""
    pages = []

    @event.listens_for(shop, "before_cursor_execute")
    def note(connection, cursor, statement, *_):
        if "orders.data" in statement:
            pages.append(statement)

    with mounted(TableFeed(orders, data="data"), shop) as url:
        cursor = json.loads(get(url, cursor=LAST).text)["cursor"]
        with asking(page_url(url, cursor=cursor, wait=30), 100) as waiting:
            time.sleep(2)
            before = len(pages)
            with shop.begin() as connection:
                place(connection, 1, first=5)
            found = [answer(connection) for connection in waiting]
            assert {body.count(b'"n": 5') for _, _, body in found} == {1}
            assert len(pages) - before < 20
