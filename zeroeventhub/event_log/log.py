"""A log of events: a ready-made table in your metadata, appends to it, and its feed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from sqlalchemy import Connection, MetaData, Table, event, func
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from zeroeventhub.databases import database_of
from zeroeventhub.databases.error_codes import is_duplicate, reaching_store
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.event_log.events import (
    KeptEvent,
    NewEvent,
    Stored,
    check_name,
    kept_events,
    unseen,
)
from zeroeventhub.event_log.keyed_table import ExpectedVersion, KeyedTable
from zeroeventhub.event_log.log_table import (
    DuplicateKey,
    RowInsert,
    connected,
    insert_rows,
    log_table,
    writing,
)
from zeroeventhub.partitions import Layout
from zeroeventhub.publisher import TableFeed
from zeroeventhub.publisher.partition_hash import layout_expression

_STORE = "The database of the log"


class EventLog:
    """A ready-made table of events that is published as a feed.

    The table joins your metadata: create it with your tables, or let Alembic find it. Its columns
    are position, partition, id, key, version, type, time and data. Every method is sync; from
    async code it is `await connection.run_sync(log.append, events)`, with an AsyncConnection or an
    AsyncSession.

    Example:
        metadata = MetaData()
        log = EventLog(metadata, "events", partitions=4)
        metadata.create_all(engine)
        with engine.begin() as connection:
            log.append(connection, [NewEvent("order.paid", {"order": 17}, key="17")])

    Args:
        metadata: the MetaData that the table is added to.
        name: the table's name.
        partitions: the number of partitions, to which the hash of a key assigns events, or a
            Layout of partitions that have changed; see docs/partitions.md.
        schema: the database schema; None for the connection's default.
        ordering: as for a TableFeed; by default the first one of the database, which needs only the
            table. What another ordering needs, such as the triggers of "gated", is installed when
            `metadata` creates the table; in an Alembic migration, call
            `log.feed().install(op.get_bind())`.

    Attributes:
        table: the table, for your queries and migrations.

    Raises:
        ConfigurationError: the number of partitions is not allowed.
    """

    def __init__(
        self,
        metadata: MetaData,
        name: str,
        *,
        partitions: int | Layout = 1,
        schema: str | None = None,
        ordering: str | None = None,
    ) -> None:
        self._layout = partitions if isinstance(partitions, Layout) else Layout.of(partitions)
        self._ordering = ordering
        self.table: Table = log_table(metadata, name, schema, ordering)
        columns = self.table.c
        compared = (columns.type, columns.key, columns.data)
        self._stored = Stored(self.table, columns.id, compared)
        self._single = RowInsert(self.table)
        self._keyed = KeyedTable(self.table, id="id", same=("type", "data"))
        self._kept = self._keyed.query(kept_events(self.table))
        if ordering is not None:
            event.listen(self.table, "after_create", self._install)

    def append(self, handle: Connection | Session, events: Iterable[NewEvent]) -> None:
        """Append events in your transaction; events that the log already has change nothing.

        Args:
            handle: the connection or session of the transaction.
            events: in their order.

        Raises:
            ConfigurationError: an event cannot be stored.
            IdReused: the log has another event with one of the ids: roll the transaction back.
            StoreUnavailable: a transient error of the database: roll back, and try again.
        """
        rows = [self._row(one, one.key) | {"key": one.key} for one in _checked(events)]
        with reaching_store(_STORE):
            connection, missing = writing(handle, self.table), self._stored.distinct(rows)
            while missing:
                try:
                    self._insert(connection, missing)
                    break
                except DuplicateKey as taken:
                    found = self._stored.find(connection, missing)
                    if not found:
                        raise unseen() from taken
                missing = [row for row in missing if row["id"] not in found]

    def _insert(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows; raise DuplicateKey if some exist, and the rest may have been inserted."""
        if len(rows) == 1:
            self._single.insert(connection, rows[0])
            return
        is_fatal = database_of(connection).aborts_on_error
        try:
            with connection.begin_nested() if is_fatal else nullcontext():
                insert_rows(connection, self.table, rows)
        except IntegrityError as error:
            if not is_duplicate(error):
                raise
            raise DuplicateKey from error

    def append_to(
        self,
        handle: Connection | Session,
        key: str,
        events: Iterable[NewEvent],
        *,
        expected_version: int | ExpectedVersion,
    ) -> int:
        """Append events to a key with the versions that follow its last one.

        After a Conflict the transaction is unchanged, and you may commit it. To read what other
        transactions have appended, begin a new one.

        Args:
            handle: the connection or session of the transaction.
            key: the key; the `key` of an event may be None.
            events: in their order.
            expected_version: the version of the key's last event, 0 for a key without events, or
                an ExpectedVersion.

        Returns:
            The version of the last event, also if the events were appended before.

        Raises:
            Conflict: the key has another version.
            ConfigurationError: an event cannot be stored, or has another key.
            IdReused: the log has these ids with other events: roll the transaction back.
            StoreUnavailable: a transient error of the database: roll back, and try again.
        """
        check_name("key", key)
        rows = []
        for one in _checked(events):
            if one.key not in {None, key}:
                raise ConfigurationError(
                    f"The event {one.id!r} has the key {one.key!r}, but is appended to {key!r}."
                )
            # Bytes are JSON already.
            rows.append(self._row(one, key) | {"data": one.text.encode()})
        return self._keyed.append(handle, key, rows, expected_version=expected_version)

    def read_key(
        self,
        handle: Connection | Session,
        key: str,
        *,
        after_version: int = 0,
        limit: int | None = None,
    ) -> list[KeptEvent]:
        """Read the events that `append_to` appended to a key, in order, by one query.

        Args:
            handle: your connection or session.
            key: the key.
            after_version: the version after which to begin.
            limit: how many events to read at most; None for all.
        """
        with reaching_store(_STORE):
            values = {"of": key, "after": after_version}
            found = connected(handle, self.table).execute(self._kept.limit(limit), values)
            return [KeptEvent.of(row) for row in found.mappings()]

    def feed(self, *, key_history: bool = False, **options: Any) -> TableFeed:
        """Return the feed of the log.

        Args:
            key_history: whether readers may request the events of one key; see docs/keys.md.
            options: options of a TableFeed, such as `cloudevents`; they override the log's own.
        """
        columns = self.table.c
        mapped: dict[str, Any] = {
            "position": columns.position,
            "partition": layout_expression(
                self._layout, key=func.coalesce(columns.key, columns.id), written=columns.partition
            ),
            "partitions": self._layout,
            "data": columns.data,
            "type": columns.type,
            "key": columns.key,
            "version": columns.version,
            "key_history": key_history,
            "id": columns.id,
            "time": columns.time,
            "ordering": self._ordering,
        }
        return TableFeed(self.table, **(mapped | options))

    def _row(self, new: NewEvent, key: str | None) -> dict[str, Any]:
        """Return the row of an event, without its key."""
        return {
            "partition": self._layout.partition_of(new.id if key is None else key),
            "id": new.id,
            "type": new.type,
            "data": new.text,
        }

    def _install(self, _: Table, connection: Connection, **__: Any) -> None:
        self.feed().install(connection)


def _checked(events: Iterable[Any]) -> Iterator[NewEvent]:
    for new in events:
        if not isinstance(new, NewEvent):
            raise ConfigurationError(f"A log appends NewEvent(…), not {type(new).__name__}.")
        yield new
