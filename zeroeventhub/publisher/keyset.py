"""Rows of a partition next to a position, and the indexes that queries need."""

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Index,
    Integer,
    MetaData,
    Select,
    Table,
    bindparam,
    literal_column,
    select,
)
from sqlalchemy.schema import CreateIndex
from sqlalchemy.sql.visitors import replacement_traverse

from zeroeventhub.databases import database_of
from zeroeventhub.databases.index_hint import IndexHint
from zeroeventhub.databases.tables import statement_text
from zeroeventhub.publisher.cursor import HIGHEST_POSITION
from zeroeventhub.publisher.ordering import Source

__all__ = [
    "HIGHEST",
    "LIMIT",
    "NearRows",
    "NeededIndex",
    "given",
]

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
        self._hint: IndexHint | None = None

    @classmethod
    def of_all(cls, source: Source) -> "NearRows":
        """Choose rows of all partitions alike."""
        return cls(replace(source, partition=None))

    def hint(self, connection: Connection) -> IndexHint:
        """Return how the rows are read by an index, which is chosen once."""
        return self._hint or self.choose_index(connection)

    def choose_index(self, connection: Connection) -> IndexHint:
        """Choose how the rows are read, by what indexes the table has now."""
        self._hint = database_of(connection).choose_index(connection, self.source)
        return self._hint

    def first(self, connection: Connection, partition: int, after: int, until: int) -> int | None:
        """Return the first position of a partition above one and not above another."""
        query = self.above(self._positions, self.hint(connection), given("after"), given("until"))
        values = {"partition": partition, "after": after, "until": until}
        found: int | None = connection.scalar(query.limit(_ONE), values)
        return found

    def last(self, connection: Connection, partition: int, until: int) -> int | None:
        """Return the last position of a partition at another one or below it."""
        query = self.below(self._positions, self.hint(connection), given("until"))
        values = {"partition": partition, "until": until}
        found: int | None = connection.scalar(query.limit(_ONE), values)
        return found

    @property
    def _positions(self) -> Select[Any]:
        return select(self.source.position).select_from(self.source.table)

    def above(
        self, query: Select[Any], hint: IndexHint, low: ColumnElement[int], high: ColumnElement[int]
    ) -> Select[Any]:
        """Choose those rows of a query that lie above a place and not above another, in order.

        Args:
            query: selects from the source's table.
            hint: how the rows are read by an index.
            low: a position.
            high: another.
        """
        return hint.between(query, self.source, low, high)

    def below(self, query: Select[Any], hint: IndexHint, high: ColumnElement[int]) -> Select[Any]:
        """Choose those rows of a query that lie at a place or below it, the highest first."""
        return hint.between(query, self.source, _LOWEST, high, backwards=True)


_LONGEST_NAME = 60
"""Characters that the name of an index has at most, everywhere."""


@dataclass(frozen=True)
class NeededIndex:
    """Name an index that a kind of question needs.

    Attributes:
        source: the table; its `position` is the column that is searched for, and `partition` what
            stands before that in the index.
        purpose: what is asked, as the subject of a sentence.
        more: columns to add, so that the table itself need not be read.
    """

    source: Source
    purpose: str
    more: tuple[ColumnElement[Any], ...] = ()

    def is_there(self, connection: Connection) -> bool:
        """Tell whether the database answers the question by an index."""
        return database_of(connection).is_indexed(connection, self.source)

    def create(self, connection: Connection) -> str | None:
        """Return the statement that creates it; None where the database has no such index."""
        source = self.source
        keys = [key for key in (source.partition, source.position, *self.more) if key is not None]
        columns = all(isinstance(key, Column) for key in keys)
        if not isinstance(source.table, Table) or not (
            columns or database_of(connection).indexes_expressions
        ):
            return None
        # On a copy, for an index of a table stays with it.
        table = source.table.to_metadata(MetaData())
        copies = [_copied(table, key) for key in keys]
        names = [getattr(key, "name", "partition") for key in copies]
        index = Index(
            "_".join([table.name, "by", *map(str, names)])[:_LONGEST_NAME],
            *copies,
            postgresql_concurrently=True,
        )
        return statement_text(connection.dialect, CreateIndex(index))


def _copied(table: Table, key: ColumnElement[Any]) -> Any:
    """Return a key in terms of a copy of its table."""

    def replace(part: Any, **_: Any) -> Any:
        return table.c.get(part.key) if isinstance(part, Column) else None

    traverse: Any = replacement_traverse  # it is typed for more than expressions
    return traverse(key, {}, replace)
