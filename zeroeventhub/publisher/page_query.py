"""The query that reads pages, and the one that finds events which no page would show."""

import logging
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Enum,
    Integer,
    Select,
    String,
    Text,
    bindparam,
    false,
    func,
    literal,
    literal_column,
    select,
)

from zeroeventhub.databases.index_hint import IndexHint
from zeroeventhub.databases.port import Database
from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.protocol import Event, Partition, TypeFilter
from zeroeventhub.publisher.keyset import HIGHEST, LIMIT, given
from zeroeventhub.publisher.partition_hash import outside
from zeroeventhub.publisher.rows import BatchSize, Row, RowQuery, Rows
from zeroeventhub.wire.lines import Lines, joined

if TYPE_CHECKING:
    from zeroeventhub.publisher.archive_reader import ArchiveReader

__all__ = [
    "PageQuery",
    "ReadRequest",
    "Stretch",
    "TypeCondition",
]


class TypeCondition:
    """Compare the types of events, without regard to the case of ASCII letters.

    Args:
        column: the column of types; None if all events are of the default type.
        default: the type of events whose column is NULL or empty; empty if they have none.
        database: that of the events.
    """

    def __init__(self, column: ColumnElement[Any] | None, default: str, database: Database) -> None:
        self._database = database
        kind = self._text(default)
        if column is not None:
            kind = func.coalesce(func.nullif(database.exact(column), self._text("")), kind)
        self._kind = database.lower(kind)

    @staticmethod
    def understands(column: ColumnElement[Any]) -> bool:
        """Tell whether a column holds types as text, as they are sent."""
        return isinstance(column.type, String) and not isinstance(column.type, Enum)

    def condition(self, types: TypeFilter) -> ColumnElement[bool]:
        """Return what holds for the events that a filter lets through."""
        if not types.names:
            return false()
        chosen = self._kind.in_([self._text(name) for name in sorted(types.names)])
        return ~chosen if types.skip else chosen

    def _text(self, text: str) -> ColumnElement[Any]:
        return self._database.exact(literal(text, Text))


FILTERED_ROWS = 50_000
"""How many rows a page looks at in search of events of certain types, at most."""

LONG = 65_000
"""Bytes of an event from which on its line, with its frame, may be longer than consumers take."""

_log = logging.getLogger("zeroeventhub.publisher")

_ONE: ColumnElement[int] = literal_column("1")

# Written out, as LIMIT is.
_BEFORE: ColumnElement[int] = bindparam("before", type_=Integer, literal_execute=True)


@dataclass(frozen=True)
class ReadRequest:
    """Say what pages are to hold.

    Attributes:
        partition: one of the feed's.
        after: the position after which they begin.
        until: the one up to which they go.
        limit: how many rows of a page to look at, at most.
        count: how many pages to read, at most; 1 with `types`.
        types: which events; None for all.
        each: whether the position of each event is wanted.
    """

    partition: int
    after: int
    until: int
    limit: int
    count: int = 1
    types: TypeFilter | None = None
    each: bool = False


@dataclass
class Stretch:
    """Hold the rows of one page.

    Attributes:
        until: the position up to which they were read.
        parts: the events, as they were read.
        texts: the JSON of those that were taken since, until the page ends.
        positions: where they are, if anybody asked.
        last: the last row, which may be a deleted event; None if there was none.
        on_one_line: whether these have no line ends in their white space.
        rows: how many there are, with the deleted ones.
        size: of the events, in bytes.
        full: whether it ended for its size, before `until`.
    """

    until: int
    parts: list[Sequence[Event]] = field(default_factory=list)
    texts: list[bytes] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    last: Row | None = None
    on_one_line: bool = False
    rows: int = 0
    size: int = 0
    full: bool = False

    @property
    def events(self) -> Sequence[Event]:
        """Return the events."""
        return joined(self.parts)

    def end(self) -> None:
        """Make one text of the events that were taken; their own are let go."""
        if self.texts:
            self.parts.append(Lines.of(self.texts, on_one_line=self.on_one_line))
            self.texts = []

    def take(self, rows: Rows, start: int, limit: int, room: int, *, each: bool) -> int:
        """Take rows, as many as the page has room for.

        Args:
            rows: lie behind those that are there.
            start: the index of the first one to take.
            limit: how many rows the page has, at most.
            room: how many bytes, unless its first event alone has more.
            each: whether their positions are wanted.

        Returns:
            The index of the first one that was not taken.
        """
        stop = min(len(rows.texts), start + limit - self.rows)
        size = rows.size(start, stop)
        if self.size + size > room:
            stop = rows.fitting(start, stop, room - self.size)
            if not self.size and not rows.size(start, stop):
                stop += 1  # whatever was deleted before it
            size, self.full = rows.size(start, stop), True
        if stop > start:
            if rows.headers is not None:
                self.parts.append(rows.events(start, stop))
            else:
                texts = rows.texts[start:stop]
                self.on_one_line = rows.on_one_line and (self.on_one_line or not self.texts)
                self.texts += filter(None, texts) if None in texts else texts  # type: ignore[arg-type] # as just seen
            if each:
                there = (at for at in range(start, stop) if rows.texts[at] is not None)
                self.positions += map(rows.position, there)
            self.last = rows.position(stop - 1), rows.event(stop - 1)
            self.rows += stop - start
            self.size += size
        self.full = self.full or self.rows == limit
        return stop


