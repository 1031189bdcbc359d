"""Append a batch of events, each of which is there once however often it is appended.

Events are inserted as if all of them were new, which they are but for the rare batch that is tried
again. Only where the database finds one of their ids taken are those looked up that are there,
compared, and left out. On PostgreSQL that is a COPY in a savepoint: by way of a temporary table,
every batch would pay for the rare one.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.exc import IntegrityError

from zeroeventhub.event_log.row_insert import RowInsert, Taken, insert_rows, is_taken
from zeroeventhub.event_log.stored import Stored, unseen

__all__ = ["Batch"]


class Batch:
    """Append events to a table.

    Args:
        table: the table.
        stored: knows what is there.
    """

    def __init__(self, table: Table, stored: Stored) -> None:
        self._table = table
        self._stored = stored
        self._single = RowInsert(table)

    def append(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert the rows that are not there.

        Args:
            connection: in the transaction that they are to be part of.
            rows: with the same columns each, and JSON as text.

        Raises:
            IdReused: a row of the same id is there, with something else in it.
        """
        left = self._stored.distinct(rows)
        while left:
            try:
                self._insert(connection, left)
                break
            except Taken as taken:
                there = self._stored.find(connection, left)
                if not there:
                    raise unseen() from taken
            left = [row for row in left if row["id"] not in there]

    def _insert(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows.

        Raises:
            Taken: some are there already; others may have been inserted.
        """
        if len(rows) == 1:
            self._single.insert(connection, rows[0])
            return
        # An error of PostgreSQL would end the whole transaction.
        is_fatal = connection.dialect.name == "postgresql"
        try:
            with connection.begin_nested() if is_fatal else nullcontext():
                insert_rows(connection, self._table, rows)
        except IntegrityError as error:
            if not is_taken(error):
                raise
            raise Taken from error
