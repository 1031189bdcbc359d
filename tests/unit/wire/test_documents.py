import json
from functools import partial

import pytest
from harness.reference_decoder import HOSTILE
from harness.vectors import content, named
from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub import FIRST, LAST, CountedCursor, Event, FeedInfo, Lag, Partition
from zeroeventhub.errors import ProtocolError
from zeroeventhub.extensions import EXTENSIONS
from zeroeventhub.protocol import KeyPage, SegmentPart, Segments
from zeroeventhub.wire.documents import (
    decode_answer,
    decode_info,
    decode_key_page,
    encode_answer,
    encode_info,
)

SPECIAL = ["\u2028", "\u0000", "\r", "\ufeff", "\U0001f600"]
PART = {"url": "file:///a", "size": 9, "after": 0, "upTo": 2, "cursor": "p"}
ONE_PART = {"segments": [PART], "cursor": "a"}

text = st.text(max_size=8) | st.sampled_from(SPECIAL)
partition_ids = st.integers(0, 32767)
partitions = st.builds(
    Partition,
    partition_ids,
    st.booleans(),
    st.none() | partition_ids,
    st.lists(partition_ids, max_size=3).map(tuple),
)
layouts = st.lists(partitions, max_size=5, unique_by=lambda partition: partition.id).map(tuple)
infos = st.builds(FeedInfo, layouts, text, st.booleans(), st.frozensets(text, max_size=3))


ANSWERS = ("cursor-of-time", "splits", "lag", "cursor-of-count", "segments", "schemas")
DECODERS = {
    "discovery": decode_info,
    "key-history": lambda body: decode_key_page(body, 3),  # after its third version
    **{name: partial(decode_answer, EXTENSIONS[name]) for name in ANSWERS},
}


@pytest.mark.parametrize("vector", named("discovery"))
def test_discovery_document_is_decoded_as_the_vector_says(vector):
    """A discovery document gives the description or the error that the specification says."""
    expected, body = vector["expect"], content(vector["body"])
    if "error" in expected:
        with pytest.raises(ProtocolError):
            decode_info(body)
        return
    names = ("id", "closed", "startsAfterPartition")
    partitions = tuple(
        Partition(*(one[name] for name in names), tuple(one["cursorFromPartitions"]))
        for one in expected["partitions"]
    )
    extensions = frozenset(expected["extensions"])
    assert decode_info(body) == FeedInfo(
        partitions, expected["token"], expected["exactlyOnce"], extensions
    )


@given(infos)
def test_discovery_document_survives_the_wire(info):
    """A discovery document is the same after the wire."""
    assert decode_info(encode_info(info)) == info


GOOD = {
    "discovery": b'{"token":"a","partitions":[{"id":1}]',
    "cursor-of-time": b'{"cursor":"a"',
    "splits": b'{"cursors":["a","b"]',
    "lag": b'{"events":0',
    "cursor-of-count": b'{"cursor":"a","events":0',
    "key-history": b'{"events":[]',
    "segments": b'{"segments":[],"cursor":"a"',
    "schemas": b'{"schemas":{"a":{}},"envelope":null',
}


@pytest.mark.parametrize("name", DECODERS)
def test_ignored_fields_of_a_document_are_json(name):
    """The decoder ignores fields of a newer protocol, which must be JSON in UTF-8 too."""
    decode, good = DECODERS[name], GOOD[name]
    assert decode(good + b',"newer":[{"a":1e999}]}')
    for value in HOSTILE:
        with pytest.raises(ProtocolError):
            decode(good + b',"newer":%b}' % value)
    for body in (good, good + b"}}", good + b"}\xff", b"\xef\xbb\xbf" + good + b"}"):
        with pytest.raises(ProtocolError):
            decode(body)


