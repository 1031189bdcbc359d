"""Answers that are held back until there is something to read, over real HTTP."""

import gc
import json
import time
import traceback
from concurrent.futures import wait
from contextlib import ExitStack, nullcontext

import anyio
import httpx
import pytest
from harness.readers import (
    PATIENCE,
    AsyncNumbers,
    Numbers,
    cursor_of,
    engine_of,
    get,
    head_of,
    mounted,
    numbers,
    of_name,
    page_url,
)
from harness.shop import fill, orders, place, write
from harness.stalled import answer, ask, asking
from harness.statements import add
from harness.waiting import meanwhile, until
from sqlalchemy import event, text
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from zeroeventhub import Capacity, TableFeed
from zeroeventhub.errors import Unavailable

FEED = TableFeed(orders, data="data", type="kind")
WAIT = 10  # seconds that a reader waits for what is sure to come


def events_of(connection):
    """How many events the answer on a bare connection has."""
    return answer(connection)[2].count(b'"data"')


def test_event_that_is_committed_ends_the_wait(engine, watcher, pool):
    """A reader at the head has an event soon after its commit; what is there comes at once."""
    with mounted(FEED, fill(engine, 0), observer=watcher) as url:
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


def test_wait_ends_in_time(empty_shop):
    """A reader waits as long as it says and no longer than it may, however busy the feed is."""
    with (
        mounted(FEED, empty_shop, capacity=Capacity(wait_seconds=0.5)) as url,
        meanwhile(lambda: write(empty_shop), pause=0.002),
    ):
        for wait, least in (("0.2", 0.2), ("60", 0.5)):
            began = time.monotonic()
            page = get(url, cursor="1-0", wait=wait, **{"event-types": "paid"})
            assert least <= time.monotonic() - began < PATIENCE
            assert numbers(page) == []
            assert json.loads(page.text)["caughtUp"]


@pytest.mark.slow
def test_wait_is_for_events_of_the_types_and_the_partition_that_are_asked_for(
    empty_shop, watcher, pool
):
    """Events of other types or partitions end no wait, but a reader learns how far it has come."""
    feed = TableFeed(orders, data="data", type="kind", partition="part", partitions=2)
    with mounted(feed, empty_shop, observer=watcher) as url:
        asked = {"token": "2", "partition": 1}
        paid = pool.submit(get, url, **asked, wait=WAIT, **{"event-types": "paid"})
        lost = pool.submit(get, url, **asked, wait=1, **{"event-types": "lost"})
        other = pool.submit(get, url, token="2", partition=0, wait=1)
        watcher.until_waiting(3)
        for kind in ("placed", "sent", "paid"):
            assert not paid.done()
            add(empty_shop, orders, {"part": 1, "kind": kind, "data": {"n": kind}})
        assert numbers(paid.result()) == ["paid"]
        assert numbers(lost.result()) == numbers(other.result()) == []
        assert cursor_of(lost.result()).split("-")[1] == cursor_of(paid.result()).split("-")[1]


def test_read_does_not_wait_at_its_stop(shop):
    """A read that has reached its stop is answered at once, however long it would wait."""
    with mounted(FEED, shop) as url:
        last = head_of(url)
        began = time.monotonic()
        answer = get(url, cursor=last, stop=last, wait=15)
        assert json.loads(answer.text)["stopReached"]
        assert time.monotonic() - began < 10


# Many who wait.


def test_so_many_may_wait(empty_shop, watcher):
    """One waiter more than there may be is refused, while other reads go on."""
    capacity = Capacity(waiters=3)
    with mounted(FEED, empty_shop, capacity=capacity, observer=watcher) as url:
        head = head_of(url)
        with asking(page_url(url, cursor=head, wait=30), 3) as waiting:
            watcher.until_waiting(3)
            refused = get(url, cursor=head, wait=1)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert get(url, cursor=head).status_code == 200
            write(empty_shop)
            assert {answer(connection)[0] for connection in waiting} == {200}
        watcher.until_waiting(0)
        with asking(page_url(url, cursor=head_of(url), wait=30), 3):
            watcher.until_waiting(3)
            assert get(url, cursor=head_of(url), wait=1).status_code == 503
    assert (max(watcher.counts), min(watcher.counts)) == (3, 0)


