"""Schemas of Spark: as schemas of Arrow, which types events can have, and those inferred."""

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.types import StructType

from zeroeventhub import TypeFilter
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import EVERY_TYPE, Schemas
from zeroeventhub.spark.schema import arrow_schema, default_schema, inferred_schema


def test_moments_are_in_utc_and_nulls_where_spark_has_them():
    """Types keep what may be null at any depth, and moments get a zone."""
    texts = types.ArrayType(types.StringType(), containsNull=False)
    schema = types.StructType().add("at", types.TimestampType()).add("tags", texts, nullable=False)
    found = arrow_schema(schema)
    assert found.field("at").type == pa.timestamp("us", "UTC")
    assert not found.field("tags").nullable
    assert not found.field("tags").type.value_field.nullable


@pytest.mark.parametrize(
    "kind",
    [
        types.DayTimeIntervalType(),
        types.ArrayType(types.NullType()),
        types.MapType(types.IntegerType(), types.StringType()),
    ],
    ids=str,
)
def test_type_that_json_lacks_is_refused(kind):
    """A type that no JSON has is refused, at any depth."""
    with pytest.raises(ConfigurationError, match="read the column as STRING"):
        arrow_schema(types.StructType().add("x", kind))


def test_default_columns_are_those_of_every_read():
    """Without a schema there are the columns of a read, with headers where they are asked for."""
    assert default_schema(with_headers=False).names == [
        *("partition", "cursor", "id", "type", "time", "key", "data")
    ]
    assert "headers" in default_schema(with_headers=True).names


# Inferred schemas.


def of(**properties):
    """A schema of an object."""
    return {"type": "object", "properties": properties}


def columns(*schemas, types=None, envelope=None):
    """Return the columns for types of events, as Spark writes them."""
    named = {f"t{number}": schema for number, schema in enumerate(schemas)}
    found = inferred_schema(Schemas(named, envelope), types)
    assert isinstance(found, StructType)
    return found.simpleString()


TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
NODE = {"$ref": "#/$defs/N", "$defs": {"N": of(n=WHOLE, of={"$ref": "#/$defs/N"})}}


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        (TEXT, "string"),
        (WHOLE, "bigint"),
        (NUMBER, "double"),
        ({"type": ["number", "integer"]}, "double"),
        ({"type": "boolean"}, "boolean"),
        ({"type": "string", "format": "date"}, "date"),
        ({"type": "string", "format": "date-time"}, "timestamp"),
        ({"type": "string", "format": "decimal"}, "string"),
        ({"anyOf": [WHOLE, {"type": "null"}]}, "bigint"),
        ({"anyOf": [WHOLE, TEXT]}, "string"),
        ({"enum": ["a", "b"]}, "string"),
        ({"type": "array", "items": WHOLE}, "array<bigint>"),
        ({"type": "array"}, "string"),
        (of(m=WHOLE), "struct<m:bigint>"),
        (of(), "string"),
        ({"type": "object", "additionalProperties": WHOLE}, "map<string,bigint>"),
        ({}, "string"),
    ],
)
def test_column_has_the_type_that_holds_all_values(schema, kind):
    """A member is of the narrowest type of Spark for all its values, a STRING if there is none."""
    assert columns(of(n=schema)) == f"struct<n:{kind}>"


def test_schema_that_refers_to_itself_ends_in_text():
    """Spark has no type that contains itself: what is within is its JSON."""
    assert columns(NODE) == "struct<n:bigint,of:string>"


def test_columns_hold_the_events_of_all_types_that_are_read():
    """Types share columns of one name and type; what differs is text."""
    one, other = of(a=WHOLE, b=of(c=TEXT), d=TEXT), of(b=of(c=WHOLE, e=TEXT), d=TEXT)
    assert columns(one, other) == "struct<a:bigint,b:struct<c:string,e:string>,d:string>"
    assert columns(one, other, types=TypeFilter(frozenset({"T1"}))) == (
        "struct<b:struct<c:bigint,e:string>,d:string>"
    )
    whole = Schemas({EVERY_TYPE: one, "t": other})
    assert len(inferred_schema(whole, TypeFilter(frozenset({"u"}))).fields) == 3


def test_data_of_an_envelope_is_a_column_of_its_own():
    """The columns of CloudEvents are attributes of the envelope, and its data."""
    assert columns(of(n=WHOLE), envelope="cloudevents") == (
        "struct<id:string,type:string,time:timestamp,data:struct<n:bigint>>"
    )


def test_member_that_would_be_read_as_another_column_is_left_out():
    """A member is left out that has the name and the type of a column of the source."""
    assert columns(of(key=TEXT, id=TEXT, data=WHOLE)) == "struct<id:string,data:bigint>"


@pytest.mark.parametrize("schema", [{}, TEXT, of()])
def test_schemas_without_members_give_no_columns(schema):
    """A read whose columns are not known is refused."""
    with pytest.raises(ConfigurationError, match="give a schema"):
        columns(schema)


def test_schema_whose_references_multiply_is_not_read():
    """Short schemas that have columns without an end in sight, alone or together, are refused."""
    members = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(40)}
    deep = {name: of(a=one, b=one) for name, one in members.items()}
    with pytest.raises(ConfigurationError, match="give a schema"):
        columns({**deep["d0"], "$defs": deep})
    few = {"d0": of(**{f"m{n}": {"$ref": "#/$defs/d1"} for n in range(90)}), "d1": of(**members)}
    with pytest.raises(ConfigurationError, match="give a schema"):
        columns(*[{**few["d0"], "$defs": {**few, "d40": TEXT}}] * 20)
