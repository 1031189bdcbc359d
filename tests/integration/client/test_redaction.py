"""A canary in every place where a secret may be, looked for in all that is said."""

import base64
import logging
import traceback

import httpx
import pytest
from harness.calling import INFO, PAGE, answer, async_call, pool_call, sync_call
from harness.dripping import dripping

from zeroeventhub import Client
from zeroeventhub.errors import ConfigurationError, ZeroEventHubError

CANARY = "kanarek"
HIDDEN = "[hidden]"


class KeyInQuery(httpx.Auth):
    """An authentication of the caller's that adds to the query."""

    def auth_flow(self, request):
        request.url = request.url.copy_merge_params({"key": "kanarek"})
        yield request


# Each secret is of its own, so that none is hidden because it is a part of another.
PLACES = {
    "password": ("http://user:kanarek-1@{host}/feed", {}),
    "escapes": ("http://user:k%61narek-3%2Fkanarek-4@{host}/feed", {}),
    "query": ("http://{host}/feed?code=kanarek-5", {}),
    "bare query": ("http://{host}/feed?kanarek-6", {}),
    "everything": (
        "http://user:kanarek-10@{host}/feed?code=kanarek-11&kanarek-12#kanarek-13",
        {
            "headers": {"Authorization": "Bearer kanarek-14", "X-API-Key": "kanarek-15"},
            "cookies": {"session": "kanarek-16"},
            "params": {"code": "kanarek-17"},
        },
    ),
    "authentication": ("http://{host}/feed", {"auth": ("user", "kanarek-18")}),
}


def echo(request):
    """A problem document that repeats all of the request."""
    text = request.replace("\\", "").replace('"', "").replace("\r\n", " ")
    return ('{"type":"urn:x/bad-request","detail":"' + text + '"}').encode()


def good(request):
    """What a feed answers."""
    return answer(PAGE if "/events" in request else INFO)


FAILURES = {
    "web page": lambda _: answer(b"<html>", kind="text/html"),
    "coding": lambda _: answer(b"[]", "Content-Encoding: br"),
    "bad request": lambda _: answer(status="400 No"),
    "echo": lambda request: answer(echo(request), status="422 No"),
    "busy echo": lambda request: answer(echo(request), status="503 No"),
    "moved": lambda request: answer(
        b"", f"Location: {request.split(' ')[1]}&again", status="302 Found"
    ),
    "moved with a password": lambda _: answer(
        b"", "Location: http://u:kanarek-20@h/moved?kanarek-21", status="302 Found"
    ),
    "moved to a secret": lambda _: answer(b"", "Location: /kanarek-15", status="302 Found"),
    "moved nowhere": lambda _: answer(b"", "Location: http://u:kanarek-20@[/", status="302 Found"),
    "garbage": lambda _: b"garbage",
    "broken off": lambda _: answer(b"[", "Content-Length: 9"),
    "good": good,
}
ECHOING, LAST = {"echo", "moved", "good"}, "everything"
"""Failures that are shown for each place by itself, and the place that is enough for others."""


def answering(reply):
    """Answer every request with the bytes chosen by all of its text."""
    return dripping(lambda request: [(reply(request), 0.0)])


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


@pytest.mark.parametrize(
    ("failure", "place"),
    [(one, place) for one in FAILURES for place in PLACES if one in ECHOING or place == LAST],
)
def test_secret_is_told_nowhere(any_call, said, failure, place):
    """Whatever goes wrong, secrets are in no exception, in no log record and in no repr."""
    address, session = PLACES[place]
    seen = []

    def reply(request):
        seen.append(request)
        return FAILURES[failure](request)

    with answering(reply) as url:
        address = address.format(host=url.removeprefix("http://"))
        try:
            shown = repr(any_call(address, session={"timeout": 2, **session}))
        except ZeroEventHubError as error:
            shown = told(error)
    assert seen, "nothing was asked"
    assert said() or any_call is pool_call, "nothing was logged"
    logged = said()
    if failure.startswith("moved "):
        # This server has a canary of its own, in a header that httpcore logs.
        logged = "\n".join(line for line in logged.splitlines() if "Location" not in line)
    assert CANARY not in shown
    assert CANARY not in logged


def test_credentials_of_a_url_are_sent(call):
    """User and password of a URL are sent as httpx would have, and are not in the target."""
    seen = []

    def reply(request):
        seen.append(request)
        return good(request)

    with answering(reply) as url:
        call(url.replace("//", "//us%20er:pass%3Aword@"))
        assert len(seen) == 2
        basic = base64.b64encode(b"us er:pass:word").decode()
        assert all(f"Authorization: Basic {basic}" in request for request in seen)
        assert all("user" not in request.split(" HTTP")[0] for request in seen)
        seen.clear()
        call(url.replace("//", "//a:b@"), session={"auth": ("mine", "own")})
        basic = base64.b64encode(b"mine:own").decode()
        assert all(f"Authorization: Basic {basic}" in request for request in seen)
        seen.clear()
        call(url.replace("//", "//a:b@"), session={"headers": {"Authorization": "Bearer own"}})
        assert all("Authorization: Bearer own" in request for request in seen)