class PageQuery:
    """Select the events of a table, in order.

    Args:
        rows: reads them.
        partitions: the partitions that there are to read.
        ids: the partitions that events may be in, read or not.
        types: filters events by type; None if the feed does not know types.
        page_bytes: how much data a page holds at most, unless a single event is larger.
        archive: has the events below its boundary; None if the table has all of them.

    Attributes:
        ids: the partitions that events may be in, read or not.
        longest: how many bytes the longest event had that was read.
    """

    def __init__(
        self,
        rows: RowQuery,
        partitions: Collection[Partition],
        ids: Collection[int],
        types: TypeCondition | None = None,
        *,
        page_bytes: int,
        archive: "ArchiveReader | None" = None,
    ) -> None:
        self._rows = rows
        self._archive = archive
        self._source = rows.source
        self._closed = [partition.id for partition in partitions if partition.closed]
        self.ids = ids
        self._types = types
        self._page_bytes = page_bytes
        self._batch = BatchSize()
        self._has_warned = False
        self.longest = 0
        self._statement = lru_cache(maxsize=100)(self._build)
        self._window = lru_cache(maxsize=2)(self._build_window)

    @property
    def others(self) -> bool:
        """Tell whether there are events between those of a partition."""
        return self._source.partition is not None

    def read(self, connection: Connection, request: ReadRequest) -> list[Stretch]:
        """Read pages, whole.

        Returns:
            One page or more; each but the last is full.

        Raises:
            NotAtHand: some events have to be fetched from the archive first.
        """
        if self._archive is None:
            return self._read(connection, request, Stretch(request.until))
        archived = self._archive.pages(
            connection, request, room=self._page_bytes, window=FILTERED_ROWS
        )
        if archived.begun is None:
            return archived.pages
        left = request.count - len(archived.pages)
        rest = replace(request, after=archived.after, count=left)
        return archived.pages + self._read(connection, rest, archived.begun, archived.looked_at)

    def _read(
        self, connection: Connection, request: ReadRequest, page: Stretch, looked_at: int = 0
    ) -> list[Stretch]:
        """Read pages from the table, of which the first may have begun in the archive."""
        limit, count, types, until = request.limit, request.count, request.types, request.until
        if request.after >= until:
            return [page]
        values = {"partition": request.partition, "after": request.after, "until": until}
        if types is not None:
            before = {"before": FILTERED_ROWS - looked_at - 1}
            window = self._window(self._rows.near.hint(connection))
            end = connection.scalar(window, values | before)
            values["until"] = until = page.until = until if end is None else end
        pages, taken, wanted = [page], 0, limit * count - page.rows
        with closing(self._chunks(connection, values, types, wanted)) as chunks:
            for rows in chunks:
                start, stop = 0, len(rows.texts)
                taken += stop
                while start < stop:
                    start = page.take(rows, start, limit, self._page_bytes, each=request.each)
                    if not page.full:
                        continue
                    page.end()
                    page.full = page.last is None or page.last[0] < until
                    if not page.full or len(pages) == count:
                        return pages
                    page = Stretch(until)
                    pages.append(page)
        page.end()
        # Where a page ends is not known if it ends where the statement does.
        return pages[:-1] if taken == wanted and len(pages) > 1 else pages

    def _chunks(
        self, connection: Connection, values: Mapping[str, Any], types: TypeFilter | None, left: int
    ) -> Generator[Rows]:
        """Yield rows in order, as many at a time as there is memory for."""
        hint, streams = self._rows.near.hint(connection), self._rows.may_stream(connection)
        query = self._statement(hint, types, streams)
        after, batch = values["after"], self._batch
        while left:
            portion = batch.stream(left) if streams else batch.rows(left, self._page_bytes)
            given = {**values, "after": after, "limit": portion}
            found = 0
            for rows in (
                self._rows.stream(connection, query, given, batch.chunk)
                if streams
                else [self._rows.read(connection, query, given)]
            ):
                self._note(rows)
                found += len(rows.texts)
                if rows.texts:
                    after = rows.position(len(rows.texts) - 1)
                    yield rows
            if found < portion:
                return
            left -= portion

    def _note(self, rows: Rows) -> None:
        """Remember how large events are; tell the log, once, of one too long for some consumers."""
        self._batch.learn(rows)
        largest = rows.largest
        if largest <= self.longest:
            return
        self.longest = largest
        if largest > LONG and not self._has_warned:
            self._has_warned = True
            sizes = [len(text or b"") for text in rows.texts]
            index = next(index for index, size in enumerate(sizes) if size > LONG)
            _log.warning(
                "The event at position %s has %d bytes: consumers in Go end a page without an "
                "error at a line above 65,535 bytes, and stay there. Publish smaller events, "
                "such as a reference to what is large.",
                rows.position(index),
                sizes[index],
            )

    def _build(self, hint: IndexHint, types: TypeFilter | None, streams: bool) -> Select[Any]:
        chosen = None
        if types is not None and self._types is not None:
            chosen = self._types.condition(types)
        near = self._rows.near
        return self._rows.select(
            lambda query: near.above(query, hint, given("after"), given("until")),
            # psycopg's own statements are planned with their parameters.
            bindparam("limit", type_=Integer) if streams else LIMIT,
            chosen=chosen,
        )

    def _build_window(self, hint: IndexHint) -> Select[Any]:
        """Find where a page ends that would look at too many rows."""
        source, near = self._source, self._rows.near
        query = select(source.position).select_from(source.table)
        query = near.above(query, hint, given("after"), given("until"))
        return query.offset(_BEFORE).limit(_ONE)

    def largest_partition(self, connection: Connection, until: int) -> int | None:
        """Return the largest partition that an event is in, up to one; None if there is none."""
        source, hint = self._source, self._rows.near.hint(connection)
        assert source.partition is not None  # noqa: S101 - only a feed with a column grows
        query = select(func.max(source.partition)).select_from(source.table)
        query = hint.through(query.where(source.partition <= until), source.table)
        largest: int | None = connection.scalar(query)
        return largest

    def refuse_unpublished(self, connection: Connection) -> None:
        """Refuse a table with events that are in no partition of the feed.

        Raises:
            ConfigurationError: there are some.
        """
        source, hint = self._source, self._rows.near.hint(connection)
        if source.partition is None:
            return
        for beside in outside(source.partition, self.ids):
            query = select(source.partition).select_from(source.table).where(beside)
            query = hint.through(query.order_by(source.partition), source.table).limit(_ONE)
            if row := connection.execute(query).first():
                raise ConfigurationError(
                    f"There is an event in partition {row[0]}, but the feed's partitions are "
                    f"{_listed(sorted(self.ids))}: no consumer sees it. Move it to one of them, "
                    "or give the feed more partitions."
                )

    def await_ends(self, connection: Connection, *, settled: int) -> None:
        """Refuse to call a closed partition read while its last events are not settled.

        Raises:
            Unavailable: some are not.
        """
        source, near = self._source, self._rows.near
        if source.partition is None or not self._closed:
            return
        found = None
        if source.waiting is not None:  # first, for they leave it for where the others look
            column = source.waiting.c.partition
            found = connection.execute(
                select(column).where(column.in_(self._closed)).limit(_ONE)
            ).first()
        query = select(_ONE).select_from(source.table)
        query = near.above(query, near.hint(connection), given("after"), HIGHEST).limit(_ONE)
        for number in self._closed:
            values = {"partition": number, "after": settled}
            found = found or connection.execute(query, values).first()
        if found:
            raise Unavailable(
                "The last events of a closed partition are not settled yet.", retry_after=1
            )


def _listed(partitions: list[int]) -> str:
    """Name partitions in a few characters, however many there are."""
    if len(partitions) > 1 and partitions == list(range(partitions[0], partitions[-1] + 1)):
        return f"{partitions[0]} to {partitions[-1]}"
    return ", ".join(map(str, partitions))
