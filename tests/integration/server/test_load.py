"""What a feed takes of the host's database, memory and process, however much it is asked."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import anyio
import httpx
import pytest
from harness.readers import (
    PATIENCE,
    AsyncNumbers,
    Numbers,
    cursor_of,
    get,
    kind,
    mounted,
    numbers,
    of_name,
    page_url,
)
from harness.shop import orders
from harness.stalled import ask, everything
from harness.waiting import until
from sqlalchemy import create_engine, event
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from zeroeventhub import FIRST, Capacity, Event, FeedInfo, Page, Partition, TableFeed
from zeroeventhub.errors import Unavailable

FEED = TableFeed(orders, data="data")


MEBIBYTE = 1024 * 1024

# The line of requests for a feed's connections.


def health(request):
    """Answer in one of the threads of the host."""
    return PlainTextResponse("well")


@pytest.mark.parametrize(
    ("feed", "connections"), [(Numbers, 45), (AsyncNumbers, 3)], ids=["more than threads", "async"]
)
def test_feed_is_asked_by_so_many_at_once(feed, connections):
    """A feed answers as many requests as it has connections; the others stand in line."""
    feed, count = feed(9), connections + 9
    capacity = Capacity(connections=connections, patience=PATIENCE)
    with (
        mounted(feed, beside=[Route("/health", health)], capacity=capacity) as url,
        ThreadPoolExecutor(count) as pool,
        feed.held(),
    ):
        asking = [pool.submit(get, url, cursor=number) for number in range(count)]
        until(lambda: feed.inside == connections, "all connections are in use")
        beside = url.removesuffix("/orders") + "/health"
        assert httpx.get(beside, timeout=PATIENCE).text == "well"
        assert not any(one.done() for one in asking)
    assert {one.result().status_code for one in asking} == {200}
    assert (feed.most, len(feed.reads)) == (connections, count)


@pytest.mark.slow
def test_line_is_left_in_time(pool):
    """A request that stands in line for too long is refused, and one that finds it full at once."""
    feed, capacity = Numbers(9), Capacity(connections=1, patience=1.5, queue=2)
    with mounted(feed, capacity=capacity) as url:
        with feed.held():
            first = pool.submit(get, url)
            until(lambda: feed.inside == 1, "the connection is in use")
            others = [pool.submit(get, url, cursor=number) for number in range(6)]
            refused = [one.result() for one in others]
            assert sum(one.elapsed.total_seconds() >= 1.4 for one in refused) == 2
        assert {(kind(one), one.headers["retry-after"]) for one in refused} == {
            ("unavailable", "1")
        }
        assert first.result().status_code == 200
        assert [get(url).status_code for _ in range(3)] == [200] * 3
    assert feed.most == 1


@pytest.mark.parametrize("feed", [Numbers, AsyncNumbers])
def test_failed_request_gives_its_connection_back(feed, pool):
    """After requests whose feed raised there are as many connections as before, and no more."""
    feed = feed(9)
    with mounted(feed, capacity=Capacity(connections=2, patience=PATIENCE)) as url:
        for feed.error in (Unavailable("The feed is away."), KeyError("a mistake")):
            assert not any(get(url, cursor=number).status_code == 200 for number in range(5))
        feed.error = None
        with feed.held():
            asking = [pool.submit(get, url, cursor=number) for number in range(5)]
            until(lambda: feed.inside == 2, "both connections are in use")
        assert {one.result().status_code for one in asking} == {200}
    assert feed.most == 2


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


# Readers side by side with one question: the page is read once for all of them.

ONE = Capacity(connections=1, patience=PATIENCE)


class Known(Numbers):
    """A feed that knows by heart what it says of itself, so that only pages are asked for."""

    @property
    def known_info(self):
        return Numbers.info(self)


def test_one_read_answers_all_who_stand_in_line_with_one_question(pool):
    """A page is read for all who ask for it before it is begun, and not for those who ask later."""
    feed = Known(1)
    with mounted(feed, capacity=ONE) as url:
        with feed.held():
            first = pool.submit(get, url)
            until(lambda: feed.inside == 1, "the first page is being read")
            feed.count = 2
            sent = [pool.submit(get, url) for _ in range(7)]
            time.sleep(0.3)  # for those that could come in beside the first
            assert feed.reads == [FIRST]
        assert numbers(first.result()) == [0]
        assert [numbers(one.result()) for one in sent] == [[0, 1]] * 7
    assert 2 <= len(feed.reads) <= 4


def test_failure_of_a_shared_read_is_met_by_all_who_asked(pool):
    """When a shared read fails all who asked are told, and the next reader reads anew."""
    feed = Known(1)
    with mounted(feed, capacity=ONE) as url:
        with feed.held():
            asked = [pool.submit(get, url) for _ in range(8)]
            until(lambda: feed.inside == 1, "the page is being read")
            feed.error = Unavailable("The feed is away.")
        assert [one.result().status_code for one in asked] == [503] * 8
        feed.error = None
        assert numbers(get(url)) == [0]


def test_other_questions_have_pages_of_their_own(pool):
    """Readers with other cursors or limits are given what they asked for, and no other's page."""
    feed = Known(9)
    with mounted(feed, capacity=ONE) as url:
        with feed.held():
            asked = {
                (cursor, limit): pool.submit(get, url, cursor=cursor, pagesizehint=limit)
                for cursor in ("0", "3", "6")
                for limit in (1, 2, 3)
            }
            until(lambda: feed.inside == 1, "a page is being read")
        for (cursor, limit), page in asked.items():
            assert numbers(page.result()) == [*range(int(cursor), int(cursor) + limit)]


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


