"""Which pages may be kept, and that those never change, over real HTTP."""

from itertools import product

import httpx
import pytest
from harness import readers
from harness.readers import mounted, write
from harness.shop import orders

from zeroeventhub import FIRST, LAST, TableFeed

KEPT = "max-age=31536000, immutable"


@pytest.fixture
def feed_url(shop):
    """The URL of a feed over the orders."""
    with mounted(TableFeed(orders, data="data", type="kind"), shop) as url:
        yield url


def get(url, **parameters):
    """Ask for a page behind a cursor that the feed has given."""
    return readers.get(url, **{"cursor": "1-0", **parameters})


def assert_is_fresh(answer):
    """Show that an answer is not to be kept."""
    assert answer.headers["cache-control"] == "no-store"
    assert "etag" not in answer.headers


def test_full_page_is_kept_for_ever(feed_url, shop):
    """A page that ends for its size is immutable, and stays the same while events are added."""
    first = get(feed_url, pagesizehint=4)
    tag = first.headers["etag"]
    write(shop, 5, first=10)
    again = get(feed_url, pagesizehint=4)
    assert (again.content, again.headers["etag"]) == (first.content, tag)
    other = get(feed_url, pagesizehint=5)
    assert other.headers["etag"] != tag
    filtered = get(feed_url, pagesizehint=4, **{"event-types": "placed"})
    assert (filtered.content, filtered.headers["etag"]) == (first.content, tag)


def test_page_that_the_client_has_is_not_sent_again(feed_url):
    """A client that names the tag of a full page is told that it is the same, without a body; one
    that names others gets the page.
    """
    tag = get(feed_url, pagesizehint=4).headers["etag"]
    held = ["{}", "W/{}", '"other", {}', '"other",W/{}', '{} , W/"x"', "*", '"a","b",{}']
    held = [[("If-None-Match", text.format(tag))] for text in held]
    held.append([("If-None-Match", '"other"'), ("If-None-Match", tag)])
    for headers, method in product(held, ("GET", "HEAD")):
        answer = get(feed_url, method=method, pagesizehint=4, headers=headers)
        assert (answer.status_code, answer.content) == (304, b""), headers
        assert answer.headers["etag"] == tag
        assert answer.headers["cache-control"] == f"private, {KEPT}"
    for other in ('"other"', 'W/"other"', "", ",", "no tag", tag[:-1]):
        answer = get(feed_url, pagesizehint=4, headers={"If-None-Match": other})
        assert (answer.status_code, answer.text.count('"data":')) == (200, 4), other


def test_what_is_true_only_now_is_not_kept(feed_url):
    """Pages at the head, without events, or from `_first` or `_last`, and all else is fresh; a page
    that is full before its stop is kept.
    """
    last = get(feed_url).text.splitlines()[-1].split('"')[3]
    stop = get(feed_url, pagesizehint=6).text.splitlines()[-1].split('"')[3]
    assert get(feed_url, pagesizehint=5, stop=stop).headers["cache-control"] == f"private, {KEPT}"
    wildcard = {"If-None-Match": "*"}
    for parameters in [
        {},
        {"pagesizehint": 10},
        {"pagesizehint": 11},
        {"cursor": last},
        {"cursor": FIRST, "pagesizehint": 4},
        {"cursor": LAST},
        {"stop": last},
        {"stop": stop, "pagesizehint": 6},
        {"stop": stop, "pagesizehint": 7},
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
    place = {"token": "1", "partition": 0, "cursor": "1-0"}
    for path, parameters in [
        ("", {}),
        ("", {"n": 1, "cursor0": "1-0", "pagesizehint": 4}),
        ("/lag", place),
    ]:
        answer = httpx.get(feed_url + path, params=parameters, headers=wildcard)
        assert answer.status_code == 200
        assert_is_fresh(answer)


def test_options_of_a_feed_say_who_may_keep_its_pages(shop):
    """A feed lets shared caches keep full pages where it says so; rows that change are not kept."""
    with mounted(TableFeed(orders, data="data"), shop, shared_cache=True) as url:
        assert get(url, pagesizehint=4).headers["cache-control"] == f"public, {KEPT}"
        assert_is_fresh(get(url))
    with mounted(TableFeed(orders, data="data", mutable=True), shop) as url:
        assert_is_fresh(get(url, pagesizehint=4))
