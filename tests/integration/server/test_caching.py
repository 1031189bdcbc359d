"""Which pages may be kept, and that those never change, over real HTTP."""

from itertools import product

import httpx
import pytest
from harness.shop import metadata, orders, place
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import FIRST, LAST, TableFeed, feed_routes

KEPT = "max-age=31536000, immutable"


@pytest.fixture
def shop(sqlite):
    """An engine of a database with ten orders."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 10)
    return sqlite


@pytest.fixture
def feed_url(shop):
    """The URL of a feed over the orders."""
    routes = feed_routes("/orders", TableFeed(orders, data="data", type="kind"), shop)
    with serving(Starlette(routes=routes)) as url:
        yield f"{url}/orders"


def get(url, *, headers=None, method="GET", **parameters):
    """Ask for a page of FeedAPI v2."""
    parameters = {"token": "1", "partition": 0, "cursor": "1-0", **parameters}
    return httpx.request(method, f"{url}/events", params=parameters, headers=headers)


def assert_is_fresh(answer):
    """Show that an answer is not to be kept."""
    assert answer.headers["cache-control"] == "no-store"
    assert "etag" not in answer.headers


def test_full_page_is_kept_for_ever(feed_url, shop):
    """A page that ends for its size is immutable, and stays the same while events are added."""
    first = get(feed_url, pagesizehint=4)
    assert first.headers["cache-control"] == f"private, {KEPT}"
    tag = first.headers["etag"]
    assert tag[0] == tag[-1] == '"'
    with shop.begin() as connection:
        place(connection, 5, first=10)
    again = get(feed_url, pagesizehint=4)
    assert (again.content, again.headers["etag"]) == (first.content, tag)
    other = get(feed_url, pagesizehint=5)
    assert other.headers["etag"] != tag
    filtered = get(feed_url, pagesizehint=4, **{"event-types": "placed"})
    assert (filtered.content, filtered.headers["etag"]) == (first.content, tag)


def test_page_that_the_client_has_is_not_sent_again(feed_url):
    """A client that names the tag of a full page is told that it is the same, without a body."""
    tag = get(feed_url, pagesizehint=4).headers["etag"]
    lists = ["{}", "W/{}", '"other", {}', '"other",W/{}', '{} , W/"x"', "*", '"a","b",{}']
    for held, method in product(lists, ("GET", "HEAD")):
        answer = get(
            feed_url,
            method=method,
            pagesizehint=4,
            headers={"If-None-Match": held.format(tag)},
        )
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["etag"] == tag
        assert answer.headers["cache-control"] == f"private, {KEPT}"


def test_page_that_the_client_does_not_have_is_sent(feed_url):
    """A client that names other tags gets the page."""
    tag = get(feed_url, pagesizehint=4).headers["etag"]
    for held in ('"other"', 'W/"other"', "", ",", "no tag", '"{}'):
        headers = {"If-None-Match": held.format(tag.strip('"'))}
        answer = get(feed_url, pagesizehint=4, headers=headers)
        assert (answer.status_code, answer.text.count('"data":')) == (200, 4), held


def test_tags_may_come_in_several_headers(feed_url):
    """A list of tags may be cut into several headers."""
    tag = get(feed_url, pagesizehint=4).headers["etag"]
    headers = [("If-None-Match", '"other"'), ("If-None-Match", tag)]
    assert get(feed_url, pagesizehint=4, headers=headers).status_code == 304


def test_caches_of_several_clients_are_asked_for(shop):
    """A feed that everybody may read lets caches on the way keep its full pages."""
    routes = feed_routes("/orders", TableFeed(orders, data="data"), shop, shared_cache=True)
    with serving(Starlette(routes=routes)) as url:
        full, head = get(f"{url}/orders", pagesizehint=4), get(f"{url}/orders")
    assert full.headers["cache-control"] == f"public, {KEPT}"
    assert_is_fresh(head)


def test_what_is_true_only_now_is_not_kept(feed_url):
    """Pages at the head, without events, or from `_first` or `_last`, and all else is fresh."""
    last = get(feed_url).text.splitlines()[-1].split('"')[3]
    wildcard = {"If-None-Match": "*"}
    for parameters in [
        {},
        {"pagesizehint": 10},
        {"pagesizehint": 11},
        {"cursor": last},
        {"cursor": FIRST, "pagesizehint": 4},
        {"cursor": LAST},
        {"cursor": LAST, "pagesizehint": 1},
        {"stop": last},
        {"event-types": "lost"},
        {"event-types": "lost", "pagesizehint": 1},
        {"cursor": last, "wait": "0.05"},
        {"cursor": last, "stop": last, "pagesizehint": 1},
    ]:
        answer = get(feed_url, headers=wildcard, **parameters)
        assert answer.status_code == 200, parameters
        assert_is_fresh(answer)
    for problem in [{"cursor": "nonsense"}, {"token": "2"}, {"cursor": "1-99"}]:
        answer = get(feed_url, headers=wildcard, **problem)
        assert answer.status_code in {400, 409, 410}
        assert_is_fresh(answer)
    v1 = {"n": 1, "cursor0": "1-0", "pagesizehint": 4}
    splits = {"token": "1", "partition": 0, "count": 2}
    lag = {"token": "1", "partition": 0, "cursor": "1-0"}
    for url, parameters in [
        *[(feed_url, {}), (feed_url, v1)],
        *[(f"{feed_url}/splits", splits), (f"{feed_url}/lag", lag)],
        (f"{feed_url}/cursor-of-count", {**lag, "events": 2}),
    ]:
        answer = httpx.get(url, params=parameters, headers=wildcard)
        assert answer.status_code == 200
        assert_is_fresh(answer)


def test_bounded_page_below_its_stop_is_kept(feed_url):
    """A page that is full before its stop never changes; the one that reaches it says more."""
    stop = get(feed_url, pagesizehint=6).text.splitlines()[-1].split('"')[3]
    assert get(feed_url, pagesizehint=5, stop=stop).headers["cache-control"] == f"private, {KEPT}"
    assert_is_fresh(get(feed_url, pagesizehint=6, stop=stop))
    assert_is_fresh(get(feed_url, pagesizehint=7, stop=stop))


def test_page_that_was_at_the_head_is_kept_once_it_is_full(feed_url, shop):
    """What could not be kept at the head may be, when there are events behind it."""
    head = get(feed_url, pagesizehint=10)
    with shop.begin() as connection:
        place(connection, 1, first=10)
    full = get(feed_url, pagesizehint=10)
    assert_is_fresh(head)
    assert full.headers["cache-control"] == f"private, {KEPT}"
    assert b"caughtUp" in head.content
    assert b"caughtUp" not in full.content


def test_head_says_the_same_without_a_body(feed_url):
    """A HEAD request is answered as GET is, without what it would send."""
    for parameters in [
        {},
        {"pagesizehint": 4},
        {"cursor": LAST},
        {"cursor": "nonsense"},
        {"token": "2"},
    ]:
        whole, head = (get(feed_url, method=method, **parameters) for method in ("GET", "HEAD"))
        assert (head.status_code, head.content) == (whole.status_code, b"")
        for name in ("content-type", "content-length", "cache-control", "etag"):
            assert head.headers.get(name) == whole.headers.get(name), name
        assert int(whole.headers["content-length"]) == len(whole.content)


def test_page_of_a_mutable_feed_is_not_kept(shop):
    """Rows that are changed after they were written make other pages of them."""
    routes = feed_routes("/orders", TableFeed(orders, data="data", mutable=True), shop)
    with serving(Starlette(routes=routes)) as url:
        assert_is_fresh(get(f"{url}/orders", pagesizehint=4))
