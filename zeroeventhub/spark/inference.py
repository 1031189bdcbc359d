"""The columns of a read, inferred from the schemas that the feed publishes."""

from typing import Any

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

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import CLOUDEVENTS, EVERY_TYPE, Schemas, TypeFilter
from zeroeventhub.spark.schema import OF_FEED, default_schema
from zeroeventhub.wire.json_schema import alternatives, contents_of

_SCALARS: dict[str, DataType] = {
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
        ConfigurationError: the events that are read have no properties.
    """
    row = StructType()
    for name, schema in published.types.items():
        is_read = types is None or name == EVERY_TYPE or types.lets_through(name)
        found = _type_of(schema, schema, ()) if is_read else None
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


def _type_of(schema: Any, root: Any, within: tuple[int, ...]) -> DataType:
    """Return the type of Spark for a schema."""
    choices = alternatives(schema, root)
    choices.pop("null", None)
    if choices.keys() == {"integer", "number"}:
        return DoubleType()
    if len(choices) != 1:
        return StringType()
    ((kind, one),) = choices.items()
    if kind in _SCALARS:
        return _SCALARS[kind]
    if contents_of(one) in within:
        return StringType()
    deeper = (*within, contents_of(one))
    if kind == "array" and "items" in one:
        return ArrayType(_type_of(one["items"], root, deeper))
    if one.get("properties") and kind == "object":
        return StructType(
            [
                StructField(name, _type_of(member, root, deeper))
                for name, member in one["properties"].items()
            ]
        )
    if kind == "object" and isinstance(one.get("additionalProperties"), dict):
        return MapType(StringType(), _type_of(one["additionalProperties"], root, deeper))
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
