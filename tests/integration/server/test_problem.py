"""Problems of a feed as they are answered: constant text, a status and a kind."""

import httpx
import pytest
from harness.readers import get, mounted

from zeroeventhub import Principal, errors

SECRET = "kanarek"
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
def test_problem_is_answered_and_told(feed, records, watcher, case):
    """Each error has its status, its kind and its loudness; answer and record share an id."""
    feed.error, status, kind, level = case
    options = {"authorize": lambda request: Principal(name="alice"), "observer": watcher}
    with mounted(feed, name="orders", **options) as url:
        answer = get(url)
    document = answer.json()
    assert (answer.status_code, document["status"]) == (status, status)
    assert document["type"] == f"urn:zeroeventhub:problem/{kind}"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
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
    assert [(one.status, one.principal) for one in watcher.answers] == [(status, "alice")]


class Odd(errors.FeedError):
    """A refusal of a feed's own."""

    status = 418
    problem = "teapot"


def test_problem_tells_what_its_error_knows(feed):
    """A refused reader is told when to come back, how to say who it is, or where history begins;
    and a feed may have errors of its own.
    """
    with mounted(feed) as url:
        for error, name, value in [
            (errors.Unavailable("why"), "Retry-After", "1"),
            (errors.Unavailable("why", retry_after=0.01), "Retry-After", "1"),
            (errors.Unavailable("why", retry_after=2.1), "Retry-After", "3"),
            (errors.TooManyRequests("why", retry_after=7), "Retry-After", "7"),
            (errors.Unauthorized("why"), "WWW-Authenticate", "Bearer"),
            (errors.Unauthorized("why", challenge="Basic a=b"), "WWW-Authenticate", "Basic a=b"),
            (errors.Forbidden("why"), "Retry-After", None),
            (errors.Forbidden("why"), "WWW-Authenticate", None),
            (errors.FeedFailure("why"), "Retry-After", None),
            (errors.Unreachable("why"), "Retry-After", None),
        ]:
            feed.error = error
            assert get(url).headers.get(name) == value, error
        for error, earliest in [
            (errors.Trimmed("why", earliest="7"), "7"),
            (errors.Trimmed("why"), "_first"),
            (errors.Diverged("why"), None),
        ]:
            feed.error = error
            assert get(url).json().get("earliestCursor") == earliest
        feed.error = Odd("why")
        answer = get(url)
    document = answer.json()
    assert (answer.status_code, document["type"]) == (418, "urn:zeroeventhub:problem/teapot")
    assert (document["title"], document["detail"]) == ("The feed refused the request.", "why")


@pytest.mark.parametrize("error", [KeyError(SECRET), errors.Unavailable("Away.")])
def test_stream_that_fails_is_ended_and_told(feed, records, capfd, error):
    """A stream ends where its feed fails, and the log is told as of any other answer."""
    with (
        mounted(feed, server_sent_events=True) as url,
        httpx.stream("GET", f"{url}/server-sent-events", timeout=10) as stream,
    ):
        received = b""
        for chunk in stream.iter_raw():
            received += chunk
            feed.error = error
        assert received == b'id: 1\ndata: {"n":0}\n\n'
    record = records()[-1]
    assert record.route == "server-sent-events"
    assert record.status == getattr(error, "status", 500)
    assert SECRET not in record.getMessage() + "".join(capfd.readouterr())
