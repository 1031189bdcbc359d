"""Answers that are held back until there is something to read, over real HTTP."""

import gc
import json
import threading
import time
import traceback
from contextlib import ExitStack

import httpx
import pytest
from harness.readers import (
    AsyncNumbers,
    Numbers,
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
from harness.shop import orders, place
from harness.stalled import answer, ask, asking
from harness.waiting import until
from sqlalchemy import insert
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware

from zeroeventhub import Capacity, TableFeed
from zeroeventhub.errors import Unavailable

FEED = TableFeed(orders, data="data", type="kind")
WAIT = 10
"""Seconds that a reader waits for what is sure to come."""


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_event_that_is_committed_ends_the_wait(engine, kind, watcher, pool):
    """A reader at the head has an event soon after its commit; what is there comes at once."""
    reading = engine_of(kind, fill(engine, 0))
    with mounted(FEED, reading, observer=watcher) as url:
        assert "wait" in httpx.get(url).json()["extensions"]
        waiting = pool.submit(get, url, wait=WAIT)
        watcher.until_waiting(1)
        with engine.connect() as connection:
            place(connection, 1)
            connection.rollback()
        assert not waiting.done()
        write(engine)
        assert numbers(waiting.result()) == [0]
        assert json.loads(waiting.result().text.splitlines()[-1])["caughtUp"]
        assert numbers(get(url, wait=WAIT)) == [0]
        watcher.until_waiting(0)
    assert [one.waited < WAIT / 2 for one in watcher.answers if one.route == "events"] == [True] * 2
    if kind == "sync":
        reading.dispose()


def test_wait_ends_in_time(empty_shop, pool):
    """A reader waits as long as it says and no longer than it may, however busy the feed is."""
    ended = threading.Event()

    def go_on_writing():
        while not ended.wait(0.002):
            write(empty_shop)

    with mounted(FEED, empty_shop, capacity=Capacity(wait_seconds=0.5)) as url:
        writing = pool.submit(go_on_writing)
        try:
            for wait, least, most in (("0.2", 0.2, 4), ("60", 0.5, 5)):
                began = time.monotonic()
                page = get(url, cursor="1-0", wait=wait, **{"event-types": "paid"})
                assert least <= time.monotonic() - began < most
                assert numbers(page) == []
                assert json.loads(page.text)["caughtUp"]
        finally:
            ended.set()
            writing.result()


def test_filtered_wait_goes_on_over_other_events(empty_shop, watcher, pool):
    """A reader of one type is not answered for others, but learns how far it has come."""
    with mounted(FEED, empty_shop, observer=watcher) as url:
        paid = pool.submit(get, url, wait=WAIT, **{"event-types": "paid"})
        lost = pool.submit(get, url, wait="0.6", **{"event-types": "lost"})
        watcher.until_waiting(2)
        for number in range(3):
            write(empty_shop, first=number)
            time.sleep(0.03)
        assert not paid.done()
        with empty_shop.begin() as connection:
            connection.execute(insert(orders), {"kind": "paid", "data": {"n": 3}})
        assert numbers(paid.result()) == [3]
        assert numbers(lost.result()) == []
        assert cursor_of(lost.result()).split("-")[1] == cursor_of(paid.result()).split("-")[1]


def test_each_partition_is_waited_for(empty_shop, watcher, pool):
    """An event ends the wait of its partition, and no other's."""
    feed = TableFeed(orders, data="data", partition="part", partitions=2)
    with mounted(feed, empty_shop, observer=watcher) as url:
        other = pool.submit(get, url, token="2", partition=0, wait=1)
        waiting = pool.submit(get, url, token="2", partition=1, wait=WAIT)
        watcher.until_waiting(2)
        with empty_shop.begin() as connection:
            connection.execute(insert(orders), {"part": 1, "data": {"n": 7}})
        assert numbers(waiting.result()) == [7]
        assert numbers(other.result()) == []


def test_wait_goes_through_middleware(empty_shop, watcher, pool):
    """A middleware of Starlette's own kind between changes nothing."""

    async def pass_on(request, call_next):
        return await call_next(request)

    middleware = [Middleware(BaseHTTPMiddleware, dispatch=pass_on)]
    with mounted(FEED, empty_shop, middleware=middleware, observer=watcher) as url:
        assert numbers(get(url, wait="0.1")) == []
        waiting = pool.submit(get, url, wait=WAIT)
        watcher.until_waiting(1)
        write(empty_shop)
        assert numbers(waiting.result()) == [0]


def test_so_many_may_wait(empty_shop, watcher):
    """One waiter more than there may be is refused, while other reads go on."""
    with mounted(
        FEED, empty_shop, capacity=Capacity(waiters=3), observer=watcher, name="shop"
    ) as url:
        head = head_of(url)
        with asking(page_url(url, cursor=head, wait=30), 3) as waiting:
            watcher.until_waiting(3)
            for _ in range(3):
                refused = get(url, cursor=head, wait=1)
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert get(url, cursor=head).status_code == 200
            write(empty_shop)
            assert {answer(connection)[0] for connection in waiting} == {200}
        watcher.until_waiting(0)
        with asking(page_url(url, cursor=head_of(url), wait=30), 3):
            watcher.until_waiting(3)
            assert get(url, cursor=head_of(url), wait=1).status_code == 503
    assert max(watcher.counts) == 3
    assert min(watcher.counts) == 0


@pytest.mark.parametrize("feed", [Numbers, AsyncNumbers])
def test_waiters_are_told_when_the_feed_fails(feed, watcher):
    """If a feed fails while many wait each is answered, and as many may wait again."""
    feed = feed()
    with mounted(feed, capacity=Capacity(waiters=4), observer=watcher) as url:
        away = Unavailable("The feed is away.", retry_after=7)
        for error, *expected in ((away, 503, "7"), (away, 503, "7"), (ValueError(), 500, None)):
            with asking(page_url(url, wait=30), 4) as waiting:
                watcher.until_waiting(4)
                feed.error = error
                found = [answer(connection)[:2] for connection in waiting]
                watcher.until_waiting(0)
                feed.error = None
            assert [[status, told.get("retry-after")] for status, told in found] == [expected] * 4


def test_failure_is_met_by_those_who_wait_and_by_nobody_later(watcher):
    """Any error of a feed's head ends the waits there are; the next reader waits as ever."""
    feed, failure = Numbers(), ValueError()
    gc.disable()
    try:
        with mounted(feed, observer=watcher) as url:
            with asking(page_url(url, wait=30), 40) as waiting:
                watcher.until_waiting(40)
                feed.error = failure
                assert {answer(connection)[0] for connection in waiting} == {500}
                watcher.until_waiting(0)
            feed.error = None
            with asking(page_url(url, wait=30), 1) as waiting:
                watcher.until_waiting(1)
                feed.count = 1
                assert answer(waiting[0])[0] == 200
    finally:
        gc.enable()
    # One error is raised for all; what it remembers of its way does not grow with them.
    assert len(traceback.extract_tb(failure.__traceback__)) < 60


def test_readers_that_go_wait_no_longer(watcher):
    """A waiter that closes its connection is not counted, and the feed is looked at for nobody."""
    feed = Numbers()
    with mounted(feed, capacity=Capacity(waiters=3), observer=watcher) as url:
        for _ in range(2):
            waiting = [ask(page_url(url, wait=30)) for _ in range(3)]
            watcher.until_waiting(3)
            for left, connection in zip((2, 1, 0), waiting, strict=True):
                connection.close()
                watcher.until_waiting(left)
        looks = feed.looks
        time.sleep(0.1)
        assert feed.looks <= looks + 1  # one may have been under way


@pytest.mark.parametrize("leaving", [[0], [1, 0]], ids=str)
@pytest.mark.parametrize("seconds", [30, 0.4], ids=["closes", "has waited enough"])
def test_who_stays_is_told_whoever_leaves(leaving, seconds, watcher):
    """The readers that stay are answered, whichever of the others close their connections, or have
    waited for long enough.
    """
    feed = Numbers()
    with mounted(feed, observer=watcher) as url, ExitStack() as stack:
        waiting = []
        for number in range(3):
            wait = seconds if number in leaving else 30
            waiting.append(stack.enter_context(ask(page_url(url, wait=wait))))
            until(lambda: max(watcher.counts) > number, "it waits")  # noqa: B023
        for number in leaving:
            if seconds == 30:
                waiting[number].close()
            else:
                assert answer(waiting[number])[2] == b'{"cursor":"0","caughtUp":true}\n'
        watcher.until_waiting(3 - len(leaving))
        feed.count = 1
        stayed = [one for number, one in enumerate(waiting) if number not in leaving]
        assert [answer(one)[2].count(b'"data"') for one in stayed] == [1] * len(stayed)
