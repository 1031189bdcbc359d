"""The line of requests for a feed's connections, over real HTTP."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from harness.readers import PATIENCE, AsyncNumbers, Numbers, get, kind, mounted
from harness.waiting import until
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from zeroeventhub import Capacity
from zeroeventhub.errors import Unavailable


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
