"""A feed over a table of the caller's: describe it, and build it for an engine."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast, overload

from sqlalchemy import Connection, DateTime, Engine, Enum, String, Table
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.databases import database_of
from zeroeventhub.databases.forks import not_in_forks
from zeroeventhub.databases.port import Database
from zeroeventhub.databases.statements import run
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.extensions import (
    APPEND,
    ARROW,
    COMPACTED,
    CURSOR_OF_TIME,
    EVENT_TYPES,
    EXTENSIONS,
    FORGET_PROGRESS,
    KEY_HISTORY,
    PRODUCER_SEQUENCE,
    PROGRESS,
    SCHEMAS,
    SEGMENTS,
)
from zeroeventhub.partitions import Layout
from zeroeventhub.protocol import FeedInfo
from zeroeventhub.publisher.bound_feed import AsyncBoundFeed, BoundFeed
from zeroeventhub.publisher.checks import Checkup
from zeroeventhub.publisher.cursor import Signer
from zeroeventhub.publisher.definition import (
    Appender,
    Definition,
    envelope_of,
    key_columns,
    partition_column,
    schemas_of,
    table_of,
)
from zeroeventhub.publisher.deletion import Compactor, Trimmer
from zeroeventhub.publisher.history import History
from zeroeventhub.publisher.key_query import KeyQuery
from zeroeventhub.publisher.keyset import NearRows, NeededIndex
from zeroeventhub.publisher.lookups import Lookups
from zeroeventhub.publisher.mapping import Data, Expression, Mapper, resolve
from zeroeventhub.publisher.ordering import Events, Ordering, Source
from zeroeventhub.publisher.page_query import PageQuery, TypeCondition
from zeroeventhub.publisher.partition_hash import hash_on_connect
from zeroeventhub.publisher.progress import Progress, Registry
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.restoring import Restorer
from zeroeventhub.publisher.retention import Compaction, Retention
from zeroeventhub.publisher.rows import RowQuery
from zeroeventhub.publisher.sealing import Sealer, SegmentRows
from zeroeventhub.publisher.splits import SplitQuery
from zeroeventhub.settings import Capacity

if TYPE_CHECKING:
    from zeroeventhub.archive.archive import Archive


class TableFeed:
    """Publish a table as a feed.

    Example:
        feed = TableFeed(orders, data="data", type="kind", partition="part", partitions=4)
        app = Starlette(routes=feed_routes("/orders", feed, engine))
        page = feed.bind(engine).read(0, FIRST, 100)

    Args:
        table: your SQLAlchemy Table or ORM class; the feed does not change it.
        position: the column whose order is the order of events, drawn by the database;
            by default the primary key. With the ordering sequenced, any column that identifies
            an event.
        partition: the column that holds an event's partition, 0 to partitions - 1, or an
            expression such as `partition_expression` makes of a key; None for one partition.
        partitions: how many partitions there are, or a Layout of partitions that have changed;
            see docs/partitions.md. With None, and a partition column, the feed finds them in the
            table: before the first read and then once a minute. When it finds an event of a new
            partition, it adds that partition and changes its token.
        data: an event's data: one JSON or text column, a list of columns, or SQL expressions by
            name; by default all columns. See docs/json.md for their JSON form.
        type: the column of the event's type; readers can ask for some types if it is of text.
        key: the column whose equal values keep their order.
        version: the column of an event's number within its key, unique together with the key.
            Events with one are only trimmed if there are `snapshots`.
        snapshots: the table of the snapshots of an EventLog's keys: events up to the version of
            their key's snapshot may be trimmed and compacted.
        key_history: let readers request the events of one key; see docs/keys.md.
        id: the column that identifies the event; by default its position.
        time: the column of the time of the event.
        cloudevents: wrap data in a CloudEvents 1.0 envelope made of these columns. A string
            is the envelope's `source`; True takes the table's name.
        attributes: further attributes of that envelope by name, each with its column: `subject`,
            `dataschema`, `traceparent`, or one of an extension. An event whose column is NULL or
            empty omits the attribute.
        headers: v1 headers by name, each with its column.
        ordering: "observed", "gated" or "sequenced" on PostgreSQL, "observed" or "sequenced" on
            MariaDB and MySQL, "single-writer" or "sequenced" on SQLite; by default the first of
            each, which needs nothing in your database. See docs/ordering.md.
        append_only: promise that no row is ever deleted. SQLite needs it for a table without
            AUTOINCREMENT, because it gives the number of a deleted row again.
        mutable: declare that rows are changed or deleted after they were written. By default the
            feed refuses a cursor whose event has changed, as a sign of lost history; for a mutable
            feed it compares only positions.
        cursor_secret: 16 bytes or more, known to the publisher alone, and the same in all of its
            processes. A cursor holds a digest of its event, even of one that the reader may not
            see; without a secret, a reader can test a guess of that event against it. Needed if
            readers may see only a part of the feed and events can be guessed. After a change of
            the secret, the feed compares only the positions of earlier cursors.
        retention: the table of what has been trimmed of the feed, so that readers whose events
            were trimmed get 410, and no other reader does; see docs/retention.md.
        progress: the table of the progress that consumers register, so that trimming waits for
            them.
        compaction: keep only the last event of each key whenever the bound feed's `compact` is
            called; see docs/retention.md.
        schemas: a pydantic model, msgspec.Struct, dataclass or TypedDict of the data of each type
            of events, by the type's name, or one model of all events; published as JSON Schema. The
            feed compares only what `append` appends with it, and no rows; see docs/schemas.md.
        archive: where history is sealed to, and read from after a trim, so that every reader can
            start at the beginning; see docs/archive.md.
        append: what appends the events that writers send over HTTP; see `EventLog`.

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
        snapshots: Table | None = None,
        key_history: bool = False,
        id: Expression | None = None,  # noqa: A002 - the name that users know
        time: Expression | None = None,
        cloudevents: bool | str = False,
        attributes: Mapping[str, Expression] | None = None,
        headers: Mapping[str, Expression] | None = None,
        ordering: str | None = None,
        append_only: bool = False,
        mutable: bool = False,
        cursor_secret: bytes | str | None = None,
        retention: Retention | None = None,
        progress: Progress | None = None,
        archive: "Archive | None" = None,
        compaction: Compaction | None = None,
        schemas: Any = None,
        append: Appender | None = None,
    ) -> None:
        found = table_of(table)
        named = {"id": id, "type": type, "key": key, "time": time}
        given = {name: resolve(found, one, name) for name, one in named.items() if one is not None}
        further = attributes or {}
        envelope = envelope_of(found, cloudevents, further)
        mapper = Mapper(
            found,
            data=list(found.c) if data is None else data,
            attributes={**given, **further},
            envelope=envelope,
            headers=headers or {},
        )
        described, checks = (
            (None, {}) if schemas is None else schemas_of(schemas, envelope, typed=type is not None)
        )
        position_key = key_columns(found, position, ordering)
        column = partition_column(found, partition, partitions)
        self._defined = Definition(
            events=Events(found, position_key, column, given.get("time"), append_only),
            ordering_name=ordering,
            partitions=partitions,
            info=(
                partitions.info()
                if isinstance(partitions, Layout)
                else FeedInfo.of(1 if partitions is None else partitions)
            ),
            mapper=mapper,
            envelope=envelope,
            attributes=given,
            version=None if version is None else resolve(found, version, "version"),
            snapshots=snapshots,
            shows_keys=key_history,
            signer=Signer(mapper.recipe, cursor_secret),
            is_mutable=mutable,
            retention=retention,
            progress=progress,
            archive=archive,
            compaction=compaction,
            schemas=described,
            checks=checks,
            append=append,
        )

    @overload
    def bind(self, engine: Engine, capacity: Capacity | None = None) -> BoundFeed: ...

    @overload
    def bind(self, engine: AsyncEngine, capacity: Capacity | None = None) -> AsyncBoundFeed: ...

    def bind(
        self, engine: Engine | AsyncEngine, capacity: Capacity | None = None
    ) -> BoundFeed | AsyncBoundFeed:
        """Return the feed that reads the table through your engine.

        At the first call the feed checks the table, and raises ConfigurationError if the table
        does not exist or lacks something that a safe order needs. If an event is in a partition
        that the feed does not have, the feed logs an ERROR once a minute; it still serves its
        partitions, but refuses to trim, compact or seal until the event is moved.

        Args:
            engine: connects to the table's database.
            capacity: how many connections and seconds the feed may use; a Capacity() by default.

        Raises:
            ConfigurationError: the feed's ordering does not work with this database.
        """
        if not isinstance(given := cast("object", engine), Engine | AsyncEngine):
            raise ConfigurationError(
                "A feed reads through an engine, such as create_engine('sqlite:///shop.db'), not "
                f"through an object of the class {type(given).__name__}."
            )
        hash_on_connect(engine)
        not_in_forks(engine)
        return build(self._defined, engine, capacity or Capacity())

    def ordering(self, dialect: str) -> Ordering:
        """Make the ordering of this feed's table.

        Args:
            dialect: SQLAlchemy's name for the database.

        Raises:
            ConfigurationError: events of this database cannot be put in this order.
        """
        return self._defined.ordering(dialect)

    def has_mark(self, connection: Connection) -> bool:
        """Return whether the database has the feed's mark of what was trimmed."""
        marks = self._defined.marks(self.ordering(connection.dialect.name).source)
        return marks is not None and marks.has_row(connection)

    def install(self, connection: Connection) -> None:
        """Create what the ordering and retention need in the database; may be called again.

        Args:
            connection: in a transaction that you commit, with the right to create triggers.
        """
        ordering = self.ordering(connection.dialect.name)
        ddl = ordering.ddl(connection)
        run(connection, (*ddl.install, *ddl.backfill))
        if (marks := self._defined.marks(ordering.source)) is not None:
            marks.install(connection)
        if self._defined.progress is not None:
            self._defined.progress.create_tables(connection)

    def thin(self, connection: Connection, until: int) -> None:
        """Declare that you delete single events, in the transaction that deletes them.

        Cursors of these events stay valid. The feed no longer marks pages up to `until` as
        immutable; caches may keep pages that it marked before.

        Args:
            connection: in the transaction of your deletes.
            until: the highest position of an event that you delete.

        Raises:
            ConfigurationError: the feed has no `retention`, or no row there.
        """
        marks = self._defined.marks(self.ordering(connection.dialect.name).source)
        if marks is None:
            raise ConfigurationError("A feed that loses events needs a Retention, which says so.")
        marks.check(connection)
        marks.thin(connection, until)

    def uninstall(self, connection: Connection) -> None:
        """Remove what the ordering has created in the database; the table's data stays.

        The mark of what was trimmed stays too: a feed's positions must continue above it.

        Args:
            connection: in a transaction that you commit, with the right to drop triggers.
        """
        run(connection, self.ordering(connection.dialect.name).ddl(connection).uninstall)


