"""Pages as Arrow record batches: who gets them, that they are the same, and what is refused."""

import json
import random
import struct
import subprocess
import sys
import time
from itertools import product

import httpx
import pyarrow as pa
import pyarrow.ipc
import pytest
from harness import readers
from harness.calling import answer, discovery, raw_feed, sync_call
from harness.json_values import json_values, numbers
from harness.readers import client_of, mounted
from harness.shop import fill, metadata, orders
from harness.statements import add
from hypothesis import given, settings
from hypothesis import strategies as st

from zeroeventhub import (
    FIRST,
    LAST,
    Client,
    Event,
    FeedInfo,
    Limits,
    Page,
    TableFeed,
    TypeFilter,
    feed_routes,
)
from zeroeventhub.errors import CutPage, MissingExtra, PageTooLarge, ProtocolError
from zeroeventhub.wire import ARROW_TYPE as ARROW
from zeroeventhub.wire import NDJSON_TYPE as LINES
from zeroeventhub.wire.ndjson import encode_page

FEED = TableFeed(orders, data="data", type="kind")
CURSOR = "2-1-38b7-0123456789"
MARKER = b"\xff\xff\xff\xff"  # begins each message
LINE = f'{{"cursor":"{CURSOR}"}}'
ROWS = pa.schema([("data", pa.string()), ("checkpoint", pa.string())])
EVENTS = pa.schema([pa.field("data", pa.string(), nullable=False)])


@pytest.fixture
def url(sqlite):
    """The URL of a feed of ten orders that sends Arrow."""
    fill(sqlite, 10)
    with mounted(FEED, sqlite, arrow=True) as url:
        yield url


def get(url, *, accept=None, **parameters):
    """Ask for a page of FeedAPI v2."""
    headers = {} if accept is None else {"Accept": accept}
    return readers.get(url, headers=headers, **{"cursor": "1-0", **parameters})


def facts(page):
    """All that a page of events or of columns says."""
    if isinstance(page, Page):
        data = [event.raw.decode() for event in page.events]
    else:
        assert all(batch.schema == EVENTS for batch in page.batches)
        data = [row["data"] for batch in page.batches for row in batch.to_pylist()]
    return data, page.cursor, page.caught_up, page.stop_reached


def both(url, partition, cursor, **options):
    """Fetch a page in both forms; return what it says, which is the same."""
    with client_of(url) as client:
        lines = facts(client.fetch(partition, cursor, **options))
        assert facts(client.fetch_arrow(partition, cursor, **options)) == lines
    return lines


# Publishers.


def test_pages_are_the_same_in_both_forms(url):
    """A page of whatever was asked for says the same as Arrow and as lines."""
    data, cursor, *flags = both(url, 0, FIRST, limit=4)
    assert ([json.loads(text)["n"] for text in data], flags) == ([0, 1, 2, 3], [False, False])
    stop = both(url, 0, cursor, limit=3)[1]
    assert both(url, 0, cursor, stop=stop)[2:] == (False, True)
    data, end, *flags = both(url, 0, stop)
    assert (len(data), flags) == (3, [True, False])
    none = TypeFilter(frozenset({"placed"}), skip=True)
    for start, asked in ((end, {"wait": 0.01}), (LAST, {}), (FIRST, {"types": none})):
        assert both(url, 0, start, **asked) == ([], end, True, False)


class OwnFeed:
    """A feed of one's own making, of one page that may be anything."""

    def __init__(self, *events):
        self.page = Page([Event(event) for event in events], CURSOR)

    def info(self):
        return FeedInfo.of(1)

    def read(self, partition, cursor, limit):
        return self.page if cursor == FIRST else Page([], CURSOR)


pages = st.builds(
    Page,
    st.lists(st.builds(Event.of, json_values(numbers | st.text())), max_size=12),
    st.sampled_from([CURSOR, "a b~", '"\\']),
    caught_up=st.booleans(),
    stop_reached=st.booleans(),
)


