"""The query that reads the events of all partitions, with what an archive keeps beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection

from zeroeventhub.errors import FeedFailure
from zeroeventhub.lines import one_line
from zeroeventhub.protocol import Event
from zeroeventhub.publisher.json_form import json_form
from zeroeventhub.publisher.mapping import Mapper, attribute_text, moment
from zeroeventhub.publisher.near_rows import LIMIT, NearRows, given
from zeroeventhub.publisher.row_query import RowQuery
from zeroeventhub.publisher.rows import Row, refuse_what_is_not_json

__all__ = ["SealQuery", "SealedRows"]

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class SealedRows:
    """Hold rows as they go into a segment.

    Attributes:
        columns: by name, as segments have them.
        last: the last row; None if there is none.
    """

    columns: Mapping[str, Sequence[Any]]
    last: Row | None

    @property
    def count(self) -> int:
        """Return how many rows there are."""
        return len(self.columns["position"])


class SealQuery:
    """Select what segments hold, in the order of positions.

    Args:
        near: finds the rows of all partitions alike.
        mapper: turns rows into events.
        dialect: the database, by SQLAlchemy's name for it.
        partition: the column of partitions, where positions are; None for the one partition 0.
        attributes: the columns of `id`, `type`, `key` and `time`, those that there are.
        kind: the type of events that have none of their own; empty if they have none.
    """

    def __init__(
        self,
        near: NearRows,
        mapper: Mapper,
        dialect: str,
        *,
        partition: ColumnElement[Any] | None,
        attributes: Mapping[str, ColumnElement[Any]],
        kind: str,
    ) -> None:
        self._forms = {name: json_form(column, name) for name, column in attributes.items()}
        self._kind = kind or None
        self._placed = {} if partition is None else {"partition": partition}
        if "time" not in attributes and near.source.given_at is not None:
            self._placed["time"] = near.source.given_at
        also, placed = [form.select for form in self._forms.values()], self._placed.values()
        self._rows = RowQuery(near, mapper, dialect, also=also, placed=[*placed])
        self._near = near
        self._columns = 1 if self._rows.is_json else len(mapper.columns)

    def read(self, connection: Connection, after: int, until: int, limit: int) -> SealedRows:
        """Read rows.

        Args:
            connection: to the feed's database.
            after: the position behind which they lie.
            until: the one up to which they do.
            limit: how many, at most.

        Raises:
            FeedFailure: a row cannot be published, or not be kept.
        """
        way = self._near.way(connection)
        query = self._rows.select(
            lambda chosen: self._near.above(chosen, way, given("after"), given("until")), LIMIT
        )
        values = {"after": after, "until": until, "limit": limit}
        rows = self._rows.fetch(connection, query, values)
        if not rows:
            return SealedRows({"position": ()}, None)
        columns = list(zip(*rows, strict=True))
        found: dict[str, Sequence[Any]] = {"position": columns[0]}
        names = [*self._forms, *self._placed]
        # Behind them there may be a column that only tells whether the event is there.
        told = dict(zip(names, columns[1 + self._columns :], strict=False))
        if self._kind is not None:
            told.setdefault("type", (None,) * len(rows))
        try:
            found |= {name: self._values(name, values) for name, values in told.items()}
        except (TypeError, ValueError, LookupError, msgspec.MsgspecError) as error:
            raise FeedFailure(
                f"A row behind position {after} has an attribute that cannot be kept: {error}"
            ) from error
        found |= self._events(rows, columns)
        raw = found["data"][-1]
        last = None if raw is None else Event(raw if isinstance(raw, bytes) else raw.encode())
        return SealedRows(found, (columns[0][-1], last))

    def _values(self, name: str, values: Sequence[Any]) -> Sequence[Any]:
        """Give attributes the form that they have in segments."""
        form = self._forms.get(name)
        if form is not None and form.convert is not None:
            values = [None if value is None else form.convert(value) for value in values]
        if name == "partition":
            return values
        if name == "time":
            return [None if value is None else moment(value) for value in values]
        if not {*map(type, values)} <= {str, NoneType}:
            values = [None if value is None else attribute_text(value) for value in values]
        if name == "type" and self._kind is not None:
            values = [value or self._kind for value in values]
        return values

    def _events(self, rows: list[Any], columns: list[tuple[Any, ...]]) -> dict[str, Sequence[Any]]:
        """Return the JSON of events, None for those that were deleted, and headers if any."""
        if not self._rows.is_json:
            events = [self._rows.event(row) for row in rows]
            headers = [
                _encode(event.headers) if event and event.headers else None for event in events
            ]
            data = [None if event is None else event.raw for event in events]
            return {"data": data, "headers": headers}
        texts = columns[1]
        raw = [None if text is None else text.encode() for text in texts]
        refuse_what_is_not_json(raw, columns[0].__getitem__)
        if any("\n" in text or "\r" in text for text in texts if text is not None):
            texts = tuple(text and one_line(text.encode()).decode() for text in texts)
        return {"data": texts}