def build(
    defined: Definition, engine: Engine | AsyncEngine, capacity: Capacity
) -> BoundFeed | AsyncBoundFeed:
    """Build a feed."""
    ordering = defined.ordering(engine.dialect.name)
    database = database_of(engine)
    source, mapper = ordering.source, defined.mapper
    near, all_near = NearRows(source), NearRows(replace(source, partition=None))
    types = _type_condition(defined, database)
    marks = defined.marks(source)
    archive = defined.archive_reader(source)
    lookups = Lookups(
        near,
        all_near,
        time=defined.events.time,
        identity=defined.attributes.get("id"),
        types=types,
        archive=archive,
    )
    registry = None
    if defined.progress is not None:
        # With an archive, trimming loses nothing.
        registry = Registry(
            defined.progress, near, defined.info.partitions, marks if archive is None else None
        )
    history = History(
        RowQuery(all_near, mapper, database),
        defined.signer,
        mutable=defined.is_mutable,
        compacted=defined.is_compacted,
        marks=marks,
        archive=archive,
    )
    pages = PageQuery(
        RowQuery(
            near,
            mapper,
            database,
            streams=database.can_stream(engine.dialect),
            joins=database.joins_rows(engine.dialect),
        ),
        defined.info.partitions,
        defined.ids,
        types,
        page_bytes=capacity.page_bytes,
        archive=archive,
    )
    reader = Reader(
        ordering=ordering,
        history=history,
        checks=Checkup(
            defined=defined,
            info=replace(defined.info, extensions=_extensions(defined, source, types)),
            ordering=ordering,
            pages=pages,
            near=[near, all_near, *lookups.searches],
            indexes=_needed_indexes(defined, near, all_near, lookups),
            marks=marks,
            archive=archive,
        ),
        page_query=pages,
        lookups=lookups,
        split_query=SplitQuery(near, archive),
        key_query=KeyQuery(defined, source, capacity.page_bytes) if defined.shows_keys else None,
        registry=registry,
    )
    trimmer = compactor = sealer = restorer = None
    if marks is not None:
        trimmer = Trimmer(
            reader=reader,
            defined=defined,
            all_near=all_near,
            near=near,
            marks=marks,
            # Consumers that come late read on from the archive.
            registry=registry if archive is None else None,
        )
        if (compaction := defined.compaction) is not None:
            tombstone = compaction.tombstone
            compactor = Compactor(
                reader=reader,
                defined=defined,
                all_near=all_near,
                marks=marks,
                tombstone=None if tombstone is None else resolve(defined.events.table, tombstone),
                keep_tombstones=compaction.keep_tombstones,
            )
        if archive is not None:
            sealer = Sealer(
                archive=archive,
                defined=defined,
                rows=SegmentRows(all_near, defined, database, source.partition),
                reader=reader,
            )
            restorer = Restorer(
                archive=archive,
                defined=defined,
                rows=SegmentRows(near, defined, database, source.partition),
                all_near=all_near,
                reader=reader,
                marks=marks,
            )
    bound = AsyncBoundFeed if isinstance(engine, AsyncEngine) else BoundFeed
    return bound(
        engine,
        capacity.statement_seconds,
        defined,
        reader,
        trimmer=trimmer,
        compactor=compactor,
        sealer=sealer,
        restorer=restorer,
    )


