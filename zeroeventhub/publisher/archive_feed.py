"""A feed over an archive alone, for a machine without the feed's database.

The rest of the publisher sees an empty table in memory, from which all events were trimmed: its
mark and its horizon are the end of the archive.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Integer,
    MetaData,
    QueuePool,
    Table,
    Text,
    create_engine,
    event,
)
from sqlalchemy.schema import CreateTable

from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.extensions import COMPACTED
from zeroeventhub.publisher.archive_reader import ArchiveReader
from zeroeventhub.publisher.bound_feed import BoundFeed
from zeroeventhub.publisher.cursor import Place, Signer
from zeroeventhub.publisher.definition import Definition
from zeroeventhub.publisher.mapping import Mapper
from zeroeventhub.publisher.ordering import Events, Horizon, Ordering, Source
from zeroeventhub.publisher.retention import LowWaterMark, MarkTable, Retention
from zeroeventhub.publisher.table import build
from zeroeventhub.settings import Capacity

if TYPE_CHECKING:
    from zeroeventhub.archive.archive import Archive
    from zeroeventhub.archive.manifest import Description

_COLUMNS = {"id": Text, "type": Text, "key": Text, "time": DateTime}
"""The SQL types of the attributes that events may have."""


class ArchiveFeed(BoundFeed):
    """Publish the archive of a feed, without the feed's database.

    Cursors, pages and tokens are those of the feed itself. A cursor after the last sealed event
    gets 503 until events after it are sealed.

    Example:
        feed = ArchiveFeed(Archive("s3://bucket/orders", cache="/var/cache/orders"))
        app = Starlette(routes=feed_routes("/orders", feed))

    Args:
        archive: the archive; its `look_seconds` are how late the feed sees what has been sealed.
        cursor_secret: that of the feed, if it has one.
        capacity: the bounds of what the feed uses; a Capacity() by default.

    Raises:
        ConfigurationError: there is no archive, it does not describe its feed, or the secret is
            not the feed's.
        Unavailable: the store did not answer.
    """

    def __init__(
        self,
        archive: "Archive",
        *,
        cursor_secret: bytes | str | None = None,
        capacity: Capacity | None = None,
    ) -> None:
        manifest, capacity = archive.look(), capacity or Capacity()
        if manifest.description is None:
            raise ConfigurationError(
                "There is no archive here, or it does not describe its feed yet: seal the feed "
                "into it, by this version."
            )
        signer = Signer(manifest.description.recipe, cursor_secret)
        last = Place.of(manifest.last or "")
        if last.check and last.recipe != signer.recipe:
            raise ConfigurationError(
                "The cursors of this feed have a secret, another one, or none: give the "
                "cursor_secret of the feed that was sealed."
            )
        table = _table(manifest.description)
        engine = create_engine(
            "sqlite://", poolclass=QueuePool, pool_size=0, connect_args={"check_same_thread": False}
        )
        statement = str(CreateTable(table).compile(engine))
        event.listen(engine, "connect", lambda connection, _: connection.execute(statement))
        attributes = {name: table.c[name] for name in manifest.description.attributes}
        partition = table.c.get("partition")
        defined = _Archived(
            description=manifest.description,
            events=Events(table, (table.c.position,), partition, attributes.get("time")),
            partitions=len(manifest.description.partitions),
            info=manifest.description.info,
            mapper=Mapper(table, data="data", attributes={}, envelope=None, headers={}),
            attributes=attributes,
            signer=signer,
            retention=Retention(),
            archive=archive,
        )
        feed = build(defined, engine, capacity)
        super().__init__(engine, capacity.statement_seconds, defined, feed.reader)


def _table(description: "Description") -> Table:
    """Return an empty table that could hold the feed's events."""
    table = Table("events", MetaData(), Column("position", Integer, primary_key=True))
    table.append_column(Column("data", Text))
    if len(description.partitions) > 1:
        table.append_column(Column("partition", Integer))
    for name in description.attributes:
        table.append_column(Column(name, _COLUMNS[name]))
    return table


@dataclass(frozen=True, kw_only=True)
class _Archived(Definition):
    """The options of a feed that has only its archive."""

    description: "Description"
    archive: "Archive"

    @property
    def ids(self) -> AbstractSet[int]:
        return frozenset(self.description.partitions)

    @property
    def is_compacted(self) -> bool:
        return COMPACTED in self.info.extensions

    def ordering(self, dialect: str) -> Ordering:  # noqa: ARG002 - it is always the same
        return _Sealed(self.events, self.archive)

    def marks(self, source: Source) -> MarkTable:
        return _EndOfArchive(source, self.archive)

    def archive_reader(self, source: Source) -> ArchiveReader:  # noqa: ARG002 - it has its own
        return ArchiveReader(self.archive, self.archive.manifest.feed, self.ids)


class _Sealed(Ordering):
    """The order of what is sealed."""

    def __init__(self, events: Events, archive: "Archive") -> None:
        super().__init__(events)
        self._archive = archive

    def check(self, connection: Connection) -> None:
        """Accept the table, which has no rows."""

    def horizon(self, connection: Connection) -> Horizon:  # noqa: ARG002 - the archive knows it
        """Return the end of the archive; it is fetched here, as no database waits."""
        archive = self._archive
        manifest = archive.refresh() if archive.is_stale else archive.manifest
        return Horizon(settled=manifest.sealed, highest=manifest.sealed)

    def beyond(self) -> Unavailable:
        """Let a reader wait whose cursor is above the end of the archive."""
        return Unavailable(
            "The archive ends before this cursor: what follows is not sealed yet.", retry_after=10
        )


class _EndOfArchive(MarkTable):
    """The mark of a table whose events are all in the archive."""

    def __init__(self, source: Source, archive: "Archive") -> None:
        super().__init__(Retention(), source, ())
        self._archive = archive

    def read(self, connection: Connection) -> LowWaterMark:  # noqa: ARG002 - the archive knows it
        manifest = self._archive.manifest
        return LowWaterMark(manifest.sealed, manifest.last or "", manifest.compacted)

    def check(self, connection: Connection) -> None:
        """Accept the database, which has no row of the mark."""
