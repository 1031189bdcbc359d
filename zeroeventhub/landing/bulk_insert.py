"""Insert many rows at once, the quickest way that a database's driver has."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    AdaptedConnection,
    Connection,
    Dialect,
    Insert,
    Table,
    Text,
    bindparam,
    cast,
    insert,
)
from sqlalchemy.exc import DBAPIError

from zeroeventhub.landing.column_form import ColumnForm, converted
from zeroeventhub.landing.table_form import TableForm, table_form

__all__ = ["Batch", "bind", "insert_batch", "insert_columns"]

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
        _copy(connection, batch)
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
    return cast(text, column.type) if dialect.name == "postgresql" else text


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


_CSV = r" (FORMAT csv, NULL 'null', ESCAPE E'\\', ENCODING 'UTF8')"


def _copy(connection: Connection, batch: Batch) -> None:
    """Insert rows by PostgreSQL's COPY, through psycopg.

    Args:
        connection: in the transaction that the rows are to be part of.
        batch: the rows.
    """
    dialect, (_, _, rows, csv) = connection.dialect, batch
    statement = _copy_statement(batch.forms, dialect) + ("" if csv is None else _CSV)
    if not connection.in_transaction():
        connection.begin()  # what goes around SQLAlchemy would not begin it
    try:
        driver: Any = connection.connection.dbapi_connection
        if isinstance(driver, AdaptedConnection):
            driver.run_async(lambda own: _copy_async(own, statement, rows, csv))
        else:
            _copy_sync(driver, statement, rows, csv)
    except dialect.loaded_dbapi.Error as error:
        raise DBAPIError.instance(
            statement, None, error, dialect.loaded_dbapi.Error, dialect=dialect
        ) from error


@lru_cache(maxsize=64)
def _copy_statement(chosen: tuple[ColumnForm, ...], dialect: Dialect) -> str:
    quoted = dialect.identifier_preparer
    names = ", ".join(quoted.format_column(form.column) for form in chosen)
    return f"COPY {quoted.format_table(chosen[0].column.table)} ({names}) FROM STDIN"


def _copy_sync(driver: Any, statement: str, rows: _Rows, csv: bytes | None) -> None:
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        if csv is not None:
            copy.write(csv)
            return
        for row in rows:
            copy.write_row(row)


async def _copy_async(driver: Any, statement: str, rows: _Rows, csv: bytes | None) -> None:
    async with driver.cursor() as cursor, cursor.copy(statement) as copy:
        if csv is not None:
            await copy.write(csv)
            return
        for row in rows:
            await copy.write_row(row)
