"""How the head of a feed is looked at while readers wait, over real HTTP."""

import time
from contextlib import ExitStack

import anyio
import httpx
import pytest
from harness.readers import (
    PATIENCE,
    AsyncNumbers,
    Numbers,
    Watcher,
    engine_of,
    fill,
    get,
    mounted,
    numbers,
    page_url,
    write,
)
from harness.shop import orders, place
from harness.stalled import answer, ask, asking
from harness.waiting import until
from harness.web import serving
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from zeroeventhub import Capacity, TableFeed, feed_routes


class Looked(AsyncNumbers):
    """A feed whose head takes its time; it counts how many look now, and have at once."""

    def __init__(self, seconds=0.0):
        super().__init__()
        self.seconds = seconds
        self.looking = self.most_looking = 0

    async def head(self):
        self.looks += 1
        self.looking += 1
        self.most_looking = max(self.most_looking, self.looking)
        try:
            await anyio.sleep(self.seconds)
        finally:
            self.looking -= 1
        return self.count


def test_one_looks_for_all_who_wait(watcher):
    """However many wait one looks at a time, all are woken, and nobody looks for nobody."""
    feed = Looked(0.002)
    with mounted(feed, observer=watcher) as url:
        time.sleep(0.05)
        assert feed.looks == 0
        with asking(page_url(url, wait=30), 30) as waiting:
            watcher.until_waiting(30)
            until(lambda: feed.looks > 3, "the head is looked at")
            feed.count = 1
            assert [answer(one)[2].count(b'"data"') for one in waiting] == [1] * 30
        looks = feed.looks
        time.sleep(0.05)
        assert feed.looks <= looks + 1  # one may have been under way
    assert feed.most_looking == 1


def looks_in(seconds, feeds, **capacity):
    """Return how often the heads of feeds are looked at together, while each is waited for."""
    routes, watchers = [], [Watcher() for _ in feeds]
    for number, feed in enumerate(feeds):
        options = {"observer": watchers[number], "capacity": Capacity(**capacity)}
        routes += feed_routes(f"/{number}", feed, name=f"feed{number}", **options)
    with serving(Starlette(routes=routes)) as url, ExitStack() as stack:
        for number, watcher in enumerate(watchers):
            stack.enter_context(ask(page_url(f"{url}/{number}", wait=30)))
            watcher.until_waiting(1)
        before = sum(feed.looks for feed in feeds)
        time.sleep(seconds)
        return sum(feed.looks for feed in feeds) - before


@pytest.mark.parametrize(
    ("seconds", "feeds", "takes", "look_seconds", "most"),
    [
        (0.5, 1, 0.005, 0.05, 12),
        (0.5, 1, 0.005, 0.001, 30),
        (0.5, 20, 0.005, 0.001, 60),
        (1.5, 1, 0.0, 0.002, 400),
    ],
)
def test_looks_are_as_many_as_the_capacity_says(seconds, feeds, takes, look_seconds, most):
    """A feed is looked at again and again; however slow looks are, and of how many feeds, all
    have a share of the time, and one that has been silent for long is looked at less.
    """
    looked = looks_in(seconds, [Looked(takes) for _ in range(feeds)], look_seconds=look_seconds)
    assert 2 <= looked <= most


def test_look_that_had_to_wait_does_not_put_off_the_next(watcher):
    """After one slow look, as of a database that was busy, the next one comes soon."""
    feed = Looked(0.7)
    with mounted(feed, observer=watcher) as url, ask(page_url(url, wait=30)) as waiting:
        until(lambda: feed.looking, "the head is looked at")
        feed.seconds = 0
        until(lambda: feed.looks > 1, "it is looked at again", 2)
        feed.count = 1
        assert answer(waiting)[2].count(b'"data"') == 1


def test_look_is_not_cut_short(watcher):
    """A look goes on to its end though its reader leaves: a query cut short costs a connection."""
    ended = []

    class Whole(Looked):
        async def head(self):
            found = await super().head()
            ended.append(found)
            return found

    feed = Whole(0.3)
    with mounted(feed, observer=watcher) as url:
        with ask(page_url(url, wait=30)):
            until(lambda: feed.looking, "the head is looked at")
        watcher.until_waiting(0)
        until(lambda: not feed.looking, "the look ends")
    assert len(ended) == feed.looks


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_commit_through_the_engine_of_the_feed_is_heard_of(any_engine, kind, watcher, pool):
    """What the host commits through the feed's engine need not wait for the next look."""
    reading = engine_of(kind, fill(any_engine, 0))

    def order_now(_):
        write(reading)
        return PlainTextResponse("written")

    async def order_then(_):
        async with reading.begin() as connection:
            await connection.run_sync(place, 1)
        return PlainTextResponse("written")

    beside = [Route("/order", order_now if kind == "sync" else order_then)]
    options = {"observer": watcher, "capacity": Capacity(look_seconds=60), "beside": beside}
    with mounted(TableFeed(orders, data="data"), reading, **options) as url:
        assert numbers(get(url)) == []
        # The first look knows the head; the next would come a minute later.
        for count in (1, 2):
            waiting = pool.submit(get, url, cursor=f"1-{count - 1}", wait=15)
            watcher.until_waiting(1)
            time.sleep(0.05)
            address = url.removesuffix("/orders") + "/order"
            assert httpx.get(address, timeout=PATIENCE).text == "written"
            assert len(numbers(waiting.result())) == 1
            watcher.until_waiting(0)
    if kind == "sync":
        reading.dispose()


class Telling(Numbers):
    """A feed that tells of commits."""

    def on_commit(self, told):
        """Remember whom to tell."""
        self.tell = told


def test_commit_is_looked_for_until_it_is_there(watcher):
    """A commit is told of while it is still under way: it is looked for a moment longer."""
    feed = Telling()
    capacity = Capacity(look_seconds=60)
    with mounted(feed, capacity=capacity, observer=watcher) as url:
        feed.tell()  # a commit that is told of to nobody
        with ask(page_url(url, wait=30)) as waiting:
            watcher.until_waiting(1)
            ending = time.monotonic() + 10
            while time.monotonic() < ending and watcher.counts[-1] != 0:
                feed.tell()
                time.sleep(0.002)
                feed.count = 1
                time.sleep(0.15)
            assert answer(waiting)[2].count(b'"data"') == 1


def test_commits_without_news_are_heard_of_seldom(watcher):
    """However much is committed elsewhere, the head is not looked at all the time."""
    feed = Telling()
    options = {"capacity": Capacity(look_seconds=60), "observer": watcher}
    with mounted(feed, **options) as url, ask(page_url(url, wait=30)):
        watcher.until_waiting(1)
        before, ending = feed.looks, time.monotonic() + 0.6
        while time.monotonic() < ending:
            feed.tell()
            time.sleep(0.001)
        assert 1 <= feed.looks - before <= 40
