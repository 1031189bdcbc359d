"""The progress that consumers report to the publisher, so that trimming waits for them."""

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Integer,
    String,
    delete,
    func,
    select,
    update,
)

from zeroeventhub.databases.statements import exact, upsert
from zeroeventhub.errors import BadCursor, BadRequest, Forbidden, Gone, Trimmed
from zeroeventhub.protocol import FIRST, LAST, NAME_LENGTH, Partition, is_name
from zeroeventhub.publisher.cursor import Place
from zeroeventhub.publisher.keyset import NearRows
from zeroeventhub.publisher.retention import FeedTable, LowWaterMark, MarkTable, feed_key


@dataclass(frozen=True)
class Registered:
    """The progress that a consumer last reported for a partition.

    Attributes:
        consumer: its name.
        principal: the principal that reported it; empty for a feed without principals.
        partition: the partition.
        cursor: the cursor that the consumer has committed; FIRST in a partition that it has not
            begun, as it still reads the parent.
        heard: seconds since the report.
    """

    consumer: str
    principal: str
    partition: int
    cursor: str
    heard: float

    @property
    def name(self) -> str:
        """Return the consumer's name and principal for messages."""
        by = f" of {self.principal!r}" if self.principal else ""
        return f"Consumer {self.consumer!r}{by}"


class Progress(FeedTable):
    """Table of the progress that consumers report, a row for each consumer and partition of a feed.

    It holds the progress for all feeds over tables of the same schema.

    Example:
        feed = TableFeed(orders, data="data", retention=Retention(), progress=Progress())
        with engine.begin() as connection:
            feed.install(connection)

    Args:
        metadata: the MetaData to add the table to, so that migrations find it; None for a new one.
        schema: the database schema; must be that of the feeds' tables.
    """

    name = "zeroeventhub_progress"

    @staticmethod
    def columns() -> list[Column[Any]]:
        """Return the columns of the table."""
        return [
            Column("feed", exact(String(250)), primary_key=True),
            Column("principal", exact(String(256)), primary_key=True),
            Column("consumer", exact(String(NAME_LENGTH)), primary_key=True),
            Column("partition", Integer, primary_key=True, autoincrement=False),
            Column("cursor", exact(String(250)), nullable=False),
            Column("position", BigInteger, nullable=False),
            Column("heard_at", Double, nullable=False),
        ]


MOST_NAMES = 100
"""How many consumers a principal may register for a feed: each keeps history from trimming."""

SILENT = 7 * 24 * 3600.0
"""Seconds without a report after which another consumer of the principal may take its row."""

CLOCKS = 60.0
"""Seconds by which the clocks of publisher processes may differ."""


