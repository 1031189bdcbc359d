"""Pages as Arrow record batches, from lines and back, and what is refused of them."""

import random
import struct
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeroeventhub.arrow.arrow_page import EVENTS, ROWS, ArrowPage
from zeroeventhub.arrow.page_decoder import ArrowDecoder
from zeroeventhub.arrow.page_encoder import encode_page
from zeroeventhub.errors import CutPage, FeedFailure, PageTooLarge, ProtocolError
from zeroeventhub.lines import Lines
from zeroeventhub.ndjson import PageDecoder
from zeroeventhub.ndjson import encode_page as encode_lines
from zeroeventhub.protocol import Event, Page

CURSOR = "2-7-38b7-0123456789"
LINE = f'{{"cursor":"{CURSOR}"}}'

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=6,
)
pages = st.builds(
    Page,
    st.lists(st.builds(Event.of, json_values), max_size=12),
    st.sampled_from([CURSOR, "a b~", '"\\']),
    caught_up=st.booleans(),
    stop_reached=st.booleans(),
)


def decoded(body, partition=0, **bounds):
    """Decode a page that came as one piece."""
    decoder = ArrowDecoder(partition, **bounds)
    decoder.feed(body)
    return decoder.page()


def stream(*batches, schema=ROWS, options=None):
    """Write batches of rows, each a list of data and checkpoints."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for rows in batches:
            columns = [list(column) for column in zip(*rows, strict=True)] or [[], []]
            arrays = [
                pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
    return sink.getvalue().to_pybytes()


def data_of(page):
    """The JSON of all events of a page."""
    return [row["data"] for batch in page.batches for row in batch.to_pylist()]


def facts(page):
    """All that a page of columns says."""
    return data_of(page), page.cursor, page.caught_up, page.stop_reached


@settings(deadline=None)
@given(pages)
def test_page_says_the_same_in_both_forms(page):
    """Whatever the events are, columns hold the same bytes as lines, and the same checkpoint."""
    lines = encode_lines(page)
    decoder = PageDecoder(0)
    decoder.feed(lines)
    expected = decoder.page()
    found = decoded(encode_page(lines))
    raw = [event.raw for event in expected.events]
    flags = expected.caught_up, expected.stop_reached
    assert [text.encode() for text in data_of(found)] == raw
    assert (found.cursor, found.caught_up, found.stop_reached) == (expected.cursor, *flags)
    assert [batch.schema for batch in found.batches] == [EVENTS] * bool(raw)
    assert facts(ArrowPage.of(expected)) == facts(found)


@given(pages)
def test_same_page_has_the_same_bytes(page):
    """A page is written in the same bytes each time, as its tag promises."""
    lines = encode_lines(page)
    assert encode_page(lines) == encode_page(bytes(bytearray(lines)))


@given(pages, st.randoms(use_true_random=False))
def test_pieces_do_not_matter(page, chance):
    """However an answer is cut into pieces, it is the same page."""
    body = encode_page(encode_lines(page))
    decoder, start = ArrowDecoder(0), 0
    while start < len(body):
        end = start + chance.choice([1, 3, 40, 500])
        decoder.feed(body[start:end])
        start = end
    assert facts(decoder.page()) == facts(decoded(body))


def test_page_that_is_cut_is_never_taken_for_a_whole_one():
    """Wherever a page is cut, it is a cut page, or all of it is there."""
    page = Page(Lines(b'{"n":1}\x1e{"n":2}\x1e"\xc3\xa9"', 3), CURSOR, caught_up=True)
    body = encode_page(encode_lines(page))
    whole = facts(decoded(body))
    assert whole == (['{"n":1}', '{"n":2}', '"é"'], CURSOR, True, False)
    cuts = 0
    for end in range(len(body)):
        decoder = ArrowDecoder(0)
        decoder.feed(body[:end])
        if decoder.has_checkpoint:
            assert facts(decoder.page()) == whole
            continue
        cuts += 1
        with pytest.raises(CutPage):
            decoder.page()
    assert cuts == len(body) - 8  # what follows the checkpoint is the end of the stream


def test_rows_are_events_checkpoints_both_or_neither():
    """Rows mean what lines mean: several pages count up to the last checkpoint, and a tail is
    dropped; a row with nothing is passed over.
    """
    body = stream(
        [("1", None), (None, None), ("2", '{"cursor":"a"}')],
        [],
        [("3", None)],
        [("4", None), (None, '{"partition":0,"cursor":"b","caughtUp":true}'), ("5", None)],
    )
    assert facts(decoded(body)) == (["1", "2", "3", "4"], "b", False, False)


@pytest.mark.parametrize(
    "checkpoint",
    [
        "",
        "{}",
        "[]",
        '{"cursor":""}',
        '{"cursor":null}',
        '{"cursor":1}',
        '{"cursor":"_first"}',
        '{"cursor":"a"',
        '{"cursor":"a"}\n{"cursor":"b"}}',
        '{"cursor":"a","partition":1}',
        '{"cursor":"a","data":1}',
    ],
)
def test_checkpoint_that_is_none_is_refused(checkpoint):
    """A checkpoint is as strict as the line that it is."""
    with pytest.raises(ProtocolError):
        decoded(stream([("1", None)], [(None, checkpoint)]))


@pytest.mark.parametrize(
    "columns",
    [
        [("data", pa.string())],
        [("checkpoint", pa.string()), ("data", pa.string())],
        [("data", pa.binary()), ("checkpoint", pa.string())],
        [("data", pa.large_string()), ("checkpoint", pa.string())],
        [("data", pa.dictionary(pa.int8(), pa.string())), ("checkpoint", pa.string())],
        [("data", pa.string()), ("checkpoint", pa.string()), ("more", pa.string())],
    ],
)
def test_other_columns_are_refused(columns):
    """A stream of another schema is no page."""
    with pytest.raises(ProtocolError, match="other columns"):
        decoded(stream(schema=pa.schema(columns)))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_packed_batches_are_refused(codec):
    """What is packed could be of any size once it is unpacked, and is not looked at."""
    options = pa.ipc.IpcWriteOptions(compression=codec)
    body = stream([(f'"{"x" * 100_000}"', None), (None, LINE)], options=options)
    with pytest.raises(ProtocolError, match="compressed"):
        decoded(body)


@pytest.mark.parametrize(
    "body", [b'{"cursor":"a"}\n', b"<html></html>", b"\xff" * 40, b"\x10" * 40]
)
def test_other_bytes_are_refused(body):
    """What is no Arrow stream is told at once."""
    with pytest.raises(ProtocolError):
        decoded(body)


def test_schema_is_needed_once_and_first():
    """Batches without a schema before them, and schemas in the place of batches, are refused."""
    body = stream([(None, LINE)])
    length = struct.unpack_from("<i", body, 4)[0]
    schema, batches = body[: 8 + length], body[8 + length :]
    for wrong in (batches, schema + schema + batches):
        with pytest.raises(ProtocolError):
            decoded(wrong)


def test_lengths_that_nothing_could_have_are_refused():
    """A message that says that it is longer than a page may be is not waited for."""
    body = encode_page(encode_lines(Page([], CURSOR)))
    decoder = ArrowDecoder(0, page_bytes=1_000_000)
    with pytest.raises(PageTooLarge):
        decoder.feed(body[:4] + struct.pack("<i", 2**31 - 1) + body[8:])
    assert not decoder.has_checkpoint


def test_limits_hold():
    """More bytes or events than a client takes, and an event that is too long, are refused; what
    was read before that stands.
    """
    first = [("1", None), ("2", None), (None, '{"cursor":"a"}')]
    body = stream(first, [("3", None), (f'"{"x" * 900}"', None), (None, '{"cursor":"b"}')])
    longest = len(body)
    for bounds in ({"page_events": 3}, {"line_bytes": 800}, {"page_bytes": longest - 200}):
        decoder = ArrowDecoder(0, **bounds)
        with pytest.raises(PageTooLarge, match=next(iter(bounds))):
            decoder.feed(body)
        assert facts(decoder.page()) == (["1", "2"], "a", False, False)
    exact = {"page_events": 4, "line_bytes": 902, "page_bytes": longest}
    assert decoded(body, **exact).cursor == "b"


def test_event_that_is_not_text_is_not_published():
    """An event of a feed of one's own that is not UTF-8 is the publisher's failure."""
    with pytest.raises(FeedFailure):
        encode_page(encode_lines(Page([Event(b'"\xff"')], CURSOR)))


_MUTATING = """
import random, struct, sys
sys.path.insert(0, sys.argv[2])
from test_arrow_pages import mutants, decoded
from zeroeventhub.errors import CutPage, ProtocolError

