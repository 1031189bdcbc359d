"""Members of events' JSON as columns of the types that a schema names."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.spark.attributes import texts_of
from zeroeventhub.spark.json_type import json_type

__all__ = ["JsonColumns"]


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
        self._row = StructType(list(fields))
        self._corrupt = corrupt
        if corrupt and not all(field.nullable for field in fields):
            raise ConfigurationError(
                f"Beside a column {corrupt}, all columns of the events' JSON can be null."
            )
        self._decode = msgspec.json.Decoder(json_type(self._row, str)).decode
        self._decode_raw = msgspec.json.Decoder(json_type(self._row, msgspec.Raw)).decode

    def columns(self, data: pa.StringArray, schema: pa.Schema) -> dict[str, pa.Array]:
        """Return the columns of events.

        Args:
            data: the JSON of each.
            schema: the columns' types.

        Raises:
            ProtocolError: an event does not fit.
        """
        try:
            found = self._arrays(self._rows(data), schema)
        except _UNFIT:
            return self._columns_one_by_one(data, schema)
        if self._corrupt:
            found[self._corrupt] = pa.nulls(len(data), pa.string())
        return found

    def _columns_one_by_one(self, data: pa.StringArray, schema: pa.Schema) -> dict[str, pa.Array]:
        rows: list[dict[str, Any]] = []
        unfit: list[str | None] = []
        for place in range(len(data)):
            one = data.slice(place, 1)
            try:
                (row,) = self._rows(one)
                self._arrays([row], schema)
            except _UNFIT as error:
                if self._corrupt is None:
                    raise ProtocolError(
                        f"An event does not fit the schema that it is read with{_told(error)}. "
                        "Change the schema, or add a column _corrupt_record STRING for such events."
                    ) from None
                rows.append({})
                unfit += one.to_pylist()
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
            for name in self._row.names
        }

    def _rows(self, data: pa.StringArray) -> list[dict[str, Any]]:
        """Decode events that all fit."""
        try:
            return [*map(self._decode, texts_of(data))]
        except msgspec.ValidationError:
            # Something that is read as a text is none.
            return [_with_texts(self._decode_raw(text), self._row) for text in texts_of(data)]


def _with_texts(value: Any, kind: DataType, *, optional: bool = True) -> Any:
    """Replace JSON that was left as it came by a text, however deep it stands.

    Raises:
        ValueError: it is null, which the type does not allow.
    """
    if isinstance(value, msgspec.Raw):
        text = _text(bytes(value))
        if text is None and not optional:
            raise ValueError("A text is null.")
        return text
    if value is None:
        return None
    match kind:
        case ArrayType(elementType=element, containsNull=within):
            return [_with_texts(one, element, optional=within) for one in value]
        case MapType(valueType=element, valueContainsNull=within):
            return {name: _with_texts(one, element, optional=within) for name, one in value.items()}
        case StructType(fields=fields):
            return {
                one.name: _with_texts(value[one.name], one.dataType, optional=one.nullable)
                for one in fields
                if one.name in value
            }
    return value


def _text(raw: bytes) -> str | None:
    if raw == b"null":
        return None
    decoded: str = msgspec.json.decode(raw, type=str) if raw.startswith(b'"') else raw.decode()
    return decoded


def _told(error: Exception) -> str:
    """Say what a decoder found, which names members and types; others repeat values."""
    return f": {error}" if isinstance(error, msgspec.DecodeError) else ""
