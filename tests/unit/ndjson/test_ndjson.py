import json
from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zeroeventhub import FIRST, LAST, CountedCursor, Event, FeedInfo, Lag, Page, Partition
from zeroeventhub.errors import CutPage, ProtocolError
from zeroeventhub.ndjson import (
    PageDecoder,
    decode_counted_cursor,
    decode_cursor,
    decode_info,
    decode_lag,
    decode_splits,
    encode_info,
    encode_lag,
    encode_page,
    encode_page_v1,
)

SPECIAL = ["\u2028", "\u2029", "\u0085", "\u0000", "\r", "\ufeff", "\U0001f600"]

text = st.text(max_size=8) | st.sampled_from(SPECIAL)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
json_data = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda data: st.lists(data, max_size=3) | st.dictionaries(text, data, max_size=3),
    max_leaves=8,
)
header_fields = st.dictionaries(text, text, max_size=3)
events = st.builds(Event.of, json_data)
cursors = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=8
).filter(lambda cursor: cursor not in {FIRST, LAST})
pages = st.builds(
    Page, st.lists(events, max_size=4), cursors, caught_up=st.booleans(), stop_reached=st.booleans()
)
partition_ids = st.integers(0, 32767)

SEVERAL_CHECKPOINTS = (
    b'{"data":{"n":1}}\n{"data":"\xc3\xa5"}\n{"cursor":"1-2"}\n{"data":3}\n{"cursor":"1-3"}\n'
    b'{"data":[4, 4]}\n{"data":5,"cursor":"1-5"}\n{"data":6}\n'
)


def decode(*chunks, partition=0):
    """Decode the page that comes in these chunks."""
    decoder = PageDecoder(partition)
    for chunk in chunks:
        decoder.feed(chunk)
    return decoder.page()


def raw(page):
    """The page's data, as it was sent, and its cursor."""
    return [event.raw for event in page.events], page.cursor


@given(page=pages, cuts=st.lists(st.integers(0, 400)))
def test_page_survives_the_wire_in_any_chunks(page, cuts):
    """A page is the same behind the wire, byte for byte, however its bytes are cut up."""
    body = encode_page(page)
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    chunks = [body[start:end] for start, end in pairwise(places)]
    assert decode(*chunks) == page
    assert decode(*(body[place : place + 1] for place in range(len(body)))) == page


@given(data=json_data)
@example(data="\u2028\u0085\u0000\r\n")
def test_data_survives_the_wire(data):
    """Data is equal behind the wire, whatever characters are in its strings."""
    (event,) = decode(encode_page(Page([Event.of(data)], "1-1"))).events
    assert event.data == data


@given(partition_ids, pages, header_fields, st.sets(text, max_size=3))
def test_v1_page_survives_the_wire_with_the_headers_asked_for(partition, page, headers, names):
    """A v1 page carries those headers that were asked for by name."""
    sent = Page([Event(event.raw, headers) for event in page.events], page.cursor)
    got = decode(encode_page_v1(partition, sent, names), partition=partition)
    assert raw(got) == raw(page)
    if "_all" not in names:
        chosen = {name: headers[name] for name in names & headers.keys()}
        assert all(event.headers == chosen for event in got.events)


@given(partition_ids, pages, header_fields)
def test_v1_page_carries_all_headers_when_asked_for_all(partition, page, headers):
    """`_all` in the place of names asks for every header."""
    sent = Page([Event(event.raw, headers) for event in page.events], page.cursor)
    got = decode(encode_page_v1(partition, sent, ["_all"]), partition=partition)
    assert (got.events, got.cursor) == (sent.events, sent.cursor)
    assert (got.caught_up, got.stop_reached) == (False, False)


