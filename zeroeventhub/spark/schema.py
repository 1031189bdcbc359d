"""Schemas of Spark: as schemas of Arrow, by default, and inferred from what the feed publishes."""

from collections.abc import Hashable, Iterator
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from zeroeventhub.bulk import columns
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import CLOUDEVENTS, EVERY_TYPE, Schemas, TypeFilter
from zeroeventhub.wire.json_schema import alternatives, contents_of

_KINDS = {
    *("binary", "boolean", "byte", "date", "decimal", "double", "float", "integer", "long"),
    *("short", "string", "timestamp", "timestamp_ntz"),
}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for a schema; moments are in UTC."""
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
        case _ if kind.typeName() not in _KINDS:
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

_BY_FORM: dict[str, DataType] = {
    "boolean": BooleanType(),
    "integer": LongType(),
    "number": DoubleType(),
    "string (date)": DateType(),
    "string (date-time)": TimestampType(),
}


def inferred_schema(published: Schemas, types: TypeFilter | None) -> StructType:
    """Return the columns for the events of a feed.

    What types of events have in common under one name and in different forms is a STRING, and so
    is what a type of Spark cannot hold: its JSON.

    Args:
        published: the schemas of the feed.
        types: the types of events that are read; None for all.

    Raises:
        ConfigurationError: the events that are read have no properties, or too many.
    """
    row, left = StructType(), iter(range(MOST_TYPES))
    for name, schema in published.types.items():
        is_read = types is None or name == EVERY_TYPE or types.lets_through(name)
        found = _type_of(schema, schema, (), left) if is_read else None
        if isinstance(found, StructType):
            row = _merge(row, found)
    if not row.fields:
        raise ConfigurationError(
            "The feed's schemas name no members of the events that are read: give a schema."
        )
    if published.envelope == CLOUDEVENTS:
        envelope = [one for one in default_schema(with_headers=False) if one.name in _ATTRIBUTES]
        return StructType([*envelope, StructField("data", row)])
    # A member with the name and the type of a column of the source would be read as that column.
    return StructType([one for one in row if OF_FEED.get(one.name) != one.dataType])


_ATTRIBUTES = ("id", "type", "time")
"""The attributes of a CloudEvent that are columns beside its data."""


MOST_TYPES = 50_000
"""Types that the columns of all types of events have, at most, those within them included: short
schemas whose references multiply would take all memory, or hours."""


def _type_of(schema: Any, root: Any, within: tuple[Hashable, ...], left: Iterator[int]) -> DataType:
    """Return the type of Spark for a schema; `left` has an item for each type that may follow."""
    if next(left, None) is None:
        raise ConfigurationError(
            f"The schemas of the feed name more than {MOST_TYPES:,} members: give a schema."
        )
    choices = alternatives(schema, root)
    choices.pop("null", None)
    if choices.keys() == {"integer", "number"}:
        return DoubleType()
    if len(choices) != 1:
        return StringType()
    ((kind, one),) = choices.items()
    if kind in _BY_FORM:
        return _BY_FORM[kind]
    if contents_of(one) in within:
        return StringType()
    deeper = (*within, contents_of(one))
    if kind == "array" and "items" in one:
        return ArrayType(_type_of(one["items"], root, deeper, left))
    if one.get("properties") and kind == "object":
        return StructType(
            [
                StructField(name, _type_of(member, root, deeper, left))
                for name, member in one["properties"].items()
            ]
        )
    if kind == "object" and isinstance(one.get("additionalProperties"), dict):
        values = _type_of(one["additionalProperties"], root, deeper, left)
        return MapType(StringType(), values)
    return StringType()


def _merge(one: StructType, other: StructType) -> StructType:
    """Return a type for values of both."""
    fields = {field.name: field.dataType for field in one}
    for field in other:
        known = fields.get(field.name, field.dataType)
        if known == field.dataType:
            fields[field.name] = known
        elif isinstance(known, StructType) and isinstance(field.dataType, StructType):
            fields[field.name] = _merge(known, field.dataType)
        else:
            fields[field.name] = StringType()
    return StructType([StructField(name, kind) for name, kind in fields.items()])
