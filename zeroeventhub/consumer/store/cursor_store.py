"""A consumer's cursors: a table in its own database."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Integer,
    Table,
    Text,
    Update,
    bindparam,
    func,
    inspect,
    literal,
    select,
)
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.schema import CreateTable

from zeroeventhub.consumer.steps import Place
from zeroeventhub.consumer.store.applied import Inbox, Lanes
from zeroeventhub.consumer.store.dead_letters import DeadLetters, error_text
from zeroeventhub.consumer.store.leases import Leases
from zeroeventhub.consumer.store.status import CursorStatus, read_statuses
from zeroeventhub.consumer.store.tables import HANDED_OVER, Tables, default, is_place, is_row
from zeroeventhub.databases import database_of
from zeroeventhub.databases.forks import not_in_forks
from zeroeventhub.databases.statements import Moment, insert_ignore, table_exists, unix_time, upsert
from zeroeventhub.databases.transactions import SyncTransaction, connection_of
from zeroeventhub.errors import ConfigurationError, Fenced, LeaseLost, TokenChanged
from zeroeventhub.protocol import FIRST, HIGHEST_PARTITION, NAME_LENGTH, is_cursor, is_name

_ADDED = {"epoch": "BIGINT NOT NULL DEFAULT 0", "ended": "BOOLEAN NOT NULL DEFAULT FALSE"}
"""Columns that earlier versions of the table of cursors lack."""

_CONSUMER = bindparam("of_consumer", type_=Text)
_PARTITION = bindparam("of_partition", type_=Integer)
_PLACE: Any = Place(bindparam("at", type_=Text), bindparam("right", type_=BigInteger))  # type: ignore[arg-type]
_NEW = bindparam("new", type_=Text)
"""The parameters of a move, so that one statement serves all of them."""


class CursorStore:
    """Store the cursors of consumers in a SQL database, with leases, inbox and dead letters.

    Methods take a connection to the store in the caller's transaction, the name of a consumer, and
    the id of a partition. After an error, roll the transaction back.

    Example:
        store = CursorStore(engine)
        with engine.begin() as connection:
            store.create_tables(connection)

    Args:
        engine: the consumer's own database, sync or async.
        tables: made by `cursor_tables`; by default those in `cursor_metadata`.

    Attributes:
        leases: which process of a consumer reads which partition.
        inbox: the ids of events that were applied.
        dead_letters: events that could not be applied.
        lanes: how far the parallel lanes of a page have applied it.
    """

    def __init__(self, engine: Engine | AsyncEngine, *, tables: Tables | None = None) -> None:
        given: object = engine
        if not isinstance(given, Engine | AsyncEngine):
            raise ConfigurationError(
                "A CursorStore takes an engine, such as create_engine('sqlite:///billing.db'), not "
                f"an object of the class {type(given).__name__}."
            )
        not_in_forks(engine)
        self.engine = engine
        self.tables = tables = tables or default
        self.leases = Leases(tables)
        self.inbox = Inbox(tables)
        self.dead_letters = DeadLetters(tables)
        self.lanes = Lanes(tables)
        # Built once: every page moves a cursor, and a loop loads its cursor before each page.
        cursors = tables.cursors
        self._place = select(cursors.c.cursor, cursors.c.epoch).where(
            is_row(cursors, _CONSUMER, _PARTITION)
        )
        stays = is_place(cursors, _CONSUMER, _PARTITION, _PLACE)
        move = cursors.update().where(stays).values(cursor=_NEW, updated_at=Moment())
        self._moves = {False: move, True: move.values(ended=False)}

    def create_tables(self, transaction: SyncTransaction) -> None:
        """Create the tables unless they exist; async: `await connection.run_sync(…)`.

        Args:
            transaction: as for `PendingPage.commit`.

        Raises:
            ConfigurationError: a table of cursors of an older version exists.
        """
        with connection_of(transaction, self.engine, alone=True) as connection:
            database_of(connection).lock_creation(connection)
            for table in self.tables.all():
                connection.execute(CreateTable(table, if_not_exists=True))
            self.check_tables(connection)

    def check_tables(self, connection: Connection) -> None:
        """Check that the tables exist, in this version; an older store has no table of failures.

        Raises:
            ConfigurationError: a table is missing, or that of cursors is of an older version.
        """
        cursors = self.tables.cursors
        for table in self.tables.all():
            if table is not self.tables.failures and not table_exists(connection, table):
                raise _no_table(table)
        schema = connection.schema_for_object(cursors)
        columns = inspect(connection).get_columns(cursors.name, schema=schema)
        there = {column["name"] for column in columns}
        if missing := [f"{name} {kind}" for name, kind in _ADDED.items() if name not in there]:
            raise ConfigurationError(
                f"Table {cursors.fullname} is of an older version: add the columns "
                f"{', '.join(missing)}; every cursor stays as it is."
            )

    def load(
        self, connection: Connection, consumer: str, partition: int, *, start: str = FIRST
    ) -> Place:
        """Return a consumer's place in a partition; insert `start` if it has no cursor.

        `start` is FIRST, LAST, or a cursor of the feed.

        Raises:
            TokenChanged: other partitions have taken the cursor over, and the feed still shows this
                one.
        """
        found = {_CONSUMER.key: consumer, _PARTITION.key: partition}
        row = connection.execute(self._place, found).first()
        if row is None:
            self._add(connection, consumer, partition, start)
            # A locking read, as another process's row may be newer than the snapshot that MariaDB
            # and MySQL read.
            row = connection.execute(self._place.with_for_update(), found).one()
        if row.cursor == HANDED_OVER:
            raise TokenChanged(
                f"Other partitions have replaced partition {partition}, but the feed still shows "
                "it: its answer is older than the change."
            )
        return Place(row.cursor, row.epoch)

    def enter(
        self,
        connection: Connection,
        consumer: str,
        partition: int,
        owner: str,
        *,
        after: int | None = None,
    ) -> Place:
        """Return a consumer's place in a partition, and fence the process that read it before.

        It waits for a transaction that is moving the cursor. The process, `owner`, has to hold the
        partition's lease, and has to have read the partition's parent, `after`, to its end.

        Raises:
            LeaseLost: the process does not hold the lease, or the parent has to be read again.
            TokenChanged: as `load`.
        """
        cursors, columns = self.tables.cursors, self.tables.cursors.c
        # A write first: it waits for open transactions on the row, which the reads then see.
        row = {"consumer": consumer, "partition": partition, "cursor": FIRST, "epoch": 1}
        upsert(connection, cursors, row, {"epoch": columns.epoch + 1})
        place = self.load(connection, consumer, partition)
        # Only now, as the lease may run out while the write waits.
        if not self.leases.is_held(connection, consumer, partition, owner):
            raise LeaseLost(
                f"Another process of consumer {consumer!r} may read partition {partition} now: "
                "this one does not hold the lease."
            )
        ended = select(columns.ended).where(is_row(cursors, consumer, after))
        if after is not None and not connection.scalar(ended):
            raise LeaseLost(
                f"Partition {partition} waits for partition {after}, which consumer {consumer!r} "
                "has to read to its end first: its cursor has been set to another place."
            )
        return place

    def cursors(self, connection: Connection, consumer: str) -> dict[int, str]:
        """Return all cursors of a consumer, by partition."""
        columns = self.tables.cursors.c
        query = select(columns.partition, columns.cursor).where(
            columns.consumer == consumer, func.length(columns.cursor) > 0
        )
        return {row.partition: row.cursor for row in connection.execute(query)}

    def standings(self, connection: Connection, consumer: str | None = None) -> list[CursorStatus]:
        """Return the cursors of a consumer, or of all, ordered by name and partition."""
        return read_statuses(connection, self.tables, consumer)

    def begin(
        self, connection: Connection, consumer: str, partitions: Collection[int], start: str
    ) -> None:
        """Insert the first cursors of a consumer that has none, in all its partitions at once.

        `start` is FIRST, LAST, or a cursor of the feed. In partitions that the feed adds later the
        consumer starts at the first event.
        """
        columns = self.tables.cursors.c
        known = select(columns.partition).where(columns.consumer == consumer).limit(1)
        if connection.execute(known).first() is None:
            for partition in sorted(partitions):
                self._add(connection, consumer, partition, start)

    def inherit(
        self,
        connection: Connection,
        consumer: str,
        heirs: Mapping[int, Sequence[int]],
        remaining: Collection[int],
    ) -> None:
        """Copy the cursors of removed partitions to the partitions that replace them.

        FeedAPI v2, Method 2 to change partition count. All heirs start at once. A mark replaces the
        cursors of removed parents: it fences a process that still holds a page of one, and keeps a
        process whose feed still shows one from starting it again.

        `heirs` has, by partition, the partitions whose cursors are valid in it, nearest first.
        `remaining` are the partitions of the feed, which keep their cursors.

        Raises:
            StoreUnavailable: lanes have applied a part of a page of a removed partition, which its
                heirs would repeat.
        """
        cursors, columns = self.tables.cursors, self.tables.cursors.c
        parents = sorted({parent for nearest in heirs.values() for parent in nearest})
        of_parents = _of(cursors, consumer, parents)
        # This locks the parents' rows, and so waits for open transactions on them.
        connection.execute(cursors.update().where(of_parents).values(epoch=columns.epoch))
        # A locking read, as a snapshot may be older than their commits.
        query = select(columns.partition, columns.cursor).where(
            of_parents, func.length(columns.cursor) > 0
        )
        found = connection.execute(query.with_for_update())
        standing = {row.partition: row.cursor for row in found}
        gone = [partition for partition in standing if partition not in remaining]
        self.lanes.check_gone(connection, consumer, {parent: standing[parent] for parent in gone})
        for heir, nearest in sorted(heirs.items()):
            cursor = next((standing[parent] for parent in nearest if parent in standing), None)
            if cursor is None:
                continue
            self._add(connection, consumer, heir, cursor)
            # An heir that was itself a removed parent until now.
            connection.execute(
                self._set_to(cursor).where(
                    is_row(cursors, consumer, heir), func.length(columns.cursor) == 0
                )
            )
        connection.execute(self._set_to(HANDED_OVER).where(_of(cursors, consumer, gone)))
        # The dead letters of each removed partition go to one heir, so that keys stay in order.
        letters = self.tables.dead_letters
        for parent in gone:
            heir = min(heir for heir, nearest in heirs.items() if parent in nearest)
            update = letters.update().where(is_row(letters, consumer, parent))
            connection.execute(update.values(partition=heir))
        self._forget(connection, ("lanes",), consumer, gone)

    def advance(
        self, connection: Connection, consumer: str, partition: int, place: Place, new: str
    ) -> None:
        """Move a cursor from its place, in the transaction of the effects, to a `new` one.

        `place` is what `load` or `enter` has returned. A move to the same cursor is fenced as well.

        Raises:
            Fenced: the cursor has moved.
        """
        parameters = {
            _CONSUMER.key: consumer,
            _PARTITION.key: partition,
            _PLACE.cursor.key: place.cursor,
            _PLACE.epoch.key: place.epoch,
            _NEW.key: new,
        }
        result = connection.execute(self._moves[new != place.cursor], parameters)
        if result.rowcount != 1:
            raise _cursor_moved(consumer, partition)

    def end(self, connection: Connection, consumer: str, partition: int, place: Place) -> None:
        """Store that a partition was read to its end, unless its cursor has moved from its place.

        Raises:
            Fenced: the cursor has moved.
        """
        cursors = self.tables.cursors
        end = cursors.update().where(is_place(cursors, consumer, partition, place))
        if connection.execute(end.values(ended=True, updated_at=Moment())).rowcount != 1:
            raise _cursor_moved(consumer, partition)

    def record_failure(
        self,
        connection: Connection,
        consumer: str,
        partition: int,
        place: Place,
        *,
        error: Exception,
        tries: int,
        pause: float | None,
    ) -> None:
        """Store the error of a failed try to apply the page after a place, until the cursor moves.

        `tries` is how often the page was tried, and `pause` the seconds until the next try; None if
        the partition halts.

        Raises:
            Fenced: the cursor has moved.
            ConfigurationError: there is no table of failures.
        """
        cursors, failures = self.tables.cursors, self.tables.failures
        if not table_exists(connection, failures):
            raise _no_table(failures)
        stays = cursors.update().where(is_place(cursors, consumer, partition, place))
        if connection.execute(stays.values(epoch=place.epoch)).rowcount != 1:
            raise _cursor_moved(consumer, partition)
        row: dict[str, Any] = {
            "cursor": place.cursor,
            "epoch": place.epoch,
            "error": error_text(error),
            "tries": tries,
            "retry_at": None if pause is None else unix_time(connection) + pause,
        }
        key = {"consumer": consumer, "partition": partition}
        since = {"since": Moment()} if tries == 1 or pause is None else {}
        upsert(connection, failures, key | row, row | since)

    def set(self, connection: Connection, consumer: str, partition: int, cursor: str) -> None:
        """Set a cursor for an operator, and fence the process that reads the partition.

        The consumer continues at `cursor`: FIRST, LAST, or a cursor of the feed.

        Raises:
            ConfigurationError: the cursor or the consumer's name is invalid.
        """
        check_consumer_name(consumer)
        _check_cursor(cursor)
        if not 0 <= partition <= HIGHEST_PARTITION:
            raise ConfigurationError(f"A partition's id goes from 0 to {HIGHEST_PARTITION}.")
        update = self._set_to(cursor).where(is_row(self.tables.cursors, consumer, partition))
        if connection.execute(update).rowcount == 0:
            self._add(connection, consumer, partition, FIRST)
            connection.execute(update)
        self._forget(connection, ("lanes",), consumer, [partition])

    def reset(
        self,
        connection: Connection,
        consumer: str,
        partitions: Collection[int] | None = None,
        cursor: str = FIRST,
    ) -> int:
        """Let a consumer start again, with an empty inbox and without dead letters and lanes.

        It starts at `cursor`, in some partitions or in all; return in how many. To rebuild a
        projection, empty its tables in the same transaction.

        Raises:
            ConfigurationError: the cursor is invalid.
        """
        _check_cursor(cursor)
        columns = self.tables.cursors.c
        update = self._set_to(cursor).where(
            _of(self.tables.cursors, consumer, partitions), func.length(columns.cursor) > 0
        )
        count = connection.execute(update).rowcount
        self._forget(connection, ("lanes", "dead_letters"), consumer, partitions)
        if partitions is not None:
            # The heirs of removed partitions send the events of these again.
            query = select(columns.partition).where(
                columns.consumer == consumer, columns.cursor == HANDED_OVER
            )
            partitions = {*partitions, *connection.scalars(query)}
        self._forget(connection, ("inbox",), consumer, partitions)
        return count

    def holdings(self, connection: Connection, consumer: str) -> dict[str, int]:
        """Count what a store has of a consumer: rows of `cursors`, `inbox`, and so on, by name."""
        found = {}
        for name, table in self._existing_tables(connection).items():
            query = select(func.count()).where(table.c.consumer == consumer)
            found[name] = connection.scalar(query) or 0
        return found

    def rename(self, connection: Connection, consumer: str, name: str) -> None:
        """Give a consumer that no process runs another name; it goes on where it was.

        Raises:
            ConfigurationError: the store has no such consumer, a process of it runs, or the new
                name is taken or invalid.
        """
        self.leases.end(connection, consumer)
        self._check_names(connection, consumer, name)
        for table in self._existing_tables(connection).values():
            rename = table.update().where(table.c.consumer == consumer)
            connection.execute(rename.values(consumer=name))

    def copy(self, connection: Connection, consumer: str, name: str) -> None:
        """Add a consumer that continues where another one is, which may run meanwhile.

        The copy, `name`, has the cursors, the inbox, the dead letters and the progress of lanes,
        and so expects the effects that the other one has at this moment. Copy these in the same
        transaction, after this call, which waits for pages that are being committed.

        Raises:
            ConfigurationError: the store has no such consumer, or the name of the copy is taken or
                invalid.
        """
        cursors, letters = self.tables.cursors, self.tables.dead_letters
        members, leases = self.tables.members, self.tables.leases
        # A transaction of a page or a lane locks the cursor, one that applies a dead letter deletes
        # it, and one that begins a partition, which has no cursor yet, locks its lease or a member:
        # these writes wait for all of them, and all then wait for this transaction.
        held = (cursors.c.epoch, members.c.expires_at, leases.c.expires_at, letters.c.tries)
        for column in held:
            of_consumer = column.table.c.consumer == consumer
            connection.execute(column.table.update().where(of_consumer).values({column: column}))
        self._check_names(connection, consumer, name)
        for table in (cursors, self.tables.inbox, letters, self.tables.lanes):
            # Ids of dead letters and epochs of cursors are the copy's own.
            columns = [each for each in table.c if each.name not in {"consumer", "id", "epoch"}]
            rows = select(literal(name, table.c.consumer.type), *columns)
            rows = rows.where(table.c.consumer == consumer).order_by(*table.primary_key)
            if table is cursors:
                # Partitions may have been begun while the first of these writes waited.
                rows = rows.with_for_update()
            names = ["consumer", *(each.name for each in columns)]
            connection.execute(table.insert().from_select(names, rows))

    def forget(self, connection: Connection, consumer: str) -> dict[str, int]:
        """Delete all that the store has of a consumer that no process runs.

        Return how many rows, as `holdings`. The consumer's effects stay. One that is started by
        this name later begins as a new one.

        Raises:
            ConfigurationError: a process of the consumer runs.
        """
        self.leases.end(connection, consumer)
        found = self.holdings(connection, consumer)
        self._forget(connection, found, consumer, None)
        return found

    def _existing_tables(self, connection: Connection) -> dict[str, Table]:
        """Return the tables that exist, by name: an older store has no table of failures."""
        found: dict[str, Table] = {**vars(self.tables)}
        if not table_exists(connection, self.tables.failures):
            del found["failures"]
        return found

    def _check_names(self, connection: Connection, consumer: str, name: str) -> None:
        """Raise ConfigurationError unless a consumer exists and another name is free."""
        check_consumer_name(name)
        if not any(self.holdings(connection, consumer).values()):
            raise ConfigurationError(f"This store has no consumer {consumer!r}.")
        if any(self.holdings(connection, name).values()):
            raise ConfigurationError(
                f"This store has a consumer {name!r} already: choose another name."
            )

    def _forget(
        self,
        connection: Connection,
        names: Collection[str],
        consumer: str,
        partitions: Collection[int] | None,
    ) -> None:
        for name in names:
            table = getattr(self.tables, name)
            connection.execute(table.delete().where(_of(table, consumer, partitions)))

    def _set_to(self, cursor: str) -> Update:
        """Build the statement that sets cursors, and fences the readers of their partitions."""
        cursors = self.tables.cursors
        return cursors.update().values(
            cursor=cursor, epoch=cursors.c.epoch + 1, ended=False, updated_at=Moment()
        )

    def _add(self, connection: Connection, consumer: str, partition: int, cursor: str) -> None:
        # Two processes of one consumer may start at the same moment.
        row = {"consumer": consumer, "partition": partition, "cursor": cursor}
        insert_ignore(connection, self.tables.cursors, [row])


def check_consumer_name(name: str) -> None:
    """Raise ConfigurationError unless a name can be a consumer's key in the store."""
    if not is_name(name):
        raise ConfigurationError(
            f"A consumer's name is one line of 1 to {NAME_LENGTH} printable characters without a "
            f"space at its end; this one has {len(name)}."
        )


def _no_table(table: Table) -> ConfigurationError:
    return ConfigurationError(
        f"This database has no table {table.fullname}: is it the one that the consumer writes to? "
        "CursorStore.create_tables creates it."
    )


def _cursor_moved(consumer: str, partition: int) -> Fenced:
    return Fenced(
        f"The cursor of consumer {consumer!r} in partition {partition} has moved since this page "
        "was read; roll back: another process has applied the page or may apply it."
    )


def _of(table: Table, consumer: str, partitions: Collection[int] | None) -> ColumnElement[bool]:
    """Compare the consumer of a row, and its partition unless `partitions` is None."""
    mine = table.c.consumer == consumer
    return mine if partitions is None else mine & table.c.partition.in_(sorted(partitions))


def _check_cursor(cursor: str) -> None:
    if not is_cursor(cursor):
        raise ConfigurationError(
            "A cursor has 1 to 4096 printable ASCII characters, as the feed has given it."
        )
