"""Answers that are held back until there is something to read, over real HTTP."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager

import httpx
import pytest
from harness.shop import metadata, orders, place
from harness.web import serving
from sqlalchemy import create_engine, event, insert, select
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from zeroeventhub import FIRST, TableFeed, feed_routes
from zeroeventhub.capacity import Capacity
from zeroeventhub.errors import Unavailable
from zeroeventhub.protocol import WAIT, FeedInfo, Page, Partition
from zeroeventhub.server import news

PATIENCE = 60
SOON = 2.0
"""Seconds in which a change is heard of, with much to spare: it is looked for every few ms."""


@pytest.fixture(params=["sync", "async"])
def feed_url(request, engine, async_url):
    """The URL of a feed over an empty table of orders, without partitions."""
    metadata.create_all(engine)
    reading = create_async_engine(async_url) if request.param == "async" else engine

    @asynccontextmanager
    async def lifespan(_):
        yield
        if reading is not engine:
            await reading.dispose()

    routes = feed_routes("/orders", TableFeed(orders, data="data", type="kind"), reading)
    with serving(Starlette(routes=routes, lifespan=lifespan)) as url:
        yield f"{url}/orders"


@pytest.fixture
def sync_url(engine):
    """The same, only with a sync engine."""
    metadata.create_all(engine)
    with mounted(TableFeed(orders, data="data", type="kind"), engine) as url:
        yield url


@pytest.fixture
def shop(sqlite):
    """An engine of a database with an empty table of orders."""
    metadata.create_all(sqlite)
    return sqlite


@pytest.fixture
def pool():
    """Threads to wait in."""
    with ThreadPoolExecutor(60) as threads:
        yield threads


@contextmanager
def mounted(feed, engine=None, capacity=None, **application):
    """Serve a feed; yield its URL."""
    routes = feed_routes("/orders", feed, engine, capacity=capacity or Capacity())
    with serving(Starlette(routes=routes, **application)) as url:
        yield f"{url}/orders"


def get(url, *, method="GET", **parameters):
    """Ask for a page of FeedAPI v2; return the answer and how many seconds it took."""
    parameters = {"token": "1", "partition": 0, "cursor": FIRST, **parameters}
    began = time.monotonic()
    answer = httpx.request(
        method, f"{url}/events", params=parameters, timeout=PATIENCE, verify=False
    )
    return answer, time.monotonic() - began


def page(answer):
    """Return the numbers of a page's events and its checkpoint."""
    assert answer.status_code == 200, answer.text
    *events, checkpoint = map(json.loads, answer.text.splitlines())
    return [event["data"]["n"] for event in events], checkpoint


def write(engine, count=1, **options):
    """Append events in a transaction of their own."""
    with engine.begin() as connection:
        place(connection, count, **options)


def eventually(condition):
    """Wait until something is so."""
    ending = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ending
        time.sleep(0.01)


class Statements:
    """Count what is asked of an engine."""

    def __init__(self, engine):
        self.count = 0
        event.listen(engine, "before_cursor_execute", self._note)

    def _note(self, *_):
        self.count += 1

    def in_a_while(self, seconds=0.6):
        """Return how many statements there are in some time."""
        before = self.count
        time.sleep(seconds)
        return self.count - before


def test_event_that_is_committed_ends_the_wait(feed_url, engine, pool):
    """Who waits at the head has an event soon after its commit; what is there comes at once."""
    assert "wait" in httpx.get(feed_url).json()["extensions"]
    waiting = pool.submit(get, feed_url, wait=20)
    time.sleep(0.3)
    assert not waiting.done()
    write(engine)
    committed = time.monotonic()
    answer, _ = waiting.result()
    assert time.monotonic() - committed < SOON
    numbers, checkpoint = page(answer)
    assert (numbers, checkpoint["caughtUp"]) == ([0], True)
    _, seconds = get(feed_url, wait=20)
    assert seconds < SOON
    answer, seconds = get(feed_url, cursor=checkpoint["cursor"], wait="0.2")
    assert page(answer) == ([], checkpoint)
    assert 0.2 <= seconds < SOON


def test_commit_through_the_engine_of_the_feed_is_heard_of(engine, pool, monkeypatch):
    """What this process commits through the feed's engine need not wait for the next look."""
    monkeypatch.setattr(news, "DEAF", 0)
    metadata.create_all(engine)
    feed, capacity = TableFeed(orders, data="data"), Capacity(look_seconds=2 * PATIENCE)
    with mounted(feed, engine, capacity) as url:
        get(url)
        waiting = pool.submit(get, url, wait=PATIENCE)
        time.sleep(0.3)
        with engine.begin() as connection:
            place(connection, 1)
        answer, seconds = waiting.result()
    assert page(answer)[0] == [0]
    # A server that commits slowly is found by the last of the looks.
    assert seconds < PATIENCE


@pytest.mark.anyio
async def test_commit_through_an_async_engine_is_heard_of(async_engine):
    """A feed of an async engine tells of what is committed through it, and of nothing else."""
    heard = []
    async with async_engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    feed = TableFeed(orders, data="data").bind(async_engine)
    feed.on_commit(lambda: heard.append(True))
    await feed.read(0, FIRST, 10)
    await feed.head()
    assert not heard
    async with async_engine.begin() as connection:
        await connection.run_sync(place, 1)
    assert heard == [True]