@pytest.mark.parametrize("length", range(len(SEVERAL_CHECKPOINTS)))
def test_page_cut_at_any_byte_ends_at_a_checkpoint(length):
    """A page that is cut anywhere is a page up to one of its checkpoints, or a cut page."""
    data = [b'{"n":1}', '"å"'.encode(), b"3", b"[4, 4]", b"5"]
    allowed = [(data[:2], "1-2"), (data[:3], "1-3"), (data, "1-5")]
    try:
        page = decode(SEVERAL_CHECKPOINTS[:length])
    except CutPage:
        assert length < SEVERAL_CHECKPOINTS.index(b'"1-2"}\n') + len('"1-2"}')
    else:
        assert raw(page) in allowed


def test_events_behind_the_last_checkpoint_are_dropped():
    """Events that no checkpoint follows are not of the page: they will be sent again."""
    page = decode(b'{"data":1}\n{"cursor":"1-1"}\n{"data":2}\n')
    assert raw(page) == ([b"1"], "1-1")


def test_page_without_a_checkpoint_is_a_cut_page():
    """A page without a checkpoint is a cut page."""
    with pytest.raises(CutPage):
        decode(b'{"data":1}\n')


def test_decoder_knows_whether_a_checkpoint_has_come():
    """A decoder tells whether what came so far holds a page."""
    decoder = PageDecoder(0)
    decoder.feed(b'{"data":1}\n{"cursor":"1-1"}')
    assert not decoder.has_checkpoint
    decoder.feed(b"\n")
    assert decoder.has_checkpoint


def test_last_newline_may_be_missing():
    """A publisher may leave out the newline of the last line."""
    assert raw(decode(b'{"data":1}\n{"cursor":"1-1"}')) == ([b"1"], "1-1")


def test_blank_lines_are_passed_over():
    """Empty lines, and lines that end in CR LF, are taken as they are meant."""
    assert raw(decode(b'\r\n\n{"data":1}\r\n \t\n{"cursor":"1-1"}\r\n')) == ([b"1"], "1-1")


def test_unknown_fields_and_commands_are_passed_over():
    """Lines and fields of a newer protocol are passed over."""
    page = decode(
        b'{"command":"rest","partition":7}\n{"data":1,"id":{"deep":[1]}}\n{}\n'
        b'{"cursor":"1-1","until":null}\n{"cursor":null}\n{"cursor":""}\n'
    )
    assert raw(page) == ([b"1"], "1-1")


def test_line_may_hold_both_an_event_and_a_checkpoint():
    """An event and a cursor on one line are both taken, and the event comes first."""
    assert raw(decode(b'{"cursor":"1-1","data":1}\n')) == ([b"1"], "1-1")


def test_null_is_data():
    """An event whose data is null is an event."""
    assert raw(decode(b'{"data":null}\n{"cursor":"1-1"}\n')) == ([b"null"], "1-1")


@pytest.mark.parametrize("partition", [b"1", b'"1"', b'"00"', b'""', b"-1", b"1" * 50])
def test_line_of_another_partition_is_refused(partition):
    """A line that says it is of another partition is refused."""
    with pytest.raises(ProtocolError, match="in a page of partition 0"):
        decode(b'{"partition":%b,"data":1}\n{"cursor":"1-1"}\n' % partition)


@pytest.mark.parametrize("partition", [b"7", b'"7"', b"null"])
def test_line_may_say_its_partition_as_a_number_or_a_string(partition):
    """A line may say the partition it is of, as a number or a string."""
    page = decode(b'{"partition":%b,"data":1,"cursor":"1-1"}\n' % partition, partition=7)
    assert raw(page) == ([b"1"], "1-1")


