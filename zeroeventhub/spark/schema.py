"""Schemas of Spark as schemas of Arrow, and the columns of a read without a schema."""

from inspect import signature

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from zeroeventhub.bulk import columns
from zeroeventhub.errors import ConfigurationError

_SCALARS = {
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for a schema; moments are in UTC.

    Raises:
        ConfigurationError: a type is none of JSON's.
    """
    _expect_json(schema)
    if "timezone" in signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


def _expect_json(kind: DataType) -> None:
    """Refuse a type that JSON lacks: Arrow's own refusal is less clear, and it takes some."""
    match kind:
        case ArrayType(elementType=element):
            _expect_json(element)
        case MapType(keyType=StringType(), valueType=value):
            _expect_json(value)
        case StructType(fields=fields):
            for one in fields:
                _expect_json(one.dataType)
        case _ if type(kind) not in _SCALARS:
            raise ConfigurationError(
                f"Events' JSON cannot be read as {kind.simpleString()}: read the column as STRING, "
                "and let Spark convert it."
            )


def default_schema(*, with_headers: bool) -> StructType:
    """Return the columns of a read without a schema."""
    return from_arrow_schema(columns.default_schema(with_headers=with_headers))


OF_FEED = {
    one.name: one.dataType
    for one in default_schema(with_headers=True)
    if one.name in columns.OF_FEED
}
"""The columns that are the feed's own, and not of events alone, with their types."""
