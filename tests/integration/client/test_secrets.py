"""A canary in every place where a secret may be, looked for in all that is said."""

import base64
import logging
import traceback
from types import SimpleNamespace

import anyio
import httpx
import pytest
from harness.dripping import dripping

from zeroeventhub import FIRST, AsyncClient, Client
from zeroeventhub._http.redaction import HIDDEN, Redaction
from zeroeventhub.errors import ConfigurationError, ZeroEventHubError

CANARY = "kanarek"
INFO = b'{"token":"t","partitions":[{"id":"0"}]}'
PAGE = b'{"data":1}\n{"cursor":"a"}\n'

ADDRESSES = [
    "http://user:kanarek@{host}/feed",
    "http://kanarek@{host}/feed",
    "http://user:k%61narek%2Fkanarek@{host}/feed",
    "http://{host}/feed?code=kanarek",
    "http://{host}/feed?kanarek",
    "http://{host}/feed?token=kanarek&a=b",
    "http://{host}/feed?code=kanarek%26+kanarek",
    "http://{host}/feed#kanarek",
]
SESSIONS = [
    {"headers": {"Authorization": "Bearer kanarek-1"}},
    {"headers": {"X-API-Key": "kanarek-2"}},
    {"cookies": {"session": "kanarek-3"}},
    {"params": {"code": "kanarek-4"}},
    {"auth": ("user", "kanarek-5")},
]


def http(body, *lines, status="200 OK"):
    """Write an answer that ends with its connection."""
    head = "\r\n".join([f"HTTP/1.1 {status}", "Connection: close", *lines, "", ""])
    return head.encode() + body


def echo(request):
    """A problem document that repeats all of the request."""
    text = request.replace("\\", "").replace('"', "").replace("\r\n", " ")
    return ('{"type":"urn:x/bad-request","detail":"' + text + '"}').encode()


FAILURES = {
    "web page": lambda _: http(b"<html>", "Content-Type: text/html"),
    "no feed": lambda _: http(b"[]"),
    "no gzip": lambda _: http(b"[]", "Content-Encoding: gzip"),
    "coding": lambda _: http(b"[]", "Content-Encoding: br"),
    "server error": lambda _: http(b"", status="500 No"),
    "too many": lambda _: http(b"", "Retry-After: 1", status="429 No"),
    "bad request": lambda _: http(b"", status="400 No"),
    "echo": lambda request: http(echo(request), status="422 No"),
    "moved": lambda request: http(
        b"", f"Location: {request.split(' ')[1]}&again", status="302 Found"
    ),
    "moved with a password": lambda _: http(
        b"", "Location: http://u:kanarek@h/kanarek?kanarek", status="302 Found"
    ),
    "moved nowhere": lambda _: http(b"", "Location: http://u:kanarek@[/", status="302 Found"),
    "unauthorized": lambda _: http(b"", status="401 No"),
    "forbidden": lambda _: http(b"", status="403 No"),
    "not found": lambda _: http(b"", status="404 No"),
    "conflict": lambda _: http(b"", status="409 No"),
    "gone": lambda _: http(b"", status="410 No"),
    "garbage": lambda _: b"garbage",
    "nothing": lambda _: b"",
    "broken off": lambda _: http(b"[", "Content-Length: 9"),
    "long": lambda _: http(b" " * 9_000_000),
    "good": lambda request: http(PAGE if "/events" in request else INFO),
}


def answering(answer):
    """Answer every request with the bytes chosen by all of its text."""
    return dripping(lambda request: [(answer(request), 0.0)])


def sync_fetch(url, session):
    """Fetch a page with the sync client; return the client's form in logs as well."""
    with httpx.Client(timeout=2, verify=False, **session) as given:
        client = Client(url, given)
        client.fetch(0, FIRST)
        return client


def async_fetch(url, session):
    """Fetch a page with the async client."""

    async def fetch():
        async with httpx.AsyncClient(timeout=2, verify=False, **session) as given:
            client = AsyncClient(url, given)
            await client.fetch(0, FIRST)
            return client

    return anyio.run(fetch)


