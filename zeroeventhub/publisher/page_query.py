"""Read pages, and find events that are in no partition of the feed and hence on no page."""

import logging
from collections.abc import Collection, Generator, Iterable
from contextlib import closing
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Select,
    Text,
    bindparam,
    false,
    func,
    literal,
    select,
)

from zeroeventhub.databases.index_hint import IndexHint
from zeroeventhub.databases.port import Database
from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.protocol import Partition, TypeFilter
from zeroeventhub.publisher.archive_reader import ArchiveReader
from zeroeventhub.publisher.keyset import BEFORE, HIGHEST, LIMIT, ONE, parameter
from zeroeventhub.publisher.partition_hash import outside
from zeroeventhub.publisher.rows import BatchSize, ReadRequest, Row, RowQuery, Rows, Stretch


class TypeCondition:
    """Compare the types of events, without regard to the case of ASCII letters.

    Events whose column is NULL or empty, or all without a column, have the default type, which is
    empty if they have none.
    """

    def __init__(self, column: ColumnElement[Any] | None, default: str, database: Database) -> None:
        self._database = database
        kind = self._text(default)
        if column is not None:
            kind = func.coalesce(func.nullif(database.exact(column), self._text("")), kind)
        self._kind = database.lower(kind)

    def condition(self, types: TypeFilter) -> ColumnElement[bool]:
        """Return the condition on the events that a filter accepts."""
        if not types.names:
            return false()
        chosen = self._kind.in_([self._text(name) for name in sorted(types.names)])
        return ~chosen if types.skip else chosen

    def _text(self, text: str) -> ColumnElement[Any]:
        return self._database.exact(literal(text, Text))


FILTERED_ROWS = 50_000
"""How many rows a page examines, at most, to find events of the requested types."""

FEW = 4
"""A statement for fewer events than these, which are large, does not read the last one again."""

LONG = 65_000
"""Bytes of an event from which its line may be too long for consumers in Go."""

_log = logging.getLogger("zeroeventhub.publisher")


