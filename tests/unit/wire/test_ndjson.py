import json
from itertools import pairwise

import pytest
from harness.json_values import json_values, numbers
from harness.reference_decoder import HOSTILE, ODD, SEEDS, TOKENS, check
from harness.vectors import content, named
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zeroeventhub import FIRST, LAST, Event, Page
from zeroeventhub.errors import CutPage, PageTooLarge, ProtocolError
from zeroeventhub.wire.ndjson import (
    Lines,
    PageBounds,
    PageDecoder,
    encode_page,
    encode_page_v1,
    parts_of,
)

LONGEST_BYTE_BY_BYTE = 8192
FIELDS = [b"data", b"cursor", b"headers", b"partition", b"newer"]


def decode(*chunks, partition=0, **bounds):
    """Decode the page that comes in these chunks."""
    decoder = PageDecoder(partition, PageBounds(**bounds))
    for chunk in chunks:
        decoder.feed(chunk)
    return decoder.page()


def raw(page):
    """The page's data, as it was sent, and its cursor."""
    return [event.raw for event in page.events], page.cursor


def cut(body, cuts):
    """Cut a body up at some places, wherever they are."""
    places = [0, *sorted(min(place, len(body)) for place in cuts), len(body)]
    return [body[start:end] for start, end in pairwise(places)]


def outcome(chunks, partition):
    """What the decoder makes of chunks, in the words of the vectors."""
    try:
        page = decode(*chunks, partition=partition)
    except CutPage:
        return {"error": "cut"}
    except ProtocolError:
        return {"error": "protocol"}
    return {
        "events": [event.raw for event in page.events],
        "headers": [dict(event.headers) for event in page.events],
        "count": len(page.events),
        "cursor": page.cursor,
        "caughtUp": page.caught_up,
        "stopReached": page.stop_reached,
    }


def expected_of(vector):
    """What may be expected of a vector, with its texts put together and its defaults filled in."""
    listed = vector["expect"]
    for expected in listed if isinstance(listed, list) else [listed]:
        if "error" in expected:
            yield expected
            continue
        page = {"caughtUp": False, "stopReached": False, **expected}
        page["cursor"] = content(page["cursor"]).decode()
        if "events" in page:
            page["events"] = [content(event) for event in page["events"]]
        yield page


@pytest.mark.parametrize("vector", named("decode"))
def test_body_is_decoded_as_the_vector_says(vector):
    """A body gives the page or the error that the specification says, in whatever chunks."""
    body = content(vector["body"])
    ways = [[body], cut(body, vector.get("cuts", ()))]
    if len(body) <= LONGEST_BYTE_BY_BYTE:
        ways.append(cut(body, range(1, len(body))))
    for chunks in ways:
        got = outcome(chunks, vector["partition"])
        assert any(
            got == got | one for one in expected_of(vector) if ("error" in got) == ("error" in one)
        )


def test_reference_agrees_on_the_seeds():
    """What readers get wrong is read by the decoder as by Python's JSON."""
    for seed in SEEDS:
        check(seed)


bodies = st.one_of(
    st.binary(max_size=200),
    st.lists(st.sampled_from(TOKENS), max_size=40).map(b"".join),
    st.lists(st.sampled_from(SEEDS) | st.binary(max_size=5), max_size=4).map(b"".join),
)


@given(bodies)
@settings(max_examples=120)
def test_reference_agrees_on_any_bytes(body):
    """Any bytes are a page, a cut page or refused, in any chunks, just as Python's JSON says."""
    check(body)


REFUSED_LINES = [
    *[b"1", b"null", b"\x00", b"}{", b"\x0c", b'{"data":1,}', b"{data:1}", b'{"data"}'],
    *[b'{"data":1}\x00', b'{"data":1}\r{"data":2}', b'{"data":[1,\n2]}', b'{"cursor":true}'],
    *['{"data":1}\u2028{"data":2}'.encode(), b'{"data":1,"partition":true}', b'{"headers":"a"}'],
    *[b'{"partition":1e400}', b'{"partition":"","data":1}', b'{"partition":-1,"data":1}'],
    *[b'{"cursor":"%b"}' % cursor for cursor in (b"\x7f", b"a\\n", b"\\t", b"\\ud800")],
    *[b'{"%b":%b}' % (field, value) for field in FIELDS for value in HOSTILE],
]


