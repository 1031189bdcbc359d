"""What is there already of events that are to be appended."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import JSON, Column, ColumnElement, Connection, Table, select

from zeroeventhub.errors import IdReused, StoreUnavailable
from zeroeventhub.publisher.json_form import json_form

__all__ = ["Stored", "newest", "same_value", "unseen"]

_Row = Mapping[str, Any]

_EXACT = 19
"""How many digits a number has that may not fit into 64 bits."""

_AT_ONCE = 500
"""How many ids are looked up by one statement."""


class Stored:
    """Look events up by their ids, and compare them.

    Args:
        table: where they are.
        identity: the column of ids.
        compared: the columns in which an event is the same if it comes again.
        shown: more columns to return.
    """

    def __init__(
        self,
        table: Table,
        identity: Column[Any],
        compared: Collection[Column[Any]],
        shown: Collection[Column[Any]] = (),
    ) -> None:
        self._id = identity
        self._compared = compared
        columns = (identity, *compared, *shown)
        self._query = select(*(_shown(column) for column in columns)).select_from(table)

    def find(self, connection: Connection, rows: Sequence[_Row]) -> dict[Any, _Row]:
        """Return the events that are there of those with the ids of some rows, by id.

        Raises:
            IdReused: one says something else than the row that has its id.
        """
        query, name = newest(connection, self._query), self._id.name
        found: dict[Any, _Row] = {}
        for first in range(0, len(rows), _AT_ONCE):
            ids = [row[name] for row in rows[first : first + _AT_ONCE]]
            for one in connection.execute(query.where(self._id.in_(ids))).mappings():
                found[one[name]] = dict(one)
        for row in rows:
            if (known := found.get(row[name])) is not None:
                self._check_same(row, known)
        return found

    def distinct(self, rows: Sequence[_Row]) -> list[_Row]:
        """Leave out rows that come again.

        Raises:
            IdReused: two of one id say different things.
        """
        found: dict[Any, _Row] = {}
        for row in rows:
            if (known := found.setdefault(row[self._id.name], row)) is not row:
                self._check_same(row, known)
        return [*found.values()]

    def _check_same(self, row: _Row, known: _Row) -> None:
        for column in self._compared:
            if not same_value(column, row[column.name], known[column.name]):
                raise IdReused(
                    f"An event of the id {row[self._id.name]!r} is there already, with another "
                    f"{column.name}: roll back, and give each event an id of its own. An id may "
                    "come again only with the event that it was given to."
                )


def newest(connection: Connection, query: Any) -> Any:
    """Let a query see what others have committed since the transaction's snapshot.

    PostgreSQL and SQLite see it, or refuse to go on.
    """
    if connection.dialect.name in {"mysql", "mariadb"}:
        return query.with_for_update(read=True)
    return query


def unseen() -> StoreUnavailable:
    """Say why a row cannot be inserted though nothing of it is there to see."""
    return StoreUnavailable(
        "Somebody has appended the same since this transaction began, and it cannot see it: roll "
        "back, and try again in a new one."
    )


def _shown(column: Column[Any]) -> ColumnElement[Any]:
    if isinstance(column.type, JSON):
        return json_form(column, column.name).select.label(column.name)
    return column


def same_value(column: Column[Any], one: Any, other: Any) -> bool:
    """Compare two values; JSON in what it says, since databases keep it in forms of their own."""
    if one == other or not isinstance(column.type, JSON):
        return bool(one == other)
    return bool(_read(one) == _read(other))


def _read(text: str) -> Any:
    # True equals 1 in Python, and a pair of a word and 1 does not.
    return json.loads(text, parse_int=_whole, parse_float=_real)


def _real(digits: str) -> tuple[str, float]:
    return "number", float(digits)


def _whole(digits: str) -> tuple[str, float]:
    # What has 64 bits is kept to the last digit; of all else databases may keep a double.
    return "number", int(digits) if len(digits.lstrip("-")) < _EXACT else float(digits)
