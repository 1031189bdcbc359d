"""The indexes that the queries of a feed need, and the SQL that creates one that is missing."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Dialect, Index, MetaData, Table
from sqlalchemy.schema import CreateIndex
from sqlalchemy.sql.visitors import replacement_traverse

from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.way import is_served

__all__ = ["NeededIndex"]

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
