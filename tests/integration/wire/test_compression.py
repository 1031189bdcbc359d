"""Compressed answers, as they come: in any pieces, cut, broken, and larger than memory."""

import gzip
import itertools
import struct
import time
import tracemalloc
from contextlib import contextmanager

import httpx
import pytest
import zstandard
from harness.calling import INFO, PAGE, answer, raw_feed
from hypothesis import given, settings
from hypothesis import strategies as st

from zeroeventhub import FIRST, Client, Limits, errors

zstd = zstandard.ZstdCompressor(write_checksum=True).compress
PACKERS = {"gzip": gzip.compress, "zstd": zstd}
SETTLED, REST = PAGE[:32], PAGE[32:]
SKIPPED = struct.pack("<II", 0x184D2A50, 1_000) + bytes(1_000)
MEBIBYTE = 1024 * 1024


def fetched(chunks, coding, *, compressed="zstd", **limits):
    """Fetch a page whose body comes in these chunks."""

    def reply(request):
        if "/events" not in request.url.path:
            return httpx.Response(200, content=INFO)
        return httpx.Response(200, headers={"Content-Encoding": coding}, content=iter(chunks))

    with httpx.Client(transport=httpx.MockTransport(reply)) as http:
        client = Client("http://feed/", http, limits=Limits(**limits), compressed=compressed)
        return client.fetch(0, FIRST)


def facts(page):
    """The numbers of a page's events, and its cursor."""
    return [event.data["n"] for event in page.events], page.cursor


