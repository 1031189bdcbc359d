"""The clients against feeds that send too slowly, too much, or what unpacks to too much."""

import gzip
import math
import shutil
import ssl
import subprocess
import sys
import threading
import time
import zlib
from functools import partial

import anyio
import httpx
import pytest
from harness.dripping import drip, dripping, make_certificate
from harness.web import answering

from zeroeventhub import FIRST, AsyncClient, Client, Limits, errors
from zeroeventhub.errors import (
    ConfigurationError,
    CutPage,
    Gone,
    NotFound,
    PageTooLarge,
    ProtocolError,
    Unavailable,
    Unreachable,
)

INFO = b'{"token":"t","partitions":[{"id":"0"}],"extensions":["wait","splits"]}'
PAGE = b'{"data":{"n":1}}\n{"cursor":"a"}\n{"data":{"n":2}}\n{"data":{"n":3}}\n{"cursor":"b"}\n'
SETTLED = PAGE[:32]
EXCESS = 64 * 1024 * 1024
"""Bytes that a process may grow by, beside its cap on a page."""

SHORT = Limits(seconds=1.0)
SOON = 8.0
"""Seconds; generous to slow machines, and far from what these feeds would take."""

PATIENT = httpx.Timeout(None)


def head(*lines, status="200 OK"):
    """Write the head of an answer that ends with its connection, unless a line says otherwise."""
    return "\r\n".join([f"HTTP/1.1 {status}", "Connection: close", *lines, "", ""]).encode()


def sync_call(url, *, session=None, method="fetch", arguments=(0, FIRST), **options):
    """Call a method of a client of a feed."""
    with httpx.Client(**{"timeout": PATIENT, **(session or {})}) as http:
        call = {"wait": options.pop("wait")} if "wait" in options else {}
        return getattr(Client(url, http, **options), method)(*arguments, **call)


def async_call(url, *, session=None, method="fetch", arguments=(0, FIRST), **options):
    """Call a method of an async client of a feed."""

    async def call():
        async with httpx.AsyncClient(**{"timeout": PATIENT, **(session or {})}) as http:
            call = {"wait": options.pop("wait")} if "wait" in options else {}
            return await getattr(AsyncClient(url, http, **options), method)(*arguments, **call)

    return anyio.run(call)


@pytest.fixture(params=[sync_call, async_call], ids=["sync", "async"])
def call(request):
    """A function that calls a method of either client, by default `fetch`."""
    return request.param


def pages(script):
    """Discovery at once, and pages by a script."""
    return lambda request: script() if "/events" in request else [(head() + INFO, 0.0)]


def served(body, *lines, info=INFO, status="200 OK"):
    """A feed that answers every request for a page with a body."""
    page = head(*lines, status=status) + body
    return answering(lambda target: page if "/events" in target else head() + info)


def silent_behind(chunk):
    """Send something, and then nothing for a long time."""
    return [(chunk, 20.0)]


def slow_headers():
    """Send headers that never end, byte by byte."""
    return drip(head("X-Padding: " + "x" * 1000), 0.05)


def slow_chunk_size():
    """Send the length of a chunk byte by byte, so that no byte of the body ever comes."""
    yield head("Transfer-Encoding: chunked"), 0.0
    yield from drip(b"5;" + b"x" * 1000, 0.05)


def slow_interim():
    """Send one interim answer after the other."""
    while True:
        yield b"HTTP/1.1 103 Early Hints\r\n\r\n", 0.05


SLOW = [
    (slow_headers, Unreachable),
    (slow_interim, Unreachable),
    (partial(silent_behind, b""), Unreachable),
    (partial(silent_behind, b"HTTP/1.1 200"), Unreachable),
    (slow_chunk_size, CutPage),
    (partial(silent_behind, head()), CutPage),
    (partial(silent_behind, head() + PAGE[:20]), CutPage),
    (lambda: [(head(), 0.0), *drip(b" " * 1000, 0.02)], CutPage),
    (lambda: [(head() + b'{"data":"', 0.0), *drip(b"x" * 1000, 0.02)], CutPage),
]


@pytest.mark.parametrize(("script", "error"), SLOW, ids=range(len(SLOW)))
def test_whole_answer_has_a_deadline(call, script, error):
    """However an answer is slow, it is given up at the deadline, and no thread is left."""
    threads = threading.active_count()
    limits = Limits(seconds=0.9, bytes_per_second=0)
    with dripping(pages(script)) as url:
        start = time.monotonic()
        with pytest.raises(error, match=r"longer than 0\.9 seconds"):
            call(url, limits=limits)
        assert 0.85 < time.monotonic() - start < SOON
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    "script",
    [
        lambda: silent_behind(head() + SETTLED),
        lambda: silent_behind(head() + SETTLED + PAGE[32:40]),
        lambda: [(head() + SETTLED, 0.0), *drip(b" " * 1000, 0.02)],
        lambda: [(head("Transfer-Encoding: chunked") + b"20\r\n" + SETTLED + b"\r\n", 20.0)],
    ],
    ids=range(4),
)
def test_slow_page_counts_up_to_its_checkpoint(call, script):
    """What stands before a checkpoint counts when the deadline is over."""
    with dripping(pages(script)) as url:
        page = call(url, limits=SHORT)
    assert ([event.data for event in page.events], page.cursor) == ([{"n": 1}], "a")


@pytest.mark.parametrize("discovery", [slow_headers, lambda: drip(head() + b" " * 1000, 0.05)])
def test_other_answers_have_a_deadline_as_well(call, discovery):
    """A feed that answers discovery byte by byte is given up."""
    with (
        dripping(lambda _: discovery()) as url,
        pytest.raises(Unreachable, match="longer than 1 seconds"),
    ):
        call(url, limits=SHORT)


@pytest.mark.parametrize(
    "script",
    [lambda: [(head(), 0.0), *drip(b" " * 4000, 0.02)], lambda: silent_behind(head() + b" ")],
    ids=["slow", "silent"],
)
def test_body_has_a_least_rate(call, script):
    """A body that comes too slowly is given up long before the deadline, behind a grace."""
    limits = Limits(bytes_per_second=10_000, grace=0.3)
    with dripping(pages(script)) as url:
        start = time.monotonic()
        with pytest.raises(CutPage, match="fewer than 10000 bytes a second"):
            call(url, limits=limits)
        assert 0.25 < time.monotonic() - start < SOON


def test_body_that_keeps_the_rate_is_read(call):
    """Who sends as many bytes as are asked for is read to the end, however long it takes."""
    script = [(head(), 0.0), *drip(b" " * 3000, 0.05, step=150), (PAGE, 0.0)]
    with dripping(pages(lambda: script)) as url:
        page = call(url, limits=Limits(bytes_per_second=1000, grace=0.3))
    assert page.cursor == "b"


def test_wait_comes_on_top_of_the_deadline(call):
    """A feed that was asked to wait may take so much longer, for headers and for the body."""
    script = [(b"", 0.7), (head(), 0.7), (PAGE, 0.0)]
    limits = Limits(seconds=1.0, bytes_per_second=1e5, grace=0.1)
    with dripping(pages(lambda: script)) as url:
        assert call(url, limits=limits, wait=1.5).cursor == "b"
    with dripping(pages(lambda: silent_behind(head()))) as url, pytest.raises(CutPage):
        call(url, limits=limits)


def test_timeouts_of_the_callers_own_client_hold(call):
    """Who gives httpx a timeout for one read has that one, too."""
    session = {"timeout": 1.0}
    with dripping(pages(lambda: silent_behind(head()))) as url:
        start = time.monotonic()
        with pytest.raises(CutPage, match=r"timed out|ReadTimeout"):
            call(url, session=session)
        assert time.monotonic() - start < SOON


def test_deadline_holds_over_other_transports():
    """A transport of the caller's own that knows no timeouts is held to the deadline as well."""

    def body():
        for _ in range(1000):
            time.sleep(0.02)
            yield b" "

    def handler(request):
        paging = "/events" in request.url.path
        return httpx.Response(200, content=body() if paging else INFO)

    session = {"transport": httpx.MockTransport(handler)}
    start = time.monotonic()
    with pytest.raises(CutPage, match=r"longer than 0\.3 seconds"):
        sync_call("http://feed/", session=session, limits=Limits(seconds=0.3))
    assert time.monotonic() - start < SOON


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for this machine, which its clients trust."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed on this machine")
    return make_certificate(tmp_path_factory.mktemp("tls") / "certificate.pem")


@pytest.mark.parametrize("script", [slow_headers, slow_chunk_size, lambda: drip(head(), 0.05)])
def test_deadline_holds_over_tls(call, certificate, script):
    """Headers and bodies that drip over TLS are given up as well."""
    session = {"verify": ssl.create_default_context(cafile=certificate)}
    with dripping(pages(script), certificate=certificate) as url:
        start = time.monotonic()
        with pytest.raises((Unreachable, CutPage), match="longer than 1 seconds"):
            call(url, limits=SHORT, session=session)
        assert time.monotonic() - start < SOON


def test_deadline_holds_inside_a_record_of_tls(call, certificate):
    """A record whose bytes drip is given up as well."""
    session = {"verify": ssl.create_default_context(cafile=certificate)}
    slow = {"certificate": certificate, "records": (1, 0.02)}
    with dripping(lambda _: [(head() + INFO, 5.0)], **slow) as url:
        start = time.monotonic()
        with pytest.raises(Unreachable, match="longer than 1 seconds"):
            call(url, limits=SHORT, session=session)
        assert time.monotonic() - start < SOON


def test_deadline_holds_in_a_handshake(call, certificate):
    """A handshake whose bytes drip is given up, and its connection closed."""
    session = {"verify": ssl.create_default_context(cafile=certificate)}
    slow = {"certificate": certificate, "records": (1, 0.02), "slow_handshake": True}
    with dripping(pages(slow_headers), **slow) as url:
        start = time.monotonic()
        with pytest.raises(Unreachable):
            call(url, limits=SHORT, session=session)
        assert time.monotonic() - start < SOON


LONG = b'{"data":"' + b"x" * 5000 + b'"}\n'


@pytest.mark.parametrize(
    ("body", "limits", "name"),
    [
        (PAGE, {"page_bytes": 31}, "page_bytes"),
        (b"\n" * 500_000 + PAGE, {"page_bytes": 400_000}, "page_bytes"),
        (LONG + PAGE, {"line_bytes": 5000}, "line_bytes"),
        (LONG[:-3], {"line_bytes": 5000}, "line_bytes"),
        (b'{"data":1}\n' * 11 + PAGE, {"page_events": 10}, "page_events"),
    ],
    ids=range(5),
)
def test_page_that_is_too_much_is_refused_for_good(call, body, limits, name):
    """A page beyond a bound says which one to raise, and trying again would not help."""
    with served(body) as url, pytest.raises(PageTooLarge, match=f"Limits.{name}") as caught:
        call(url, limits=Limits(**limits))
    assert not isinstance(caught.value, errors.TransientError)


@pytest.mark.parametrize(
    ("body", "limits"),
    [
        (PAGE, {"page_bytes": 40}),
        (SETTLED + b"\n" * 500_000, {"page_bytes": 400_000}),
        (SETTLED + LONG + PAGE, {"line_bytes": 5000}),
        (SETTLED + LONG[:-3], {"line_bytes": 5000}),
        (SETTLED + b'{"data":1}\n' * 11 + PAGE, {"page_events": 10}),
    ],
    ids=range(5),
)
def test_page_that_is_too_much_counts_up_to_its_checkpoint(call, body, limits):
    """What stands before a checkpoint is read, so that the next page begins behind it."""
    with served(body) as url:
        page = call(url, limits=Limits(**limits))
    assert ([event.data for event in page.events], page.cursor) == ([{"n": 1}], "a")


def test_page_of_just_the_bounds_is_taken(call):
    """A page, its lines and its events may be as many as the bounds say."""
    limits = Limits(page_bytes=len(PAGE), line_bytes=16, page_events=3)
    with served(PAGE) as url:
        assert call(url, limits=limits).cursor == "b"


def test_other_answers_are_bounded(call):
    """What is no page has a bound of its own, whatever the limits of pages are."""
    flood = b'{"cursors":["' + b"x" * 9_000_000
    with (
        answering(lambda _: head() + flood) as url,
        pytest.raises(ProtocolError, match="8,388,608"),
    ):
        call(url, method="discover", arguments=())
    with (
        answering(lambda target: head() + (flood if "splits" in target else INFO)) as url,
        pytest.raises(ProtocolError, match="8,388,608"),
    ):
        call(url, method="splits", arguments=(0, 2))


