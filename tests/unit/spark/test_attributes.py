"""Attributes of events by the thousand, against those of one event at a time."""

import json
import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zeroeventhub import Event
from zeroeventhub.cloud_event import event_id, event_key, event_time, event_type
from zeroeventhub.errors import ProtocolError
from zeroeventhub.protocol import TypeFilter
from zeroeventhub.spark.attributes import Attributes, texts_of

ONE_BY_ONE = {"id": event_id, "type": event_type, "time": event_time, "key": event_key}

number = st.integers(0, 99).map("{:02}".format)
times = st.builds(
    "{}-{}-{}{}{}:{}{}{}".format,
    st.sampled_from(["0000", "0001", "1969", "2026", "9999"]),
    number,
    number,
    st.sampled_from(["T", " ", "t"]),
    number,
    number,
    st.sampled_from(
        ["", ":00", ":59", ":60", ":30.5", ":30.123456", ":30.123456789", ":30.", ":30,5"]
    ),
    st.sampled_from(
        ["", "Z", "z", " Z", "+01:00", "-23:59", "+24:00", "+0530", "-05", "+05:30:15"]
    ),
)
values = (
    times
    | st.text()
    | st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.just([])
    | st.just({"id": "within"})
)
names = st.sampled_from(
    ["specversion", "id", "type", "time", "subject", "partitionkey", "data", "x"]
)
cloud_events = st.dictionaries(names, values).map(lambda found: {"specversion": "1.0", **found})
documents = cloud_events | st.dictionaries(names, values) | values
texts = documents.map(json.dumps) | documents.map(
    lambda one: json.dumps(one, ensure_ascii=False, separators=(",", ":"))
)
no_events = st.sampled_from(["{", "", "7", '{"a":1}],[{"b":2}', '{"a":"', '{"specversion":"1"'])
twice = '{"specversion":"1.0","id":"a","type":"t","id":"b","type":7}'


def said(read, text):
    """What an event says of itself; one that cannot be decoded says nothing."""
    try:
        return read(Event(text.encode()))
    except ProtocolError:
        return None


@given(st.lists(texts | no_events))
@example([])
@example([twice])
@example(['{"specversion":"1","id":"a","x":[1', "2]}", '{"specversion":"1","id":"c"}'])
@example(['{"specversion":"1.0","time":"0001-01-01T00:00:00+05:00"}'])
@example(['{"specversion":"1.0","time":"0000-01-01T00:00:00Z"}'])
@example(['{"specversion":"1.0","time":"2026-01-01T00:00:00Z"}', "7"])
@example(['{"specversion":null,"id":"a"}', '{"id":"a"}'])
def test_attributes_are_those_of_each_event(data):
    """A column holds of each event what is read of that event alone, whatever stands beside it."""
    found = Attributes(pa.array(data, pa.string()))
    for name, read in ONE_BY_ONE.items():
        assert found.column(name).to_pylist() == [said(read, text) for text in data]


def test_event_that_python_cannot_hold_says_what_it_says():
    """A number beyond all in another member does not hide the attributes."""
    text = '{"specversion":"1.0","id":"a","data":1e999}'
    with pytest.raises(ProtocolError):
        Event(text.encode()).data  # noqa: B018 - the error is what is shown
    assert Attributes(pa.array([text], pa.string())).column("id").to_pylist() == ["a"]


@given(st.lists(texts), st.booleans())
def test_types_are_chosen_as_by_a_feed(data, skip):
    """Events without a type are in no list, and case does not matter (SPEC 9.3)."""
    types = TypeFilter(frozenset({"Placed", "t"}), skip=skip)
    found = Attributes(pa.array(data, pa.string())).chosen(types)
    of_each = [event_type(Event(text.encode())) for text in data]
    assert found == [skip if name is None else types.lets_through(name) for name in of_each]


@given(st.lists(documents), st.integers(0, 3), st.integers(0, 3))
def test_part_of_a_column_has_its_own_texts(data, start, count):
    """Of a slice of a column only its own texts are read."""
    column = pa.array(map(json.dumps, data), pa.string()).slice(start, count)
    assert [json.loads(bytes(one)) for one in texts_of(column)] == data[start : start + count]


def test_planning_waits_for_no_pandas():
    """Neither the driver's helpers nor tasks import pandas on our account before there is data."""
    program = """
import sys
import pyspark.sql.datasource, pyspark.sql.pandas.types
before = "pandas" in sys.modules
import zeroeventhub.spark.source
sys.exit(not before and "pandas" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
