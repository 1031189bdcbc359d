"""The parts of a feed over a table, put together for one database."""

from dataclasses import replace
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, DateTime
from sqlalchemy.engine.default import StrCompileDialect

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
from zeroeventhub.publisher.archived.files import Files
from zeroeventhub.publisher.archived.finding import (
    ArchivedCounts,
    ArchivedIds,
    ArchivedLags,
    ArchivedSplits,
    ArchivedTimes,
)
from zeroeventhub.publisher.archived.pages import ArchivedPages
from zeroeventhub.publisher.archived.sealing import Sealer, SealQuery
from zeroeventhub.publisher.archived.tier import Tier
from zeroeventhub.publisher.bound_feed import Roles
from zeroeventhub.publisher.checks import Checkup, Columns
from zeroeventhub.publisher.compacting import Compactor
from zeroeventhub.publisher.cursor import digest
from zeroeventhub.publisher.history import History
from zeroeventhub.publisher.key_query import KeyQuery
from zeroeventhub.publisher.keyset import NearRows, NeededIndex
from zeroeventhub.publisher.lookups import CountQuery, IdQuery, LagQuery, TimeQuery
from zeroeventhub.publisher.mapping import resolve
from zeroeventhub.publisher.options import Definition
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.page_query import PageQuery, TypeCondition
from zeroeventhub.publisher.progress import Registry
from zeroeventhub.publisher.reader import Queries, Reader
from zeroeventhub.publisher.retention import Marks
from zeroeventhub.publisher.rows import RowQuery
from zeroeventhub.publisher.splits import SplitQuery
from zeroeventhub.publisher.trimming import Batches, Trimmer
from zeroeventhub.settings import Capacity

__all__ = [
    "Assembly",
]