def test_any_page_is_the_same_in_both_forms():
    """Whatever the events are, columns hold the same bytes as lines, each time the same."""
    own = OwnFeed()
    with mounted(own, arrow=True) as url, client_of(url) as client:

        @given(pages)
        @settings(max_examples=20)
        def is_the_same(page):
            own.page = page
            expected = facts(page)
            assert facts(client.fetch(0, FIRST)) == expected
            assert facts(client.fetch_arrow(0, FIRST)) == expected
            one, other = (get(url, accept=ARROW, cursor=FIRST).content for _ in range(2))
            assert one == other

        is_the_same()


def test_feed_of_ones_own_sends_arrow():
    """Events are sent as Arrow without white space around them; bad UTF-8 is found at the start."""
    with mounted(OwnFeed(b'"\xff"'), arrow=True) as url:
        assert get(url, accept=ARROW, cursor=FIRST).status_code == 500
    with mounted(OwnFeed(b'{"a":\n1}', b" 2\r", b"null"), arrow=True) as url:
        assert both(url, 0, FIRST)[0] == ['{"a": 1}', "2", "null"]
        assert both(url, 0, CURSOR) == ([], CURSOR, False, False)


ACCEPTED = {
    LINES: [
        *[None, "*/*", "application/*", "text/html", f"{ARROW};q=0.5, {LINES}"],
        *[f"{ARROW};q=0.5, */*", f"{ARROW};q=0, */*", f"{ARROW};q=nan", ",,;q=1,"],
    ],
    ARROW: [
        *[ARROW.upper(), f"{ARROW};q=0.1", f"{LINES}, {ARROW}", f"{ARROW}, {LINES};q=0.5"],
        f"{ARROW};q=0.5, application/*, {LINES};q=0.2",
    ],
}


@pytest.mark.parametrize("sent", ACCEPTED)
def test_form_is_what_the_client_prefers(url, sent):
    """Clients that prefer Arrow get Arrow, and the rest lines; caches distinguish them."""
    for accept in ACCEPTED[sent]:
        found = get(url, accept=accept)
        assert (found.status_code, found.headers["content-type"]) == (200, sent), accept
        assert found.headers["vary"] == "Accept"
    first = httpx.get(url, params={"n": 1, "cursor0": FIRST}, headers={"Accept": ARROW})
    assert first.headers["content-type"] == LINES  # that is ZeroEventHub v1


@pytest.mark.parametrize("arrow", [True, False])
def test_only_feeds_that_say_so_send_arrow(sqlite, arrow):
    """A client asks for Arrow only where it is announced, and a feed without it sends lines."""
    metadata.create_all(sqlite)
    seen = []
    hooks = {"request": [lambda request: seen.append(request.headers["accept"])]}
    with mounted(FEED, sqlite, arrow=arrow) as url, httpx.Client(event_hooks=hooks) as http:
        assert ("arrow" in httpx.get(url).json()["extensions"]) is arrow
        found = get(url, accept=ARROW)
        assert found.headers["content-type"] == (ARROW if arrow else LINES)
        assert ("vary" in found.headers) is arrow
        assert Client(url, http).fetch_arrow(0, FIRST).caught_up
    assert seen[-1] == (f"{ARROW}, {LINES};q=0.5" if arrow else LINES)


def test_kept_and_large_pages_are_sent_in_both_forms(url, sqlite):
    """Kept and large pages come as Arrow streams too: a row for each event, and the checkpoint."""
    add(sqlite, orders, [{"data": {"n": n, "text": "x" * 2_000}} for n in range(10, 800)])
    assert len(both(url, 0, FIRST, limit=1_000)[0]) == 800
    cursor, caught_up, count = FIRST, False, 0
    while not caught_up:
        data, cursor, caught_up, _ = both(url, 0, cursor, limit=40)
        count += len(data)
    assert count == 800
    with pa.ipc.open_stream(get(url, accept=ARROW).content) as stream:
        *rows, last = stream.read_all().to_pylist()
    assert [json.loads(row["data"])["n"] for row in rows] == [*range(800)]
    assert {row["checkpoint"] for row in rows} == {last["data"]} == {None}
    assert json.loads(last["checkpoint"])["caughtUp"] is True


# Clients, of publishers that do not do as they should.


