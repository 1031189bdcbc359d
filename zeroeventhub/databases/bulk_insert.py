"""Insert many rows at once, in the quickest way of each driver."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from typing import Annotated, Any, TypeAlias
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
    types,
)
from sqlalchemy import Enum as Choice

from zeroeventhub.databases import database_of
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.wire.ndjson import PageEvents
from zeroeventhub.wire.new_events import encoder

ABSENT = msgspec.UNSET
"""Stands for a value that a row does not have."""

Convert: TypeAlias = Callable[[Any], Any]

_FORMS = {bool, int, float, str, Decimal, datetime, date, time, timedelta, bytes, UUID}
"""The Python types of columns as which JSON is decoded; for other columns it stays JSON's value."""

_SHOWN = {date, datetime, time, Decimal, UUID}
"""The types whose `str` PostgreSQL reads, which is quicker than psycopg's own conversion."""

_WRITTEN = {bool, int, float, str}
"""The types that PostgreSQL reads as JSON writes them."""

_BITS = {False: 0, True: 1}
"""The numbers that a database without booleans stores."""


@dataclass(frozen=True, eq=False)
class ColumnForm:
    """What is known of a column.

    Attributes:
        default: what stands for a missing value: None, ABSENT for the default of the column itself
            or NODEFAULT if the column needs a value.
        form: the type as which JSON is decoded; Raw for a column of JSON.
        from_json: makes a value of the column from decoded JSON; None if they are the same.
        from_python: makes it from a Python value; None if they are the same.
        bind: makes the driver's value from the column's; None if they are the same.
        is_plain: whether the database stores the driver's value without an expression.
        is_text: whether PostgreSQL reads values that were decoded from JSON as JSON writes them.
        in_session_zone: whether the database takes its times to be in the session's zone.
    """

    column: Column[Any]
    default: Any
    form: Any
    from_json: Convert | None
    from_python: Convert | None
    bind: Convert | None
    is_plain: bool
    is_text: bool = False
    in_session_zone: bool = False

    @classmethod
    def of(cls, column: Column[Any], dialect: Dialect) -> "ColumnForm":
        """Return the form of a column in a database."""
        default = _default(column)
        kind = column.type.dialect_impl(dialect)
        if isinstance(kind, types.JSON):
            # The serializer that the engine was made with, if any. SQLite would store NaN.
            dumps = getattr(dialect, "_json_serializer", None) or _dumps
            null = None if kind.none_as_null else "null"
            read: Convert | None = partial(_json_read, null=null)
            write: Convert | None = partial(_json_written, null=null, dumps=dumps)
            return cls(column, default, msgspec.Raw, read, write, None, is_plain=True, is_text=True)
        database = database_of(dialect)
        read = write = None
        if isinstance(kind, DateTime):
            has_zones = kind.timezone and database.keeps_zones
            read, write = (_of_utc, None) if has_zones else (_in_utc, _in_utc)
        item = kind.item_type if isinstance(kind, types.ARRAY) else None
        if isinstance(item, types.Numeric | types.Float):
            # JSON may have 2 beside 1.5, and psycopg takes no list of numbers of two types.
            read = partial(_each, float if isinstance(item, types.Float) else _decimal)
        plain = not kind._has_bind_expression  # noqa: SLF001 - no public attribute has it
        form, bind = _form(column.type), kind.bind_processor(dialect)
        if form is int:
            form = database.whole_number
        if form is Decimal and isinstance(kind, types.Numeric) and bind is not None:
            bind = _finite
        if bind is None and form in _SHOWN and database.copies(dialect):
            bind = _shown
        if isinstance(kind, types.Time) and not (kind.timezone and database.keeps_zones):
            form = Annotated[time, msgspec.Meta(tz=False)]  # its zone would be dropped
        if form in {float, bool} and isinstance(kind, types.TypeDecorator):
            form = Any  # a type of the host's stores it
        if form in {float, bool}:
            # It only checks the type, which decoding has done, and makes numbers of booleans.
            write, bind = bind, None
        text = bind is _shown or (bind is None and form in _WRITTEN)
        zone = database.in_session_zone(kind)
        return cls(
            column, default, form, read, write, bind, plain, is_text=text, in_session_zone=zone
        )

    @property
    def is_json(self) -> bool:
        """Whether the column holds JSON, whose values are passed on as text."""
        return self.form is msgspec.Raw

    @property
    def field(self) -> tuple[Any, Any]:
        """The type of a field as which JSON is decoded, and its default."""
        form = self.form
        if form is not Any:
            if self.column.nullable and not self.is_json:
                form |= None
            if self.default is ABSENT:
                form |= msgspec.UnsetType
        return form, self.default