def of_host(path, kind, engine, act):
    """A route of the host that acts in a transaction of the feed's engine, sync or async."""

    def now(_):
        with engine.begin() as connection:
            return PlainTextResponse(act(connection))

    async def then(_):
        async with engine.begin() as connection:
            return PlainTextResponse(await connection.run_sync(act))

    return Route(path, now if kind == "sync" else then)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_waiters_hold_no_connection(kind, any_engine, watcher):
    """Fifty waiters leave the only connection to the host, and share what comes."""
    fill(any_engine, 0)
    one = {"pool_size": 1, "max_overflow": 0, "pool_timeout": PATIENCE}
    reading = engine_of(kind, any_engine, **one)

    beside = [of_host("/health", kind, reading, lambda c: str(c.scalar(text("SELECT 1"))))]
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


def test_what_comes_is_read_once_for_all_who_wait(shop, watcher):
    """A page that many wait for is read once for each question, and every reader is given it."""
    pages = []

    @event.listens_for(shop, "before_cursor_execute")
    def note(connection, cursor, statement, *_):
        if "orders.data" in statement and "ORDER BY" in statement:
            pages.append(statement)

    # Without room for kept pages the feed reads none ahead, which would count as well.
    alone = Capacity(kept_bytes=1)
    with mounted(FEED, shop, observer=watcher, capacity=alone) as url:
        head = head_of(url)
        urls = [page_url(url, cursor=head, wait=30, pagesizehint=size) for size in (1, 2)]
        with asking(urls[0], 40) as one, asking(urls[1], 40) as two:
            watcher.until_waiting(80)
            before = len(pages)
            write(shop, 2, first=10)
            assert [[events_of(each) for each in group] for group in (one, two)] == [
                [1] * 40,
                [2] * 40,
            ]
            # A reader that is counted and does not quite wait yet may read by itself.
            assert 2 <= len(pages) - before <= 8


@pytest.mark.parametrize("feed", [Numbers, AsyncNumbers])
def test_failure_is_met_by_those_who_wait_and_by_no_later_reader(feed, watcher):
    """Any error of a feed's head ends the waits there are; the next reader waits as ever."""
    feed, failure = feed(), ValueError()
    away = Unavailable("The feed is away.", retry_after=7)
    gc.disable()
    try:
        with mounted(feed, capacity=Capacity(waiters=40), observer=watcher) as url:
            for error, *expected in ((away, 503, "7"), (failure, 500, None)):
                with asking(page_url(url, wait=30), 40) as waiting:
                    watcher.until_waiting(40)
                    feed.error = error
                    for status, headers, _ in map(answer, waiting):
                        assert [status, headers.get("retry-after")] == expected
                    watcher.until_waiting(0)
                    feed.error = None
            with ask(page_url(url, wait=30)) as waiting:
                watcher.until_waiting(1)
                feed.count = 1
                assert events_of(waiting) == 1
    finally:
        gc.enable()
    # One error is raised for all; what it remembers of its way does not grow with them.
    assert len(traceback.extract_tb(failure.__traceback__)) < 200  # all of them would be 600


