"""Insert many rows at once: how columns take their values, and the quickest way of each driver."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, auto
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec
from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Dialect,
    Insert,
    Interval,
    Table,
    Text,
    bindparam,
    insert,
    types,
)
from sqlalchemy import Enum as Choice

from zeroeventhub.databases import database_of
from zeroeventhub.wire.ndjson import PageEvents

__all__ = [
    "ABSENT",
    "Batch",
    "ColumnForm",
    "Presence",
    "TableForm",
    "Unfit",
    "bind",
    "converted",
    "insert_batch",
    "insert_columns",
    "table_form",
]

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
        database = database_of(dialect)
        moment = isinstance(kind, DateTime) and not (kind.timezone and database.keeps_zones)
        convert = _in_utc if moment else None
        plain = not kind._has_bind_expression  # noqa: SLF001 - nothing public tells
        form, bind = _form(column.type), kind.bind_processor(dialect)
        if bind is None and form in _SHOWN and database.copies(dialect):
            bind = _shown
        from_python = convert
        native = dialect.supports_native_boolean or database.takes_booleans
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


_values = msgspec.structs.astuple


class TableForm:
    """Know the columns of a table that rows may have values for.

    Args:
        table: the table.
        dialect: of the database that has it.

    Attributes:
        table: the table.
        columns: by name; without those that the database computes.
        optional: the places of those with a default, which a row may leave out.
        model: what the data of an event is decoded as, with a field a column.
        is_copied: whether the database has a quicker way to insert rows than statements.
    """

    def __init__(self, table: Table, dialect: Dialect) -> None:
        self.table = table
        self.columns: Mapping[str, ColumnForm] = {
            column.name: ColumnForm.of(column, dialect)
            for column in table.columns
            if column.computed is None
        }
        forms = tuple(self.columns.values())
        self.optional = [
            place for place, form in enumerate(forms) if form.presence is Presence.DEFAULT
        ]
        fields = [(f"column_{place}", *form.field) for place, form in enumerate(forms)]
        names = {field[0]: str(name) for field, name in zip(fields, self.columns, strict=True)}
        self.model = msgspec.defstruct("Row", fields, rename=names, kw_only=True, gc=False)
        self.is_copied = database_of(dialect).copies(dialect)
        self._decode = msgspec.json.Decoder(self.model).decode
        required = any(form.presence is Presence.REQUIRED for form in forms)
        self._nothing = () if required else msgspec.structs.astuple(self.model())

    def read_all(self, events: PageEvents) -> list[tuple[Any, ...]] | None:
        """Read the rows of a page in one call; None where one event does not fit."""
        values = events.decoded(self.model)
        rows = None if values is None else list(map(_values, values))
        return None if rows is None or self._nothing in rows else rows

    def read(self, raw: bytes) -> tuple[Any, ...]:
        """Read the values of a row from JSON.

        Raises:
            ValueError: it is no object, a value is of another form than its column, or there is
                none for a column that needs one; the text says so without the value.
        """
        row = _values(self._decode(raw))
        if (
            self._nothing
            and row == self._nothing
            and not self.columns.keys() & msgspec.json.decode(raw).keys()
        ):
            raise ValueError("it has no key that is a column")
        return row

    def take(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Take the values of a row that a program has made.

        Raises:
            ValueError: it has a key that is no column, or no value for a column that needs one.
        """
        if not row:
            raise ValueError("it has no value")
        if unknown := row.keys() - self.columns.keys():
            raise ValueError(f"{', '.join(map(repr, sorted(map(str, unknown))))} is no column")
        values = tuple(
            row.get(name, None if _may_be_null(form) else ABSENT)
            for name, form in self.columns.items()
        )
        for form, value in zip(self.columns.values(), values, strict=True):
            if value is ABSENT and form.presence is Presence.REQUIRED:
                raise ValueError(f"column {form.column.name!r} needs a value")
        return values


def _may_be_null(form: ColumnForm) -> bool:
    return form.presence is Presence.NULL and not form.is_json


@lru_cache(maxsize=64)
def table_form(table: Table, dialect: Dialect) -> TableForm:
    """Return what a table of a database takes; it is found out once."""
    return TableForm(table, dialect)


_Rows = list[tuple[Any, ...]]


class Batch(NamedTuple):
    """Hold rows that have values for the same columns.

    Attributes:
        forms: of these columns.
        values: rows of values as SQLAlchemy takes them; JSON as text.
        rows: the same as the database's driver takes them.
        csv: the same as PostgreSQL's COPY takes them, where they could be written so.
    """

    forms: tuple[ColumnForm, ...]
    values: _Rows
    rows: _Rows
    csv: bytes | None


