import json

from harness.reference_decoder import ODD
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zeroeventhub import FIRST, LAST, Event, Page
from zeroeventhub.wire.ndjson import PageDecoder, encode_page, encode_page_v1, parts_of

SPECIAL = ["\u2028", "\u2029", "\u0085", "\u0000", "\r", "\ufeff", "\U0001f600"]

text = st.text(max_size=8) | st.sampled_from(SPECIAL)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
json_data = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda data: st.lists(data, max_size=3) | st.dictionaries(text, data, max_size=3),
    max_leaves=8,
)
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


def decode(body, partition=0):
    """Decode a page."""
    decoder = PageDecoder(partition)
    decoder.feed(body)
    return decoder.page()


@given(pages)
@example(Page([Event.of("\u2028\u0085\u0000\r\n")], "1-1"))
def test_page_survives_the_wire(page):
    """A page is the same after the wire, also with JSON that no language likes."""
    body = encode_page(page)
    assert decode(body) == page
    lines, checkpoint = parts_of(body)
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
        found = decode(encode_page_v1(partition, sent, names), partition)
        assert found == Page(expected, page.cursor)