for body in mutants(random.Random(int(sys.argv[1])), 4_000):
    try:
        page = decoded(body, page_bytes=1 << 20, page_events=1_000, line_bytes=1 << 20)
    except (CutPage, ProtocolError):
        continue
    for batch in page.batches:
        batch.to_pylist()
"""


def mutants(chance, count):
    """Yield streams that are broken in a few places."""
    whole = [
        encode_page(encode_lines(Page([Event(b'{"n":%d}' % n) for n in range(size)], CURSOR)))
        for size in (0, 1, 5, 40)
    ]
    numbers = [("<i", n) for n in (0, 1, -1, 8, 16, 2**31 - 1, -(2**31))]
    numbers += [("<q", n) for n in (0, 1, -1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))]
    for _ in range(count):
        body = bytearray(chance.choice(whole))
        for _ in range(chance.choice((1, 1, 2, 5))):
            place = chance.randrange(len(body) - 8)
            match chance.randrange(4):
                case 0:
                    body[place] ^= 1 << chance.randrange(8)
                case 1:
                    form, number = chance.choice(numbers)
                    struct.pack_into(form, body, place & ~3, number)
                case 2:
                    body[place] = chance.randrange(256)
                case _:
                    body[place:place] = chance.randbytes(chance.randrange(1, 20))
        yield bytes(body)


def test_broken_streams_are_refused_and_nothing_worse():
    """Whatever is broken of a stream, it is refused or is a page: no other error, and no crash."""
    seed = str(random.randrange(10**6))
    arguments = [sys.executable, "-c", _MUTATING, seed, str(Path(__file__).parent)]
    done = subprocess.run(arguments, check=False, capture_output=True, text=True)
    assert done.returncode == 0, (seed, done.returncode, done.stderr)
