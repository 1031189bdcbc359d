"""The query that finds an event by its id."""

import re
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Enum,
    Integer,
    String,
    Text,
    Uuid,
    bindparam,
    literal,
    select,
)

from zeroeventhub.errors import BadCursor, ConfigurationError
from zeroeventhub.publisher.cursor import HIGHEST_POSITION
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.type_condition import exact

__all__ = ["IdQuery"]


class IdQuery:
    """Find the position of an event.

    Args:
        source: where events are read.
        identity: the column of ids; None if an event's id is its position.
    """

    def __init__(self, source: Source, identity: ColumnElement[Any] | None) -> None:
        self._source = source
        self._identity = source.position if identity is None else identity

    def position(self, connection: Connection, event_id: str, partition: int, *, until: int) -> int:
        """Return the position of an event.

        Args:
            connection: to the feed's database.
            event_id: as the event has it in JSON.
            partition: where it is.
            until: the horizon; what lies above it is not looked at.

        Raises:
            BadCursor: no event of the partition has this id.
            ConfigurationError: ids of this type cannot be looked for.
        """
        value = self._value(event_id)
        source = self._source
        if value is not None:
            query = (
                select(source.position)
                .select_from(source.join(source.table))
                .where(
                    *self._same(value, connection.dialect.name),
                    source.position <= bindparam("until", type_=BigInteger),
                )
                .order_by(source.position.desc())
                .limit(1)
            )
            if source.partition is not None:
                query = query.where(source.partition == bindparam("partition", type_=Integer))
            values = {"until": until, "partition": partition}
            if (position := connection.scalar(query, values)) is not None:
                return int(position)
        raise BadCursor("No event of this feed has this id.")

    def _same(self, value: Any, dialect: str) -> list[ColumnElement[bool]]:
        """Return what holds for the event; the first condition is one that an index serves."""
        if isinstance(self._identity.type, Integer):
            return [self._identity == literal(value, BigInteger)]  # larger than the column's, even
        same = [self._identity == value]
        if isinstance(self._identity.type, String):
            same.append(exact(self._identity, dialect) == exact(literal(value, Text), dialect))
        return same

    def _value(self, event_id: str) -> Any:
        """Return what the column holds for an id; None if it cannot hold it."""
        kind = self._identity.type
        if isinstance(kind, Integer):
            if not _WHOLE.fullmatch(event_id):
                return None
            number = int(event_id)
            return number if -HIGHEST_POSITION <= number <= HIGHEST_POSITION else None
        if isinstance(kind, Uuid):
            try:
                value = UUID(event_id)
            except ValueError:
                return None
            return value if kind.as_uuid else str(value)
        if isinstance(kind, String) and not isinstance(kind, Enum):
            return None if "\0" in event_id else event_id
        raise ConfigurationError(
            f"An event is found by an id of text, whole numbers or UUIDs; {self._identity} has the "
            f"SQL type {kind!r}."
        )


_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)