@pytest.mark.parametrize(
    "cursor",
    [FIRST, LAST, "å", "\u007f", "a\n", "\t", "a" * 4097],
    ids=lambda cursor: ascii(cursor[:9]),
)
def test_cursor_that_cannot_be_read_from_is_refused(cursor):
    """A cursor of other characters, a longer one, and a name for no place are refused anywhere."""
    text = json.dumps(cursor).encode()
    with pytest.raises(ProtocolError):
        decode(b'{"cursor":"a"}\n{"cursor":%b}\n' % text)
    with pytest.raises(ProtocolError):
        decode_cursor(b'{"cursor":%b}' % text)
    with pytest.raises(ProtocolError):
        decode_splits(b'{"cursors":["a",%b]}' % text)
    with pytest.raises(ProtocolError):
        decode_counted_cursor(b'{"cursor":%b,"events":1}' % text)


@pytest.mark.parametrize(
    "value", [b'"\xff"', b'"\xed\xa0\x80"', b'"\\ud800"', b"NaN", b"1.", b"[1,]"], ids=repr
)
def test_document_is_json_in_what_is_passed_over_as_well(value):
    """Fields that nobody asked for are JSON in UTF-8 like all others."""
    with pytest.raises(ProtocolError):
        decode_cursor(b'{"cursor":"a","newer":%b}' % value)
    with pytest.raises(ProtocolError):
        decode_splits(b'{"newer":%b,"cursors":["a","b"]}' % value)
    with pytest.raises(ProtocolError):
        decode_lag(b'{"events":0,"newer":%b}' % value)
    with pytest.raises(ProtocolError):
        decode_counted_cursor(b'{"cursor":"a","events":0,"newer":%b}' % value)
    with pytest.raises(ProtocolError):
        decode_info(b'{"token":"a","partitions":[],"newer":%b}' % value)


def test_page_with_a_tail_is_not_caught_up():
    """Events behind the last checkpoint show that there is more to read."""
    checkpoint = b'{"cursor":"1-1","caughtUp":true,"stopReached":true}\n'
    page = decode(checkpoint + b'{"data":2}\n')
    assert (page.cursor, page.caught_up, page.stop_reached) == ("1-1", False, True)
    assert decode(checkpoint).caught_up


def test_longest_cursor_is_taken():
    """All printable characters of ASCII make cursors, up to 4,096 of them."""
    cursor = (bytes(range(0x20, 0x7F)).decode() * 50)[:4096]
    body = json.dumps({"cursor": cursor, "cursors": [cursor, cursor], "events": 7}).encode()
    assert decode(body + b"\n").cursor == decode_cursor(body) == cursor
    assert decode_splits(body) == [cursor, cursor]
    assert decode_counted_cursor(body) == CountedCursor(cursor, 7)


@pytest.mark.parametrize("lag", [Lag(0, 0.0), Lag(7, None), Lag(10**6, 1.5, exact=False)])
def test_lag_comes_back_as_it_was_sent(lag):
    """What is encoded is decoded, whatever is absent in it."""
    assert decode_lag(encode_lag(lag)) == lag
    said = {"events": lag.events, "seconds": lag.seconds, "more": not lag.exact or None}
    assert json.loads(encode_lag(lag)) == {
        name: value for name, value in said.items() if value is not None
    }


ODD_FLAGS = [b"null", b"false", b"1", b'"true"', b"[true]", b"{}", b"1e999", b"9" * 5000, b"-0.0"]


@pytest.mark.parametrize("value", ODD_FLAGS, ids=lambda value: repr(value[:9]))
def test_flag_that_is_not_true_is_passed_over(value):
    """A value of another type in a flag's place is somebody else's, and JSON like any other."""
    assert decode_lag(b'{"events":1,"more":%b}' % value).exact
    page = decode(b'{"cursor":"a","caughtUp":%b,"stopReached": %b }\n' % (value, value))
    assert (page.cursor, page.caught_up, page.stop_reached) == ("a", False, False)
    info = decode_info(b'{"token":"a","partitions":[],"extensions":[%b,"wait"]}' % value)
    assert info.extensions == {"wait"} | ({"true"} if value == b'"true"' else set())
    alone = decode_info(b'{"token":"a","partitions":[],"extensions":%b}' % value)
    assert alone.extensions == frozenset()


