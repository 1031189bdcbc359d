"""Problems of a feed: what is answered, what the log is told, and how often."""

import http.client
import json
import logging
import re
from types import SimpleNamespace

import pytest
from harness.web import serving
from starlette.applications import Starlette

from zeroeventhub import Event, FeedInfo, Page, errors, feed_routes
from zeroeventhub.protocol import WAIT
from zeroeventhub.server import Observer, Principal, incidents

SECRET = "kanarek"
PLACE = "/orders/events?token=1&partition=0&cursor=_first"


class Failing:
    """A feed that fails as a test says."""

    def __init__(self):
        self.error = None

    def info(self):
        return FeedInfo.of(1)

    def read(self, partition, cursor, limit, **options):
        if self.error is not None:
            raise self.error
        return Page([Event.of("data")], "1")


class Listening(Observer):
    """An observer that keeps what it hears."""

    def __init__(self):
        self.heard = []

    def answered(self, answered):
        self.heard.append(answered)


@pytest.fixture
def feed():
    """A feed that fails as a test says."""
    return Failing()


@pytest.fixture
def observer():
    """An observer that keeps what it hears."""
    return Listening()


@pytest.fixture
def hook():
    """A hook that lets in whoever it is, and raises what a test says."""

    async def authorize(request):
        if authorize.error is not None:
            raise authorize.error
        return Principal(name="alice")

    authorize.error = None
    return authorize


@pytest.fixture
def ask(feed, observer, hook):
    """A function that asks the feed, in an application that shows errors to everybody."""
    routes = feed_routes("/orders", feed, name="orders", observer=observer, authorize=hook)
    with serving(Starlette(debug=True, routes=routes)) as url:
        host = url.removeprefix("http://")

        def ask(target=PLACE, **headers):
            connection = http.client.HTTPConnection(host, timeout=30)
            connection.request("GET", target, headers=headers)
            answer = connection.getresponse()
            found = SimpleNamespace(
                status=answer.status, headers=answer.headers, text=answer.read().decode()
            )
            connection.close()
            return found

        yield ask


@pytest.fixture
def records(caplog):
    """A function that returns what the feed has logged so far."""
    caplog.set_level(logging.DEBUG, "zeroeventhub")
    return lambda: [one for one in caplog.records if one.name.startswith("zeroeventhub")]


ERRORS = [
    (errors.BadRequest("why"), 400, "bad-request", "DEBUG"),
    (errors.BadCursor("why"), 400, "bad-cursor", "DEBUG"),
    (errors.Unauthorized("why"), 401, "unauthorized", "INFO"),
    (errors.Forbidden("why"), 403, "forbidden", "INFO"),
    (errors.NotFound("why"), 404, "not-found", "DEBUG"),
    (errors.TokenChanged("why"), 409, "token-changed", "DEBUG"),
    (errors.Trimmed("why"), 410, "trimmed", "INFO"),
    (errors.Diverged("why"), 410, "diverged", "INFO"),
    (errors.TooManyRequests("why", retry_after=0.2), 429, "too-many-requests", "INFO"),
    (errors.Unavailable("why"), 503, "unavailable", "WARNING"),
    (errors.FeedFailure(SECRET), 500, "failed", "ERROR"),
    (errors.ConfigurationError(SECRET), 500, "failed", "ERROR"),
    (errors.Unreachable(SECRET), 500, "failed", "ERROR"),
    (KeyError(SECRET), 500, "failed", "ERROR"),
]


@pytest.mark.parametrize("case", ERRORS, ids=[type(one[0]).__name__ for one in ERRORS])
def test_problem_is_answered_and_told(feed, ask, records, observer, case):
    """Each error has its status, its type and its loudness; answer and record share an id."""
    feed.error, status, kind, level = case
    answer = ask()
    document = json.loads(answer.text)
    assert (answer.status, document["status"]) == (status, status)
    assert document["type"] == f"urn:zeroeventhub:problem/{kind}"
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.headers["Cache-Control"] == "no-store"
    assert document["title"]
    assert document["detail"] == (
        "The reason is in the publisher's log." if status == 500 else "why"
    )
    assert SECRET not in answer.text
    (record,) = records()
    assert (record.levelname, record.name) == (level, "zeroeventhub.server")
    told = (record.feed, record.route, record.principal, record.status, record.problem)
    assert told == ("orders", "events", "alice", status, kind)
    assert document["instance"] == f"urn:uuid:{record.request_id}"
    for word in (record.request_id, f"status={status}", f"problem={kind}", "principal=alice"):
        assert word in record.getMessage()
    assert record.exc_info is None
    assert [(one.status, one.principal) for one in observer.heard] == [(status, "alice")]


