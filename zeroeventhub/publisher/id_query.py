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
    func,
    literal,
    select,
)

from zeroeventhub.errors import BadCursor, ConfigurationError
from zeroeventhub.protocol import TypeFilter
from zeroeventhub.publisher.cursor import HIGHEST_POSITION
from zeroeventhub.publisher.found_rows import positions_of
from zeroeventhub.publisher.near_rows import NearRows, given
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.type_condition import TypeCondition, exact

__all__ = ["IdQuery", "same_as", "value_of"]


class IdQuery:
    """Find the position of an event.

    Args:
        source: where events are read.
        identity: finds events by the column of ids; None if an event's id is its position.
        types: filters events by type; None if the feed does not know types.

    Attributes:
        are_positions: whether an event's id is its position.
    """

    def __init__(
        self,
        source: Source,
        identity: NearRows | None,
        types: TypeCondition | None = None,
    ) -> None:
        self._source = source
        self.are_positions = identity is None
        self._types = types
        self._searched = identity
        self._identity = source.position if identity is None else identity.source.position

    def position(
        self,
        connection: Connection,
        event_id: str,
        partition: int,
        *,
        until: int,
        types: TypeFilter | None = None,
    ) -> int:
        """Return the position of an event; of one that is gone, too, if its id was its position.

        Args:
            connection: to the feed's database.
            event_id: as the event has it in JSON.
            partition: where it is.
            until: the horizon; what lies above it is not looked at.
            types: the types of events to look at; None for all.

        Raises:
            BadCursor: no event of the partition, and of these types, has this id.
            ConfigurationError: ids of this type cannot be looked for.
        """
        value = value_of(self._identity, event_id)
        if self._searched is None:
            if value is not None and 0 < value <= until:
                return int(value)
        elif value is not None:
            conditions = same_as(self._identity, value, connection.dialect.name)
            if types is not None and self._types is not None:
                conditions.append(self._types.condition(types))
            way, table = self._searched.way(connection), self._searched.source.table
            found = positions_of(self._source, way, table, *conditions)
            query = select(func.max(found.c.position)).where(found.c.position <= given("until"))
            if self._source.partition is not None:
                query = query.where(found.c.partition == partition)
            if (position := connection.scalar(query, {"until": until})) is not None:
                return int(position)
        raise BadCursor("No event of this feed has this id.")


def same_as(column: ColumnElement[Any], value: Any, dialect: str) -> list[ColumnElement[bool]]:
    """Return what holds where a column is a value; the first condition is served by an index."""
    if isinstance(column.type, Integer):
        return [column == literal(value, BigInteger)]  # larger than the column's, even
    same = [column == value]
    if isinstance(column.type, String):
        same.append(exact(column, dialect) == exact(literal(value, Text), dialect))
    return same


def value_of(column: ColumnElement[Any], text: str) -> Any:
    """Return what a column holds for the text of an id or a key; None if it cannot hold it.

    Raises:
        ConfigurationError: values of its type cannot be looked for.
    """
    kind = column.type
    if isinstance(kind, Integer):
        if not _WHOLE.fullmatch(text):
            return None
        number = int(text)
        return number if -HIGHEST_POSITION <= number <= HIGHEST_POSITION else None
    if isinstance(kind, Uuid):
        try:
            value = UUID(text)
        except ValueError:
            return None
        return value if kind.as_uuid else str(value)
    if isinstance(kind, String) and not isinstance(kind, Enum):
        return None if "\0" in text else text
    raise ConfigurationError(
        f"An event is found by an id of text, whole numbers or UUIDs; {column} has the "
        f"SQL type {kind!r}."
    )


_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)
