"""Readers that take no more than their share."""

import time

import httpx
import pytest
from harness.readers import (
    GOOD,
    HEADERS,
    PATIENCE,
    TOKEN,
    Numbers,
    cursor_of,
    get,
    kind,
    mounted,
    open_stream,
    page_url,
    served,
)
from harness.shop import write
from harness.stalled import answer, ask
from harness.waiting import until

from zeroeventhub import Principal, Quota, bearer_tokens
from zeroeventhub.errors import Unavailable

OTHER = "other-0123456789abcdef"
OTHERS = {"Authorization": f"Bearer {OTHER}"}


def of_name(request):
    """Take readers by their word."""
    return Principal(name=request.headers.get("name", "reader"))


def statuses(url, count, **headers):
    """The statuses of so many requests."""
    return [get(url, headers=headers).status_code for _ in range(count)]


def test_reader_that_asks_too_often_is_told_when_to_come_again(shop):
    """The rate is each reader's own, or that of the routes; answers say when to come again."""
    slow = Principal(name="slow", quota=Quota(rate=0.01, burst=2))
    with served(shop, bearer_tokens({TOKEN: slow, OTHER: "other"})) as url:
        answers = [httpx.get(url, headers=HEADERS) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
        assert kind(answers[-1]) == "too-many-requests"
        assert 95 <= int(answers[-1].headers["retry-after"]) <= 100
        assert [httpx.get(url, headers=OTHERS).status_code for _ in range(5)] == [200] * 5
    own = Principal(name="own", quota=Quota(rate=1000))
    hook = bearer_tokens({TOKEN: own, OTHER: "other"})
    with served(shop, hook, quota=Quota(rate=0.01, burst=1)) as url:
        assert [httpx.get(url, headers=OTHERS).status_code for _ in range(2)] == [200, 429]
        assert [httpx.get(url, headers=HEADERS).status_code for _ in range(3)] == [200] * 3


def test_rate_lets_in_as_many_as_it_says():
    """After its burst a reader is let in once for each interval; what was refused costs nothing."""
    with mounted(Numbers(), authorize=of_name, quota=Quota(rate=2, burst=3)) as url:
        began = time.monotonic()
        assert statuses(url, 3) == [200] * 3
        refused = 0
        while get(url).status_code == 429:
            refused += 1
            assert time.monotonic() - began < 8
            time.sleep(0.02)
        assert refused > 3
        # One interval has passed since the burst, and not one that every refusal has put off.
        assert 0.5 <= time.monotonic() - began < 8
        assert get(url).status_code == 429


def test_reader_is_not_forgotten_while_it_owes(feed, pool):
    """However many others come and go, a reader's requests and its rate are remembered."""
    quotas = {"held": Quota(in_flight=1), "hasty": Quota(rate=0.001, burst=1)}

    def authorize(request):
        return Principal(name=request.headers["name"], quota=quotas.get(request.headers["name"]))

    with mounted(feed, authorize=authorize) as url, feed.held():
        held = pool.submit(get, url, headers={"name": "held"})
        until(lambda: feed.inside == 1, "a request is under way")
        assert httpx.get(url, headers={"name": "hasty"}).status_code == 200
        with httpx.Client() as session:
            for number in range(200):
                assert session.get(url, headers={"name": f"{number}"}).status_code == 200
        for name in quotas:
            assert httpx.get(url, headers={"name": name}).status_code == 429
    assert held.result().status_code == 200


@pytest.mark.parametrize("bound", ["in_flight", "waiters"])
def test_place_is_given_back(bound, watcher):
    """So many at once and no more, round after round, whether they are answered, fail or leave."""
    feed = Numbers()
    quota = Quota(**{bound: 2})
    with mounted(feed, authorize=of_name, quota=quota, observer=watcher) as url:
        for ending in ("answered", "failed", "left", "answered"):
            waiting = [ask(page_url(url, cursor=str(feed.count), wait=30)) for _ in range(2)]
            watcher.until_waiting(2)
            for _ in range(3):
                refused = get(url, cursor=str(feed.count), wait=1)
                assert (refused.status_code, kind(refused)) == (429, "too-many-requests")
            assert get(url, cursor=str(feed.count), headers={"name": "other"}).status_code == 200
            match ending:
                case "answered":
                    feed.count += 1
                case "failed":
                    feed.error = Unavailable("The feed is away.")
                case "left":
                    waiting.pop().close()
                    waiting.pop().close()
            status = {"answered": 200, "failed": 503}.get(ending)
            assert [answer(one)[0] for one in waiting] == [status] * len(waiting)
            for one in waiting:
                one.close()
            watcher.until_waiting(0)
            feed.error = None


def test_only_requests_that_wait_are_waiters(shop, watcher, pool):
    """A reader with one place to wait at the head reads on without it, and gets it back."""
    reader = Principal(name="reader", quota=Quota(waiters=1))
    with served(shop, bearer_tokens({TOKEN: reader}), observer=watcher) as url:
        head = cursor_of(get(url, headers=HEADERS))
        waiting = pool.submit(get, url, cursor=head, wait=10, headers=HEADERS)
        watcher.until_waiting(1)
        for path, parameters in [
            ("/events", {**GOOD["/events"], "cursor": head, "wait": "1"}),
            ("/http-feed", {"timeout": "1000", "lastEventId": "10"}),
            ("/server-sent-events", {"cursor": head}),
        ]:
            refused = httpx.get(url + path, params=parameters, headers=HEADERS, timeout=PATIENCE)
            assert (refused.status_code, kind(refused)) == (429, "too-many-requests")
        # What is answered at once waits for nothing.
        assert get(url, cursor=head, headers=HEADERS).status_code == 200
        assert get(url, wait=30, headers=HEADERS).status_code == 200
        write(shop)
        assert waiting.result().status_code == 200
        watcher.until_waiting(0)
        head = cursor_of(waiting.result())
        assert get(url, cursor=head, wait="0.01", headers=HEADERS).status_code == 200


def test_stream_is_under_way_until_it_is_closed(shop):
    """A stream counts as one request for as long as it is open."""
    reader = Principal(name="reader", quota=Quota(in_flight=1))
    with served(shop, bearer_tokens({TOKEN: reader})) as url:

        def refused_meanwhile(received):
            answer = httpx.get(url, headers=HEADERS)
            assert (answer.status_code, kind(answer)) == (429, "too-many-requests")
            return True

        for _ in range(2):
            open_stream(url, refused_meanwhile, headers=HEADERS)
            until(lambda: httpx.get(url, headers=HEADERS).status_code == 200, "it is let in", 5)