_Rows: TypeAlias = list[tuple[Any, ...]]

Insertion: TypeAlias = Callable[[Connection, Callable[[], object]], object]
"""Inserts rows, and calls a function, which returns at once, when the database gets them."""


class Unfit(Exception):
    """Raised for a value that a column does not take, with the index of its row."""

    def __init__(self, column: ColumnForm, place: int) -> None:
        super().__init__(f"column {column.column.name!r} does not take its value")
        self.place = place


def converted(
    columns: Sequence[ColumnForm], converts: Sequence[Convert | None], rows: _Rows
) -> _Rows:
    """Convert the values of rows, column by column, or raise Unfit."""
    if not any(converts):
        return rows
    done: list[list[Any]] = []
    for column, convert, values in zip(columns, converts, zip(*rows, strict=True), strict=False):
        new: list[Any] = []
        try:
            new.extend(values if convert is None else map(convert, values))
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
            raise Unfit(column, len(new)) from error
        if len(new) < len(rows):  # a type of the host's has raised StopIteration, which ends `map`
            raise Unfit(column, len(new))
        done.append(new)
    return list(zip(*done, strict=True))


def _default(column: Column[Any]) -> Any:
    numbered = column.table.autoincrement_column is column
    if column.default is not None or column.server_default is not None or numbered:
        return ABSENT
    return None if column.nullable else msgspec.NODEFAULT


def _form(kind: types.TypeEngine[Any]) -> Any:
    if isinstance(kind, Choice):
        return str
    if isinstance(kind, types.TypeDecorator) and not isinstance(kind, Interval):
        return Any
    if isinstance(kind, types.Numeric) and not isinstance(kind, types.Float):
        return Decimal  # with all digits, also where Python is to read it as a float
    try:
        form = kind.python_type
    except NotImplementedError:
        return Any
    return form if form in _FORMS else Any


_dumps = partial(json.dumps, allow_nan=False)


def _json_read(value: Any, null: str | None) -> str | None:
    """Return decoded JSON as text; `null` stands for JSON's null."""
    read = None if value is None else str(value, "utf-8")
    return null if read == "null" else read


def _json_written(value: Any, null: str | None, dumps: Convert) -> str | None:
    """Return a Python value as JSON; bytes are JSON already, and `null` stands for None."""
    if value is None or value is ABSENT:
        return null if value is None else None
    written: str = value.decode() if isinstance(value, bytes) else dumps(value)
    return written


def _finite(value: Any) -> float | None:
    """Return a decimal as SQLite stores it, which makes NULL of NaN, and infinity of 1e400."""
    number = None if value is None else float(value)
    if number is not None and not math.isfinite(number):
        raise ValueError("a decimal is not a number that can be stored")
    return number


def _each(convert: Convert, value: Any) -> Any:
    """Convert the elements of an array, which may have several dimensions."""
    if isinstance(value, list):
        return [_each(convert, one) for one in value]
    return None if value is None else convert(value)


def _decimal(value: Any) -> Decimal:
    """Return a decoded number as a decimal, of the digits that Python shows of it."""
    return Decimal(str(value))


def _shown(value: Any) -> str | None:
    return None if value is None else str(value)


def _of_utc(value: Any) -> Any:
    """Take a timestamp without a zone to be in UTC, and not in the zone of the session."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


def _in_utc(value: Any) -> Any:
    """Convert a timestamp to UTC without a zone, for a column that stores none."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


_ODD = frozenset('"\\' + "".join(map(chr, range(32))))
"""Characters that no key has as which msgspec decodes a column."""


