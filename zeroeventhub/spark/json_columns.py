"""Members of events' JSON as columns of the types that a schema names."""

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa
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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.spark.attributes import joined

__all__ = ["JsonColumns"]


def _whole(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]


_SCALARS: dict[type[DataType], Any] = {
    BinaryType: bytes,
    BooleanType: bool,
    ByteType: _whole(8),
    DateType: dt.date,
    DecimalType: Decimal,
    DoubleType: float,
    FloatType: float,
    IntegerType: _whole(32),
    LongType: _whole(64),
    ShortType: _whole(16),
    StringType: str,
    TimestampNTZType: Annotated[dt.datetime, msgspec.Meta(tz=False)],
    TimestampType: Annotated[dt.datetime, msgspec.Meta(tz=True)],
}

_UNFIT = (
    msgspec.DecodeError,
    RecursionError,
    pa.ArrowException,
    ValueError,
    TypeError,
    OverflowError,
)


class JsonColumns:
    """Turn the JSON of events into columns.

    An event that is no object, lacks a member that may not be null, or has one of another type does
    not fit. A STRING takes any value: what is no string is its JSON, as it was published.

    Args:
        fields: the columns, by the names of members.
        corrupt: the name of the column for the JSON of events that do not fit; their other columns
            are null. Without it they are an error.

    Raises:
        ConfigurationError: a column is of a type that JSON has no form of.
    """

    def __init__(self, fields: Sequence[StructField], corrupt: str | None) -> None:
        self._names = [field.name for field in fields]
        self._corrupt = corrupt
        if corrupt and not all(field.nullable for field in fields):
            raise ConfigurationError(
                f"Beside a column {corrupt}, all columns of the events' JSON can be null."
            )
        self._decode_all = msgspec.json.Decoder(list[_object(fields)]).decode  # type: ignore[misc]
        self._decode_one = msgspec.json.Decoder(_object(fields, texts=msgspec.Raw)).decode

    def columns(self, data: pa.StringArray, schema: pa.Schema) -> dict[str, pa.Array]:
        """Return the columns of events.

        Args:
            data: the JSON of each.
            schema: the columns' types.

        Raises:
            ProtocolError: an event does not fit.
        """
        try:
            rows = self._decode_all(joined(data))
            found = self._arrays(rows, schema)
        except _UNFIT:
            return self._columns_one_by_one(data, schema)
        if self._corrupt:
            found[self._corrupt] = pa.nulls(len(data), pa.string())
        return found

    def _columns_one_by_one(self, data: pa.StringArray, schema: pa.Schema) -> dict[str, pa.Array]:
        rows: list[dict[str, Any]] = []
        unfit: list[str | None] = []
        for text in data.to_pylist():
            try:
                row = _with_texts(self._decode_one(text))
                self._arrays([row], schema)
            except _UNFIT as error:
                if self._corrupt is None:
                    raise ProtocolError(
                        f"An event does not fit the schema that it is read with: {error}. Change "
                        "the schema, or add a column _corrupt_record STRING for such events."
                    ) from None
                rows.append({})
                unfit.append(text)
            else:
                rows.append(row)
                unfit.append(None)
        found = self._arrays(rows, schema)
        if self._corrupt:
            found[self._corrupt] = pa.array(unfit, pa.string())
        return found

    def _arrays(self, rows: list[dict[str, Any]], schema: pa.Schema) -> dict[str, pa.Array]:
        return {
            name: pa.array([row.get(name) for row in rows], schema.field(name).type)
            for name in self._names
        }


def _object(fields: Sequence[StructField], *, texts: Any = str) -> Any:
    """Return the type of a JSON object with members for some columns."""
    members = {}
    for field in fields:
        kind = texts if isinstance(field.dataType, StringType) else _type(field.dataType)
        if texts is msgspec.Raw and kind is texts:
            members[field.name] = NotRequired[kind] if field.nullable else kind
        else:
            members[field.name] = NotRequired[kind | None] if field.nullable else kind
    return TypedDict("Event", members)  # type: ignore[operator]


def _type(kind: DataType) -> Any:
    match kind:
        case ArrayType(elementType=element, containsNull=optional):
            inner = _type(element)
            return list[inner | None] if optional else list[inner]  # type: ignore[valid-type]
        case MapType(keyType=StringType(), valueType=value, valueContainsNull=optional):
            inner = _type(value)
            return dict[str, inner | None] if optional else dict[str, inner]  # type: ignore[valid-type]
        case StructType(fields=fields):
            return _object(fields)
    if type(kind) in _SCALARS:
        return _SCALARS[type(kind)]
    raise ConfigurationError(
        f"Events' JSON cannot be read as {kind.simpleString()}: read the column as STRING, and "
        "let Spark convert it."
    )


def _with_texts(row: dict[str, Any]) -> dict[str, Any]:
    """Replace JSON that was left as it came by a text."""
    return {
        name: _text(bytes(value)) if isinstance(value, msgspec.Raw) else value
        for name, value in row.items()
    }


def _text(raw: bytes) -> str | None:
    if raw == b"null":
        return None
    decoded: str = msgspec.json.decode(raw, type=str) if raw.startswith(b'"') else raw.decode()
    return decoded
