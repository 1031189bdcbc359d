"""The options of TableFeed: check them, and build a feed of them for an engine."""

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sqlalchemy import (
    Column,
    ColumnElement,
    DateTime,
    Engine,
    Enum,
    Integer,
    String,
    Table,
    and_,
    exists,
    inspect,
)
from sqlalchemy.engine.default import StrCompileDialect
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.sql.visitors import iterate

from zeroeventhub.databases import database_of
from zeroeventhub.databases.port import Database
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
from zeroeventhub.protocol import CLOUDEVENTS, EVERY_TYPE, FeedInfo, Schemas, folded
from zeroeventhub.publisher.archive_reader import ArchiveReader
from zeroeventhub.publisher.bound_feed import Appender, AsyncBoundFeed, BoundFeed
from zeroeventhub.publisher.checks import Checkup
from zeroeventhub.publisher.cursor import Signer, digest
from zeroeventhub.publisher.deletion import Compaction, Compactor, Trimmer
from zeroeventhub.publisher.history import History
from zeroeventhub.publisher.key_query import KeyQuery, expect_unique
from zeroeventhub.publisher.keyset import NearRows, NeededIndex
from zeroeventhub.publisher.lookups import Lookups, value_of
from zeroeventhub.publisher.mapping import CloudEvents, Expression, Mapper, resolve
from zeroeventhub.publisher.ordering import Events, Ordering, Source, ordering_for
from zeroeventhub.publisher.page_query import PageQuery, TypeCondition
from zeroeventhub.publisher.progress import Progress, Registry
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.restoring import Restorer
from zeroeventhub.publisher.retention import MarkTable, Retention
from zeroeventhub.publisher.rows import RowQuery
from zeroeventhub.publisher.sealing import Sealer, SegmentRows
from zeroeventhub.publisher.splits import SplitQuery
from zeroeventhub.settings import Capacity
from zeroeventhub.wire.models import Check, check_of, schema_of

if TYPE_CHECKING:
    from zeroeventhub.archive.archive import Archive

_ATTRIBUTE = re.compile(r"[a-z0-9]{1,20}", re.ASCII)

_TAKEN = (
    *("specversion", "id", "source", "type", "time", "datacontenttype"),
    *("data", "partitionkey", "key"),
)
"""The attributes that other parameters of a feed define."""


def table_of(table: Table | type[Any]) -> Table:
    """Return the Table, or the table of an ORM class."""
    mapped = inspect(table, raiseerr=False)
    found = getattr(mapped, "local_table", mapped)
    if not isinstance(found, Table):
        raise ConfigurationError(f"{table!r} is neither a Table nor a class mapped to one.")
    return found


def envelope_of(
    table: Table, cloudevents: bool | str, attributes: Mapping[str, Expression]
) -> CloudEvents | None:
    """Return the envelope of events; check its further attributes (CloudEvents 1.0)."""
    if attributes and not cloudevents:
        raise ConfigurationError(
            "Attributes are a CloudEvent's: give cloudevents as well.", "attributes"
        )
    for name in attributes:
        if name in _TAKEN or not _ATTRIBUTE.fullmatch(name):
            raise ConfigurationError(
                f"{name!r} cannot be a further attribute: its name has 1 to 20 letters from a "
                f"to z and digits, and is none of {', '.join(_TAKEN)}.",
                "attributes",
            )
    if not cloudevents:
        return None
    source = cloudevents if isinstance(cloudevents, str) else f"/{quote(table.name)}"
    return CloudEvents(source=source, type=str(table.name))


def schemas_of(
    models: Any, envelope: CloudEvents | None, *, typed: bool
) -> tuple[Schemas, Mapping[str, Check | None]]:
    """Return the schemas of a feed's events, and by type what compares new events with them.

    There is a model for the name of each type, or one for all events, which may be `typed`.
    """
    if not isinstance(models, Mapping):
        models = {envelope.type if envelope and not typed else EVERY_TYPE: models}
    types = {name: schema_of(model) for name, model in models.items()}
    checks = {name: check_of(model) for name, model in models.items()}
    checks = {folded(name): check for name, check in checks.items()} | checks
    return Schemas(types, CLOUDEVENTS if envelope else None), checks


