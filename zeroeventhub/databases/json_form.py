"""The JSON form of every SQL type, made in Python, or byte for byte the same in PostgreSQL.

The names of the functions that convert values are part of a mapping's digest, and never change.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Dialect, Text, case, cast, func, literal_column, type_coerce
from sqlalchemy import types as sql
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.dialects.postgresql import JSON, TIMESTAMP
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from zeroeventhub.databases import database_of
from zeroeventhub.databases.statements import as_utc
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.wire.ndjson import one_line

_AWARE: ColumnElement[Any] = literal_column("CAST('timestamp with time zone' AS regtype)")
_EARLIEST: ColumnElement[Any] = literal_column("'0001-01-01'")
_LATEST: ColumnElement[Any] = literal_column("'9999-12-31 23:59:59.999999'")

_encode = msgspec.json.encode


def value_text(expression: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the JSON of a whole number, a boolean, a text or a UUID."""
    return cast(func.to_json(expression), Text)


def time_text(
    value: ColumnElement[Any], text: ColumnElement[Any], stored: ColumnElement[Any]
) -> ColumnElement[Any]:
    """Return the JSON of a date or timestamp; make PostgreSQL refuse one that ISO 8601 lacks."""
    refused = cast(cast(cast(stored, Text), JSON), Text)  # its text is not JSON
    return case((value.between(_EARLIEST, _LATEST), text), else_=refused)


def moment_text(expression: ColumnElement[Any], *, aware: bool) -> ColumnElement[Any]:
    """Return the JSON of a timestamp, in UTC if it has a zone, whatever type was declared.

    If `aware`, one without a zone is taken to be UTC.
    """
    has_zone = func.pg_typeof(expression) == _AWARE
    utc = func.timezone("UTC", cast(expression, TIMESTAMP(timezone=True)))
    moment: ColumnElement[Any] = case((has_zone, utc), else_=cast(expression, TIMESTAMP()))
    text = func.rtrim(value_text(moment), '"')
    # With six decimals or none: as many characters as "2013-01-01T10:00:00.500000.
    whole = case((func.strpos(text, ".") == 0, text), else_=func.rpad(text, 27, "0"))
    end = 'Z"' if aware else case((has_zone, 'Z"'), else_='"')
    return time_text(moment, func.concat(whole, end), expression)


def object_text(
    members: Mapping[str, ColumnElement[Any] | str], end: str = "}"
) -> ColumnElement[Any]:
    """Return a JSON object of members' JSON by name, without those that are NULL, up to its end."""
    parts: list[Any] = []
    for name, text in members.items():
        key = f"{',' if parts else '{'}{_encode(name).decode()}:"
        parts.append(key + text if isinstance(text, ColumnElement) else f"{key}{text}")
    return func.concat(*parts, end)


_expect_json = msgspec.json.Decoder(msgspec.Raw).decode

# Their form is the text that the database prints.
_AS_TEXT = (
    postgresql.BIT,
    postgresql.CIDR,
    postgresql.INET,
    postgresql.MACADDR,
    postgresql.MACADDR8,
    mysql.SET,
    sql.Enum,
    sql.Numeric,
)


@dataclass(frozen=True)
class JsonForm:
    """How a SQL value is selected and turned into a value with a JSON form.

    Attributes:
        select: the expression to select.
        convert: applied to a selected value that is not NULL; None to leave it unchanged.
        text: the JSON form as PostgreSQL makes it; None if Python makes it.
        stored: the stored JSON, if the selected value is its text; PostgreSQL sends it without a
            cast. None for a value of another type.
    """

    select: ColumnElement[Any]
    convert: Callable[[Any], Any] | None = None
    text: ColumnElement[Any] | None = None
    stored: ColumnElement[Any] | None = None

    @property
    def declared(self) -> sql.TypeEngine[Any]:
        """The type of the selected value, as it was declared."""
        kind = self.select.type
        return kind.kind if isinstance(kind, _Checked) else kind

    @property
    def is_unchecked(self) -> bool:
        """Whether it is of PostgreSQL's type json, which may hold half a surrogate pair."""
        return self.stored is not None and not isinstance(self.stored.type, postgresql.JSONB)


