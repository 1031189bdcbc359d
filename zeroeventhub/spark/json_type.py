"""Types of Spark as what a decoder of JSON checks values by."""

import datetime as dt
from decimal import Decimal
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
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

from zeroeventhub.errors import ConfigurationError

__all__ = ["json_type"]


def _whole(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]


_LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
"""The largest number of 32 bits (IEEE 754)."""

_SCALARS: dict[type[DataType], Any] = {
    BinaryType: bytes,
    BooleanType: bool,
    ByteType: _whole(8),
    DateType: dt.date,
    DecimalType: Decimal,
    DoubleType: float,
    # Arrow would make infinity of what is too large for it.
    FloatType: Annotated[float, msgspec.Meta(ge=-_LARGEST_FLOAT, le=_LARGEST_FLOAT)],
    IntegerType: _whole(32),
    LongType: _whole(64),
    ShortType: _whole(16),
    StringType: str,
    TimestampNTZType: Annotated[dt.datetime, msgspec.Meta(tz=False)],
    TimestampType: Annotated[dt.datetime, msgspec.Meta(tz=True)],
}


def json_type(kind: DataType, texts: Any) -> Any:
    """Return what the decoder takes for a type of Spark.

    Args:
        kind: the type.
        texts: what is taken for a STRING: str, or Raw for any JSON as it comes.

    Raises:
        ConfigurationError: JSON has no form of it.
    """
    match kind:
        case ArrayType(elementType=element, containsNull=optional):
            return list[_member(element, texts, optional=optional)]  # type: ignore[misc]
        case MapType(keyType=StringType(), valueType=value, valueContainsNull=optional):
            return dict[str, _member(value, texts, optional=optional)]  # type: ignore[misc]
        case StructType(fields=fields):
            members = {}
            for one in fields:
                member = _member(one.dataType, texts, optional=one.nullable)
                members[one.name] = NotRequired[member] if one.nullable else member
            return TypedDict("Event", members)  # type: ignore[operator]
    if type(kind) in _SCALARS:
        return texts if type(kind) is StringType else _SCALARS[type(kind)]
    raise ConfigurationError(
        f"Events' JSON cannot be read as {kind.simpleString()}: read the column as STRING, and "
        "let Spark convert it."
    )


def _member(kind: DataType, texts: Any, *, optional: bool) -> Any:
    found = json_type(kind, texts)
    # What is left as it comes may be null anyway.
    return found | None if optional and found is not msgspec.Raw else found
