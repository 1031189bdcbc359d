"""Write rows that others may be writing at the same moment, and read past what they lock."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Insert, Select, Table, insert
from sqlalchemy.dialects import mysql, postgresql, sqlite

__all__ = ["insert_unless_there", "past_locks", "put"]


def insert_unless_there(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]
) -> int:
    """Insert rows whose keys are free, and return how many were."""
    if not rows:
        return 0
    statement: Insert
    match connection.dialect.name:
        case "postgresql":
            statement = postgresql.insert(table).on_conflict_do_nothing()
        case "sqlite":
            statement = sqlite.insert(table).on_conflict_do_nothing()
        case _:
            statement = insert(table).prefix_with("IGNORE")
    counted = {"preserve_rowcount": True}
    return connection.execute(statement, list(rows), execution_options=counted).rowcount


def put(
    connection: Connection,
    table: Table,
    row: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> None:
    """Insert a row or change the one that is there, and lock it either way.

    MariaDB and MySQL lock the gap where they look for a row that is not there, so that two who look
    first and insert then would wait in a ring.

    Args:
        connection: a connection to the store, in a transaction.
        table: the row's table.
        row: the row if there is none of its key.
        changes: what to change in the one that is there.
    """
    keys = [column.name for column in table.primary_key]
    statement: Insert
    match connection.dialect.name:
        case "postgresql":
            statement = postgresql.insert(table).on_conflict_do_update(
                index_elements=keys, set_=changes
            )
        case "sqlite":
            statement = sqlite.insert(table).on_conflict_do_update(
                index_elements=keys, set_=changes
            )
        case _:
            statement = mysql.insert(table).on_duplicate_key_update(dict(changes))
    connection.execute(statement, dict(row))


def past_locks(connection: Connection, query: Select[Any]) -> Select[Any]:
    """Return a query that passes over rows which others have locked, rather than wait for them.

    Only SERIALIZABLE on MariaDB and MySQL makes readers wait for writers.
    """
    if connection.dialect.name not in {"mysql", "mariadb"}:
        return query
    serializable = connection.get_isolation_level() == "SERIALIZABLE"
    return query.with_for_update(skip_locked=True) if serializable else query
