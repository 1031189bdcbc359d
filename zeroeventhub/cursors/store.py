"""Where a consumer keeps its cursors: a table in its own database."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Engine,
    Insert,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    Update,
    and_,
    func,
    insert,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.errors import ConfigurationError, Fenced
from zeroeventhub.protocol import FIRST

__all__ = ["CursorStore", "cursor_table", "metadata"]

CONSUMER_NAME_LENGTH = 200


def cursor_table(metadata: MetaData, *, schema: str | None = None) -> Table:
    """Add the table of cursors to metadata of your own.

    Args:
        metadata: what the table joins, so that migrations find it.
        schema: the database schema; None for the connection's default.
    """
    return Table(
        "zeroeventhub_cursors",
        metadata,
        Column("consumer", String(CONSUMER_NAME_LENGTH), primary_key=True),
        Column("partition", Integer, primary_key=True, autoincrement=False),
        Column("cursor", Text, nullable=False),
        Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
        schema=schema,
    )


metadata = MetaData()
"""Metadata that holds the table of cursors, for Alembic's `target_metadata`."""

_default_table = cursor_table(metadata)


class CursorStore:
    """Keep the cursors of consumers in a SQL database.

    Args:
        engine: the consumer's own database, sync or async.
        table: a table made by `cursor_table`; by default the one in this module's `metadata`.
    """

    def __init__(self, engine: Engine | AsyncEngine, *, table: Table = _default_table) -> None:
        self.engine = engine
        self.table = table

    def create_tables(self, connection: Connection) -> None:
        """Create the table unless it exists; async: `await connection.run_sync(…)`."""
        self.table.metadata.create_all(connection, tables=[self.table])

    def load(
        self,
        connection: Connection,
        consumer: str,
        partition: int,
        *,
        start: str = FIRST,
        inherit_from: Sequence[int] = (),
    ) -> str:
        """Return a consumer's cursor in a partition, writing the start if there is none.

        Args:
            connection: a connection to the store, in a transaction.
            consumer: the consumer's name.
            partition: the partition's id.
            start: the cursor of a consumer that has none.
            inherit_from: partitions whose cursors are valid here too, nearest first
                (FeedAPI v2, Method 2 to change partition count).
        """
        columns = self.table.c
        query = select(columns.partition, columns.cursor).where(
            columns.consumer == consumer, columns.partition.in_((partition, *inherit_from))
        )
        known = {row.partition: row.cursor for row in connection.execute(query)}
        if partition not in known:
            inherited = (known[parent] for parent in inherit_from if parent in known)
            row = {
                "consumer": consumer,
                "partition": partition,
                "cursor": next(inherited, start),
            }
            connection.execute(self._insert_unless_there(connection.dialect.name).values(row))
            known = {row.partition: row.cursor for row in connection.execute(query)}
        return str(known[partition])

    def _insert_unless_there(self, dialect: str) -> Insert:
        # Two processes may start with one consumer name at the same moment.
        match dialect:
            case "postgresql":
                return postgresql.insert(self.table).on_conflict_do_nothing()
            case "sqlite":
                return sqlite.insert(self.table).on_conflict_do_nothing()
            case _:
                return insert(self.table).prefix_with("IGNORE", dialect="mysql")

    def move(self, consumer: str, partition: int, old: str, new: str) -> Update:
        """Build the statement that moves a cursor, and matches no row unless it stands at old."""
        columns = self.table.c
        return (
            self.table.update()
            .where(
                and_(
                    columns.consumer == consumer,
                    columns.partition == partition,
                    columns.cursor == old,
                )
            )
            .values(cursor=new, updated_at=func.now())
        )

    @staticmethod
    def confirm(result: Any, consumer: str, partition: int) -> None:
        """Check that a move matched its row.

        Raises:
            Fenced: it did not; the transaction has to be rolled back.
        """
        if result.rowcount != 1:
            raise Fenced(
                f"The cursor of consumer {consumer!r} in partition {partition} has moved since "
                "this page was read; roll back: another process has applied the page."
            )


def check_consumer_name(name: str) -> None:
    """Raise ConfigurationError unless a name can be a consumer's key in the store."""
    if not 0 < len(name) <= CONSUMER_NAME_LENGTH:
        raise ConfigurationError(
            f"A consumer's name has 1 to {CONSUMER_NAME_LENGTH} characters; this one {len(name)}."
        )