def insert_columns(
    connection: Connection, table: Table, columns: Mapping[str, Sequence[Any]]
) -> None:
    """Insert rows that are given column by column.

    Args:
        connection: in the transaction that the rows are to be part of.
        table: where to.
        columns: by name, the values of all rows, as SQLAlchemy takes them; JSON as text.

    Raises:
        Unfit: a column does not take a value.
        DBAPIError: the database does not take a row.
    """
    form = table_form(table, connection.dialect)
    forms = tuple(form.columns[name] for name in columns)
    values = list(zip(*columns.values(), strict=True))
    insert_batch(connection, form, bind(form, forms, values, are_exact=False))


def bind(
    form: TableForm, forms: tuple[ColumnForm, ...], values: _Rows, *, are_exact: bool
) -> Batch:
    """Make of values what the database's driver takes.

    Args:
        form: of the table.
        forms: of the columns that there are values for.
        values: rows of values as SQLAlchemy takes them; JSON as text.
        are_exact: whether each is of the form of its column, as if it was read from JSON.

    Raises:
        Unfit: a column does not take a value.
    """
    rows = converted(forms, [one.bind for one in forms], values)
    copies = are_exact and form.is_copied and all(one.is_text for one in forms)
    return Batch(forms, values, rows, _csv(rows) if copies and rows else None)


def insert_batch(connection: Connection, form: TableForm, batch: Batch) -> None:
    """Insert rows.

    Args:
        connection: in the transaction that they are to be part of.
        form: of the table.
        batch: the rows.

    Raises:
        DBAPIError: the database does not take a row.
    """
    if not batch.rows:
        return
    dialect, chosen = connection.dialect, batch.forms
    left_out = [one for one in form.columns.values() if one not in chosen]
    is_complete = all(one.column.default is None for one in left_out)
    # Statements that are written out name the table as it was declared.
    is_complete &= not connection.get_execution_options().get("schema_translate_map")
    if is_complete and form.is_copied and all(one.is_plain for one in chosen):
        columns = [one.column for one in chosen]
        database_of(dialect).copy(connection, columns, batch.rows, batch.csv)
    elif is_complete and dialect.positional:
        text, order = _text(chosen, dialect)
        rows = batch.rows
        if order != tuple(range(len(chosen))):
            rows = [tuple(row[index] for index in order) for row in rows]
        connection.exec_driver_sql(text, rows)
    else:
        # Parameters by their names, or defaults that SQLAlchemy knows.
        names = [one.column.key for one in chosen]
        each = [dict(zip(names, row, strict=True)) for row in batch.values]
        connection.execute(_statement(chosen, dialect), each)


def _statement(chosen: Sequence[ColumnForm], dialect: Dialect) -> Insert:
    table = chosen[0].column.table
    values = {form.column.key: _parameter(form, dialect) for form in chosen}
    return insert(table).values(values).inline()


def _parameter(form: ColumnForm, dialect: Dialect) -> Any:
    column = form.column
    if not form.is_json:
        return bindparam(column.key, type_=column.type)
    text = bindparam(column.key, type_=Text)
    return database_of(dialect).json_parameter(text, column.type)


@lru_cache(maxsize=64)
def _text(chosen: tuple[ColumnForm, ...], dialect: Dialect) -> tuple[str, tuple[int, ...]]:
    """Return the statement, and in which order it takes values: that of the table's columns."""
    compiled: Any = _statement(chosen, dialect).compile(dialect=dialect)
    names = [form.column.key for form in chosen]
    return str(compiled), tuple(names.index(name) for name in compiled.positiontup)


def _csv(rows: _Rows) -> bytes:
    """Write rows as CSV, all in one call.

    Without its brackets, a row of JSON is one of CSV, in which a backslash stands before quotes and
    before itself. What else JSON escapes is put in its place.
    """
    lines: bytes = _encode_lines(rows)[1:-2].replace(b"]\n[", b"\n")
    if b"\\" in lines and b"\\" in lines.replace(rb"\\", b"").replace(rb"\"", b""):
        return _ESCAPED.sub(_unescaped, lines)
    return lines


_encode_lines = msgspec.json.Encoder().encode_lines

_ESCAPED = re.compile(rb"\\(?:[bfnrt\"\\]|u00[0-9a-f]{2})")


def _unescaped(found: re.Match[bytes]) -> bytes:
    text = found[0]
    if text in {rb"\"", rb"\\"}:
        return text
    character: str = msgspec.json.decode(b'"%b"' % text)
    return character.encode()
