"""The columns of a read, and how events become rows of them."""

import datetime as dt
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, cached_property
from itertools import compress, pairwise
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from zeroeventhub.bulk.options import ReadOptions, Words
from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.protocol import TypeFilter
from zeroeventhub.wire.cloud_event import moment

_log = logging.getLogger("zeroeventhub.bulk")


@dataclass(frozen=True)
class RangePage:
    """Events of a range that came in one page, or in a part of a file.

    Attributes:
        data: their JSON.
        cursor: that of the page, or after the file.
        cursor_after: the cursor from which to read on after these events; None within a file,
            where there is none.
        headers: those of each event, if they were requested.
        is_filtered: whether the feed has left out events of types that were not requested.
    """

    partition: int
    data: pa.StringArray
    cursor: str
    cursor_after: str | None
    headers: Sequence[Mapping[str, str]] = ()
    is_filtered: bool = False


def _whole(low: int, high: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=low, le=high)]


_LARGEST_FLOAT = (2 - 2**-23) * 2.0**127
"""The largest number of 32 bits (IEEE 754)."""

_SCALARS: dict[pa.DataType, Any] = {
    pa.binary(): bytes,
    pa.bool_(): bool,
    pa.date32(): dt.date,
    # Arrow would convert a larger number into infinity.
    pa.float32(): Annotated[float, msgspec.Meta(ge=-_LARGEST_FLOAT, le=_LARGEST_FLOAT)],
    pa.float64(): float,
    pa.int8(): _whole(-(2**7), 2**7 - 1),
    pa.int16(): _whole(-(2**15), 2**15 - 1),
    pa.int32(): _whole(-(2**31), 2**31 - 1),
    pa.int64(): _whole(-(2**63), 2**63 - 1),
    pa.uint8(): _whole(0, 2**8 - 1),
    pa.uint16(): _whole(0, 2**16 - 1),
    pa.uint32(): _whole(0, 2**32 - 1),
    pa.uint64(): Annotated[int, msgspec.Meta(ge=0)],  # Arrow refuses those that are too large
}


def json_type(kind: pa.DataType, texts: Any) -> Any:
    """Return the decoder's type for a type of Arrow; a string becomes `texts`, str or Raw."""
    is_of = pa.types
    if kind == pa.string():
        return texts
    if is_of.is_list(kind):
        return list[_member(kind.value_field, texts)]  # type: ignore[misc]
    if is_of.is_map(kind) and kind.key_type == pa.string():
        return dict[str, _member(kind.item_field, texts)]  # type: ignore[misc]
    if is_of.is_struct(kind):
        members = {}
        for one in kind:
            member = _member(one, texts)
            # msgspec refuses any raw JSON in a member that is required.
            is_optional = one.nullable or member is msgspec.Raw
            members[one.name] = NotRequired[member] if is_optional else member
        return TypedDict("Event", members)  # type: ignore[operator]
    if is_of.is_decimal(kind):
        return Decimal
    if is_of.is_timestamp(kind) and kind.unit in {"us", "ns"}:
        return Annotated[dt.datetime, msgspec.Meta(tz=kind.tz is not None)]
    if kind in _SCALARS:
        return _SCALARS[kind]
    raise ConfigurationError(
        f"Events' JSON cannot be read as {kind}: read the column as a string, and convert it."
    )


def _member(field: pa.Field, texts: Any) -> Any:
    found = json_type(field.type, texts)
    # Raw JSON may be null anyway.
    return found | None if field.nullable and found is not msgspec.Raw else found


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
    partitionkey: Any = None

    @property
    def key(self) -> Any:
        return self.subject if self.partitionkey is None else self.partitionkey


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
        values = (getattr(one, name) for one in self._envelopes)
        texts = [
            value if isinstance(value, str) and one.specversion is not msgspec.UNSET else None
            for value, one in zip(values, self._envelopes, strict=True)
        ]
        found = pa.array(texts, pa.string())
        return _moments(found) if name == "time" else found

    def chosen(self, types: TypeFilter) -> list[bool]:
        """Return for every event whether a filter accepts it."""
        names = self.column("type").to_pylist()
        return [types.skip if name is None else types.lets_through(name) for name in names]

    @cached_property
    def _envelopes(self) -> list[_Envelope]:
        return [*map(_envelope, texts_of(self._data))]


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