def json_form(expression: ColumnElement[Any], name: str) -> JsonForm:
    """Return the JSON form of a SQL expression.

    `name` is its name in the error.
    """
    form = _form(expression, _plain(expression.type))
    if form is None:
        raise ConfigurationError(
            f"{name!r} has the SQL type {expression.type!r}, which has no JSON form: leave it out, "
            "or give an expression in its place, such as cast(column, Text)."
        )
    return form


def _plain(kind: sql.TypeEngine[Any]) -> sql.TypeEngine[Any]:
    """Return the type that the database stores, for a type decorator or domain."""
    while True:
        match kind:
            case sql.Interval():  # itself a decorator, where the database has no intervals
                return kind
            case sql.TypeDecorator():
                kind = kind.impl_instance
            case postgresql.DOMAIN():
                kind = kind.data_type
            case _:
                return kind


def _form(expression: ColumnElement[Any], kind: sql.TypeEngine[Any]) -> JsonForm | None:
    match kind:
        case sql.ARRAY():
            return _array_form(expression, kind)
        case sql.JSON():
            # As text, so that numbers, key order and repeated keys stay as they were stored.
            stored = _StoredJson(expression, kind)
            return JsonForm(stored, _as_stored, text=stored, stored=stored.declared)
        case sql.Float():
            # PostgreSQL sometimes writes other digits than Python.
            plain = _Real(expression) if _is_single(kind) else expression
            return JsonForm(type_coerce(plain, sql.Float()), _number)
        case sql.DateTime():
            return JsonForm(
                type_coerce(expression, kind),
                as_utc if kind.timezone else timestamp,
                text=moment_text(expression, aware=kind.timezone),
            )
        case sql.Date():
            text = time_text(expression, value_text(expression), expression)
            return JsonForm(type_coerce(expression, kind), text=text)
        case sql.Time() | sql.Interval() | postgresql.INTERVAL() | sql.LargeBinary():
            return JsonForm(type_coerce(expression, _Checked(kind)))
        case sql.Uuid():
            text = value_text(cast(expression, postgresql.UUID()))
            return JsonForm(type_coerce(expression, kind), _uuid, text=text)
        case _ if isinstance(kind, _AS_TEXT):
            shown = cast(expression, Text)
            return JsonForm(shown, text=value_text(shown))
        case sql.Boolean() | sql.Integer() | sql.String():
            text = value_text(expression)
            return JsonForm(type_coerce(expression, _Checked(kind)), text=text)
        case _:
            return None


def _array_form(expression: ColumnElement[Any], kind: sql.ARRAY[Any]) -> JsonForm | None:
    item_kind = _plain(kind.item_type)
    item = _form(expression, item_kind)
    if item is None:
        return None
    if isinstance(item_kind, (*_AS_TEXT, sql.JSON)) and not isinstance(item_kind, sql.Float):
        expression = cast(expression, postgresql.ARRAY(Text))
    else:
        plain = _Real(expression, "[]") if _is_single(item_kind) else expression
        expression = type_coerce(plain, postgresql.ARRAY(item_kind))
    convert = item.convert or (lambda value: value)

    def each(value: Any) -> Any:
        if isinstance(value, list):
            return [each(element) for element in value]
        return None if value is None else convert(value)

    return JsonForm(expression, each)


def _is_single(kind: sql.TypeEngine[Any]) -> bool:
    """Return whether PostgreSQL stores numbers of single precision: REAL, and up to FLOAT(24)."""
    precision = kind.precision if isinstance(kind, sql.Float) else None
    return isinstance(kind, sql.REAL) or (precision is not None and precision <= _SINGLE)


_SINGLE = 24
"""The bits of a number of single precision."""


class _Real(FunctionElement[Any]):
    """Numbers of single precision, or an array of them, with the digits that PostgreSQL prints.

    Some of its drivers read the text, and others convert the binary number to double precision.
    """

    inherit_cache = True
    name = "real"

    def __init__(self, expression: ColumnElement[Any], end: str = "") -> None:
        self.end = end
        super().__init__(expression)


@compiles(_Real)
def _compile_real(element: _Real, compiler: Any, **options: Any) -> str:
    column: str = compiler.process(element.clauses, **options)
    if compiler.dialect.name != "postgresql":
        return column
    return f"CAST(CAST({column} AS text{element.end}) AS double precision{element.end})"