class Registry:
    """Store the progress of a feed's consumers.

    The marks are None if trimming loses nothing, as with an archive.
    """

    def __init__(
        self,
        progress: Progress,
        near: NearRows,
        partitions: Collection[Partition],
        marks: MarkTable | None,
    ) -> None:
        self._table = progress.table
        self._partitions: dict[int | None, Partition] = {one.id: one for one in partitions}
        self._replaced = frozenset(gone for one in partitions for gone in one.cursor_from)
        self._feed = feed_key(near.source)
        self._near = near
        self._marks = marks

    @staticmethod
    def check(consumer: str, cursor: str) -> None:
        """Refuse an invalid name (BadRequest) or cursor (BadCursor) before the database is used."""
        if not is_name(consumer):
            raise BadRequest(
                f"The name of a consumer is one line of text of 1 to {NAME_LENGTH} characters, "
                "without a space at its end."
            )
        if cursor in {FIRST, LAST}:
            raise BadCursor("A consumer has committed at a cursor that the feed has given.")

    def note(
        self, connection: Connection, consumer: str, partition: int, cursor: str, principal: str
    ) -> None:
        """Write a consumer's cursor.

        Raises:
            Trimmed: events after the cursor have been trimmed meanwhile.
            Forbidden: the principal may register no more names.
        """
        at = Place.of(cursor)
        if self._marks is not None:
            # With the mark locked, no trim runs meanwhile.
            mark = self._marks.locked(connection)
            if at.position <= mark.trimmed and not mark.still_covers(at, partition):
                raise Trimmed("Events after it have just been trimmed.", earliest=mark.earliest)
        key = {
            "feed": self._feed,
            "principal": principal,
            "consumer": consumer,
            "partition": partition,
        }
        place = {"cursor": cursor, "position": at.position, "heard_at": time.time()}
        same = [self._table.c[name] == value for name, value in key.items()]
        if connection.execute(update(self._table).where(*same).values(place)).rowcount == 0:
            self._make_room(connection, consumer, principal)
            # Another process may insert the row meanwhile.
            upsert(connection, self._table, key | place, place)
        connection.commit()

    def _make_room(self, connection: Connection, consumer: str, principal: str) -> None:
        """Forget consumers beyond `MOST_NAMES`; raise Forbidden for one that is not silent."""
        columns = self._table.c
        own = [columns.feed == self._feed, columns.principal == principal]
        known = select(columns.consumer).where(*own, columns.consumer == consumer).limit(1)
        if connection.execute(known).first() is not None:
            return  # a further partition of a consumer that has its place
        heard_at = func.max(columns.heard_at)
        others = select(columns.consumer, heard_at).where(*own, columns.consumer != consumer)
        others = others.group_by(columns.consumer).order_by(heard_at.desc()).offset(MOST_NAMES - 1)
        for other, last in connection.execute(others).all():
            if last >= time.time() - SILENT:
                raise Forbidden(
                    f"This reader has registered {MOST_NAMES} consumers, as many as it may: let "
                    "the feed's owner forget one by `zeroeventhub progress forget`."
                )
            connection.execute(delete(self._table).where(*own, columns.consumer == other))

    def count(self, connection: Connection) -> int:
        """Count the registered consumers of all principals."""
        columns = self._table.c
        names = select(columns.principal, columns.consumer).where(columns.feed == self._feed)
        return connection.scalar(select(func.count()).select_from(names.distinct().subquery())) or 0

    def registered(self, connection: Connection) -> list[Registered]:
        """Return the progress of all consumers, by name and partition."""
        columns = self._table.c
        order = (columns.consumer, columns.principal, columns.partition)
        query = select(*order, columns.cursor, columns.heard_at)
        query = query.where(columns.feed == self._feed).order_by(*order)
        now = time.time()
        return [
            Registered(consumer, principal, partition, cursor, max(0.0, now - heard_at))
            for consumer, principal, partition, cursor, heard_at in connection.execute(query)
        ]

    def needed(self, connection: Connection) -> list[Registered]:
        """Return where consumers are in each partition, as far as trimming has to wait for them.

        Where a consumer has not registered yet, it goes on at its cursor of a partition that was
        replaced, or begins once it has read the parent.
        """
        consumers: dict[tuple[str, str], dict[int, Registered]] = {}
        for one in self.registered(connection):
            consumers.setdefault((one.consumer, one.principal), {})[one.partition] = one
        return [one for at in consumers.values() for one in self._reads(at)]

    def _reads(self, at: Mapping[int, Registered]) -> Iterator[Registered]:
        """Yield where a consumer is, by what it has registered by partition."""
        for number, one in at.items():
            # Another process of the feed may list partitions that this one does not.
            if number not in self._partitions and number not in self._replaced:
                yield one
        for partition in self._partitions.values():
            if (own := at.get(partition.id)) is not None:
                yield own
                continue
            here: Partition | None = partition
            while here is not None:
                line = (here.id, *here.cursor_from)
                if known := next((at[number] for number in line if number in at), None):
                    cursor = known.cursor if here is partition else FIRST
                    yield replace(known, partition=partition.id, cursor=cursor)
                    break
                here = self._partitions.get(here.starts_after)

    def allowed_since(
        self, connection: Connection, seconds: float, mark: LowWaterMark, until: int
    ) -> int:
        """Return the position up to which consumers allow a trim that reported in the last seconds.

        Their publishers' clocks may be behind by `CLOCKS`.
        """
        for one in self.needed(connection):
            if one.heard <= seconds + CLOCKS:
                allowed = self.allowed(connection, one, mark, until)
                until = until if allowed is None else min(until, allowed)
        return until

    def forget(self, connection: Connection, consumer: str, principal: str | None) -> int:
        """Forget a consumer; return how many rows it had."""
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
        """Return the position up to which a consumer allows a trim; None if it lost events already.

        The feed has to be able to check the consumer's cursor after the trim: the cursor has to be
        at the last trimmed event of its partition, or above the trimmed events.
        """
        if one.cursor == FIRST:
            following = self._near.first(connection, mark.trimmed, until, one.partition)
            return until if following is None else following - 1
        place = Place.of(one.cursor)
        if place.position >= until:
            return until
        if place.position > mark.trimmed:
            last = self._near.last(connection, place.position, one.partition)
            is_valid = last == place.position or one.partition in mark.closed
        else:
            known = {one.partition: mark.earliest} | dict(mark.partitions)
            raised = replace(mark, trimmed=until, partitions=known)
            try:
                if not mark.still_covers(place, one.partition):
                    return None
                # A cursor at the present mark may become invalid once the mark is above it.
                is_valid = raised.still_covers(place, one.partition)
            except Gone:
                return None
        if not is_valid:
            return place.position
        following = self._near.first(connection, place.position, until, one.partition)
        return until if following is None else following - 1
