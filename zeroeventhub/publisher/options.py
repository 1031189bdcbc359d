"""What a feed is made from: the options of TableFeed, checked."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from sqlalchemy import Column, ColumnElement, Integer, Table, inspect

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.partitions import Layout
from zeroeventhub.protocol import FeedInfo
from zeroeventhub.publisher.compacting import Compaction
from zeroeventhub.publisher.cursor import Seal
from zeroeventhub.publisher.key_query import expect_unique
from zeroeventhub.publisher.lookups import value_of
from zeroeventhub.publisher.mapping import CloudEvents, Expression, Mapper, resolve
from zeroeventhub.publisher.ordering import Events, Ordering, Source, ordering_for
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Marks, Retention

if TYPE_CHECKING:
    from zeroeventhub.archive.archive import Archive

__all__ = [
    "Definition",
    "attributes_of",
    "beside",
    "compacted_by",
    "envelope_of",
    "key_of",
    "lasting",
    "partition_of",
    "table_of",
    "versions_of",
]

_ATTRIBUTE = re.compile(r"[a-z0-9]{1,20}", re.ASCII)

_TAKEN = (
    *("specversion", "id", "source", "type", "time", "datacontenttype"),
    *("data", "partitionkey", "key"),
)
"""What other parameters of a feed stand for."""

_Kept = TypeVar("_Kept", Retention, Progress)


def table_of(table: Table | type[Any]) -> Table:
    """Return the table of what a caller gives for one."""
    mapped = inspect(table, raiseerr=False)
    found = getattr(mapped, "local_table", mapped)
    if not isinstance(found, Table):
        raise ConfigurationError(f"{table!r} is neither a Table nor a class mapped to one.")
    return found


def attributes_of(
    attributes: Mapping[str, Expression] | None, envelope: CloudEvents | None
) -> dict[str, Expression]:
    """Check the further attributes of an envelope (CloudEvents 1.0, Context Attributes).

    Raises:
        ConfigurationError: there is no envelope, or a name cannot be that of an attribute.
    """
    attributes = dict(attributes or {})
    if attributes and envelope is None:
        raise ConfigurationError("Attributes are a CloudEvent's: give cloudevents as well.")
    for name in attributes:
        if name in _TAKEN or not _ATTRIBUTE.fullmatch(name):
            raise ConfigurationError(
                f"{name!r} cannot be a further attribute: its name has 1 to 20 letters from a "
                f"to z and digits, and is none of {', '.join(_TAKEN)}."
            )
    return attributes


def beside(table: Table, kept: _Kept | None) -> _Kept | None:
    """Refuse a table about a feed that another one of its name might be taken for."""
    if kept is not None and kept.table.schema != table.schema:
        raise ConfigurationError(
            f"What is known of the feed over table {table.fullname!r} is kept beside it: "
            f"{type(kept).__name__}(schema={table.schema!r})."
        )
    return kept


def compacted_by(
    table: Table,
    compaction: Compaction,
    *,
    key: Expression | None,
    time: Expression | None,
    version: Expression | None,
    retention: Retention | None,
) -> Column[Any]:
    """Find the column of keys by which a feed is compacted.

    Raises:
        ConfigurationError: there is none, or what has to be beside it is not there.
    """
    column = None if key is None else resolve(table, key)
    if not isinstance(column, Column):
        raise ConfigurationError(
            "A feed is compacted by its key, which has to be a column of its table: give key."
        )
    if version is not None:
        raise ConfigurationError(
            "A key's versions are counted on from its events, of which compaction would leave the "
            "last: leave out version or compaction."
        )
    if retention is None:
        raise ConfigurationError(
            "A feed that is compacted has to know of it: give it retention=Retention() as well."
        )
    if compaction.tombstone is not None and time is None:
        raise ConfigurationError(
            "Tombstones are kept for some time: give the column of the time of events."
        )
    return column


def lasting(
    archive: "Archive | None", retention: Retention | None, *, mutable: bool, grows: bool
) -> "Archive | None":
    """Refuse an archive of what changes, and one that nobody would know to read."""
    if archive is not None and mutable:
        raise ConfigurationError(
            "A feed whose rows are changed or deleted cannot be sealed, for what is in an archive "
            "stays as it is: leave out mutable or archive."
        )
    if archive is not None and grows:
        raise ConfigurationError(
            "An archive holds a fixed number of partitions: give the number of partitions as well."
        )
    if archive is not None and retention is None:
        raise ConfigurationError(
            "A feed with an archive has to know what was trimmed of its table: give it "
            "retention=Retention() as well."
        )
    return archive


def key_of(
    table: Table, position: Expression | None, ordering: str | None
) -> tuple[ColumnElement[Any], ...]:
    """Find the column of positions, or the key of rows whose positions the ordering gives."""
    key = tuple(table.primary_key.columns)
    if position is not None:
        column = table.c.get(getattr(resolve(table, position), "key", ""))
        if column is None:
            raise ConfigurationError(f"The position is a column of the table; {position} is not.")
        key = (column,)
    if ordering == "sequenced":
        if not key:
            raise ConfigurationError(
                f"Table {table.name!r} has no primary key by which its events could be told apart."
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
            "that never change."
        )
    return key


def partition_of(
    table: Table, partition: Expression | None, partitions: int | Layout | None
) -> ColumnElement[Any] | None:
    """Find the column of partitions, or the expression of them."""
    if partition is None:
        if partitions is not None:
            raise ConfigurationError("Say which column holds an event's partition as well.")
        return None
    column = resolve(table, partition)
    if not isinstance(column.type, Integer):
        raise ConfigurationError(
            f"A partition is a whole number from 0; {partition} has the SQL type {column.type!r}."
        )
    return column


def versions_of(
    table: Table, key: Expression | None, version: Expression
) -> tuple[Column[Any], Column[Any]]:
    """Find the columns of keys and versions, which an index has to serve together."""
    if key is None:
        raise ConfigurationError("A version is the number of an event within its key: give both.")
    found = resolve(table, key), resolve(table, version)
    if not (isinstance(found[0], Column) and isinstance(found[1], Column)):
        raise ConfigurationError("Where events have versions, key and version are columns.")
    if not isinstance(found[1].type, Integer):
        raise ConfigurationError(f"A version is a whole number; {found[1]} is not.")
    value_of(found[0], "")
    expect_unique(table, found[0], found[1])
    return found[0], found[1]


def envelope_of(table: Table, cloudevents: bool | str) -> CloudEvents | None:
    """Return the envelope of events, if they are to have one."""
    if not cloudevents:
        return None
    source = cloudevents if isinstance(cloudevents, str) else f"/{quote(table.name)}"
    return CloudEvents(source=source, type=str(table.name))


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
