"""Rows of events, for any table."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Table

from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.landing.bulk_insert import insert_columns
from zeroeventhub.landing.column_form import ABSENT, Unfit, converted
from zeroeventhub.landing.table_form import TableForm, table_form
from zeroeventhub.protocol import Event

__all__ = ["insert_events"]

_Rows = list[tuple[Any, ...]]


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
    rows = _read(form, table, events) if row is None else _made(form, table, events, row)
    for first, columns in _alike(form, rows):
        try:
            for name, values in columns.items():
                column = form.columns[name]
                columns[name] = converted(
                    column, column.from_json if row is None else column.from_python, values
                )
            insert_columns(connection, table, columns, are_exact=row is None)
        except Unfit as error:
            number = first + error.place
            raise _refusal(table, number, str(error), is_made=row is not None) from None


def _read(form: TableForm, table: Table, events: Sequence[Event]) -> _Rows:
    """Read the rows that the data of events has."""
    rows: _Rows = []
    read, append = form.read, rows.append
    try:
        for event in events:
            append(read(event.raw))
    except (ValueError, RecursionError) as error:
        raise _refusal(table, len(rows) + 1, str(error), is_made=False) from None
    return rows


def _made(
    form: TableForm,
    table: Table,
    events: Sequence[Event],
    row: Callable[[Event], Mapping[str, Any]],
) -> _Rows:
    """Make rows of events."""
    rows: _Rows = []
    for number, event in enumerate(events, start=1):
        made = row(event)
        try:
            rows.append(form.take(made))
        except (ValueError, RecursionError) as error:
            raise _refusal(table, number, str(error), is_made=True) from None
    return rows


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


def _alike(form: TableForm, rows: _Rows) -> Iterator[tuple[int, dict[str, Sequence[Any]]]]:
    """Yield runs of rows that leave out the same columns: where they begin, and their columns."""
    names, optional, first = tuple(form.columns), form.optional, 1
    for run in _runs(rows, optional):
        columns: dict[str, Sequence[Any]] = dict(zip(names, zip(*run, strict=True), strict=True))
        for place in optional:
            if run[0][place] is ABSENT:
                del columns[names[place]]
        yield first, columns
        first += len(run)


def _runs(rows: _Rows, optional: Sequence[int]) -> Iterable[_Rows]:
    """Divide rows wherever another column is left out than before."""
    # Mostly they are all alike, which is quickly seen column by column.
    if all(len({row[place] is ABSENT for row in rows}) == 1 for place in optional):
        return [rows] if rows else []
    return (
        list(run)
        for _, run in groupby(rows, lambda row: [row[place] is ABSENT for place in optional])
    )
