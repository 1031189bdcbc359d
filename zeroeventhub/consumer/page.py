"""A page that is not committed yet: its events, and how a transaction commits it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from zeroeventhub.consumer.event_insert import insert_events
from zeroeventhub.databases.bulk_insert import TableForm, table_form
from zeroeventhub.databases.transactions import async_connection_of, connection_of
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.wire.ndjson import PageEvents

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy import Connection, Table

    from zeroeventhub.consumer.config import Config
    from zeroeventhub.consumer.steps import Fetch, Place
    from zeroeventhub.databases.transactions import AsyncTransaction, SyncTransaction
    from zeroeventhub.protocol import Event


def without_duplicates(
    connection: Connection,
    config: Config,
    partition: int,
    events: Sequence[Event],
    on_missing_id: Callable[[], object] | None = None,
) -> list[Event]:
    """Return the first event of each id that was not applied before, and all events without an id.

    The ids are stored in the consumer's inbox.

    Raises:
        ConfigurationError: an event has no id, and no `on_missing_id` is there to be called then.
    """
    # An empty id, such as that of a missing member, would be the same for many events.
    ids = [config.identity(event) or None for event in events]
    if None in ids:
        if on_missing_id is None:
            raise ConfigurationError(
                "An event has no id, so the inbox cannot tell whether it comes twice: give the "
                "consumer `identity`, a function that returns the id of an event, or do without "
                "the inbox."
            )
        on_missing_id()
    present = [identity for identity in ids if identity is not None]
    unseen = set(config.store.inbox.unseen(connection, config.name, partition, present))
    fresh = []
    for event, identity in zip(events, ids, strict=True):
        if identity is None:
            fresh.append(event)
        elif identity in unseen:
            unseen.remove(identity)
            fresh.append(event)
    return fresh


@dataclass
class DecodeHint:
    """How the caller uses pages, so that they can be converted when they are fetched ahead.

    Attributes:
        data_type: the type to decode the data of events as; None if it is not known.
        form: the form of the table that events are inserted into.
        due: by step, the event that lets a thread decode a page that is fetched ahead.
    """

    data_type: Any = None
    form: TableForm | None = None
    due: dict[Fetch | None, threading.Event] = field(default_factory=dict)

    def learn(self, events: Sequence[Event]) -> None:
        """Decode further pages in one call, if the caller has read the data of these events."""
        if self.data_type is None and isinstance(events, PageEvents) and events.has_read_data:
            self.data_type = Any

    def set_due(self, ahead: Fetch | None) -> None:
        """Let a page that is fetched ahead be decoded, if it waits for that."""
        is_due = self.due.pop(ahead, None)
        if is_due is not None:
            is_due.set()


@dataclass(frozen=True)
class _Pending:
    partition: int
    events: Sequence[Event]
    cursor: str
    _place: Place
    _config: Config
    _hint: DecodeHint
    _ahead: Fetch | None = None
    _is_unseen: bool = False  # as `run` has asked the inbox in this transaction

    def _insert_into(
        self,
        connection: Connection,
        table: Table,
        row: Callable[[Event], Mapping[str, Any]] | None,
        events: Sequence[Event] | None,
    ) -> None:
        if row is None and events is None and self._hint.data_type is None:
            form = table_form(table, connection.dialect)
            self._hint.data_type, self._hint.form = form.model, form
        events = self.events if events is None else events
        insert_events(connection, table, events, row, partial(self._hint.set_due, self._ahead))

    @property
    def previous_cursor(self) -> str:
        """The partition's present cursor."""
        return self._place.cursor

    def _move(self, connection: Connection) -> None:
        store, name = self._config.store, self._config.name
        store.advance(connection, name, self.partition, self._place, self.cursor)
        store.lanes.expect_none(connection, name, self.partition, self._place)

    def _unseen(self, connection: Connection) -> Sequence[Event]:
        if self._is_unseen:
            return self.events
        return without_duplicates(connection, self._config, self.partition, self.events)


