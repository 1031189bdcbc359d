"""Write rows that other transactions may be writing at the same moment."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table

from zeroeventhub.databases import database_of

__all__ = ["insert_ignore", "upsert"]


def insert_ignore(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert rows whose keys are free, and return how many were."""
    if not rows:
        return 0
    statement = database_of(connection).insert_ignore(table)
    counted = {"preserve_rowcount": True}
    return connection.execute(statement, list(rows), execution_options=counted).rowcount


def upsert(
    connection: Connection, table: Table, row: Mapping[str, Any], changes: Mapping[str, Any]
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
    connection.execute(database_of(connection).upsert(table, changes), dict(row))
