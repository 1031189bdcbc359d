"""What stands between a consumer and its feed, and what it answers in the feed's place."""

import gzip
import itertools
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anyio
import httpx
import pytest
from harness.faults.account import Account
from harness.faults.answer import head
from harness.web import answering

from zeroeventhub import FIRST, AsyncClient, AsyncConsumer, Client, Consumer, CursorStore
from zeroeventhub.errors import (
    BadRequest,
    CutPage,
    FeedError,
    Forbidden,
    NotFound,
    ProtocolError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Unreachable,
    ZeroEventHubError,
)

INFO = b'{"token":"t","partitions":[{"id":"0"}],"exactlyOnce":true}'
FIRST_PAGE = b'{"data":{"n":1}}\n{"cursor":"a"}\n'
PAGE = FIRST_PAGE + b'{"data":{"n":2}}\n{"cursor":"b"}\n'
REST = b'{"cursor":"b"}\n'
HTML = b"<html><body><h1>502 Bad Gateway</h1><hr>nginx</body></html>"
PACKED = gzip.compress(PAGE, mtime=0)
SECOND = gzip.compress(PAGE[len(FIRST_PAGE) :])
FLIPPED = PACKED[:-6] + bytes([PACKED[-6] ^ 1]) + PACKED[-5:]


QUICK = {"timeout": 10, "verify": False}
"""For clients in great number: to load certificates takes longer than most of these tests."""


def html(status, *fields):
    """Answer with a page for people, as a proxy does."""
    length = f"Content-Length: {len(HTML)}"
    return head(length, *fields, status=status, kind="text/html") + HTML


def page(body=PAGE, *fields, kind="application/x-ndjson", status="200 OK"):
    """Answer with a body that the connection's end ends."""
    return head(*fields, kind=kind, status=status) + body


def chunked(*chunks, end=b"0\r\n\r\n"):
    """Answer in chunks."""
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head("Transfer-Encoding: chunked") + body + end


def sync_fetch(url):
    """Fetch a page with the sync client."""
    with httpx.Client(**QUICK) as session:
        return Client(url, session).fetch(0, FIRST)


def async_fetch(url):
    """Fetch a page with the async client."""

    async def fetch():
        async with httpx.AsyncClient(**QUICK) as session:
            return await AsyncClient(url, session).fetch(0, FIRST)

    return anyio.run(fetch)


@pytest.fixture(params=[sync_fetch, async_fetch], ids=["sync", "async"])
def fetch(request):
    """A function that fetches the first page of partition 0, with either client."""
    return request.param


def served(answer):
    """Answer discovery well, and every page with the bytes given."""
    return answering(lambda target: answer if "/events" in target else page(INFO))


AGAIN = {
    "502": (html("502 Bad Gateway"), Unavailable),
    "503": (html("503 Service Unavailable"), Unavailable),
    "504": (html("504 Gateway Time-out"), Unavailable),
    "500": (html("500 Internal Server Error"), Unavailable),
    "520 of one proxy alone": (html("520 "), Unavailable),
    "408": (html("408 Request Timeout"), Unavailable),
    "425": (html("425 Too Early"), Unavailable),
    "429": (html("429 Too Many Requests"), TooManyRequests),
    "a login form": (html("200 OK"), Unavailable),
    "a page for people, in capitals": (page(HTML, kind="TEXT/HTML ; charset=x"), Unavailable),
    "events as a page for people": (page(kind="text/html"), Unavailable),
    "nothing, said to be nothing": (page(b"", "Content-Length: 0"), CutPage),
    "nothing, and the end": (page(b""), CutPage),
    "nothing, in no chunk": (chunked(), CutPage),
    "nothing but an event": (page(b'{"data":1}\n'), CutPage),
    "an error as JSON": (page(b'{"error":"upstream"}\n', kind="application/json"), CutPage),
    "an error's text, cut": (page(b"upstream request timeout"), CutPage),
    "a length too short": (page(PAGE, "Content-Length: 20"), CutPage),
    "two lengths": (page(PAGE, "Content-Length: 64", "Content-Length: 65"), Unreachable),
    "a length that is none": (page(PAGE, "Content-Length: many"), Unreachable),
    "a length below nothing": (page(PAGE, "Content-Length: -1"), Unreachable),
    "chunks that are none": (head("Transfer-Encoding: chunked") + PAGE, CutPage),
    "a framing that nobody asked for": (page(PAGE, "Transfer-Encoding: gzip"), Unreachable),
    "an answer of another protocol": (b"SSH-2.0-OpenSSH_9.6\r\n", Unreachable),
    "an answer without an end of its head": (b"HTTP/1.1 200 OK\r\nX: y\r\n", Unreachable),
}


