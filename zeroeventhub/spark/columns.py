"""The columns of the source, and how events become rows of them."""

import datetime as dt
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, cached_property
from inspect import signature
from itertools import compress, pairwise
from typing import Annotated, Any, NotRequired, TypeAlias, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
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
from zeroeventhub.protocol import Page, TypeFilter
from zeroeventhub.spark.options import Options
from zeroeventhub.wire.arrow import ArrowPage, string_array
from zeroeventhub.wire.cloud_event import moment

_log = logging.getLogger("zeroeventhub.spark")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for a schema; moments are in UTC."""
    if "timezone" in signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


AnyPage: TypeAlias = ArrowPage | Page


@dataclass(frozen=True)
class RangePage:
    """A page of a range.

    Attributes:
        partition: the partition that the page was read from.
        page: its events, as columns or, with their headers, one by one.
        count: how many of its events, from the first one on, belong to the range.
        is_filtered: whether the feed has left out events of types that were not requested.
    """

    partition: int
    page: AnyPage
    count: int
    is_filtered: bool


def events_of(page: AnyPage) -> int:
    """Return the number of events of a page."""
    if isinstance(page, Page):
        return len(page.events)
    return sum(batch.num_rows for batch in page.batches)


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
    # Arrow would convert a larger number into infinity.
    FloatType: Annotated[float, msgspec.Meta(ge=-_LARGEST_FLOAT, le=_LARGEST_FLOAT)],
    IntegerType: _whole(32),
    LongType: _whole(64),
    ShortType: _whole(16),
    StringType: str,
    TimestampNTZType: Annotated[dt.datetime, msgspec.Meta(tz=False)],
    TimestampType: Annotated[dt.datetime, msgspec.Meta(tz=True)],
}


def json_type(kind: DataType, texts: Any) -> Any:
    """Return the decoder's type for a type of Spark; a STRING becomes `texts`, str or Raw."""
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
    # Raw JSON may be null anyway.
    return found | None if optional and found is not msgspec.Raw else found


ATTRIBUTES = frozenset({"id", "type", "time", "key"})
"""The attributes of a CloudEvent that are columns; `wire.cloud_event` reads them of one event."""

_TIME = pa.timestamp("us", "UTC")


# JSON has no circles, and to look for them in thousands of events takes longer than to decode them.
class _Envelope(msgspec.Struct, gc=False):
    """The members of a CloudEvent that are read for columns."""

    specversion: Any = msgspec.UNSET
    id: Any = None
    type: Any = None
    time: Any = None
    subject: Any = None
    partitionkey: Any = msgspec.UNSET

    @property
    def key(self) -> Any:
        return self.subject if self.partitionkey is msgspec.UNSET else self.partitionkey


_decode = msgspec.json.Decoder(_Envelope).decode


def texts_of(data: pa.StringArray) -> Iterator[memoryview]:
    """Yield the bytes of each text, without a copy."""
    if not len(data):
        return
    _, offsets, values = data.buffers()
    places = memoryview(offsets).cast("i")[data.offset : data.offset + len(data) + 1]
    view = memoryview(values or b"")
    for start, end in pairwise(places):
        yield view[start:end]


class Attributes:
    """Read the attributes of events from their JSON."""

    def __init__(self, data: pa.StringArray) -> None:
        self._data = data

    def column(self, name: str) -> pa.Array:
        """Return one of ATTRIBUTES of every event, null if the event lacks it."""
        found = pa.array(self._texts(name), pa.string())
        return _moments(found) if name == "time" else found

    def chosen(self, types: TypeFilter) -> list[bool]:
        """Return for every event whether a filter accepts it."""
        names = self.column("type").to_pylist()
        return [types.skip if name is None else types.lets_through(name) for name in names]

    @cached_property
    def _envelopes(self) -> list[_Envelope]:
        return [*map(_envelope, texts_of(self._data))]

    def _texts(self, name: str) -> list[str | None]:
        values = (getattr(one, name) for one in self._envelopes)
        return [
            value if isinstance(value, str) and one.specversion is not msgspec.UNSET else None
            for value, one in zip(values, self._envelopes, strict=True)
        ]