def test_cursor_has_up_to_4096_printable_characters():
    """Up to 4,096 printable ASCII characters make a cursor; all others are refused anywhere."""
    longest = (bytes(range(0x20, 0x7F)).decode() * 50)[:4096]
    part = SegmentPart("file:///a", 9, 0, 2, longest)
    for name, document, expected in (
        ("cursor-of-time", '{"cursor":?}', longest),
        ("splits", '{"cursors":["a",?]}', ["a", longest]),
        ("cursor-of-count", '{"cursor":?,"events":1}', CountedCursor(longest, 1)),
        ("segments", '{"segments":[],"cursor":?}', Segments((), longest)),
        ("segments", json.dumps(ONE_PART).replace('"p"', "?"), Segments((part,), "a")),
    ):
        decode = DECODERS[name]
        assert decode(document.replace("?", json.dumps(longest)).encode()) == expected
        for cursor in (FIRST, LAST, "", "å", "\u007f", "a\n", "\t", "a" * 4097):
            with pytest.raises(ProtocolError, match="cursor that is not valid"):
                decode(document.replace("?", json.dumps(cursor)).encode())


NO_IDS = [
    *[b"-1", b"32768", b"1.0", b"true", b"{}", b'"-1"', b'""', b'" 1"', b'"+1"'],
    *[b'"%b"' % (b"1" * 5000), '"²"'.encode()],
]

REFUSED = {
    "schemas": [
        b"{}",
        b'{"schemas":[]}',
        b'{"schemas":{"a":true}}',
        b'{"schemas":{},"envelope":1}',
        b'{"schemas":{},"envelope":"of a kind that is not known"}',
    ],
    "discovery": [
        b'{"token":"a","partitions":[{"id":1,%b}]}' % (place % number)
        for place in (b'"startsAfterPartition":%b', b'"cursorFromPartitions":[%b]')
        for number in NO_IDS
    ],
    "cursor-of-time": [b"{}", b'{"cursor":null}', b'{"cursor":"\xff"}', b'["a"]'],
    "splits": [
        *[b"{}", b'{"cursors":[]}', b'{"cursors":["a"]}', b'{"cursors":["a",1]}'],
        b'{"cursors":"ab"}',
    ],
    "lag": [
        *[b"{}", b"[]", b'{"events":-1}', b'{"events":"1"}', b'{"events":1,"seconds":-0.1}'],
        b'{"events":0,"seconds":1e999}',
    ],
    "cursor-of-count": [
        *[b"{}", b'{"cursor":"a"}', b'{"events":1}', b'{"cursor":null,"events":1}'],
        *[b'{"cursor":"a","events":%b}' % value for value in (b"null", b"-1", b'"1"', b"1.5")],
    ],
    "key-history": [
        *[b"{}", b'{"events":[{"version":4}]}', b'{"events":[{"data":1}]}'],
        *[b'{"events":[{"version":%b,"data":1}]}' % value for value in (b"0", b"3", b'"4"')],
        b'{"events":[{"version":4,"data":1},{"version":4,"data":1}]}',
        b'{"events":[{"version":5,"data":1},{"version":4,"data":1}]}',
        b'{"events":[],"more":true}',
    ],
    "segments": [
        *[b"{}", b'{"segments":[]}', b'{"segments":[{}],"cursor":"a"}'],
        *[
            json.dumps({"segments": [PART | wrong], "cursor": "a"}).encode()
            for wrong in ({"after": 2}, {"after": 3}, {"size": -1}, {"after": -1}, {"url": 1})
        ],
    ],
}


@pytest.mark.parametrize("name", DECODERS)
def test_answer_that_is_not_what_was_asked_for_is_refused(name):
    """What lacks a field, or has it in another form, is an error."""
    for body in REFUSED[name]:
        with pytest.raises(ProtocolError):
            DECODERS[name](body)


PART_READ = SegmentPart("file:///a", 9, 1, 2, "a")


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("cursor-of-time", ["a"]),
        ("splits", [["a", "b"]]),
        ("cursor-of-count", [CountedCursor("a", 0)]),
        ("lag", [Lag(0, 0.0, held_back=2.5), Lag(7, None), Lag(10**6, 1.5, exact=False)]),
        (
            "key-history",
            [KeyPage([], []), KeyPage([Event(b"1"), Event(b'{"a": 2}')], [4, 9], more=True)],
        ),
        ("segments", [Segments((), "b"), Segments((PART_READ,) * 2, "b")]),
    ],
)
def test_answer_survives_the_wire(name, answers):
    """An answer is the same after the wire, and leaves unknown values out."""
    for sent in answers:
        answer = encode_answer(EXTENSIONS[name], sent)
        read = decode_answer(EXTENSIONS[name], answer)
        assert (read, repr(read)) == (sent, repr(sent))
        assert b"null" not in answer
