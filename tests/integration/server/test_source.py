"""What a feed takes of the host's database and process, over real HTTP."""

import json
import threading

import anyio.lowlevel
import httpx
import pytest
from harness.readers import (
    PATIENCE,
    cursor_of,
    engine_of,
    fill,
    get,
    head_of,
    mounted,
    numbers,
    page_url,
    write,
)
from harness.shop import orders
from harness.stalled import answer, asking
from sqlalchemy import create_engine, event, text
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from zeroeventhub import FIRST, Capacity, FeedInfo, Page, Partition, TableFeed

FEED = TableFeed(orders, data="data")


def test_page_has_so_many_events(sqlite):
    """A page has at most a thousand events, or as many events or bytes as the capacity says, and at
    least one event, whatever is asked.
    """
    fill(sqlite, 1001)
    with mounted(FEED, sqlite) as url:
        assert len(numbers(get(url))) == 1000
    with mounted(FEED, sqlite, capacity=Capacity(page_bytes=1)) as url:
        page = get(url)
        assert (numbers(page), numbers(get(url, cursor=cursor_of(page)))) == ([0], [1])
    with mounted(FEED, sqlite, capacity=Capacity(page_events=2)) as url:
        for asked in ({}, {"pagesizehint": 4}, {"pagesizehint": "9" * 50}):
            assert numbers(get(url, **asked)) == [0, 1]
        assert numbers(get(url, pagesizehint=0)) == [0]
        v1 = httpx.get(url, params={"n": 1, "cursor0": FIRST, "pagesizehint": 5})
        assert v1.text.count('"data"') == 2


def test_discovery_does_not_stand_in_line(shop, pool):
    """What a feed knows of itself it says at once, however busy its database is."""
    is_busy, held, proceed = threading.Event(), threading.Event(), threading.Event()

    @event.listens_for(shop, "before_cursor_execute")
    def hold(connection, cursor, statement, *_):
        if is_busy.is_set() and "orders" in statement:
            held.set()
            proceed.wait(PATIENCE)

    with mounted(FEED, shop, capacity=Capacity(connections=1)) as url:
        assert get(url).status_code == 200
        is_busy.set()
        page = pool.submit(get, url)
        try:
            assert held.wait(PATIENCE)
            assert httpx.get(url, timeout=2).status_code == 200
            assert not page.done()
        finally:
            proceed.set()
        assert page.result().status_code == 200


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_waiters_hold_no_connection(kind, any_engine, watcher):
    """Fifty waiters leave the only connection to the host, and share what comes."""
    fill(any_engine, 0)
    one = {"pool_size": 1, "max_overflow": 0, "pool_timeout": PATIENCE}
    reading = engine_of(kind, any_engine, **one)

    def health_now(_):
        with reading.connect() as connection:
            return PlainTextResponse(str(connection.scalar(text("SELECT 1"))))

    async def health_then(_):
        async with reading.connect() as connection:
            return PlainTextResponse(str(await connection.scalar(text("SELECT 1"))))

    beside = [Route("/health", health_now if kind == "sync" else health_then)]
    options = {"capacity": Capacity(patience=PATIENCE), "observer": watcher}
    with mounted(FEED, reading, beside=beside, **options) as url:
        cursor = head_of(url)
        with asking(page_url(url, cursor=cursor, wait=30), 50) as waiting:
            watcher.until_waiting(50)
            for _ in range(3):
                address = url.removesuffix("/orders") + "/health"
                assert httpx.get(address, timeout=PATIENCE).text == "1"
            write(any_engine)
            found = [answer(connection) for connection in waiting]
    assert {(status, body.count(b'"data"')) for status, _, body in found} == {(200, 1)}
    if kind == "sync":
        reading.dispose()


def test_host_that_uses_up_its_pool_is_met_with_a_503(shop):
    """A feed that gets no connection is unavailable when the pool's own patience is over."""
    reading = create_engine(shop.url, pool_size=1, max_overflow=0, pool_timeout=0.2)
    with mounted(FEED, reading) as url:
        assert get(url).status_code == 200
        with reading.connect():
            refused = get(url)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert get(url).status_code == 200
    reading.dispose()


def test_answers_of_several_pages_are_read_for_a_few_at_once(pool):
    """Pages are held until an answer is whole only for as many as there are connections."""

    class Halves:
        held = most = 0

        async def info(self):
            return FeedInfo((Partition(0), Partition(1)), "1")

        async def read(self, partition, cursor, limit):
            await anyio.sleep(0.01)
            self.held += 1 if partition == 0 else -1
            self.most = max(self.most, self.held)
            return Page([], "1", caught_up=True)

    feed, v1 = Halves(), {"n": 2, "cursor0": FIRST, "cursor1": FIRST}
    capacity = Capacity(connections=2, patience=PATIENCE)
    with mounted(feed, capacity=capacity) as url:
        asked = [pool.submit(httpx.get, url, params=v1, timeout=PATIENCE) for _ in range(16)]
        assert {one.result().status_code for one in asked} == {200}
    assert feed.most == 2


def test_methods_that_only_return_awaitables_are_awaited():
    """A feed is asynchronous by what its methods return, however they are declared."""

    async def later(found):
        await anyio.lowlevel.checkpoint()
        return found

    class Decorated:
        def info(self):
            return later(FeedInfo.of(1))

        def read(self, partition, cursor, limit):
            return later(Page([], "1", caught_up=True))

    with mounted(Decorated()) as url:
        assert json.loads(get(url).text) == {"cursor": "1", "caughtUp": True}
