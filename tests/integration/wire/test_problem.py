"""What the client reads in an answer that is no page: a problem, and when to come back."""

import math
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from harness.calling import answer, problem, raw_feed

from zeroeventhub import errors

OLD = {"detail": "Too old."}


@pytest.mark.parametrize(
    ("members", "earliest", "said"),
    [
        (OLD | {"earliestCursor": "2-17"}, "2-17", "Too old."),
        *[(OLD | {"earliestCursor": odd}, None, "Too old.") for odd in ("", ["2-17"])],
        ({"detail": 7}, None, "{} answered with status 410."),
    ],
)
def test_trimmed_tells_where_history_begins(any_call, members, earliest, said):
    """The exception has the earliest cursor; a detail of another form is passed over."""
    gone = problem("trimmed", **members)
    with raw_feed(gone) as (url, _), pytest.raises(errors.Trimmed) as caught:
        any_call(url)
    assert (caught.value.earliest, str(caught.value)) == (earliest, said.format(url))


@pytest.mark.parametrize(
    "body",
    [b'{"type":"x/trimmed","detail":"\xff"}', b"[" * 10_000, b"null", b'{"type":["x/trimmed"]}'],
    ids=lambda body: repr(body[:20]),
)
def test_problem_that_cannot_be_read_is_known_by_its_status(any_call, body):
    """What is no problem document in an answer's body never hides the answer."""
    missing = answer(body, status="404 Not Found")
    with raw_feed(missing) as (url, _), pytest.raises(errors.NotFound, match="There is no feed"):
        any_call(url)


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("text/plain; charset=utf-8", b"partition doesn't exist\n", ": partition doesn't exist"),
        ("application/json", b'{"detail":"No n"}', ': {"detail":"No n"}'),
        ("text/plain", b"\x1b[2J\n" + b"x" * 400, ": \\x1b[2J\\n" + "x" * 295 + "\u2026"),
        ("text/plain", b"\n", "."),
        ("text/html", b"<h1>Bad Request</h1>", "."),
    ],
)
def test_refusal_of_a_peer_is_repeated(any_call, kind, body, said):
    """What the Go and Python peers say in a refusal is part of the error, and a web page is not."""
    refused = answer(body, status="400 Bad Request", kind=kind)
    with raw_feed(refused) as (url, _), pytest.raises(errors.BadRequest) as caught:
        any_call(url)
    assert str(caught.value) == f"{url} answered with status 400{said}"


RETRY_AFTER = {
    "7": 7,
    "9" * 400: math.inf,
    "Wed, 21 Oct 2015 07:28:00 GMT": 0,
    **dict.fromkeys(["", "soon", "-5", "1.5", "5, 9", "\u0667", "Wed, 21 Oct 2099"]),
    **dict.fromkeys(["Wed, 99 Feb 2026 25:61:61 GMT", "Mon, 1 Jan 10000 00:00:00 GMT"]),
}


@pytest.mark.parametrize("value", RETRY_AFTER, ids=lambda value: ascii(value[:30]))
def test_retry_after_is_seconds_or_nothing(any_call, value):
    """Seconds and dates of Retry-After reach the caller as seconds, and other forms as nothing."""
    busy = answer(b"", f"Retry-After: {value}", status="503 Busy")
    with raw_feed(busy) as (url, _), pytest.raises(errors.Unavailable) as caught:
        any_call(url)
    assert caught.value.retry_after == RETRY_AFTER[value]


def test_retry_after_of_a_date_counts_from_now(any_call):
    """A date to come is as many seconds as there are until then."""
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=1000), usegmt=True)
    for status, error in (("429 No", errors.TooManyRequests), ("503 No", errors.Unavailable)):
        busy = answer(b"", f"Retry-After: {date}", status=status)
        with raw_feed(busy) as (url, _), pytest.raises(error) as caught:
            any_call(url)
        assert 900 < caught.value.retry_after <= 1000


@pytest.mark.parametrize(
    ("kind", "status", "error"),
    [
        ("unavailable", 503, errors.Unavailable),
        ("failed", 500, errors.Unavailable),
        ("too-many-requests", 429, errors.TooManyRequests),
        ("storage-full", 507, errors.StorageFull),
    ],
)
def test_transient_problem_has_its_kind_and_status(any_call, kind, status, error):
    """The exception of a problem that may pass has the class, kind and status of the problem."""
    with raw_feed(problem(kind, status=f"{status} No")) as (url, _), pytest.raises(error) as caught:
        any_call(url)
    assert (caught.type, caught.value.problem, caught.value.status) == (error, kind, status)


ID = "urn:uuid:6d1c0d9e-3a5e-4b5c-9d53-0d5f7a9b1c11"


@pytest.mark.parametrize(
    ("instance", "said"), [(ID, f" Its id there is {ID}."), ("urn:uuid:\x1b[2J", ""), (7, "")]
)
def test_failure_says_under_which_id_the_publisher_has_the_reason(any_call, instance, said):
    """A reader can tell the publisher's operator what to look for; another form is passed over."""
    failure = problem("failed", status="500 No", detail="It failed.", instance=instance)
    with raw_feed(failure) as (url, _), pytest.raises(errors.Unavailable) as caught:
        any_call(url)
    assert str(caught.value) == f"It failed.{said}"
