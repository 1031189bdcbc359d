"""Statements that find the rows next to a place in a partition, at the same cost everywhere."""

from dataclasses import replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Integer,
    Select,
    bindparam,
    literal_column,
    select,
)

from zeroeventhub.publisher.cursor import HIGHEST_POSITION
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.way import Way, find_way

__all__ = ["HIGHEST", "LIMIT", "NearRows", "given"]

# It is written out: PostgreSQL plans for a tenth of the table if it is a parameter.
LIMIT: ColumnElement[int] = bindparam("limit", type_=Integer, literal_execute=True)
"""The parameter that says how many rows."""

HIGHEST: ColumnElement[int] = literal_column(str(HIGHEST_POSITION), BigInteger)
"""No position lies above it."""

_LOWEST: ColumnElement[int] = literal_column("0", BigInteger)
"""Every position lies above it."""


_ONE: ColumnElement[int] = literal_column("1")


def given(name: str) -> ColumnElement[int]:
    """Return a parameter that is a position."""
    return bindparam(name, type_=BigInteger)


class NearRows:
    """Choose rows of a partition that lie next to a place.

    Args:
        source: where the events are read.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._way: Way | None = None

    @classmethod
    def of_all(cls, source: Source) -> "NearRows":
        """Choose rows of all partitions alike."""
        return cls(replace(source, partition=None))

    def way(self, connection: Connection) -> Way:
        """Return the way to the rows, which is looked for once."""
        return self._way or self.find_way(connection)

    def find_way(self, connection: Connection) -> Way:
        """Look for the way to the rows, by what indexes the table has now."""
        self._way = find_way(connection, self.source)
        return self._way

    def first(self, connection: Connection, partition: int, after: int, until: int) -> int | None:
        """Return the first position of a partition above one and not above another."""
        query = self.above(self._positions, self.way(connection), given("after"), given("until"))
        values = {"partition": partition, "after": after, "until": until}
        found: int | None = connection.scalar(query.limit(_ONE), values)
        return found

    def last(self, connection: Connection, partition: int, until: int) -> int | None:
        """Return the last position of a partition at another one or below it."""
        query = self.below(self._positions, self.way(connection), given("until"))
        values = {"partition": partition, "until": until}
        found: int | None = connection.scalar(query.limit(_ONE), values)
        return found

    @property
    def _positions(self) -> Select[Any]:
        return select(self.source.position).select_from(self.source.table)

    def above(
        self, query: Select[Any], way: Way, low: ColumnElement[int], high: ColumnElement[int]
    ) -> Select[Any]:
        """Choose those rows of a query that lie above a place and not above another, in order.

        Args:
            query: selects from the source's table.
            way: how the rows are found.
            low: a position.
            high: another.
        """
        return way.between(query, self.source, low, high)

    def below(self, query: Select[Any], way: Way, high: ColumnElement[int]) -> Select[Any]:
        """Choose those rows of a query that lie at a place or below it, the highest first."""
        return way.between(query, self.source, _LOWEST, high, backwards=True)