def key_columns(
    table: Table, position: Expression | None, ordering: str | None
) -> tuple[ColumnElement[Any], ...]:
    """Return the column of positions, or the key of rows if the ordering gives positions."""
    key = tuple(table.primary_key.columns)
    if position is not None:
        column = table.c.get(getattr(resolve(table, position, "position"), "key", ""))
        if column is None:
            raise ConfigurationError(f"The position is a column of the table; {position} is not.")
        key = (column,)
    if ordering == "sequenced":
        if not key:
            raise ConfigurationError(
                f"Table {table.name!r} has no primary key by which its events could be identified."
            )
        return key
    if len(key) != 1:
        raise ConfigurationError(
            f"Table {table.name!r} has no primary key of one column: say which column is the "
            "position."
        )
    if not isinstance(key[0].type, Integer):
        raise ConfigurationError(
            f"The position is a column of whole numbers that the database draws; {key[0]} is not: "
            "choose another, or the ordering sequenced, which gives positions of its own to rows "
            "that never change.",
            "position",
        )
    return key


def partition_column(
    table: Table, partition: Expression | None, partitions: int | Layout | None
) -> ColumnElement[Any] | None:
    """Return the column or expression of partitions."""
    if partition is None:
        if partitions is not None:
            raise ConfigurationError("Say which column holds an event's partition as well.")
        return None
    column = resolve(table, partition, "partition")
    if not isinstance(column.type, Integer):
        raise ConfigurationError(
            f"A partition is a whole number from 0; {partition} has the SQL type {column.type!r}.",
            "partition",
        )
    return column


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A feed's options, as TableFeed describes them, with their columns resolved.

    Attributes:
        partitions: their number or their layout; None to find them in the table.
        info: the feed's description, without its extensions.
        attributes: the expressions of id, type, key and time, as far as configured.
        shows_keys: whether readers may request the events of a key.

    Raises:
        ConfigurationError: two of these exclude each other.
    """

    events: Events
    ordering_name: str | None = None
    partitions: int | Layout | None
    info: FeedInfo
    mapper: Mapper
    envelope: CloudEvents | None = None
    attributes: Mapping[str, ColumnElement[Any]]
    version: ColumnElement[Any] | None = None
    snapshots: Table | None = None
    shows_keys: bool = False
    signer: Signer
    is_mutable: bool = False
    retention: Retention | None = None
    progress: Progress | None = None
    archive: "Archive | None" = None
    compaction: Compaction | None = None
    schemas: Schemas | None = None
    checks: Mapping[str, Check | None] = field(default_factory=dict)
    append: Appender | None = None

    def __post_init__(self) -> None:
        """Refuse options of other types, and those that exclude each other."""
        for kind in (Retention, Progress, Compaction):
            option = kind.__name__.lower()
            given = getattr(self, option)
            if given is not None and not isinstance(given, kind):
                raise ConfigurationError(f"{option} is a {kind.__name__}, not {given!r}.", option)
        for mistake in (*self._versions(), *self._compaction(), *self._archive()):
            raise ConfigurationError(mistake)
        for kept in (self.retention, self.progress):
            if kept is not None and kept.table.schema != self.events.table.schema:
                raise ConfigurationError(
                    f"{type(kept).__name__} has to be in the schema of the feed's table "
                    f"{self.events.table.fullname!r}: "
                    f"{type(kept).__name__}(schema={self.events.table.schema!r})."
                )

    def _versions(self) -> Iterator[str]:
        """Yield what is wrong with the versions of events."""
        key, version = self.attributes.get("key"), self.version
        if version is None:
            if self.shows_keys:
                yield "The history of a key is read in the order of versions: give version as well."
            if self.snapshots is not None:
                yield "A snapshot covers versions of its key: give version as well."
        elif key is None:
            yield "A version is the number of an event within its key: give key as well."
        elif not (isinstance(key, Column) and isinstance(version, Column)):
            yield "In a feed with versions, key and version are columns of the table."
        elif not isinstance(version.type, Integer):
            yield f"A version is a whole number; {version} is not."
        else:
            value_of(key, "")
            expect_unique(self.events.table, key, version)

    def _compaction(self) -> Iterator[str]:
        """Yield what keeps the feed from being compacted."""
        if self.compaction is None:
            return
        if not isinstance(self.attributes.get("key"), Column):
            yield "A feed is compacted by its key, which has to be a column of its table: give key."
        if self.version is not None and self.snapshots is None:
            yield (
                "A key is restored from all of its events, and compaction would leave only the "
                "last: give the table of snapshots as well, or leave out version or compaction."
            )
        if self.retention is None:
            yield "The table of retention records compaction: give retention=Retention() as well."
        if self.compaction.tombstone is not None and self.events.time is None:
            yield "Tombstones are kept for some time: give the column of the time of events."

    def _archive(self) -> Iterator[str]:
        """Yield what keeps the feed from being sealed into an archive."""
        given: object = self.archive
        if given is None:
            return
        if isinstance(given, str | PathLike):
            yield "archive is an Archive, such as Archive('/var/history/orders')."
        if self.is_mutable:
            yield (
                "A feed whose rows are changed or deleted cannot be sealed, as events in an "
                "archive never change: leave out mutable or archive."
            )
        if self.grows:
            yield (
                "An archive holds a fixed number of partitions: give the number of partitions as "
                "well."
            )
        if self.retention is None:
            yield (
                "The table of retention records which events only the archive has: give "
                "retention=Retention() as well."
            )

    @property
    def ids(self) -> AbstractSet[int]:
        """Return the partitions that events may be in, including those that are not read."""
        if isinstance(self.partitions, Layout):
            return self.partitions.ids
        return frozenset(partition.id for partition in self.info.partitions)

    @property
    def coming(self) -> AbstractSet[int]:
        """Return the partitions whose events no reader can see yet, and which a trim would lose."""
        if self.archive is not None or not isinstance(self.partitions, Layout):
            return frozenset()
        return self.partitions.coming

    @property
    def grows(self) -> bool:
        """Return whether the feed finds its partitions in the table."""
        return self.events.partition is not None and self.partitions is None

    @property
    def used(self) -> list[str]:
        """Return the names of the table's columns that the feed reads."""
        events, attributes = self.events, self.attributes
        known = [*events.key, events.partition, events.time, self.version]
        known += [attributes.get("type"), attributes.get("id")]
        if self.version is not None:
            known.append(attributes["key"])
        read = [*self.mapper.columns, *(one for one in known if one is not None)]
        parts = [part for expression in read for part in iterate(expression)]
        # The columns of the table, also where they are named by an ORM class for it.
        names = [
            part.name
            for part in parts
            if isinstance(part, Column)
            and getattr(part.table, "fullname", None) == events.table.fullname
        ]
        return [*dict.fromkeys(names)]

    @property
    def unique(self) -> tuple[str, ...]:
        """Return the names of the columns of key, version and partition; none without versions."""
        if self.version is None:
            return ()
        columns = self.attributes["key"], self.version, self.events.partition
        return tuple(column.name for column in columns if isinstance(column, Column))

    @property
    def needed(self) -> ColumnElement[bool] | None:
        """Return the condition that a key is restored from an event; None without versions."""
        if self.version is None:
            return None
        if self.snapshots is None:
            return self.version.is_not(None)
        key, version = (resolve(self.snapshots, name) for name in ("key", "version"))
        covers = and_(key == self.attributes["key"], version >= self.version)
        covered = exists().where(covers).correlate(self.events.table)
        return and_(self.version.is_not(None), ~covered)

    @property
    def is_compacted(self) -> bool:
        """Return whether the feed need not keep all events of a key."""
        return self.compaction is not None

    def ordering(self, dialect: str) -> Ordering:
        """Make the ordering of the table, for a database by SQLAlchemy's name for it."""
        return ordering_for(dialect, self.events, self.ordering_name)

    def marks(self, source: Source) -> MarkTable | None:
        """Return the table of the feed's mark, if it has `retention`."""
        if self.retention is None:
            return None
        return MarkTable(self.retention, source, self.ids, self.info.partitions)

    def archive_reader(self, source: Source) -> ArchiveReader | None:
        """Return the reader of the feed's archive, if it has one."""
        if self.archive is None:
            return None
        scheme = "layout" if isinstance(self.partitions, Layout) else str(self.partitions)
        parts = [self.events.table.fullname, scheme, self.mapper.recipe]
        for column in (*self.events.key, self.events.partition):
            compiled = None if column is None else column.compile(dialect=StrCompileDialect())
            parts.append("" if compiled is None else f"{compiled} {compiled.params}")
        parts.append("given" if source.events is not None else "drawn")
        feed = digest("\n".join(parts).encode(), digits=16)
        return ArchiveReader(self.archive, feed, self.ids)


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
            defined.progress, source, defined.info.partitions, marks if archive is None else None
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
        RowQuery(near, mapper, database, streams=database.can_stream(engine.dialect), joins=True),
        defined.info.partitions,
        defined.ids,
        types,
        page_bytes=capacity.page_bytes,
        archive=archive,
    )
    checkup = Checkup(
        ordering=ordering,
        table=defined.events.table,
        columns=defined.used,
        unique=defined.unique,
        pages=pages,
        partitions=[partition.id for partition in defined.info.partitions],
        near=[one for one in (near, all_near, lookups.times, lookups.ids) if one is not None],
        indexes=_needed_indexes(defined, near, all_near, lookups),
        marks=marks,
        archive=archive,
        time=defined.events.time,
        is_mutable=defined.is_mutable,
    )
    reader = Reader(
        info=replace(defined.info, extensions=_extensions(defined, source, types)),
        ordering=ordering,
        history=history,
        checks=checkup,
        page_query=pages,
        lookups=lookups,
        split_query=SplitQuery(near, archive),
        key_query=_key_query(defined, source, capacity.page_bytes),
        registry=registry,
    )
    if defined.grows:
        checkup.grow = partial(_grow, reader, pages, checkup, marks)
    trimmer = compactor = sealer = restorer = None
    if marks is not None:
        trimmer = Trimmer(
            reader=reader,
            near=all_near,
            of_one=near,
            coming=defined.coming,
            marks=marks,
            # Consumers that come late read on from the archive.
            registry=registry if archive is None else None,
            key=defined.attributes.get("key"),
            needed=defined.needed,
        )
        if (compaction := defined.compaction) is not None:
            tombstone = compaction.tombstone
            compactor = Compactor(
                reader=reader,
                near=all_near,
                marks=marks,
                key=defined.attributes["key"],
                tombstone=None if tombstone is None else resolve(defined.events.table, tombstone),
                keep_tombstones=compaction.keep_tombstones,
                needed=defined.needed,
            )
    if archive is not None:
        from zeroeventhub.archive.manifest import Description  # noqa: PLC0415 - of another extra

        segment_rows = partial(
            SegmentRows,
            mapper=mapper,
            database=database,
            partition=source.partition,
            version=defined.version,
            attributes=defined.attributes,
            kind=defined.envelope.type if defined.envelope else "",
        )
        rows = segment_rows(all_near)
        sealer = Sealer(
            archive=archive.archive,
            feed=archive.feed,
            rows=rows,
            reader=reader,
            description=Description(
                # Of the extensions, only this says something of the events.
                replace(defined.info, extensions=reader.info.extensions & {COMPACTED}),
                tuple(sorted(defined.ids)),
                tuple(sorted(rows.attributes)),
                mapper.recipe,
            ),
        )
        if marks is not None:
            restorer = Restorer(
                archive=archive.archive,
                feed=archive.feed,
                events=defined.events,
                mapper=mapper,
                attributes=defined.attributes,
                version=defined.version,
                rows=segment_rows(near),
                near=all_near,
                reader=reader,
                marks=marks,
                compacted=defined.is_compacted,
            )
    bound = AsyncBoundFeed if isinstance(engine, AsyncEngine) else BoundFeed
    return bound(
        engine,
        capacity.statement_seconds,
        reader,
        trimmer=trimmer,
        compactor=compactor,
        registry=registry,
        sealer=sealer,
        restorer=restorer,
        described=defined.schemas,
        appender=defined.append,
        checks_of_data=defined.checks,
    )