def _envelope(text: memoryview) -> _Envelope:
    """Decode one event; an event that is not a JSON object has no attributes."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, RecursionError):
        return _Envelope()


@cache
def _python_moments() -> tuple[pa.Scalar, pa.Scalar]:
    """Return the first and the last moment of Python, made late as pyarrow imports pandas here."""
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    return pa.scalar(first, _TIME), pa.scalar(last, _TIME)


def _moments(texts: pa.StringArray) -> pa.Array:
    try:
        found = pc.cast(texts, _TIME)
        first, last = _python_moments()
        if not pc.any(pc.or_(pc.less(found, first), pc.greater(found, last))).as_py():
            return found
    except pa.ArrowInvalid:
        pass  # Arrow reads fewer forms of a time than Python does.
    return pa.array([None if text is None else moment(text) for text in texts.to_pylist()], _TIME)


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

    An event does not fit if it is not an object, lacks a member that may not be null, or has a
    member of another type. A STRING takes any value: its JSON if it is not a string.

    Args:
        fields: the columns, named as the members.
        corrupt: the name of the column for the JSON of events that do not fit, whose other columns
            are null; None if they are an error.
    """

    def __init__(self, fields: Sequence[StructField], corrupt: str | None) -> None:
        self._row = StructType(list(fields))
        self._corrupt = corrupt
        if corrupt and not all(field.nullable for field in fields):
            raise ConfigurationError(
                f"With a column {corrupt}, all columns of the events' JSON have to be nullable."
            )
        self._decode = msgspec.json.Decoder(json_type(self._row, str)).decode
        self._decode_raw = msgspec.json.Decoder(json_type(self._row, msgspec.Raw)).decode

    def columns(self, data: pa.StringArray, schema: pa.Schema) -> dict[str, pa.Array]:
        """Return the columns of events, given their JSON and the columns' types."""
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
                    # The decoder names members and types; other errors repeat values of events.
                    detail = f": {error}" if isinstance(error, msgspec.DecodeError) else ""
                    raise ProtocolError(
                        f"An event does not fit the schema of the read{detail}. "
                        "Change the schema, or add a column _corrupt_record STRING, or of the name "
                        "that the option columnNameOfCorruptRecord gives, for such events."
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
            # A STRING has a value that is not a string.
            return [_with_texts(self._decode_raw(text), self._row) for text in texts_of(data)]


def _with_texts(value: Any, kind: DataType, *, optional: bool = True) -> Any:
    """Replace raw JSON by texts, at any depth; refuse a null that the type does not allow."""
    if isinstance(value, msgspec.Raw):
        raw = bytes(value)
        if raw == b"null":
            if not optional:
                raise ValueError("A text is null.")
            return None
        return msgspec.json.decode(raw, type=str) if raw.startswith(b'"') else raw.decode()
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


_TEXT = StringType()
OF_FEED: dict[str, DataType] = {
    "partition": IntegerType(),
    "cursor": _TEXT,
    "key": _TEXT,
    "headers": MapType(_TEXT, _TEXT),
    "data": _TEXT,
}
_OF_EVENT: dict[str, DataType] = {"id": _TEXT, "type": _TEXT, "time": TimestampType()}


def default_schema(*, with_headers: bool) -> StructType:
    """Return the columns of a read without a schema."""
    schema = StructType()
    for name in ("partition", "cursor", "id", "type", "time", "key", "headers", "data"):
        if name != "headers" or with_headers:
            kind = OF_FEED.get(name) or _OF_EVENT[name]
            schema.add(name, kind, nullable=name not in {"partition", "cursor", "data"})
    return schema


class Columns:
    """Make the columns of a schema out of pages; refuse a schema whose columns cannot be made.

    Columns that the source does not know are members of the events' JSON objects.

    Attributes:
        known: the columns that are not members of the events' JSON.
        with_headers: whether headers are one of them.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        self._types = options.types
        name = options.column_name_of_corrupt_record
        corrupt = name if name in schema.names else None
        if corrupt and schema[corrupt].dataType != _TEXT:
            raise ConfigurationError(
                f"The column {corrupt} for events that do not fit has to be a STRING."
            )
        fields = [one for one in schema if one.name != corrupt]
        known = [one for one in fields if OF_FEED.get(one.name) == one.dataType]
        rest = [one for one in fields if one not in known]
        if corrupt is None and all(_OF_EVENT.get(one.name) == one.dataType for one in rest):
            known, rest = fields, []
        for one in known:
            if one.name in ATTRIBUTES and not one.nullable:
                raise ConfigurationError(
                    f"The column {one.name} cannot be NOT NULL: only CloudEvents have it."
                )
        self.known = frozenset(one.name for one in known)
        self.with_headers = "headers" in self.known
        self._json = JsonColumns(rest, corrupt) if rest or corrupt else None
        self._members = [one.name for one in rest]
        self._has_looked = False
        # Last, because the error above for a type that JSON lacks is clearer than Spark's.
        self._schema = arrow_schema(schema)

    def batches(self, page: RangePage) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a page."""
        left = page.count
        for data, headers in _events(page.page):
            taken = data.slice(0, left)
            left -= len(taken)
            batch = self._batch(page, taken, headers[: len(taken)])
            if batch.num_rows:
                yield batch

    def _batch(
        self, page: RangePage, data: pa.StringArray, headers: list[dict[str, str]]
    ) -> pa.RecordBatch:
        attributes = Attributes(data)
        if self._types is not None and not page.is_filtered:
            chosen = attributes.chosen(self._types)
            data = data.filter(pa.array(chosen, pa.bool_()))
            headers = [*compress(headers, chosen)]
            attributes = Attributes(data)
        found = {"data": data}
        if "partition" in self.known:
            found["partition"] = pa.repeat(pa.scalar(page.partition, pa.int32()), len(data))
        if "cursor" in self.known:
            found["cursor"] = pa.repeat(pa.scalar(page.page.cursor, pa.string()), len(data))
        if self.with_headers:
            pairs = [list(one.items()) for one in headers]
            found["headers"] = pa.array(pairs, self._schema.field("headers").type)
        found |= {name: attributes.column(name) for name in self.known & ATTRIBUTES}
        if self._json is not None:
            found |= self._json.columns(data, self._schema)
            if len(data) and not self._has_looked:
                self._has_looked = True
                self._warn_of_envelopes(data, [found[name] for name in self._members])
        return pa.record_batch([found[name] for name in self._schema.names], schema=self._schema)

    def _warn_of_envelopes(self, data: pa.StringArray, columns: list[pa.Array]) -> None:
        """Warn if columns are null because they are named as members of the envelopes' data."""
        if not columns or any(one.null_count < len(data) for one in columns):
            return
        (first,) = texts_of(data.slice(0, 1))
        if _envelope(first).specversion is not msgspec.UNSET:
            _log.warning(
                "All of the columns %s are null, as the events are CloudEvents, which hold such "
                "members in their data: read a column data STRUCT<…>, or set the option "
                "inferSchema.",
                ", ".join(self._members),
            )


def _events(page: AnyPage) -> Iterator[tuple[pa.StringArray, list[dict[str, str]]]]:
    """Yield the texts of a page's events, and their headers if it has any."""
    if isinstance(page, ArrowPage):
        for batch in page.batches:
            yield batch.column(0), []
        return
    texts = string_array([one.raw for one in page.events])
    yield texts, [dict(one.headers) for one in page.events]