def stream(*batches, schema=ROWS, options=None):
    """Write batches of rows, each a list of data and checkpoints."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for rows in batches:
            named = [dict(zip(schema.names, row, strict=True)) for row in rows]
            writer.write_batch(pa.RecordBatch.from_pylist(named, schema))
    return sink.getvalue().to_pybytes()


def decoded(*chunks, kind=ARROW, method="fetch_arrow", **bounds):
    """Fetch a page that comes in these chunks."""

    def reply(request):
        if "/events" not in request.url.path:
            return httpx.Response(200, content=discovery("arrow"))
        return httpx.Response(200, headers={"Content-Type": kind}, content=iter(chunks))

    with httpx.Client(transport=httpx.MockTransport(reply)) as http:
        return getattr(Client("http://feed/", http, limits=Limits(**bounds)), method)(0, FIRST)


BODY = stream(
    [('{"n":1}', None), ('{"n":2}', None), ('"é"', None)],
    [(None, f'{{"cursor":"{CURSOR}","caughtUp":true}}')],
)
WHOLE = (['{"n":1}', '{"n":2}', '"é"'], CURSOR, True, False)


def test_page_that_is_cut_is_never_taken_for_a_whole_one():
    """Wherever a page is cut, it is a cut page, or all of it is there, in any pieces."""
    for size in (1, 3, 40, 500):
        pieces = (BODY[start : start + size] for start in range(0, len(BODY), size))
        assert facts(decoded(*pieces)) == WHOLE
    cuts = 0
    for end in range(0, len(BODY) + 1, 4):
        try:
            assert facts(decoded(BODY[:end])) == WHOLE
        except CutPage:
            cuts += 1
    assert cuts == (len(BODY) - 8) // 4  # what follows the checkpoint is the end of the stream
    broken = answer(BODY[:-9], f"Content-Length: {len(BODY)}", kind=ARROW)
    info = answer(discovery("arrow"))
    with raw_feed(broken, info=info) as (url, _), pytest.raises(CutPage):
        sync_call(url, "fetch_arrow")


def test_rows_are_events_checkpoints_both_or_neither():
    """Rows mean what lines do: pages count up to their last checkpoint, empty rows not at all."""
    body = stream(
        [("1", None), (None, None), ("2", '{"cursor":"a"}')],
        [],
        [("3", None)],
        [("4", None), (None, '{"partition":0,"cursor":"b","caughtUp":true}'), ("5", None)],
    )
    assert facts(decoded(body)) == (["1", "2", "3", "4"], "b", False, False)


def test_lines_that_come_in_place_of_arrow_are_taken():
    """Lines of a process without Arrow become columns where asked for; lines stay lines."""
    page = Page([Event(b'{"n":1}'), Event(b'{"n":2}')], CURSOR, caught_up=True)
    lines = encode_page(page)
    assert facts(decoded(lines, kind=LINES)) == (['{"n":1}', '{"n":2}'], CURSOR, True, False)
    assert decoded(encode_page(Page([], CURSOR)), kind=LINES).batches == []
    for wrong in ({"chunks": lines}, {"chunks": BODY, "method": "fetch"}):
        with pytest.raises(ProtocolError):
            decoded(wrong.pop("chunks"), **wrong)


def test_checkpoint_that_is_none_is_refused():
    """A checkpoint is as strict as the line that it is."""
    for checkpoint in ("", "{}", "[]", '{"cursor":""}', '{"cursor":"_first"}', '{"cursor":"a"'):
        with pytest.raises(ProtocolError):
            decoded(stream([("1", None)], [(None, checkpoint)]))


def test_limits_hold():
    """Too many bytes or events and too long an event are refused; what was read before stands."""
    first = [("1", None)], [("2", None), (None, '{"cursor":"a"}')]
    body = stream(*first, [("3", None), (f'"{"x" * 900}"', None), (None, '{"cursor":"b"}')])
    exact = {"page_events": 4, "line_bytes": 902, "page_bytes": len(body)}
    second = body.index(MARKER, len(stream(*first)) - 8)
    for chunks in ([body], [body[:second], body[second:]]):
        assert decoded(*chunks, **exact).cursor == "b"
        for name, most in exact.items():
            # The end of the stream is 8 bytes that need not be there.
            less = most - 1 if name != "page_bytes" else most - 9
            page = facts(decoded(*chunks, **exact | {name: less}))
            assert page == (["1", "2"], "a", False, False)
            with pytest.raises(PageTooLarge, match=name):
                decoded(stream([("1", None)] * 5, [(f'"{"x" * 2000}"', LINE)]), **{name: 4})


def test_other_streams_are_refused():
    """What is no Arrow stream, or has its schema elsewhere than once at the beginning or other
    columns, or says that it is longer than a page may be, or is packed and could be of any size, is
    refused.
    """
    length = struct.unpack_from("<i", BODY, 4)[0]
    schema, batches = BODY[: 8 + length], BODY[8 + length :]
    for wrong in (b"<html></html>", b"\xff" * 40, b"\x10" * 40, batches, schema + schema + batches):
        with pytest.raises(ProtocolError):
            decoded(wrong)
    others = [pa.binary(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
    for columns in (
        *([ROWS[0]], [ROWS[1], ROWS[0]], [*ROWS, pa.field("more", pa.string())]),
        *([pa.field("data", other), ROWS[1]] for other in others),
    ):
        with pytest.raises(ProtocolError, match="the columns of a page"):
            decoded(stream(schema=pa.schema(columns)))
    with pytest.raises(PageTooLarge):
        decoded(BODY[:4] + struct.pack("<i", 2**31 - 1) + BODY[8:], page_bytes=1_000_000)
    for codec in ("lz4", "zstd"):
        options = pa.ipc.IpcWriteOptions(compression=codec)
        body = stream([(f'"{"x" * 100_000}"', None), (None, LINE)], options=options)
        with pytest.raises(ProtocolError, match="compressed"):
            decoded(body)


def mutants(chance, count):
    """Yield streams that are broken in a few places."""
    whole = [
        stream([(f'{{"n":{n}}}', None) for n in range(size)], [(None, LINE)])
        for size in (0, 1, 5, 40)
    ]
    numbers = [struct.pack("<i", n) for n in (0, 1, -1, 8, 16, 2**31 - 1, -(2**31))]
    numbers += [struct.pack("<q", n) for n in (0, 1, -1, 2**31, 2**40, 2**62, -(2**63))]
    for _ in range(count):
        body = bytearray(chance.choice(whole))
        for _ in range(chance.choice((1, 1, 2, 5))):
            place = chance.randrange(len(body) - 8)
            change = chance.randrange(3)
            if change == 0:
                body[place] ^= 1 << chance.randrange(8)
            elif change == 1:
                number, start = chance.choice(numbers), place & ~3
                body[start : start + len(number)] = number
            else:
                body[place:place] = chance.randbytes(chance.randrange(1, 20))
        yield bytes(body)


READING = """
import sys
from zeroeventhub.wire.arrow import ArrowDecoder
from zeroeventhub.errors import CutPage, ProtocolError
from zeroeventhub.wire.ndjson import PageBounds