def test_flag_may_stand_among_white_space():
    """White space around a flag means nothing."""
    page = decode(b'{ "cursor" : "a" , "caughtUp" :\ttrue , "stopReached": true\r}\n')
    assert (page.caught_up, page.stop_reached) == (True, True)


HOSTILE_JSON = [
    *[b"NaN", b"Infinity", b"-Infinity", b"01", b"-01", b"+1", b".5", b"1.", b"1e", b"0x1", b"-"],
    *[b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'"\\ud800"', b'"\\udc00"', b'"\\ud800\\u0041"'],
    *[b'"\x00"', b'"\x01"', b'"\t"', b'"\\x41"', b'"\\u12"', b"'a'", b"tru", b'"open', b"\xa0 1"],
    *[b"[1,]", b'{"a":1,}', b"[1 2]", b"{1:2}", b"1 2", b"1}{", b"/**/1", b"]", b""],
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
]
HOSTILE_LINES = [
    *[b"[1]", b'["data"]', b"1", b"null", b'"data"', b"data", b"\x00", b"<html>", b"}{"],
    *[b'{"data":1} x', b'{"data":1}{"data":2}', b'{"data":1,}', b"{data:1}", b'{"data"}'],
    *[b'\xef\xbb\xbf{"data":1}', b'\xff\xfe{"data":1}', b'{"data":1}\x00', b'{"\xff":1}'],
    *[b'{"cursor":1}', b'{"cursor":["a"]}', b'{"cursor":"\\ud800"}', b'{"cursor":"a\x01"}'],
    *[b'{"data":1,"partition":0.0}', b'{"data":1,"partition":true}', b'{"partition":1e400}'],
    *[b'{"data":1,"headers":[]}', b'{"data":1,"headers":{"a":1}}', b'{"headers":"a"}'],
]


@pytest.mark.parametrize("field", [b"data", b"cursor", b"headers", b"partition", b"newer"])
@pytest.mark.parametrize("value", HOSTILE_JSON, ids=lambda value: repr(value[:20]))
def test_value_that_is_not_json_is_refused(field, value):
    """What is not JSON is refused in every field, also in one that would be passed over."""
    with pytest.raises(ProtocolError):
        decode(b'{"%b":%b}\n{"cursor":"1-1"}\n' % (field, value))


@pytest.mark.parametrize("line", HOSTILE_LINES, ids=repr)
def test_line_that_is_not_of_the_protocol_is_refused(line):
    """A line that is not an object of the protocol's fields is refused."""
    with pytest.raises(ProtocolError):
        decode(line + b'\n{"cursor":"1-1"}\n')


@given(st.binary(), st.binary())
def test_any_bytes_are_a_page_or_refused(before, after):
    """Whatever comes is a page, a cut page or not of the protocol: never another exception."""
    try:
        page = decode(before + b'{"cursor":"1-1"}\n', after)
    except (ProtocolError, CutPage):
        return
    assert isinstance(page, Page)


partitions = st.builds(
    Partition,
    partition_ids,
    st.booleans(),
    st.none() | partition_ids,
    st.lists(partition_ids, max_size=3).map(tuple),
)
layouts = st.lists(partitions, max_size=5, unique_by=lambda partition: partition.id).map(tuple)
infos = st.builds(FeedInfo, layouts, text, st.booleans(), st.frozensets(text, max_size=3))


@given(infos)
def test_discovery_document_survives_the_wire(info):
    """What a feed says of itself is the same behind the wire, and the document is JSON."""
    body = encode_info(info)
    assert decode_info(body) == info
    assert json.loads(body)["token"] == info.token


@given(infos)
def test_ids_may_be_numbers(info):
    """Partition ids may be numbers where the specification has strings."""
    document = json.loads(encode_info(info))
    for entry in document["partitions"]:
        entry["id"] = int(entry["id"])
        for name in {"startsAfterPartition"} & entry.keys():
            entry[name] = int(entry[name])
        for name in {"cursorFromPartitions"} & entry.keys():
            entry[name] = [int(number) for number in entry[name]]
    assert decode_info(msgspec.json.encode(document)) == info


