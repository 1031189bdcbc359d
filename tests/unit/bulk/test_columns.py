"""Columns of events: their attributes, and members of their JSON by a schema."""

import datetime as dt
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from harness.json_values import json_values, numbers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql import types

from zeroeventhub import Event
from zeroeventhub.bulk.columns import Attributes, JsonColumns
from zeroeventhub.errors import ProtocolError
from zeroeventhub.spark.schema import arrow_schema
from zeroeventhub.wire.cloud_event import event_id, event_key, event_time, event_type

CORRUPT = "_corrupt_record"
TEXT, NUMBER = types.StringType(), types.IntegerType()
CENTS = types.DecimalType(10, 2)
HALF_PAST = dt.datetime.fromisoformat("2026-01-01T01:00:00.5")


def struct(*, nullable=True, **fields):
    """A type of objects."""
    return types.StructType(
        [types.StructField(name, kind, nullable) for name, kind in fields.items()]
    )


def columns(schema, *texts, corrupt=True):
    """Read events by a schema; return the rows, with the texts that do not fit."""
    fields = arrow_schema(schema)
    made = JsonColumns([*fields], CORRUPT if corrupt else None)
    found = made.columns(pa.array(texts, pa.string()), fields)
    return pa.table(found).to_pylist()


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (types.ByteType(), "128", CORRUPT),
        (NUMBER, '"7"', CORRUPT),
        (NUMBER, "7.5", CORRUPT),
        (types.LongType(), "9223372036854775807", 2**63 - 1),
        (types.LongType(), "9223372036854775808", CORRUPT),
        (types.DoubleType(), "1e999", CORRUPT),
        (types.DecimalType(20, 2), "123456789012345678.25", Decimal("123456789012345678.25")),
        (CENTS, "0.125", CORRUPT),
        (CENTS, "123456789.0", CORRUPT),
        (CENTS, "0E-38", Decimal("0.00")),
        (CENTS, "-0.05", Decimal("-0.05")),
        (CENTS, "1e-77", CORRUPT),
        (CENTS, "1.0000000000000000000000000000000000001e-30", CORRUPT),
        (CENTS, '"0e-999999999"', CORRUPT),
        (CENTS, '"NaN"', CORRUPT),
        (types.ArrayType(CENTS), "[1e-77]", CORRUPT),
        (types.MapType(TEXT, CENTS), '{"a":1e-77}', CORRUPT),
        (struct(b=struct(c=CENTS)), '{"b":{"c":1e-77}}', CORRUPT),
        (struct(b=CENTS), '{"b":0.05}', {"b": Decimal("0.05")}),
        (TEXT, '"a\\u00e9"', "a\u00e9"),
        (TEXT, '"\\ud800"', CORRUPT),
        (TEXT, "7.10", "7.10"),
        (TEXT, '{"b": [1, 2.0],"a":1}', '{"b": [1, 2.0],"a":1}'),
        (types.BinaryType(), '"aGk="', b"hi"),
        (types.DateType(), '"2026-02-29"', CORRUPT),
        (
            types.TimestampType(),
            '"2026-01-01T01:00:00+01:00"',
            dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        ),
        (types.TimestampType(), '"2026-01-01T01:00:00"', CORRUPT),
        (types.TimestampNTZType(), '"2026-01-01T01:00:00.5"', HALF_PAST),
        (types.ArrayType(NUMBER), "[1,null]", [1, None]),
        (types.ArrayType(TEXT), '["a",1,{"b":2},null]', ["a", "1", '{"b":2}', None]),
        (types.MapType(TEXT, types.LongType()), '{"a":1,"b":null}', [("a", 1), ("b", None)]),
        (struct(a=NUMBER, b=struct(c=TEXT)), '{"b":{"c":"d"}}', {"a": None, "b": {"c": "d"}}),
        (struct(a=NUMBER, nullable=False), "{}", CORRUPT),
        (struct(a=TEXT, nullable=False), '{"a":"b"}', {"a": "b"}),
        (struct(a=TEXT, nullable=False), '{"a":7}', {"a": "7"}),
        (struct(a=TEXT, nullable=False), '{"a":null}', CORRUPT),
        (struct(a=TEXT, nullable=False), "{}", CORRUPT),
        (types.ArrayType(TEXT, containsNull=False), '["a",null]', CORRUPT),
        (types.MapType(TEXT, TEXT, valueContainsNull=False), '{"a":null}', CORRUPT),
    ],
)
def test_value_is_exact_or_does_not_fit(kind, text, value):
    """A value is exactly that of the JSON, or the event does not fit: nothing is rounded.

    It makes no difference whether another member is taken as it comes.
    """
    for beside, other in [({}, ""), ({"y": TEXT}, ',"y":"text"'), ({"y": TEXT}, ',"y":7')]:
        event = f'{{"x":{text}{other}}}'
        found = columns(struct(x=kind, **beside), event)
        corrupt = event if value == CORRUPT else None
        assert [(row["x"], row[CORRUPT]) for row in found] == [
            (None if corrupt else value, corrupt)
        ]


@pytest.mark.parametrize("number", [-1, 0, 2**64 - 1, 2**64])
def test_unsigned_number_of_64_bits_is_exact_or_does_not_fit(number):
    """Python, and not Spark, has a type for whole numbers up to the largest of 64 bits."""
    fields, event = pa.schema({"x": pa.uint64()}), f'{{"x":{number}}}'
    found = JsonColumns([*fields], CORRUPT).columns(pa.array([event]), fields)
    expected = (number, None) if 0 <= number < 2**64 else (None, event)
    assert (found["x"][0].as_py(), found[CORRUPT][0].as_py()) == expected


