"""The clients against real sockets: good answers, cut ones, and other people's."""

import anyio
import httpx
import pytest
from harness.web import answering, serving
from starlette.applications import Starlette

from zeroeventhub import FIRST, AsyncClient, Client, Event, FeedInfo, Page, feed_routes
from zeroeventhub.errors import (
    ConfigurationError,
    CutPage,
    Diverged,
    FeedError,
    Forbidden,
    NotFound,
    ProtocolError,
    TokenChanged,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Unreachable,
    ZeroEventHubError,
)

INFO = b'{"token":"t","partitions":[{"id":"0"}],"exactlyOnce":true}'
PAGE = b'{"data":{"n":1}}\n{"cursor":"a"}\n{"data":{"n":2}}\n{"data":{"n":3}}\n{"cursor":"b"}\n'


def http(body, *, status="200 OK", kind="application/x-ndjson", extra=""):
    """Write an answer whose end is the end of its connection."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n{extra}\r\n"
    return head.encode() + body


def sync_fetch(url, **options):
    """Fetch a page with the sync client."""
    with httpx.Client() as session:
        return Client(url, session, **options).fetch(0, FIRST)


def async_fetch(url, **options):
    """Fetch a page with the async client."""

    async def fetch():
        async with httpx.AsyncClient() as session:
            return await AsyncClient(url, session, **options).fetch(0, FIRST)

    return anyio.run(fetch)


@pytest.fixture(params=[sync_fetch, async_fetch], ids=["sync", "async"])
def fetch(request):
    """A function that fetches the first page of partition 0, with either client."""
    return request.param


def served(page):
    """Answer discovery well, and every page with the bytes given."""
    return answering(lambda target: page if "/events" in target else http(INFO))


def test_page_cut_at_any_byte_is_a_whole_page_or_an_error(fetch):
    """Wherever a body is cut, nothing behind its last checkpoint is taken for an event."""
    for length in range(0, len(PAGE) + 1, 3):
        with served(http(PAGE[:length])) as url:
            try:
                page = fetch(url)
            except CutPage:
                assert b'{"cursor":"a"}' not in PAGE[:length]
                continue
        assert (len(page.events), page.cursor) in {(1, "a"), (3, "b")}


def test_broken_connection_keeps_what_has_a_checkpoint(fetch):
    """A connection that breaks behind a checkpoint yields the page up to it."""
    with served(http(PAGE[:40], extra="Content-Length: 500\r\n")) as url:
        page = fetch(url)
    assert (len(page.events), page.cursor) == (1, "a")


def test_broken_connection_without_a_checkpoint_is_a_cut_page(fetch):
    """A connection that breaks before the first checkpoint is an error to try again."""
    with (
        served(http(PAGE[:10], extra="Content-Length: 500\r\n")) as url,
        pytest.raises(CutPage),
    ):
        fetch(url)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (http(b"<html>Log in</html>", kind="text/html; charset=utf-8"), Unavailable),
        (http(b"", status="502 Bad Gateway"), Unavailable),
        (http(b"", status="429 Too Many Requests"), TooManyRequests),
        (http(b"", status="401 Unauthorized"), Unauthorized),
        (http(b"", status="403 Forbidden"), Forbidden),
        (http(b"", status="404 Not Found"), NotFound),
        (http(b"", status="409 Conflict"), TokenChanged),
        (http(b"", status="418 Teapot"), FeedError),
        (http(b"", status="302 Found", extra="Location: http://127.0.0.1:1/\r\n"), NotFound),
        (http(b'{"type":"urn:zeroeventhub:problem/diverged"}', status="410 Gone"), Diverged),
        (http(b'{"type":"https://x/diverged"}', status="410 Gone"), Diverged),
        (http(b"", status="204 No Content"), FeedError),
        (http(b'{"data":NaN}\n{"cursor":"1"}\n'), ProtocolError),
        (http(b"\xff\n"), ProtocolError),
        (b"garbage\r\n\r\n", Unreachable),
        (b"", Unreachable),
    ],
)
def test_every_other_answer_is_an_error_of_its_own(fetch, answer, error):
    """Whatever is not a page raises an exception that says what it was."""
    with served(answer) as url, pytest.raises(error):
        fetch(url)


def test_redirection_is_named_and_not_followed(fetch):
    """A feed that has moved says where to, without the secrets of that address."""
    answer = http(b"", status="307 Moved", extra="Location: /feed?code=canary\r\n")
    with served(answer) as url, pytest.raises(NotFound) as caught:
        fetch(url)
    assert f"moved to {url}/feed;" in str(caught.value)


@pytest.mark.parametrize("place", ["http://[", "//[x", "http:////% [", "http://a:b/", "\x7f", ""])
def test_redirection_to_nowhere_is_an_error(fetch, place):
    """Where a feed has moved to a place that is none, that is an error like any other."""
    answer = http(b"", status="302 Found", extra=f"Location: {place}\r\n")
    # Some of these httpx refuses itself, before anybody looks at the status.
    with served(answer) as url, pytest.raises((NotFound, Unreachable)):
        fetch(url)


def test_retry_after_is_passed_on(fetch):
    """What a feed asks for in Retry-After reaches the caller, in seconds."""
    answer = http(b"", status="503 Service Unavailable", extra="Retry-After: 7\r\n")
    with served(answer) as url, pytest.raises(Unavailable) as caught:
        fetch(url)
    assert caught.value.retry_after == 7


def test_nobody_listening_is_unreachable(fetch):
    """A feed whose server is down is an error to try again."""
    with pytest.raises(Unreachable):
        fetch("http://127.0.0.1:1/feed")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "feed",
        "ftp://host/feed",
        "http://",
        "http://host:port/",
        "http://u:p#w@h/",
        "http://a\n",
    ],
)
def test_url_of_nothing_is_refused_at_once(url):
    """What cannot be a feed's address is refused before anything is sent."""
    with httpx.Client() as session, pytest.raises(ConfigurationError):
        Client(url, session)


