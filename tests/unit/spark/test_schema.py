"""Schemas of Spark: as schemas of Arrow, and which of their types events can have."""

import pyarrow as pa
import pytest
from pyspark.sql import types

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.spark.schema import arrow_schema, default_schema


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