class PageQuery:
    """Select the events of a table, in order.

    Events may also be in other partitions than those that are read: in all of `ids`. A page holds
    `page_bytes` of data at most, unless a single event is larger. An archive holds the events below
    its boundary; without one, the table has all of them.

    Attributes:
        longest: bytes of the longest event read so far.
        shares_positions: whether events of more than one partition share the positions.
    """

    def __init__(
        self,
        rows: RowQuery,
        partitions: Collection[Partition],
        ids: Collection[int],
        types: TypeCondition | None,
        *,
        page_bytes: int,
        archive: ArchiveReader | None,
    ) -> None:
        self._rows = rows
        self._archive = archive
        self._source = rows.source
        self._closed = [partition.id for partition in partitions if partition.closed]
        self.ids = ids
        self.shares_positions = rows.source.partition is not None
        self._types = types
        self._page_bytes = page_bytes
        self._batch = BatchSize()
        self.longest = 0
        self._statement = lru_cache(maxsize=100)(self._build)
        self._window = lru_cache(maxsize=2)(self._build_window)

    def read(self, connection: Connection, request: ReadRequest) -> Generator[Stretch]:
        """Read one page or more, and yield each as soon as its rows are there.

        Each but the last is full. Until then, the connection may be in the middle of a statement.
        """
        if request.limit < 1:
            raise ConfigurationError("A page has one event or more: limit is 1 or more.")
        if self._archive is None:
            return self._read_table(connection, request, Stretch(request.until))
        return self._read_both(self._archive, connection, request)

    def _read_both(
        self, archive: ArchiveReader, connection: Connection, request: ReadRequest
    ) -> Generator[Stretch]:
        whole, begun, after, examined = archive.pages(
            connection, request, room=self._page_bytes, window=FILTERED_ROWS
        )
        yield from whole
        if begun is None:
            return
        left = request.count - len(whole)
        sees_start = request.sees_start and after == request.after
        request = replace(request, after=after, count=left, sees_start=sees_start)
        yield from self._read_table(connection, request, begun, examined)

    def _read_table(
        self, connection: Connection, request: ReadRequest, page: Stretch, examined: int = 0
    ) -> Generator[Stretch]:
        """Fill a page, of whose rows some may have been examined, and further pages."""
        if request.after >= request.until:
            yield page
            return
        sees_start = request.sees_start and request.types is None
        values = {
            "partition": request.partition,
            "after": request.after - sees_start,
            "until": request.until,
        }
        if request.types is not None:
            page.until = values["until"] = self._last_examined(connection, values, examined)
        wanted = request.limit * request.count - page.rows + sees_start
        taken, count = 0, 0
        with closing(self._chunks(connection, values, request.types, wanted)) as chunks:
            for rows, first, follows in chunks:
                page.follows = follows
                start, stop = first, len(rows.sizes)
                if sees_start and not taken and rows.position(0) == request.after:
                    start, page.start = 1, (request.after, rows.event(0))
                taken += stop - first
                while start < stop:
                    start = page.take(rows, start, request, self._page_bytes)
                    if not page.full:
                        continue
                    page.end()
                    count += 1
                    if count == request.count or not page.full:
                        chunks.close()  # the caller may use the connection for the last page
                        yield page
                        return
                    yield page
                    page = Stretch(page.until, follows=follows)
        page.end()
        # If the last page ends with the statement's last row, more events may belong to it.
        if taken < wanted or not count:
            yield page

    def _last_examined(self, connection: Connection, values: dict[str, int], examined: int) -> int:
        """Return the last position whose row a page of some types examines."""
        window = self._window(self._rows.near.hint(connection))
        end = connection.scalar(window, values | {"before": FILTERED_ROWS - examined - 1})
        return values["until"] if end is None else int(end)

    def _chunks(
        self, connection: Connection, values: dict[str, Any], types: TypeFilter | None, left: int
    ) -> Generator[tuple[Rows, int, bool]]:
        """Yield rows in order, in chunks that fit into memory.

        Each chunk comes with the index of its first new row, and with whether it follows all rows
        before. Each statement has a snapshot of its own: it reads the last row of the statement
        before again, which is there unless it was trimmed, or the table has another history.
        """
        hint, streams = self._rows.near.hint(connection), self._rows.may_stream(connection)
        query, batch = self._statement(hint, types, streams), self._batch
        last: Row | None = None
        follows = True
        while True:
            chunks: Iterable[Rows]
            if streams:
                portion, size = batch.stream(left)
            else:
                portion, size = batch.rows(left, self._page_bytes), 0
            again = last is not None and portion >= FEW
            if last is not None:
                values["after"] = last[0] - again
                follows = follows and again
            values["limit"] = portion + again
            if streams:
                chunks = self._rows.stream(connection, query, values, size)
            else:
                chunks = [self._rows.read(connection, query, values)]
            found = 0
            for rows in filter(attrgetter("sizes"), chunks):
                self._learn(rows)
                start = 0
                if last is not None and not found:
                    start = int(rows.position(0) == last[0])
                    follows = follows and start == 1 and last[1] is not None
                    follows = follows and last[1] == rows.event(0)
                found += len(rows.sizes)
                left -= len(rows.sizes) - start
                yield rows, start, follows
            if found < values["limit"] or left <= 0:
                return
            last = rows.position(len(rows.sizes) - 1), rows.event(len(rows.sizes) - 1)

    def _learn(self, rows: Rows) -> None:
        """Learn the sizes of events; log the first one that is too long for consumers in Go."""
        largest, before = self._batch.learn(rows), self.longest
        self.longest = max(largest, before)
        if largest > LONG >= before:
            index = next(index for index, size in enumerate(rows.sizes) if size > LONG)
            _log.warning(
                "The event at position %s has %d bytes: consumers in Go end a page without an "
                "error at a line above 65,535 bytes, and stay there. Publish smaller events, "
                "such as a reference to what is large.",
                rows.position(index),
                rows.sizes[index],
            )

    def _build(self, hint: IndexHint, types: TypeFilter | None, streams: bool) -> Select[Any]:
        chosen = None
        if types is not None and self._types is not None:
            chosen = self._types.condition(types)
        near = self._rows.near
        return self._rows.select(
            lambda query: near.above(query, hint),
            # psycopg sends a stream's parameters with its statement, and the plan uses them.
            bindparam("limit", type_=Integer) if streams else LIMIT,
            chosen=chosen,
            streams=streams,
        )

    def _build_window(self, hint: IndexHint) -> Select[Any]:
        """Find the position at which a filtered page ends after the rows that it may examine."""
        near = self._rows.near
        return near.rows(hint, self._source.position).offset(BEFORE).limit(ONE)

    def largest_partition(self, connection: Connection, until: int) -> int | None:
        """Return the largest partition, up to `until`, that has an event; None without events."""
        source, hint = self._source, self._rows.near.hint(connection)
        assert source.partition is not None  # noqa: S101 - only a feed with a column grows
        query = select(func.max(source.partition)).select_from(source.table)
        query = hint.through(query.where(source.partition <= until), source.table)
        largest: int | None = connection.scalar(query)
        return largest

    def refuse_unpublished(self, connection: Connection) -> None:
        """Refuse a table with events that are in no partition of the feed."""
        source, hint = self._source, self._rows.near.hint(connection)
        if source.partition is None:
            return
        for beside in outside(source.partition, self.ids):
            query = select(source.partition).select_from(source.table).where(beside)
            query = hint.through(query.order_by(source.partition), source.table).limit(ONE)
            if row := connection.execute(query).first():
                raise ConfigurationError(
                    f"There is an event in partition {row[0]}, but the feed's partitions are "
                    f"{_listed(sorted(self.ids))}: no consumer sees it. Move it to one of them, "
                    "or give the feed more partitions."
                )

    def await_ends(self, connection: Connection, *, settled: int) -> None:
        """Raise Unavailable until the last events of closed partitions are settled."""
        source, near = self._source, self._rows.near
        if not self._closed:
            return
        found = None
        # The waiting events first: one may get its position, and leave for the table below.
        if source.waiting is not None:
            column = source.waiting.c.partition
            found = connection.execute(
                select(column).where(column.in_(self._closed)).limit(ONE)
            ).first()
        query = select(ONE).select_from(source.table)
        query = near.above(query, near.hint(connection), parameter("after"), HIGHEST).limit(ONE)
        for number in self._closed:
            values = {"partition": number, "after": settled}
            found = found or connection.execute(query, values).first()
        if found:
            raise Unavailable(
                "The last events of a closed partition are not settled yet.", retry_after=1
            )


def _listed(partitions: list[int]) -> str:
    """List partitions in a few characters, however many the feed has."""
    if len(partitions) > 1 and partitions == list(range(partitions[0], partitions[-1] + 1)):
        return f"{partitions[0]} to {partitions[-1]}"
    return ", ".join(map(str, partitions))