class Assembly:
    """Put the parts of a feed together.

    Args:
        defined: what the feed is.
        dialect: SQLAlchemy's name for the kind of database.
        streams: whether rows can be read as a stream; see `RowQuery`.
        capacity: how much the feed takes of it.

    Raises:
        ConfigurationError: events of this database cannot be put in a safe order.
    """

    def __init__(
        self, defined: Definition, dialect: str, capacity: Capacity, *, streams: bool
    ) -> None:
        self._defined = defined
        self._dialect = dialect
        self._streams = streams
        self._capacity = capacity
        self._ordering = defined.ordering(dialect)
        self._source = self._ordering.source
        self._shown = [partition.id for partition in defined.info.partitions]
        self._near = NearRows(self._source)
        self._all_near = NearRows.of_all(self._source)
        self._times = self._searched_by(defined.events.time)
        self._ids = self._searched_by(defined.attributes.get("id"), alike=True)
        self._types = self._type_condition()
        self._marks = defined.marks(self._source)
        self._tier = self._seen_archive()

    def roles(self) -> Roles:
        """Return what answers for the feed."""
        defined, marks, tier = self._defined, self._marks, self._tier
        history = History(
            RowQuery(self._all_near, defined.mapper, self._dialect),
            defined.seal,
            mutable=defined.is_mutable,
            compacted=defined.compaction is not None,
            marks=marks,
            tier=tier,
        )
        queries = self._queries()
        info = replace(defined.info, extensions=self._extensions())
        checkup = self._checkup(queries.pages)
        reader = Reader(info, self._ordering, history, queries, checkup)
        if defined.grows:
            checkup.grow = partial(_grow, reader, queries.pages, checkup, marks)
        registry = None
        if defined.progress is not None:
            lost = marks if tier is None else None
            registry = Registry(defined.progress, self._source, reader, lost)
            reader.count_registered = registry.count
        if marks is None:
            return Roles(reader, registry=registry)
        # Whoever is late reads on from the archive.
        waited_for = registry if tier is None else None
        trimmer = Trimmer(
            reader,
            self._ordering,
            marks,
            queries,
            Batches(self._source, history, marks, waited_for),
            registry=waited_for,
            version=None if defined.versions is None else defined.versions[1],
        )
        roles = Roles(
            reader, trimmer, registry=registry, compactor=self._compactor(reader, marks, trimmer)
        )
        if tier is None:
            return roles
        files = Files(tier, reader, history) if tier.archive.is_shared else None
        return replace(roles, sealer=self._sealer(tier, reader, history, queries), files=files)

    def _queries(self) -> Queries:
        """Return what is asked of the table, and of the archive if there is one."""
        near, all_near, tier = self._near, self._all_near, self._tier
        source, time, shown = self._source, self._defined.events.time, self._defined.info.partitions
        rows = RowQuery(
            near, self._defined.mapper, self._dialect, streams=self._streams, joins=True
        )
        within, page_bytes = self._defined.ids, self._capacity.page_bytes
        if tier is None:
            return Queries(
                pages=PageQuery(rows, shown, within, self._types, page_bytes=page_bytes),
                times=TimeQuery(source, all_near, self._times),
                splits=SplitQuery(near),
                ids=IdQuery(source, self._ids, self._types),
                lags=LagQuery(near, time),
                counts=CountQuery(near),
                keys=self._keys(),
            )
        return Queries(
            pages=ArchivedPages(tier, rows, shown, within, self._types, page_bytes=page_bytes),
            times=ArchivedTimes(tier, source, all_near, self._times),
            splits=ArchivedSplits(tier, near, within),
            ids=ArchivedIds(tier, source, self._ids, self._types),
            lags=ArchivedLags(tier, near, time),
            counts=ArchivedCounts(tier, near),
            keys=self._keys(),
        )

    def _keys(self) -> KeyQuery | None:
        """Return what reads the events of a key, if they have versions that are shown."""
        defined, source = self._defined, self._source
        if defined.versions is None or not defined.shows_keys:
            return None
        if source.events is not None and defined.envelope and "id" not in defined.attributes:
            raise ConfigurationError(
                "With the ordering sequenced, events of a key are read without positions, which "
                "would be their ids: give the column of their ids as well."
            )
        key, version = defined.versions
        page_bytes = self._capacity.page_bytes
        return KeyQuery(defined.events, key, version, source, defined.mapper, page_bytes=page_bytes)

    def _type_condition(self) -> TypeCondition | None:
        """Return what filters events by type, if it can be told from their rows."""
        kind = self._defined.attributes.get("type")
        default = self._defined.envelope.type if self._defined.envelope else ""
        if kind is None and not default:
            return None
        if kind is not None and not TypeCondition.understands(kind):
            return None
        return TypeCondition(kind, default, self._dialect)

    def _seen_archive(self) -> Tier | None:
        """Return the feed's archive as its readers see it, if it has one."""
        defined = self._defined
        if defined.archive is None:
            return None
        parts = [defined.events.table.fullname, defined.scheme, defined.mapper.recipe]
        for column in (*defined.events.key, defined.events.partition):
            compiled = None if column is None else column.compile(dialect=StrCompileDialect())
            parts.append("" if compiled is None else f"{compiled} {compiled.params}")
        parts.append("given" if self._source.events is not None else "drawn")
        feed = digest("\n".join(parts).encode(), digits=16)
        return Tier(defined.archive, feed, defined.ids)

    def _sealer(self, tier: Tier, reader: Reader, history: History, queries: Queries) -> Sealer:
        """Return what seals the table into the archive."""
        defined = self._defined
        query = SealQuery(
            self._all_near,
            defined.mapper,
            self._dialect,
            partition=self._source.partition,
            attributes=defined.attributes,
            kind=defined.envelope.type if defined.envelope else "",
        )
        return Sealer(
            tier.archive,
            tier.feed,
            query,
            reader=reader,
            history=history,
            times=queries.times,
            partitions=sorted(defined.ids),
            attributes=defined.attributes,
        )

    def _compactor(self, reader: Reader, marks: Marks, trimmer: Trimmer) -> Compactor | None:
        """Return what keeps the last event of each key, if the feed says that it does."""
        defined = self._defined
        if defined.compaction is None or defined.compacted_by is None:
            return None
        tombstone = defined.compaction.tombstone
        return Compactor(
            reader,
            self._source,
            marks,
            trimmer.before,
            key=defined.compacted_by,
            tombstone=None if tombstone is None else resolve(defined.events.table, tombstone),
            keep=defined.compaction.keep_tombstones,
        )

    def _extensions(self) -> frozenset[str]:
        """Return what discovery announces."""
        defined, time = self._defined, self._defined.events.time
        has_time = isinstance(getattr(time, "type", None), DateTime)
        given = {
            EVENT_TYPES: self._types is not None,
            KEY_HISTORY: defined.shows_keys,
            PROGRESS: defined.progress is not None,
            COMPACTED: defined.compaction is not None,
            CURSOR_OF_TIME: has_time or (time is None and self._source.given_at is not None),
            SEGMENTS: defined.archive is not None and defined.archive.is_shared,
            ARROW: False,  # the server announces it, which makes Arrow of pages
        }
        return frozenset(name for name in EXTENSIONS if given.get(name, True))

    def _checkup(self, pages: PageQuery) -> Checkup:
        """Return what looks at all that the feed relies on."""
        table = self._defined.events.table
        needed = [
            NeededIndex(self._near.source, f"the pages of table {table.fullname!r}"),
            NeededIndex(self._all_near.source, "a look at the event of a cursor"),
        ]
        times, ids = self._times, self._ids
        if times is not None and isinstance(times.source.position.type, DateTime):
            more = (self._source.position,) if self._source.events is None else ()
            purpose = "a search for the events of a moment"
            needed.append(NeededIndex(times.source, purpose, more))
        if ids is not None:
            purpose = "a search for an event by its id, as HTTP feeds make it"
            needed.append(NeededIndex(ids.source, purpose))
        return Checkup(
            self._ordering,
            Columns(table, self._defined.used),
            pages,
            partitions=self._shown,
            near=[one for one in (self._near, self._all_near, times, ids) if one is not None],
            indexes=needed,
            marks=self._marks,
            lasting=None if self._defined.is_mutable else self._defined.events.table,
        )

    def _searched_by(
        self, column: ColumnElement[Any] | None, *, alike: bool = False
    ) -> NearRows | None:
        """Find events by a column of theirs, in one partition or in all of them alike."""
        if column is None:
            return None
        source = self._source
        if source.events is not None:
            return NearRows(Source(source.events, column, None))
        return NearRows(Source(source.table, column, None if alike else source.partition))


def _grow(
    reader: Reader, pages: PageQuery, checkup: Checkup, marks: Marks | None, count: int
) -> None:
    """Give a feed more partitions; each part is assigned its own, as other threads may read it."""
    checkup.partitions = pages.ids = range(count)
    if marks is not None:
        marks.partitions = range(count)
    # Last: with the new token consumers ask for the new partitions.
    reader.info = replace(FeedInfo.of(count), extensions=reader.info.extensions)
