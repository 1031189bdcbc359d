"""Batches of events, decoded from what may be anything."""

import json

import msgspec
import pytest
from harness.json_values import json_values, numbers
from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub.errors import BadRequest, FeedError, TooLarge, UnsupportedMediaType
from zeroeventhub.new_events import NewEvent, runs_of
from zeroeventhub.wire import CLOUDEVENTS_BATCH_TYPE, NDJSON_TYPE
from zeroeventhub.wire.new_events import decode_events, encode_events

LINE = {"id": "e1", "type": "placed", "data": {"n": 1}}
CLOUD_EVENT = {**LINE, "specversion": "1.0", "source": "/shop"}
ANY = json_values(numbers | st.text())
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def lines(*events):
    """Write a batch of lines."""
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


def attributes(events):
    """What the events of a batch are."""
    return [(one.id, one.type, one.text, one.key, one.expected_version) for one in events]


def test_both_forms_say_the_same():
    """Lines and CloudEvents have an id, a type, data, and perhaps a key and a version."""
    more = {"key": "ada", "expectedVersion": 2, "other": [1]}
    found = decode_events(lines(LINE, LINE | more), NDJSON_TYPE)
    cloud = {"subject": "ada", "expectedversion": 2, "other": [1]}
    batch = json.dumps([CLOUD_EVENT, CLOUD_EVENT | cloud], indent=2).encode()
    assert attributes(found) == attributes(decode_events(batch, CLOUDEVENTS_BATCH_TYPE))
    assert attributes(found) == [
        ("e1", "placed", '{"n":1}', None, None),
        ("e1", "placed", '{"n":1}', "ada", 2),
    ]


@given(st.lists(json_values(numbers | TEXT, TEXT), max_size=3))
def test_what_is_encoded_is_decoded(data):
    """Events that a client encodes are those that the log decodes, also if their JSON has lines."""
    events = [NewEvent("placed", data, id="e1"), NewEvent("paid", data, "ada", "e2", 0)]
    spread = msgspec.Raw(json.dumps(data, indent=2).encode())
    found = decode_events(
        b"".join(encode_events([*events, NewEvent("placed", spread, id="e1")])), NDJSON_TYPE
    )
    assert attributes(found[:2]) == attributes(events)
    assert json.loads(found[2].text) == json.loads(events[0].text)


def test_last_line_needs_no_end():
    """A batch may end with the last event, without a line feed; lines may end in CR LF."""
    batch = lines(LINE, LINE).replace(b"\n", b"\r\n")
    assert len(decode_events(batch, NDJSON_TYPE)) == 2
    assert len(decode_events(batch[:-2], NDJSON_TYPE)) == 2


@pytest.mark.parametrize(
    "bad",
    [
        *[
            b"",
            b"{}",
            b"[]",
            b"null",
            b"{",
            b"\xff",
            b"NaN",
            b'{"id":"e2","type":"t"}',
            b"[" * 99999,
        ],
        b'{"id":"e2","type":"t","data":{"a":"\xff"}}',
        b'{"id":"e2","type":"t","data":"\\ud800"}',
        b'{"id":"e2","type":"t","data":[1e999]}',
        b'{"id":"e2","type":"t","data":[1,]}',
        b'{"id":"e2","type":"t","data":"\\u0000"}',
        b'{"id":"e2","type":"t","data":7}',
        b'{"id":"e2","type":"t","data":"\\q"}',
        b'{"id":"e2","type":"t","data":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"id":"","type":"t","data":{}}',
        b'{"id":"e2 ","type":"t","data":{}}',
        b'{"id":"e2","type":7,"data":{}}',
        b'{"id":"e2","type":"t","data":{},"key":""}',
        b'{"id":"e2","type":"t","data":{},"expectedVersion":0}',
        b'{"id":"e2","type":"t","data":{},"key":"k","expectedVersion":-1}',
        b'{"id":"e2","type":"t","data":{},"key":"k","expectedVersion":"1"}',
    ],
    ids=lambda bad: repr(bad[:60]),
)
def test_line_that_is_no_event_is_named(bad):
    """A line that no database could store, or no reader decode, is refused by its number."""
    with pytest.raises(BadRequest) as refused:
        decode_events(lines(LINE, LINE) + bad + b"\n", NDJSON_TYPE)
    assert "Line 3" in str(refused.value) or b"\xff" in bad


@pytest.mark.parametrize(
    "change",
    [
        {"specversion": "0.3"},
        {"specversion": None},
        {"source": 1},
        {"id": None},
        {"data": 7},
        {"data_base64": "AAAA"},
        {"subject": ""},
        {"expectedversion": 1},
    ],
    ids=repr,
)
def test_cloud_event_that_is_none_is_refused(change):
    """What is no CloudEvent of version 1.0 with JSON as its data is refused."""
    batch = json.dumps([CLOUD_EVENT, CLOUD_EVENT | change]).encode()
    with pytest.raises(BadRequest):
        decode_events(batch, CLOUDEVENTS_BATCH_TYPE)


def test_cloud_event_without_data_has_null():
    """A CloudEvent may lack data."""
    event = {name: value for name, value in CLOUD_EVENT.items() if name != "data"}
    (found,) = decode_events(json.dumps([event]).encode(), CLOUDEVENTS_BATCH_TYPE)
    assert found.text == "null"


def test_other_forms_are_refused():
    """A body of another media type is refused, and so is a batch without events."""
    for kind in ("application/json", "text/plain", ""):
        with pytest.raises(UnsupportedMediaType):
            decode_events(lines(LINE), kind)
    for kind, body in ((NDJSON_TYPE, b""), (CLOUDEVENTS_BATCH_TYPE, b"[]")):
        with pytest.raises(BadRequest):
            decode_events(body, kind)


def test_batch_is_bounded():
    """More events than allowed, and an event with more data, are too large."""
    many = [LINE] * 10_001
    for body, kind in (
        (lines(*many), NDJSON_TYPE),
        (b"\n" * 4_000_000, NDJSON_TYPE),
        (json.dumps([CLOUD_EVENT] * 10_001).encode(), CLOUDEVENTS_BATCH_TYPE),
        (lines({**LINE, "data": "x" * 2**20}), NDJSON_TYPE),
        (json.dumps([{**CLOUD_EVENT, "data": "x" * 2**20}]).encode(), CLOUDEVENTS_BATCH_TYPE),
    ):
        with pytest.raises(TooLarge):
            decode_events(body, kind)
    assert len(decode_events(lines(*many[1:]), NDJSON_TYPE)) == 10_000


@given(
    st.binary(max_size=50)
    | st.lists(
        ANY
        | st.fixed_dictionaries(
            {"id": ANY | st.text(), "type": st.text(), "data": ANY},
            optional={"key": st.text() | st.none(), "expectedVersion": ANY | st.integers()},
        )
    ).map(lambda found: lines(*found)),
    st.sampled_from([NDJSON_TYPE, CLOUDEVENTS_BATCH_TYPE]),
)
def test_any_body_is_a_batch_or_refused(body, kind):
    """Whatever comes, it is either events that can be stored, or a refusal for the writer."""
    try:
        events = decode_events(body, kind)
    except FeedError:
        return
    assert events
    assert all(json.dumps(one.text) for one in events)
    assert [*runs_of(events)]