bodies = sys.stdin.buffer.read()
while bodies:
    length = int.from_bytes(bodies[:4], "big")
    body, bodies = bodies[4 : 4 + length], bodies[4 + length :]
    decoder = ArrowDecoder(0, PageBounds(1 << 20, 1_000, 1 << 20))
    try:
        decoder.feed(body)
        page = decoder.page()
    except (CutPage, ProtocolError):
        continue
    for batch in page.batches:
        batch.to_pylist()
"""


def python(code, given=b""):
    """Run code in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, input=given
    )
    assert done.returncode == 0, (done.returncode, done.stderr.decode())


WITHOUT_PANDAS = """
import sys
from zeroeventhub.wire.arrow import ArrowDecoder, ArrowPage, encode_page
from zeroeventhub.wire.ndjson import PageBounds, PageDecoder
PARTS = b'{"data":1}\\n', b'{"cursor":"1"}\\n'
columns, lines = ArrowDecoder(0, PageBounds()), PageDecoder(0)
columns.feed(encode_page(*PARTS))
lines.feed(b"".join(PARTS))
assert columns.page() == ArrowPage.of(lines.page())
assert "pandas" not in sys.modules
"""


def test_columns_are_made_without_pandas():
    """No page of columns waits for pandas, which takes half a second to import."""
    python(WITHOUT_PANDAS)