@pytest.mark.parametrize(
    ("leaving", "seconds", "is_reading"),
    [([1, 0], 30, False), ([0], 0.4, False), ([0], 30, True)],
    ids=["closes", "has waited enough", "closes while the page is read"],
)
def test_reader_that_stays_is_answered_when_another_leaves(leaving, seconds, is_reading, watcher):
    """Readers that stay are answered, though other readers close or time out."""
    feed = Numbers()
    with mounted(feed, observer=watcher) as url, ExitStack() as stack:
        waiting = []
        for number in range(3):
            wait = seconds if number in leaving else 30
            waiting.append(stack.enter_context(ask(page_url(url, wait=wait))))
            until(lambda: max(watcher.counts) > number, "it waits")  # noqa: B023
        reads = len(feed.reads)
        with feed.held() if is_reading else nullcontext():
            if is_reading:
                feed.count = 1
                until(lambda: feed.inside == 1, "the page is being read")
            for number in leaving:
                if seconds == 30:
                    waiting[number].close()
                else:
                    assert answer(waiting[number])[2] == b'{"cursor":"0","caughtUp":true}\n'
            if is_reading:
                time.sleep(0.05)
        watcher.until_waiting(0 if is_reading else 3 - len(leaving))
        feed.count = 1
        stayed = [one for number, one in enumerate(waiting) if number not in leaving]
        assert [events_of(one) for one in stayed] == [1] * len(stayed)
        assert not is_reading or len(feed.reads) == reads + 1


def test_poll_that_sees_an_event_reads_the_page_of_a_request(watcher):
    """A waiting request gets the page that the poll reads, or reads it itself if that failed."""
    feed = Numbers()
    with mounted(feed, observer=watcher) as url, ask(page_url(url, wait=30)) as waiting:
        watcher.until_waiting(1)
        read, reads = feed.read, []

        def fail(*_):
            reads.append(setattr(feed, "read", read))
            raise ValueError

        feed.read, feed.count = fail, 1
        assert [events_of(waiting), len(reads)] == [1, 1]


# How often the head of a feed is looked at meanwhile.


class Looked(AsyncNumbers):
    """A feed whose head takes its time; it counts how many look now, and have at once."""

    def __init__(self, seconds=0.0):
        super().__init__()
        self.seconds = seconds
        self.looking = self.most_looking = self.looked = 0

    async def head(self):
        self.looks += 1
        self.looking += 1
        self.most_looking = max(self.most_looking, self.looking)
        try:
            await anyio.sleep(self.seconds)
            self.looked += 1
        finally:
            self.looking -= 1
        return self.count


def test_one_looks_for_all_who_wait(watcher):
    """One looks for all who wait, as often as the capacity says, and only while there are some."""
    feed, capacity = Looked(0.002), Capacity(look_seconds=0.05, waiters=30)
    with mounted(feed, observer=watcher, capacity=capacity) as url:
        time.sleep(0.05)
        assert feed.looks == 0
        with asking(page_url(url, wait=30), 30) as waiting:
            watcher.until_waiting(30)
            began, before = time.monotonic(), feed.looks
            until(lambda: feed.looks > before + 3, "the head is looked at")
            assert time.monotonic() - began >= 0.1
            feed.count = 1
            assert [events_of(one) for one in waiting] == [1] * 30
        for leaving in (30, 0):
            looks = feed.looks
            time.sleep(0.1)
            assert feed.looks <= looks + 1  # one may have been under way
            with asking(page_url(url, cursor="1", wait=30), leaving):
                watcher.until_waiting(leaving)
            watcher.until_waiting(0)
    assert feed.most_looking == 1


def test_look_is_not_cut_short(watcher):
    """A look goes on to its end though its reader leaves: a query cut short costs a connection."""
    feed = Looked(0.3)
    with mounted(feed, observer=watcher) as url:
        with ask(page_url(url, wait=30)):
            until(lambda: feed.looking, "the head is looked at")
        watcher.until_waiting(0)
        until(lambda: not feed.looking, "the look ends")
    assert feed.looked == feed.looks


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_commit_through_the_engine_of_the_feed_ends_the_wait(any_engine, kind, watcher, pool):
    """What the host commits through the feed's engine need not wait for the next look."""
    reading = engine_of(kind, fill(any_engine, 0))

    beside = [of_host("/order", kind, reading, lambda c: place(c, 1) or "written")]
    options = {"observer": watcher, "capacity": Capacity(look_seconds=60), "beside": beside}
    with mounted(FEED, reading, **options) as url:
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