def _type_condition(defined: Definition, database: Database) -> TypeCondition | None:
    """Return the SQL condition on an event's type, if the feed has a type column of text."""
    kind = defined.attributes.get("type")
    default = defined.envelope.type if defined.envelope else ""
    if kind is None:
        return TypeCondition(None, default, database) if default else None
    # Readers get the types of such a column as its text.
    is_text = isinstance(kind.type, String) and not isinstance(kind.type, Enum)
    return TypeCondition(kind, default, database) if is_text else None


def _key_query(defined: Definition, source: Source, page_bytes: int) -> KeyQuery | None:
    """Return the query for the events of a key, if the feed shows their versions."""
    version = defined.version
    if version is None or not defined.shows_keys:
        return None
    if source.events is not None and defined.envelope and "id" not in defined.attributes:
        raise ConfigurationError(
            "With the ordering sequenced, events of a key are read without positions, which "
            "would be their ids: give the column of their ids as well."
        )
    key = defined.attributes["key"]
    return KeyQuery(defined.events, key, version, source, defined.mapper, page_bytes=page_bytes)


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
    if lookups.ids:
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


def _grow(
    reader: Reader, pages: PageQuery, checkup: Checkup, marks: MarkTable | None, count: int
) -> None:
    """Give a feed more partitions, by whole assignments: other threads read these attributes."""
    checkup.partitions = pages.ids = range(count)
    if marks is not None:
        marks.partitions = range(count)
    # Last: as soon as consumers see the new token, they request the new partitions.
    reader.info = replace(FeedInfo.of(count), extensions=reader.info.extensions)
