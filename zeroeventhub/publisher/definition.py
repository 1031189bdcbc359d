"""The options of TableFeed, checked, and what follows from them for the parts of a feed."""

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from sqlalchemy import Column, ColumnElement, Connection, Integer, Table, and_, exists, inspect
from sqlalchemy.engine.default import StrCompileDialect
from sqlalchemy.sql.visitors import iterate

from zeroeventhub.databases.statements import expect_unique
from zeroeventhub.errors import ConfigurationError, ZeroEventHubError
from zeroeventhub.new_events import Batch
from zeroeventhub.partitions import Layout
from zeroeventhub.protocol import CLOUDEVENTS, EVERY_TYPE, Appended, FeedInfo, Schemas, folded
from zeroeventhub.publisher.archive_reader import ArchiveReader
from zeroeventhub.publisher.cursor import Signer, digest
from zeroeventhub.publisher.lookups import value_of
from zeroeventhub.publisher.mapping import CloudEvents, Expression, Mapper, resolve
from zeroeventhub.publisher.ordering import Events, Ordering, Source, ordering_for
from zeroeventhub.publisher.progress import Progress
from zeroeventhub.publisher.retention import Compaction, MarkTable, Retention
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


class Appender(Protocol):
    """Append the batches of writers to the table of a feed."""

    def append(
        self, connection: Connection, batches: Sequence[Batch], seconds: float
    ) -> list[list[Appended] | ZeroEventHubError]:
        """Append and commit batches, each wholly or not at all; wait `seconds` for a lock at most.

        Returns:
            For each batch where its events are, or why it was refused.
        """

    def sequence(self, connection: Connection, producer: str, principal: str) -> int:
        """Return the number of a producer's last batch; 0 for an unknown producer."""


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
        if self.append is not None and not hasattr(self.append, "append"):
            raise ConfigurationError(
                "append is what appends events, such as EventLog(…, append=True) has for its feed; "
                f"{self.append!r} does not.",
                "append",
            )
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
    def default_type(self) -> str:
        """Return the type of events whose column is empty; an empty text if they have none."""
        return self.envelope.type if self.envelope else ""

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
