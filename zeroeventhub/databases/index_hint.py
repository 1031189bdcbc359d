"""How rows are read in the order of their positions: by the index of partition and position.

A planner goes by statistics, which are missing, or old, or say nothing of two columns together. It
may walk along the primary key over millions of rows of other partitions, or over all rows of a
partition that lie before the cursor. So each query says what there is to use:

- PostgreSQL compares pairs of columns, whose order only the index of both has, and is kept from
  sorting: for whatever values it plans, there is one plan.
- On MariaDB, MySQL and SQLite it names the index.
"""

from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Select,
    Uuid,
    bindparam,
    cast,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.selectable import Alias
from sqlalchemy.sql.util import ClauseAdapter

__all__ = ["IndexHint", "Keyset", "explain"]

_PARTITION: Any = bindparam("partition", type_=Integer)


class Keyset(Protocol):
    """Name the columns by which rows are read in pages.

    Attributes:
        table: what is read.
        position: the column of the order.
        partition: the column that stands before it in an index; None if there is none.
    """

    @property
    def table(self) -> FromClause: ...  # noqa: D102 - described above
    @property
    def position(self) -> ColumnElement[Any]: ...  # noqa: D102 - the same
    @property
    def partition(self) -> ColumnElement[Any] | None: ...  # noqa: D102 - the same


@dataclass(frozen=True)
class IndexHint:
    """Say how a query gets a database to read by an index.

    Attributes:
        index: the index to name; None if there is none, or the database finds it.
        clause: what names it after the table, with braces in its place.
        by_pairs: whether partition and position are compared together.
    """

    index: str | None = None
    clause: str = ""
    by_pairs: bool = False

    def between(
        self, query: Select[Any], keys: Keyset, low: Any, high: Any, *, backwards: bool = False
    ) -> Select[Any]:
        """Choose the rows of a query that lie above one position and not above another, in order.

        Args:
            query: selects from the table.
            keys: the columns; if there are partitions, the rows are those of the parameter
                `partition`.
            low: an expression of a position.
            high: another.
            backwards: whether the highest positions come first.
        """
        here: Any = keys.position
        order: list[ColumnElement[Any]] = [keys.position]
        if keys.partition is not None and self.by_pairs:
            here = tuple_(keys.partition, keys.position)
            low, high = tuple_(_PARTITION, low), tuple_(_PARTITION, high)
            order = [keys.partition, keys.position]
        elif keys.partition is not None:
            query = query.where(keys.partition == _PARTITION)
        query = query.where(here > low, here <= high)
        query = query.order_by(*(each.desc() if backwards else each for each in order))
        return self.through(query, keys.table)

    def through(self, query: Select[Any], table: FromClause) -> Select[Any]:
        """Let a query read a table by the index."""
        if self.index is None:
            return query
        named = _NamedIndex._construct(table, name=self.index)  # noqa: SLF001 - as alias() does
        named.clause = self.clause
        adapted: Select[Any] = ClauseAdapter(named).traverse(query)
        return adapted


class _NamedIndex(Alias):
    """Be a table that is read by one of its indexes, after which it is named."""

    inherit_cache = True
    clause: str


@compiles(_NamedIndex)
def _by_index(element: _NamedIndex, compiler: Any, **options: Any) -> str:
    table: str = compiler.visit_alias(element, **options)
    if options.get("asfrom"):
        table += " " + element.clause.format(compiler.preparer.quote(element.name))
    return table


def explain(connection: Connection, keys: Keyset, hint: IndexHint, command: str) -> Any:
    """Return how a database would read the first row after a position.

    Args:
        connection: to the database.
        keys: the columns.
        hint: how it is to read.
        command: what explains a statement.
    """
    query: Select[Any] = select(literal_column("1")).select_from(keys.table)
    example = _example(keys.position.type)
    query = hint.between(query, keys, example, example).limit(1)
    statement = query.params(partition=0).compile(
        connection, compile_kwargs={"literal_binds": True}
    )
    return connection.exec_driver_sql(f"{command} {statement}")


def _example(kind: Any) -> ColumnElement[Any]:
    """Return a value of a type that events are found by."""
    if isinstance(kind, Integer):
        return literal_column("0")
    return cast(
        literal_column(f"'{UUID(int=0) if isinstance(kind, Uuid) else '2000-01-01'}'"), kind
    )
