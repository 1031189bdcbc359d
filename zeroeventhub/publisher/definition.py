"""What a feed over a table is, before it has a database."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, ColumnElement

from zeroeventhub.protocol import FeedInfo
from zeroeventhub.publisher.compacting import Compaction
from zeroeventhub.publisher.cursor import Seal
from zeroeventhub.publisher.mapping import CloudEvents, Mapper
from zeroeventhub.publisher.ordering import Events, Ordering, Source, ordering_for
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Marks, Retention

if TYPE_CHECKING:
    from zeroeventhub.archive.archive import Archive

__all__ = ["Definition"]


@dataclass(frozen=True, kw_only=True)
class Definition:
    """Hold what a caller has said of a feed, found in its table.

    Attributes:
        events: the table, and what tells of an event's place in it.
        ordering_name: of the ordering; None for the database's own.
        info: what the feed says of itself, but for its extensions.
        ids: the partitions that events may be in, read or not.
        grows: whether there are as many partitions as the table has events in.
        scheme: how events are divided, in a word that another division does not have.
        mapper: turns rows into events.
        envelope: that of CloudEvents, if events have one.
        attributes: the expressions of id, type, key and time, those that there are.
        versions: the columns of keys and of an event's number within its key, if there are any.
        shows_keys: whether readers may ask for the events of a key.
        seal: makes the digests of cursors.
        is_mutable: whether rows are changed after they were written.
        retention: where the feed's mark is kept.
        progress: where it is kept how far consumers have come.
        archive: where history is sealed to.
        compaction: what is said of the events that are kept of a key.
        compacted_by: the column of those keys.
    """

    events: Events
    ordering_name: str | None
    info: FeedInfo
    ids: AbstractSet[int]
    grows: bool
    scheme: str
    mapper: Mapper
    envelope: CloudEvents | None
    attributes: Mapping[str, ColumnElement[Any]]
    versions: tuple[Column[Any], Column[Any]] | None
    shows_keys: bool
    seal: Seal
    is_mutable: bool
    retention: Retention | None
    progress: Progress | None
    archive: "Archive | None"
    compaction: Compaction | None
    compacted_by: Column[Any] | None

    @property
    def used(self) -> list[ColumnElement[Any]]:
        """Return all columns and expressions that are read."""
        events = self.events
        known = (*events.key, *(self.versions or ()), events.partition, events.time)
        told = (self.attributes.get("type"), self.attributes.get("id"))
        return [*self.mapper.columns, *(one for one in (*known, *told) if one is not None)]

    def ordering(self, dialect: str) -> Ordering:
        """Make the ordering of the table, for a database by SQLAlchemy's name for it.

        Raises:
            ConfigurationError: events of this database cannot be put in this order.
        """
        return ordering_for(dialect, self.events, self.ordering_name)

    def marks(self, source: Source) -> Marks | None:
        """Return what knows the feed's mark, if it has a place."""
        if self.retention is None:
            return None
        return Marks(self.retention, source, self.ids)