@pytest.mark.parametrize("start", [b"", b'{"data":1}\n', b'{"cursor":"a"}\n'])
def test_line_that_is_not_of_the_protocol_is_refused(start):
    """What is no object of the protocol's fields, or no JSON in any field, is refused anywhere."""
    for line in REFUSED_LINES:
        with pytest.raises(ProtocolError):
            decode(start + line + b'\n{"cursor":"1-1"}\n')
    with pytest.raises(ProtocolError, match="in a page of partition 0"):
        decode(start + b'{"partition":%b,"data":1}\n{"cursor":"1-1"}\n' % (b"1" * 50))


SEVERAL_CHECKPOINTS = (
    b'{"data":{"n":1}}\n{"data":"\xc3\xa5"}\n{"cursor":"1-2","caughtUp":true}\n{"data":3}\n'
    b'{"cursor":"1-3"}\n{"data":[4, 4]}\n{"command":"new"}\n'
    b'{"data":5,"cursor":"1-5","caughtUp":true,"stopReached":true}\n{"command":"new"}\n{"data":6}\n'
)


def test_page_cut_at_any_byte_ends_at_its_last_checkpoint():
    """A page that is cut anywhere is what its last whole checkpoint settles, or a cut page."""
    for length in range(len(SEVERAL_CHECKPOINTS) + 1):
        body = SEVERAL_CHECKPOINTS[:length]
        check(body)
        has_page = outcome([body], 0) != {"error": "cut"}
        assert has_page is (b'"caughtUp":true}' in body)


# Bounds.


LINES = [b'{"data":1}\n', b'{"data":"%b"}\n' % (b"x" * 30), b'{"cursor":"a"}\n', b"\n", b"{}\n"]
bounded_bodies = st.lists(st.sampled_from([*LINES, b'{"data"', b"oops\n"]), max_size=12)
bounds = st.fixed_dictionaries(
    {
        "page_bytes": st.integers(0, 200),
        "page_events": st.integers(0, 6),
        "line_bytes": st.integers(0, 50),
    }
)


@pytest.mark.parametrize("data_type", [None, int])
def test_events_after_the_last_checkpoint_are_in_no_form_of_the_page(data_type):
    """What will be sent again is not among the events, nor among what they are decoded as."""
    decoder = PageDecoder(0, data_type=data_type)
    decoder.feed(b'{"data":1}\n{"cursor":"a"}\n{"data":2}\n{"cursor":"b"}\n{"data":3}\n')
    events = decoder.page().events
    assert [events.decoded(int), events.decoded(int)] == [[1, 2]] * 2
    assert [event.data for event in events] == [1, 2]


def taken(chunks, bounds):
    """What stands of a body that comes in chunks, and the error that ended it."""
    decoder = PageDecoder(0, PageBounds(**bounds))
    error = None
    try:
        for chunk in chunks:
            decoder.feed(chunk)
    except PageTooLarge as refused:
        error = str(refused)
    try:
        return error, *raw(decoder.page())
    except CutPage as refused:
        return error or str(refused)
    except ProtocolError as refused:
        return str(refused)


@given(bounded_bodies.map(b"".join), st.lists(st.integers(0, 400), max_size=8), bounds)
@example(LINES[2] + LINES[1], [20], {"page_bytes": 90, "page_events": 9, "line_bytes": 40})
@settings(max_examples=120)
def test_bounds_do_not_depend_on_chunks(body, cuts, bounds):
    """However bytes are cut up, a bound is broken at the same place, and what stands is within."""
    whole = taken([body], bounds)
    assert taken(cut(body, cuts), bounds) == whole
    assert taken(cut(body, range(1, len(body))), bounds) == whole
    if isinstance(whole, tuple):
        _, events, _ = whole
        assert len(events) <= bounds["page_events"]
        assert all(len(raw) <= bounds["line_bytes"] for raw in events)
        assert sum(map(len, events)) <= bounds["page_bytes"]


