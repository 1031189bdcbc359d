"""The tables in a consumer's own database."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    DateTime,
    Double,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    false,
    func,
)
from sqlalchemy.schema import SchemaItem

from zeroeventhub.databases.statements import Moment, exact, long_text, row_number
from zeroeventhub.protocol import NAME_LENGTH

HANDED_OVER = ""
"""The mark instead of a cursor for a partition that other partitions have replaced."""

_DIGEST_LENGTH = 64


@dataclass(frozen=True)
class Tables:
    """The tables of a store.

    Attributes:
        cursors: the cursor and epoch of each consumer in each partition.
        leases: which process of a consumer reads a partition, and until when.
        members: the processes that share a consumer's partitions.
        inbox: the ids of events that were applied, of feeds that may publish an event twice.
        dead_letters: events that could not be applied, and those held back after them.
        lanes: how far the parallel lanes of a page have applied it.
        failures: the errors of pages that are tried again, and of those at which partitions halted.
    """

    cursors: Table
    leases: Table
    members: Table
    inbox: Table
    dead_letters: Table
    lanes: Table
    failures: Table

    def all(self) -> tuple[Table, ...]:
        """Return the tables in the order in which they are created."""
        return tuple(vars(self).values())


def cursor_tables(metadata: MetaData, *, schema: str | None = None) -> Tables:
    """Add the tables of a store to your metadata.

    Args:
        metadata: the MetaData that the tables are added to, so that migrations find them.
        schema: the database schema; None for the connection's default.

    Returns:
        The tables, for the `tables` of a CursorStore.
    """

    def table(name: str, *parts: SchemaItem) -> Table:
        return Table(
            f"zeroeventhub_{name}",
            metadata,
            Column("consumer", exact(String(NAME_LENGTH)), primary_key=name != "dead_letters"),
            *parts,
            schema=schema,
            sqlite_autoincrement=name == "dead_letters",
            mysql_engine="InnoDB",
            mariadb_engine="InnoDB",
        )

    return Tables(
        cursors=table(
            "cursors",
            _partition(primary_key=True),
            Column("cursor", exact(Text()), nullable=False),
            Column("epoch", BigInteger, nullable=False, server_default="0"),
            Column("ended", Boolean, nullable=False, server_default=false()),
            Column(
                "updated_at", _MOMENT, nullable=False, default=Moment(), server_default=func.now()
            ),
        ),
        leases=table(
            "leases",
            _partition(primary_key=True),
            Column("owner", exact(String(NAME_LENGTH))),
            Column("expires_at", Double, nullable=False),
        ),
        members=table(
            "members",
            Column("owner", exact(String(NAME_LENGTH)), primary_key=True),
            Column("expires_at", Double, nullable=False),
        ),
        inbox=table(
            "inbox",
            Column("digest", exact(String(_DIGEST_LENGTH)), primary_key=True),
            _partition(),
            Column("seen_at", Double, nullable=False),
            # Created with the table everywhere, which an index is not.
            UniqueConstraint("consumer", "seen_at", "digest", name="zeroeventhub_inbox_age"),
        ),
        dead_letters=table(
            "dead_letters",
            Column("id", row_number(), primary_key=True),
            _partition(),
            Column("key", long_text()),
            Column("key_digest", exact(String(_DIGEST_LENGTH))),
            Column("event", long_text(), nullable=False),
            Column("headers", long_text(), nullable=False),
            Column("error", long_text(), nullable=False),
            Column("traceback", long_text(), nullable=False),
            Column("tries", Integer, nullable=False),
            Column("state", String(10), nullable=False),
            Column("created_at", _MOMENT, nullable=False, default=Moment()),
            UniqueConstraint("consumer", "key_digest", "id", name="zeroeventhub_dead_letters_key"),
            UniqueConstraint(
                "consumer", "partition", "id", name="zeroeventhub_dead_letters_partition"
            ),
        ),
        lanes=table(
            "lanes",
            _partition(primary_key=True),
            Column("lane", Integer, primary_key=True, autoincrement=False),
            Column("lanes", Integer, nullable=False),
            Column("cursor", exact(Text()), nullable=False),
            Column("done", BigInteger, nullable=False),
        ),
        failures=table(
            "failures",
            _partition(primary_key=True),
            Column("cursor", exact(Text()), nullable=False),
            Column("epoch", BigInteger, nullable=False),
            Column("error", long_text(), nullable=False),
            Column("tries", Integer, nullable=False),
            Column("since", _MOMENT, nullable=False, default=Moment()),
            # When the page is tried again; NULL where the partition halted.
            Column("retry_at", Double),
        ),
    )


def is_at(column: ColumnElement[str], cursor: str | ColumnElement[str]) -> ColumnElement[bool]:
    """Compare a cursor including trailing spaces, which MariaDB and MySQL ignore."""
    return and_(column == cursor, func.length(column) == func.length(cursor))


def is_row(table: Table, consumer: Any, partition: Any) -> ColumnElement[bool]:
    """Compare the consumer and the partition of a row."""
    return and_(table.c.consumer == consumer, table.c.partition == partition)


def is_place(table: Table, consumer: Any, partition: Any, place: Any) -> ColumnElement[bool]:
    """Compare a row with a Place, or with the columns `cursor` and `epoch` of another table."""
    return and_(
        is_row(table, consumer, partition),
        is_at(table.c.cursor, place.cursor),
        table.c.epoch == place.epoch,
    )


def _partition(*, primary_key: bool = False) -> Column[int]:
    return Column(
        "partition", Integer, primary_key=primary_key, autoincrement=False, nullable=False
    )


_MOMENT = DateTime(timezone=True)

cursor_metadata = MetaData()
"""Metadata that holds the tables of a store, for Alembic's `target_metadata`."""

default = cursor_tables(cursor_metadata)
"""The tables of a store whose caller passes none."""
