"""The line of requests for a feed's connections, over real HTTP."""

import time
from concurrent.futures import ThreadPoolExecutor

import anyio
import httpx
import pytest
from harness.readers import PATIENCE, AsyncNumbers, Numbers, get, kind, mounted
from harness.waiting import until
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from zeroeventhub import Capacity
from zeroeventhub.errors import Unavailable


def health(request):
    """Answer in one of the threads of the host."""
    return PlainTextResponse("well")


class GivingUp:
    """A middleware of the host's that gives up a request after the seconds in its header."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        """Pass a request on for as long as it says."""
        seconds = dict(scope.get("headers", ())).get(b"give-up", b"inf")
        with anyio.move_on_after(float(seconds)) as patience:
            await self.app(scope, receive, send)
        if patience.cancelled_caught:
            await PlainTextResponse("given up", 504)(scope, receive, send)


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
@pytest.mark.parametrize("error", [Unavailable("The feed is away."), KeyError("a mistake")])
def test_failed_request_gives_its_connection_back(feed, error, pool):
    """After requests whose feed raised there are as many connections as before, and no more."""
    feed = feed(9)
    with mounted(feed, capacity=Capacity(connections=2, patience=PATIENCE)) as url:
        feed.error = error
        assert not any(get(url, cursor=number).status_code == 200 for number in range(5))
        feed.error = None
        with feed.held():
            asking = [pool.submit(get, url, cursor=number) for number in range(5)]
            until(lambda: feed.inside == 2, "both connections are in use")
        assert {one.result().status_code for one in asking} == {200}
    assert feed.most == 2


def test_request_that_the_host_gives_up_gives_its_connection_back(pool):
    """Requests cancelled at work and in line leave the feed its one connection, and no other."""
    feed, capacity = AsyncNumbers(9), Capacity(connections=1, patience=PATIENCE)
    with mounted(feed, capacity=capacity, middleware=[Middleware(GivingUp)]) as url:
        with feed.held():
            headers = {"Give-Up": "0.2"}
            given_up = [pool.submit(get, url, cursor=n, headers=headers) for n in range(4)]
            assert [one.result().status_code for one in given_up] == [504] * 4
        assert feed.inside == 0
        with feed.held():
            asking = [pool.submit(get, url, cursor=number) for number in range(4)]
            until(lambda: feed.inside == 1, "the connection is in use")
            time.sleep(0.1)  # for those that a second connection would let in
        assert {one.result().status_code for one in asking} == {200}
    assert feed.most == 1
