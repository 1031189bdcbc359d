"""The low-water mark of a feed: up to where events have been trimmed or compacted."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from hmac import compare_digest
from typing import Any, ClassVar

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Insert,
    MetaData,
    String,
    Table,
    and_,
    bindparam,
    case,
    exists,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.engine.default import StrCompileDialect
from sqlalchemy.schema import CreateTable

from zeroeventhub.databases import database_of
from zeroeventhub.databases.statements import (
    creation,
    exact,
    long_text,
    statement_text,
    table_exists,
)
from zeroeventhub.errors import ConfigurationError, Diverged
from zeroeventhub.protocol import Partition
from zeroeventhub.publisher.cursor import START, Place, digest
from zeroeventhub.publisher.mapping import Expression
from zeroeventhub.publisher.ordering import Source


class FeedTable:
    """Base of the tables in which a publisher stores something about its feeds; see `table`."""

    name: ClassVar[str]

    def __init__(self, metadata: MetaData | None = None, *, schema: str | None = None) -> None:
        metadata = MetaData() if metadata is None else metadata
        engine: dict[str, Any] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
        self.table = Table(
            self.name, metadata, *self.columns(), schema=schema, keep_existing=True, **engine
        )

    @staticmethod
    def columns() -> list[Column[Any]]:
        """Return the columns of the table."""
        raise NotImplementedError

    def exists(self, connection: Connection) -> bool:
        """Return whether the table exists."""
        return table_exists(connection, self.table)

    def statement(self, dialect: Dialect) -> str:
        """Return the statement that creates the table."""
        return creation(dialect, self.table)

    def create_tables(self, connection: Connection) -> None:
        """Create the table unless it exists, in a transaction that you commit."""
        database_of(connection).lock_creation(connection)
        if not self.exists(connection):
            connection.execute(CreateTable(self.table, if_not_exists=True))


class Retention(FeedTable):
    """Table of the low-water marks of the feeds over tables of the same schema, one row each.

    Example:
        feed = TableFeed(orders, data="data", time="placed", retention=Retention())
        with engine.begin() as connection:
            feed.install(connection)
        bound = feed.bind(engine)
        bound.trim(bound.plan_trim(older_than=timedelta(days=30)))

    Args:
        metadata: the MetaData to add the table to, so that migrations find it; None for a new one.
        schema: the database schema; must be that of the feeds' tables.
    """

    name = "zeroeventhub_retention"

    @staticmethod
    def columns() -> list[Column[Any]]:
        """Return the columns of the table."""
        return [
            Column("feed", exact(String(250)), primary_key=True),
            Column("trimmed", BigInteger, nullable=False, server_default="0"),
            Column("earliest", exact(String(250)), nullable=False),
            Column("compacted", BigInteger, nullable=False, server_default="0"),
            Column("partitions", long_text()),
        ]


@dataclass(frozen=True, kw_only=True)
class Compaction:
    """Declare that a feed keeps the last event of each key, and may delete earlier ones.

    Example:
        compaction = Compaction(tombstone=orders.c.kind == "deleted")
        feed = TableFeed(
            orders, key="customer", time="placed", retention=Retention(), compaction=compaction
        )
        feed.bind(engine).compact(older_than=timedelta(days=1))

    Attributes:
        tombstone: a column or an expression that is true for an event that deletes its key; None
            if no event does.
        keep_tombstones: how long such an event is kept, by the feed's `time`: a consumer that
            stops for longer misses the deletion.

    Raises:
        ConfigurationError: the time is below zero.
    """

    tombstone: Expression | None = None
    keep_tombstones: timedelta = timedelta(days=7)

    def __post_init__(self) -> None:
        """Check the time."""
        if self.keep_tombstones < timedelta(0):
            raise ConfigurationError("Tombstones are kept for some time, and not for less than 0.")


@dataclass(frozen=True)
class LowWaterMark:
    """What has been deleted from a feed's table.

    Attributes:
        trimmed: the position of the last trimmed event: no event at or below it is left.
        earliest: the cursor after that event, before the first one that is left.
        compacted: the position up to which single events may be missing.
        moved: the position up to which only the feed's archive has the events.
        partitions: by partition, the cursor after its last trimmed event; a partition that is
            missing here may have lost any event up to the mark.
        closed: the partitions that get no more events.
    """

    trimmed: int = 0
    earliest: str = START
    compacted: int = 0
    moved: int = 0
    partitions: Mapping[int, str] = field(default_factory=dict)
    closed: Collection[int] = ()

    def still_covers(self, place: Place, partition: int | None) -> bool:
        """Return whether no event that follows a place at or below the mark has been trimmed.

        For a place with a digest, return True only if the mark has a digest to compare it with:
        otherwise the place may belong to another history, with other events after it; but none
        follows the end of a closed partition. With None as the partition, consider the events of
        all partitions.

        Raises:
            Diverged: another event was at this place.
        """
        known = self.partitions.get(-1 if partition is None else partition)
        if place.position == self.trimmed:
            last = Place.of(self.earliest)
        elif known is None:
            return False
        else:
            last = Place.of(known)
        if place.position != last.position:
            is_good = not place.check or partition in self.closed or last.position == 0
            return is_good and place.position > last.position
        comparable = place.check and place.recipe == last.recipe
        if comparable and not compare_digest(place.check, last.check):
            raise Diverged(
                "The event at this cursor, which has been trimmed, was not the one that it was "
                "given for: the feed's history is another one."
            )
        return True


class _Partitions(msgspec.Struct):
    """The stored `LowWaterMark.partitions`, valid only with the same division and mark."""

    scheme: str
    trimmed: int
    cursors: dict[int, str]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Partitions).decode


class MarkTable:
    """Read and raise the low-water mark of a feed.

    `listed` are the partitions that can be read.

    Attributes:
        table: the table, with the rows of all feeds in the schema.
        partitions: the partitions that events may be in.
    """

    def __init__(
        self,
        retention: Retention,
        source: Source,
        partitions: Collection[int],
        listed: Collection[Partition] = (),
    ) -> None:
        self._retention = retention
        self.partitions = partitions
        self._closed = frozenset(one.id for one in listed if one.closed)
        self._ancestors = {one.id: one.cursor_from for one in listed}
        self._scheme = _scheme(source)
        self.feed = feed_key(source)
        self.table = retention.table
        columns = retention.table.c
        self._own = columns.feed == self.feed
        # Those of many partitions are long, and change only with the mark: read them once for each.
        self._known: tuple[int, str, Mapping[int, str]] = (0, "", {})
        is_known = and_(
            columns.trimmed == bindparam("trimmed", type_=BigInteger),
            columns.earliest == bindparam("earliest", type_=String),
        )
        shown: tuple[ColumnElement[Any], ...] = (
            columns.trimmed,
            columns.earliest,
            columns.compacted,
            case((~is_known, columns.partitions)).label("partitions"),
        )
        self._query = select(*shown).where(self._own)

    def statements(self, dialect: Dialect) -> tuple[str, ...]:
        """Return the statements that create the table and the feed's row."""
        row = statement_text(dialect, self._row, compile_kwargs={"literal_binds": True})
        return self._retention.statement(dialect), row

    def read(self, connection: Connection) -> LowWaterMark:
        """Return the mark; raise ConfigurationError if the feed has no row."""
        trimmed, earliest, cursors = self._known
        values = {"trimmed": trimmed, "earliest": earliest}
        row = connection.execute(self._query, values).first()
        if row is None:
            raise self._missing()
        if row.partitions is not None:
            known, cursors = _decode(row.partitions), {}
            if (known.scheme, known.trimmed) == (self._scheme, row.trimmed):
                cursors = known.cursors
            elif known.trimmed == row.trimmed and self._ancestors.keys().isdisjoint(known.cursors):
                cursors = self._inherited(known.cursors)
            self._known = row.trimmed, row.earliest, cursors
        elif (row.trimmed, row.earliest) != (trimmed, earliest):
            cursors = {}
        return LowWaterMark(
            row.trimmed, row.earliest, row.compacted, partitions=cursors, closed=self._closed
        )

    def _inherited(self, cursors: Mapping[int, str]) -> Mapping[int, str]:
        """Return the cursors of the partitions that have replaced those that were trimmed.

        They have lost no event but those of their ancestor.
        """
        return {
            heir: cursors[nearest]
            for heir, line in self._ancestors.items()
            if (nearest := next((one for one in line if one in cursors), None)) is not None
        }

    def locked(self, connection: Connection) -> LowWaterMark:
        """Return the mark, locked so that no other transaction raises it before this one ends.

        It starts with a write, as SQLite locks at a transaction's first write.
        """
        same = update(self.table).where(self._own)
        if connection.execute(same.values(trimmed=self.table.c.trimmed)).rowcount == 0:
            raise self._missing()
        return self.read(connection)

    def check(self, connection: Connection) -> None:
        """Raise ConfigurationError if the database does not have the feed's row."""
        if not self.has_row(connection):
            raise self._missing()

    def has_row(self, connection: Connection) -> bool:
        """Return whether the feed has a row."""
        if not self._retention.exists(connection):
            return False
        return connection.execute(select(self.table.c.feed).where(self._own)).first() is not None

    def install(self, connection: Connection) -> None:
        """Create the table and the feed's row unless they exist."""
        self._retention.create_tables(connection)
        connection.execute(self._row)

    @property
    def _row(self) -> Insert:
        """Return the statement that adds the feed's row unless it exists."""
        row = select(
            literal(self.feed, String),
            literal(0, BigInteger),
            literal(START, String),
            literal(0, BigInteger),
        ).where(~exists().where(self._own))
        return insert(self.table).from_select(["feed", "trimmed", "earliest", "compacted"], row)

    def trim(
        self,
        connection: Connection,
        mark: LowWaterMark,
        trimmed: int,
        earliest: str,
        last: Mapping[int, str],
    ) -> None:
        """Raise the mark, in the transaction that deletes the events and has locked the mark.

        `last` are the new `LowWaterMark.partitions` of the partitions that lose events.
        """
        cursors = dict.fromkeys(self.partitions, mark.earliest) | dict(mark.partitions)
        known = _Partitions(self._scheme, trimmed, cursors | dict(last))
        values = {"trimmed": trimmed, "earliest": earliest, "partitions": _encode(known).decode()}
        connection.execute(update(self.table).where(self._own).values(values))

    def put(self, connection: Connection, trimmed: int, earliest: str) -> None:
        """Set the mark of a table that is restored, in a transaction that has locked the mark."""
        values = {"trimmed": trimmed, "earliest": earliest, "partitions": None}
        connection.execute(update(self.table).where(self._own).values(values))

    def thin(self, connection: Connection, until: int) -> None:
        """Store the position up to which single events may be missing, when they are deleted."""
        column = self.table.c.compacted
        change = update(self.table).where(self._own, column < until)
        connection.execute(change.values(compacted=until))

    def _missing(self) -> ConfigurationError:
        return ConfigurationError(
            f"Table {self.table.fullname!r} has no row of feed {self.feed!r}, which "
            "says what has been trimmed of it: TableFeed.install adds it, and so do the "
            "statements that `zeroeventhub ddl --retention` prints. If the table was renamed, "
            "rename `feed` in its row instead."
        )


def feed_key(source: Source) -> str:
    """Return the key of a feed among those over tables of the same schema."""
    positions: Any = source.table
    # Without the schema: the mark's table is in it, and it may be given by name or by search path.
    return f"{positions.name}.{source.position.name}"


def _scheme(source: Source) -> str:
    """Return a digest of how events are divided into partitions."""
    if source.partition is None:
        return ""
    statement = source.partition.compile(dialect=StrCompileDialect())
    return digest(f"{statement} {statement.params}".encode(), digits=8)
