"""How much of its history a feed keeps, and the mark that says what was trimmed."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any, ClassVar, Self

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Insert,
    MetaData,
    String,
    Table,
    exists,
    insert,
    inspect,
    literal,
    select,
    update,
)
from sqlalchemy.engine.default import StrCompileDialect
from sqlalchemy.schema import CreateTable

from zeroeventhub.databases import database_of
from zeroeventhub.databases.tables import creation, exact, long_text, statement_text
from zeroeventhub.errors import ConfigurationError, Diverged, FeedFailure
from zeroeventhub.publisher.cursor import START, Place, digest
from zeroeventhub.publisher.ordering import Source

__all__ = [
    "NOTHING_TRIMMED",
    "FeedTable",
    "LowWaterMark",
    "MarkTable",
    "Retention",
    "begun_again",
    "key_of",
]

_NAME_LENGTH = 250
_CURSOR_LENGTH = 250


class FeedTable:
    """Keep something about feeds in a table of its own, in the schema of the feeds' tables.

    Args:
        metadata: what the table joins, so that migrations find it; None for one of its own.
        schema: the database schema, which is that of the feeds' tables.

    Attributes:
        table: the table.
    """

    name: ClassVar[str]

    def __init__(self, metadata: MetaData | None = None, *, schema: str | None = None) -> None:
        metadata = MetaData() if metadata is None else metadata
        name = self.name
        known = metadata.tables.get(name if schema is None else f"{schema}.{name}")
        engine: dict[str, Any] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
        self.table = (
            Table(name, metadata, *self.columns(), schema=schema, **engine)
            if known is None
            else known
        )

    @staticmethod
    def columns() -> list[Column[Any]]:
        """Return the columns of the table."""
        raise NotImplementedError

    @classmethod
    def beside(cls, source: Source) -> Self:
        """Return the one of the feed over a table."""
        return cls(schema=_schema_of(source))

    def is_there(self, connection: Connection) -> bool:
        """Tell whether the table is there."""
        schema = connection.schema_for_object(self.table)
        return inspect(connection).has_table(self.table.name, schema=schema)

    def statement(self, dialect: Dialect) -> str:
        """Return the statement that creates the table."""
        return creation(dialect, self.table)

    def create_tables(self, connection: Connection) -> None:
        """Create the table unless it exists; `TableFeed.install` does.

        Args:
            connection: in a transaction of yours, to the feeds' database.
        """
        database_of(connection).lock_creation(connection)
        if not self.is_there(connection):
            connection.execute(CreateTable(self.table, if_not_exists=True))


class Retention(FeedTable):
    """Keep in a table what has been trimmed of the feeds over the tables beside it: a row a feed.

    Args:
        metadata: what the table joins, so that migrations find it; None for one of its own.
        schema: the database schema, which is that of the feeds' tables.
    """

    name = "zeroeventhub_retention"

    @staticmethod
    def columns() -> list[Column[Any]]:
        """Return the columns of the table."""
        return [
            Column("feed", exact(String(_NAME_LENGTH)), primary_key=True),
            Column("trimmed", BigInteger, nullable=False, server_default="0"),
            Column("earliest", exact(String(_CURSOR_LENGTH)), nullable=False),
            Column("compacted", BigInteger, nullable=False, server_default="0"),
            Column("partitions", long_text()),
        ]


def _schema_of(source: Source) -> str | None:
    """Return the schema of the feed's table."""
    table: Any = source.table if source.events is None else source.events
    schema: str | None = table.schema
    return schema


@dataclass(frozen=True)
class LowWaterMark:
    """Hold what is gone from a feed's table.

    Attributes:
        trimmed: the position of the last event that was trimmed: there and below, none is left.
        earliest: the cursor after that event, which stands before the first one that is left.
        compacted: the position up to which events may be missing one by one.
        moved: the position up to which events are in the feed's archive alone.
        partitions: by partition, the cursor after the last of its events that was trimmed; one
            that is not named may have lost any up to the mark.
    """

    trimmed: int = 0
    earliest: str = START
    compacted: int = 0
    moved: int = 0
    partitions: Mapping[int, str] = field(default_factory=dict)

    def still_covers(self, place: Place, partition: int | None) -> bool:
        """Tell whether all that follows a place at the mark or below it is still there.

        A place with a digest counts only where that can be compared: what another history had
        after such a place is not known any more.

        Args:
            place: at the mark or below it.
            partition: the one that is read; None for all of them.

        Raises:
            Diverged: another event stood at this place.
        """
        known = self.partitions.get(-1 if partition is None else partition)
        if place.position == self.trimmed:
            last = Place.of(self.earliest)
        elif known is None:
            return False
        else:
            last = Place.of(known)
        if place.position != last.position:
            follows = place.position > last.position and not place.check
            return follows or last.position == 0
        comparable = place.check and place.recipe == last.recipe
        if comparable and not compare_digest(place.check, last.check):
            raise Diverged(
                "The event at this cursor, which has been trimmed, was not the one that it was "
                "given for: the feed's history is another one."
            )
        return True


NOTHING_TRIMMED = LowWaterMark()


