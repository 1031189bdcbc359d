"""Batches of events, decoded from what may be anything."""

import json

import msgspec
import pytest
from harness.json_values import json_values, numbers
from harness.vectors import content, named
from hypothesis import given
from hypothesis import strategies as st

from zeroeventhub.errors import BadRequest, FeedError, TooLarge, UnsupportedMediaType
from zeroeventhub.new_events import NewEvent, runs_of
from zeroeventhub.wire import CLOUDEVENTS_BATCH_TYPE, NDJSON_TYPE
from zeroeventhub.wire.new_events import decode_events, encode_events

LINE = {"id": "e1", "type": "placed", "data": {"n": 1}}
CLOUD_EVENT = {**LINE, "specversion": "1.0", "source": "/shop"}
REFUSALS = {
    "bad-request": BadRequest,
    "too-large": TooLarge,
    "unsupported-media-type": UnsupportedMediaType,
}
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


@pytest.mark.parametrize("vector", named("append"))
def test_batches_of_the_specification(vector):
    """Every batch of the specification is read as it says, or refused for its reason."""
    body, expected = content(vector["body"]), vector["expect"]
    if "problem" in expected:
        with pytest.raises(REFUSALS[expected["problem"]]):
            decode_events(body, vector["media"])
        return
    found = decode_events(body, vector["media"])
    if "count" in expected:
        assert len(found) == expected["count"]
        return
    events = [{"key": None, "expectedVersion": None, **one} for one in expected["events"]]
    assert events == [
        {
            "id": one.id,
            "type": one.type,
            "data": json.loads(one.text),
            "key": one.key,
            "expectedVersion": one.expected_version,
        }
        for one in found
    ]


@pytest.mark.parametrize(
    "bad",
    [
        b"{}",
        b"[" * 99999,
        b'{"id":"e2","type":"t","data":[1e999]}',
        b'{"id":"e2","type":"t","data":[1,]}',
        b'{"id":"e2","type":"t","data":"\\q"}',
        b'{"id":"e2","type":"t","data":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"id":"e2","type":"t","data":{},"expectedVersion":0}',
        b'{"id":"","type":"t","data":{}}',
        b'{"id":"e2 ","type":"t","data":{}}',
        b'{"id":"e2","type":"a\\u0000b","data":{}}',
        b'{"id":"e2","type":"t","key":"%b","data":{}}' % (b"k" * 201),
        b'{"id":"e2","type":"t","data":17}',
        b'{"id":"e2","type":"t","data":"\\u0000"}',
    ],
    ids=lambda bad: repr(bad[:60]),
)
def test_line_that_is_no_event_is_named(bad):
    """A line that no database could store, or no reader decode, is refused by its number."""
    with pytest.raises(BadRequest, match="Line 3"):
        decode_events(lines(LINE, LINE) + bad + b"\n", NDJSON_TYPE)


def test_batch_is_bounded():
    """More events than allowed, and an event with more data, are too large."""
    for body, kind in (
        (b"\n" * 4_000_000, NDJSON_TYPE),
        (json.dumps([CLOUD_EVENT] * 10_001).encode(), CLOUDEVENTS_BATCH_TYPE),
        (json.dumps([{**CLOUD_EVENT, "data": "x" * 2**20}]).encode(), CLOUDEVENTS_BATCH_TYPE),
    ):
        with pytest.raises(TooLarge):
            decode_events(body, kind)


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