class TableForm:
    """The columns of a table that rows may have values for.

    Attributes:
        columns: the columns by name, without those that the database computes.
        optional: the indexes of the columns that a row may leave to the default of the database.
        in_session_zone: the indexes of the columns whose times are in the session's zone.
        model: the struct as which the data of an event is decoded, with a field per column.
        yields: as `Database.yields_at_each_row`.
    """

    def __init__(self, table: Table, dialect: Dialect) -> None:
        self.table = table
        self.dialect = dialect
        self.columns: Mapping[str, ColumnForm] = {
            column.name: ColumnForm.of(column, dialect)
            for column in table.columns
            if column.computed is None
        }
        if odd := [name for name in self.columns if set(name) & _ODD]:
            raise ConfigurationError(
                f"Rows cannot be inserted into table {table.fullname!r}, as the name of its column "
                f"{odd[0]!r} has a quotation mark, a backslash or a control character."
            )
        forms = tuple(self.columns.values())
        self.optional = [place for place, form in enumerate(forms) if form.default is ABSENT]
        fields = [(f"column_{place}", *form.field) for place, form in enumerate(forms)]
        names = {field[0]: str(name) for field, name in zip(fields, self.columns, strict=True)}
        self.model = msgspec.defstruct("Row", fields, rename=names, kw_only=True, gc=False)
        self.yields = database_of(dialect).yields_at_each_row
        self.in_session_zone = [place for place, form in enumerate(forms) if form.in_session_zone]
        self._decode = msgspec.json.Decoder(self.model).decode
        self._bits = [
            field[0]
            for field, form in zip(fields, forms, strict=True)
            if form.form is bool and not dialect.supports_native_boolean
        ]
        required = any(form.default is msgspec.NODEFAULT for form in forms)
        self._nothing = () if required else msgspec.structs.astuple(self.model())

    def read_all(self, events: PageEvents) -> list[tuple[Any, ...]] | None:
        """Decode the rows of a page in one call; None if an event does not fit."""
        values = events.decoded(self.model)
        rows = None if values is None else self._tuples(values)
        return None if rows is None or self._nothing in rows else rows

    def _tuples(self, values: list[Any]) -> list[tuple[Any, ...]]:
        for name in self._bits:  # here, as sqlite3 would look for an adapter of each boolean
            for row in values:
                value = getattr(row, name)
                setattr(row, name, _BITS.get(value, value))
        return list(map(msgspec.structs.astuple, values))

    def read(self, raw: bytes) -> tuple[Any, ...]:
        """Decode the values of a row from JSON.

        Raises:
            ValueError: it is not an object, a value is of another type than its column, or a value
                that a column needs is missing; the error's text does not have the value.
        """
        (row,) = self._tuples([self._decode(raw)])
        if (
            self._nothing
            and row == self._nothing
            and not self.columns.keys() & msgspec.json.decode(raw).keys()
        ):
            raise ValueError("it has no key that is a column")
        return row

    def take(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the values of a row that a program has made.

        Raises:
            ValueError: it is no dict, has a key that is not a column, or lacks a value that a
                column needs.
        """
        given: object = row
        if not isinstance(given, Mapping):
            raise ValueError(f"it is {type(given).__name__}, and no dict")  # noqa: TRY004 - as all others
        if not row:
            raise ValueError("it has no value")
        if unknown := row.keys() - self.columns.keys():
            raise ValueError(f"{', '.join(map(repr, sorted(map(str, unknown))))} is not a column")
        values = []
        for name, form in self.columns.items():
            # In a column of JSON, None is JSON's null, and a missing value is that of SQL.
            value = row.get(name, None if form.default is None and not form.is_json else ABSENT)
            if value is ABSENT and form.default is msgspec.NODEFAULT:
                raise ValueError(f"column {name!r} needs a value")
            values.append(value)
        return tuple(values)


@lru_cache(maxsize=64)
def table_form(table: Table, dialect: Dialect) -> TableForm:
    """Return the form of a table, made once."""
    if not isinstance(table, Table):
        raise ConfigurationError(
            "Rows are inserted into a Table of SQLAlchemy's: a mapped class has it as __table__."
        )
    return TableForm(table, dialect)


def insert_columns(
    connection: Connection,
    table: Table,
    columns: Mapping[str, Sequence[Any]],
    *,
    are_exact: bool = False,
) -> None:
    """Insert rows given by column name, as SQLAlchemy takes their values, but JSON as text.

    `are_exact` is that of `insertion`.

    Raises:
        Unfit: a column does not take a value.
        DBAPIError: the database does not take a row.
    """
    form = table_form(table, connection.dialect)
    names = sorted(columns, key=list(form.columns).index)
    forms = tuple(form.columns[name] for name in names)
    values = list(zip(*(columns[name] for name in names), strict=True))
    if values:
        by_name = is_translated(connection)
        insert = insertion(form, forms, values, are_exact=are_exact, by_name=by_name)
        insert(connection, lambda: None)


def have_zones(moments: Iterable[Any]) -> bool:
    """Return whether moments that a program gives have zones, so that they are written in UTC.

    Raises:
        ConfigurationError: some have one, and the others are those of the session.
    """
    found = {one.tzinfo is not None for one in moments if isinstance(one, datetime)}
    if len(found) > 1:
        raise ConfigurationError(
            "Give all moments for columns of TIMESTAMP a time zone, or none: those without are in "
            "the zone of the session, in which those with one cannot be written."
        )
    return True in found


def is_translated(connection: Connection) -> bool:
    """Return whether a connection names tables otherwise than they were declared."""
    return bool(connection.get_execution_options().get("schema_translate_map"))


def insertion(
    form: TableForm,
    forms: tuple[ColumnForm, ...],
    values: _Rows,
    *,
    are_exact: bool,
    by_name: bool = False,
    in_utc: bool = False,
) -> Insertion:
    """Return the function that inserts rows of values for some columns, at least one row.

    It raises DBAPIError if the database does not take a row, and keeps no value that it does not
    need, as rows are made while others are inserted.

    Args:
        form: the form of the table.
        forms: the forms of the columns.
        values: the rows as SQLAlchemy takes them, but JSON as text.
        are_exact: whether each value is of its column's type, as if it was decoded from JSON.
        by_name: whether SQLAlchemy makes the statement, as where it translates the table's name.
        in_utc: whether times are in UTC that the database takes to be in the session's zone.

    Raises:
        Unfit: a column does not take a value.
    """
    dialect, rows = form.dialect, converted(forms, [one.bind for one in forms], values)
    left_out = [one for one in form.columns.values() if one not in forms]
    # The text of a statement has no defaults that SQLAlchemy computes.
    by_name |= any(one.column.default is not None for one in left_out)
    database = database_of(dialect)
    if database.copies(dialect) and not by_name and all(one.is_plain for one in forms):
        copied = _csv(rows) if are_exact and all(one.is_text for one in forms) else rows
        columns = [one.column for one in forms]
        return lambda connection, meanwhile: database.copy(connection, columns, copied, meanwhile)
    run: Callable[..., object]
    if dialect.positional and not by_name:
        run = partial(Connection.exec_driver_sql, statement=_text(forms, dialect), parameters=rows)
    else:
        names = [one.column.key for one in forms]
        each = [dict(zip(names, row, strict=True)) for row in values]
        statement = insert_statement(forms, dialect)
        run = partial(Connection.execute, statement=statement, parameters=each)

    def execute(connection: Connection, meanwhile: Callable[[], object]) -> None:
        meanwhile()
        with database.as_published(connection) if in_utc else nullcontext():
            run(connection)

    return execute


@lru_cache(maxsize=64)
def insert_statement(
    chosen: tuple[ColumnForm, ...], dialect: Dialect, *, is_new: bool = False
) -> Insert:
    """Return a statement for values by the keys of columns, with JSON as text.

    If the row `is_new`, it is that of `Database.insert_new`.
    """
    table, database = chosen[0].column.table, database_of(dialect)
    values: dict[str, Any] = {}
    for form in chosen:
        key, kind = form.column.key, form.column.type
        values[key] = bindparam(key, type_=Text if form.is_json else kind)
        if form.is_json:
            values[key] = database.json_parameter(values[key], kind)
    statement = database.insert_new(table) if is_new else database.identity_insert(table)
    return statement.values(values).inline()


@lru_cache(maxsize=64)
def _text(chosen: tuple[ColumnForm, ...], dialect: Dialect) -> str:
    """Return the statement; like the rows, it has the values in the order of the table."""
    return str(insert_statement(chosen, dialect).compile(dialect=dialect))


def _csv(rows: _Rows) -> bytes:
    """Write rows as CSV.

    Without its brackets, a row of JSON is one of CSV in which a backslash escapes quotes and
    itself; JSON's other escapes are replaced by their characters.
    """
    # Split and joined, as `replace` searches twice.
    lines = b"\n".join(encoder.encode_lines(rows)[1:-2].split(b"]\n["))
    return lines if _is_csv(lines) else _ESCAPED.sub(_unescaped, lines)


# Possessive, so that it need not go back: in a sixth of the time.
_is_csv = re.compile(rb"[^\\]*+(?:\\[\"\\][^\\]*+)*+").fullmatch

_ESCAPED = re.compile(rb"\\(?:[bfnrt\"\\]|u00[0-9a-f]{2})")


def _unescaped(found: re.Match[bytes]) -> bytes:
    text = found[0]
    if text in {rb"\"", rb"\\"}:
        return text
    character: str = msgspec.json.decode(b'"%b"' % text)
    return character.encode()
