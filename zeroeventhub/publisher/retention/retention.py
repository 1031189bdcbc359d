"""The table that says how much of their histories feeds still have."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    MetaData,
    String,
    Table,
    Text,
    func,
    inspect,
    select,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import TypeEngine

from zeroeventhub.publisher.ordering import Source

__all__ = ["Retention", "create_unless_there", "creation", "exact", "schema_of"]

NAME = "zeroeventhub_retention"

_COLLATION = "utf8mb4_bin"
_NAME_LENGTH = 250
_CURSOR_LENGTH = 250
_CREATION = 0x7A65726F  # names the lock; "zero" in ASCII


class Retention:
    """Keep in a table what has been trimmed of the feeds over the tables beside it.

    Args:
        metadata: what the table joins, so that migrations find it; None for one of its own.
        schema: the database schema, which is that of the feeds' tables.

    Attributes:
        table: has one row a feed.
    """

    def __init__(self, metadata: MetaData | None = None, *, schema: str | None = None) -> None:
        metadata = MetaData() if metadata is None else metadata
        known = metadata.tables.get(NAME if schema is None else f"{schema}.{NAME}")
        self.table = _table(metadata, schema) if known is None else known

    def create_tables(self, connection: Connection) -> None:
        """Create the table unless it exists; `TableFeed.install` does, and adds the feed's row.

        Args:
            connection: in a transaction of yours, to the feeds' database.
        """
        create_unless_there(connection, self.table)


def create_unless_there(connection: Connection, table: Table) -> None:
    """Create a table unless it exists, also beside others who do."""
    if connection.dialect.name == "postgresql":
        # There, two processes that create one table at the same moment get an error.
        connection.execute(select(func.pg_advisory_xact_lock(_CREATION)))
    if not inspect(connection).has_table(table.name, schema=table.schema):
        connection.execute(CreateTable(table, if_not_exists=True))


def creation(dialect: Dialect, table: Table) -> str:
    """Return the statement that creates a table."""
    # A dialect of its own, which leaves percent signs as they are.
    make: Any = type(dialect)
    plain: Dialect = make(paramstyle="named")
    return str(CreateTable(table, if_not_exists=True).compile(dialect=plain)).strip()


def schema_of(source: Source) -> str | None:
    """Return the schema of the feed's table."""
    table: Any = source.table if source.events is None else source.events
    schema: str | None = table.schema
    return schema


def _table(metadata: MetaData, schema: str | None) -> Table:
    return Table(
        NAME,
        metadata,
        Column("feed", exact(_NAME_LENGTH), primary_key=True),
        Column("trimmed", BigInteger, nullable=False, server_default="0"),
        Column("earliest", exact(_CURSOR_LENGTH), nullable=False),
        Column("compacted", BigInteger, nullable=False, server_default="0"),
        Column("partitions", Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")),
        schema=schema,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


def exact(length: int) -> TypeEngine[str]:
    """Compare every character as it is, which MariaDB and MySQL do if a column says so."""
    kind = String(length, collation=_COLLATION)
    return String(length).with_variant(kind, "mysql", "mariadb")
