"""The clients against feeds that send too much, too slowly, or nothing at all."""

import ssl
import threading
import time

import httpx
import pytest
import trustme
from harness.calling import INFO, PAGE, answer, discovery, raw_feed
from harness.dripping import drip, dripping
from harness.faults.proxy import Plan, proxying
from harness.waiting import until

from zeroeventhub import Limits, errors
from zeroeventhub.errors import CutPage, Unreachable

SETTLED = PAGE[:32]
LONG = b'{"data":"' + b"x" * 5000 + b'"}\n'
DOCUMENT_BYTES = 8_388_608


@pytest.mark.parametrize(
    ("body", "limits"),
    [
        (PAGE, {"page_bytes": 31}),
        (b"\n" * 50_000 + PAGE, {"page_bytes": 40_000}),
        (LONG + PAGE, {"line_bytes": 5010}),
        (LONG[:-2], {"line_bytes": 5008}),
        (b'{"data":1}\n' * 11 + PAGE, {"page_events": 10}),
    ],
    ids=range(5),
)
def test_page_that_is_too_much_is_refused_for_good(any_call, body, limits):
    """A page beyond a bound says which one to raise; what stands before a checkpoint counts."""
    (name,) = limits
    feed = {"limits": Limits(**limits)}
    with (
        raw_feed(answer(body)) as (url, _),
        pytest.raises(errors.PageTooLarge, match=f"Limits.{name}") as caught,
    ):
        any_call(url, feed=feed)
    assert not isinstance(caught.value, errors.TransientError)
    if limits != {"page_bytes": 31}:
        with raw_feed(answer(SETTLED + body)) as (url, _):
            page = any_call(url, feed=feed)
        assert ([event.data for event in page.events], page.cursor) == ([{"n": 1}], "a")


def test_other_answers_are_bounded(any_call):
    """What is no page may have 8 MiB, whatever the limits of pages are, and no byte more."""
    for method, arguments, start in (
        ("discover", (), discovery("splits")[:-1] + b',"newer":"'),
        ("splits", (0, 2), b'{"cursors":["a","b"],"newer":"'),
    ):
        body = start + b"x" * (DOCUMENT_BYTES - len(start) - 2) + b'"}'
        assert len(body) == DOCUMENT_BYTES
        whole, longer = answer(body), answer(body + b" ")
        for sent in (whole, longer):
            info = sent if method == "discover" else answer(discovery("splits"))
            with raw_feed(sent, info=info) as (url, _):
                if sent is whole:
                    assert any_call(url, method, *arguments)
                    continue
                with pytest.raises(errors.ProtocolError, match="8,388,608"):
                    any_call(url, method, *arguments)


@pytest.mark.parametrize("fields", [(), ("Content-Encoding: gzip",)], ids=str)
def test_refusal_is_known_by_its_status_whatever_its_body_is(any_call, fields):
    """A body that is endless, no gzip, or unreadable does not hide what the status says."""
    body = b'{"type":"' + b"x" * 1_000_000
    with raw_feed(answer(body, *fields, status="410 Gone")) as (url, _), pytest.raises(errors.Gone):
        any_call(url)
    missing = answer(body, *fields, status="404 No")
    with raw_feed(info=missing) as (url, _), pytest.raises(errors.NotFound):
        any_call(url)
    form = answer(body, *fields, kind="text/html")
    with raw_feed(form) as (url, _), pytest.raises(errors.Unavailable):
        any_call(url)


def test_refusal_is_read_up_to_64_kibibytes(any_call):
    """A problem of 64 KiB tells its detail; a longer one is not read, a cut one asked for again."""
    for more in (0, 1):
        start = b'{"type":"urn:x/gone","detail":"Too old.","newer":"'
        body = start + b"x" * (65_536 - len(start) - 2 + more) + b'"}'
        gone = answer(body, status="410 Gone")
        with raw_feed(gone) as (url, _), pytest.raises(errors.Gone) as caught:
            any_call(url)
        assert str(caught.value).startswith(url if more else "Too old.")
    cut = answer(b'{"ty', "Content-Length: 50", status="410 Gone")
    with raw_feed(cut) as (url, _), pytest.raises(errors.Unreachable):
        any_call(url)


