"""The parts of a feed over a table, built for one engine."""

from dataclasses import replace
from functools import partial

from sqlalchemy import DateTime, Engine, Enum, String
from sqlalchemy.engine.default import StrCompileDialect
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.databases import database_of
from zeroeventhub.databases.port import Database
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import (
    ARROW,
    COMPACTED,
    CURSOR_OF_TIME,
    EVENT_TYPES,
    EXTENSIONS,
    KEY_HISTORY,
    PROGRESS,
    SEGMENTS,
    FeedInfo,
)
from zeroeventhub.publisher.archive_reader import ArchiveReader
from zeroeventhub.publisher.bound_feed import AsyncBoundFeed, BoundFeed
from zeroeventhub.publisher.checks import Checkup
from zeroeventhub.publisher.compaction import Compactor
from zeroeventhub.publisher.cursor import digest
from zeroeventhub.publisher.definition import Definition
from zeroeventhub.publisher.history import History
from zeroeventhub.publisher.key_query import KeyQuery
from zeroeventhub.publisher.keyset import NearRows, NeededIndex
from zeroeventhub.publisher.lookups import Lookups
from zeroeventhub.publisher.mapping import resolve
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.page_query import PageQuery, TypeCondition
from zeroeventhub.publisher.progress import Registry
from zeroeventhub.publisher.reader import Queries, Reader
from zeroeventhub.publisher.retention import MarkTable
from zeroeventhub.publisher.rows import RowQuery
from zeroeventhub.publisher.sealing import Sealer, SealQuery
from zeroeventhub.publisher.splits import SplitQuery
from zeroeventhub.publisher.trimming import Trimmer
from zeroeventhub.settings import Capacity

__all__ = [
    "build",
]


def build(
    defined: Definition, engine: Engine | AsyncEngine, capacity: Capacity
) -> BoundFeed | AsyncBoundFeed:
    """Build a feed.

    Raises:
        ConfigurationError: the feed's ordering does not work with this database.
    """
    ordering = defined.ordering(engine.dialect.name)
    database = database_of(engine)
    source, mapper = ordering.source, defined.mapper
    near, all_near = NearRows(source), NearRows.of_all(source)
    types = _type_condition(defined, database)
    marks = defined.marks(source)
    archive = _archive_reader(defined, source)
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
        registry = Registry(defined.progress, source, marks if archive is None else None)
    history = History(
        RowQuery(all_near, mapper, database),
        defined.signer,
        mutable=defined.is_mutable,
        compacted=defined.compaction is not None,
        marks=marks,
        archive=archive,
    )
    queries = Queries(
        pages=PageQuery(
            RowQuery(
                near, mapper, database, streams=database.can_stream(engine.dialect), joins=True
            ),
            defined.info.partitions,
            defined.ids,
            types,
            page_bytes=capacity.page_bytes,
            archive=archive,
        ),
        lookups=lookups,
        splits=SplitQuery(near, archive),
        keys=_key_query(defined, source, capacity.page_bytes),
    )
    checkup = Checkup(
        ordering,
        defined.events.table,
        defined.used,
        queries.pages,
        partitions=[partition.id for partition in defined.info.partitions],
        near=[one for one in (near, all_near, lookups.times, lookups.ids) if one is not None],
        indexes=_needed_indexes(defined, near, all_near, lookups),
        marks=marks,
        is_mutable=defined.is_mutable,
    )
    info = replace(defined.info, extensions=_extensions(defined, source, types))
    reader = Reader(info, ordering, history, queries, checkup, registry=registry)
    if defined.grows:
        checkup.grow = partial(_grow, reader, queries.pages, checkup, marks)
    trimmer = compactor = sealer = None
    if marks is not None:
        trimmer = Trimmer(
            reader,
            ordering,
            history,
            marks,
            lookups,
            # Consumers that come late read on from the archive.
            registry=registry if archive is None else None,
            version=defined.version,
        )
        compactor = _compactor(defined, reader, source, marks)
    if archive is not None:
        sealer = Sealer(
            archive,
            SealQuery(
                all_near,
                mapper,
                database,
                partition=source.partition,
                attributes=defined.attributes,
                kind=defined.envelope.type if defined.envelope else "",
            ),
            reader=reader,
            history=history,
            attributes=defined.attributes,
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


def _archive_reader(defined: Definition, source: Source) -> ArchiveReader | None:
    """Return the reader of the feed's archive, if it has one."""
    if defined.archive is None:
        return None
    parts = [defined.events.table.fullname, defined.scheme, defined.mapper.recipe]
    for column in (*defined.events.key, defined.events.partition):
        compiled = None if column is None else column.compile(dialect=StrCompileDialect())
        parts.append("" if compiled is None else f"{compiled} {compiled.params}")
    parts.append("given" if source.events is not None else "drawn")
    feed = digest("\n".join(parts).encode(), digits=16)
    return ArchiveReader(defined.archive, feed, defined.ids)


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
        COMPACTED: defined.compaction is not None,
        CURSOR_OF_TIME: has_time or (time is None and source.given_at is not None),
        SEGMENTS: defined.archive is not None and defined.archive.is_shared,
        ARROW: False,  # the server converts pages to Arrow, and announces it
    }
    return frozenset(name for name in EXTENSIONS if given.get(name, True))


def _compactor(
    defined: Definition, reader: Reader, source: Source, marks: MarkTable
) -> Compactor | None:
    """Return the compactor, if the feed is declared as compacted."""
    if defined.compaction is None:
        return None
    tombstone = defined.compaction.tombstone
    return Compactor(
        reader,
        source,
        marks,
        key=defined.attributes["key"],
        tombstone=None if tombstone is None else resolve(defined.events.table, tombstone),
        keep=defined.compaction.keep_tombstones,
    )


def _grow(
    reader: Reader, pages: PageQuery, checkup: Checkup, marks: MarkTable | None, count: int
) -> None:
    """Give a feed more partitions, by whole assignments: other threads read these attributes."""
    checkup.partitions = pages.ids = range(count)
    if marks is not None:
        marks.partitions = range(count)
    # Last: as soon as consumers see the new token, they request the new partitions.
    reader.info = replace(FeedInfo.of(count), extensions=reader.info.extensions)
