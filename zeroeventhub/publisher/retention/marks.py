"""A feed's row in the table of retention."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from sqlalchemy import (
    BigInteger,
    Connection,
    Dialect,
    Insert,
    String,
    Update,
    exists,
    insert,
    inspect,
    literal,
    select,
    update,
)
from sqlalchemy.engine.default import StrCompileDialect

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.cursor import START, digest
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.retention.mark import Mark
from zeroeventhub.publisher.retention.retention import Retention, creation, schema_of

__all__ = ["Marks", "key_of"]


class _Partitions(msgspec.Struct):
    """What is known of partitions, as long as it is of these partitions and this mark."""

    scheme: str
    trimmed: int
    cursors: dict[int, str]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Partitions).decode


class Marks:
    """Read and raise the mark of a feed.

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
        columns = retention.table.c
        self.table = retention.table
        self._query = select(
            columns.trimmed, columns.earliest, columns.compacted, columns.partitions
        ).where(columns.feed == self.feed)

    @classmethod
    def of(cls, source: Source) -> "Marks":
        """Take what the feed over a table needs, for its statements alone."""
        return cls(Retention(schema=schema_of(source)), source, ())

    def statements(self, dialect: Dialect) -> tuple[str, ...]:
        """Return the statements that create the table and the feed's row."""
        make: Any = type(dialect)
        plain: Dialect = make(paramstyle="named")
        row = self.row.compile(dialect=plain, compile_kwargs={"literal_binds": True})
        return creation(dialect, self.table), str(row)

    def read(self, connection: Connection) -> Mark:
        """Return the mark.

        Raises:
            ConfigurationError: the feed has no row.
        """
        row = connection.execute(self._query).first()
        if row is None:
            raise ConfigurationError(self.missing)
        return Mark(row.trimmed, row.earliest, row.compacted, partitions=self._of(row))

    def locked(self, connection: Connection) -> Mark:
        """Return the mark, which nobody else raises before the transaction ends.

        It begins by a write, which is what SQLite asks for at first.

        Raises:
            ConfigurationError: the feed has no row.
        """
        same = update(self.table).where(self.table.c.feed == self.feed)
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
        schema = connection.schema_for_object(self.table)
        if not inspect(connection).has_table(self.table.name, schema=schema):
            return False
        return connection.execute(self._query).first() is not None

    def install(self, connection: Connection) -> None:
        """Create the table and the feed's row unless they exist.

        Args:
            connection: in a transaction of yours.
        """
        self._retention.create_tables(connection)
        connection.execute(self.row)

    @property
    def row(self) -> Insert:
        """Return the statement that adds the feed's row unless it is there."""
        table = self.table
        row = select(
            literal(self.feed, String),
            literal(0, BigInteger),
            literal(START, String),
            literal(0, BigInteger),
        ).where(~exists().where(table.c.feed == self.feed))
        return insert(table).from_select(["feed", "trimmed", "earliest", "compacted"], row)

    def raising(self, mark: Mark, trimmed: int, earliest: str, last: Mapping[int, str]) -> Update:
        """Build the statement that raises the mark, in the transaction of what it tells.

        Args:
            mark: as it is, locked.
            trimmed: as in `Mark`; so is the next one.
            earliest: see there.
            last: as `Mark.partitions`, of those that lose events.
        """
        cursors = dict.fromkeys(self.partitions, mark.earliest) | dict(mark.partitions)
        known = _Partitions(self._scheme, trimmed, cursors | dict(last))
        table = self.table
        return (
            update(table)
            .where(table.c.feed == self.feed)
            .values(trimmed=trimmed, earliest=earliest, partitions=_encode(known).decode())
        )

    def thinning(self, until: int) -> Update:
        """Build the statement that says up to where events may be missing one by one."""
        column = self.table.c.compacted
        return (
            update(self.table)
            .where(self.table.c.feed == self.feed, column < until)
            .values(compacted=until)
        )

    def _of(self, row: Any) -> dict[int, str]:
        """Return what a row knows of the feed's partitions; nothing if it is of others."""
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