@pytest.mark.parametrize(
    "lines", [(), ("Content-Encoding: gzip",), ("Content-Encoding: br",)], ids=str
)
def test_refusal_is_known_by_its_status_whatever_its_body_is(call, lines):
    """A body that is endless, no gzip, or unreadable does not hide what the status says."""
    body = b'{"type":"' + b"x" * 1_000_000
    with served(body, *lines, status="410 Gone") as url, pytest.raises(Gone):
        call(url)
    with answering(lambda _: head(*lines, status="404 No") + body) as url, pytest.raises(NotFound):
        call(url)


def test_refusal_is_read_if_it_is_gzip(call):
    """A problem document that a proxy has compressed is understood."""
    body = gzip.compress(b'{"type":"urn:x/trimmed","detail":"Too old."}')
    with (
        served(body, "Content-Encoding: gzip", status="410 Gone") as url,
        pytest.raises(errors.Trimmed, match="Too old"),
    ):
        call(url)


def test_refusal_that_is_cut_is_tried_again(call):
    """What a refusal would have said is not guessed from half of it."""
    with (
        served(b'{"ty', "Content-Length: 50", status="410 Gone") as url,
        pytest.raises(Unreachable),
    ):
        call(url)


def test_web_page_is_not_read(call):
    """Of a login form, however long, nothing is kept."""
    with served(b"<p>" * 1_000_000, "Content-Type: text/html") as url, pytest.raises(Unavailable):
        call(url)


@pytest.mark.parametrize(("compressed", "asked"), [(False, "identity"), (True, "gzip")])
def test_compression_is_asked_for_by_choice(call, compressed, asked):
    """Answers are asked for as they are, unless the caller wants gzip."""
    seen = []

    def handler(request):
        seen.append(request.headers["accept-encoding"])
        return httpx.Response(200, content=PAGE if "/events" in request.url.path else INFO)

    session = {"transport": httpx.MockTransport(handler)}
    assert call("http://feed/", session=session, compressed=compressed).cursor == "b"
    assert seen == [asked, asked]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("coding", ["gzip", "GZIP", "x-gzip", "identity, gzip"])
def test_gzip_is_unpacked_asked_for_or_not(call, compressed, coding):
    """An answer that says it is gzip is unpacked, also one of several members."""
    body = gzip.compress(PAGE[:50]) + gzip.compress(b"") + gzip.compress(PAGE[50:])
    with served(body, f"Content-Encoding: {coding}") as url:
        assert len(call(url, compressed=compressed).events) == 3


def test_answers_of_every_kind_may_be_gzip(call):
    """Discovery is unpacked as pages are."""
    with answering(lambda _: head("Content-Encoding: gzip") + gzip.compress(INFO)) as url:
        assert call(url, method="discover", arguments=()).token == "t"
    cut = gzip.compress(INFO)[:-1]
    with (
        answering(lambda _: head("Content-Encoding: gzip") + cut) as url,
        pytest.raises(Unreachable, match="broke off"),
    ):
        call(url, method="discover", arguments=())


@pytest.mark.parametrize("coding", ["br", "deflate", "zstd", "gzip, gzip", "gzip, br", "\xff"])
def test_other_codings_are_refused(call, coding):
    """A coding that nobody asked for is an error, and never taken for lines."""
    with (
        served(PAGE, f"Content-Encoding: {coding}") as url,
        pytest.raises(ProtocolError, match="content coding"),
    ):
        call(url)


@pytest.mark.parametrize(
    "body",
    [
        PAGE,
        gzip.compress(PAGE)[:-8] + b"\0" * 8,
        gzip.compress(PAGE) + b"tail",
        b"\x1f\x8b\x08\x08" + b"\0" * 6 + b"n" * 200_000,
        gzip.compress(b"") * 10_000,
    ],
    ids=["no gzip", "checksum", "tail", "endless name", "members of nothing"],
)
def test_gzip_that_is_broken_is_refused(call, body):
    """What cannot be trusted to be what was sent is not taken, checkpoint or not."""
    with served(body, "Content-Encoding: gzip") as url, pytest.raises(ProtocolError, match="gzip"):
        call(url)


