"""The columns of the source, and how events become rows of them."""

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, cached_property
from inspect import signature
from itertools import pairwise
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
from zeroeventhub.wire.arrow import ArrowPage
from zeroeventhub.wire.cloud_event import moment

__all__ = [
    "AnyPage",
    "Attributes",
    "AvailableNow",
    "Columns",
    "JsonColumns",
    "RangePage",
    "arrow_schema",
    "default_schema",
    "events_of",
    "read_limit",
]

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
    )
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as AvailableNow
except ImportError:

    class AvailableNow:  # type: ignore[no-redef]
        """Stand for the interface, which an older Spark does not have."""

    ReadAllAvailable = ReadMaxRows = None  # type: ignore[assignment, misc]


def read_limit(events: int | None) -> Any:
    """Return Spark's limit for a number of events; None for no limit."""
    return ReadAllAvailable() if events is None else ReadMaxRows(events)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the columns that Spark takes for a schema; moments are in UTC."""
    if "timezone" in signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)


AnyPage: TypeAlias = ArrowPage | Page


@dataclass(frozen=True)
class RangePage:
    """Hold a page of a range.

    Attributes:
        partition: the partition that it was read from.
        page: its events, as columns or, with their headers, one by one.
        count: how many of them are of the range, from the first one on.
        is_filtered: whether it has only events of the types that were asked for.
    """

    partition: int
    page: AnyPage
    count: int
    is_filtered: bool


def events_of(page: AnyPage) -> int:
    """Count the events of a page."""
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


ATTRIBUTES = frozenset({"id", "type", "time", "key"})
"""What a CloudEvent may say of itself, as `zeroeventhub.wire.cloud_event` reads it of one event."""

_TIME = pa.timestamp("us", "UTC")


# No JSON refers to itself: looking for circles in thousands of events would take longer than to
# decode them.
class _Envelope(msgspec.Struct, gc=False):
    """Hold the members of a CloudEvent that are columns."""

    specversion: Any = msgspec.UNSET
    id: Any = None
    type: Any = None
    time: Any = None
    subject: Any = None
    partitionkey: Any = msgspec.UNSET


_decode = msgspec.json.Decoder(_Envelope).decode


def texts_of(data: pa.StringArray) -> Iterator[memoryview]:
    """Yield the bytes of each text, where they lie."""
    if not len(data):
        return
    _, offsets, values = data.buffers()
    places = memoryview(offsets).cast("i")[data.offset : data.offset + len(data) + 1]
    view = memoryview(values or b"")
    for start, end in pairwise(places):
        yield view[start:end]


class Attributes:
    """Read the attributes of events.

    Args:
        data: the JSON of each event.
    """

    def __init__(self, data: pa.StringArray) -> None:
        self._data = data

    def column(self, name: str) -> pa.Array:
        """Return an attribute of every event, null where it has none.

        Args:
            name: one of ATTRIBUTES.
        """
        found = pa.array(self._texts(name), pa.string())
        return _moments(found) if name == "time" else found

    def chosen(self, types: TypeFilter) -> list[bool]:
        """Tell of every event whether a filter lets it through."""
        names = self.column("type").to_pylist()
        return [types.skip if name is None else types.lets_through(name) for name in names]

    @cached_property
    def _envelopes(self) -> list[_Envelope]:
        """The events, as far as they are objects."""
        return [*map(_envelope, texts_of(self._data))]

    def _texts(self, name: str) -> list[str | None]:
        if name == "key":
            values = [
                one.subject if one.partitionkey is msgspec.UNSET else one.partitionkey
                for one in self._envelopes
            ]
        else:
            values = [getattr(one, name) for one in self._envelopes]
        return [
            value if isinstance(value, str) and one.specversion is not msgspec.UNSET else None
            for value, one in zip(values, self._envelopes, strict=True)
        ]


def _envelope(text: memoryview) -> _Envelope:
    """Decode one event; one that is no object says nothing of itself."""
    try:
        return _decode(text)
    except (msgspec.DecodeError, RecursionError):
        return _Envelope()


@cache
def _python_moments() -> tuple[pa.Scalar, pa.Scalar]:
    """Return the first and the last moment of Python.

    They are made when first asked for: pyarrow imports pandas for the first value that it is given,
    and the driver, which plans a read, has no values.
    """
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    return pa.scalar(first, _TIME), pa.scalar(last, _TIME)


def _moments(texts: pa.StringArray) -> pa.Array:
    try:
        found = pc.cast(texts, _TIME)
        first, last = _python_moments()
        if not pc.any(pc.or_(pc.less(found, first), pc.greater(found, last))).as_py():
            return found
    except pa.ArrowInvalid:
        pass  # Arrow knows fewer forms, and one of them is not of all events.
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
                    # The decoder names members and types; other errors repeat values of events.
                    detail = f": {error}" if isinstance(error, msgspec.DecodeError) else ""
                    raise ProtocolError(
                        f"An event does not fit the schema that it is read with{detail}. "
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
            # A column of texts has a value that is no string.
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


_TEXT = StringType()
_OF_FEED: dict[str, DataType] = {
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
            kind = _OF_FEED.get(name) or _OF_EVENT[name]
            schema.add(name, kind, nullable=name not in {"partition", "cursor", "data"})
    return schema


class Columns:
    """Make the columns of a schema out of pages.

    Columns that the feed does not know are members of the events' JSON objects.

    Args:
        schema: the columns.
        options: what is asked of the feed.

    Attributes:
        known: the columns that are not members of the events' JSON.
        with_headers: whether headers are one of them.

    Raises:
        ConfigurationError: a column cannot be made.
    """

    def __init__(self, schema: StructType, options: Options) -> None:
        self._schema = arrow_schema(schema)
        self._types = options.types
        corrupt = options.corrupt_record if options.corrupt_record in schema.names else None
        if corrupt and schema[corrupt].dataType != _TEXT:
            raise ConfigurationError(
                f"The column {corrupt} for events that do not fit is a STRING."
            )
        fields = [one for one in schema if one.name != corrupt]
        known = [one.name for one in fields if _is_of(_OF_FEED, one)]
        rest = [one for one in fields if one.name not in known]
        if all(_is_of(_OF_EVENT, one) for one in rest) and corrupt is None:
            known += [one.name for one in rest]
            rest = []
        _expect_nullable(schema, known)
        self.known = frozenset(known)
        self.with_headers = "headers" in known
        self._of_events = self.known & ATTRIBUTES
        self._json = JsonColumns(rest, corrupt) if rest or corrupt else None

    def batches(self, page: RangePage) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a page.

        Raises:
            ProtocolError: an event does not fit the schema, and no column is there for it.
        """
        left = page.count
        for data, headers in _events(page):
            taken = data.slice(0, left)
            left -= len(taken)
            batch = self._batch(page, taken, headers[: len(taken)])
            if batch.num_rows:
                yield batch

    def _batch(
        self, page: RangePage, data: pa.StringArray, headers: list[dict[str, str]]
    ) -> pa.RecordBatch:
        filters = self._types if not page.is_filtered else None
        attributes = None
        if self._of_events or filters is not None:
            attributes = Attributes(data)
        if attributes is not None and filters is not None:
            chosen = pa.array(attributes.chosen(filters), pa.bool_())
            data = data.filter(chosen)
            headers = [
                one for one, is_in in zip(headers, chosen.to_pylist(), strict=False) if is_in
            ]
            attributes = Attributes(data)
        found = {"data": data}
        if "partition" in self._schema.names:
            found["partition"] = pa.repeat(pa.scalar(page.partition, pa.int32()), len(data))
        if "cursor" in self._schema.names:
            found["cursor"] = pa.repeat(pa.scalar(page.page.cursor, pa.string()), len(data))
        if self.with_headers:
            pairs = [list(one.items()) for one in headers]
            found["headers"] = pa.array(pairs, self._schema.field("headers").type)
        if attributes is not None:
            found |= {name: attributes.column(name) for name in self._of_events}
        if self._json is not None:
            found |= self._json.columns(data, self._schema)
        return pa.record_batch([found[name] for name in self._schema.names], schema=self._schema)


def _events(page: RangePage) -> Iterator[tuple[pa.StringArray, list[dict[str, str]]]]:
    """Yield the texts of a page's events, and their headers where it has any."""
    if isinstance(page.page, Page):
        events = page.page.events
        yield (
            pa.array([one.raw for one in events], pa.string()),
            [dict(one.headers) for one in events],
        )
        return
    for batch in page.page.batches:
        yield batch.column(0), []


def _is_of(known: dict[str, DataType], field: StructField) -> bool:
    return known.get(field.name) == field.dataType


def _expect_nullable(schema: StructType, known: list[str]) -> None:
    for name in known:
        if name in {"id", "type", "time", "key"} and not schema[name].nullable:
            raise ConfigurationError(
                f"The column {name} cannot be NOT NULL: only CloudEvents say it of themselves."
            )