class _Checked(sql.TypeDecorator[Any]):
    """A type whose values are checked where SQLAlchemy would mistake some for others."""

    impl = sql.String
    cache_ok = True

    def __init__(self, kind: sql.TypeEngine[Any]) -> None:
        super().__init__()
        self.kind = kind

    def load_dialect_impl(self, dialect: Dialect) -> sql.TypeEngine[Any]:
        return self.kind.dialect_impl(dialect)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        checked = database_of(dialect).checked(self.kind)
        return checked or self.kind.dialect_impl(dialect).result_processor(dialect, coltype)


class _StoredJson(FunctionElement[str]):
    """The text of stored JSON, from a column that was declared of a type."""

    inherit_cache = True
    name = "stored_json"
    type = Text()

    def __init__(self, expression: ColumnElement[Any], kind: sql.JSON) -> None:
        dialect = postgresql.dialect()  # type: ignore[no-untyped-call] # it has no annotations
        is_binary = isinstance(kind.dialect_impl(dialect), postgresql.JSONB)
        self.declared = cast(expression, postgresql.JSONB() if is_binary else postgresql.JSON())
        super().__init__(cast(expression, Text), cast(self.declared, Text))


@compiles(_StoredJson)
def _compile(element: _StoredJson, compiler: Any, **options: Any) -> str:
    text, checked = element.clauses
    # A column of text that was declared JSON is checked by PostgreSQL, at no cost for one of JSON.
    chosen = checked if compiler.dialect.name == "postgresql" else text
    compiled: str = compiler.process(chosen, **options)
    return compiled


def _as_stored(text: str) -> msgspec.Raw:
    """Embed stored JSON unchanged, on one line."""
    raw = text.encode()
    _expect_json(raw)
    return msgspec.Raw(one_line(raw))


def _number(value: float) -> float | str:
    """Return the name of a value that JSON lacks, as PostgreSQL and Protocol Buffers do."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _uuid(value: UUID | str) -> str:
    return str(UUID(str(value)))


def timestamp(value: datetime) -> datetime:
    """Convert a timestamp to UTC if it has a zone."""
    return value if value.tzinfo is None else value.astimezone(UTC)


OWN_ATTRIBUTES = ("id", "type", "key", "time")
"""The attributes of an envelope that a feed itself uses."""


def data_text(forms: Sequence[JsonForm], names: Sequence[str] | None) -> ColumnElement[Any] | None:
    """Return the JSON of an event's data; None if PostgreSQL does not make it.

    Without names, the one form is the data itself.
    """
    texts = [func.coalesce(form.text, "null") for form in forms if form.text is not None]
    if len(texts) < len(forms):
        return None
    return texts[0] if names is None else object_text(dict(zip(names, texts, strict=True)))


def envelope_members(
    source: str, kind: str, attributes: Mapping[str, JsonForm], position: ColumnElement[int]
) -> dict[str, ColumnElement[Any] | str] | None:
    """Return the JSON of a CloudEvent's members before its data; None if PostgreSQL makes none.

    `kind` is the `type` of events that have none of their own, `position` the `id` of those whose
    own is empty, and `attributes` has the forms of `id`, `type`, `key`, `time` and further ones.
    """
    strings: dict[str, ColumnElement[Any]] = {}
    for name, form in attributes.items():
        if form.text is None or form.stored is not None:
            return None
        string = case((func.starts_with(form.text, '"'), form.text), else_=value_text(form.text))
        strings[name] = func.nullif(string, '""')
    members: dict[str, ColumnElement[Any] | str] = {
        "specversion": '"1.0"',
        "id": _first(strings.get("id"), func.concat('"', position, '"')),
        "source": msgspec.json.encode(source).decode(),
        "type": _first(strings.get("type"), msgspec.json.encode(kind).decode()),
    }
    if (time := attributes.get("time")) is not None:
        if not isinstance(time.select.type, sql.DateTime):
            return None
        members["time"] = moment_text(time.select, aware=True)
    if "key" in strings:
        members["partitionkey"] = strings["key"]
    members |= {name: text for name, text in strings.items() if name not in OWN_ATTRIBUTES}
    return members | {"datacontenttype": '"application/json"'}


def _first(text: ColumnElement[Any] | None, other: Any) -> Any:
    """Return text, or what is in its place where it is NULL."""
    return other if text is None else func.coalesce(text, other)
