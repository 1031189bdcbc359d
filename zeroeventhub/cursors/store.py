"""Where a consumer keeps its cursors: a table in its own database."""

from collections.abc import Collection, Mapping, Sequence
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
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import TypeEngine

from zeroeventhub.errors import ConfigurationError, Fenced, TokenChanged
from zeroeventhub.protocol import FIRST

__all__ = ["CursorStore", "cursor_table", "metadata"]

CONSUMER_NAME_LENGTH = 200

HANDED_OVER = ""
"""What stands in place of the cursor of a partition that others have taken over."""

_CREATION = 0x7A65726F  # names the lock; "zero" in ASCII


def _exact(kind: String) -> TypeEngine[str]:
    """Compare every character as it is, which MariaDB and MySQL do if a column says so."""
    return kind.with_variant(type(kind)(kind.length, collation="utf8mb4_bin"), "mysql", "mariadb")


def cursor_table(metadata: MetaData, *, schema: str | None = None) -> Table:
    """Add the table of cursors to metadata of your own.

    Args:
        metadata: what the table joins, so that migrations find it.
        schema: the database schema; None for the connection's default.
    """
    return Table(
        "zeroeventhub_cursors",
        metadata,
        Column("consumer", _exact(String(CONSUMER_NAME_LENGTH)), primary_key=True),
        Column("partition", Integer, primary_key=True, autoincrement=False),
        Column("cursor", _exact(Text()), nullable=False),
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
        if connection.dialect.name == "postgresql":
            # There, two processes that create one table at the same moment get an error.
            connection.execute(select(func.pg_advisory_xact_lock(_CREATION)))
        connection.execute(CreateTable(self.table, if_not_exists=True))

    def load(
        self, connection: Connection, consumer: str, partition: int, *, start: str = FIRST
    ) -> str:
        """Return a consumer's cursor in a partition, writing the start if there is none.

        Args:
            connection: a connection to the store, in a transaction.
            consumer: the consumer's name.
            partition: the partition's id.
            start: the cursor of a consumer that has none.

        Raises:
            TokenChanged: others have taken the cursor over, and the feed that still shows this
                partition is behind.
        """
        columns = self.table.c
        query = select(columns.cursor).where(
            columns.consumer == consumer, columns.partition == partition
        )
        cursor = connection.scalar(query)
        if cursor is None:
            self._insert_unless_there(connection, consumer, partition, start)
            # A rival's row may be newer than the snapshot that MariaDB and MySQL read; only a
            # locking read is sure to find it.
            cursor = connection.scalars(query.with_for_update()).one()
        if cursor == HANDED_OVER:
            raise TokenChanged(
                f"Other partitions have taken over from partition {partition}: the feed shows "
                "partitions from before that change."
            )
        return str(cursor)

    def cursors(self, connection: Connection, consumer: str) -> dict[int, str]:
        """Return all cursors of a consumer, by partition."""
        columns = self.table.c
        query = select(columns.partition, columns.cursor).where(
            columns.consumer == consumer, columns.cursor != HANDED_OVER
        )
        return {row.partition: row.cursor for row in connection.execute(query)}

    def begin(
        self, connection: Connection, consumer: str, partitions: Collection[int], start: str
    ) -> None:
        """Let a consumer that is new start where it wants to, in all partitions at once.

        In partitions that come later it starts at the first event: they are all news to it.

        Args:
            connection: a connection to the store, in a transaction.
            consumer: the consumer's name.
            partitions: those that it reads.
            start: the cursor to start from.
        """
        columns = self.table.c
        known = select(columns.partition).where(columns.consumer == consumer).limit(1)
        if connection.execute(known).first() is None:
            for partition in partitions:
                self._insert_unless_there(connection, consumer, partition, start)

    def inherit(
        self,
        connection: Connection,
        consumer: str,
        heirs: Mapping[int, Sequence[int]],
        remaining: Collection[int],
    ) -> None:
        """Hand cursors of partitions that are gone to those that go on from there.

        FeedAPI v2, Method 2 to change partition count. All heirs start at once, and the cursors of
        parents that are gone go too, so that who still holds a page of one is fenced, and who
        meets a feed that still shows one does not start it again.

        Args:
            connection: a connection to the store, in a transaction.
            consumer: the consumer's name.
            heirs: by partition, those whose cursors are valid in it, nearest first.
            remaining: the partitions that keep their cursors, because they are there to read.
        """
        columns = self.table.c
        of_parents = and_(
            columns.consumer == consumer,
            columns.partition.in_({parent for parents in heirs.values() for parent in parents}),
        )
        # Locks the parents' rows: a commit under way on one of them ends before this goes on.
        connection.execute(self.table.update().where(of_parents).values(updated_at=func.now()))
        known = self.cursors(connection, consumer)
        for heir, parents in heirs.items():
            cursors = (known[parent] for parent in parents if parent in known)
            if (cursor := next(cursors, None)) is not None:
                self._insert_unless_there(connection, consumer, heir, cursor)
                # An heir that was a parent itself, and was gone until now.
                connection.execute(self.move(consumer, heir, HANDED_OVER, cursor))
        connection.execute(
            self.table.update()
            .where(of_parents, columns.partition.not_in(remaining))
            .values(cursor=HANDED_OVER, updated_at=func.now())
        )

    def _insert_unless_there(
        self, connection: Connection, consumer: str, partition: int, cursor: str
    ) -> None:
        # Two processes may start with one consumer name at the same moment.
        statement: Insert
        match connection.dialect.name:
            case "postgresql":
                statement = postgresql.insert(self.table).on_conflict_do_nothing()
            case "sqlite":
                statement = sqlite.insert(self.table).on_conflict_do_nothing()
            case _:
                statement = insert(self.table).prefix_with("IGNORE")
        row = {"consumer": consumer, "partition": partition, "cursor": cursor}
        connection.execute(statement.values(row))

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