SHORT = {"limits": Limits(seconds=0.8, bytes_per_second=0)}
PATIENT = {"timeout": None}
SOON = 8.0  # seconds; generous to slow machines, and far from what these feeds would take


def pages(script):
    """Discovery at once, and pages by a script."""
    return lambda request: script() if "/events" in request else [(answer(discovery("wait")), 0.0)]


def slow_body(start=b""):
    """Send a body that never ends, byte by byte."""
    return [(answer() + start, 0.0), *drip(b" " * 1000, 0.02)]


CHUNKED = answer(b"", "Transfer-Encoding: chunked")
SLOW_CHUNK_SIZE = [(CHUNKED, 0.0), *drip(b"5;" + b"x" * 1000, 0.03)]
"""The length of a chunk comes byte by byte, so that no byte of the body ever does."""

SLOW = {
    "headers": ([*drip(answer(b"", "X-Padding: " + "x" * 1000), 0.03)], Unreachable),
    "silence": ([(b"", 20.0)], Unreachable),
    "length of a chunk": (SLOW_CHUNK_SIZE, CutPage),
}


@pytest.mark.parametrize(
    ("patience", "expected"),
    [(None, (1.0, 1.0)), (httpx.Timeout(60, pool=0.25, connect=0.5), (0.25, 0.5))],
    ids=str,
)
def test_connection_may_take_a_third_of_the_deadline(any_call, patience, expected):
    """A client waits a third of the deadline, or less, for a connection and to be accepted."""
    seen = []

    def reply(request):
        timeouts = request.extensions["timeout"]
        bounds = [timeouts["pool"], timeouts["connect"]]
        seen.append(tuple(bound if bound is None else float(bound) for bound in bounds))
        return httpx.Response(200, content=PAGE if "/events" in request.url.path else INFO)

    session = {"transport": httpx.MockTransport(reply), "timeout": patience}
    any_call("http://feed/", session=session, feed={"limits": Limits(seconds=3)})
    assert seen == [expected] * 2


def given_up(call, url, error):
    """Expect a call to end with an error at its deadline, in fractions of a second as well.

    A machine may be too busy to connect, or to receive the headers, within the first deadline.
    """
    for seconds in (0.8, 5.8):
        feed, start = {"limits": Limits(seconds=seconds, bytes_per_second=0)}, time.monotonic()
        with pytest.raises((CutPage, Unreachable)) as caught:
            call(url, session=PATIENT, feed=feed)
        took = time.monotonic() - start
        if isinstance(caught.value, error) and f"longer than {seconds} seconds" in str(
            caught.value
        ):
            assert seconds - 0.05 < took < seconds + SOON
            return
    raise AssertionError("It did not end so at any deadline.") from caught.value


@pytest.mark.slow
@pytest.mark.parametrize(("script", "error"), SLOW.values(), ids=SLOW)
def test_whole_answer_has_a_deadline(call, script, error):
    """However an answer is slow, it is given up at the deadline, and no thread is left."""
    before = {*threading.enumerate()}
    with dripping(pages(lambda: script)) as url:
        given_up(call, url, error)
    until(lambda: {*threading.enumerate()} <= before, "no thread is left")


@pytest.mark.slow
def test_slow_page_counts_up_to_its_checkpoint(any_call):
    """When the deadline is over, the client keeps the events before the last checkpoint."""
    # Enough for a busy machine to receive what was sent at once.
    feed = {"limits": Limits(seconds=1.5, bytes_per_second=0)}
    silent = [(CHUNKED + b"20\r\n" + SETTLED + b"\r\n", 20.0)]
    with dripping(pages(lambda: silent)) as url:
        page = any_call(url, session=PATIENT, feed=feed)
    assert ([event.data for event in page.events], page.cursor) == ([{"n": 1}], "a")