@contextmanager
def holding_at_most(mebibytes):
    """Fail if more memory is held at any moment of the block."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < mebibytes * MEBIBYTE
    finally:
        tracemalloc.stop()


WHOLE, HALF = ([1, 2, 3], "b"), ([1], "a")


@pytest.mark.parametrize(
    ("compressed", "asked"),
    [(False, "identity"), (True, "gzip"), ("gzip", "gzip"), ("zstd", "zstd, gzip;q=0.5")],
)
def test_compression_is_asked_for_by_choice(call, compressed, asked):
    """Answers are asked for as they are, unless the caller wants a coding that there is."""
    seen = []

    def reply(request):
        seen.append(request.headers["accept-encoding"])
        return httpx.Response(200, content=PAGE if "/events" in request.url.path else INFO)

    session = {"transport": httpx.MockTransport(reply)}
    assert call("http://feed/", session=session, feed={"compressed": compressed}).cursor == "b"
    assert seen == [asked, asked]
    with pytest.raises(errors.ConfigurationError, match="zstd"):
        call("http://feed/", feed={"compressed": "br"})


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "x-gzip", "identity, gzip", "zstd"])
@given(st.lists(st.integers(0, 200), max_size=6))
@settings(max_examples=15)
def test_members_come_through_in_any_pieces(coding, cuts):
    """Members of a coding are unpacked one after the other, however their bytes are cut up."""
    pack = PACKERS["zstd" if coding == "zstd" else "gzip"]
    body = pack(PAGE[:50]) + pack(b"") + pack(PAGE[50:])
    places = [0, *sorted(min(place, len(body)) for place in cuts), len(body)]
    assert facts(fetched(map(lambda a, b: body[a:b], places, places[1:]), coding)) == WHOLE
    one_by_one = (body[place : place + 1] for place in range(len(body)))
    assert facts(fetched(one_by_one, coding)) == WHOLE


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("length", [n * 65_536 + d for n in (1, 2, 3) for d in (-1, 0, 1)])
def test_page_of_any_length_is_unpacked_to_its_end(coding, length):
    """However the length of a page falls, its checkpoint at the very end is found."""
    body = b'{"data":{"n":1}}\n' + b" " * (length - 32) + b'\n{"cursor":"a"}'
    assert len(body) == length
    packed = PACKERS[coding](body)
    assert facts(fetched([packed], coding)) == HALF
    if coding == "gzip":
        assert facts(fetched([packed[:-8]], coding)) == HALF
    assert facts(fetched([packed], coding, page_bytes=length)) == HALF
    with pytest.raises(errors.PageTooLarge):
        fetched([packed], coding, page_bytes=length - 1)


def test_other_codings_are_refused():
    """A coding that was not asked for is an error, not taken for lines; all take gzip and none."""
    for coding in ("br", "deflate", "gzip, gzip", "gzip, br", "zstd"):
        with pytest.raises(errors.ProtocolError, match="content coding"):
            fetched([zstd(PAGE) if coding == "zstd" else PAGE], coding, compressed=True)
    assert facts(fetched([gzip.compress(PAGE)], "gzip", compressed=False)) == WHOLE
    for coding in ("", "identity", " Identity ", "identity,", ","):
        assert facts(fetched([SETTLED, REST], coding)) == WHOLE


def windowed(log):
    """Pack the page into a frame that looks back by a power of two."""
    parameters = zstandard.ZstdCompressionParameters(window_log=log)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(PAGE) + packer.flush()


BROKEN = {
    "no gzip": ("gzip", PAGE),
    "gzip of another checksum": ("gzip", gzip.compress(PAGE)[:-8] + b"\0" * 8),
    "gzip with a tail": ("gzip", gzip.compress(PAGE) + b"tail"),
    "gzip of nothing": ("gzip", gzip.compress(b"") * 10_000),
    "no zstd": ("zstd", PAGE),
    "zstd of another checksum": ("zstd", zstd(PAGE)[:-1] + b"\0"),
    "zstd with a tail": ("zstd", zstd(PAGE) + b"tail"),
    "zstd of nothing": ("zstd", SKIPPED * 100),
    "zstd of a window beyond RFC 9659": ("zstd", windowed(24)),
}


@pytest.mark.parametrize(("coding", "body"), BROKEN.values(), ids=BROKEN)
def test_coding_that_is_broken_is_refused(coding, body):
    """What cannot be trusted to be what was sent is not taken, in one piece or many."""
    for size in (len(body), 1_000):
        chunks = (body[start : start + size] for start in range(0, len(body), size))
        with pytest.raises(errors.ProtocolError, match=coding):
            fetched(chunks, coding)


def test_page_cut_anywhere_is_what_was_unpacked():
    """Cut at any byte of zstd, a page is what its unpacked checkpoints settle, or a cut page."""
    packer = zstandard.ZstdCompressor().compressobj()
    body = b""
    for line in PAGE.splitlines(keepends=True):
        body += packer.compress(line) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    body += packer.flush()
    for length in range(len(body) + 1):
        come = zstandard.ZstdDecompressor().decompressobj().decompress(body[:length])
        try:
            found = facts(fetched([body[:length]], "zstd"))
        except errors.CutPage:
            assert b'"a"}' not in come
            continue
        assert found == (WHOLE if b'"b"}' in come else HALF)


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_document_is_unpacked_whole_or_not_taken(any_call, coding):
    """Discovery is unpacked as pages are, and one that lacks any bytes is asked for again."""
    body, field, feed = PACKERS[coding](INFO), f"Content-Encoding: {coding}", {"compressed": coding}
    with raw_feed(info=answer(body, field)) as (url, _):
        assert any_call(url, "discover", feed=feed).token == "t"
    for length in {0, 1, 9, len(body) // 2, len(body) - 8, len(body) - 1}:
        with (
            raw_feed(info=answer(body[:length], field)) as (url, _),
            pytest.raises(errors.Unreachable, match="broke off"),
        ):
            any_call(url, "discover", feed=feed)


def test_refusal_is_read_if_it_is_gzip(any_call):
    """A problem document that a proxy has compressed is understood."""
    body = gzip.compress(b'{"type":"urn:x/trimmed","detail":"Too old."}')
    refusal = answer(body, "Content-Encoding: gzip", status="410 Gone")
    with raw_feed(refusal) as (url, _), pytest.raises(errors.Trimmed, match="Too old"):
        any_call(url)


EVENTS = b'{"data":1}\n' * (MEBIBYTE // 11)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("coding", "most"), [("gzip", 24), ("zstd", 40), ("identity", 24)], ids=lambda it: it
)
def test_memory_is_bounded(coding, most):
    """However much is sent or unpacked, a client holds little more than its cap on a page."""
    chunks = {
        "gzip": [gzip.compress(EVENTS * 64)],
        "zstd": [zstd(EVENTS * 64)],
        "identity": itertools.repeat(EVENTS[: 11 * 6_000], 1024),
    }[coding]
    with holding_at_most(most), pytest.raises(errors.PageTooLarge):
        fetched(chunks, coding, page_bytes=MEBIBYTE, page_events=10_000)


CHECKPOINT = b'{"cursor":"a"}\n'
MANY = {
    "empty lines": b"\n" * (15 * MEBIBYTE) + CHECKPOINT,
    "lines of nothing": b"{}\n" * (2 * MEBIBYTE) + CHECKPOINT,
    "objects on a line": b"{}" * (4 * MEBIBYTE) + b"\n" + CHECKPOINT,
}


@pytest.mark.slow
@pytest.mark.parametrize("body", MANY.values(), ids=MANY)
def test_lines_that_are_no_events_are_bounded(body):
    """A page of some bytes that stand for millions of lines costs neither memory nor time."""
    packed, began = gzip.compress(CHECKPOINT + body, 1), time.process_time()
    try:
        with holding_at_most(100):
            page = fetched([packed], "gzip", page_events=10_000)
        assert (page.events, page.cursor) == ([], "a")
    except errors.ProtocolError:
        assert body is MANY["objects on a line"]
    assert time.process_time() - began < 10


def test_chunks_of_a_few_bytes_take_their_bytes():
    """A page that comes in pieces of two bytes is held in little more than its bytes."""
    with holding_at_most(1), pytest.raises(errors.CutPage):
        fetched((bytes([32, 32]) for _ in range(30_000)), "")


@pytest.mark.slow
@pytest.mark.parametrize("coding", ["gzip", "zstd"])
def test_bombs_are_bounded(coding):
    """A gibibyte in place of a page, discovery, a refusal, or a web page is not unpacked."""
    packed = PACKERS[coding](bytes(32 * MEBIBYTE)) * 32
    assert len(packed) < 1.1 * MEBIBYTE
    fields = {"Content-Encoding": coding}
    web_page = {**fields, "Content-Type": "text/html"}
    cases = [(200, 410, fields, errors.Gone), (200, 200, fields, errors.PageTooLarge)]
    cases += [(200, 200, web_page, errors.Unavailable), (404, 200, fields, errors.NotFound)]
    for info, page, headers, error in [*cases, (200, 0, fields, errors.ProtocolError)]:

        def reply(request, info=info, page=page, headers=headers):
            is_page = "/events" in request.url.path
            if is_page or info != 200 or not page:
                chunks = (packed[at : at + 65_536] for at in range(0, len(packed), 65_536))
                status = page if is_page else info
                return httpx.Response(status, headers=headers, content=chunks)
            return httpx.Response(200, content=INFO)

        with httpx.Client(transport=httpx.MockTransport(reply)) as http:
            client = Client("http://feed/", http, compressed="zstd")
            with holding_at_most(64), pytest.raises(error):
                client.fetch(0, FIRST)
