"""Insert events into the columns of a caller's table, or into a table of a fixed shape."""

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
    ColumnForm,
    Insertion,
    TableForm,
    Unfit,
    converted,
    have_zones,
    insert_columns,
    insertion,
    is_translated,
    table_form,
)
from zeroeventhub.databases.statements import document, exact, fine_moment
from zeroeventhub.errors import ConfigurationError, ProtocolError, ZeroEventHubError
from zeroeventhub.protocol import Event
from zeroeventhub.wire.cloud_event import event_id, event_key, event_time, event_type
from zeroeventhub.wire.ndjson import PageEvents

_Rows = list[tuple[Any, ...]]


def insert_events(
    connection: Connection,
    table: Table,
    events: Sequence[Event],
    row: Callable[[Event], Mapping[str, Any]] | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """Insert a row for each event, in order.

    `row` makes an event's row, by the names of columns; by default, each column gets what the
    event's data has under its name. `meanwhile` is called at each statement, when the database gets
    its rows; it returns at once.

    Raises:
        ProtocolError: the data of an event does not fit the table.
        ConfigurationError: a row that `row` has made does not fit it.
    """
    form, by_name = table_form(table, connection.dialect), is_translated(connection)
    insertions = None
    if isinstance(events, PageEvents) and row is None and not by_name:
        insertions = events.prepared.get(form)
    for insert in insertions or _insertions(form, events, row, by_name=by_name):
        insert(connection, meanwhile)


def prepare_rows(form: TableForm, events: PageEvents) -> None:
    """Make the rows of a page ahead of time; if one does not fit, make none."""
    with suppress(ProtocolError):
        events.prepared[form] = list(_insertions(form, events))


def _insertions(
    form: TableForm,
    events: Sequence[Event],
    row: Callable[[Event], Mapping[str, Any]] | None = None,
    *,
    by_name: bool = False,
) -> Iterator[Insertion]:
    """Yield what inserts rows, in runs that leave out the same columns."""
    is_made = row is not None
    rows = _read(form, events) if row is None else _made(form, events, row)
    in_utc = bool(form.in_session_zone)
    if in_utc and is_made:
        in_utc = have_zones(row[place] for row in rows for place in form.in_session_zone)
    for first, forms, run in _alike(form, rows):
        try:
            converts = [one.from_python if is_made else one.from_json for one in forms]
            values = converted(forms, converts, run)
            yield insertion(
                form, forms, values, are_exact=not is_made, by_name=by_name, in_utc=in_utc
            )
        except Unfit as error:
            raise _refusal(form.table, first + error.place, str(error), is_made=is_made) from None


def _read(form: TableForm, events: Sequence[Event]) -> _Rows:
    """Read rows from the data of events."""
    if isinstance(events, PageEvents) and (found := form.read_all(events)) is not None:
        return found
    rows: _Rows = []
    read, append = form.read, rows.append
    try:
        for event in events:
            append(read(event.raw))
    except (ValueError, RecursionError) as error:
        raise _refusal(form.table, len(rows) + 1, str(error), is_made=False) from None
    return rows


def _made(
    form: TableForm, events: Sequence[Event], row: Callable[[Event], Mapping[str, Any]]
) -> _Rows:
    """Make rows by calling `row` for each event."""
    rows: _Rows = []
    for number, event in enumerate(events, start=1):
        made = row(event)
        try:
            rows.append(form.take(made))
        except (ValueError, RecursionError) as error:
            raise _refusal(form.table, number, str(error), is_made=True) from None
    return rows


def _refusal(table: Table, number: int, reason: str, *, is_made: bool) -> ZeroEventHubError:
    """Describe which event does not fit, and why, without its data."""
    subject = "The row made of event" if is_made else "Event"
    text = f"{subject} {number} of the page does not fit table {table.fullname!r}: {reason}."
    return ConfigurationError(text) if is_made else ProtocolError(text)


def _alike(form: TableForm, rows: _Rows) -> Iterator[tuple[int, tuple[ColumnForm, ...], _Rows]]:
    """Yield runs of rows that leave out the same columns: first number, columns, and values."""
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
    """Divide rows where the set of columns that are left out changes."""
    # Usually all rows leave out the same columns, which a check by column finds quickly.
    if all(len({row[place] is ABSENT for row in rows}) == 1 for place in optional):
        return [rows] if rows else []
    return (
        list(run)
        for _, run in groupby(rows, lambda row: [row[place] is ABSENT for place in optional])
    )


class LandingTable:
    """A table of a fixed shape for the events of a feed.

    The columns are partition, arrival (1, 2, 3 … within the partition), id, type, time, key and
    data. id, type, time and key are taken from CloudEvents, and are NULL for any other event.

    Args:
        name: the table's name; `schema.table` if it is in a schema.
    """

    def __init__(self, name: str) -> None:
        schema, _, table = name.rpartition(".")
        self.table = Table(
            table,
            MetaData(),
            Column("partition", Integer, primary_key=True, autoincrement=False),
            # Unique, as only one transaction at a time has moved the cursor.
            Column("arrival", BigInteger, primary_key=True, autoincrement=False),
            Column("id", exact(Text())),
            Column("type", exact(Text())),
            Column("time", fine_moment()),
            Column("key", exact(Text())),
            Column("data", document(), nullable=False),
            schema=schema or None,
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
        )

    def exists(self, connection: Connection) -> bool:
        """Return whether a table of this name exists."""
        return inspect(connection).has_table(self.table.name, schema=self.table.schema)

    def has_events(self, connection: Connection) -> bool:
        """Return whether events have landed in the table, which exists."""
        return connection.execute(select(self.table.c.arrival).limit(1)).first() is not None

    def create(self, connection: Connection) -> None:
        """Create the table, or check that an existing one has its columns."""
        connection.execute(CreateTable(self.table, if_not_exists=True))
        columns = inspect(connection).get_columns(self.table.name, schema=self.table.schema)
        existing = {column["name"] for column in columns}
        if missing := [column.name for column in self.table.c if column.name not in existing]:
            raise ConfigurationError(
                f"Table {self.table.fullname!r} exists already and has no column "
                f"{', '.join(missing)}: choose another name."
            )

    def land(self, connection: Connection, partition: int, events: Sequence[Event]) -> None:
        """Insert events after those that have arrived in their partition.

        The transaction must have moved the partition's cursor: every other process of this consumer
        then waits, so that arrival numbers are unique.
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