def test_event_that_is_rolled_back_does_not(sync_url, engine, pool):
    """Nothing is heard of a transaction that is open, or was rolled back."""
    get(sync_url)
    with engine.connect() as connection:
        place(connection, 1)
        waiting = pool.submit(get, sync_url, wait="0.6")
        time.sleep(0.2)
        connection.rollback()
    assert page(waiting.result()[0])[0] == []


def test_filtered_wait_goes_on_over_other_events(sync_url, engine, pool):
    """Who waits for a type is not answered for others, but is told how far it has come."""
    get(sync_url)  # so that it knows how far it may be read
    waiting = pool.submit(get, sync_url, wait=20, **{"event-types": "paid"})
    patient = pool.submit(get, sync_url, wait="0.9", **{"event-types": "lost"})
    for number in range(4):
        write(engine, first=number)
        time.sleep(0.05)
    assert not waiting.done()
    with engine.begin() as connection:
        connection.execute(insert(orders), {"kind": "paid", "data": {"n": 4}})
    numbers, checkpoint = page(waiting.result()[0])
    assert (numbers, checkpoint["caughtUp"]) == ([4], True)
    numbers, moved = page(patient.result()[0])
    assert (numbers, moved["caughtUp"]) == ([], True)
    assert moved["cursor"].split("-")[1] == checkpoint["cursor"].split("-")[1]


def test_wait_ends_in_time_in_a_busy_feed(shop, pool):
    """However often others are written, a wait for one type is over when it is over."""
    ended = threading.Event()

    def go_on_writing():
        while not ended.wait(0.002):
            write(shop)

    with mounted(TableFeed(orders, data="data", type="kind"), shop) as url:
        writing = pool.submit(go_on_writing)
        try:
            answer, seconds = get(url, wait=1, **{"event-types": "paid"})
        finally:
            ended.set()
            writing.result()
    numbers, _ = page(answer)
    assert numbers == []
    assert 0.9 < seconds < 1 + SOON


def test_head_request_does_not_wait(shop):
    """A HEAD request is answered at once."""
    with mounted(TableFeed(orders, data="data"), shop) as url:
        answer, seconds = get(url, method="HEAD", wait=20)
    assert (answer.status_code, seconds < SOON) == (200, True)


def test_wait_that_is_no_number_is_refused(shop):
    """Seconds are written in digits, with one dot at most."""
    with mounted(TableFeed(orders, data="data"), shop) as url:
        for wait in ["", "-1", "1e1", "inf", "nan", ".5", "5.", "1,5", "\u0661", " 1", ["1", "1"]]:
            assert get(url, wait=wait)[0].status_code == 400, wait


def test_waiting_holds_no_connection(sqlite_url, pool):
    """Who waits keeps nobody from the database, even where there is one connection for all."""
    engine = create_engine(sqlite_url, pool_size=1, max_overflow=0, connect_args={"timeout": 60})
    metadata.create_all(engine)

    def count(_):
        with engine.connect() as connection:
            return PlainTextResponse(str(len(connection.execute(select(orders.c.id)).all())))

    routes = [*feed_routes("/orders", TableFeed(orders, data="data"), engine), Route("/own", count)]
    with serving(Starlette(routes=routes)) as url:
        waiting = [pool.submit(get, f"{url}/orders", wait=20) for _ in range(20)]
        time.sleep(0.5)
        for _ in range(10):
            assert httpx.get(f"{url}/own").text == "0"
        held = []
        for _ in range(50):
            held.append(engine.pool.checkedout())
            time.sleep(0.005)
        assert held.count(0) > len(held) / 2
        assert not any(one.done() for one in waiting)
        write(engine)
        assert [page(one.result()[0])[0] for one in waiting] == [[0]] * 20
    engine.dispose()


def test_one_looks_for_all_who_wait(shop, pool):
    """Fifty who wait cost the database what one does; nobody costs it nothing."""
    statements = Statements(shop)
    with mounted(TableFeed(orders, data="data"), shop) as url:
        one = pool.submit(get, url, wait=20)
        time.sleep(0.3)
        alone = statements.in_a_while()
        assert alone > 0
        many = [pool.submit(get, url, wait=20) for _ in range(50)]
        time.sleep(1)
        assert statements.in_a_while() < 1.5 * alone
        assert not any(waiting.done() for waiting in (one, *many))
        write(shop)
        assert {tuple(page(waiting.result()[0])[0]) for waiting in (one, *many)} == {(0,)}
        time.sleep(0.1)
        assert statements.in_a_while() == 0


def test_client_that_goes_stops_waiting(shop):
    """For a client that has closed its connection nobody looks any longer."""
    statements = Statements(shop)
    with mounted(TableFeed(orders, data="data"), shop) as url:
        address = httpx.URL(url)
        get(url)
        target = "/orders/events?token=1&partition=0&cursor=_first&wait=30"
        with socket.create_connection((address.host, address.port)) as connection:
            connection.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            eventually(lambda: statements.in_a_while(0.2) > 0)
        began = time.monotonic()
        eventually(lambda: statements.in_a_while(0.2) == 0)
        assert time.monotonic() - began < 5


