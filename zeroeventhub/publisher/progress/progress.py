"""The table in which a publisher keeps how far its consumers have come."""

from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Double,
    Integer,
    MetaData,
    Table,
    inspect,
)

from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.retention.retention import (
    create_unless_there,
    creation,
    exact,
    schema_of,
)

__all__ = ["Progress", "Registered"]

NAME = "zeroeventhub_progress"

NAME_LENGTH = 200
"""The most characters that the name of a consumer has."""

_PRINCIPAL_LENGTH = 256
_FEED_LENGTH = 250
_CURSOR_LENGTH = 250


@dataclass(frozen=True)
class Registered:
    """Say how far a consumer said that it has come.

    Attributes:
        consumer: its name.
        principal: who said so; empty where nobody is told apart.
        partition: of which partition.
        cursor: where it has committed.
        heard: how many seconds ago it said so.
    """

    consumer: str
    principal: str
    partition: int
    cursor: str
    heard: float

    @property
    def name(self) -> str:
        """Name it to people."""
        by = f" of {self.principal!r}" if self.principal else ""
        return f"Consumer {self.consumer!r}{by}"


class Progress:
    """Keep in a table how far consumers of the feeds over the tables beside it have come.

    Args:
        metadata: what the table joins, so that migrations find it; None for one of its own.
        schema: the database schema, which is that of the feeds' tables.

    Attributes:
        table: has a row for each consumer and partition of a feed.
    """

    def __init__(self, metadata: MetaData | None = None, *, schema: str | None = None) -> None:
        metadata = MetaData() if metadata is None else metadata
        known = metadata.tables.get(NAME if schema is None else f"{schema}.{NAME}")
        self.table = _table(metadata, schema) if known is None else known

    @classmethod
    def beside(cls, source: Source) -> "Progress":
        """Return the one of the feed over a table."""
        return cls(schema=schema_of(source))

    def is_there(self, connection: Connection) -> bool:
        """Tell whether the table is there."""
        schema = connection.schema_for_object(self.table)
        return inspect(connection).has_table(self.table.name, schema=schema)

    def statement(self, dialect: Dialect) -> str:
        """Return the statement that creates the table."""
        return creation(dialect, self.table)

    def create_tables(self, connection: Connection) -> None:
        """Create the table unless it exists; `TableFeed.install` does.

        Args:
            connection: in a transaction of yours, to the feeds' database.
        """
        create_unless_there(connection, self.table)


def _table(metadata: MetaData, schema: str | None) -> Table:
    return Table(
        NAME,
        metadata,
        Column("feed", exact(_FEED_LENGTH), primary_key=True),
        Column("principal", exact(_PRINCIPAL_LENGTH), primary_key=True),
        Column("consumer", exact(NAME_LENGTH), primary_key=True),
        Column("partition", Integer, primary_key=True, autoincrement=False),
        Column("cursor", exact(_CURSOR_LENGTH), nullable=False),
        Column("position", BigInteger, nullable=False),
        Column("heard_at", Double, nullable=False),
        schema=schema,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
