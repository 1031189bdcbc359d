"""What a feed takes of its process: the line of requests, answers on their way, and the end."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from itertools import product

import anyio
import httpx
import pytest
from anyio.lowlevel import checkpoint
from harness.readers import (
    PATIENCE,
    AsyncNumbers,
    Known,
    Numbers,
    cursor_of,
    get,
    head_of,
    kind,
    mounted,
    numbers,
    of_name,
    open_stream,
    page_url,
)
from harness.stalled import answer, ask, asking, everything
from harness.uvicorn_process import Large, uvicorn
from harness.waiting import until
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from zeroeventhub import Capacity, feed_routes
from zeroeventhub.errors import Unavailable
from zeroeventhub.server import end_waits, sending

MEBIBYTE = 1024 * 1024


def health(request):
    """Answer in one of the threads of the host."""
    return PlainTextResponse("well")


@pytest.mark.parametrize(
    ("feed", "connections"), [(Numbers, 45), (AsyncNumbers, 3)], ids=["more than threads", "async"]
)
def test_feed_is_asked_by_so_many_at_once_though_requests_have_failed(feed, connections):
    """A feed answers as many requests at once as it has connections, though some have failed."""
    feed, count = feed(9), connections + 9
    capacity = Capacity(connections=connections, patience=PATIENCE)
    with (
        mounted(feed, beside=[Route("/health", health)], capacity=capacity) as url,
        ThreadPoolExecutor(count) as pool,
    ):
        for feed.error in (Unavailable("The feed is away."), KeyError("a mistake")):
            assert not any(get(url, cursor=n).status_code == 200 for n in range(connections + 1))
        feed.error = None
        feed.reads.clear()
        with feed.held():
            asking = [pool.submit(get, url, cursor=number) for number in range(count)]
            until(lambda: feed.inside == connections, "all connections are in use")
            beside = url.removesuffix("/orders") + "/health"
            assert httpx.get(beside, timeout=PATIENCE).text == "well"
            assert not any(one.done() for one in asking)
    assert {one.result().status_code for one in asking} == {200}
    assert (feed.most, len(feed.reads)) == (connections, count)


@pytest.mark.slow
def test_request_leaves_the_queue_in_time(pool):
    """A request that queues for too long is refused, and at once if the queue is full."""
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


def test_answers_on_their_way_are_bounded():
    """Readers that take nothing use up the send budget; other requests get 503 meanwhile."""
    feed = Large(6 * MEBIBYTE)
    room = {"sending_bytes": 20 * MEBIBYTE, "page_bytes": 6 * MEBIBYTE, "sending_seconds": 60}
    capacity = Capacity(connections=1, patience=1, **room)
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
    capacity = Capacity(patience=1, **room)
    with mounted(feed, authorize=of_name, capacity=capacity) as url, ExitStack() as stack:
        for name in ("greedy", "greedier"):
            for number in range(12):
                address = page_url(url, cursor=number, name=name)
                stack.enter_context(ask(address, room=4096))
            until(lambda name=name: get(url, name=name).status_code == 503, "its share is taken")
        assert [get(url, name="modest").status_code for _ in range(3)] == [200] * 3


def test_reader_leaves_some_of_the_queue_free_and_readers_take_turns(pool):
    """A reader that fills half of the queue is refused, and the others take turns with it."""
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
    assert feed.reads.index("50") <= 2


def test_answer_that_is_not_taken_is_given_up(caplog):
    """A reader that takes nothing loses its connection, and never has a page that looks whole."""
    caplog.set_level("INFO", "zeroeventhub.server")
    feed = Large(16 * MEBIBYTE)
    with mounted(feed, capacity=Capacity(sending_seconds=1.5)) as url:
        with ask(page_url(url), room=4096) as reader:
            until(lambda: "An answer was aborted" in caplog.text, "the answer is aborted")
            received = everything(reader)
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert len(body) < length
        assert len(get(url).content) == length


@pytest.mark.slow
def test_slow_reader_that_takes_something_is_served():
    """A reader may take long for a page, as long as it goes on taking pieces of it."""
    size, patience = 12 * MEBIBYTE, 1.5
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
    """A page is sent in pieces, all of it, also if it is larger than the room for answers."""
    piece = 64 * 1024
    small = Capacity(sending_bytes=MEBIBYTE, page_bytes=MEBIBYTE, patience=PATIENCE)
    for size in (1, piece - 100, 5 * piece, 3 * MEBIBYTE):
        with mounted(Large(size), capacity=small) as url:
            whole, again = get(url), get(url)
            assert whole.content.count(b"x") == again.content.count(b"x") == size
            assert cursor_of(whole) == "1"
            head = httpx.head(page_url(url))
            assert (head.content, head.headers["content-length"]) == (b"", str(len(whole.content)))


@pytest.fixture(params=["trio", pytest.param("asyncio", marks=pytest.mark.test_all)])
def anyio_backend(request):
    """Both event loops: all other tests have asyncio."""
    return request.param


@asynccontextmanager
async def in_this_loop(feed, connections, **options):
    """Serve a feed in this event loop; yield a function that asks for a page."""
    options["capacity"] = Capacity(connections=connections, patience=60)
    transport = httpx.ASGITransport(Starlette(routes=feed_routes("/orders", feed, **options)))
    async with httpx.AsyncClient(transport=transport, base_url="http://feed", timeout=60) as client:

        async def ask(cursor, wait=0):
            return numbers(await client.get(page_url("/orders", cursor=cursor, wait=wait)))

        with anyio.fail_after(60):
            yield ask


async def turns(count):
    """Let all other tasks run, so many times."""
    for _ in range(count):
        await checkpoint()


class Slow(AsyncNumbers):
    """A feed whose reads end when the test says."""

    async def read(self, partition, cursor, limit, *, each=False):
        with self._asked(cursor):
            await self.leaving.wait()
            return self._page(cursor, limit, self.count)


@pytest.mark.anyio
async def test_place_in_the_queue_is_never_lost_nor_returned_twice():
    """A request that is cancelled at any moment neither keeps its place nor frees it twice."""
    feed = Slow(3)
    async with in_this_loop(feed, 1) as ask:
        for count, leaving in product(range(30), (0, 1)):
            feed.reads, feed.leaving, found = [], anyio.Event(), []
            scopes = [anyio.CancelScope() for _ in range(3)]

            async def come(number, scope, found=found):
                with scope:
                    found.append(await ask(number))

            async with anyio.create_task_group() as group:
                for number, scope in enumerate(scopes):
                    group.start_soon(come, number, scope)
                    await turns(100)
                assert feed.reads == ["0"]
                if leaving:
                    feed.leaving.set()
                await turns(count)
                scopes[leaving].cancel()
                feed.leaving.set()
            assert feed.reads in (["0", "1", "2"], ["0", "2"])
            assert (found[0], found[-1]) == ([0, 1, 2] if leaving else [1, 2], [2])
            assert feed.inside == 0
    assert feed.most == 1


SOON = 15.0  # seconds in which a server has to be gone


@pytest.mark.slow
def test_server_that_ends_answers_those_who_wait_and_cuts_off_those_who_take_nothing(tmp_path):
    """Readers that wait get an empty page, streams end, and one that takes nothing is cut off."""
    with uvicorn(tmp_path, "--timeout-graceful-shutdown", "1") as server:
        orders = f"{server.url}/orders"
        cursor = head_of(orders)
        with (
            ask(page_url(f"{server.url}/large"), room=4096) as stalled,
            asking(page_url(orders, cursor=cursor, wait=30), 50) as waiting,
            asking(f"{orders}/server-sent-events", 5) as streams,
        ):
            for stream in streams:
                assert b"200 OK" in stream.recv(65536)
            httpx.get(server.url)
            assert server.end() < SOON / 2
            found = {(status, body) for status, _, body in map(answer, waiting)}
            assert found == {(200, b'{"cursor":"%b","caughtUp":true}\n' % cursor.encode())}
            for stream in streams:
                assert everything(stream).endswith(b"0\r\n\r\n")
            assert len(everything(stalled)) < 16_000_000
        log = server.log.read_text()
        assert log.count("Traceback") <= 1  # of the answer that is cut off
        assert "--timeout-graceful-shutdown" not in log


@pytest.mark.slow
def test_server_that_would_wait_for_ever_is_warned_of(tmp_path):
    """A server that does not say how long stalled readers are waited for is warned of, once."""
    with uvicorn(tmp_path) as server:
        for _ in range(3):
            assert httpx.get(f"{server.url}/orders").status_code == 200
        assert server.end() < SOON
        assert server.log.read_text().count("--timeout-graceful-shutdown") == 1


def test_other_servers_say_it_themselves(monkeypatch, watcher, pool):
    """A host whose server is not uvicorn's says that it ends, and waits are over at once."""
    with (
        # No signal reaches it.
        mounted(Numbers(), observer=watcher, server_sent_events=True) as url,
        asking(page_url(url, wait=SOON), 20) as waiting,
    ):
        stream = pool.submit(open_stream, url, lambda _: False)
        watcher.until_waiting(21)
        began = time.monotonic()
        monkeypatch.setattr(sending.PROCESS, "ending", False)  # and reset afterwards
        end_waits()
        assert {answer(connection)[0] for connection in waiting} == {200}
        assert time.monotonic() - began < SOON - 1
        assert stream.result(SOON).endswith(b":\n\n")
        began = time.monotonic()
        assert get(url, wait=SOON).status_code == 200
        assert time.monotonic() - began < SOON - 1
    assert watcher.counts[-1] == 0