@pytest.mark.parametrize(("answer", "error"), AGAIN.values(), ids=AGAIN)
def test_answer_that_may_be_better_the_next_time_is_transient(fetch, answer, error):
    """What a proxy answers when the feed is away leads to another try."""
    with served(answer) as url, pytest.raises(error):
        fetch(url)


FINAL = {
    "text behind a page": (page(PAGE + b"upstream timed out\n"), ProtocolError),
    "a byte order mark": (page(b"\xef\xbb\xbf" + PAGE), ProtocolError),
    "another encoding": (page(PAGE.decode().encode("utf-16")), ProtocolError),
    "an encoding that nobody asked for": (page(PAGE, "Content-Encoding: br"), ProtocolError),
    "gzip that is none": (page(PAGE, "Content-Encoding: gzip"), ProtocolError),
    "gzip with another byte": (page(FLIPPED, "Content-Encoding: gzip"), ProtocolError),
    "203": (page(status="203 Non-Authoritative Information"), FeedError),
    "204": (page(b"", status="204 No Content"), FeedError),
    "206": (page(PAGE[:40], status="206 Partial Content"), FeedError),
    "304": (page(b"", status="304 Not Modified"), ZeroEventHubError),
    "400": (html("400 Bad Request"), BadRequest),
    "401": (html("401 Unauthorized"), Unauthorized),
    "403": (html("403 Forbidden"), Forbidden),
    "404": (html("404 Not Found"), NotFound),
    "407": (html("407 Proxy Authentication Required"), BadRequest),
    "414": (html("414 URI Too Long"), BadRequest),
    "431": (html("431 Request Header Fields Too Large"), BadRequest),
    "451": (html("451 Unavailable For Legal Reasons"), BadRequest),
}


@pytest.mark.parametrize(("answer", "error"), FINAL.values(), ids=FINAL)
def test_answer_that_will_not_be_better_ends_the_reading(fetch, answer, error):
    """What no waiting mends is an error that is raised, and nothing of the answer is applied."""
    with served(answer) as url, pytest.raises(error):
        fetch(url)


WHOLE = {
    "text/plain": page(kind="text/plain"),
    "bytes": page(kind="application/octet-stream"),
    "JSON": page(kind="application/json; charset=utf-8"),
    "nothing": b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + PAGE,
    "HTTP/1.0": page().replace(b"HTTP/1.1", b"HTTP/1.0"),
    "one length twice": page(PAGE, *[f"Content-Length: {len(PAGE)}"] * 2),
    "chunks and a length": chunked(PAGE).replace(b"\r\n", b"\r\nContent-Length: 3\r\n", 1),
    "chunks with extensions": chunked(PAGE).replace(b"\r\n\r\n40\r\n", b"\r\n\r\n40;a=b\r\n", 1),
    "chunks of a byte": chunked(*[PAGE[n : n + 1] for n in range(len(PAGE))]),
    "chunks without their end": chunked(PAGE, end=b""),
    "a length too long": page(PAGE, "Content-Length: 1000"),
    "news before it": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + page(),
    "lines of others": page(b'\r\n \t\n{"comment":"proxied"}\n' + PAGE + b"\n\n"),
    "packed, though nobody asked": page(PACKED, "Content-Encoding: gzip"),
    "packed in two": page(gzip.compress(FIRST_PAGE) + SECOND, "Content-Encoding: gzip"),
    "an age": page(PAGE, "Age: 100", "X-Cache: HIT", "Via: 1.1 proxy"),
}


