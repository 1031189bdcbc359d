"""The bounds of the page decoder, of content codings and of deadlines, without a network."""

import gzip
import time
import zlib
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zeroeventhub._http.content_coding import PIECE, content_coding
from zeroeventhub._http.deadline import Deadline, Patience
from zeroeventhub.errors import CutPage, PageTooLarge, ProtocolError
from zeroeventhub.limits import Limits
from zeroeventhub.ndjson import PageDecoder

LINES = [b'{"data":1}\n', b'{"data":"%b"}\n' % (b"x" * 30), b'{"cursor":"a"}\n', b"\n", b"{}\n"]

bodies = st.lists(st.sampled_from([*LINES, b'{"data"', b"oops\n"]), max_size=12).map(b"".join)
bounds = st.fixed_dictionaries(
    {
        "page_bytes": st.integers(0, 200),
        "page_events": st.integers(0, 6),
        "line_bytes": st.integers(0, 50),
    }
)


def taken(body, cuts, bounds):
    """What stands of a body that comes in chunks, and the error that ended it."""
    decoder = PageDecoder(0, **bounds)
    error = None
    try:
        for start, end in pairwise([0, *cuts, len(body)]):
            decoder.feed(body[start:end])
    except (PageTooLarge, ProtocolError) as refused:
        error = str(refused)
    if error is not None and not decoder.has_checkpoint:
        return error
    try:
        page = decoder.page()
    except (CutPage, ProtocolError) as refused:
        return str(refused)
    return error, [event.raw for event in page.events], page.cursor


@given(bodies, st.lists(st.integers(0, 300), max_size=8), bounds)
@example(LINES[2] + LINES[1], [20], {"page_bytes": 90, "page_events": 9, "line_bytes": 40})
def test_bounds_do_not_depend_on_chunks(body, cuts, bounds):
    """However bytes are cut up, a bound is broken at the same place, and the same page stands."""
    cuts = sorted(min(cut, len(body)) for cut in cuts)
    whole = taken(body, (), bounds)
    assert taken(body, cuts, bounds) == whole
    assert taken(body, range(1, len(body)), bounds) == whole


@given(bodies, bounds)
def test_bounds_hold(body, bounds):
    """What is taken has no more events than the bound, but for one that is a checkpoint too."""
    got = taken(body, (), bounds)
    if isinstance(got, tuple):
        _, events, _ = got
        assert len(events) <= bounds["page_events"]
        assert all(len(raw) <= bounds["line_bytes"] for raw in events)
        assert sum(map(len, events)) <= bounds["page_bytes"]


def unpacked(chunks, header="gzip"):
    """What a coding makes of chunks, in pieces."""
    coding = content_coding(header)
    return [piece for chunk in chunks for piece in coding.pieces(chunk)], coding.whole


@given(st.lists(st.binary(max_size=300), max_size=4), st.lists(st.integers(0, 900), max_size=6))
def test_gzip_comes_through_in_any_chunks(members, cuts):
    """Members of gzip are unpacked to what they held, however their bytes are cut up."""
    body = b"".join(map(gzip.compress, members))
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces, whole = unpacked(body[start:end] for start, end in pairwise(places))
    assert b"".join(pieces) == b"".join(members)
    assert whole == bool(members)


@pytest.mark.parametrize("length", [PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 5_000_000])
@pytest.mark.parametrize("unit", [b"\0", bytes(range(256))], ids=len)
def test_pieces_are_bounded(unit, length):
    """What is unpacked comes in pieces of a bounded size, and all of it comes."""
    content = (unit * (length // len(unit) + 1))[:length]
    body = gzip.compress(content)
    pieces, whole = unpacked([body])
    assert b"".join(pieces) == content
    assert max(map(len, pieces)) <= PIECE
    assert whole
    pieces, whole = unpacked([body[:-8]])
    assert b"".join(pieces) == content
    assert not whole


@pytest.mark.parametrize("length", range(0, 60, 7))
def test_gzip_that_is_cut_is_not_whole(length):
    """Whatever is missing, up to the last byte of the checksum, is noticed."""
    body = gzip.compress(bytes(range(40)))
    assert not unpacked([body[: min(length, len(body) - 1)]])[1]


@pytest.mark.parametrize("header", ["", "identity", " Identity ", "identity,", ","])
def test_no_coding_is_passed_on(header):
    """A body without a coding is passed on as it is."""
    assert unpacked([b"a", b"b"], header) == ([b"a", b"b"], True)


@pytest.mark.parametrize("chunk", [b"\x1f\x8b\x08\x00" + b"\xff" * 20, zlib.compress(b"a"), b"ab"])
def test_what_is_no_gzip_is_refused(chunk):
    """Bytes of another form are an error."""
    with pytest.raises(ProtocolError, match="gzip"):
        unpacked([chunk])


def test_deadline_moves_with_the_bytes_that_come():
    """There is time for the headers, then a grace, then what the bytes have earned, to the end."""
    deadline = Deadline(Limits(seconds=50, bytes_per_second=100, grace=5), wait=2)
    assert deadline.left == pytest.approx(52, abs=1)
    deadline.begin()
    assert deadline.left == pytest.approx(7, abs=1)
    assert "fewer than 100 bytes" in deadline.reason
    deadline.receive(1000)
    assert deadline.left == pytest.approx(17, abs=1)
    deadline.receive(100_000)
    assert deadline.left == pytest.approx(52, abs=1)
    assert "longer than 52 seconds" in deadline.reason


@pytest.mark.parametrize(("own", "expected"), [(3.2, 4), (0.01, 1), (None, 50), (99, 50), (7, 7)])
def test_patience_is_the_callers_or_what_is_left(own, expected):
    """A socket is told the caller's own bound or what is left, in whole seconds rounded up."""
    deadline = Deadline(Limits(seconds=50), wait=0)
    assert Patience(deadline, own).__index__() == expected


def test_patience_has_an_end():
    """When no time is left, a socket is told so at once."""
    patience = Patience(Deadline(Limits(seconds=0.01), wait=0), None)
    time.sleep(0.02)
    for ask in (int, float):
        with pytest.raises(TimeoutError, match="longer than"):
            ask(patience)


def test_patience_of_fractions_is_checked():
    """What came behind the caller's bound, within the second that a socket knows, is too late."""
    patience = Patience(Deadline(Limits(), wait=0), 0.01)
    patience.check()
    assert patience.__index__() == 1
    time.sleep(0.02)
    with pytest.raises(TimeoutError, match="timed out"):
        patience.check()
    patience.check()