@pytest.mark.parametrize(
    ("name", "least", "first"),
    [("page_bytes", 52, 37), ("page_events", 2, 2), ("line_bytes", 15, 14)],
)
@pytest.mark.parametrize("size", [1, 11, 52], ids="in chunks of {} bytes".format)
def test_bound_is_kept_to_the_last_byte_and_event(name, least, first, size):
    """A page of just the bounds is taken, and one beyond is refused by the bound that it breaks."""
    body = b'{"data":1}\n{"cursor":"0"}\n{"data":2}\n{"cursor":"aa"}'
    chunks = cut(body, range(size, len(body), size))
    assert raw(decode(*chunks, **{name: least})) == ([b"1", b"2"], "aa")
    error, *found = taken(chunks, {name: least - 1})
    assert bool(error) is (name == "page_bytes")
    assert found == [[b"1"], "0"]
    if name == "page_bytes":
        error, *found = taken([*chunks, b"\n"], {name: least})
        assert (bool(error), found) == (True, [[b"1", b"2"], "aa"])
    body = b'{"data":1}\n{"data":2}\n{"cursor":"a"}\n'
    chunks = cut(body, range(size, len(body), size))
    assert raw(decode(*chunks, **{name: first})) == ([b"1", b"2"], "a")
    assert f"Limits.{name}" in taken(chunks, {name: first - 1 - (name == "page_bytes")})


SPECIAL = ["\u2028", "\u2029", "\u0085", "\u0000", "\r", "\ufeff", "\U0001f600"]
text = st.text(max_size=8) | st.sampled_from(SPECIAL)
json_data = json_values(numbers | text, text)
header_fields = st.dictionaries(text, text, max_size=3)
cursors = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=8
).filter(lambda cursor: cursor not in {FIRST, LAST})
odd_data = st.sampled_from(ODD).map(lambda data: Event(data.strip(b" \t\r").replace(b"\r", b" ")))
pages = st.builds(
    Page,
    st.lists(st.builds(Event.of, json_data) | odd_data, max_size=4),
    cursors,
    caught_up=st.booleans(),
    stop_reached=st.booleans(),
)
partition_ids = st.integers(0, 32767)


@given(pages)
@example(Page([Event.of("\u2028\u0085\u0000\r\n")], "1-1"))
def test_page_survives_the_wire(page):
    """A page is the same after the wire, also with JSON that no language likes."""
    assert decode(encode_page(page)) == page
    lines, checkpoint = parts_of(page)
    assert lines == b"".join(b'{"data":%b}\n' % event.raw for event in page.events)
    assert json.loads(checkpoint)["cursor"] == page.cursor


@given(partition_ids, pages, header_fields, st.sets(text, max_size=3))
@settings(max_examples=50)
def test_v1_page_survives_the_wire_with_the_headers_asked_for(partition, page, headers, others):
    """A v1 page carries those headers that were asked for by name, or all, and no flags."""
    headers.pop("_all", None)
    sent = Page([Event(event.raw, headers) for event in page.events], page.cursor)
    some = dict(list(headers.items())[:2])
    named = {*some, *others} - {*headers.keys() - some.keys(), "_all"}
    for names, chosen in ((named, some), ({"_all"}, headers)):
        expected = [Event(event.raw, chosen) for event in page.events]
        found = decode(encode_page_v1(partition, sent, names), partition=partition)
        assert found == Page(expected, page.cursor)


json_texts = st.sampled_from([b"1", b'"a b"', b'{"n": 1}', b"[]", '"å\u2028"'.encode()])
many = st.lists(json_texts, max_size=6)


@given(many, many)
def test_lines_are_a_sequence_of_events(raws, others):
    """Lines are in all ways the list of their events, and are sent as it would be."""
    events, found = [*map(Event, raws)], Lines.of(raws)
    for read in (list, len, bool, repr, lambda it: it[1:-1], lambda it: encode_page(Page(it, "1"))):
        assert read(found) == read(events)
    assert [found[index] for index in range(len(events))] == events
    with pytest.raises(IndexError):
        found[len(events)]
    for made in (Lines.of(others), [*map(Event, others)]):
        assert (found == made) is (raws == others)
    assert found != set(raws)


def test_event_is_sent_on_one_line():
    """A newline within an event is white space, and ends no line."""
    raws = [b'{"a":\n1}', b'"}{\\"data\\":"', b"[\r\n2]"]
    body = b'{"data":{"a": 1}}\n{"data":"}{\\"data\\":"}\n{"data":[  2]}\n{"cursor":"1-7"}\n'
    for events in (Lines.of(raws), [*map(Event, raws)]):
        assert encode_page(Page(events, "1-7")) == body
