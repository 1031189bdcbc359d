"""The query that reads the events of one key, in the order of their versions."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, literal_column, select

from zeroeventhub.databases import database_of
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import Event, KeyPage
from zeroeventhub.publisher.definition import Definition
from zeroeventhub.publisher.keyset import LIMIT, parameter
from zeroeventhub.publisher.lookups import same_as, value_of
from zeroeventhub.publisher.mapping import UNREADABLE, unreadable
from zeroeventhub.publisher.ordering import Source
from zeroeventhub.publisher.rows import BatchSize, Rows

MOST_BYTES = 4 * 1024 * 1024
"""Bytes of data that a page of a key has at most, unless a single event is larger."""


class KeyQuery:
    """Read the events of a key by the columns of keys and of versions.

    A page holds `page_bytes` of data at most, unless a single event is larger.
    """

    def __init__(self, defined: Definition, source: Source, page_bytes: int) -> None:
        if source.events is not None and defined.envelope and "id" not in defined.attributes:
            raise ConfigurationError(
                "With the ordering sequenced, events of a key are read without positions, which "
                "would be their ids: give the column of their ids as well."
            )
        version: Any = defined.version  # a feed that shows keys has one
        self._key = defined.attributes["key"]
        self._partition = defined.events.partition
        self._mapper = mapper = defined.mapper
        self._page_bytes = min(page_bytes, MOST_BYTES)
        self._batch = BatchSize()
        # Without a column of ids, an event's position is its id.
        position = source.position if source.events is None else literal_column("NULL")
        query = select(position.label("c0"), *mapper.columns, version.label("version"))
        query = query.select_from(defined.events.table).where(version > parameter("after"))
        self._query = query.order_by(version).limit(LIMIT)

    def read(
        self,
        connection: Connection,
        key: str,
        after_version: int,
        limit: int,
        partitions: Collection[int] | None,
    ) -> KeyPage:
        """Read events of a key; see `ExtendedFeed.read_key`."""
        value = value_of(self._key, key)
        if value is None:
            return KeyPage([], [])
        query = self._query.where(*same_as(self._key, value, database_of(connection)))
        if partitions is not None:
            # A feed with one partition has no column for it.
            partition = literal_column("0") if self._partition is None else self._partition
            query = query.where(partition.in_(sorted(partitions)))
        events: list[Event] = []
        versions: list[int] = []
        room = self._page_bytes
        while limit and room > 0:
            portion = self._batch.rows(limit, room)
            values = {"after": after_version, "limit": portion}
            try:
                rows = list(connection.execute(query, values).all())
            except UNREADABLE as error:
                place = f"An event of the key {key!r} after version {after_version}"
                raise unreadable(place, error) from error
            numbers = [row.version for row in rows]
            found = Rows.of_events(rows, self._mapper.event)
            self._batch.learn(found)
            for event, number in zip(found.events(0, len(numbers)), numbers, strict=True):
                room -= len(event.raw)
                if room < 0 and events:
                    return KeyPage(events, versions, more=True)
                events.append(event)
                versions.append(number)
            if len(numbers) < portion:
                return KeyPage(events, versions)
            limit, after_version = limit - portion, numbers[-1]
        return KeyPage(events, versions, more=True)
