"""The JSON of SQL values as PostgreSQL makes it: to the byte what `json_form` makes of them.

Each function returns an expression whose value is JSON as text, and NULL for NULL. A value that has
no JSON form is an error of the database.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Text, case, cast, func, literal_column
from sqlalchemy.dialects.postgresql import JSON, TIMESTAMP

__all__ = [
    "date_text",
    "moment_text",
    "object_text",
    "string_text",
    "value_text",
]

_AWARE: ColumnElement[Any] = literal_column("CAST('timestamp with time zone' AS regtype)")

_EARLIEST: ColumnElement[Any] = literal_column("'0001-01-01'")
_LATEST: ColumnElement[Any] = literal_column("'9999-12-31 23:59:59.999999'")

_encode = msgspec.json.encode


def value_text(expression: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the JSON of a whole number, a truth, a text or a UUID."""
    return cast(func.to_json(expression), Text)


def date_text(expression: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the JSON of a date."""
    return case(
        (expression.between(_EARLIEST, _LATEST), value_text(expression)), else_=_refused(expression)
    )


def moment_text(expression: ColumnElement[Any], *, aware: bool) -> ColumnElement[Any]:
    """Return the JSON of a moment, in UTC if it knows its zone.

    Args:
        expression: as the table has it, which may know its zone or not, whatever was declared.
        aware: whether one that knows none is taken to be UTC.
    """
    knows_zone = func.pg_typeof(expression) == _AWARE
    utc = func.timezone("UTC", cast(expression, TIMESTAMP(timezone=True)))
    moment: ColumnElement[Any] = case((knows_zone, utc), else_=cast(expression, TIMESTAMP()))
    text = func.rtrim(value_text(moment), '"')
    # With six decimals or none: as many characters as "2013-01-01T10:00:00.500000.
    whole = case((func.strpos(text, ".") == 0, text), else_=func.rpad(text, 27, "0"))
    end = 'Z"' if aware else case((knows_zone, 'Z"'), else_='"')
    return case(
        (moment.between(_EARLIEST, _LATEST), func.concat(whole, end)), else_=_refused(expression)
    )


def string_text(text: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return the JSON of a value as the JSON of a string, if it is not one already."""
    return case((func.starts_with(text, '"'), text), else_=value_text(text))


def object_text(members: Mapping[str, ColumnElement[Any] | str]) -> ColumnElement[Any]:
    """Return a JSON object.

    Args:
        members: the JSON of each by its name; one that is NULL is left out.
    """
    parts: list[Any] = []
    for name, text in members.items():
        key = f"{',' if parts else '{'}{_encode(name).decode()}:"
        parts.append(key + text if isinstance(text, ColumnElement) else f"{key}{text}")
    return func.concat(*parts, "}")


def _refused(expression: ColumnElement[Any]) -> ColumnElement[Any]:
    """Let the database refuse a value: what it prints is no JSON."""
    return cast(cast(cast(expression, Text), JSON), Text)