@pytest.mark.parametrize("call", [sync_call, async_call])
def test_log_of_httpx_is_left_alone_where_nothing_is_secret(call, caplog):
    """What the protocol asks for stands in httpx's log, and so do requests of others."""
    caplog.set_level(logging.INFO, logger="httpx")
    with answering(good) as url:
        call(f"{url}/feed")
        call(f"{url}/feed?code=1")
        with httpx.Client(headers={"X-API-Key": "other"}) as given:
            given.get(f"{url}/other?x=1")
    addresses = [record.getMessage().split(" ")[3] for record in caplog.records]
    assert addresses == [
        f"{url}/feed",
        f"{url}/feed/events?token=t&partition=0&cursor=_first",
        f"{url}/feed",
        f"{url}/feed/events",
        f"{url}/other?x=1",
    ]


@pytest.mark.parametrize("name", ["httpx", "httpcore.http11", "httpcore.proxy", "hpack.hpack"])
def test_records_of_httpx_and_its_parts_are_rewritten(said, name):
    """What httpx and its parts log while a feed is asked is rewritten, however it is said."""

    def reply(request):
        logging.getLogger(name).debug("Adding %r of %s", b"kanarek", "others")
        logging.getLogger(name).debug("%(a)s", {"a": "kanarek"})
        return httpx.Response(200, content=INFO)

    transport = httpx.MockTransport(reply)
    with httpx.Client(headers={"X-API-Key": CANARY}, transport=transport) as given:
        Client("http://h/f", given).discover()
    assert f"Adding b'{HIDDEN}' of others" in said()
    assert CANARY not in said()


def test_secrets_on_the_way_to_the_feed_are_not_logged(call, said):
    """No log record has a short password of the URL, or a key that authentication adds to it."""
    with answering(good) as url:
        call(url.replace("//", "//:pw@"))
        call(url, session={"auth": KeyInQuery()})
    assert "HTTP Request" in said()
    assert "pw" not in said()
    assert CANARY not in said()


def test_secret_is_hidden_in_every_form(any_call):
    """Secrets in what a feed says are hidden in each spelling, unless under four characters."""
    told = ["pass word", "pass%20word", "user:pass%20word", "co&de", "co%26de", "biscuit", "bearer"]
    told += [base64.b64encode(b"user:pass word").decode(), "a+key", "a%2Bkey"]
    detail = "; ".join(["1 table", *told]).encode()
    sent = answer(b'{"type":"urn:x/gone","detail":"%b"}' % detail, status="410 No")
    session = {
        "headers": {"Authorization": "Bearer bearer", "X-API-Key": "a+key"},
        "cookies": {"session": "biscuit"},
    }
    with answering(lambda _: sent) as url, pytest.raises(ZeroEventHubError) as caught:
        address = url.replace("//", "//user:pass%20word@") + "/f?code=co%26de&v=1&w=abl"
        any_call(address, session=session)
    assert str(caught.value) == "; ".join(["1 table", *[HIDDEN] * len(told)])


@pytest.mark.parametrize(
    "url",
    [
        *["user:kanarek@host/feed", "kanarek", "ftp://user:kanarek@host/", "http://u:p#kanarek@h/"],
        *["http://user:kanarek@/feed", "http://user:kanarek@host:port/?kanarek", "", "http://"],
        *["http://user:kanarek@host:65536/", "http://user:kanarek@host:-1/"],
    ],
)
def test_address_that_is_none_is_not_repeated(url):
    """What is refused as an address may be a secret, all of it."""
    with httpx.Client() as given, pytest.raises(ConfigurationError) as caught:
        Client(url, given)
    assert CANARY not in told(caught.value)


@pytest.mark.parametrize(
    ("value", "error"),
    [(b"Bearer kanarek\n", ConfigurationError), (b"kanarek\x00", ZeroEventHubError)],
)
def test_header_that_cannot_be_sent_is_not_repeated(any_call, value, error):
    """A header that is not of HTTP's form is an error without its value; with a line end, as of a
    token that was read from a file, it is no error of the network.
    """
    with answering(lambda _: b"") as url, pytest.raises(error) as caught:
        any_call(url, session={"headers": {"Authorization": value}})
    assert CANARY not in told(caught.value)