_WITHIN_A_STRING = (
    " The event is a string: if it has JSON in it, the publisher has to declare its column as JSON."
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

    def __init__(
        self, fields: Sequence[pa.Field], corrupt: str | None, words: Words = ReadOptions.words
    ) -> None:
        self._words = words
        self._row = pa.struct(fields)
        self._corrupt = corrupt
        if corrupt and not all(field.nullable for field in fields):
            raise ConfigurationError(
                f"With a column {corrupt}, all columns of the events' JSON have to be nullable."
            )
        self._of_decimals = [one for one in self._row if _holds_decimals(one.type)]
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
            row: dict[str, Any] = {}
            try:
                (row,) = self._rows(one)
                self._arrays([row], schema)
            except _UNFIT as error:
                if self._corrupt is None:
                    # The decoder names members and types; other errors repeat values of events.
                    is_named = isinstance(error, msgspec.DecodeError)
                    detail = f": {error}" if is_named else _misfit(row, schema)
                    is_text = one[0].as_py().startswith('"')
                    raise ProtocolError(
                        f"An event does not fit the schema of the read{detail}. "
                        f"Change the schema, or add a column {self._words.corrupt_record} for such "
                        f"events.{_WITHIN_A_STRING if is_text else ''}"
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
        for field in self._of_decimals:
            for row in rows:
                _expect_decimals(row.get(field.name), field.type)
        return {
            name: pa.array([row.get(name) for row in rows], schema.field(name).type)
            for name in (field.name for field in self._row)
        }

    def _rows(self, data: pa.StringArray) -> list[dict[str, Any]]:
        """Decode events that all fit."""
        try:
            return [*map(self._decode, texts_of(data))]
        except msgspec.ValidationError:
            # A STRING has a value that is not a string.
            return [_with_texts(self._decode_raw(text), self._row) for text in texts_of(data)]


def _misfit(row: dict[str, Any], schema: pa.Schema) -> str:
    """Name the first member of which Arrow makes no column, as the decoder does."""
    for name, value in row.items():
        try:
            _expect_decimals(value, schema.field(name).type)
            pa.array([value], schema.field(name).type)
        except _UNFIT:
            return f": Expected `{schema.field(name).type}` - at `$.{name}`"
    return ""


_DIGITS = {32: 9, 64: 18, 128: 38, 256: 76}
"""The most digits of a decimal by its size in bits."""


def _holds_decimals(kind: pa.DataType) -> bool:
    """Return whether values of a type of Arrow are decimals, or have some in them."""
    parts = [kind.field(number).type for number in range(kind.num_fields)]
    return pa.types.is_decimal(kind) or any(map(_holds_decimals, parts))


def _expect_decimals(value: Any, kind: pa.DataType) -> None:
    """Refuse decimals of more places than any column has: Arrow makes 0 of some, or crashes."""
    if isinstance(value, Decimal):
        # One of 0.1 or more has so many digits in all, which Arrow itself refuses.
        if (first := value.adjusted()) < -1:
            places = len(value.as_tuple().digits) - 1 - first
            if places > _DIGITS[kind.bit_width]:
                raise ValueError("A decimal has too many digits.")
    elif isinstance(value, list):
        for one in value:
            _expect_decimals(one, kind.value_type)
    elif isinstance(value, dict):
        is_map = pa.types.is_map(kind)
        for name, one in value.items():
            _expect_decimals(one, kind.item_type if is_map else kind.field(name).type)


def _with_texts(value: Any, kind: pa.DataType, *, optional: bool = True) -> Any:
    """Replace raw JSON by texts, at any depth; refuse a null that the type does not allow."""
    if isinstance(value, msgspec.Raw):
        raw = bytes(value)
        if raw == b"null":
            if not optional:
                raise msgspec.ValidationError("Expected `str`, got `null`")
            return None
        return msgspec.json.decode(raw, type=str) if raw.startswith(b'"') else raw.decode()
    if value is None:
        return None
    if pa.types.is_list(kind):
        field = kind.value_field
        return [_with_texts(one, field.type, optional=field.nullable) for one in value]
    if pa.types.is_map(kind):
        field = kind.item_field
        return {
            name: _with_texts(one, field.type, optional=field.nullable)
            for name, one in value.items()
        }
    if pa.types.is_struct(kind):
        for one in kind:
            if one.name not in value and not one.nullable:
                raise msgspec.ValidationError(f"Object missing required field `{one.name}`")
        return {
            one.name: _with_texts(value[one.name], one.type, optional=one.nullable)
            for one in kind
            if one.name in value
        }
    return value


_TEXT = pa.string()
OF_FEED = {
    "partition": pa.int32(),
    "cursor": _TEXT,
    "key": _TEXT,
    "headers": pa.map_(_TEXT, _TEXT),
    "data": _TEXT,
}
_OF_EVENT = {"id": _TEXT, "type": _TEXT, "time": _TIME}


def default_schema(*, with_headers: bool) -> pa.Schema:
    """Return the columns of a read without a schema."""
    names = ["partition", "cursor", "id", "type", "time", "key", "headers", "data"]
    return pa.schema(
        pa.field(
            name,
            OF_FEED.get(name) or _OF_EVENT[name],
            nullable=name not in {"partition", "cursor", "data"},
        )
        for name in names
        if name != "headers" or with_headers
    )


class Columns:
    """Make the columns of a schema out of pages; refuse a schema whose columns cannot be made.

    Columns that the feed does not have are members of the events' JSON objects.

    Attributes:
        schema: the columns.
        known: the columns that are not members of the events' JSON.
        unseen: the other columns, as long as all of their rows are null.
        with_headers: whether headers are one of them.
    """

    def __init__(self, schema: pa.Schema, options: ReadOptions) -> None:
        if not schema.names:
            raise ConfigurationError(
                "The schema has no columns, and so the read would have no rows: name one, such as "
                "partition."
            )
        if len({*schema.names}) < len(schema.names):
            raise ConfigurationError("Two of the columns have one name: give each its own.")
        self.schema = schema
        self._types = options.types
        self._words = options.words
        name = options.column_name_of_corrupt_record
        corrupt = name if name in schema.names else None
        if corrupt and schema.field(corrupt).type != _TEXT:
            raise ConfigurationError(
                f"The column {corrupt} for events that do not fit has to be a STRING."
            )
        fields = [one for one in schema if one.name != corrupt]
        known = [one for one in fields if OF_FEED.get(one.name) == one.type]
        rest = [one for one in fields if one not in known]
        if corrupt is None and all(_OF_EVENT.get(one.name) == one.type for one in rest):
            known, rest = fields, []
        for one in known:
            if one.name in ATTRIBUTES and not one.nullable:
                raise ConfigurationError(
                    f"The column {one.name} cannot be NOT NULL: only CloudEvents have it."
                )
        self.known = frozenset(one.name for one in known)
        self.with_headers = "headers" in self.known
        self._json = JsonColumns(rest, corrupt, options.words) if rest or corrupt else None
        self._members = [one.name for one in rest]
        self.unseen = {*self._members}
        self._has_looked = False

    def batch(self, page: RangePage) -> pa.RecordBatch:
        """Return the rows of a page."""
        data, headers = page.data, page.headers
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
            found["cursor"] = pa.repeat(pa.scalar(page.cursor, pa.string()), len(data))
        if self.with_headers:
            pairs = [list(one.items()) for one in headers]
            found["headers"] = pa.array(pairs, self.schema.field("headers").type)
        found |= {name: attributes.column(name) for name in self.known & ATTRIBUTES}
        if self._json is not None:
            found |= self._json.columns(data, self.schema)
            for name in tuple(self.unseen):  # threads share these columns
                if found[name].null_count < len(data):
                    self.unseen.discard(name)
            if len(data) and not self._has_looked:
                self._has_looked = True
                self._warn_of_envelopes(data)
        return pa.record_batch([found[name] for name in self.schema.names], schema=self.schema)

    def warn_of_unseen(self) -> None:
        """Warn of columns that were null in all rows, whose names may be misspelt."""
        if self.unseen:
            _log.warning(
                "In all rows of this read these columns are null: %s. Compare their names with the "
                "members of the events' JSON.",
                ", ".join(sorted(self.unseen)),
            )

    def _warn_of_envelopes(self, data: pa.StringArray) -> None:
        """Warn if columns are null because they are named as members of the envelopes' data."""
        if len(self.unseen) < max(len(self._members), 1):
            return
        (first,) = texts_of(data.slice(0, 1))
        if _envelope(first).specversion is not msgspec.UNSET:
            _log.warning(
                "All of the columns %s are null, as the events are CloudEvents, which hold such "
                "members in their data: %s.",
                ", ".join(self._members),
                self._words.struct,
            )
            self.unseen.clear()  # they are warned of
