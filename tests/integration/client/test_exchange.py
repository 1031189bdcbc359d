"""The clients against feeds that send too much, and what becomes of answers that are no page."""

import pytest
from harness.calling import PAGE, answer, discovery, raw_feed

from zeroeventhub import Limits, errors

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
