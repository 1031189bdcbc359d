"""Statements that find the rows next to a place in a partition, at the same cost everywhere."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Integer,
    Subquery,
    Table,
    bindparam,
    inspect,
    literal_column,
    select,
    tuple_,
)

from zeroeventhub.publisher.ordering import Source

__all__ = ["NearRows", "Way"]

_PARTITION: Any = bindparam("partition", type_=Integer)


class Way(NamedTuple):
    """Say how the rows of a partition are found: by pairs of columns, or with a hint."""

    by_pairs: bool = False
    hint: str = ""


class NearRows:
    """Select the rows of a partition that lie next to a place.

    Args:
        source: where the events are read.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._way: Way | None = None

    def find_way(self, connection: Connection) -> Way:
        """Find the way to the rows of a partition, once."""
        if self._way is None:
            self._way = _way(connection, self._source)
        return self._way

    def select(
        self,
        number: int,
        rows: int,
        way: Way,
        *,
        above: bool,
        until: ColumnElement[int] | None = None,
        columns: Sequence[ColumnElement[Any]] = (),
    ) -> Subquery:
        """Select rows on one side of the parameter `place_<number>`, the nearest ones.

        Args:
            number: of the place, among those of a statement.
            rows: how many rows at most.
            way: how they are found.
            above: whether they lie above the place; at it or below it otherwise.
            until: the highest position, for rows above.
            columns: what to select beside the position.
        """
        position, partition = self._source.position, self._source.partition
        place: Any = bindparam(f"place_{number}", type_=BigInteger)
        order: list[ColumnElement[Any]] = [position]
        here: Any = position
        bounds: list[Any] = [place, until]
        query = select(position.label("position"), *columns).select_from(self._source.table)
        if partition is not None and way.by_pairs:
            here = tuple_(partition, position)
            bounds = [None if bound is None else tuple_(_PARTITION, bound) for bound in bounds]
            query = query.add_columns(partition.label("partition"))
            order = [partition, position]
        elif partition is not None:
            query = query.where(partition == _PARTITION)
        start, end = bounds
        query = query.where(here > start if above else here <= start)
        if end is not None:
            query = query.where(here <= end)
        if way.hint:
            query = query.with_hint(self._source.table, way.hint)
        ordered = query.order_by(*(order if above else [each.desc() for each in order]))
        # The limit is written out: PostgreSQL plans for a tenth of the table if it is a parameter.
        return ordered.limit(literal_column(str(rows))).subquery(f"near_{number}")

    @staticmethod
    def own(near: Subquery) -> list[ColumnElement[bool]]:
        """Leave out what pairs have in common with the next partition: nothing but their order."""
        return [near.c.partition == _PARTITION] if "partition" in near.c else []


def _way(connection: Connection, source: Source) -> Way:
    """Find the way to the rows of a partition that costs as little wherever they are.

    PostgreSQL may go along the primary key and skip the rows of other partitions, of which there
    may be millions; only the index of both columns has the order of pairs. MariaDB may look up the
    partition alone and skip all of its rows up to the place, unless it is told to use the index.
    """
    name = _index(connection, source)
    if name is None:
        return Way()
    if connection.dialect.name == "postgresql":
        return Way(by_pairs=True)
    if connection.dialect.name in {"mariadb", "mysql"}:
        quoted = connection.dialect.identifier_preparer.quote(name)
        return Way(hint=f"FORCE INDEX ({quoted})".replace("%", "%%"))
    return Way()


def _index(connection: Connection, source: Source) -> str | None:
    """Name an index of all rows of a table by partition and position, in rising order."""
    table, pair = source.table, [source.partition, source.position]
    names = [column.name for column in pair if isinstance(column, Column)]
    if not isinstance(table, Table) or len(names) < len(pair):
        return None
    look = inspect(connection)
    if look.get_pk_constraint(table.name, table.schema)["constrained_columns"][:2] == names:
        return "PRIMARY"
    for index in look.get_indexes(table.name, table.schema):
        partial = index.get("dialect_options", {}).get("postgresql_where")
        if index["column_names"][:2] == names and not partial and not index.get("column_sorting"):
            return index["name"]
    return None