def test_broken_streams_are_refused_and_nothing_worse():
    """Whatever is broken of a stream, it is refused or is a page: no other error, and no crash."""
    bodies = mutants(random.Random(1), 500)
    python(READING, b"".join(len(body).to_bytes(4, "big") + body for body in bodies))


BOUNDED = """
import resource
from pathlib import Path
from zeroeventhub.wire import arrow as page_decoder

pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20),) * 2)
"""
CLAIMS = [struct.pack("<i", n) for n in (2**31 - 1, -1, -(2**31), 2**28, 65_535)]
CLAIMS += [struct.pack("<q", n) for n in (2**31, 2**40, 2**62, 2**63 - 1, -1, -(2**63), 10**8)]


def liars():
    """Yield streams that claim a size at any one place, and those of other messages."""
    for place, claim in product(range(0, len(BODY) - 8, 4), CLAIMS):
        yield BODY[:place] + claim + BODY[place + len(claim) :]
    head = BODY[: BODY.index(MARKER, 4)]
    texts = pa.array(["1", "2"])
    nested = pa.array([1, 2])
    for _ in range(60):
        nested = pa.ListArray.from_arrays([0, 1, 2], nested)
    packed = pa.ipc.IpcWriteOptions(compression="zstd")
    for columns in ([texts.dictionary_encode()] * 2, [nested] * 2, [pa.nulls(2)] * 2, [texts] * 9):
        batch = pa.record_batch(columns, names=[*"abcdefghi"][: len(columns)])
        for options in (None, packed):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
                writer.write_batch(batch)
            body = sink.getvalue().to_pybytes()
            yield head + body[body.index(MARKER, 4) :]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the bound on memory is of Linux")
def test_claims_of_any_size_take_no_memory():
    """Whatever sizes and offsets a stream claims, reading it takes 64 MiB at most and ends."""
    python(BOUNDED + READING, b"".join(len(one).to_bytes(4, "big") + one for one in liars()))


def test_long_metadata_are_not_read_again_and_again():
    """A message of long metadata costs what its bytes do, in however many pieces it comes."""
    head = BODY[: BODY.index(MARKER, 4)]
    end = 8 + struct.unpack_from("<i", BODY, len(head) + 4)[0]
    metadata = BODY[len(head) + 8 :][: end - 8]
    length = struct.pack("<q", BODY.index(MARKER, len(head) + 4) - len(head) - end)
    assert metadata.count(length) == 2  # and the length of its last buffer
    metadata = metadata.replace(length, struct.pack("<q", 7 << 20)).ljust(8 << 20, b"\0")
    start = head + MARKER + struct.pack("<i", len(metadata)) + metadata
    began = time.process_time()
    with pytest.raises(CutPage):
        decoded(start, *[bytes(500)] * 3_000)
    assert time.process_time() - began < 5


def test_rows_of_a_page_are_bounded():
    """As many rows as lines may be in a page; what was read before more of them stands."""
    few, many = [(None, LINE)] * 2, [("1", '{"cursor":"b"}')] + [(None, LINE)] * 1_003
    assert facts(decoded(stream(few, many), page_events=2)) == ([], CURSOR, False, False)
    assert decoded(stream(many), page_events=2).cursor == CURSOR
    with pytest.raises(PageTooLarge, match="1,004 lines"):
        decoded(stream(many + few), page_events=2)


def test_lines_need_no_pyarrow(monkeypatch):
    """Without pyarrow lines go on, and what needs it says so; it is imported only when needed."""
    python(
        "import sys, zeroeventhub.server, zeroeventhub.client, zeroeventhub.cli;"
        "assert 'pyarrow' not in sys.modules"
    )
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"extra \[arrow\]"):
        feed_routes("/orders", OwnFeed(), arrow=True)
    with mounted(OwnFeed(b"1"), arrow=False) as url, client_of(url) as client:
        assert len(client.fetch(0, FIRST).events) == 1
        with pytest.raises(MissingExtra, match=r"extra \[arrow\]"):
            client.fetch_arrow(0, FIRST)
