"""Events that are in a log, and the comparison of new ones with them."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from sqlalchemy import JSON, Column, Connection, RowMapping, Select, Table, null, select

from zeroeventhub.databases import database_of
from zeroeventhub.databases.json_form import json_form
from zeroeventhub.databases.statements import as_utc, portions
from zeroeventhub.errors import ConfigurationError, IdReused, StoreUnavailable
from zeroeventhub.protocol import Event
from zeroeventhub.wire.models import Read, reader_by_type

_Row = Mapping[str, Any]

_EXACT = 19
"""A whole number with so many digits may not fit into 64 bits."""

_AT_ONCE = 500
"""Ids that one statement looks up."""


class Stored:
    """Look events up by their ids, and compare them.

    `compared` are the columns that have to be equal in a repeated append.
    """

    def __init__(
        self,
        table: Table,
        identity: Column[Any],
        version: Column[Any],
        compared: Collection[Column[Any]],
    ) -> None:
        self._id = identity
        self._compared = compared
        columns = (identity, version, *compared)
        shapes = (
            json_form(one, one.name).select.label(one.name) if isinstance(one.type, JSON) else one
            for one in columns
        )
        self._query = select(*shapes).select_from(table)

    def find(self, connection: Connection, rows: Sequence[_Row]) -> dict[Any, _Row]:
        """Return the existing events with the ids of some rows, by id; IdReused if one differs."""
        query, name = database_of(connection).latest(self._query), self._id.name
        found: dict[Any, _Row] = {}
        for some in portions(rows, _AT_ONCE):
            ids = [row[name] for row in some]
            for one in connection.execute(query.where(self._id.in_(ids))).mappings():
                found[one[name]] = dict(one)
        for row in rows:
            if (known := found.get(row[name])) is not None:
                self._check_same(row, known)
        return found

    def distinct(self, rows: Sequence[_Row]) -> list[_Row]:
        """Drop repeated rows; raise IdReused if two rows with one id differ."""
        name = self._id.name
        if len({row[name] for row in rows}) == len(rows):
            return [*rows]
        found: dict[Any, _Row] = {}
        for row in rows:
            if (known := found.setdefault(row[name], row)) is not row:
                self._check_same(row, known)
        return [*found.values()]

    def _check_same(self, row: _Row, known: _Row) -> None:
        for column in self._compared:
            if not _is_same(column, row[column.name], known[column.name]):
                raise IdReused(
                    f"There already is an event with the id {row[self._id.name]!r} and another "
                    f"{column.name}: roll back, and give each event an id of its own. Only an "
                    "equal event may have the same id."
                )


def unseen() -> StoreUnavailable:
    """Return the error for a duplicate that this transaction cannot see."""
    return StoreUnavailable(
        "Another transaction has appended the same version or id since this one began: roll back, "
        "and try again in a new transaction, which can see it."
    )


def _is_same(column: Column[Any], one: Any, other: Any) -> bool:
    """Return whether two values are equal; JSON by its meaning, as databases change its form."""
    if one == other or not isinstance(column.type, JSON) or None in (one, other):
        return bool(one == other)
    try:
        return bool(_read(one) == _read(other))
    except RecursionError:
        raise ConfigurationError("An event is nested too deeply to be compared.") from None


def _read(text: str) -> Any:
    # Numbers become pairs, as True equals 1 in Python but not a pair.
    return json.loads(text, parse_int=_whole, parse_float=lambda digits: ("number", float(digits)))


def _whole(digits: str) -> tuple[str, float]:
    # Databases keep integers of 64 bits exactly, and may store larger ones as doubles.
    return "number", int(digits) if len(digits.lstrip("-")) < _EXACT else float(digits)


@dataclass(frozen=True)
class KeptEvent:
    """An event that was read from a log.

    Example:
        with engine.connect() as connection:
            for event in log.read_key(connection, "17"):
                print(event.version, event.type, event.data)

    Attributes:
        key: what it has happened to.
        version: its number within the key.
        id: its unique id.
        type: what has happened.
        time: when it was appended.
        raw: the JSON of its data in the database's form.
        reader: makes the data of the JSON; None to decode it.
    """

    key: str
    version: int
    id: str
    type: str
    time: datetime
    raw: bytes
    reader: Read | None = field(default=None, repr=False, compare=False)

    @cached_property
    def data(self) -> Any:
        """Decode the event's data as the log's `models` say; done once."""
        return Event(self.raw).data if self.reader is None else self.reader(self.raw)

    @classmethod
    def of(cls, row: RowMapping, readers: Mapping[str, Read]) -> "KeptEvent":
        """Return the event of a row of `kept_events`, with the reader of its type if there are any.

        Raises:
            ProtocolError: none of the readers is for its type.
        """
        values = dict(row)
        raw, time = values.pop("text").encode(), as_utc(values.pop("time"))
        reader = reader_by_type(readers, row["type"]) if readers else None
        return cls(raw=raw, time=time, reader=reader, **values)


def kept_events(table: Table) -> Select[Any]:
    """Select the columns of a KeptEvent from a log, or from snapshots without id, type and time."""
    columns = table.c
    text = json_form(columns.data, "data").select.label("text")
    others = (columns.get(name, null()) for name in ("id", "type", "time"))
    return select(columns.key, columns.version, *others, text)
