"""The JSON form of every SQL type, or the refusal of a type that has none.

A form has two halves: what the database is asked for, and what becomes of the value it
returns. docs/json.md lists the forms for readers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Text, cast, type_coerce
from sqlalchemy import types as sql
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.lines import one_line
from zeroeventhub.publisher.json_text import date_text, moment_text, value_text

__all__ = ["JsonForm", "json_form", "timestamp"]

_expect_json = msgspec.json.Decoder(msgspec.Raw).decode

# Text is the form that the database itself gives these.
_AS_TEXT = (
    postgresql.BIT,
    postgresql.CIDR,
    postgresql.INET,
    postgresql.MACADDR,
    postgresql.MACADDR8,
    sql.Enum,
    sql.Numeric,
)


@dataclass(frozen=True)
class JsonForm:
    """Say how a SQL value is selected and turned into a value with a JSON form.

    Attributes:
        select: the expression to ask the database for.
        convert: applied to a returned value that is not NULL; None to leave it as it is.
        is_json: whether what is selected is the JSON form itself, as text, if it is not NULL.
        text: the JSON form as PostgreSQL makes it; None if it does not.
        stored: the value whose own output is that text; None if there is none.
    """

    select: ColumnElement[Any]
    convert: Callable[[Any], Any] | None = None
    is_json: bool = False
    text: ColumnElement[Any] | None = None
    stored: ColumnElement[Any] | None = None


def json_form(expression: ColumnElement[Any], name: str) -> JsonForm:
    """Find the JSON form of a SQL expression.

    Args:
        expression: a column or any expression whose SQL type is known.
        name: what to call it if it is refused.

    Raises:
        ConfigurationError: its type has no JSON form.
    """
    form = _form(expression, _plain(expression.type))
    if form is None:
        raise ConfigurationError(
            f"{name!r} has the SQL type {expression.type!r}, which has no JSON form: leave it out, "
            "or give an expression in its place, such as cast(column, Text)."
        )
    return form


def _plain(kind: sql.TypeEngine[Any]) -> sql.TypeEngine[Any]:
    """Look through type decorators and domains at the type that the database stores."""
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
            return JsonForm(stored, _as_stored, is_json=True, text=stored, stored=stored.declared)
        case sql.Float():
            # PostgreSQL writes floats with other digits, now and then.
            return JsonForm(type_coerce(expression, sql.Float()), _number)
        case sql.DateTime():
            return JsonForm(
                type_coerce(expression, kind),
                _utc if kind.timezone else timestamp,
                text=moment_text(expression, aware=kind.timezone),
            )
        case sql.Date():
            return JsonForm(type_coerce(expression, kind), text=date_text(expression))
        case sql.Time() | sql.Interval() | postgresql.INTERVAL() | sql.LargeBinary():
            return JsonForm(type_coerce(expression, kind))
        case sql.Uuid():
            text = value_text(cast(expression, postgresql.UUID()))
            return JsonForm(type_coerce(expression, kind), _uuid, text=text)
        case _ if isinstance(kind, _AS_TEXT):
            shown = cast(expression, Text)
            return JsonForm(shown, text=value_text(shown))
        case sql.Boolean() | sql.Integer() | sql.String():
            return JsonForm(type_coerce(expression, kind), text=value_text(expression))
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
        expression = type_coerce(expression, postgresql.ARRAY(item_kind))
    convert = item.convert or (lambda value: value)

    def each(value: Any) -> Any:
        if isinstance(value, list):
            return [each(element) for element in value]
        return None if value is None else convert(value)

    return JsonForm(expression, each)


class _StoredJson(FunctionElement[str]):
    """Be the text of stored JSON.

    Args:
        expression: a column of JSON.
        kind: its type, as it was declared.
    """

    inherit_cache = True
    name = "stored_json"
    type = Text()

    def __init__(self, expression: ColumnElement[Any], kind: sql.JSON) -> None:
        dialect = postgresql.dialect()  # type: ignore[no-untyped-call] # it has no annotations
        is_binary = isinstance(kind.dialect_impl(dialect), postgresql.JSONB)
        self.declared = cast(expression, postgresql.JSONB() if is_binary else postgresql.JSON())
        super().__init__(cast(expression, Text), cast(self.declared, Text))


@compiles(_StoredJson)
def _as_text(element: _StoredJson, compiler: Any, **options: Any) -> str:
    text, _ = element.clauses
    compiled: str = compiler.process(text, **options)
    return compiled


@compiles(_StoredJson, "postgresql")
def _checked_by_its_type(element: _StoredJson, compiler: Any, **options: Any) -> str:
    # A column of text that was declared JSON is read as such; it costs nothing if it is of JSON.
    _, text = element.clauses
    compiled: str = compiler.process(text, **options)
    return compiled


def _as_stored(text: str) -> msgspec.Raw:
    """Embed stored JSON as it is, on one line."""
    raw = text.encode()
    _expect_json(raw)
    return msgspec.Raw(one_line(raw))


def _number(value: float) -> float | str:
    """Write what JSON numbers lack, as PostgreSQL and Protocol Buffers do, by name."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _uuid(value: UUID | str) -> str:
    return str(UUID(str(value)))


def _utc(value: datetime) -> datetime:
    """Move a moment to UTC; SQLite forgets zones, and what it forgot is taken to be UTC."""
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


def timestamp(value: datetime) -> datetime:
    """Move a moment that knows its zone to UTC; leave one that does not alone."""
    return value if value.tzinfo is None else value.astimezone(UTC)
