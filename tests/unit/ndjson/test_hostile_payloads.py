"""Payloads that break readers: each is exactly itself, or a clear error."""

import math
from itertools import pairwise
from random import Random

import pytest
from harness.hostile_payloads import BODIES, LINES, REFUSED, UNDECODED, VALUES

from zeroeventhub.errors import CutPage, ProtocolError, ZeroEventHubError
from zeroeventhub.limits import Limits
from zeroeventhub.ndjson import PageDecoder

CHECKPOINT = b'{"cursor":"a"}\n'
SEEDS = range(3)


def named(payloads):
    """Each payload by its name."""
    return [pytest.param(payload, id=payload.name) for payload in payloads]


def decoded(body, cuts=()):
    """Decode a body that comes in chunks: its events and cursor, or the error's type."""
    limits = Limits()
    decoder = PageDecoder(
        0,
        page_bytes=limits.page_bytes,
        page_events=limits.page_events,
        line_bytes=limits.line_bytes,
    )
    try:
        for start, end in pairwise([0, *cuts, len(body)]):
            decoder.feed(body[start:end])
        page = decoder.page()
    except ZeroEventHubError as error:
        return type(error) if str(error) else None
    return [event.raw for event in page.events], page.cursor, page.caught_up


def in_all_ways(body):
    """Decode a body as a whole, in pieces of every size, and cut up by chance: it is the same."""
    whole = decoded(body)
    for seed in SEEDS:
        cuts = sorted(Random(seed).choices(range(len(body) + 1), k=12))
        assert decoded(body, cuts) == whole, f"seed {seed}"
    if len(body) < 2000:
        assert decoded(body, range(1, len(body))) == whole
    return whole


def test_corpus_is_as_large_as_it_says():
    """There are at least sixty payloads, each with a name of its own."""
    names = [(type(one), one.name) for one in (*VALUES, *LINES, *BODIES)]
    assert len(set(names)) == len(names) == 121


@pytest.mark.parametrize("value", named(VALUES))
def test_value_is_exact_or_refused(value):
    """An event's data comes through byte for byte, and as Python's data it is exact or an error."""
    got = in_all_ways(b'{"data":%b}\n%b' % (value.text, CHECKPOINT))
    if value.data is REFUSED:
        assert got is ProtocolError
        return
    raw = value.text.strip(b" \t\r")
    assert got == ([raw], "a", False)
    decoder = PageDecoder(0)
    decoder.feed(b'{"data":%b,"cursor":"a"}\n' % value.text)
    (event,) = decoder.page().events
    if value.data is UNDECODED:
        with pytest.raises(ProtocolError, match=r"event\.raw has it as it was sent"):
            _ = event.data
    elif value.data is not None:
        assert type(event.data) is type(value.data)
        assert event.data == value.data
        if isinstance(value.data, float):
            assert math.copysign(1, event.data) == math.copysign(1, value.data)
    else:
        assert event.raw == raw


@pytest.mark.parametrize("line", named(LINES))
def test_line_is_exact_or_refused(line):
    """A line brings the events that it holds, or is an error."""
    got = in_all_ways(line.text + b"\n" + CHECKPOINT)
    assert got == (ProtocolError if line.events is None else (line.events, "a", False))


@pytest.mark.parametrize("body", named(BODIES))
def test_body_is_exact_or_refused(body):
    """A body is the page up to its last checkpoint, a cut page, or an error."""
    got = in_all_ways(body.text)
    if body.cursor is REFUSED:
        assert got is ProtocolError
    elif body.cursor is None:
        assert got is CutPage
    else:
        assert got == (body.events, body.cursor, body.caught_up)