def test_secrets_of_a_url_are_in_no_exception(fetch):
    """Passwords and query parameters of the URL appear in no exception."""
    answers = [http(b"<html>", kind="text/html"), http(b"", status="500 Oops"), b"garbage"]
    for answer in answers:
        with answering(lambda _, answer=answer: answer) as url:
            secret = url.replace("http://", "http://user:canary@") + "/feed?code=canary"
            with pytest.raises(ZeroEventHubError) as caught:
                fetch(secret)
        shown = "".join(map(str, (caught.value, caught.value.__cause__, caught.value.__dict__)))
        assert "canary" not in shown
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_query_of_the_url_is_kept(fetch):
    """Parameters that are part of a feed's URL are sent with every request."""
    seen = []

    def answer(target):
        seen.append(target)
        return http(PAGE if "/events" in target else INFO)

    with answering(answer) as url:
        fetch(f"{url}/my%2Ffeed?code=1")
    assert seen == [
        "/my%2Ffeed?code=1",
        "/my%2Ffeed/events?code=1&token=t&partition=0&cursor=_first",
    ]


@pytest.mark.parametrize("status", ["400 Bad Request", "422 Unprocessable Entity"])
def test_v1_feed_is_read_where_its_partitions_are_known(fetch, status):
    """A feed that refuses discovery is read by v1 if the caller says how many partitions."""
    seen = []

    def answer(target):
        seen.append(target)
        body = b'{"partition":0,"data":{"n":1}}\n{"partition":0,"cursor":"5"}\n'
        return http(body) if "n=" in target else http(b"", status=status)

    with answering(answer) as url:
        page = fetch(url, partitions=2)
        assert [event.data for event in page.events] == [{"n": 1}]
        with pytest.raises(ConfigurationError, match="partitions"):
            fetch(url)
    assert seen[1] == "/?n=2&cursor0=_first"


class Countdown:
    """A feed of one's own, without a database."""

    def info(self):
        return FeedInfo.of(1)

    def read(self, partition, cursor, limit):
        place = 0 if cursor == FIRST else int(cursor)
        events = [Event.of({"n": number}) for number in range(place, min(place + limit, 10))]
        return Page(events, str(place + len(events)))


class AsyncCountdown(Countdown):
    """The same, asynchronous."""

    async def info(self):
        return super().info()

    async def read(self, partition, cursor, limit):
        return super().read(partition, cursor, limit)


@pytest.mark.parametrize("feed", [Countdown(), AsyncCountdown()], ids=["sync", "async"])
def test_feed_of_ones_own_making_is_served(fetch, feed):
    """Any class with info() and read(), sync or async, can be mounted."""
    with serving(Starlette(routes=feed_routes("/", feed))) as url:
        assert [event.data["n"] for event in fetch(url).events] == list(range(10))


def test_mounting_checks_what_is_mounted(sqlite):
    """What is not a feed, or misses its engine, is refused when the routes are made."""
    with pytest.raises(ConfigurationError, match="not a feed"):
        feed_routes("/", object())
    with pytest.raises(ConfigurationError, match="no engine"):
        feed_routes("/", Countdown(), sqlite)