@pytest.mark.parametrize("answer", WHOLE.values(), ids=WHOLE)
def test_page_is_a_page_whatever_a_proxy_says_beside_it(fetch, answer):
    """Media types, lengths and headers that a proxy changes keep no event from the consumer."""
    with served(answer) as url:
        found = fetch(url)
    assert ([event.data["n"] for event in found.events], found.cursor) == ([1, 2], "b")


def test_length_that_ends_behind_a_checkpoint_is_a_shorter_page(fetch):
    """A buffering proxy that passes half of an answer on as the whole costs another request."""
    cut = len(FIRST_PAGE) + 9
    for answer in (page(PAGE, f"Content-Length: {cut}"), chunked(PAGE[:cut])):
        with served(answer) as url:
            found = fetch(url)
        assert ([event.data["n"] for event in found.events], found.cursor) == ([1], "a")


STATUSES = ("300", "301", "302", "303", "305", "307", "308")


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("where", ["discovery", "page"])
def test_credentials_go_nowhere_else(where, status):
    """A redirection is an error that says where to, and nobody there hears of the credentials."""
    elsewhere = []

    def other(target):
        elsewhere.append(target)
        return page(INFO)

    with answering(other) as away:
        moved = page(b"", f"Location: {away}/feed", status=f"{status} Moved")
        is_moved = {"discovery": lambda _: True, "page": lambda target: "/events" in target}[where]
        with answering(lambda target: moved if is_moved(target) else page(INFO)) as url:
            secret = {
                "auth": ("user", "canary"),
                "headers": {"X-API-Key": "canary"},
                "cookies": {"session": "canary"},
                "follow_redirects": True,
                **QUICK,
            }
            with httpx.Client(**secret) as session, pytest.raises(NotFound, match="moved to"):
                Client(url, session).fetch(0, FIRST)
            anyio.run(async_redirected, url, secret)
    # One connection is that by which the server is woken to its end.
    assert elsewhere == []


async def async_redirected(url, secret):
    """Show that the async client follows no redirection either."""
    async with httpx.AsyncClient(**secret) as session:
        with pytest.raises(NotFound, match="moved to"):
            await AsyncClient(url, session).fetch(0, FIRST)


class Pauses(logging.Handler):
    """Hear how long a consumer is about to pause, and stop it before it does."""

    def __init__(self, limit):
        super().__init__()
        self.seconds = []
        self.limit = limit
        self.stop = None

    def emit(self, record):
        """Take the seconds from what is logged."""
        self.seconds.append(record.args[1])
        if len(self.seconds) >= self.limit:
            self.stop()


@contextmanager
def listening_to_pauses(limit) -> Iterator[Pauses]:
    """Hear of a consumer's pauses; stop it at a number of them."""
    logger, pauses = logging.getLogger("zeroeventhub.consumer"), Pauses(limit)
    logger.addHandler(pauses)
    try:
        yield pauses
    finally:
        logger.removeHandler(pauses)


@pytest.fixture(scope="module")
def account(tmp_path_factory):
    """A consumer's database."""
    account = Account(tmp_path_factory.mktemp("account") / "consumer.db")
    yield account
    account.dispose()


names = (f"consumer {number}" for number in itertools.count())


def sync_pauses(account, url, limit):
    """Let a sync consumer meet errors; return its pauses."""
    with httpx.Client(**QUICK) as session, listening_to_pauses(limit) as pauses:
        consumer = Consumer(Client(url, session), CursorStore(account.engine), next(names))
        pauses.stop = consumer.stop
        assert list(consumer) == []
    return pauses.seconds


def async_pauses(account, url, limit):
    """Let an async consumer meet errors; return its pauses."""

    async def run():
        async with httpx.AsyncClient(**QUICK) as session:
            with listening_to_pauses(limit) as pauses:
                store = CursorStore(account.async_engine)
                consumer = AsyncConsumer(AsyncClient(url, session), store, next(names))
                pauses.stop = consumer.stop
                assert [page async for page in consumer] == []
        await account.async_engine.dispose()
        return pauses.seconds

    return anyio.run(run)


@pytest.fixture(params=[sync_pauses, async_pauses], ids=["sync", "async"])
def pauses_of(request, account):
    """A function that returns the pauses of a consumer of either kind."""
    return lambda url, limit=1: request.param(account, url, limit)


