"""How far consumers say that they have come, so that trimming waits for them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Double,
    Engine,
    Integer,
    MetaData,
    Table,
    delete,
    func,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.errors import BadCursor, BadRequest, ConfigurationError, Forbidden, Gone, Trimmed
from zeroeventhub.protocol import FIRST, LAST
from zeroeventhub.publisher.cursor import Place
from zeroeventhub.publisher.keyset import NearRows
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.read_only import explained
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.retention import (
    Mark,
    Marks,
    create_unless_there,
    creation,
    exact,
    key_of,
    schema_of,
)

__all__ = [
    "CLOCKS",
    "AsyncRegistering",
    "Progress",
    "Registered",
    "Registering",
    "Registry",
]

NAME = "zeroeventhub_progress"

NAME_LENGTH = 200
"""The most characters that the name of a consumer has."""

_PRINCIPAL_LENGTH = 256
_FEED_LENGTH = 250
_CURSOR_LENGTH = 250


@dataclass(frozen=True)
class Registered:
    """Say how far a consumer said that it has come.

    Attributes:
        consumer: its name.
        principal: who said so; empty where nobody is told apart.
        partition: of which partition.
        cursor: where it has committed.
        heard: how many seconds ago it said so.
    """

    consumer: str
    principal: str
    partition: int
    cursor: str
    heard: float

    @property
    def name(self) -> str:
        """Name it to people."""
        by = f" of {self.principal!r}" if self.principal else ""
        return f"Consumer {self.consumer!r}{by}"


class Progress:
    """Keep in a table how far consumers of the feeds over the tables beside it have come.

    Args:
        metadata: what the table joins, so that migrations find it; None for one of its own.
        schema: the database schema, which is that of the feeds' tables.

    Attributes:
        table: has a row for each consumer and partition of a feed.
    """

    def __init__(self, metadata: MetaData | None = None, *, schema: str | None = None) -> None:
        metadata = MetaData() if metadata is None else metadata
        known = metadata.tables.get(NAME if schema is None else f"{schema}.{NAME}")
        self.table = _table(metadata, schema) if known is None else known

    @classmethod
    def beside(cls, source: Source) -> "Progress":
        """Return the one of the feed over a table."""
        return cls(schema=schema_of(source))

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
        create_unless_there(connection, self.table)


def _table(metadata: MetaData, schema: str | None) -> Table:
    return Table(
        NAME,
        metadata,
        Column("feed", exact(_FEED_LENGTH), primary_key=True),
        Column("principal", exact(_PRINCIPAL_LENGTH), primary_key=True),
        Column("consumer", exact(NAME_LENGTH), primary_key=True),
        Column("partition", Integer, primary_key=True, autoincrement=False),
        Column("cursor", exact(_CURSOR_LENGTH), nullable=False),
        Column("position", BigInteger, nullable=False),
        Column("heard_at", Double, nullable=False),
        schema=schema,
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


MOST_NAMES = 100
"""How many consumers a principal registers for a feed: each is a reason to keep its history."""

SILENT = 7 * 24 * 3600.0
"""Seconds after which a consumer that was not heard of makes room for another of its principal."""

CLOCKS = 60.0
"""Seconds that the clocks of those who register and of those who trim may be apart."""


class Registry:
    """Note how far consumers of a feed have come.

    Args:
        progress: holds the table.
        source: where the feed's positions are read.
        reader: reads the feed.
        marks: knows what was trimmed and is read nowhere else; None where nothing is lost.
    """

    def __init__(
        self, progress: Progress, source: Source, reader: Reader, marks: Marks | None = None
    ) -> None:
        self._table = progress.table
        self._feed = key_of(source)
        self._near = NearRows(source)
        self._reader = reader
        self._marks = marks

    def checked(self, connection: Connection, consumer: str, partition: int, cursor: str) -> str:
        """Refuse what cannot be a consumer's place; return its cursor.

        Raises:
            BadRequest: the name is none.
            BadCursor: the cursor is none at which a consumer can have committed.
            Gone: the feed does not have what lies behind it.
        """
        if not 0 < len(consumer) <= NAME_LENGTH or not consumer.isprintable():
            raise BadRequest(
                f"The name of a consumer is one line of text of 1 to {NAME_LENGTH} characters."
            )
        if cursor in {FIRST, LAST}:
            raise BadCursor("A consumer has committed at a cursor that the feed has given.")
        self._reader.read(connection, partition, cursor, 1)
        return cursor

    def note(
        self, connection: Connection, consumer: str, partition: int, cursor: str, principal: str
    ) -> None:
        """Write a consumer's place, in a transaction beside which nothing is trimmed.

        Raises:
            Trimmed: what lies behind it has been trimmed meanwhile.
            IntegrityError: somebody has written the first place of this consumer meanwhile.
        """
        at = Place.of(cursor)
        if self._marks is not None:
            mark = self._marks.locked(connection)
            if at.position <= mark.trimmed and not mark.spares(at, partition):
                raise Trimmed("The place has just been trimmed.", earliest=mark.earliest)
        key = {
            "feed": self._feed,
            "principal": principal,
            "consumer": consumer,
            "partition": partition,
        }
        place = {
            "cursor": cursor,
            "position": at.position,
            "heard_at": time.time(),
        }
        columns = self._table.c
        same = [columns[name] == value for name, value in key.items()]
        if connection.execute(update(self._table).where(*same).values(place)).rowcount == 0:
            self._make_room(connection, consumer, principal)
            connection.execute(insert(self._table).values({**key, **place}))

    def _make_room(self, connection: Connection, consumer: str, principal: str) -> None:
        """Bound the names of a principal: forget those that are silent, refuse another one.

        Raises:
            Forbidden: it has as many names as it may have.
        """
        columns = self._table.c
        own = [columns.feed == self._feed, columns.principal == principal]
        silent = columns.heard_at < time.time() - SILENT
        connection.execute(delete(self._table).where(*own, silent))
        names = select(func.count(columns.consumer.distinct())).where(
            *own, columns.consumer != consumer
        )
        if (connection.scalar(names) or 0) >= MOST_NAMES:
            raise Forbidden(
                f"This reader has registered {MOST_NAMES} consumers, and no more are noted until "
                "the feed's owner forgets one by `zeroeventhub progress forget`."
            )

    def count(self, connection: Connection) -> int:
        """Count the consumers of all principals that are registered."""
        columns = self._table.c
        names = select(columns.principal, columns.consumer).where(columns.feed == self._feed)
        return connection.scalar(select(func.count()).select_from(names.distinct().subquery())) or 0

    def note_twice(
        self, connection: Connection, consumer: str, partition: int, cursor: str, principal: str
    ) -> None:
        """Write a consumer's place; again, if another process wrote its first one meanwhile.

        Args:
            connection: nobody is in a transaction of it.
            consumer: as for `note`; so are all others.
            partition: see there.
            cursor: see there.
            principal: see there.
        """
        for is_last in (False, True):
            try:
                self.note(connection, consumer, partition, cursor, principal)
                connection.commit()
            except IntegrityError:
                connection.rollback()
                if is_last:
                    raise
            else:
                return

    def registered(self, connection: Connection) -> list[Registered]:
        """Return the places of all consumers, by their names and partitions."""
        return self._rows(connection)

    def _rows(self, connection: Connection, *conditions: ColumnElement[bool]) -> list[Registered]:
        columns = self._table.c
        query = (
            select(self._table)
            .where(columns.feed == self._feed, *conditions)
            .order_by(columns.consumer, columns.principal, columns.partition)
        )
        now = time.time()
        return [
            Registered(
                row.consumer,
                row.principal,
                row.partition,
                row.cursor,
                max(0.0, now - row.heard_at),
            )
            for row in connection.execute(query)
        ]

    def allowed_since(self, connection: Connection, since: float, mark: Mark, until: int) -> int:
        """Return up to where those let a feed be trimmed that were heard since a moment.

        Args:
            connection: to the feed's database.
            since: the moment, in seconds since 1970, by a clock that may be somewhat ahead.
            mark: what has been trimmed.
            until: up to where somebody wants it trimmed.
        """
        columns = self._table.c
        for one in self._rows(
            connection, columns.heard_at >= since - CLOCKS, columns.position < until
        ):
            allowed = self.allowed(connection, one, mark, until)
            until = until if allowed is None else min(until, allowed)
        return until

    def forget(self, connection: Connection, consumer: str, principal: str | None) -> int:
        """Forget a consumer, in a transaction; return how many places it had."""
        columns = self._table.c
        chosen = [columns.feed == self._feed, columns.consumer == consumer]
        if principal is not None:
            chosen.append(columns.principal == principal)
        return connection.execute(delete(self._table).where(*chosen)).rowcount

    def allowed(
        self, connection: Connection, one: Registered, mark: Mark, until: int
    ) -> int | None:
        """Return up to where a consumer lets a feed be trimmed; None where it is too late for it.

        It goes on behind its place only if that can be checked even then: where it stands at the
        last event of its partition, or above all that goes.

        Args:
            connection: to the feed's database.
            one: the consumer's place.
            mark: what has been trimmed.
            until: up to where somebody wants it trimmed.
        """
        place = Place.of(one.cursor)
        if place.position >= until:
            return until
        if place.position > mark.trimmed:
            last = self._near.last(connection, one.partition, place.position)
            stands = last == place.position
        else:
            known = {one.partition: mark.earliest} | dict(mark.partitions)
            raised = replace(mark, trimmed=until, partitions=known)
            try:
                if not mark.spares(place, one.partition):
                    return None
                # What is good at the mark need not be good below it.
                stands = raised.spares(place, one.partition)
            except Gone:
                return None
        if not stands:
            return place.position
        following = self._near.first(connection, one.partition, place.position, until)
        return until if following is None else following - 1


class Registering:
    """Note progress through a sync engine."""

    _engine: Engine
    _registry: Registry | None
    _ask: Callable[..., Any]

    def register_progress(
        self, consumer: str, partition: int, cursor: str, *, principal: str = ""
    ) -> None:
        """Note how far a consumer has committed; see `ExtendedFeed.register_progress`."""
        registry = _known(self._registry)
        place = self._ask(registry.checked, consumer, partition, cursor)
        with explained(), self._engine.connect() as connection:
            registry.note_twice(connection, consumer, partition, place, principal)

    def registered(self) -> list[Registered]:
        """Return how far consumers have said that they have come, by name and partition."""
        found: list[Registered] = self._ask(_known(self._registry).registered)
        return found

    def forget_progress(self, consumer: str, *, principal: str | None = None) -> int:
        """Forget a consumer, so that trimming no longer waits for it.

        Args:
            consumer: its name.
            principal: who said how far it has come; None for whoever did.

        Returns:
            How many places of it were known.
        """
        with explained(), self._engine.begin() as connection:
            return _known(self._registry).forget(connection, consumer, principal)


class AsyncRegistering:
    """Note progress through an async engine."""

    _engine: AsyncEngine
    _registry: Registry | None
    _ask: Callable[..., Any]

    async def register_progress(
        self, consumer: str, partition: int, cursor: str, *, principal: str = ""
    ) -> None:
        """Note how far a consumer has committed; see `ExtendedFeed.register_progress`."""
        registry = _known(self._registry)
        place = await self._ask(registry.checked, consumer, partition, cursor)
        with explained():
            async with self._engine.connect() as connection:
                await connection.run_sync(
                    registry.note_twice, consumer, partition, place, principal
                )

    async def registered(self) -> list[Registered]:
        """Return how far consumers have come; see `Registering.registered`."""
        found: list[Registered] = await self._ask(_known(self._registry).registered)
        return found

    async def forget_progress(self, consumer: str, *, principal: str | None = None) -> int:
        """Forget a consumer; see `Registering.forget_progress`."""
        with explained():
            async with self._engine.begin() as connection:
                return await connection.run_sync(_known(self._registry).forget, consumer, principal)


def _known(registry: Registry | None) -> Registry:
    if registry is None:
        raise ConfigurationError(
            "This feed has no place to keep how far consumers have come: "
            "TableFeed(…, progress=Progress())."
        )
    return registry