def _type_condition(defined: Definition, database: Database) -> TypeCondition | None:
    """Return the SQL condition on an event's type, if the feed has a type column of text."""
    kind = defined.attributes.get("type")
    default = defined.default_type
    if kind is None:
        return TypeCondition(None, default, database) if default else None
    # Readers get the types of such a column as its text.
    is_text = isinstance(kind.type, String) and not isinstance(kind.type, Enum)
    return TypeCondition(kind, default, database) if is_text else None


def _needed_indexes(
    defined: Definition, near: NearRows, all_near: NearRows, lookups: Lookups
) -> list[NeededIndex]:
    """Return the indexes that the feed's queries need, first the one of pages."""
    needed = [
        NeededIndex(near.source, f"the pages of table {defined.events.table.fullname!r}"),
        NeededIndex(all_near.source, "a look at the event of a cursor"),
    ]
    if lookups.times and isinstance(lookups.times.source.position.type, DateTime):
        more = (near.source.position,) if near.source.events is None else ()
        needed.append(
            NeededIndex(lookups.times.source, "a search for the events of a moment", more)
        )
    if lookups.ids in lookups.searches:
        purpose = "a search for an event by its id, as HTTP feeds make it"
        needed.append(NeededIndex(lookups.ids.source, purpose))
    return needed


def _extensions(defined: Definition, source: Source, types: TypeCondition | None) -> frozenset[str]:
    """Return the extensions that the feed announces in its description."""
    time = defined.events.time
    has_time = isinstance(getattr(time, "type", None), DateTime)
    given = {
        EVENT_TYPES: types is not None,
        KEY_HISTORY: defined.shows_keys,
        PROGRESS: defined.progress is not None,
        FORGET_PROGRESS: defined.progress is not None,
        COMPACTED: defined.is_compacted,
        SCHEMAS: defined.schemas is not None,
        CURSOR_OF_TIME: has_time or (time is None and source.given_at is not None),
        SEGMENTS: defined.archive is not None and defined.archive.is_shared,
        APPEND: defined.append is not None,
        PRODUCER_SEQUENCE: defined.append is not None,
        ARROW: False,  # the server converts pages to Arrow, and announces it
    }
    return frozenset(name for name in EXTENSIONS if given.get(name, True))
