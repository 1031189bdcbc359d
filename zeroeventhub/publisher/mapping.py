"""Which columns of a row make the event's data, its CloudEvents envelope and its headers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Row, Table, func, literal_column
from sqlalchemy import types as sql
from sqlalchemy.engine.default import StrCompileDialect
from sqlalchemy.exc import DataError

from zeroeventhub.databases.json_form import (
    OWN_ATTRIBUTES,
    JsonForm,
    data_text,
    envelope_members,
    json_form,
    object_text,
)
from zeroeventhub.databases.statements import as_utc
from zeroeventhub.errors import ConfigurationError, FeedFailure
from zeroeventhub.protocol import Event
from zeroeventhub.publisher.cursor import digest

Expression = ColumnElement[Any] | Any
"""A column by name, a Column, a mapped attribute of an ORM class, or a SQL expression."""

Data = Expression | Sequence[Expression] | Mapping[str, Expression]
"""One column, or a list of columns, or expressions by name."""

_EMPTY = (None, "")
"""The values for which a CloudEvent omits an attribute."""

UNREADABLE = (
    *(AttributeError, TypeError, ValueError, LookupError, OverflowError, RecursionError),
    *(msgspec.MsgspecError, DataError),
)
"""What a driver, a type of the host's or msgspec raises for a value that has no form: an
AttributeError, for instance, for a timestamp 0000-00-00, which a driver returns as text."""

_encode = msgspec.json.Encoder(decimal_format="string", uuid_format="canonical").encode


@dataclass(frozen=True)
class CloudEvents:
    """Wrap each event's data in a CloudEvents 1.0 envelope (structured mode).

    Attributes:
        source: a URI reference that names where the events come from.
        type: the type of an event whose type column is NULL or not configured.
    """

    source: str
    type: str


class Streamed(NamedTuple):
    """The columns of a stream after the position, and how they make an event's JSON.

    Attributes:
        columns: the event's data, and what else is selected for it.
        head: the column, by its index, that stands before the data in an envelope, whose end is a
            brace; None for events without one.
        before: what stands before that column.
        between: what stands between it and the data.
    """

    columns: list[ColumnElement[Any]]
    head: int | None = None
    before: bytes = b""
    between: bytes = b""


def resolve(table: Table, expression: Expression, option: str = "") -> ColumnElement[Any]:
    """Return the column of the table that an option names, or its SQL expression unchanged."""
    if isinstance(expression, str):
        if expression not in table.c:
            raise ConfigurationError(
                f"Table {table.name!r} has no column {expression!r}; "
                f"it has {', '.join(table.c.keys())}.",
                option,
            )
        return table.c[expression]
    clause = getattr(expression, "__clause_element__", None)
    resolved = expression if clause is None else clause()
    if not isinstance(resolved, ColumnElement):
        raise ConfigurationError(
            f"{expression!r} is neither the name of a column nor a SQL expression."
        )
    if {*resolved._from_objects} - {table}:  # noqa: SLF001 - the public one joins those of the ORM
        raise ConfigurationError(
            f"{resolved} is of another table than {table.fullname!r}, and each event would come "
            "once for each of its rows: give a scalar subquery.",
            option,
        )
    return resolved


class Mapper:
    """Turn rows into events.

    `attributes` are the optional `id`, `type`, `key` and `time` columns by these names, and further
    CloudEvents attributes by theirs.

    Attributes:
        data_columns: the columns of the data by name; one with an empty name is all of it.
    """

    def __init__(
        self,
        table: Table,
        *,
        data: Data,
        attributes: Mapping[str, Expression],
        envelope: CloudEvents | None,
        headers: Mapping[str, Expression],
    ) -> None:
        self._forms: list[JsonForm] = []
        self._fields: list[str] | None = None
        self.data_columns: Mapping[str, ColumnElement[Any]]
        self._data = self._add_data(table, data)
        self._data_forms = [*self._forms]
        self.envelope = envelope
        resolved = {name: resolve(table, one, "attributes") for name, one in attributes.items()}
        if "time" in resolved and not isinstance(resolved["time"].type, sql.DateTime | sql.String):
            raise ConfigurationError(
                f"The time of an event is a timestamp or ISO 8601 text, not of the SQL type "
                f"{resolved['time'].type!r}.",
                "time",
            )
        of_envelope = resolved if envelope else {}
        self._attributes = {name: self._add(one, name) for name, one in of_envelope.items()}
        self._attribute_forms = dict(
            zip(self._attributes, self._forms[len(self._data_forms) :], strict=True)
        )
        self.attribute_columns = resolved
        self.header_columns = {name: resolve(table, header) for name, header in headers.items()}
        self._headers = {name: self._add(one, name) for name, one in self.header_columns.items()}

    @property
    def columns(self) -> list[ColumnElement[Any]]:
        """List the expressions that a page's query selects after the position."""
        return [form.select.label(f"c{index}") for index, form in enumerate(self._forms, 1)]

    @property
    def json(self) -> ColumnElement[Any] | None:
        """Return the one column that is an event's whole JSON, as text; None for other events."""
        if self.envelope or self._fields or self._headers:
            return None
        (form,) = self._forms
        return None if form.stored is None else func.coalesce(form.select, "null")

    @property
    def has_stored_json(self) -> bool:
        """Return whether events contain PostgreSQL `json` documents as they were stored."""
        return any(form.is_unchecked for form in self._forms)

    def text(self, position: ColumnElement[int] | None) -> ColumnElement[Any] | None:
        """Return an expression for an event's whole JSON in PostgreSQL; None if it has none.

        Args:
            position: the expression of an event's position; None if the query does not select it.
        """
        data = None if self._headers else data_text(self._data_forms, self._fields)
        if self.envelope is None or data is None:
            return data
        members = None if position is None else self._members(self.envelope, position)
        return None if members is None else object_text(members | {"data": data})

    def streamed(self, position: ColumnElement[int] | None) -> "Streamed":
        """Return what to select for events whose JSON is `text`, with as little work in PostgreSQL.

        The driver reads a value's text regardless of its SQL type. PostgreSQL sends a document
        without a cast to text in half of the time, and an envelope that is the same for all events
        but for their ids costs it as much as the document.
        """
        data, stored = data_text(self._data_forms, self._fields), self._forms[0].stored
        assert data is not None  # noqa: S101 - or `text` is None
        if stored is not None and self._fields is None:
            data = func.coalesce(stored, literal_column("'null'"))
        members = None
        if self.envelope is not None and position is not None:
            members = self._members(self.envelope, position)
        if members is None:
            return Streamed([data])
        if self._attribute_forms:
            return Streamed([data, object_text(members, ',"data":')], head=2)
        before, after = (
            "".join(f',"{name}":{text}' for name, text in part)
            for part in ([*members.items()][:1], [*members.items()][2:])
        )
        return Streamed([data], 0, f'{{{before[1:]},"id":"'.encode(), f'"{after},"data":'.encode())

    def _members(
        self, envelope: CloudEvents, position: ColumnElement[int]
    ) -> dict[str, ColumnElement[Any] | str] | None:
        return envelope_members(envelope.source, envelope.type, self._attribute_forms, position)

    @property
    def recipe(self) -> str:
        """Return four digits that change when the feed makes events from rows in another way."""
        parts = [repr(self.envelope), repr(self._fields), repr([*self._attributes])]
        for form in self._forms:
            statement = form.select.compile(dialect=StrCompileDialect())
            parts += [str(statement), repr(statement.params), type(form.declared).__name__]
            parts.append(getattr(form.convert, "__qualname__", ""))
        # Earlier releases left the escapes in a text of JSON: cursors of theirs are good as well.
        if any(form.stored is not None for form in self._forms[len(self._data_forms) :]):
            parts.append("unescaped")
        return digest("\n".join(parts).encode(), digits=4)

    def event(self, row: Row[Any]) -> Event:
        """Turn a row, which is a position and the `columns`, into an event.

        Without a column of ids, the position is the event's id.
        """
        try:
            data = self._data(row)
            return Event(
                _encode(data if self.envelope is None else self._wrap(self.envelope, row, data)),
                {
                    name: attribute_text(value)
                    for name, get in self._headers.items()
                    if (value := get(row)) is not None
                },
            )
        except UNREADABLE as error:
            raise unreadable(f"The row at position {row[0]}", error) from error

    def _add(self, expression: ColumnElement[Any], name: str) -> Callable[[Row[Any]], Any]:
        """Select an expression; return the function that reads its value from a row."""
        form = json_form(expression, name)
        self._forms.append(form)
        index = len(self._forms)
        convert = form.convert

        def get(row: Row[Any]) -> Any:
            value = row[index]
            return value if value is None or convert is None else convert(value)

        return get

    def _add_data(self, table: Table, data: Data) -> Callable[[Row[Any]], Any]:
        if isinstance(data, Mapping):
            columns = {name: resolve(table, expression) for name, expression in data.items()}
        elif isinstance(data, Sequence) and not isinstance(data, str):
            columns = {_name(one): one for one in (resolve(table, each) for each in data)}
        else:
            column = resolve(table, data)
            if not isinstance(column.type, sql.JSON | sql.String):
                raise ConfigurationError(
                    f"An event's data is an object or a string, and {_name(column)!r} has the SQL "
                    f"type {column.type!r}: name it in a list of columns."
                )
            self.data_columns = {"": column}
            return self._add(column, _name(column))
        if not columns:
            raise ConfigurationError("An event's data needs at least one column.")
        self.data_columns = columns
        fields = {name: self._add(column, name) for name, column in columns.items()}
        self._fields = [*fields]
        return lambda row: {name: get(row) for name, get in fields.items()}

    def _wrap(self, envelope: CloudEvents, row: Row[Any], data: Any) -> dict[str, Any]:
        """Build a CloudEvent in the order that its specification lists the attributes."""
        values = {name: get(row) for name, get in self._attributes.items()}
        identity, kind = values.get("id"), values.get("type")
        event: dict[str, Any] = {
            "specversion": "1.0",
            "id": attribute_text(row[0] if identity in _EMPTY else identity),
            "source": envelope.source,
            "type": envelope.type if kind in _EMPTY else attribute_text(kind),
        }
        if (time := values.get("time")) is not None:
            event["time"] = as_moment(time)
        if (key := values.get("key")) not in _EMPTY:
            event["partitionkey"] = attribute_text(key)
        for name, value in values.items():
            if name not in OWN_ATTRIBUTES and value not in _EMPTY:
                event[name] = attribute_text(value)
        return event | {"datacontenttype": "application/json", "data": data}


def _name(column: ColumnElement[Any]) -> str:
    name = getattr(column, "key", None) or getattr(column, "name", None)
    if not isinstance(name, str):
        raise ConfigurationError(f"The expression {column} has no name: give data as a dict.")
    return str(name)  # msgspec does not encode SQLAlchemy's quoted_name


def attribute_text(value: Any) -> str:
    """Return an attribute's text: its value's JSON form without the quotes."""
    if isinstance(value, str):
        return value
    text = _encode(value)
    return msgspec.json.decode(text, type=str) if text.startswith(b'"') else text.decode()


def as_moment(value: Any) -> datetime:
    """Convert the time of an event; without a zone it is UTC."""
    return as_utc(value if isinstance(value, datetime) else datetime.fromisoformat(value))


def unreadable(place: str, error: Exception, what: str = "cannot be published") -> FeedFailure:
    """Return the feed's error for a place at which a value has no form; see UNREADABLE."""
    return FeedFailure(f"{place} {what}: {getattr(error, 'orig', error)}")