class PendingPage(_Pending):
    """A page that was received and not yet committed.

    Example:
        for page in Consumer(client, store, "billing"):
            with engine.begin() as connection:
                page.commit(connection)
                apply(connection, page)

    Attributes:
        partition: the partition it belongs to.
        events: its events, in order.
        previous_cursor: the partition's present cursor.
        cursor: the cursor after a commit.
    """

    def commit(self, transaction: SyncTransaction) -> None:
        """Move the cursor to the end of this page, in the transaction that holds its effects.

        Args:
            transaction: a connection or session to the database of the cursor store; or a plain
                connection of the driver that the store's engine uses (psycopg, sqlite3, PyMySQL),
                such as `django.db.connection.connection`. Its commit commits the page
                and the effects; its rollback undoes both.

        Raises:
            Fenced: the cursor has moved since the page was read. Roll back.
            ConfigurationError: `run` has applied a part of the page, in lanes; roll back. Or the
                connection commits each statement by itself.
        """
        with connection_of(transaction, self._config.store.engine) as connection:
            self._move(connection)

    def unseen(self, transaction: SyncTransaction) -> Sequence[Event]:
        """Return the events that come for the first time, and remember them.

        In `run` with an inbox, which has dropped the others, these are all events of the page.

        Args:
            transaction: the one that commits the page, as for `commit`.

        Raises:
            ConfigurationError: an event has no id.
        """
        with connection_of(transaction, self._config.store.engine) as connection:
            return self._unseen(connection)

    def insert_into(
        self,
        table: Table,
        transaction: SyncTransaction,
        *,
        row: Callable[[Event], Mapping[str, Any]] | None = None,
        events: Sequence[Event] | None = None,
    ) -> None:
        """Insert a row for each event into a table: by COPY through psycopg, else in bulk.

        A column without a key in the event gets its default, or NULL. Columns of JSON get the JSON
        as it was sent; timestamp columns without a time zone get times in UTC. A TIMESTAMP
        of MariaDB or MySQL gets the moment: the session is in UTC meanwhile. Moments that `row`
        makes for it without a zone are in that of the session.

        Args:
            table: the table.
            transaction: the one that commits the page, as for `commit`.
            row: makes an event's row, by the names of columns; by default, each column gets what
                the event's data has under its name.
            events: the events to insert, such as those of `unseen`; by default all of the page.
                Errors name an event by its number among them.

        Raises:
            ProtocolError: an event is no object, lacks the value of a column that needs a value, or
                has a value that does not fit the column's type.
            ConfigurationError: a row that `row` has made does not fit the table.
        """
        with connection_of(transaction, self._config.store.engine) as connection:
            self._insert_into(connection, table, row, events)


class AsyncPendingPage(_Pending):
    """A page that was received and not yet committed; see PendingPage.

    Example:
        async for page in AsyncConsumer(client, store, "billing"):
            async with engine.begin() as connection:
                await page.commit(connection)
                await apply(connection, page)
    """

    async def commit(self, transaction: AsyncTransaction) -> None:
        """Move the cursor to the end of this page; see `PendingPage.commit`."""
        async with async_connection_of(transaction, self._config.store.engine) as connection:
            await connection.run_sync(self._move)

    async def unseen(self, transaction: AsyncTransaction) -> Sequence[Event]:
        """Return the events that come for the first time; see `PendingPage.unseen`."""
        async with async_connection_of(transaction, self._config.store.engine) as connection:
            return await connection.run_sync(self._unseen)

    async def insert_into(
        self,
        table: Table,
        transaction: AsyncTransaction,
        *,
        row: Callable[[Event], Mapping[str, Any]] | None = None,
        events: Sequence[Event] | None = None,
    ) -> None:
        """Insert a row for each event into a table; see `PendingPage.insert_into`."""
        async with async_connection_of(transaction, self._config.store.engine) as connection:
            await connection.run_sync(self._insert_into, table, row, events)