def begun_again(mark: int) -> FeedFailure:
    """Say that a table has events at numbers at which it was trimmed.

    Args:
        mark: the position up to which it was.
    """
    return FeedFailure(f"The table's numbers start again below {mark}, up to which it was trimmed.")


class _Partitions(msgspec.Struct):
    """What is known of partitions, as long as it is of these partitions and this mark."""

    scheme: str
    trimmed: int
    cursors: dict[int, str]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Partitions).decode


class MarkTable:
    """Read and raise the low-water mark of a feed.

    Args:
        retention: holds the table.
        source: where the feed's positions are read.
        partitions: those that events may be in.

    Attributes:
        table: of all feeds over tables beside it.
        feed: the key of this feed's row.
        partitions: those that events may be in.
    """

    def __init__(self, retention: Retention, source: Source, partitions: Collection[int]) -> None:
        self._retention = retention
        self.partitions = partitions
        self._scheme = _scheme(source)
        self.feed = key_of(source)
        self.table = retention.table
        columns = retention.table.c
        self._own = columns.feed == self.feed
        self._query = select(
            columns.trimmed, columns.earliest, columns.compacted, columns.partitions
        ).where(self._own)

    @classmethod
    def of(cls, source: Source) -> "MarkTable":
        """Take what the feed over a table needs, for its statements alone."""
        return cls(Retention.beside(source), source, ())

    def statements(self, dialect: Dialect) -> tuple[str, ...]:
        """Return the statements that create the table and the feed's row."""
        row = statement_text(dialect, self.row, compile_kwargs={"literal_binds": True})
        return self._retention.statement(dialect), row

    def read(self, connection: Connection) -> LowWaterMark:
        """Return the mark.

        Raises:
            ConfigurationError: the feed has no row.
        """
        row = connection.execute(self._query).first()
        if row is None:
            raise ConfigurationError(self.missing)
        return LowWaterMark(row.trimmed, row.earliest, row.compacted, partitions=self._of(row))

    def locked(self, connection: Connection) -> LowWaterMark:
        """Return the mark, which no other transaction raises before this one ends.

        It begins by a write, as SQLite needs it.

        Raises:
            ConfigurationError: the feed has no row.
        """
        same = update(self.table).where(self._own)
        if connection.execute(same.values(trimmed=self.table.c.trimmed)).rowcount == 0:
            raise ConfigurationError(self.missing)
        return self.read(connection)

    def check(self, connection: Connection) -> None:
        """Refuse a database without the feed's row.

        Raises:
            ConfigurationError: there is none.
        """
        if not self.are_there(connection):
            raise ConfigurationError(self.missing)

    def are_there(self, connection: Connection) -> bool:
        """Tell whether the feed has a row."""
        if not self._retention.is_there(connection):
            return False
        return connection.execute(self._query).first() is not None

    def install(self, connection: Connection) -> None:
        """Create the table and the feed's row unless they exist."""
        self._retention.create_tables(connection)
        connection.execute(self.row)

    @property
    def row(self) -> Insert:
        """Return the statement that adds the feed's row unless it is there."""
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
        """Raise the mark, in the transaction that deletes the events.

        Args:
            connection: in that transaction.
            mark: as it is, locked.
            trimmed: as in `LowWaterMark`; so is the next one.
            earliest: a cursor.
            last: as `LowWaterMark.partitions`, of those that lose events.
        """
        cursors = dict.fromkeys(self.partitions, mark.earliest) | dict(mark.partitions)
        known = _Partitions(self._scheme, trimmed, cursors | dict(last))
        values = {"trimmed": trimmed, "earliest": earliest, "partitions": _encode(known).decode()}
        connection.execute(update(self.table).where(self._own).values(values))

    def thin(self, connection: Connection, until: int) -> None:
        """Note up to where events may be missing one by one, where they are deleted."""
        column = self.table.c.compacted
        change = update(self.table).where(self._own, column < until)
        connection.execute(change.values(compacted=until))

    def _of(self, row: Any) -> dict[int, str]:
        """Return what a row knows of the partitions; nothing if they were divided otherwise."""
        if row.partitions is None:
            return {}
        known = _decode(row.partitions)
        is_known = known.scheme == self._scheme and known.trimmed == row.trimmed
        return known.cursors if is_known else {}

    @property
    def missing(self) -> str:
        """Say that the feed has no row."""
        return (
            f"Table {self.table.fullname!r} has no row of feed {self.feed!r}, which "
            "says what has been trimmed of it: TableFeed.install adds it, and so do the "
            "statements that `zeroeventhub ddl --retention` prints."
        )


def key_of(source: Source) -> str:
    """Name a feed among those over tables beside each other."""
    positions: Any = source.table
    # Without a schema, which is that of what is kept of the feed, however both are found.
    return f"{positions.name}.{source.position.name}"


def _scheme(source: Source) -> str:
    """Return a digest that is another where events are divided into partitions otherwise."""
    if source.partition is None:
        return ""
    statement = source.partition.compile(dialect=StrCompileDialect())
    return digest(f"{statement} {statement.params}".encode(), digits=8)