@pytest.mark.parametrize("lines", [(), ("Content-Length: 5000",)], ids=["closed", "broken"])
def test_gzip_that_is_cut_anywhere_is_a_cut_page(call, lines):
    """Cut at any byte, gzip is a page up to a checkpoint that was unpacked, or a cut page."""
    packer = zlib.compressobj(wbits=31)
    body = b"".join(
        packer.compress(line) + packer.flush(zlib.Z_SYNC_FLUSH)
        for line in PAGE.splitlines(keepends=True)
    )
    body += packer.flush()
    length = 0
    gzipped = head("Content-Encoding: gzip", *lines)
    reply = lambda target: gzipped + body[:length] if "/events" in target else head() + INFO  # noqa: E731
    with answering(reply) as url:
        for length in range(0, len(body), 3):
            try:
                page = call(url)
            except CutPage:
                assert SETTLED not in zlib.decompressobj(31).decompress(body[:length])
                continue
            assert (len(page.events), page.cursor) in {(1, "a"), (3, "b")}


def test_body_that_a_hook_has_read_is_taken(call):
    """A hook of the caller's that reads answers takes nothing away from the client."""

    def read(answer):
        answer.read()

    async def aread(answer):
        await answer.aread()

    hook = read if call is sync_call else aread
    session = {"event_hooks": {"response": [hook]}}
    with served(gzip.compress(PAGE), "Content-Encoding: gzip") as url:
        assert len(call(url, session=session).events) == 3


@pytest.mark.parametrize("name", Limits.__dataclass_fields__)
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, 0, True, "1", None, 1.5])
def test_limits_that_bound_nothing_are_refused(name, value):
    """Bounds are numbers, and there is no way to have none of a size or of all the time."""
    whole = Limits.__dataclass_fields__[name].type is int
    allowed = (value == 0 and name in {"bytes_per_second", "grace"}) or (value == 1.5 and not whole)
    if allowed and value is not True:
        Limits(**{name: value})
    else:
        with pytest.raises(ConfigurationError, match=name):
            Limits(**{name: value})


PROGRAM = """
import asyncio, resource, sys
import httpx
from zeroeventhub import FIRST, AsyncClient, Client, Limits
from zeroeventhub.errors import PageTooLarge

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

limits = Limits(page_bytes=4 * 1024 * 1024, line_bytes=2 * 1024 * 1024)

def read(url):
    with httpx.Client() as http:
        Client(url, http, limits=limits).fetch(0, FIRST)

async def aread(url):
    async with httpx.AsyncClient() as http:
        await AsyncClient(url, http, limits=limits).fetch(0, FIRST)

before = peak()
for attempt in (lambda: read(sys.argv[1]), lambda: asyncio.run(aread(sys.argv[1]))):
    try:
        attempt()
    except PageTooLarge:
        continue
    sys.exit("nothing was refused")
print(peak() - before)
"""


def bomb(unit):
    """Pack 1 GiB of something into about a megabyte."""
    packer = zlib.compressobj(9, wbits=-15)
    packed = packer.compress(unit * (1024 * 1024 // len(unit))) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08" + b"\0" * 7 + packed * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="memory is counted as Linux counts it")
@pytest.mark.parametrize("unit", [b"\0", b" ", b"\n", b'{"data":1}\n', b"x" * 1024])
@pytest.mark.parametrize("packed", [True, False], ids=["gzip", "identity"])
def test_memory_is_bounded(unit, packed):
    """A gigabyte, in a packet or on its way, costs a process no more than its cap and 64 MB."""

    def script(request):
        if "/events" not in request:
            yield head() + INFO, 0.0
        elif packed:
            yield head("Content-Encoding: gzip") + bomb(unit), 0.0
        else:
            yield head(), 0.0
            for _ in range(1024):
                yield unit * (1024 * 1024 // len(unit)), 0.0

    with dripping(script) as url:
        shown = subprocess.run(
            [sys.executable, "-c", PROGRAM, url],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert int(shown.stdout) < 4 * 1024 * 1024 + EXCESS
