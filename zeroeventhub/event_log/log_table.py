"""The table of a log: one row an event, and an index for every question that is asked of it."""

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
)
from sqlalchemy.dialects.mysql import DATETIME
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from zeroeventhub.event_log.new_event import LONGEST_NAME

__all__ = ["log_table"]


def log_table(
    metadata: MetaData, name: str, schema: str | None = None, ordering: str | None = None
) -> Table:
    """Add the table of a log to metadata of the caller's.

    Args:
        metadata: what the table joins, so that migrations find it.
        name: the table's name.
        schema: the database schema; None for the connection's default.
        ordering: that of its feed; None for the first of the database.
    """
    # With positions beside the table, events of a moment are found in all partitions at once.
    by_time = ("time",) if ordering == "sequenced" else ("partition", "time", "position")
    return Table(
        name,
        metadata,
        Column(
            "position",
            BigInteger().with_variant(Integer, "sqlite"),
            Identity(always=True),
            primary_key=True,
        ),
        Column("partition", SmallInteger, nullable=False),
        Column("id", _name(), nullable=False),
        Column("key", _name()),
        Column("version", BigInteger),
        Column("type", _name(), nullable=False),
        Column("time", _MOMENT, nullable=False, server_default=AppendedAt()),
        Column("data", JSON().with_variant(JSONB(), "postgresql"), nullable=False),
        UniqueConstraint("id", name=f"{name}_id"),
        # Any number of events without a version are unlike each other.
        UniqueConstraint("key", "version", name=f"{name}_key_version"),
        Index(f"{name}_partition_position", "partition", "position"),
        Index(f"{name}_time", *by_time),
        schema=schema,
        sqlite_autoincrement=True,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


class AppendedAt(FunctionElement[datetime]):
    """The moment of the statement that appends, in UTC wherever the type itself has no zone."""

    type = DateTime(timezone=True)
    inherit_cache = True
    name = "appended_at"


@compiles(AppendedAt)
def _appended_at(*_: Any, **__: Any) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(AppendedAt, "postgresql")
def _appended_at_postgresql(*_: Any, **__: Any) -> str:
    # CURRENT_TIMESTAMP is when the transaction began.
    return "statement_timestamp()"


@compiles(AppendedAt, "mysql", "mariadb")
def _appended_at_mysql(*_: Any, **__: Any) -> str:
    return "(UTC_TIMESTAMP(6))"


@compiles(AppendedAt, "sqlite")
def _appended_at_sqlite(*_: Any, **__: Any) -> str:
    # Moments are compared as text, with six decimals.
    return "(strftime('%Y-%m-%d %H:%M:%f000', 'now'))"


def _name() -> TypeEngine[str]:
    """Compare every character as it is, which MariaDB and MySQL do if a column says so."""
    exact = String(LONGEST_NAME, collation="utf8mb4_bin")
    return String(LONGEST_NAME).with_variant(exact, "mysql", "mariadb")


# MariaDB and MySQL keep whole seconds unless told otherwise.
_MOMENT = DateTime(timezone=True).with_variant(DATETIME(fsp=6), "mysql", "mariadb")
