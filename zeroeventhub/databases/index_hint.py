"""Make a database read rows in the order of their positions, by the index of both columns.

A planner uses statistics, which may be missing or old, and do not describe two columns together.
It may scan the primary key over millions of rows of other partitions, or all rows of a partition
before the cursor. So each query forces the index of partition and position: on PostgreSQL by
comparing pairs of columns, whose order only that index has, without sorting; on MariaDB, MySQL and
SQLite by the index's name.
"""

from dataclasses import dataclass
from threading import Lock
from typing import Any
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

_PARTITION: Any = bindparam("partition", type_=Integer)

# Statements of a feed share expressions. SQLAlchemy stores what it finds out of an expression in
# two steps; a copy that another thread makes in between would still read the table without the
# hint, beside the one with it, and each row would come as often as there are rows.
_copying = Lock()


@dataclass(frozen=True)
class Keyset:
    """The columns by which a feed reads pages.

    Attributes:
        position: the column of the order.
        partition: the column before it in the index; None for one partition.
    """

    table: FromClause
    position: ColumnElement[Any]
    partition: ColumnElement[Any] | None


@dataclass(frozen=True)
class IndexHint:
    """How a query makes a database use an index.

    Attributes:
        index: the index to name; None if the table has none, or the database finds it.
        clause: the SQL after the table, with braces for the index's name.
        by_pairs: whether to compare partition and position as a pair.
    """

    index: str | None = None
    clause: str = ""
    by_pairs: bool = False

    def between(
        self, query: Select[Any], keys: Keyset, low: Any, high: Any, *, backwards: bool = False
    ) -> Select[Any]:
        """Restrict a query to the rows in (low, high], in order, or backwards.

        With a partition column, to those of the parameter `partition`.
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
        """Make a query read a table by the index."""
        if self.index is None:
            return query
        named = _NamedIndex._construct(table, name=self.index)  # noqa: SLF001 - as alias() does
        named.clause = self.clause
        with _copying:
            adapted: Select[Any] = ClauseAdapter(named).traverse(query)
        return adapted


class _NamedIndex(Alias):
    """A table followed by the clause that names the index to read it by."""

    inherit_cache = True
    clause: str


@compiles(_NamedIndex)
def _by_index(element: _NamedIndex, compiler: Any, **options: Any) -> str:
    table: str = compiler.visit_alias(element, **options)
    if options.get("asfrom"):
        table += " " + element.clause.format(compiler.preparer.quote(element.name))
    return table


def explain(connection: Connection, keys: Keyset, hint: IndexHint, command: str) -> Any:
    """Return the plan that an EXPLAIN command prints for reading the first row after a position."""
    query: Select[Any] = select(literal_column("1")).select_from(keys.table)
    example = _example(keys.position.type)
    query = hint.between(query, keys, example, example).limit(1)
    translated = connection.get_execution_options().get("schema_translate_map") or {}
    statement = query.params(partition=0).compile(
        connection,
        schema_translate_map={**translated},
        render_schema_translate=True,
        compile_kwargs={"literal_binds": True},
    )
    return connection.exec_driver_sql(f"{command} {statement}")


def _example(kind: Any) -> ColumnElement[Any]:
    """Return some value of a type, to explain a query with."""
    if isinstance(kind, Integer):
        return literal_column("0")
    return cast(
        literal_column(f"'{UUID(int=0) if isinstance(kind, Uuid) else '2000-01-01'}'"), kind
    )