@pytest.mark.parametrize(
    ("error", "name", "value"),
    [
        (errors.Unavailable("why"), "Retry-After", "1"),
        (errors.Unavailable("why", retry_after=0.01), "Retry-After", "1"),
        (errors.Unavailable("why", retry_after=2.1), "Retry-After", "3"),
        (errors.TooManyRequests("why", retry_after=7), "Retry-After", "7"),
        (errors.Unauthorized("why"), "WWW-Authenticate", "Bearer"),
        (
            errors.Unauthorized("why", challenge="Basic realm=x"),
            "WWW-Authenticate",
            "Basic realm=x",
        ),
        (errors.Forbidden("why"), "Retry-After", None),
        (errors.FeedFailure("why"), "Retry-After", None),
        (errors.Unreachable("why"), "Retry-After", None),
    ],
)
def test_headers_of_a_problem(feed, ask, error, name, value):
    """Whoever is refused is told when to come back, or how to say who it is."""
    feed.error = error
    assert ask().headers[name] == value


class Odd(errors.FeedError):
    """A refusal of a feed's own."""

    status = 418
    problem = "teapot"


def test_refusal_of_ones_own_is_answered(feed, ask):
    """An error that says its status and its problem needs nobody who knows it."""
    feed.error = Odd("why")
    answer = ask()
    document = json.loads(answer.text)
    assert (answer.status, document["type"]) == (418, "urn:zeroeventhub:problem/teapot")
    assert (document["title"], document["detail"]) == ("The feed refused the request.", "why")


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        ("0af7651916cd43dd-8448_eb.211C", "0af7651916cd43dd-8448_eb.211C"),
        ("x" * 128, "x" * 128),
        ("x" * 129, None),
        ("a b", None),
        ("a;b=1", None),
        ("é", None),
        ("", None),
    ],
)
def test_id_of_a_proxy_is_told(feed, ask, records, sent, told):
    """An id in the header X-Request-Id is told if it is harmless; the answer has its own."""
    feed.error = errors.Forbidden("why")
    answer = ask(**{"X-Request-Id": sent})
    (record,) = records()
    assert record.x_request_id == told
    assert (f"x_request_id={told}" in record.getMessage()) == (told is not None)
    assert not sent or sent not in answer.text
    assert re.fullmatch(r"[0-9a-f-]{36}", record.request_id)


def test_failure_is_told_once(feed, ask, records):
    """Hundreds of failures by one cause are one record, which says where it came from."""
    feed.error = KeyError(SECRET)
    for number in range(200):
        assert ask(f"{PLACE}{number}").status == 500
    (record,) = records()
    message = record.getMessage()
    assert "zeroeventhub.errors.FeedFailure: The feed failed in an unexpected way." in message
    assert "because of builtins.KeyError\n" in message
    assert f"    {__file__}:" in message
    assert message.endswith(" in Failing.read")
    assert SECRET not in message
    feed.error = ValueError(SECRET)
    ask()
    assert len(records()) == 2


def test_failure_that_comes_back_is_told_again(feed, ask, records, monkeypatch):
    """After an answer that went well a failure is told again, with those that were not told."""
    monkeypatch.setattr(incidents, "PAUSE", 0.0)
    error, feed.error = KeyError(), KeyError()
    ask()
    ask()
    feed.error = None
    assert ask().status == 200
    feed.error = error
    ask()
    ask()
    assert [(record.status, record.times) for record in records()] == [(500, 1), (500, 2)]


def test_refusals_are_told_once_for_each_principal(ask, records, hook, monkeypatch):
    """A reader that is refused again and again is one record, however well others are answered."""
    monkeypatch.setattr(incidents, "PAUSE", 0.0)
    hook.error = errors.Unauthorized("why")
    for _ in range(20):
        assert ask().status == 401
    hook.error = None
    assert ask().status == 200
    hook.error = errors.Unauthorized("why")
    ask()
    assert [(one.status, one.principal) for one in records()] == [(401, "")]


def test_words_of_a_hook_are_for_the_reader_alone(ask, records, hook):
    """What a hook says of a refusal is answered, and not logged."""
    hook.error = errors.Forbidden(f"Not with {SECRET}.")
    assert json.loads(ask().text)["detail"] == f"Not with {SECRET}."
    (record,) = records()
    assert SECRET not in record.getMessage()


class Streaming(Failing):
    """A feed whose second page fails."""

    def info(self):
        return FeedInfo(super().info().partitions, "1", extensions=frozenset({WAIT}))

    def head(self):
        return 1

    def read(self, partition, cursor, limit, **options):
        if cursor == "_first":
            return Page([Event.of("data")], "1", cursors=["1"])
        raise self.error


@pytest.mark.parametrize("error", [KeyError(SECRET), errors.Unavailable("Away.")])
def test_stream_that_fails_is_ended_and_told(records, capfd, error):
    """A stream ends where its feed fails, and the log is told as of any other answer."""
    feed = Streaming()
    feed.error = error
    routes = feed_routes("/orders", feed, name="orders", server_sent_events=True)
    with serving(Starlette(debug=True, routes=routes)) as url:
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
        connection.request("GET", "/orders/server-sent-events?cursor=_first")
        assert connection.getresponse().read() == b'id: 1\ndata: "data"\n\n'
        connection.close()
    (record,) = records()
    assert record.route == "server-sent-events"
    assert record.status == getattr(error, "status", 500)
    assert SECRET not in record.getMessage()
    assert SECRET not in "".join(capfd.readouterr())
