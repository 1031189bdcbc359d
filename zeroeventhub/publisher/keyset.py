"""How the rows of a partition are found: by the index of partition and position, if there is one.

A planner goes by statistics, which are missing, or old, or silent about two columns together. It
may walk along the primary key over millions of rows of other partitions, or over all rows of a
partition that lie before the place. So each database is told what there is to use:

- PostgreSQL compares pairs of columns, whose order only the index of both has, and is kept from
  sorting: for whatever values it plans, there is one plan.
- MariaDB, MySQL and SQLite are told the index by its name.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    FromClause,
    Index,
    Integer,
    MetaData,
    Select,
    Table,
    Uuid,
    bindparam,
    cast,
    inspect,
    literal_column,
    select,
    text,
    tuple_,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex
from sqlalchemy.sql.selectable import Alias
from sqlalchemy.sql.util import ClauseAdapter
from sqlalchemy.sql.visitors import replacement_traverse

from zeroeventhub.publisher.cursor import HIGHEST_POSITION
from zeroeventhub.publisher.ordering import Source

__all__ = [
    "HIGHEST",
    "LIMIT",
    "NearRows",
    "NeededIndex",
    "Way",
    "given",
]

_SEARCH = {
    True: re.compile(r"^SEARCH .* \([^=]+>\? AND "),
    False: re.compile(r"^SEARCH .* \([^=]+=\? AND [^=]+>\? AND "),
}
"""How SQLite describes a search for a range, without partitions (True) and in one of them."""

_PARTITION: Any = bindparam("partition", type_=Integer)


@dataclass(frozen=True)
class Way:
    """Say how rows are found.

    Attributes:
        index: the index to name; None if there is none, or the database finds it.
        by_pairs: whether partition and position are compared together.
    """

    index: str | None = None
    by_pairs: bool = False

    def between(
        self, query: Select[Any], source: Source, low: Any, high: Any, *, backwards: bool = False
    ) -> Select[Any]:
        """Choose the rows of a query that lie above one position and not above another, in order.

        Args:
            query: selects from the source's table.
            source: where positions are read; if it has partitions, the rows are those of the
                parameter `partition`.
            low: an expression of a position.
            high: another.
            backwards: whether the highest positions come first.
        """
        here: Any = source.position
        order: list[ColumnElement[Any]] = [source.position]
        if source.partition is not None and self.by_pairs:
            here = tuple_(source.partition, source.position)
            low, high = tuple_(_PARTITION, low), tuple_(_PARTITION, high)
            order = [source.partition, source.position]
        elif source.partition is not None:
            query = query.where(source.partition == _PARTITION)
        query = query.where(here > low, here <= high)
        query = query.order_by(*(each.desc() if backwards else each for each in order))
        return self.through(query, source.table)

    def through(self, query: Select[Any], table: FromClause) -> Select[Any]:
        """Let a query read a table by the index."""
        if self.index is None:
            return query
        named = _NamedIndex._construct(table, name=self.index)  # noqa: SLF001 - as alias() does
        adapted: Select[Any] = ClauseAdapter(named).traverse(query)
        return adapted


class _NamedIndex(Alias):
    """Be a table that is read by one of its indexes, after which it is named."""

    inherit_cache = True


@compiles(_NamedIndex, "sqlite")
def _on_sqlite(element: _NamedIndex, compiler: Any, **options: Any) -> str:
    return _by_index("INDEXED BY {}", element, compiler, options)


@compiles(_NamedIndex, "mysql", "mariadb")
def _on_mysql(element: _NamedIndex, compiler: Any, **options: Any) -> str:
    return _by_index("FORCE INDEX ({})", element, compiler, options)


def _by_index(hint: str, element: _NamedIndex, compiler: Any, options: dict[str, Any]) -> str:
    table: str = compiler.visit_alias(element, **options)
    if options.get("asfrom"):
        table += " " + hint.format(compiler.preparer.quote(element.name))
    return table


def find_way(connection: Connection, source: Source) -> Way:
    """Find the way to the rows that lie next to a place, as the table's indexes are now."""
    if connection.dialect.name == "postgresql":
        by_pairs = source.partition is not None and _is_served_on_postgresql(connection, source)
        return Way(by_pairs=by_pairs)
    if connection.dialect.name == "sqlite":
        return _way_on_sqlite(connection, source)
    return Way(_index_on_mysql(connection, source))


