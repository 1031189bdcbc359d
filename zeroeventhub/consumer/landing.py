"""Insert events into tables, a page at a time: into the caller's columns, or one row an event."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    Table,
    Text,
    func,
    inspect,
    select,
)
from sqlalchemy.schema import CreateTable

from zeroeventhub.databases.bulk_insert import (
    ABSENT,
    Batch,
    ColumnForm,
    TableForm,
    Unfit,
    bind,
    converted,
    insert_batch,
    insert_columns,
    table_form,
)
from zeroeventhub.databases.statements import document, fine_moment
from zeroeventhub.errors import ConfigurationError, ProtocolError
from zeroeventhub.protocol import Event
from zeroeventhub.wire.cloud_event import event_id, event_key, event_time, event_type
from zeroeventhub.wire.ndjson import PageEvents

__all__ = ["LandingTable", "insert_events", "prepare_rows"]

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
    batches = events.prepared.get(form) if isinstance(events, PageEvents) and not row else None
    for batch in batches or _batches(form, table, events, row):
        insert_batch(connection, form, batch)


def prepare_rows(form: TableForm, events: PageEvents) -> None:
    """Make the rows of a page before they are asked for; where one does not fit, nothing."""
    with suppress(ProtocolError):
        events.prepared[form] = list(_batches(form, form.table, events, None))


def _batches(
    form: TableForm,
    table: Table,
    events: Sequence[Event],
    row: Callable[[Event], Mapping[str, Any]] | None,
) -> Iterator[Batch]:
    """Yield rows as the database's driver takes them, in runs that leave out the same columns."""
    rows = _read(form, table, events) if row is None else _made(form, table, events, row)
    for first, forms, run in _alike(form, rows):
        try:
            converts = [one.from_json if row is None else one.from_python for one in forms]
            values = converted(forms, converts, run)
            yield bind(form, forms, values, are_exact=row is None)
        except Unfit as error:
            number = first + error.place
            raise _refusal(table, number, str(error), is_made=row is not None) from None


def _read(form: TableForm, table: Table, events: Sequence[Event]) -> _Rows:
    """Read the rows that the data of events has."""
    if isinstance(events, PageEvents) and (found := form.read_all(events)) is not None:
        return found
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


def _alike(form: TableForm, rows: _Rows) -> Iterator[tuple[int, tuple[ColumnForm, ...], _Rows]]:
    """Yield runs of rows that leave out the same columns: their number, columns and values."""
    every, optional, first = tuple(form.columns.values()), form.optional, 1
    for run in _runs(rows, optional):
        absent = {place for place in optional if run[0][place] is ABSENT}
        if absent:
            present = [place for place in range(len(every)) if place not in absent]
            forms = tuple(every[place] for place in present)
            yield first, forms, [tuple(row[place] for place in present) for row in run]
        else:
            yield first, every, run
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


class LandingTable:
    """Keep the events of a feed in a table of this shape.

    The columns are partition, arrival (1, 2, 3 … within the partition), id, type, time, key and
    data. The four before data are taken from CloudEvents, and are NULL for any other event.

    Args:
        name: the table's name, with its schema and a dot before it if it has one.
    """

    def __init__(self, name: str) -> None:
        schema, _, table = name.rpartition(".")
        self.table = Table(
            table,
            MetaData(),
            Column("partition", Integer, primary_key=True, autoincrement=False),
            # A number that only one transaction at a time can give: it has moved the cursor.
            Column("arrival", BigInteger, primary_key=True, autoincrement=False),
            Column("id", Text),
            Column("type", Text),
            Column("time", fine_moment()),
            Column("key", Text),
            Column("data", document(), nullable=False),
            schema=schema or None,
        )

    def exists(self, connection: Connection) -> bool:
        """Return whether there is a table of this name."""
        return inspect(connection).has_table(self.table.name, schema=self.table.schema)

    def create(self, connection: Connection) -> None:
        """Create the table, or check that the one that is there has its columns.

        Raises:
            ConfigurationError: a table of this name is there, of another shape.
        """
        connection.execute(CreateTable(self.table, if_not_exists=True))
        inspector = inspect(connection)
        there = {
            found["name"]
            for found in inspector.get_columns(self.table.name, schema=self.table.schema)
        }
        if missing := [column.name for column in self.table.c if column.name not in there]:
            raise ConfigurationError(
                f"Table {self.table.fullname!r} is there already and has no column "
                f"{', '.join(missing)}: choose another name."
            )

    def land(self, connection: Connection, partition: int, events: Sequence[Event]) -> None:
        """Insert events after those that have arrived in their partition.

        Args:
            connection: in a transaction that has moved the partition's cursor already, which
                keeps every other process of this consumer waiting.
            partition: where the events come from.
            events: in their order.
        """
        columns = self.table.c
        arrived = connection.scalar(
            select(func.max(columns.arrival)).where(columns.partition == partition)
        )
        insert_columns(
            connection,
            self.table,
            {
                "partition": [partition] * len(events),
                "arrival": range((arrived or 0) + 1, (arrived or 0) + len(events) + 1),
                "id": [event_id(event) for event in events],
                "type": [event_type(event) for event in events],
                "time": [event_time(event) for event in events],
                "key": [event_key(event) for event in events],
                "data": [event.raw.decode() for event in events],
            },
        )