# Answers on their way to readers that take them slowly, or not at all.


class Large:
    """A feed of one's own whose pages have some mebibytes, all the same."""

    def __init__(self, size):
        self.page = Page([Event(b'{"n":"%b"}' % (b"x" * size))], "1")
        self.pages = 0

    async def info(self):
        return FeedInfo.of(1)

    async def read(self, partition, cursor, limit):
        if cursor == "head":
            return Page([], "head", caught_up=True)
        self.pages += limit > 1
        return self.page


def test_answers_on_their_way_are_bounded():
    """Readers that do not read fill the room there is, each time, and others get 503 meanwhile."""
    feed = Large(6 * MEBIBYTE)
    room = {"sending_bytes": 20 * MEBIBYTE, "page_bytes": 6 * MEBIBYTE, "sending_seconds": 60}
    capacity = Capacity(connections=1, patience=0.3, **room)
    with mounted(feed, capacity=capacity) as url:
        for _ in range(2):
            until(lambda: get(url).status_code == 200, "there is room")
            feed.pages = 0
            with ExitStack() as stack:
                for number in range(8):
                    stack.enter_context(ask(page_url(url, cursor=number), room=4096))
                until(lambda: feed.pages >= 3, "three pages are on their way")
                refused = get(url)
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert feed.pages in {3, 4}  # one more may be read for each connection
                # What has no events needs no room.
                assert get(url, cursor="head").status_code == 200


def test_readers_that_take_nothing_leave_room_to_others():
    """However many answers some readers do not take, there is room for those of another."""
    feed = Large(6 * MEBIBYTE)
    room = {"sending_bytes": 64 * MEBIBYTE, "page_bytes": 6 * MEBIBYTE, "sending_seconds": 60}
    capacity = Capacity(patience=0.3, **room)
    with mounted(feed, authorize=of_name, capacity=capacity) as url, ExitStack() as stack:
        for name in ("greedy", "greedier"):
            for number in range(12):
                address = page_url(url, cursor=number, name=name)
                stack.enter_context(ask(address, room=4096))
            until(lambda name=name: get(url, name=name).status_code == 503, "its share is taken")
        assert [get(url, name="modest").status_code for _ in range(3)] == [200] * 3


def test_line_is_left_by_turns(pool):
    """A reader of few requests stands behind no more than one of each reader of many."""
    feed = Known(99)
    with mounted(feed, authorize=of_name, capacity=ONE) as url:
        with feed.held():
            first = pool.submit(get, url, name="greedy")
            until(lambda: feed.inside == 1, "the connection is in use")
            greedy = [pool.submit(get, url, name="greedy", cursor=number) for number in range(6)]
            time.sleep(0.3)  # for all of them to stand in line
            modest = pool.submit(get, url, name="modest", cursor=50)
            time.sleep(0.3)
        assert {one.result().status_code for one in (first, modest, *greedy)} == {200}
    assert feed.reads.index("50") <= 2


