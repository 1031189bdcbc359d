"""How a column takes its values: from JSON or from Python, and on to a database's driver."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, auto
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
from sqlalchemy import Column, DateTime, Dialect, Interval, types
from sqlalchemy import Enum as Choice

__all__ = ["ABSENT", "ColumnForm", "Presence", "Unfit", "converted"]

ABSENT = msgspec.UNSET
"""Stands where nothing is said of a column."""

Convert: TypeAlias = Callable[[Any], Any]

_FORMS = {bool, int, float, str, Decimal, datetime, date, time, timedelta, bytes, UUID}
"""What JSON is read as for a column of this type of Python's; for any other, as JSON has it."""

_SHOWN = {date, datetime, time, Decimal, UUID}
"""What PostgreSQL reads as Python shows it, which takes less than psycopg's own way to write it."""

_WRITTEN = {bool, int, float, str}
"""What PostgreSQL reads as JSON writes it."""


class Presence(Enum):
    """Say what becomes of a row that says nothing of a column."""

    REQUIRED = auto()
    NULL = auto()
    DEFAULT = auto()


@dataclass(frozen=True, eq=False)
class ColumnForm:
    """Hold what is known of a column.

    Attributes:
        column: the column.
        presence: what becomes of a row that says nothing of it.
        form: what JSON is read as; a Raw where the column holds JSON itself.
        from_json: makes of what was read a value of the column; None where they are the same.
        from_python: the same of a value of Python's.
        bind: makes of a value what the driver takes; None where they are the same.
        is_plain: whether the driver's value is what the database stores, without an expression.
        is_text: whether PostgreSQL reads values that were read from JSON as JSON writes them.
    """

    column: Column[Any]
    presence: Presence
    form: Any
    from_json: Convert | None
    from_python: Convert | None
    bind: Convert | None
    is_plain: bool
    is_text: bool = False

    @classmethod
    def of(cls, column: Column[Any], dialect: Dialect) -> "ColumnForm":
        """Find out what a column is.

        Args:
            column: a column of a table.
            dialect: of the database that has it.
        """
        presence = _presence(column)
        kind = column.type.dialect_impl(dialect)
        if isinstance(kind, types.JSON):
            # What the engine was made with, if it was made with one.
            dumps = getattr(dialect, "_json_serializer", None) or json.dumps
            read, write = _json_read(kind), _json_written(kind, dumps)
            return cls(
                column, presence, msgspec.Raw, read, write, None, is_plain=True, is_text=True
            )
        moment = isinstance(kind, DateTime) and not (kind.timezone and dialect.name == "postgresql")
        convert = _in_utc if moment else None
        plain = not kind._has_bind_expression  # noqa: SLF001 - nothing public tells
        form, bind = _form(column.type), kind.bind_processor(dialect)
        if bind is None and form in _SHOWN and dialect.driver == "psycopg":
            bind = _shown
        from_python = convert
        native = dialect.supports_native_boolean or dialect.name == "sqlite"
        if form is float or (form is bool and native):
            # It lets pass what is of this form, and nothing else; what was read is that.
            from_python, bind = bind, None
        text = bind is _shown or (bind is None and form in _WRITTEN)
        return cls(column, presence, form, convert, from_python, bind, is_plain=plain, is_text=text)

    @property
    def is_json(self) -> bool:
        """Whether the column holds JSON, whose values are handed on as text."""
        return self.form is msgspec.Raw

    @property
    def field(self) -> tuple[Any, Any]:
        """What JSON is read as, and what stands where it says nothing of the column."""
        form = self.form
        if self.column.nullable and not self.is_json and form is not Any:
            form |= None
        if self.presence is Presence.REQUIRED:
            return form, msgspec.NODEFAULT
        if self.presence is Presence.NULL:
            return form, None
        return form if form is Any else form | msgspec.UnsetType, ABSENT


class Unfit(Exception):  # noqa: N818 - named for what happened
    """Say that a column does not take a value, and which one of many; never the value.

    Args:
        column: the column.
        place: the place of the value, from 0.
    """

    def __init__(self, column: ColumnForm, place: int) -> None:
        super().__init__(f"column {column.column.name!r} does not take its value")
        self.place = place


def converted(
    columns: Sequence[ColumnForm],
    converts: Sequence[Convert | None],
    rows: list[tuple[Any, ...]],
) -> list[tuple[Any, ...]]:
    """Convert the values of rows, column by column.

    Raises:
        Unfit: one cannot be converted.
    """
    if not any(converts):
        return rows
    done: list[Any] = []
    for column, convert, values in zip(columns, converts, zip(*rows, strict=True), strict=False):
        done.append(values if convert is None else _all_converted(column, convert, values))
    return list(zip(*done, strict=True))


def _all_converted(column: ColumnForm, convert: Convert, values: Sequence[Any]) -> list[Any]:
    done: list[Any] = []
    try:
        done.extend(map(convert, values))
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise Unfit(column, len(done)) from error
    return done


def _presence(column: Column[Any]) -> Presence:
    numbered = column.table.autoincrement_column is column
    if column.default is not None or column.server_default is not None or numbered:
        return Presence.DEFAULT
    return Presence.NULL if column.nullable else Presence.REQUIRED


def _form(kind: types.TypeEngine[Any]) -> Any:
    if isinstance(kind, Choice):
        return str
    if isinstance(kind, types.TypeDecorator) and not isinstance(kind, Interval):
        return Any
    try:
        form = kind.python_type
    except NotImplementedError:
        return Any
    return form if form in _FORMS else Any


def _json_read(kind: types.JSON) -> Convert:
    """Pass JSON on as text."""
    null = None if kind.none_as_null else "null"

    def text(value: Any) -> str | None:
        if value is None:
            return None
        read = str(value, "utf-8")
        return read if read != "null" else null

    return text


def _json_written(kind: types.JSON, dumps: Convert) -> Convert:
    """Write a value of Python's as JSON; bytes, which have no JSON form, are JSON already."""

    def text(value: Any) -> str | None:
        if value is ABSENT or (value is None and kind.none_as_null):
            return None
        if isinstance(value, bytes):
            return value.decode()
        written: str = dumps(value)
        return written

    return text


def _shown(value: Any) -> str | None:
    return None if value is None else str(value)


def _in_utc(value: Any) -> Any:
    """Write a moment without its zone, as a column keeps it that has none."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value