def test_other_answers_have_a_deadline_as_well(any_call):
    """A feed that answers discovery byte by byte is given up."""
    with dripping(lambda _: slow_body()) as url:
        given_up(any_call, url, Unreachable)


@pytest.mark.slow
@pytest.mark.parametrize("script", [slow_body(), [(answer() + b" ", 20.0)]], ids=["slow", "silent"])
def test_body_has_a_least_rate(any_call, script):
    """A body that is too slow is given up after a grace; one that keeps the rate is read."""
    feed = {"limits": Limits(bytes_per_second=10_000, grace=0.8)}
    with dripping(pages(lambda: script)) as url:
        start = time.monotonic()
        with pytest.raises(CutPage, match="fewer than 10000 bytes a second"):
            any_call(url, session=PATIENT, feed=feed)
        assert 0.75 < time.monotonic() - start < SOON
    steady = [(answer(), 0.0), *drip(b" " * 30_000, 0.03, step=1_000), (PAGE, 0.0)]
    with dripping(pages(lambda: steady)) as url:
        assert any_call(url, session=PATIENT, feed=feed).cursor == "b"


@pytest.mark.slow
def test_wait_comes_on_top_of_the_deadline(any_call):
    """A feed that was asked to wait may take so much longer, for headers and for the body."""
    script = [(b"", 1.0), (answer(), 1.0), (PAGE, 0.0)]
    feed = {"limits": Limits(seconds=0.8, bytes_per_second=1e5, grace=0.5)}
    with dripping(pages(lambda: script)) as url:
        assert any_call(url, wait=10, session=PATIENT, feed=feed).cursor == "b"
        with pytest.raises((CutPage, Unreachable), match=r"longer than 0\.8 seconds"):
            any_call(url, session=PATIENT, feed=feed)


@pytest.mark.slow
@pytest.mark.parametrize("late", [0.8, 1.5])  # within the whole second that a socket waits, and not
def test_timeout_of_the_callers_own_client_holds(any_call, late):
    """The timeout of the caller's httpx client holds, beside what the feed was asked to wait."""
    session = {"timeout": httpx.Timeout(30, read=0.5)}
    with dripping(pages(lambda: [(b"", late), (answer(PAGE), 0.0)])) as url:
        with pytest.raises(Unreachable, match=r"timed out|ReadTimeout"):
            any_call(url, wait=0.1, session=session)
        assert any_call(url, wait=5, session=session).cursor == "b"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patience", "late"), [(httpx.Timeout(5, read=None), 0.1), (httpx.Timeout(1.9), 1.1)], ids=str
)
def test_client_is_as_patient_as_its_caller(any_call, patience, late):
    """A feed that is late within the caller's patience is waited for, to fractions of a second."""
    with dripping(pages(lambda: [(b"", late), (answer(PAGE), 0.0)])) as url:
        assert any_call(url, session={"timeout": patience}).cursor == "b"


@pytest.mark.slow
@pytest.mark.parametrize("is_slow", ["body", "handshake"])
def test_deadline_holds_over_tls(any_call, is_slow):
    """A body and a handshake whose bytes drip over TLS are given up as well."""
    authority, trusted = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(trusted)
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(own)
    session = {"verify": trusted, **PATIENT}
    with (
        dripping(pages(lambda: SLOW_CHUNK_SIZE), tls=own) as url,
        proxying(url) as (proxy, through),
    ):
        proxy.follow([Plan(piece=1, pause=0.02)] * 2 if is_slow == "handshake" else [])
        start = time.monotonic()
        with pytest.raises((Unreachable, CutPage)):
            any_call(through.replace("http:", "https:"), session=session, feed=SHORT)
        assert time.monotonic() - start < SOON