def test_reader_leaves_some_of_the_line_to_others(pool):
    """A reader that sends more than half of what may stand in line is refused, and no other."""
    feed, capacity = Known(99), Capacity(connections=1, patience=PATIENCE, queue=6)
    with mounted(feed, authorize=of_name, capacity=capacity) as url:
        with feed.held():
            first = pool.submit(get, url, name="greedy")
            until(lambda: feed.inside == 1, "the connection is in use")
            greedy = [pool.submit(get, url, name="greedy", cursor=number) for number in range(5)]
            until(lambda: sum(one.done() for one in greedy) == 2, "two are refused")
            modest = pool.submit(get, url, name="modest", cursor=50)
            time.sleep(0.1)
            assert not modest.done()
        assert sorted(one.result().status_code for one in greedy) == [200] * 3 + [503] * 2
        assert (first.result().status_code, modest.result().status_code) == (200, 200)


def test_answer_that_is_not_taken_is_given_up(caplog):
    """A reader that takes nothing loses its connection, and never has a page that looks whole."""
    caplog.set_level("INFO", "zeroeventhub.server")
    feed = Large(16 * MEBIBYTE)
    with mounted(feed, capacity=Capacity(sending_seconds=0.4)) as url:
        with ask(page_url(url), room=4096) as reader:
            until(lambda: "An answer was given up" in caplog.text, "the answer is given up", 10)
            received = everything(reader)
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert len(body) < length
        assert len(get(url).content) == length


@pytest.mark.slow
def test_slow_reader_that_takes_something_is_served():
    """A reader may take long for a page, as long as it goes on taking pieces of it."""
    size, patience = 12 * MEBIBYTE, 0.5
    feed, began = Large(size), time.monotonic()
    with (
        mounted(feed, capacity=Capacity(sending_seconds=patience)) as url,
        ask(page_url(url), room=64 * 1024) as reader,
    ):
        received = 0
        while received < size:
            chunk = reader.recv(MEBIBYTE)
            assert chunk, "the answer was given up"
            received += len(chunk)
            if time.monotonic() - began < 2 * patience:
                time.sleep(0.02)
    assert time.monotonic() - began > patience


def test_page_is_whole_however_large_it_is():
    """A page is sent in pieces that make it whole, also if it is larger than all the room."""
    piece = 64 * 1024
    small = Capacity(sending_bytes=MEBIBYTE, page_bytes=MEBIBYTE, patience=0.3)
    for size in (1, piece - 100, 5 * piece, 3 * MEBIBYTE):
        with mounted(Large(size), capacity=small) as url:
            whole, again = get(url), get(url)
            assert whole.content.count(b"x") == again.content.count(b"x") == size
            assert cursor_of(whole) == "1"
            head = httpx.head(page_url(url))
            assert (head.content, head.headers["content-length"]) == (b"", str(len(whole.content)))


class Heavy:
    """A feed of eight partitions, each with a page of a mebibyte whatever is asked."""

    def info(self):
        return FeedInfo.of(8)

    def read(self, partition, cursor, limit):
        number = 0 if cursor == FIRST else int(cursor)
        return Page([Event.of("x" * 2**20)], str(number + 1))


def test_answer_of_version_1_is_bounded_as_a_whole():
    """An answer of many partitions is bounded; partitions take turns, so that each is read."""
    cursors = {f"cursor{number}": FIRST for number in range(8)}
    with mounted(Heavy(), capacity=Capacity(page_bytes=2**20)) as url:
        for _ in range(200):
            answer = httpx.get(url, params={"n": 8, **cursors})
            assert len(answer.content) < 3 * 2**20
            lines = [json.loads(line) for line in answer.text.splitlines()]
            cursors |= {f"cursor{x['partition']}": x["cursor"] for x in lines if "cursor" in x}
            if FIRST not in cursors.values():
                return
        pytest.fail(f"Some partitions were never read: {cursors}")


def test_parameters_are_bounded(shop):
    """A request with more parameters than any reader needs is refused before they are read."""
    with mounted(FEED, shop) as url:
        answer = httpx.get(url + "/events?token=1&partition=0&cursor=_first" + "&a" * 20_000)
        assert (answer.status_code, kind(answer)) == (400, "bad-request")
        assert "1,000 parameters" in answer.json()["detail"]