def test_discovery_document_has_defaults():
    """Fields that are left out have the defaults of the specification; new ones are passed over."""
    info = FeedInfo((Partition(3),), "a", exactly_once=False)
    assert decode_info(b'{"token":"a","partitions":[{"id":"3"}],"newer":{}}') == info


def test_null_in_a_discovery_document_is_a_default():
    """A field that is null is as one that is left out."""
    info = FeedInfo((Partition(3),), "a", exactly_once=False)
    entry = b'"id":3,"closed":null,"startsAfterPartition":null,"cursorFromPartitions":null'
    assert decode_info(b'{"token":"a","partitions":[{%b}],"exactlyOnce":null}' % entry) == info


HOSTILE_IDS = [
    *[b"-1", b"32768", b"99999", b"1.0", b"1e400", b"true", b"{}", b"[]", b"1" * 5000],
    *[b'"-1"', b'"32768"', b'""', b'" 1"', b'"1 "', b'"+1"', b'"1.0"', b'"0x1"', b'"1\\n"'],
    *['"\uff11"'.encode(), '"²"'.encode(), '"\u0661"'.encode(), b'"' + b"1" * 5000 + b'"'],
]


@pytest.mark.parametrize(
    "place",
    [b'"id":%b', b'"id":1,"startsAfterPartition":%b', b'"id":1,"cursorFromPartitions":[%b]'],
)
@pytest.mark.parametrize("number", HOSTILE_IDS, ids=lambda number: repr(number[:20]))
def test_id_that_cannot_be_a_partition_is_refused(place, number):
    """A number outside of 0 to 32767, or in other than ASCII digits, is no partition's id."""
    with pytest.raises(ProtocolError):
        decode_info(b'{"token":"a","partitions":[{%b}]}' % (place % number))


@pytest.mark.parametrize(
    "body",
    [
        *[b"", b"{}", b"[]", b"null", b'"a"', b"<html></html>", b"\xff", b"\x00"],
        *[b'{"token":"a"}', b'{"partitions":[]}', b'{"token":null,"partitions":[]}'],
        *[b'{"token":1,"partitions":[]}', b'{"token":"a","partitions":{}}'],
        *[b'{"token":"a","partitions":[1]}', b'{"token":"a","partitions":[{}]}'],
        *[b'{"token":"\xff","partitions":[]}', b'{"token":"\\ud800","partitions":[]}'],
        *[b'\xef\xbb\xbf{"token":"a","partitions":[]}', b'{"token":"a","partitions":[]}]'],
        *[b'{"token":"a","partitions":[],"x":%b}' % value for value in HOSTILE_JSON[:11]],
        b'{"token":"a","partitions":[],"x":%b}' % HOSTILE_JSON[-1],
        b'{"token":"a","partitions":[{"id":null}]}',
        b'{"token":"a","partitions":[{"id":1},{"id":"1"}]}',
        b'{"token":"a","partitions":[{"id":1,"closed":"yes"}]}',
        b'{"token":"a","partitions":[],"exactlyOnce":1}',
    ],
    ids=lambda body: repr(body[:60]),
)
def test_what_is_not_a_discovery_document_is_refused(body):
    """An answer that is not a discovery document is refused."""
    with pytest.raises(ProtocolError):
        decode_info(body)


@given(st.binary() | st.binary().map(lambda junk: b'{"token":"a","partitions":[' + junk + b"]}"))
def test_any_bytes_are_a_discovery_document_or_refused(body):
    """Whatever comes is a discovery document or not: never another exception."""
    try:
        info = decode_info(body)
    except ProtocolError:
        return
    assert isinstance(info, FeedInfo)