def test_commit_is_looked_for_until_it_is_there(watcher):
    """A commit is announced while it is under way: the server polls for it a moment longer."""

    class Telling(Numbers):
        def on_commit(self, notify):
            self.notify = notify

    feed, ending = Telling(), time.monotonic() + 10
    with mounted(feed, capacity=Capacity(look_seconds=60), observer=watcher) as url:
        feed.notify()  # a commit that no request waits for
        with ask(page_url(url, wait=30)) as waiting:
            watcher.until_waiting(1)
            while time.monotonic() < ending and watcher.counts[-1] != 0:
                feed.notify()
                time.sleep(0.002)
                feed.count = 1
                time.sleep(0.15)
            assert events_of(waiting) == 1


def test_commit_is_looked_for_when_an_earlier_change_was_found(watcher):
    """A poll may find an earlier change; the server polls on for the commit that was announced."""

    class Telling(Numbers):
        def on_commit(self, notify):
            self.notify = notify

        def head(self):
            self.looks += 1
            self.count = self.looks // 3  # the second poll, for the commit, finds no event
            return self.looks

    feed, capacity = Telling(), Capacity(look_seconds=60)
    with (
        mounted(feed, capacity=capacity, observer=watcher) as url,
        ask(page_url(url, wait=10)) as waiting,
    ):
        watcher.until_waiting(1)
        feed.notify()
        assert events_of(waiting) == 1


def test_commit_that_was_found_does_not_hide_the_next(watcher):
    """A commit whose change is found already does not let the server ignore the next commit."""

    class Telling(Numbers):
        announced = 0

        def on_commit(self, notify):
            self.notify = notify

        def head(self):
            if self.announced < self.count:
                self.announced = self.count
                self.notify()
            return super().head()

    feed = Telling()
    with mounted(feed, capacity=Capacity(look_seconds=60), observer=watcher) as url:
        for count in (1, 2):
            with ask(page_url(url, cursor=str(count - 1), wait=10)) as waiting:
                watcher.until_waiting(1)
                time.sleep(0.05)
                feed.count = count
                feed.notify()
                assert events_of(waiting) == 1
            watcher.until_waiting(0)


def test_first_poll_has_only_the_first_reader_read_again(watcher):
    """Readers who come while a feed is quiet read once, however long the pause between polls is."""
    feed = Numbers(1)
    with mounted(feed, capacity=Capacity(look_seconds=0.4), observer=watcher) as url:
        with ExitStack() as stack:
            waiting = []
            for size in range(1, 6):
                address = page_url(url, cursor="1", wait=1, pagesizehint=size)
                waiting.append(stack.enter_context(ask(address)))
                watcher.until_waiting(size)
                until(lambda: feed.looks, "the feed is polled")
            assert [events_of(connection) for connection in waiting] == [0] * 5
        assert feed.limits == [1, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("many", ["greedy", ""], ids=["known", "anonymous"])
def test_reader_with_few_requests_is_answered_before_the_many_of_another(many, watcher, pool):
    """When an event wakes more readers than the queue holds, each reader has its turn."""
    feed, capacity = Numbers(1), Capacity(queue=8, connections=1, patience=PATIENCE)
    options = {"authorize": of_name, "capacity": capacity, "observer": watcher}
    with mounted(feed, **options) as url, ExitStack() as stack:
        names = dict.fromkeys(range(1, 41), many) | dict.fromkeys(range(41, 43), "modest")
        waiting = []
        for size, name in names.items():
            address = page_url(url, cursor="1", wait=WAIT, pagesizehint=size, name=name)
            waiting.append(stack.enter_context(ask(address)))
            watcher.until_waiting(size)
        with feed.held():
            asked = feed.limits = []
            feed.count = 2
            until(lambda: asked, "the first page is being read")
            other = pool.submit(get, url, name=many)
            wait([other], timeout=0.5)  # a reader who is refused is refused at once
        assert other.result().status_code == 200
        assert [events_of(connection) for connection in waiting] == [1] * 42
    assert many == "" or max(asked.index(41), asked.index(42)) < 25
