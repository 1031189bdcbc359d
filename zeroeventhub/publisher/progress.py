"""How far consumers say that they have come, so that trimming waits for them."""

import time
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Double,
    Integer,
    String,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from zeroeventhub.databases.tables import exact
from zeroeventhub.errors import BadCursor, BadRequest, Forbidden, Gone, Trimmed
from zeroeventhub.protocol import FIRST, LAST
from zeroeventhub.publisher.cursor import Place
from zeroeventhub.publisher.keyset import NearRows
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.retention import FeedTable, LowWaterMark, MarkTable, key_of

__all__ = [
    "CLOCKS",
    "Progress",
    "Registered",
    "Registry",
]

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
        principal: who said so; empty where principals are not known.
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


class Progress(FeedTable):
    """Keep in a table how far consumers of the feeds over the tables beside it have come.

    It has a row for each consumer and partition of a feed.

    Args:
        metadata: what the table joins, so that migrations find it; None for one of its own.
        schema: the database schema, which is that of the feeds' tables.
    """

    name = "zeroeventhub_progress"

    @staticmethod
    def columns() -> list[Column[Any]]:
        """Return the columns of the table."""
        return [
            Column("feed", exact(String(_FEED_LENGTH)), primary_key=True),
            Column("principal", exact(String(_PRINCIPAL_LENGTH)), primary_key=True),
            Column("consumer", exact(String(NAME_LENGTH)), primary_key=True),
            Column("partition", Integer, primary_key=True, autoincrement=False),
            Column("cursor", exact(String(_CURSOR_LENGTH)), nullable=False),
            Column("position", BigInteger, nullable=False),
            Column("heard_at", Double, nullable=False),
        ]


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
        marks: knows what was trimmed and is read nowhere else; None where nothing is lost.
    """

    def __init__(self, progress: Progress, source: Source, marks: MarkTable | None = None) -> None:
        self._table = progress.table
        self._feed = key_of(source)
        self._near = NearRows(source)
        self._marks = marks

    @staticmethod
    def check(consumer: str, cursor: str) -> None:
        """Refuse what cannot be a consumer's name and place, whatever the feed has.

        Raises:
            BadRequest: the name is none.
            BadCursor: the cursor is none at which a consumer can have committed.
        """
        if not 0 < len(consumer) <= NAME_LENGTH or not consumer.isprintable():
            raise BadRequest(
                f"The name of a consumer is one line of text of 1 to {NAME_LENGTH} characters."
            )
        if cursor in {FIRST, LAST}:
            raise BadCursor("A consumer has committed at a cursor that the feed has given.")

    def note(
        self, connection: Connection, consumer: str, partition: int, cursor: str, principal: str
    ) -> None:
        """Write a consumer's place; again, if another process wrote its first one meanwhile.

        Raises:
            Trimmed: what follows it has been trimmed meanwhile.
            Forbidden: the principal has as many names as it may have.
        """
        try:
            self._write(connection, consumer, partition, cursor, principal)
        except IntegrityError:
            connection.rollback()
            self._write(connection, consumer, partition, cursor, principal)
        connection.commit()

    def _write(
        self, connection: Connection, consumer: str, partition: int, cursor: str, principal: str
    ) -> None:
        """Write a place in a transaction that keeps the feed from being trimmed meanwhile."""
        at = Place.of(cursor)
        if self._marks is not None:
            mark = self._marks.locked(connection)
            if at.position <= mark.trimmed and not mark.still_covers(at, partition):
                raise Trimmed("The place has just been trimmed.", earliest=mark.earliest)
        columns = self._table.c
        key = {
            columns.feed: self._feed,
            columns.principal: principal,
            columns.consumer: consumer,
            columns.partition: partition,
        }
        place = {
            columns.cursor: cursor,
            columns.position: at.position,
            columns.heard_at: time.time(),
        }
        same = [column == value for column, value in key.items()]
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

    def registered(
        self, connection: Connection, *conditions: ColumnElement[bool]
    ) -> list[Registered]:
        """Return the places of consumers, by their names and partitions."""
        columns = self._table.c
        query = (
            select(
                columns.consumer,
                columns.principal,
                columns.partition,
                columns.cursor,
                columns.heard_at,
            )
            .where(columns.feed == self._feed, *conditions)
            .order_by(columns.consumer, columns.principal, columns.partition)
        )
        now = time.time()
        return [
            Registered(consumer, principal, partition, cursor, max(0.0, now - heard_at))
            for consumer, principal, partition, cursor, heard_at in connection.execute(query)
        ]

    def allowed_since(
        self, connection: Connection, since: float, mark: LowWaterMark, until: int
    ) -> int:
        """Return up to where those let a feed be trimmed that were heard since a moment.

        Args:
            connection: to the feed's database.
            since: the moment, in seconds since 1970, by a clock that may be somewhat ahead.
            mark: what has been trimmed.
            until: up to where it is to be trimmed.
        """
        columns = self._table.c
        for one in self.registered(
            connection, columns.heard_at >= since - CLOCKS, columns.position < until
        ):
            allowed = self.allowed(connection, one, mark, until)
            until = until if allowed is None else min(until, allowed)
        return until

    def forget(self, connection: Connection, consumer: str, principal: str | None) -> int:
        """Forget a consumer; return how many places it had."""
        columns = self._table.c
        chosen = [columns.feed == self._feed, columns.consumer == consumer]
        if principal is not None:
            chosen.append(columns.principal == principal)
        places = connection.execute(delete(self._table).where(*chosen)).rowcount
        connection.commit()
        return places

    def allowed(
        self, connection: Connection, one: Registered, mark: LowWaterMark, until: int
    ) -> int | None:
        """Return up to where a consumer lets a feed be trimmed; None where it is too late for it.

        It goes on from its place only if that can be checked even then: where it stands at the
        last event of its partition, or above all that goes.

        Args:
            connection: to the feed's database.
            one: the consumer's place.
            mark: what has been trimmed.
            until: up to where it is to be trimmed.
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
                if not mark.still_covers(place, one.partition):
                    return None
                # What is good at the mark need not be good below it.
                stands = raised.still_covers(place, one.partition)
            except Gone:
                return None
        if not stands:
            return place.position
        following = self._near.first(connection, one.partition, place.position, until)
        return until if following is None else following - 1