def test_next_one_looks_when_the_first_has_waited_enough(shop, pool):
    """Whoever leaves hands over to the others."""
    with mounted(TableFeed(orders, data="data"), shop) as url:
        waiting = []
        for seconds in ("0.5", "0.8", "20"):
            waiting.append(pool.submit(get, url, wait=seconds))
            time.sleep(0.1)
        assert [page(one.result()[0])[0] for one in waiting[:2]] == [[], []]
        write(shop)
        answer, seconds = waiting[2].result()
        assert page(answer)[0] == [0]
        assert seconds < 10


def test_database_that_goes_away_is_told_to_all(tmp_path, pool):
    """If the database goes while many wait, each is answered, and told to come back."""
    folder = tmp_path / "there"
    folder.mkdir()
    engine = create_engine(f"sqlite:///{folder / 'test.db'}")
    metadata.create_all(engine)
    with mounted(TableFeed(orders, data="data"), engine) as url:
        waiting = [pool.submit(get, url, wait=20) for _ in range(10)]
        time.sleep(0.5)
        folder.rename(tmp_path / "away")
        engine.dispose()
        for answer, seconds in (one.result() for one in waiting):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert seconds < 10
    engine.dispose()


def test_each_partition_is_waited_for(shop, pool):
    """An event ends the wait of its partition, and no other's."""
    with mounted(TableFeed(orders, data="data", partition="part", partitions=3), shop) as url:
        waiting = [
            pool.submit(get, url, token="3", partition=partition, wait=20 if partition == 1 else 1)
            for partition in range(3)
        ]
        time.sleep(0.3)
        with shop.begin() as connection:
            connection.execute(insert(orders), {"part": 1, "data": {"n": 7}})
        answer, seconds = waiting[1].result()
        assert page(answer)[0] == [7]
        assert seconds < 0.3 + SOON
        assert [page(waiting[number].result()[0])[0] for number in (0, 2)] == [[], []]


def test_wait_goes_through_middleware(shop, pool):
    """A middleware of Starlette's own kind between changes nothing."""

    async def pass_on(request, call_next):
        return await call_next(request)

    middleware = [Middleware(BaseHTTPMiddleware, dispatch=pass_on)]
    with mounted(TableFeed(orders, data="data"), shop, middleware=middleware) as url:
        assert page(get(url, wait="0.3")[0])[0] == []
        waiting = pool.submit(get, url, wait=20)
        time.sleep(0.2)
        write(shop)
        answer, seconds = waiting.result()
        assert (page(answer)[0], seconds < 0.2 + SOON) == ([0], True)


class Own:
    """A feed that is not a table's, without any extension."""

    extensions = frozenset()

    def __init__(self):
        self.cursor = "nothing"
        self.is_down = False

    def info(self):
        return FeedInfo((Partition(0),), "1", extensions=self.extensions)

    def read(self, partition, cursor, limit):
        if self.is_down:
            raise Unavailable("The feed is away.", retry_after=7)
        return Page([], self.cursor, caught_up=cursor == self.cursor)


class OwnWithWait(Own):
    """A feed of one's own that can be waited for."""

    extensions = frozenset({WAIT})

    def head(self):
        return self.cursor


class AsyncOwnWithWait(OwnWithWait):
    """The same, asynchronous."""

    async def info(self):
        return super().info()

    async def read(self, partition, cursor, limit):
        return super().read(partition, cursor, limit)

    async def head(self):
        if self.is_down:
            raise Unavailable("The feed is away.", retry_after=7)
        return self.cursor


def test_feed_of_ones_own_need_not_wait():
    """A feed that is not waited for answers at once, and takes no notice of other parameters."""
    with mounted(Own()) as url:
        assert "extensions" not in httpx.get(url).json()
        place = {"cursor": "nothing", "stop": "x", "event-types": "a"}
        answer, seconds = get(url, wait=20, **place)
        assert (page(answer)[1]["cursor"], seconds < SOON) == ("nothing", True)
        for name in ("cursor", "lag", "splits", "cursor-of-count"):
            query = {"token": "1", "partition": 0, "time": "2026-01-01T00:00:00Z", "count": 1}
            assert httpx.get(f"{url}/{name}", params=query).status_code == 404


@pytest.mark.parametrize("kind", [OwnWithWait, AsyncOwnWithWait])
def test_feed_of_ones_own_can_be_waited_for(kind, pool):
    """A feed that has head() and names the extension is waited for."""
    feed = kind()
    with mounted(feed) as url:
        waiting = pool.submit(get, url, cursor="nothing", wait=1)
        time.sleep(0.3)
        feed.cursor = "something"
        assert page(waiting.result()[0])[1]["cursor"] == "something"
        waiting = pool.submit(get, url, cursor="something", wait=20)
        time.sleep(0.3)
        feed.is_down, feed.cursor = True, "another"
        answer, _ = waiting.result()
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "7")
