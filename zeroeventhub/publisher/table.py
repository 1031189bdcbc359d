"""A feed over a table of the caller's."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy import (
    ColumnElement,
    Connection,
    DateTime,
    Engine,
    Table,
    text,
)
from sqlalchemy.engine.default import StrCompileDialect
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.capacity import Capacity
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.layout import Layout
from zeroeventhub.protocol import (
    CAUGHT_UP,
    COMPACTED,
    CURSOR_OF_COUNT,
    CURSOR_OF_TIME,
    EVENT_TYPES,
    KEY_HISTORY,
    LAG,
    PROGRESS,
    SEGMENTS,
    SPLITS,
    STOP,
    WAIT,
    FeedInfo,
)
from zeroeventhub.publisher.archived.counts import ArchivedCounts, ArchivedLags
from zeroeventhub.publisher.archived.files import Files
from zeroeventhub.publisher.archived.finding import ArchivedIds, ArchivedSplits, ArchivedTimes
from zeroeventhub.publisher.archived.pages import ArchivedPages
from zeroeventhub.publisher.archived.seal_query import SealQuery
from zeroeventhub.publisher.archived.sealer import Sealer
from zeroeventhub.publisher.archived.tier import Tier
from zeroeventhub.publisher.bound_feed import AsyncBoundFeed, BoundFeed, Roles
from zeroeventhub.publisher.checkup import Checkup
from zeroeventhub.publisher.columns import Columns
from zeroeventhub.publisher.compacting import Compaction, Compactor
from zeroeventhub.publisher.count_query import CountQuery
from zeroeventhub.publisher.cursor import Seal, digest
from zeroeventhub.publisher.given_options import (
    beside,
    compacted_by,
    envelope_of,
    key_of,
    lasting,
    partition_of,
    table_of,
    versions_of,
)
from zeroeventhub.publisher.history import History
from zeroeventhub.publisher.id_query import IdQuery
from zeroeventhub.publisher.key_query import KeyQuery
from zeroeventhub.publisher.lag_query import LagQuery
from zeroeventhub.publisher.mapping import Data, Expression, Mapper, resolve
from zeroeventhub.publisher.near_rows import NearRows
from zeroeventhub.publisher.needed_index import NeededIndex
from zeroeventhub.publisher.ordering import Events, Ordering, Source, ordering_for
from zeroeventhub.publisher.page_query import PageQuery
from zeroeventhub.publisher.partition_hash import hash_on_connect
from zeroeventhub.publisher.progress import Progress, Registry
from zeroeventhub.publisher.queries import Queries
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.retention import Marks, Retention
from zeroeventhub.publisher.row_query import RowQuery
from zeroeventhub.publisher.split_query import SplitQuery
from zeroeventhub.publisher.time_query import TimeQuery
from zeroeventhub.publisher.trimming import Batches, Trimmer
from zeroeventhub.publisher.type_condition import TypeCondition

if TYPE_CHECKING:
    from zeroeventhub.archive.archive import Archive

__all__ = ["TableFeed"]


class TableFeed:
    """Publish a table as a feed.

    Args:
        table: a Table of SQLAlchemy, or an ORM class: yours, unchanged.
        position: the column whose order is the order of events, drawn by the database;
            by default the primary key. With the ordering sequenced, any column that identifies
            an event.
        partition: the column that holds an event's partition, 0 to partitions - 1, or an
            expression such as `partition_expression` makes of a key; None for one partition.
        partitions: how many partitions there are, or a Layout of partitions that have changed;
            see docs/partitions.md.
        data: what an event's data is: one JSON or text column, a list of columns, or SQL
            expressions by name; by default all columns. See docs/json.md for their form.
        type: the column of the event's type.
        key: the column whose equal values keep their order.
        version: the column of an event's number within its key, unique together with the key.
            Events with one are not trimmed.
        key_history: let readers ask for the events of one key; see docs/keys.md.
        id: the column that identifies the event; by default its position.
        time: the column of the time of the event.
        cloudevents: wrap data in a CloudEvents 1.0 envelope made of these columns. A string
            is the envelope's `source`; True takes the table's name.
        headers: v1 headers by name, each with the column it is taken from.
        ordering: "observed", "gated" or "sequenced" on PostgreSQL, "observed" or "sequenced" on
            MariaDB and MySQL, "single-writer" or "sequenced" on SQLite; by default the first of
            each, which needs nothing in your database. See docs/ordering.md.
        append_only: promise that no row is ever deleted, which SQLite needs to hear for a
            table without AUTOINCREMENT, because it gives the number of a deleted row again.
        mutable: say that rows are changed or deleted after they were written. By default a cursor
            is refused if the event that it stands at is no longer the same, which shows that
            history was lost; of a mutable feed only the numbers can be compared.
        cursor_secret: known to the publisher alone, and the same in all of its processes. A cursor
            holds a digest of the event at which it stands, also of one that its reader may not see;
            with a secret nobody can check by it whether a guess of that event is right. Needed
            where readers may see only a part of the feed, and events can be guessed. With another
            secret, of cursors from before only the numbers are compared.
        retention: where it is kept what has been trimmed of the feed, so that whoever comes too
            late is told, and nobody else; see docs/retention.md.
        progress: where it is kept how far consumers have come that say so, so that trimming waits
            for them.
        compaction: keep the last event of each key, and let those before it go, whenever the bound
            feed's `compact` is called; see docs/retention.md.
        archive: where its history is sealed to and read from once it is trimmed, so that nobody
            comes too late; see docs/archive.md.

    Raises:
        ConfigurationError: a column does not exist, its type has no JSON form, or the secret is
            too short.
    """

    def __init__(
        self,
        table: Table | type[Any],
        *,
        position: Expression | None = None,
        partition: Expression | None = None,
        partitions: int | Layout | None = None,
        data: Data | None = None,
        type: Expression | None = None,  # noqa: A002 - the name that users know
        key: Expression | None = None,
        version: Expression | None = None,
        key_history: bool = False,
        id: Expression | None = None,  # noqa: A002 - the name that users know
        time: Expression | None = None,
        cloudevents: bool | str = False,
        headers: Mapping[str, Expression] | None = None,
        ordering: str | None = None,
        append_only: bool = False,
        mutable: bool = False,
        cursor_secret: bytes | str | None = None,
        retention: Retention | None = None,
        progress: Progress | None = None,
        archive: "Archive | None" = None,
        compaction: Compaction | None = None,
    ) -> None:
        found = table_of(table)
        self._events = Events(
            found,
            key_of(found, position, ordering),
            partition_of(found, partition, partitions),
            None if time is None else resolve(found, time),
            append_only,
        )
        self._ordering = ordering
        self._mutable = mutable
        self._retention = beside(found, retention)
        self._progress = beside(found, progress)
        self._archive = lasting(archive, retention, mutable=mutable)
        self._compaction = compaction
        self._compacted_by = None
        if compaction is not None:
            self._compacted_by = compacted_by(
                found, compaction, key=key, time=time, version=version, retention=retention
            )
        self._attributes = {
            name: resolve(found, column)
            for name, column in {"id": id, "type": type, "key": key, "time": time}.items()
            if column is not None
        }
        self._scheme = "layout" if isinstance(partitions, Layout) else str(partitions)
        self._type = None if type is None else resolve(found, type)
        self._id = None if id is None else resolve(found, id)
        self._envelope = envelope_of(found, cloudevents)
        if isinstance(partitions, Layout):
            self._info, self._ids = partitions.info(), partitions.ids
        else:
            self._info = FeedInfo.of(1 if partitions is None else partitions)
            self._ids = frozenset(partition.id for partition in self._info.partitions)
        self._mapper = Mapper(
            found,
            data=list(found.c) if data is None else data,
            attributes={
                name: column
                for name, column in {"id": id, "type": type, "key": key, "time": time}.items()
                if column is not None
            },
            envelope=self._envelope,
            headers=headers or {},
        )
        self._versions = None if version is None else versions_of(found, key, version)
        if key_history and self._versions is None:
            raise ConfigurationError(
                "The history of a key is read in the order of versions: give the column of those."
            )
        self._shows_keys = key_history
        self._seal = Seal(self._mapper.recipe, cursor_secret)
        known = (
            *self._events.key,
            *(self._versions or ()),
            self._events.partition,
            self._events.time,
            self._type,
            self._id,
        )
        self._used = [*self._mapper.columns, *(each for each in known if each is not None)]

    @overload
    def bind(self, engine: Engine, capacity: Capacity | None = None) -> BoundFeed: ...

    @overload
    def bind(self, engine: AsyncEngine, capacity: Capacity | None = None) -> AsyncBoundFeed: ...

    def bind(
        self, engine: Engine | AsyncEngine, capacity: Capacity | None = None
    ) -> BoundFeed | AsyncBoundFeed:
        """Return the feed that reads the table through an engine of yours.

        The feed checks the table when it is first asked for anything, and raises
        ConfigurationError if the table is not there, lacks what a safe order needs, or has
        events outside of the partitions.

        Args:
            engine: yours.
            capacity: how much the feed takes of it; a Capacity() by default.

        Raises:
            ConfigurationError: events of this database cannot be put in a safe order.
        """
        hash_on_connect(engine)
        capacity = capacity or Capacity()
        roles = self._roles(engine.dialect.name, capacity)
        if isinstance(engine, AsyncEngine):
            return AsyncBoundFeed(engine, capacity, roles)
        return BoundFeed(engine, capacity, roles)

    def _roles(self, dialect: str, capacity: Capacity) -> Roles:
        ordering = self.ordering(dialect)
        source, time = ordering.source, self._events.time
        near, all_near = NearRows(source), NearRows.of_all(source)
        times, ids = (
            self._searched_by(source, time),
            self._searched_by(source, self._id, alike=True),
        )
        rows = RowQuery(near, self._mapper, dialect, joins=True)
        marks = self._marks(source)
        types = self._types(dialect)
        keys = self._keys(source, capacity)
        tier = self._tier(source)
        pages = self._pages(tier, rows, types, capacity.page_bytes)
        history = History(
            RowQuery(all_near, self._mapper, dialect),
            self._seal,
            mutable=self._mutable,
            compacted=self._compaction is not None,
            marks=marks,
            tier=tier,
        )
        if tier is None:
            queries = Queries(
                pages=pages,
                times=TimeQuery(source, all_near, times),
                splits=SplitQuery(near),
                ids=IdQuery(source, ids, types),
                lags=LagQuery(near, time),
                counts=CountQuery(near),
                keys=keys,
            )
        else:
            queries = Queries(
                pages=pages,
                times=ArchivedTimes(tier, source, all_near, times),
                splits=ArchivedSplits(tier, near, self._ids),
                ids=ArchivedIds(tier, source, ids, types),
                lags=ArchivedLags(tier, near, time),
                counts=ArchivedCounts(tier, near),
                keys=keys,
            )
        reader = Reader(
            replace(self._info, extensions=self._extensions(source, types)),
            ordering,
            history,
            queries,
            Checkup(
                ordering,
                Columns(self._events.table, self._used),
                pages,
                partitions=[partition.id for partition in self._info.partitions],
                near=[each for each in (near, all_near, times, ids) if each is not None],
                indexes=self._indexes(near, all_near, times, ids),
                marks=marks,
            ),
        )
        registry = None
        if self._progress is not None:
            lost = marks if tier is None else None
            registry = Registry(self._progress, source, reader, lost)
        if marks is None:
            return Roles(reader, registry=registry)
        batches = Batches(source, history, marks, registry)
        version = None if self._versions is None else self._versions[1]
        trimmer = Trimmer(
            reader, ordering, marks, queries, batches, registry=registry, version=version
        )
        compactor = self._compactor(source, reader, marks, trimmer)
        if self._archive is None or tier is None:
            return Roles(reader, trimmer, registry=registry, compactor=compactor)
        query = SealQuery(
            all_near,
            self._mapper,
            dialect,
            partition=source.partition,
            attributes=self._attributes,
            kind=self._envelope.type if self._envelope else "",
        )
        sealer = Sealer(
            self._archive,
            tier.feed,
            query,
            reader=reader,
            history=history,
            times=queries.times,
            partitions=[partition.id for partition in self._info.partitions],
        )
        is_shared = self._archive.is_shared
        files = Files(self._archive, tier, reader, history) if is_shared else None
        return Roles(reader, trimmer, sealer, files, registry, compactor)

    def _extensions(self, source: Source, types: TypeCondition | None) -> frozenset[str]:
        """Return what discovery announces."""
        time = self._events.time
        has_time = isinstance(getattr(time, "type", None), DateTime)
        given = {
            EVENT_TYPES: types is not None,
            KEY_HISTORY: self._shows_keys,
            PROGRESS: self._progress is not None,
            COMPACTED: self._compaction is not None,
            CURSOR_OF_TIME: has_time or (time is None and source.given_at is not None),
            SEGMENTS: self._archive is not None and self._archive.is_shared,
        }
        always = {CAUGHT_UP, CURSOR_OF_COUNT, LAG, SPLITS, STOP, WAIT}
        return frozenset(always | {name for name, is_given in given.items() if is_given})

    def _compactor(
        self, source: Source, reader: Reader, marks: Marks, trimmer: Trimmer
    ) -> Compactor | None:
        """Return what keeps the last event of each key, if the feed says that it does."""
        if self._compaction is None or self._compacted_by is None:
            return None
        tombstone = self._compaction.tombstone
        return Compactor(
            reader,
            source,
            marks,
            trimmer.before,
            key=self._compacted_by,
            tombstone=None if tombstone is None else resolve(self._events.table, tombstone),
            keep=self._compaction.keep_tombstones,
        )

    def _pages(
        self, tier: Tier | None, rows: RowQuery, types: TypeCondition | None, page_bytes: int
    ) -> PageQuery:
        shown = self._info.partitions
        if tier is None:
            return PageQuery(rows, shown, self._ids, types, page_bytes=page_bytes)
        return ArchivedPages(tier, rows, shown, self._ids, types, page_bytes=page_bytes)

    def _tier(self, source: Source) -> Tier | None:
        """Return the feed's archive as its readers see it, if it has one."""
        if self._archive is None:
            return None
        parts = [self._events.table.fullname, self._scheme, self._mapper.recipe]
        for column in (*self._events.key, self._events.partition):
            compiled = None if column is None else column.compile(dialect=StrCompileDialect())
            parts.append("" if compiled is None else f"{compiled} {compiled.params}")
        parts.append("given" if source.events is not None else "drawn")
        feed = digest("\n".join(parts).encode(), digits=16)
        return Tier(self._archive, feed, self._ids)

    def _marks(self, source: Source) -> Marks | None:
        """Return what knows the feed's mark, if it has a place."""
        if self._retention is None:
            return None
        return Marks(self._retention, source, self._ids)

    @staticmethod
    def _searched_by(
        source: Source, column: ColumnElement[Any] | None, *, alike: bool = False
    ) -> NearRows | None:
        """Find events by a column of theirs, in one partition or in all of them alike."""
        if column is None:
            return None
        if source.events is not None:
            return NearRows(Source(source.events, column, None))
        return NearRows(Source(source.table, column, None if alike else source.partition))

    def _indexes(
        self, near: NearRows, all_near: NearRows, times: NearRows | None, ids: NearRows | None
    ) -> list[NeededIndex]:
        """List the indexes that the feed's queries need, first the one of its pages."""
        needed = [
            NeededIndex(near.source, f"the pages of table {self._events.table.fullname!r}"),
            NeededIndex(all_near.source, "a look at the event of a cursor"),
        ]
        if times is not None and isinstance(times.source.position.type, DateTime):
            more = (near.source.position,) if near.source.events is None else ()
            purpose = "a search for the events of a moment"
            needed.append(NeededIndex(times.source, purpose, more))
        if ids is not None:
            purpose = "a search for an event by its id, as HTTP feeds make it"
            needed.append(NeededIndex(ids.source, purpose))
        return needed

    def _keys(self, source: Source, capacity: Capacity) -> KeyQuery | None:
        """Return what reads the events of a key, if they have versions."""
        if self._versions is None or not self._shows_keys:
            return None
        if source.events is not None and self._envelope and self._id is None:
            raise ConfigurationError(
                "With the ordering sequenced, events of a key are read without positions, which "
                "would be their ids: give the column of their ids as well."
            )
        return KeyQuery(
            self._events, *self._versions, source, self._mapper, page_bytes=capacity.page_bytes
        )

    def _types(self, dialect: str) -> TypeCondition | None:
        """Return what filters events by type, if it can be told from their rows."""
        default = self._envelope.type if self._envelope else ""
        if self._type is None and not default:
            return None
        if self._type is not None and not TypeCondition.understands(self._type):
            return None
        return TypeCondition(self._type, default, dialect)

    def ordering(self, dialect: str) -> Ordering:
        """Make the ordering of this feed's table, for a database by SQLAlchemy's name for it.

        Raises:
            ConfigurationError: events of this database cannot be put in this order.
        """
        return ordering_for(dialect, self._events, self._ordering)

    def has_mark(self, connection: Connection) -> bool:
        """Tell whether the database says what has been trimmed of the feed."""
        marks = self._marks(self.ordering(connection.dialect.name).source)
        return marks is not None and marks.are_there(connection)

    def install(self, connection: Connection) -> None:
        """Add to the database what the ordering and retention need; again, and nothing changes.

        Args:
            connection: in a transaction of yours, with the right to create triggers.
        """
        ordering = self.ordering(connection.dialect.name)
        ddl = ordering.ddl(connection)
        _run(connection, (*ddl.install, *ddl.backfill))
        if (marks := self._marks(ordering.source)) is not None:
            marks.install(connection)
        if self._progress is not None:
            self._progress.create_tables(connection)

    def thin(self, connection: Connection, until: int) -> None:
        """Say that events may be missing one by one, in the transaction that deletes them.

        Cursors that stand at them stay good. Pages of events up to there are no longer said to stay
        as they are; what was said before, caches may go by.

        Args:
            connection: in a transaction of yours.
            until: the highest position of an event that is deleted.

        Raises:
            ConfigurationError: the feed has no `retention`, or no row there.
        """
        marks = self._marks(self.ordering(connection.dialect.name).source)
        if marks is None:
            raise ConfigurationError("A feed that loses events needs a Retention, which says so.")
        marks.check(connection)
        connection.execute(marks.thinning(until))

    def uninstall(self, connection: Connection) -> None:
        """Remove from the database what the ordering has added; the table's data stays.

        What was trimmed stays known: the positions of a feed go on above it.
        """
        _run(connection, self.ordering(connection.dialect.name).ddl(connection).uninstall)


def _run(connection: Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        # Nothing in a statement is a parameter, neither behind a colon nor behind a percent sign.
        connection.execute(text(statement.replace(":", r"\:")))
