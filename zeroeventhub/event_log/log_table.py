"""The table of a log, and the statements that insert its rows."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Identity,
    Index,
    MetaData,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, scoped_session

from zeroeventhub.databases import database_of
from zeroeventhub.databases.bulk_insert import (
    converted,
    insert_columns,
    insert_statement,
    table_form,
)
from zeroeventhub.databases.error_codes import is_duplicate
from zeroeventhub.databases.statements import (
    StatementMoment,
    document,
    exact,
    fine_moment,
    row_number,
)
from zeroeventhub.databases.transactions import commits_each, driver_commits_each
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.new_events import LONGEST_NAME


class DuplicateKey(Exception):
    """Raised when a unique value exists already."""


def insert_row(connection: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Insert a row of values by column name, with JSON as text; the transaction stays usable.

    Raises:
        DuplicateKey: nothing was inserted.
        Unfit: a column does not take a value, though SQLAlchemy may store another one.
    """
    columns = table_form(table, connection.dialect).columns
    chosen = tuple(columns[name] for name in row)
    converted(chosen, [one.bind for one in chosen], [tuple(row.values())])
    statement = insert_statement(chosen, connection.dialect, is_new=True)
    values = {form.column.key: row[name] for name, form in zip(row, chosen, strict=True)}
    try:
        counted = {"preserve_rowcount": True}
        inserted = connection.execute(statement, values, execution_options=counted).rowcount
    except IntegrityError as error:
        if database_of(connection).aborts_on_error or not is_duplicate(error):
            raise
        raise DuplicateKey from error
    if inserted != 1:
        raise DuplicateKey


def insert_rows(
    connection: Connection,
    table: Table,
    rows: Sequence[Mapping[str, Any]],
    *,
    are_exact: bool = False,
) -> None:
    """Insert rows of the same columns, in order, with JSON as text; see `insert_columns`.

    Raises:
        DuplicateKey: some rows exist already, and the rest may have been inserted.
    """
    if not rows:
        return
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    try:
        insert_columns(connection, table, columns, are_exact=are_exact)
    except IntegrityError as error:
        if not is_duplicate(error):
            raise
        raise DuplicateKey from error


def connected(handle: Any, table: Table) -> Connection:
    """Return the connection of a caller's transaction for a table."""
    if isinstance(handle, scoped_session):
        handle = handle()
    if isinstance(handle, Session):
        handle = handle.connection(bind_arguments={"clause": table})
    if not isinstance(handle, Connection):
        raise ConfigurationError(
            f"{type(handle).__name__} is not a Connection or a Session: give that of your "
            "transaction; from async code, `await connection.run_sync(log.append, events)`."
        )
    return handle


def writing(handle: Any, table: Table) -> Connection:
    """Return the connection for an append; refuse one that commits each statement."""
    connection = connected(handle, table)
    if commits_each(connection) or driver_commits_each(connection):
        raise ConfigurationError(
            "This connection commits each statement, but an append needs a transaction: give a "
            "connection without AUTOCOMMIT, also that of its driver."
        )
    return connection


def snapshot_table(metadata: MetaData, name: str, schema: str | None) -> Table:
    """Add the table of the snapshots of a log's keys to the caller's metadata."""
    return Table(
        f"{name}_snapshots",
        metadata,
        Column("key", exact(String(LONGEST_NAME)), primary_key=True),
        Column("version", BigInteger, nullable=False),
        Column("data", document(), nullable=False),
        schema=schema,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


def log_table(
    metadata: MetaData, name: str, schema: str | None = None, ordering: str | None = None
) -> Table:
    """Add the table of a log to the caller's metadata; the arguments are those of EventLog."""
    if not isinstance(cast("object", metadata), MetaData):
        raise ConfigurationError(
            "A log joins your MetaData: EventLog(metadata, 'events'), with metadata = MetaData()."
        )
    # With positions in a side table, a moment is searched in all partitions at once.
    by_time = ("time",) if ordering == "sequenced" else ("partition", "time", "position")
    return Table(
        name,
        metadata,
        Column("position", row_number(), Identity(always=True), primary_key=True),
        Column("partition", SmallInteger, nullable=False),
        Column("id", exact(String(LONGEST_NAME)), nullable=False),
        Column("key", exact(String(LONGEST_NAME))),
        Column("version", BigInteger),
        Column("type", exact(String(LONGEST_NAME)), nullable=False),
        Column("time", fine_moment(), nullable=False, server_default=StatementMoment()),
        Column("data", document(), nullable=False),
        UniqueConstraint("id", name=f"{name}_id"),
        # NULL versions are distinct, so a key may have any number of events without a version.
        UniqueConstraint("key", "version", name=f"{name}_key_version"),
        Index(f"{name}_partition_position", "partition", "position"),
        Index(f"{name}_time", *by_time),
        schema=schema,
        sqlite_autoincrement=True,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )
