"""Insert many rows at once, the quickest way that a database's driver has."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

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
from zeroeventhub.landing.table_form import table_form

__all__ = ["insert_columns"]

_Rows = list[tuple[Any, ...]]


def insert_columns(
    connection: Connection,
    table: Table,
    columns: Mapping[str, Sequence[Any]],
    *,
    are_exact: bool = False,
) -> None:
    """Insert rows that are given column by column.

    Args:
        connection: in the transaction that the rows are to be part of.
        table: where to.
        columns: by name, the values of all rows, as SQLAlchemy takes them; JSON as text.
        are_exact: whether each is of the form of its column, as if it was read from JSON.

    Raises:
        Unfit: a column does not take a value.
        DBAPIError: the database does not take a row.
    """
    dialect = connection.dialect
    forms = table_form(table, dialect).columns
    chosen = tuple(form for name, form in forms.items() if name in columns)
    left_out = [form for name, form in forms.items() if name not in columns]
    bound = [converted(form, form.bind, columns[form.column.name]) for form in chosen]
    rows: _Rows = list(zip(*bound, strict=True))
    if not rows:
        return
    is_complete = all(form.column.default is None for form in left_out)
    plain = all(form.is_plain for form in chosen)
    # Statements that are written out name the table as it was declared.
    is_complete &= not connection.get_execution_options().get("schema_translate_map")
    if is_complete and plain and dialect.name == "postgresql" and dialect.driver == "psycopg":
        as_text = are_exact and all(form.is_text for form in chosen)
        _copy(connection, chosen, rows, _csv(rows) if as_text else None)
    elif is_complete and dialect.positional:
        connection.exec_driver_sql(_text(chosen, dialect), rows)
    else:
        # Parameters by their names, or defaults that SQLAlchemy knows.
        named = {form.column.key: columns[form.column.name] for form in chosen}
        each = [dict(zip(named, row, strict=True)) for row in zip(*named.values(), strict=True)]
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
def _text(chosen: tuple[ColumnForm, ...], dialect: Dialect) -> str:
    return str(_statement(chosen, dialect).compile(dialect=dialect))


def _csv(rows: _Rows) -> bytes | None:
    """Write rows as CSV; None where that takes more than to write them as JSON.

    Without its brackets, a row of JSON is one of CSV, in which a backslash stands before quotes and
    before itself; as long as nothing else had to be escaped.
    """
    lines: bytes = _encode_lines(rows)
    if b"\\" in lines and b"\\" in lines.replace(rb"\\", b"").replace(rb"\"", b""):
        return None
    return lines[1:-2].replace(b"]\n[", b"\n")


_encode_lines = msgspec.json.Encoder().encode_lines

_CSV = r" (FORMAT csv, NULL 'null', ESCAPE E'\\', ENCODING 'UTF8')"


def _copy(
    connection: Connection, chosen: Sequence[ColumnForm], rows: _Rows, csv: bytes | None
) -> None:
    """Insert rows by PostgreSQL's COPY, through psycopg.

    Args:
        connection: in the transaction that the rows are to be part of.
        chosen: the columns.
        rows: of values as psycopg takes them.
        csv: the same rows as CSV, where they have been written so.
    """
    dialect = connection.dialect
    quoted = dialect.identifier_preparer
    names = ", ".join(quoted.format_column(form.column) for form in chosen)
    table = quoted.format_table(chosen[0].column.table)
    statement = f"COPY {table} ({names}) FROM STDIN{'' if csv is None else _CSV}"
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