@pytest.fixture(params=[sync_fetch, async_fetch], ids=["sync", "async"])
def fetch(request):
    """A function that fetches a page with either client."""
    return request.param


@pytest.fixture
def said(caplog):
    """A function that returns all that was logged so far, of all loggers at all levels."""
    caplog.set_level(logging.DEBUG)

    def text():
        return "\n".join(f"{r.name} {r.getMessage()} {r.args!r}" for r in caplog.records)

    return text


def told(error):
    """Every text of an exception and of all that it is shown with."""
    seen = "".join(traceback.format_exception(error))
    while error is not None:
        seen += f"{error!r} {error} {error.args!r} {vars(error)!r}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return seen


@pytest.fixture(scope="module")
def feed():
    """A server that answers as the test says just then: its host, what to answer, what it saw."""
    now = SimpleNamespace(host="", answer=None, seen=[])

    def answer(request):
        now.seen.append(request)
        return now.answer(request)

    with answering(answer) as url:
        now.host = url.removeprefix("http://")
        yield now


CASES = [(sync_fetch, failure) for failure in FAILURES]
CASES += [(async_fetch, failure) for failure in ("echo", "moved", "garbage", "good")]


@pytest.mark.parametrize(
    ("fetch", "failure"), CASES, ids=[f"{fetch.__name__}-{failure}" for fetch, failure in CASES]
)
@pytest.mark.parametrize("place", ADDRESSES + SESSIONS, ids=str)
def test_secret_is_told_to_nobody(fetch, said, feed, failure, place):
    """Whatever goes wrong, secrets are in no exception, in no log record and in no repr."""
    address, session = ("http://{host}/feed", place) if isinstance(place, dict) else (place, {})
    feed.answer = FAILURES[failure]
    feed.seen.clear()
    try:
        shown = repr(fetch(address.format(host=feed.host), session))
    except ZeroEventHubError as error:
        shown = told(error)
    assert feed.seen, "nothing was asked"
    assert said(), "nothing was logged"
    logged = said()
    if failure.startswith("moved "):
        # This server has a canary of its own, in a header that httpcore logs.
        shown = shown.replace("http://h/kanarek", "")
        logged = "\n".join(line for line in logged.splitlines() if "Location" not in line)
    assert CANARY not in shown
    assert CANARY not in logged


def test_credentials_of_a_url_are_sent(fetch):
    """User and password of a URL are sent as httpx would have, and are not in the target."""
    seen = []

    def answer(request):
        seen.append(request)
        return http(PAGE if "/events" in request else INFO)

    with answering(answer) as url:
        fetch(url.replace("//", "//us%20er:pass%3Aword@"), {})
        assert len(seen) == 2
        basic = base64.b64encode(b"us er:pass:word").decode()
        assert all(f"Authorization: Basic {basic}" in request for request in seen)
        assert all("user" not in request.split(" HTTP")[0] for request in seen)


def test_authentication_of_the_callers_client_goes_first(fetch):
    """A user in the URL does not replace what the caller's httpx client has been given."""
    seen = []

    def answer(request):
        seen.append(request)
        return http(PAGE if "/events" in request else INFO)

    with answering(answer) as url:
        fetch(url.replace("//", "//a:b@"), {"auth": ("mine", "own")})
    basic = base64.b64encode(b"mine:own").decode()
    assert all(f"Authorization: Basic {basic}" in request for request in seen)


def test_log_of_httpx_is_left_alone_where_nothing_is_secret(fetch, caplog):
    """What the protocol asks for stands in httpx's log, and so do requests of others."""
    caplog.set_level(logging.INFO, logger="httpx")
    with answering(FAILURES["good"]) as url:
        fetch(f"{url}/feed", {})
        fetch(f"{url}/feed?code=1", {})
        with httpx.Client() as given:
            given.get(f"{url}/other?x=1")
    addresses = [record.getMessage().split(" ")[3] for record in caplog.records]
    assert addresses == [
        f"{url}/feed",
        f"{url}/feed/events?token=t&partition=0&cursor=_first",
        f"{url}/feed",
        f"{url}/feed/events",
        f"{url}/other?x=1",
    ]


