"""Requests as their parameters say them, on every route, over real HTTP."""

from datetime import UTC, datetime
from urllib.parse import urlencode

import httpx
import pytest
from harness.random_requests import ALLOWED, PATHS, fuzz
from harness.readers import Everything, kind, mounted
from harness.shop import orders

from zeroeventhub import FIRST, LAST, FeedInfo, Partition, TableFeed, TypeFilter
from zeroeventhub.errors import FeedError
from zeroeventhub.extensions import EXTENSIONS

PLACE = {"token": "t", "partition": "0"}
THERE = {**PLACE, "cursor": "c"}
RENDITION = {"partition": "0"}
NEEDED = {
    "": {"n": "2", "cursor0": "c"},
    "events": THERE,
    "cursor": {**PLACE, "time": "2026-03-01T12:00:00Z"},
    "lag": THERE,
    "cursor-of-count": {**THERE, "events": "4"},
    "splits": {**PLACE, "count": "4"},
    "segments": THERE,
    "key-history": {"key": "k"},
    "progress": {**THERE, "consumer": "billing"},
    "progress (DELETE)": {"consumer": "billing"},
    "schema": {"type": "placed"},
    "http-feed": RENDITION,
    "server-sent-events": RENDITION,
}
"""The required parameters of each route."""

OPTIONAL = {
    "": ["cursor7", "pagesizehint", "headers"],
    "events": ["pagesizehint", "event-types", "skip-event-types", "stop", "wait"],
    "cursor-of-count": ["stop"],
    "splits": ["cursor", "stop"],
    "segments": ["stop"],
    "key-history": ["after-version", "pagesizehint"],
    "http-feed": ["lastEventId", "timeout"],
    "server-sent-events": ["cursor", "event-types", "skip-event-types"],
}


class LetThroughError(FeedError):
    """What answers a request that has come to the feed."""

    status = 418
    problem = "let-through"


class Noting(Everything):
    """A feed of one's own that notes what it is asked, and answers nothing."""

    async def info(self):
        return FeedInfo((Partition(7), Partition(0)), "t", extensions=self.extensions)

    def answer(self, name, *arguments, **options):
        self.asked = (name, arguments, options)
        raise LetThroughError("It is asked.")


@pytest.fixture(scope="module")
def ask():
    """A function that asks a feed, and returns the answer and what the feed was asked."""
    feed = Noting()
    feed.extensions = frozenset(EXTENSIONS)
    options = {"http_feed": True, "server_sent_events": True}
    with mounted(feed, **options) as url, httpx.Client(timeout=20) as session:

        def ask(route, asked, extensions=EXTENSIONS):
            feed.asked, feed.extensions = None, frozenset(extensions)
            query = urlencode(asked, doseq=True, errors="surrogatepass")
            path, _, verb = route.partition(" (")
            method = verb.rstrip(")") or ("PUT" if path == "progress" else "GET")
            address = f"{url}/{path}".rstrip("/")
            return session.request(method, f"{address}?{query}"), feed.asked

        yield ask


@pytest.fixture(scope="module")
def refused(ask):
    """A function that returns the kind of problem that a request is, and what is said of it."""

    def refused(route, **asked):
        answer, reached = ask(route, {**NEEDED[route], **asked})
        assert (answer.status_code, reached) == (400, None), (route, asked)
        return kind(answer), answer.json()["detail"]

    return refused


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
READ = [
    ("events", {}, ("read", (0, "c", 1000), {})),
    (
        "events",
        {"partition": "07", "cursor": FIRST, "pagesizehint": "010", "stop": "d", "wait": "1.25"},
        ("read", (7, FIRST, 10), {"stop": "d"}),
    ),
    (
        "events",
        {"event-types": "A;b;;a", "newer": ["1", "2"]},
        ("read", (0, "c", 1000), {"types": TypeFilter(frozenset({"a", "b"}))}),
    ),
    (
        "cursor",
        {"time": "2026-03-01t13:30:00.1234569+01:30"},
        ("cursor_at", (NOON.replace(microsecond=123456), 0), {}),
    ),
    ("lag", {"cursor": LAST}, ("lag", (0, LAST), {})),
    (
        "cursor-of-count",
        {"cursor": FIRST, "events": "01000000", "stop": "b"},
        ("cursor_of_count", (0, FIRST, 1_000_000), {"stop": "b"}),
    ),
    (
        "splits",
        {"count": "1000", "cursor": "a", "stop": "b"},
        ("splits", (0, 1000), {"start": "a", "stop": "b"}),
    ),
    ("segments", {"stop": "d"}, ("segments", (0, "c"), {"stop": "d"})),
    ("key-history", {"after-version": "3"}, ("read_key", ("k", 3, 1000), {})),
    ("progress", {}, ("register_progress", ("billing", 0, "c"), {"principal": ""})),
    ("progress (DELETE)", {}, ("forget_progress", ("billing",), {"principal": ""})),
    ("http-feed", {"lastEventId": "", "timeout": "15"}, ("read", (0, FIRST, 1000), {})),
    ("http-feed", {"lastEventId": "å b"}, ("cursor_of", ("å b", 0), {})),
    (
        "server-sent-events",
        {"cursor": "a", "skip-event-types": ";A"},
        ("read", (0, "a", 100), {"each": True, "types": TypeFilter(frozenset({"a"}), skip=True)}),
    ),
]


def test_request_is_read(ask):
    """A request says what it needs and may say more; unknown parameters are passed over."""
    for route, asked, expected in READ:
        answer, reached = ask(route, {**NEEDED[route], **asked})
        assert (answer.status_code, reached) == (418, expected)


@pytest.mark.parametrize("route", NEEDED)
def test_parameter_is_there_once(ask, refused, route):
    """A problem names the parameter that is missing, or that occurs twice."""
    needed = NEEDED[route]
    for name in () if needed == RENDITION else needed.keys() - {"n"}:
        rest = {other: value for other, value in needed.items() if other != name}
        answer, reached = ask(route, rest)
        assert (answer.status_code, reached) == (400, None)
        assert f"{name.rstrip('0')} is missing" in answer.json()["detail"]
    for name in [*needed, *OPTIONAL.get(route, [])]:
        assert f"{name} occurs more than once" in refused(route, **{name: ["2", "2"]})[1]


@pytest.mark.parametrize(
    ("count", "seed"), [(700, 7), pytest.param(20_000, 8, marks=pytest.mark.test_all)]
)
def test_any_request_gets_an_answer(count, seed):
    """Requests that no client would send are refused or answered, and nothing fails or leaks."""
    answers = fuzz(count, seed)
    assert answers.total() == count
    assert {path for path, _ in answers} == {*PATHS}
    assert {status for _, status in answers} == ALLOWED


def test_parameters_are_bounded(shop):
    """A request with more parameters than any reader needs is refused before they are read."""
    with mounted(TableFeed(orders, data="data"), shop) as url:
        answer = httpx.get(url + "/events?token=1&partition=0&cursor=_first" + "&a" * 20_000)
        assert (answer.status_code, kind(answer)) == (400, "bad-request")
        assert "1,000 parameters" in answer.json()["detail"]
