"""Check the options of TableFeed, and resolve them against its table."""

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from sqlalchemy import Column, ColumnElement, Integer, Table, inspect

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.partitions import Layout
from zeroeventhub.protocol import FeedInfo
from zeroeventhub.publisher.compaction import Compaction
from zeroeventhub.publisher.cursor import Signer
from zeroeventhub.publisher.key_query import expect_unique
from zeroeventhub.publisher.lookups import value_of
from zeroeventhub.publisher.mapping import CloudEvents, Expression, Mapper, resolve
from zeroeventhub.publisher.ordering import Events, Ordering, Source, ordering_for
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import MarkTable, Retention

if TYPE_CHECKING:
    from zeroeventhub.archive.archive import Archive

__all__ = [
    "Definition",
    "attributes_of",
    "envelope_of",
    "info_of",
    "key_of",
    "partition_of",
    "table_of",
]

_ATTRIBUTE = re.compile(r"[a-z0-9]{1,20}", re.ASCII)

_TAKEN = (
    *("specversion", "id", "source", "type", "time", "datacontenttype"),
    *("data", "partitionkey", "key"),
)
"""The attributes that other parameters of a feed define."""


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
    ordering_name: str | None
    partitions: int | Layout | None
    info: FeedInfo
    mapper: Mapper
    envelope: CloudEvents | None
    attributes: Mapping[str, ColumnElement[Any]]
    version: ColumnElement[Any] | None
    shows_keys: bool
    signer: Signer
    is_mutable: bool
    retention: Retention | None
    progress: Progress | None
    archive: "Archive | None"
    compaction: Compaction | None

    def __post_init__(self) -> None:
        """Refuse options that exclude each other."""
        for mistake in (*self._versions(), *self._compaction(), *self._archive()):
            raise ConfigurationError(mistake)
        for kept in (self.retention, self.progress):
            if kept is not None and kept.table.schema != self.events.table.schema:
                raise ConfigurationError(
                    f"What is known of the feed over table {self.events.table.fullname!r} is kept "
                    f"beside it: {type(kept).__name__}(schema={self.events.table.schema!r})."
                )

    def _versions(self) -> Iterator[str]:
        """Yield what is wrong with the versions of events."""
        key, version = self.attributes.get("key"), self.version
        if version is None:
            if self.shows_keys:
                yield (
                    "The history of a key is read in the order of versions: give the column of "
                    "those."
                )
        elif key is None:
            yield "A version is the number of an event within its key: give both."
        elif not (isinstance(key, Column) and isinstance(version, Column)):
            yield "Where events have versions, key and version are columns."
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
        if self.version is not None:
            yield (
                "A key's versions are counted on from its events, of which compaction would leave "
                "the last: leave out version or compaction."
            )
        if self.retention is None:
            yield (
                "A feed that is compacted has to know of it: give it retention=Retention() as well."
            )
        if self.compaction.tombstone is not None and self.events.time is None:
            yield "Tombstones are kept for some time: give the column of the time of events."

    def _archive(self) -> Iterator[str]:
        """Yield what keeps the feed from being sealed into an archive."""
        if self.archive is None:
            return
        if self.is_mutable:
            yield (
                "A feed whose rows are changed or deleted cannot be sealed, for what is in an "
                "archive stays as it is: leave out mutable or archive."
            )
        if self.grows:
            yield (
                "An archive holds a fixed number of partitions: give the number of partitions as "
                "well."
            )
        if self.retention is None:
            yield (
                "A feed with an archive has to know what was trimmed of its table: give it "
                "retention=Retention() as well."
            )

    @property
    def ids(self) -> AbstractSet[int]:
        """Return the partitions that events may be in, including those that are not read."""
        if isinstance(self.partitions, Layout):
            return self.partitions.ids
        return frozenset(partition.id for partition in self.info.partitions)

    @property
    def grows(self) -> bool:
        """Return whether the feed finds its partitions in the table."""
        return self.events.partition is not None and self.partitions is None

    @property
    def scheme(self) -> str:
        """Return a word that identifies how events are divided into partitions."""
        return "layout" if isinstance(self.partitions, Layout) else str(self.partitions)

    @property
    def used(self) -> list[ColumnElement[Any]]:
        """Return all columns and expressions that the feed reads."""
        events, attributes = self.events, self.attributes
        known = [*events.key, events.partition, events.time, self.version]
        known += [attributes.get("type"), attributes.get("id")]
        if self.version is not None:
            known.append(attributes["key"])
        return [*self.mapper.columns, *(one for one in known if one is not None)]

    def ordering(self, dialect: str) -> Ordering:
        """Make the ordering of the table, for a database by SQLAlchemy's name for it.

        Raises:
            ConfigurationError: events of this database cannot be put in this order.
        """
        return ordering_for(dialect, self.events, self.ordering_name)

    def marks(self, source: Source) -> MarkTable | None:
        """Return the table of the feed's mark, if it has `retention`."""
        if self.retention is None:
            return None
        return MarkTable(self.retention, source, self.ids)


def table_of(table: Table | type[Any]) -> Table:
    """Return the Table, or the table of an ORM class."""
    mapped = inspect(table, raiseerr=False)
    found = getattr(mapped, "local_table", mapped)
    if not isinstance(found, Table):
        raise ConfigurationError(f"{table!r} is neither a Table nor a class mapped to one.")
    return found


def envelope_of(table: Table, cloudevents: bool | str) -> CloudEvents | None:
    """Return the envelope of events; None without CloudEvents."""
    if not cloudevents:
        return None
    source = cloudevents if isinstance(cloudevents, str) else f"/{quote(table.name)}"
    return CloudEvents(source=source, type=str(table.name))


def attributes_of(
    attributes: Mapping[str, Expression] | None, envelope: CloudEvents | None
) -> dict[str, Expression]:
    """Check the further attributes of an envelope (CloudEvents 1.0, Context Attributes).

    Raises:
        ConfigurationError: the feed has no envelope, or a name is not allowed for an attribute.
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


def key_of(
    table: Table, position: Expression | None, ordering: str | None
) -> tuple[ColumnElement[Any], ...]:
    """Return the column of positions, or the key of rows if the ordering gives positions."""
    key = tuple(table.primary_key.columns)
    if position is not None:
        column = table.c.get(getattr(resolve(table, position), "key", ""))
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
            "that never change."
        )
    return key


def partition_of(
    table: Table, partition: Expression | None, partitions: int | Layout | None
) -> ColumnElement[Any] | None:
    """Return the column or expression of partitions."""
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


def info_of(partitions: int | Layout | None) -> FeedInfo:
    """Return a feed's description, without its extensions."""
    if isinstance(partitions, Layout):
        return partitions.info()
    return FeedInfo.of(1 if partitions is None else partitions)