class KeyInQuery(httpx.Auth):
    """An authentication of the caller's that adds to the query."""

    def auth_flow(self, request):
        request.url = request.url.copy_merge_params({"key": "kanarek"})
        yield request


def test_what_the_callers_authentication_adds_is_not_logged(fetch, said):
    """A key that is put into the query of a request on its way is in no log record."""
    with answering(FAILURES["good"]) as url:
        fetch(url, {"auth": KeyInQuery()})
    assert "HTTP Request" in said()
    assert CANARY not in said()


def test_short_password_of_a_url_is_not_logged(fetch, said):
    """A password in the URL is kept out of it from the beginning, however short it is."""
    with answering(FAILURES["good"]) as url:
        fetch(url.replace("//", "//:pw@"), {})
    assert "HTTP Request" in said()
    assert "pw" not in said()


def test_secret_in_the_path_of_a_redirection_is_hidden(fetch):
    """Where a feed has moved is told without the secrets that it was asked with."""
    moved = http(b"", "Location: /login/kanarek", status="302 Found")
    with answering(lambda _: moved) as url, pytest.raises(ZeroEventHubError) as caught:
        fetch(url, {"headers": {"X-API-Key": CANARY}})
    assert "/login/" in str(caught.value)
    assert CANARY not in told(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "user:kanarek@host/feed",
        "kanarek",
        "ftp://user:kanarek@host/",
        "http://user:kanarek@/feed",
        "http://user:kanarek@host:port/?kanarek",
        "http://u:can#ary@h/",
    ],
)
def test_address_that_is_none_is_not_repeated(url):
    """What is refused as an address may be a secret, all of it."""
    with httpx.Client() as given, pytest.raises(ConfigurationError) as caught:
        Client(url, given)
    assert CANARY not in told(caught.value)


def test_header_that_cannot_be_sent_is_not_repeated(fetch):
    """A header that is not of HTTP's form is an error without its value."""
    with answering(lambda _: b"") as url:
        for value in (b"kanarek\n", b"kanarek\x00"):
            session = {"headers": {"Authorization": value}}
            with pytest.raises(ZeroEventHubError) as caught:
                fetch(url, session)
            assert CANARY not in told(caught.value)


def test_client_shows_where_it_reads():
    """A client's repr is the feed's address without its secrets."""
    with httpx.Client() as given:
        assert repr(Client("http://u:p@h/f?c=1#d", given)) == "Client('http://h/f')"


@pytest.mark.parametrize(
    "name",
    [
        *["httpx", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy"],
        *["httpcore.socks", "hpack.hpack", "hpack.table"],
    ],
)
def test_records_are_rewritten_only_while_a_feed_is_asked(caplog, name):
    """Secrets are hidden in the records of one request, and no other record is touched."""
    caplog.set_level(logging.DEBUG)
    with httpx.Client(headers={"X-API-Key": "kanarek"}) as given:
        url = httpx.URL("http://h/f")
        with Redaction(url, given).asking(url):
            logging.getLogger(name).debug("Adding %r of %s", b"kanarek", "others")
            logging.getLogger(name).debug("%(a)s", {"a": "kanarek"})
            logging.getLogger("others").debug("kanarek")
        logging.getLogger(name).debug("kanarek")
    hidden = f"Adding b'{HIDDEN}' of others"
    assert [record.getMessage() for record in caplog.records] == [
        *[hidden, HIDDEN, "kanarek", "kanarek"]
    ]


def test_short_values_are_no_secrets():
    """What is found in any text is not hidden in it."""
    with httpx.Client() as given:
        redaction = Redaction(httpx.URL("http://h/f?v=1&w=ab&key=abcd"), given)
        assert redaction.text("1 table of abcd") == f"1 table of {HIDDEN}"
