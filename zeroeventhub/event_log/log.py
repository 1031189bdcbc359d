"""A log of events: a ready-made table in your metadata, appends to it, and its feed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, Executable, MetaData, RowMapping, Table, event, func
from sqlalchemy.orm import Session

from zeroeventhub.databases import database_of
from zeroeventhub.databases.error_codes import translate_store_errors
from zeroeventhub.errors import ConfigurationError, Conflict, IdReused, Trimmed
from zeroeventhub.event_log.batches import BatchAppender
from zeroeventhub.event_log.events import KeptEvent, Stored, kept_events, unseen
from zeroeventhub.event_log.keyed_table import ExpectedVersion, KeyedTable
from zeroeventhub.event_log.log_table import (
    DuplicateKey,
    connected,
    insert_row,
    insert_rows,
    log_table,
    snapshot_table,
    writing,
)
from zeroeventhub.event_log.snapshots import AFTER, RestoredKey, Snapshots
from zeroeventhub.new_events import IN_A_LIST, NewEvent, Run, check_name, json_text, runs_of
from zeroeventhub.partitions import Layout
from zeroeventhub.protocol import Appended, Event
from zeroeventhub.publisher import TableFeed
from zeroeventhub.publisher.partition_hash import layout_expression
from zeroeventhub.wire.models import reader_for

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
        partitions: the number of partitions, 1 to 32768, to which the hash of a key assigns
            events, or a Layout of partitions that have changed; see docs/partitions.md.
        schema: the database schema; None for the connection's default.
        ordering: as for a TableFeed; by default the first one of the database, which needs only the
            table. What another ordering needs, such as the triggers of "gated", is installed when
            `metadata` creates the table; in an Alembic migration, call
            `log.feed().install(op.get_bind())`.
        snapshots: whether keys have snapshots, in a further table named after this one with
            `_snapshots` at its end; see docs/event_log.md.
        models: how the data of events is read from a key, by their type, with "*" for all others:
            a model, or a function that makes present data of old data; see docs/schemas.md. By
            default it is decoded JSON.
        append: whether the log's feeds accept events over HTTP, of writers who may append; see
            docs/append.md. A table of the producers' sequences joins the metadata as well.

    Attributes:
        table: the table, for your queries and migrations.
        layout: its partitions.
        snapshots: the table of snapshots, with the columns key, version and data; None without one.

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
        snapshots: bool = False,
        models: Mapping[str, Any] = MappingProxyType({}),
        append: bool = False,
    ) -> None:
        self.layout = partitions if isinstance(partitions, Layout) else Layout.of(partitions)
        self._partition_of_key = lru_cache(maxsize=4096)(self.layout.partition_of)
        self._ordering = ordering
        self.table: Table = log_table(metadata, name, schema, ordering)
        columns = self.table.c
        compared = (columns.type, columns.key, columns.data)
        self._stored = Stored(self.table, columns.id, columns.version, compared)
        self.snapshots = snapshot_table(metadata, name, schema) if snapshots else None
        self._snapshots = None if self.snapshots is None else Snapshots(self.snapshots, self.table)
        self._readers = {kind: reader_for(model)[0] for kind, model in models.items()}
        same = ("type", "data")
        self._keyed = KeyedTable(self.table, id="id", same=same, snapshots=self._snapshots)
        self._kept = self._keyed.query(kept_events(self.table))
        self._appender = (
            BatchAppender(self.table, metadata, self.layout, append=self._append, find=self.find)
            if append
            else None
        )
        if ordering is not None:
            event.listen(self.table, "after_create", lambda _, on, **__: self.feed().install(on))

    def append(self, handle: Connection | Session, events: Iterable[NewEvent]) -> list[Appended]:
        """Append events in your transaction; events that the log already has change nothing.

        Args:
            handle: the connection or session of the transaction.
            events: in their order. Those of a key of which one expects a version get versions.

        Returns:
            Where each event is, also if it was appended before.

        Raises:
            Conflict: a key has another version than is expected: roll the transaction back.
            ConfigurationError: an event cannot be stored, or the expected versions of a key do not
                follow one another.
            IdReused: the log has another event with one of the ids: roll the transaction back.
            StoreUnavailable: a transient error of the database: roll back, and try again.
        """
        return self._append(handle, _checked(events), with_savepoint=True)

    def _append(
        self, handle: Connection | Session, events: Iterable[NewEvent], *, with_savepoint: bool
    ) -> list[Appended]:
        """Append events; without a savepoint, an id that exists raises DuplicateKey.

        Then the transaction can only be rolled back.
        """
        return [
            one
            for run in runs_of(events)
            for one in self._append_run(handle, run, with_savepoint=with_savepoint)
        ]

    def _append_run(
        self, handle: Connection | Session, run: Run, *, with_savepoint: bool
    ) -> list[Appended]:
        if run.key is not None:
            rows = self._keyed_rows(run.key, run.events)
            last = self._keyed.append(handle, run.key, rows, expected_version=run.expected_version)
            return [
                Appended(row["partition"], row["id"], version)
                for version, row in enumerate(rows, last - len(rows) + 1)
            ]
        rows = self._rows(run.events)
        with translate_store_errors(_STORE):
            connection, missing = writing(handle, self.table), self._stored.distinct(rows)
            while missing:
                try:
                    self._insert(connection, missing, with_savepoint=with_savepoint)
                    break
                except DuplicateKey as taken:
                    if not with_savepoint:
                        raise
                    found = self._stored.find(connection, missing)
                    if not found:
                        raise unseen() from taken
                missing = [row for row in missing if row["id"] not in found]
        return [Appended(row["partition"], row["id"]) for row in rows]

    def find(self, handle: Connection | Session, events: Iterable[NewEvent]) -> list[Appended]:
        """Return where events are that the log already has.

        Args:
            handle: your connection or session.
            events: in their order.

        Raises:
            IdReused: the log lacks one of the events, or has another one with its id.
        """
        rows = self._rows(_checked(events))
        with translate_store_errors(_STORE):
            found = self._stored.find(connected(handle, self.table), rows)
        if any(row["id"] not in found for row in rows):
            raise IdReused("The log does not have all of these events.")
        return [Appended(row["partition"], row["id"], found[row["id"]]["version"]) for row in rows]

    def _insert(
        self, connection: Connection, rows: Sequence[Mapping[str, Any]], *, with_savepoint: bool
    ) -> None:
        """Insert rows; raise DuplicateKey if some exist, and the rest may have been inserted."""
        if len(rows) == 1:
            insert_row(connection, self.table, rows[0])
            return
        needs_savepoint = with_savepoint and database_of(connection).aborts_on_error
        with connection.begin_nested() if needs_savepoint else nullcontext():
            insert_rows(connection, self.table, rows, are_exact=True)

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
        checked = [*_checked(events)]
        for one in checked:
            if one.key not in {None, key}:
                raise ConfigurationError(
                    f"The event {one.id!r} has the key {one.key!r}, but is appended to {key!r}."
                )
            if one.expected_version is not None:
                raise ConfigurationError(
                    "Events that are appended to a key get the versions after the expected one: "
                    "leave out those of the events."
                )
        rows = self._keyed_rows(key, checked)
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

        Raises:
            Trimmed: some of these events were trimmed: `restore` has their snapshot.
            ConfigurationError: no event can have the key.
            ProtocolError: the log's `models` have nothing for the type of an event.
        """
        check_name("key", key)
        query: Executable = self._kept.limit(limit)
        if (snapshots := self._snapshots) is not None:
            query = snapshots.beside(self._kept.limit(limit), snapshots.table.c.version > AFTER)
        events, snapshot = self._read(handle, query, {"of": key, "after": after_version})
        last = events[-1].version if events else None
        if snapshot is not None and last != after_version + len(events):
            raise Trimmed(
                f"Key {key!r} no longer has all events after version {after_version}: restore it "
                "from its snapshot."
            )
        return events

    def save_snapshot(
        self, handle: Connection | Session, key: str, version: int, data: Any
    ) -> None:
        """Save the state of a key at a version in your transaction, in place of an earlier one.

        A snapshot of a later version stays. Events that a snapshot covers may be trimmed.

        Args:
            handle: the connection or session of the transaction.
            key: the key.
            version: the version of the last event that made this state, 1 or more.
            data: the state, in the form of an event's data.

        Raises:
            Conflict: the key does not have so many events: nothing was saved.
            ConfigurationError: the data cannot be stored, no event can have the key, or the log has
                no snapshots.
            StoreUnavailable: a transient error of the database: roll back, and try again.
        """
        snapshots, text = self._with_snapshots(), json_text(data)
        check_name("key", key)
        if version < 1:
            raise ConfigurationError(f"A snapshot is of a version from 1 on, not {version!r}.")
        connection = writing(handle, self.table)
        with translate_store_errors(_STORE):
            if (known := self._keyed.version(connection, key)) < version:
                raise Conflict(
                    f"Key {key!r} has version {known}, so that version {version} has no state yet: "
                    "no snapshot was saved.",
                    key=key,
                    version=known,
                )
            snapshots.save(connection, key, version, text)

    def restore(self, handle: Connection | Session, key: str) -> RestoredKey:
        """Read the newest snapshot of a key and the events after it, by one query.

        Args:
            handle: your connection or session.
            key: the key.

        Raises:
            ConfigurationError: the log has no snapshots, or no event can have the key.
            ProtocolError: the log's `models` have nothing for the type of an event.
        """
        snapshots = self._with_snapshots()
        check_name("key", key)
        events, snapshot = self._read(handle, snapshots.restoring, {"of": key})
        if snapshot is None:
            return RestoredKey(None, events, events[-1].version if events else 0)
        version = events[-1].version if events else snapshot["version"]
        return RestoredKey(Event(snapshot["text"].encode()).data, events, version)

    def _read(
        self, handle: Connection | Session, query: Executable, values: Mapping[str, Any]
    ) -> tuple[list[KeptEvent], RowMapping | None]:
        """Return the events of a key, and the row of its snapshot if the query has found it."""
        with translate_store_errors(_STORE):
            rows = connected(handle, self.table).execute(query, values).mappings().all()
        snapshot = next((row for row in rows if row["id"] is None), None)
        events = [KeptEvent.of(row, self._readers) for row in rows if row is not snapshot]
        return events, snapshot

    def _with_snapshots(self) -> Snapshots:
        """Return the log's snapshots, or raise ConfigurationError."""
        if self._snapshots is None:
            raise ConfigurationError("This log has no snapshots: EventLog(…, snapshots=True).")
        return self._snapshots

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
                self.layout, key=func.coalesce(columns.key, columns.id), written=columns.partition
            ),
            "partitions": self.layout,
            "data": columns.data,
            "type": columns.type,
            "key": columns.key,
            "version": columns.version,
            "snapshots": self.snapshots,
            "key_history": key_history,
            "id": columns.id,
            "time": columns.time,
            "ordering": self._ordering,
            "append": self._appender,
        }
        return TableFeed(self.table, **(mapped | options))

    def _rows(self, events: Iterable[NewEvent]) -> list[dict[str, Any]]:
        """Return the rows of events without versions."""
        # Keys come again, ids do not.
        of_key, of_id = self._partition_of_key, self.layout.partition_of
        return [
            {
                "partition": of_id(one.id) if one.key is None else of_key(one.key),
                "id": one.id,
                "key": one.key,
                "type": one.type,
                "data": one.text,
            }
            for one in events
        ]

    def _keyed_rows(self, key: str, events: Iterable[NewEvent]) -> list[dict[str, Any]]:
        """Return the rows of events of a key with versions, without the key."""
        of_key = self._partition_of_key
        return [
            # Bytes are JSON already.
            {"partition": of_key(key), "id": one.id, "type": one.type, "data": one.text.encode()}
            for one in events
        ]


def _checked(events: Any) -> Iterator[NewEvent]:
    if not isinstance(events, Iterable):
        raise ConfigurationError(IN_A_LIST)
    for new in events:
        if not isinstance(new, NewEvent):
            raise ConfigurationError(f"A log appends NewEvent(…), not {type(new).__name__}.")
        yield new
