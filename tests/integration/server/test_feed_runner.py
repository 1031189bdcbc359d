"""Calls of a feed: what they take of its database, and pages that are read for several requests."""

import threading
import time
from contextlib import ExitStack

import anyio
import httpx
from a2wsgi import ASGIMiddleware
from harness.readers import (
    ONE,
    PATIENCE,
    READER,
    Known,
    get,
    mounted,
    numbers,
    of_name,
    page_url,
    routes,
)
from harness.shop import orders
from harness.stalled import answer, ask
from harness.waiting import until
from sqlalchemy import create_engine, event
from starlette.applications import Starlette

from zeroeventhub import FIRST, LAST, Capacity, FeedInfo, Page, Partition, TableFeed
from zeroeventhub.errors import Unavailable

FEED = TableFeed(orders, data="data")
SHOP = "http://shop/orders"


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


def test_discovery_does_not_queue(shop, pool):
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
            assert httpx.get(url, timeout=PATIENCE / 2).status_code == 200
            assert not page.done()
        finally:
            proceed.set()
        assert page.result().status_code == 200


class Stepped(Known):
    """A feed whose reads end one by one."""

    def __init__(self):
        super().__init__(1)
        self.proceed = threading.Semaphore(0)

    def read(self, partition, cursor, limit):
        with self._asked(cursor):
            count = self.count
            assert self.proceed.acquire(timeout=PATIENCE)
            return self._page(cursor, limit, count)


def test_one_read_answers_equal_requests_that_queue(pool):
    """One read answers all equal requests that came before it began, and no later one."""
    feed, come = Stepped(), []

    async def authorize(request):
        come.append(request)
        return READER

    with mounted(feed, capacity=ONE, authorize=authorize) as url:
        first = pool.submit(get, url)
        until(lambda: feed.inside == 1, "the first page is being read")
        feed.count = 2
        sent = [pool.submit(get, url) for _ in range(7)]
        until(lambda: len(come) == 8, "all have come")
        time.sleep(0.1)  # for those that could enter together with the first
        assert feed.reads == [FIRST]
        feed.proceed.release()
        until(lambda: len(feed.reads) == 2, "the shared read has begun")
        feed.count = 3
        late = pool.submit(get, url)
        time.sleep(0.1)  # for it to join the shared read by mistake
        feed.proceed.release(9)
        assert numbers(first.result()) == [0]
        assert [numbers(one.result()) for one in sent] == [[0, 1]] * 7
        assert numbers(late.result()) == [0, 1, 2]
    assert 3 <= len(feed.reads) <= 5


def test_failure_of_a_shared_read_is_met_by_all_who_asked(pool):
    """When a shared read fails, all its requests fail, and the next request reads again."""
    feed = Known(1)
    with mounted(feed, capacity=ONE) as url:
        with feed.held():
            asked = [pool.submit(get, url) for _ in range(8)]
            until(lambda: feed.inside == 1, "the page is being read")
            feed.error = Unavailable("The feed is away.")
        assert [one.result().status_code for one in asked] == [503] * 8
        feed.error = None
        assert numbers(get(url)) == [0]


def test_request_that_was_refused_in_the_queue_queues_again(pool):
    """A request whose patience ended in the queue queues when it comes again."""
    feed = Known(1)
    with mounted(feed, capacity=Capacity(connections=1, patience=0.5)) as url:
        with feed.held():
            first = pool.submit(get, url)
            until(lambda: feed.inside == 1, "the only connection is in use")
            assert get(url).status_code == 503
            again = pool.submit(get, url)
            time.sleep(0.1)  # for it to be refused by mistake
        assert first.result().status_code == again.result().status_code == 200


def test_answers_of_several_pages_are_read_for_a_few_at_once(pool):
    """Pages are held until an answer is whole only for as many as there are connections."""

    class Halves:
        held = most = 0
        two = anyio.Event()

        async def info(self):
            return FeedInfo((Partition(0), Partition(1)), "1")

        async def read(self, partition, cursor, limit):
            self.held += 1 if partition == 0 else -1
            self.most = max(self.most, self.held)
            if self.most == 2:
                self.two.set()
            with anyio.move_on_after(PATIENCE):
                await self.two.wait()
            await anyio.sleep(0.01)
            return Page([], "1", caught_up=True)

    feed, v1 = Halves(), {"n": 2, "cursor0": FIRST, "cursor1": FIRST}
    capacity = Capacity(connections=2, patience=PATIENCE)
    with mounted(feed, capacity=capacity) as url:
        asked = [pool.submit(httpx.get, url, params=v1, timeout=PATIENCE) for _ in range(16)]
        assert {one.result().status_code for one in asked} == {200}
    assert feed.most == 2


def test_reader_does_not_stand_in_the_line_of_another_with_the_same_question(pool):
    """A reader has its turn among the readers, though another has asked the same before."""
    feed, asking, come = Known(1), [], []

    async def authorize(request):
        come.append(request)
        return await of_name(request)

    with mounted(feed, capacity=ONE, authorize=authorize) as url:
        with feed.held():
            for size in (1, 2, 3, 4, 4):
                name = "greedy" if len(asking) < 4 else "modest"
                asking.append(pool.submit(get, url, pagesizehint=size, name=name))
                until(lambda: len(come) == len(asking), "it stands in line before the next")
        for one in asking:
            assert one.result().status_code == 200
    assert feed.limits == [1, 2, 4, 3, 4]


def test_event_that_comes_while_a_page_is_read_ends_the_wait_of_its_reader(watcher):
    """A reader whose page was read just before an event does not wait for the one after it."""
    feed = Known()
    with mounted(feed, observer=watcher) as url, ExitStack() as stack:
        first = stack.enter_context(ask(page_url(url, wait=10, pagesizehint=1)))
        watcher.until_waiting(1)
        with feed.held():
            second = stack.enter_context(ask(page_url(url, wait=10, pagesizehint=2)))
            until(lambda: feed.inside == 1, "the page of the second reader is being read")
            feed.count = 1
            until(lambda: feed.inside == 2, "the first reader is woken")
        assert [answer(one)[2].count(b'"data"') for one in (first, second)] == [1, 1]


def test_feed_does_not_wait_below_a_server_of_wsgi(shop):
    """Behind a2wsgi a feed has no extension to wait: who asks for it is answered at once."""
    transport = httpx.WSGITransport(ASGIMiddleware(Starlette(routes=routes(shop))))
    with httpx.Client(transport=transport) as http:
        assert "stop" in (extensions := http.get(SHOP).json()["extensions"])
        assert "wait" not in extensions
        place, began = {"token": "1", "partition": 0, "cursor": LAST}, time.monotonic()
        head = http.get(f"{SHOP}/events", params=place).json()["cursor"]
        page = http.get(f"{SHOP}/events", params={**place, "cursor": head, "wait": 30})
        assert page.json() == {"cursor": head, "caughtUp": True}
        last = http.get(f"{SHOP}/http-feed").json()[-1]["id"]
        later = http.get(f"{SHOP}/http-feed", params={"lastEventId": last, "timeout": 30_000})
        assert (later.status_code, later.json()) == (200, [])
        assert http.get(f"{SHOP}/server-sent-events").status_code == 404
    assert time.monotonic() - began < 30