def is_served(connection: Connection, source: Source) -> bool:
    """Tell whether an index leads to the rows that lie next to a place."""
    if connection.dialect.name == "postgresql":
        return _is_served_on_postgresql(connection, source)
    if connection.dialect.name == "sqlite" and _is_row_id(connection, source):
        return True
    return find_way(connection, source).index is not None


def _explained(connection: Connection, source: Source, way: Way, explain: str) -> Any:
    """Return how a database would read the first row behind a place."""
    query: Select[Any] = select(literal_column("1")).select_from(source.table)
    example = _example(source.position.type)
    query = way.between(query, source, example, example).limit(1)
    statement = query.params(partition=0).compile(
        connection, compile_kwargs={"literal_binds": True}
    )
    return connection.exec_driver_sql(f"{explain} {statement}")


def _example(kind: Any) -> ColumnElement[Any]:
    """Return a value of a type that events are found by."""
    if isinstance(kind, Integer):
        return literal_column("0")
    return cast(
        literal_column(f"'{UUID(int=0) if isinstance(kind, Uuid) else '2000-01-01'}'"), kind
    )


def _is_served_on_postgresql(connection: Connection, source: Source) -> bool:
    """Tell whether an index of PostgreSQL has the order, be it of columns or of expressions."""
    way = Way(by_pairs=source.partition is not None)
    found = _explained(connection, source, way, "EXPLAIN (FORMAT JSON)").scalar_one()
    plan = found if isinstance(found, list) else json.loads(found)
    nodes = [*_nodes(plan[0]["Plan"])]
    scans = [node for node in nodes if "Relation Name" in node]
    sorts = [node for node in nodes if node["Node Type"] in {"Sort", "Incremental Sort"}]
    wanted = "ROW(" if way.by_pairs else "("
    return not sorts and all(wanted in node.get("Index Cond", "") for node in scans)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def _way_on_sqlite(connection: Connection, source: Source) -> Way:
    """Find an index of SQLite by trying them all, for not all of them are of columns."""
    if not isinstance(source.table, Table) or _is_row_id(connection, source):
        return Way()
    known = text("SELECT name FROM pragma_index_list(:name, :schema) ORDER BY seq")
    names = {"name": source.table.name, "schema": source.table.schema or "main"}
    for index in connection.scalars(known, names).all():
        try:
            plan = _explained(connection, source, Way(index), "EXPLAIN QUERY PLAN").all()
        except OperationalError:  # this one has only some of the rows
            continue
        if len(plan) == 1 and _SEARCH[source.partition is None].search(plan[0].detail):
            return Way(index)
    return Way()


def _is_row_id(connection: Connection, source: Source) -> bool:
    """Tell whether rows are found by the number that SQLite keeps them by, without an index."""
    plan = _explained(connection, source, Way(), "EXPLAIN QUERY PLAN").all()
    return source.partition is None and "USING INTEGER PRIMARY KEY (rowid>?" in plan[0].detail


def _index_on_mysql(connection: Connection, source: Source) -> str | None:
    """Find an index of columns; an expression has none there without a column of its own."""
    keys = [key for key in (source.partition, source.position) if key is not None]
    names = [key.name for key in keys if isinstance(key, Column)]
    if not isinstance(source.table, Table) or len(names) < len(keys):
        return None
    look, table, schema = inspect(connection), source.table.name, source.table.schema
    key = look.get_pk_constraint(table, schema)["constrained_columns"]
    if key[: len(names)] == names:
        return "PRIMARY"
    for index in look.get_indexes(table, schema):
        if index["column_names"][: len(names)] == names and not index.get("column_sorting"):
            return index["name"]
    return None


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
        return is_served(connection, self.source)

    def create(self, connection: Connection) -> str | None:
        """Return the statement that creates it; None where the database has no such index."""
        source = self.source
        keys = [key for key in (source.partition, source.position, *self.more) if key is not None]
        columns = all(isinstance(key, Column) for key in keys)
        if not isinstance(source.table, Table) or not (
            columns or connection.dialect.name in {"postgresql", "sqlite"}
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
        # A dialect of its own, which leaves percent signs as they are.
        make: Any = type(connection.dialect)
        dialect: Dialect = make(paramstyle="named")
        return str(CreateIndex(index).compile(dialect=dialect))


def _copied(table: Table, key: ColumnElement[Any]) -> Any:
    """Return a key in terms of a copy of its table."""

    def replace(part: Any, **_: Any) -> Any:
        return table.c.get(part.key) if isinstance(part, Column) else None

    traverse: Any = replacement_traverse  # it is typed for more than expressions
    return traverse(key, {}, replace)
