"""Rows of events, for any table."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Table

from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.landing.bulk_insert import insert_columns
from zeroeventhub.landing.column_form import ABSENT, Unfit, converted
from zeroeventhub.landing.table_form import TableForm, table_form
from zeroeventhub.protocol import Event

__all__ = ["insert_events"]


def insert_events(
    connection: Connection,
    table: Table,
    events: Sequence[Event],
    row: Callable[[Event], Mapping[str, Any]] | None = None,
) -> None:
    """Insert a row for each event, in their order.

    Args:
        connection: in the transaction that the rows are to be part of.
        table: where to; its columns say how values are bound.
        events: the events of a page.
        row: makes a row of an event, by the names of columns; by default, what the event's data
            has under these names.

    Raises:
        ProtocolError: the data of an event does not fit the table.
        ConfigurationError: a row that `row` has made does not.
    """
    form = table_form(table, connection.dialect)
    rows: list[tuple[Any, ...]] = []
    for number, event in enumerate(events, start=1):
        made = None if row is None else row(event)
        try:
            rows.append(form.read(event.raw) if made is None else form.take(made))
        except (ValueError, RecursionError) as error:
            raise _refusal(table, number, str(error), is_made=made is not None) from None
    for first, columns in _alike(form, rows):
        try:
            for name, values in columns.items():
                column = form.columns[name]
                columns[name] = converted(
                    column, column.from_json if row is None else column.from_python, values
                )
            insert_columns(connection, table, columns)
        except Unfit as error:
            number = first + error.place
            raise _refusal(table, number, str(error), is_made=row is not None) from None


def _refusal(
    table: Table, number: int, reason: str, *, is_made: bool
) -> ProtocolError | ConfigurationError:
    """Say which event does not fit, and why, without anything of its data."""
    if is_made:
        return ConfigurationError(
            f"The row made of event {number} of the page does not fit table {table.fullname!r}: "
            f"{reason}."
        )
    return ProtocolError(
        f"Event {number} of the page does not fit table {table.fullname!r}: {reason}."
    )


def _alike(
    form: TableForm, rows: Sequence[tuple[Any, ...]]
) -> Iterator[tuple[int, dict[str, Sequence[Any]]]]:
    """Yield runs of rows that leave out the same columns: where they begin, and their columns."""

    def absent(row: tuple[Any, ...]) -> list[bool]:
        return [row[place] is ABSENT for place in form.optional]

    names = tuple(form.columns)
    if rows and not form.optional:
        yield 1, dict(zip(names, zip(*rows, strict=True), strict=True))
        return
    first = 1
    for left_out, run in groupby(rows, absent):
        alike = list(run)
        columns: dict[str, Sequence[Any]] = dict(zip(names, zip(*alike, strict=True), strict=True))
        for place, is_absent in zip(form.optional, left_out, strict=True):
            if is_absent:
                del columns[names[place]]
        yield first, columns
        first += len(alike)