def in_time(**difference):
    """Write an HTTP date from the moment on at which the test runs."""
    return lambda: format_datetime(datetime.now(UTC) + timedelta(**difference), usegmt=True)


RETRY_AFTER = {
    "seconds": ("7", 7, 7),
    "seconds beyond the cap": ("1000000000", 30, 30),
    "seconds beyond all numbers": ("9" * 400, 30, 30),
    "a date": (in_time(seconds=20), 5, 20),
    "a date beyond the cap": (in_time(days=365), 30, 30),
    "a date in the past": (in_time(days=-1), 0, 0.2),
    "no seconds": ("0", 0, 0.2),
    "seconds below nothing": ("-5", 0, 0.2),
    "a part of a second": ("1.5", 0, 0.2),
    "a number of others": ("\u0667", 0, 0.2),
    "nothing": ("", 0, 0.2),
    "garbage": ("soon", 0, 0.2),
    "a date that is none": ("Wed, 99 Feb 2026 25:61:61 GMT", 0, 0.2),
    "two": ("5\r\nRetry-After: 9", 0, 0.2),
}


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
@pytest.mark.parametrize(("value", "least", "most"), RETRY_AFTER.values(), ids=RETRY_AFTER)
def test_retry_after_is_kept_within_reason(pauses_of, status, value, least, most):
    """A pause is as long as the feed asked for, at most 30 seconds; what says nothing is absent."""
    shown = value() if callable(value) else value
    with served(html(status, f"Retry-After: {shown}")) as url:
        (seconds,) = pauses_of(url)
    assert least <= seconds <= most


def test_pauses_grow_from_a_fifth_of_a_second(pauses_of):
    """Pauses behind the same error are random, within a bound that doubles."""
    with served(html("502 Bad Gateway")) as url:
        seconds = pauses_of(url, 4)
    assert all(each <= 0.1 * 2**tried for tried, each in enumerate(seconds, 1))
    assert len(set(seconds)) == 4


def test_feed_is_left_alone_as_long_as_it_asked(account):
    """Between an answer with Retry-After and the next request there are as many seconds."""
    asked = []

    def answer(target):
        if "/events" not in target:
            return page(INFO)
        asked.append(time.monotonic())
        return html("503 Busy", "Retry-After: 1") if len(asked) == 1 else page(REST)

    with answering(answer) as url, httpx.Client(**QUICK) as session:
        account.read_in_turn(Client(url, session), next(names), attempts=2)
    assert 1 <= asked[1] - asked[0] < 5


def test_tail_behind_the_head_is_read_in_the_same_run(account):
    """A checkpoint that is the head's is not, where a cut left events behind it."""
    hasty = FIRST_PAGE.replace(b'"a"', b'"a","caughtUp":true')
    answers = iter([page(hasty + b'{"data":{"n":2}}\n{"cur'), page(PAGE[len(FIRST_PAGE) :])])
    name = next(names)

    def answer(target):
        return next(answers, page(REST)) if "/events" in target else page(INFO)

    with answering(answer) as url, httpx.Client(**QUICK) as session:
        account.read_in_turn(Client(url, session), name)
    assert account.seen(name) == {0: [1, 2]}


def test_consumer_outlives_a_proxy_that_answers_in_the_place_of_its_feed(account):
    """Behind whatever a proxy answered meanwhile, each event takes effect once."""
    faults = [answer for answer, _ in AGAIN.values()]
    pages = [page(FIRST_PAGE), page(PAGE[len(FIRST_PAGE) :]), page(REST)]
    for fault in faults:
        answers = iter([fault, pages[0], fault, pages[1], fault])

        def answer(target, answers=answers):
            return next(answers, pages[2]) if "/events" in target else page(INFO)

        name = next(names)
        with answering(answer) as url, httpx.Client(**QUICK) as session:
            client = Client(url, session)
            for _ in range(3):
                with pytest.raises((Unavailable, Unreachable, CutPage)):
                    account.read_in_turn(client, name)
            account.read_in_turn(client, name)
        assert account.seen(name) == {0: [1, 2]}
