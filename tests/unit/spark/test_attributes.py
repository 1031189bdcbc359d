"""Attributes of events by the thousand, against those of one event at a time."""

import json

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from zeroeventhub import Event
from zeroeventhub.errors import ProtocolError
from zeroeventhub.spark.columns import Attributes
from zeroeventhub.wire.cloud_event import event_id, event_key, event_time, event_type

ONE_BY_ONE = {"id": event_id, "type": event_type, "time": event_time, "key": event_key}

times = st.from_regex(
    r"(0000|0001|1969|2026|9999)-\d\d-\d\d[T t]\d\d:\d\d"
    r"(:(\d\d|59|60)([.,]\d{0,9})?)?( ?[Zz]|[+-]\d\d(:?\d\d(:\d\d)?)?)?",
    fullmatch=True,
    alphabet=st.characters(codec="ascii"),
)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
others = st.sampled_from([None, True, [], {"id": "within"}])
values = times | st.text() | numbers | others
names = st.sampled_from(
    ["specversion", "id", "type", "time", "subject", "partitionkey", "data", "x"]
)
cloud_events = st.dictionaries(names, values).map(lambda found: {"specversion": "1.0", **found})
documents = cloud_events | st.dictionaries(names, values) | values
texts = documents.map(json.dumps) | documents.map(lambda one: json.dumps(one, ensure_ascii=False))
no_events = st.sampled_from(["{", "", "7", '{"a":1}],[{"b":2}', '{"a":"', '{"specversion":"1"'])
twice = '{"specversion":"1.0","id":"a","type":"t","id":"b","type":7}'


def said(read, text):
    """What an event says of itself; one that cannot be decoded says nothing."""
    try:
        return read(Event(text.encode()))
    except ProtocolError:
        return None


@given(st.lists(texts | no_events), st.integers(0, 3), st.integers(0, 9))
@example(['{"specversion":"1","id":"a","x":[1', "2]}", '{"specversion":"1","id":"c"}'], 0, 9)
@example(['{"specversion":"1.0","time":"0001-01-01T00:00:00+05:00"}'], 0, 9)
@example(['{"specversion":"1.0","time":"0000-01-01T00:00:00Z"}'], 0, 9)
@example(['{"specversion":"1.0","time":"2026-01-01T00:00:00Z"}', "7"], 0, 9)
@example(['{"specversion":null,"id":"a"}', '{"id":"a"}', "7", twice], 1, 2)
def test_attributes_are_those_of_each_event(data, start, count):
    """A column holds of each event what is read of that event alone, whatever stands beside it."""
    found = Attributes(pa.array(data, pa.string()).slice(start, count))
    for name, read in ONE_BY_ONE.items():
        expected = [said(read, text) for text in data[start : start + count]]
        assert found.column(name).to_pylist() == expected