@pytest.mark.parametrize("event", ["7", "null", "[{}]", '{"x":1', "", '{"x":1}],[{"x":2}'])
def test_event_that_is_no_object_does_not_fit(event):
    """Only objects have members; those beside it keep their rows."""
    found = columns(struct(x=NUMBER), '{"x":1}', event, "{}")
    assert [tuple(row.values()) for row in found] == [(1, None), (None, event), (None, None)]


@settings(max_examples=40)
@given(
    values=st.lists(json_values(st.integers(-(10**30), 10**30) | st.text()), max_size=4),
    separators=st.sampled_from([(",", ":"), (", ", ": ")]),
    ascii_only=st.booleans(),
)
@example(values=[[1, 2.50]], separators=(", ", ": "), ascii_only=True)
def test_string_takes_any_json_as_it_was_published(values, separators, ascii_only):
    """A STRING keeps the bytes of any other JSON value, in a column and within arrays."""

    def write(value):
        return json.dumps(value, separators=separators, ensure_ascii=ascii_only)

    def expected(value):
        return value if value is None or isinstance(value, str) else write(value)

    texts = [write({"x": value, "y": [value]}) for value in values]
    found = columns(struct(x=TEXT, y=types.ArrayType(TEXT)), *texts)
    assert found == [
        {"x": expected(value), "y": [expected(value)], CORRUPT: None} for value in values
    ]


EVENTS = ['{"x":1}', '{"x":"a"}', "{}", "[]", '{"x":null}', '{"x":{}}', "{"]


@settings(max_examples=30)
@given(st.lists(st.sampled_from(EVENTS)))
def test_event_gives_the_same_row_whatever_stands_beside_it(events):
    """Rows do not depend on the page in which events came."""
    for kind in (NUMBER, TEXT):
        alone = [columns(struct(x=kind), event)[0] for event in events]
        assert columns(struct(x=kind), *events) == alone


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (CENTS, "271828.1828"),
        (types.TimestampType(), '"kanarek"'),
        (types.MapType(TEXT, NUMBER), '{"kanarek":"kanarek"}'),
        (TEXT, '"kanarek\\ud800"'),
    ],
)
def test_error_does_not_repeat_the_event(kind, text):
    """The error about an event that does not fit names the schema and repeats no data."""
    with pytest.raises(ProtocolError, match="_corrupt_record") as refused:
        columns(struct(x=kind), f'{{"x":{text}}}', corrupt=False)
    assert "kanarek" not in str(refused.value)
    assert "2718" not in str(refused.value)
    assert refused.value.__suppress_context__


@pytest.mark.parametrize(
    ("kind", "text"), [(CENTS, "1.234"), (CENTS, "1e9"), (NUMBER, "1e9"), (NUMBER, '"1"')]
)
def test_error_names_the_member(kind, text):
    """The error names the member that does not fit, whatever its type is."""
    with pytest.raises(ProtocolError, match=r"Expected .* - at `\$\.x`"):
        columns(struct(n=NUMBER, x=kind), f'{{"n":1,"x":{text}}}', corrupt=False)


def test_error_about_json_in_a_string_says_where_it_comes_from():
    """An event that is a string was perhaps JSON in a column of text; others were not."""
    for event, is_said in {'"{\\"x\\":1}"': True, '{"x":"1"}': False, "[1]": False}.items():
        with pytest.raises(ProtocolError) as refused:
            columns(struct(x=NUMBER), event, corrupt=False)
        assert ("declare its column as JSON" in str(refused.value)) is is_said


ONE_BY_ONE = {"id": event_id, "type": event_type, "time": event_time, "key": event_key}

times = st.from_regex(
    r"(0000|0001|1969|2026|9999)-\d\d-\d\d[T t]\d\d:\d\d"
    r"(:(\d\d|59|60)([.,]\d{0,9})?)?( ?[Zz]|[+-]\d\d(:?\d\d(:\d\d)?)?)?",
    fullmatch=True,
    alphabet=st.characters(codec="ascii"),
)
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
    """An attribute of an event; None if the event cannot be decoded."""
    try:
        return read(Event(text.encode()))
    except ProtocolError:
        return None


@given(st.lists(texts | no_events), st.integers(0, 3), st.integers(0, 9))
@example(['{"specversion":"1","id":"a","x":[1', "2]}", '{"specversion":"1","id":"c"}'], 0, 9)
@example(['{"specversion":"1.0","time":"0001-01-01T00:00:00+05:00"}'], 0, 9)
@example(['{"specversion":"1.0","time":"0000-01-01T00:00:00Z"}'], 0, 9)
@example(['{"specversion":"1.0","time":"2026-01-01T00:00:00Z"}', "7"], 0, 9)
@example(['{"specversion":"1.0","partitionkey":null,"subject":"ada"}'], 0, 9)
@example(['{"specversion":null,"id":"a"}', '{"id":"a"}', "7", twice], 1, 2)
def test_attributes_are_those_of_each_event(data, start, count):
    """An event has the same attributes in a column as alone, whatever events are beside it."""
    found = Attributes(pa.array(data, pa.string()).slice(start, count))
    for name, read in ONE_BY_ONE.items():
        expected = [said(read, text) for text in data[start : start + count]]
        assert found.column(name).to_pylist() == expected
