"""A page between its arrival and its commit."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from zeroeventhub.cursors import CursorStore
from zeroeventhub.protocol import Event

__all__ = ["AsyncPendingPage", "PendingPage"]


@dataclass(frozen=True)
class _Pending:
    partition: int
    events: Sequence[Event]
    previous_cursor: str
    cursor: str
    _consumer: str
    _store: CursorStore

    def _move(self) -> Update:
        return self._store.move(self._consumer, self.partition, self.previous_cursor, self.cursor)


class PendingPage(_Pending):
    """Hold a page that was received and not yet committed.

    Attributes:
        partition: the partition it belongs to.
        events: its events, in order.
        previous_cursor: where the partition's cursor stands.
        cursor: where a commit moves it.
    """

    def commit(self, transaction: Connection | Session) -> None:
        """Move the cursor behind this page, in the transaction that holds its effects.

        Args:
            transaction: a connection or session to the database of the cursor store. Commit it,
                and page and effects are done; roll it back, and neither is.

        Raises:
            Fenced: the cursor has moved since the page was read. Roll back.
        """
        self._store.confirm(transaction.execute(self._move()), self._consumer, self.partition)


class AsyncPendingPage(_Pending):
    """Hold a page that was received and not yet committed; see PendingPage."""

    async def commit(self, transaction: AsyncConnection | AsyncSession) -> None:
        """Move the cursor behind this page; see `PendingPage.commit`."""
        result = await transaction.execute(self._move())
        self._store.confirm(result, self._consumer, self.partition)
