"""Rows of a partition next to a position, and the indexes that queries need."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    FromClause,
    Index,
    Integer,
    MetaData,
    Select,
    Table,
    bindparam,
    literal_column,
    select,
    true,
)
from sqlalchemy.schema import CreateIndex
from sqlalchemy.sql.visitors import replacement_traverse

from zeroeventhub.databases import database_of
from zeroeventhub.databases.index_hint import IndexHint
from zeroeventhub.databases.statements import statement_text
from zeroeventhub.publisher.cursor import HIGHEST_POSITION, digest
from zeroeventhub.publisher.ordering import Source

# Literals, as PostgreSQL plans for a tenth of the table if the limit is a parameter.
LIMIT: ColumnElement[int] = bindparam("limit", type_=Integer, literal_execute=True)
"""The highest number of rows to return."""

BEFORE: ColumnElement[int] = bindparam("before", type_=Integer, literal_execute=True)
"""The number of rows to pass over."""

HIGHEST: ColumnElement[int] = literal_column(str(HIGHEST_POSITION), BigInteger)
"""No position lies above it."""

ONE: ColumnElement[int] = literal_column("1")
"""The number one, for a LIMIT or a column."""


def parameter(name: str) -> ColumnElement[int]:
    """Return a parameter that is a position."""
    return bindparam(name, type_=BigInteger)


_AFTER, _UNTIL = parameter("after"), parameter("until")


class NearRows:
    """Find the rows next to a position, of one partition, or of all if the source has none."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._hint: IndexHint | None = None

    def hint(self, connection: Connection) -> IndexHint:
        """Return the index hint, chosen at the first call."""
        return self._hint or self.choose_index(connection)

    def choose_index(self, connection: Connection) -> IndexHint:
        """Choose the index hint from the indexes that the table has now."""
        self._hint = database_of(connection).choose_index(connection, self.source)
        return self._hint

    def first(
        self, connection: Connection, after: int, until: int, partition: int = 0
    ) -> int | None:
        """Return the first position in (after, until]."""
        query = self.rows(self.hint(connection), self.source.position)
        values = {"partition": partition, "after": after, "until": until}
        found: int | None = connection.scalar(query.limit(ONE), values)
        return found

    def last(self, connection: Connection, until: int, partition: int = 0) -> int | None:
        """Return the last position at or below `until`."""
        query: Select[Any] = select(self.source.position).select_from(self.source.table)
        query = self.below(query, self.hint(connection), _UNTIL).limit(ONE)
        found: int | None = connection.scalar(query, {"partition": partition, "until": until})
        return found

    def rows(self, hint: IndexHint, *columns: ColumnElement[Any]) -> Select[Any]:
        """Select columns of the rows in (:after, :until], in order."""
        return self.above(select(*columns).select_from(self.source.table), hint)

    def above(
        self,
        query: Select[Any],
        hint: IndexHint,
        low: ColumnElement[int] = _AFTER,
        high: ColumnElement[int] = _UNTIL,
    ) -> Select[Any]:
        """Restrict a query to the rows in (low, high], by default (:after, :until], in order."""
        return hint.between(query, self.source, low, high)

    def below(self, query: Select[Any], hint: IndexHint, high: ColumnElement[int]) -> Select[Any]:
        """Restrict a query to the rows at or below a position, the highest first."""
        lowest = literal_column("0", BigInteger)
        return hint.between(query, self.source, lowest, high, backwards=True)


def join_events(
    source: Source,
    positions: FromClause,
    columns: Sequence[ColumnElement[Any]] = (),
    chosen: ColumnElement[bool] | None = None,
    *,
    isouter: bool = True,
) -> tuple[FromClause, list[ColumnElement[Any]], ColumnElement[Any]]:
    """Join events to positions of a side table; `chosen` applies only to a lateral join.

    Returns:
        The join, the columns of events, and a column that is NULL for a deleted event.
    """
    events: Any = source.events
    presence = next(iter(source.key.values()))
    if not source.lateral:
        joined = positions.join(events, source.same(positions), isouter=isouter)
        return joined, [*columns], presence
    found = select(*columns, presence.label("presence")).where(source.same(positions)).limit(ONE)
    event = (found if chosen is None else found.where(chosen)).lateral("event")
    joined = positions.join(event, true(), isouter=isouter)
    return joined, [*event.c][:-1], event.c.presence


_LONGEST_NAME = 60
"""Characters that the name of an index has at most, on every database."""


@dataclass(frozen=True)
class NeededIndex:
    """An index that some query needs.

    Attributes:
        source: the table; its `position` is the column that the query searches, and `partition`
            the column before it in the index.
        purpose: what the query does, as the subject of a sentence.
        more: further columns, so that the database reads only the index.
    """

    source: Source
    purpose: str
    more: tuple[ColumnElement[Any], ...] = ()

    def is_there(self, connection: Connection) -> bool:
        """Return whether the table has an index that serves the query."""
        return database_of(connection).is_indexed(connection, self.source)

    def create(self, connection: Connection) -> str | None:
        """Return the statement that creates it; None if the database cannot have such an index."""
        source = self.source
        keys = [key for key in (source.partition, source.position, *self.more) if key is not None]
        columns = all(isinstance(key, Column) for key in keys)
        if not isinstance(source.table, Table) or not (
            columns or database_of(connection).indexes_expressions
        ):
            return None
        # On a copy, as SQLAlchemy would add the index to the caller's table.
        table = source.table.to_metadata(MetaData())
        copies = [_copy_key(table, key) for key in keys]
        names = [getattr(key, "name", "partition") for key in copies]
        name = "_".join([table.name, "by", *map(str, names)])
        if len(name) > _LONGEST_NAME:  # cut off, two names may be the same
            name = f"{name[: _LONGEST_NAME - 11]}_{digest(name.encode(), digits=10)}"
        index = Index(name, *copies, postgresql_concurrently=True)
        return statement_text(connection.dialect, CreateIndex(index))


def _copy_key(table: Table, key: ColumnElement[Any]) -> Any:
    """Rewrite a key for a copy of its table."""

    def replace(part: Any, **_: Any) -> Any:
        return table.c.get(part.key) if isinstance(part, Column) else None

    traverse: Any = replacement_traverse  # it is typed for more than expressions
    return traverse(key, {}, replace)
