"""Read rows in batches of a suitable size, make the JSON of events, and fill pages with them."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import repeat
from operator import attrgetter
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, case, select
from sqlalchemy.exc import DataError, DBAPIError

from zeroeventhub.databases.error_codes import is_late, is_transient
from zeroeventhub.databases.port import SEPARATOR, Database
from zeroeventhub.errors import FeedFailure
from zeroeventhub.protocol import Event, TypeFilter
from zeroeventhub.publisher.keyset import NearRows, join_events
from zeroeventhub.publisher.mapping import UNREADABLE, Mapper, Streamed, unreadable
from zeroeventhub.wire.ndjson import AFTER_EVENT, BEFORE_EVENT, BETWEEN_EVENTS, Lines, one_line

Row = tuple[int, Event | None]
"""A position and the event at it; None for an event that has been deleted."""

_SURROGATE = re.compile(rb"\\u[dD]")

_decode = msgspec.json.Decoder(msgspec.Raw).decode
_positions = msgspec.json.Decoder(list[int]).decode


class _Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    data: msgspec.Raw


_decode_lines = msgspec.json.Decoder(_Line).decode_lines
_data_of = attrgetter("data")


class Rows:
    """Rows in the order of their positions.

    Args:
        position: returns the position of a row by its index.
        texts: the JSON of each row's event; None for an event that has been deleted.
        headers: the headers of each row's event; None for a feed without headers.
        on_one_line: whether no text has line ends in its white space.

    Attributes:
        sizes: the bytes of each event; 0 for a deleted one.
        size: the bytes of all of them.
        has_deleted: whether some of the events have been deleted.
    """

    def __init__(
        self,
        position: Callable[[int], int],
        texts: Sequence[bytes | None],
        headers: Sequence[Mapping[str, str]] | None = None,
        *,
        on_one_line: bool = False,
    ) -> None:
        self.position, self.texts, self.headers = position, texts, headers
        self.on_one_line = on_one_line
        self.sizes: list[int]
        try:
            self.sizes = [*map(len, texts)]  # type: ignore[arg-type] # None is a TypeError
            self.has_deleted = False
        except TypeError:
            self.sizes = [*map(len, (text or b"" for text in texts))]
            self.has_deleted = True
        self.size = sum(self.sizes)

    @classmethod
    def of_events(cls, rows: list[Any], event: Callable[[Any], Event | None]) -> "Rows":
        """Turn rows, which begin with a position, into events; empty the list meanwhile."""
        positions, texts, headers = [], [], []
        rows.reverse()
        while rows:
            row = rows.pop()
            made = event(row)
            positions.append(row[0])
            texts.append(None if made is None else made.raw)
            headers.append({} if made is None else made.headers)
        return cls(positions.__getitem__, texts, headers if any(headers) else None)

    def event(self, index: int) -> Event | None:
        """Return the event of a row; None for a deleted one."""
        text = self.texts[index]
        if text is None:
            return None
        text = text if self.on_one_line else one_line(text)
        return Event(text, {} if self.headers is None else self.headers[index])

    def events(self, start: int, stop: int) -> Sequence[Event]:
        """Return the events of some of the rows, without the deleted ones."""
        found = map(self.event, range(start, stop))
        return [event for event in found if event is not None]


class JoinedRows(Rows):
    """Rows in order whose events are already lines of one text; see `Rows`."""

    def __init__(self, positions: list[int], lines: bytes, sizes: list[int]) -> None:
        self.position, self.sizes, self.size = positions.__getitem__, sizes, sum(sizes)
        self.has_deleted = 0 in sizes
        self._lines = lines

    def _place(self, index: int) -> tuple[int, int]:
        """Return where the line of a row begins, and how many lines are before it."""
        count = index - (self.sizes[:index].count(0) if self.has_deleted else 0)
        return sum(self.sizes[:index]) + len(BETWEEN_EVENTS) * count, count

    def event(self, index: int) -> Event | None:
        """Return the event of a row; None for a deleted one."""
        start = self._place(index)[0] + len(BEFORE_EVENT)
        size = self.sizes[index]
        return Event(self._lines[start : start + size]) if size else None

    def events(self, start: int, stop: int) -> Sequence[Event]:
        """Return the events of some of the rows, without the deleted ones."""
        (begin, first), (end, last) = self._place(start), self._place(stop)
        return Lines(self._lines[begin:end], last - first)


@dataclass(frozen=True)
class ReadRequest:
    """The range, types and size of the pages to read.

    Attributes:
        after: the position before them.
        until: the last position that they may hold.
        limit: the most rows that a page examines.
        count: the most pages to read; 1 with `types`.
        types: the types of the events to return; None for all.
        each: whether to return the position of each event.
        sees_start: whether to return the row at `after` too, if the partition has it: one snapshot
            then shows the pages and that their cursor is of the table's history.
    """

    partition: int
    after: int
    until: int
    limit: int
    count: int = 1
    types: TypeFilter | None = None
    each: bool = False
    sees_start: bool = False


@dataclass
class Stretch:
    """Hold the rows of one page.

    Attributes:
        until: the position up to which they were read.
        parts: the events, one part for each read.
        positions: their positions, if requested.
        last: the last row, which may be a deleted event; None for a page without rows.
        rows: the number of rows, including those of deleted events.
        size: bytes of the events.
        full: whether the page ended before `until`, because of its size or limit.
        start: the row before the page, if it was requested.
        follows: whether the statement that read its last row has seen that it follows `start`.
    """

    until: int
    parts: list[Sequence[Event]] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    last: Row | None = None
    rows: int = 0
    size: int = 0
    full: bool = False
    start: Row | None = None
    follows: bool = True
    _texts: list[bytes] = field(default_factory=list)  # the events that `end` joins
    _on_one_line: bool = True
    _last: tuple[Rows, int] | None = None

    def end(self) -> None:
        """Join the JSON of the events to one text, and free the rows."""
        if self._texts:
            self.parts.append(Lines.of(self._texts, on_one_line=self._on_one_line))
            self._texts = []
        if self._last is not None:
            rows, index = self._last
            self.last, self._last = (rows.position(index), rows.event(index)), None
            self.full = self.full and self.last[0] < self.until

    def take(self, rows: Rows, start: int, request: ReadRequest, room: int) -> int:
        """Add rows from an index on, as many as `room` bytes hold; return the first index left out.

        A first event that is larger still fits.
        """
        stop = min(len(rows.sizes), start + request.limit - self.rows)
        is_whole = stop - start == len(rows.sizes)
        size = self.size + (rows.size if is_whole else sum(rows.sizes[start:stop]))
        if size > room:
            last, stop, size, self.full = stop, start, self.size, True
            # The first event always fits, with the deleted ones before it.
            while stop < last and (not size or size + rows.sizes[stop] <= room):
                size += rows.sizes[stop]
                stop += 1
        if stop > start:
            if isinstance(rows, JoinedRows) or rows.headers is not None:
                self.end()  # the rows before these may have had no headers
                self.parts.append(rows.events(start, stop))
            else:
                texts = rows.texts[start:stop]
                self._on_one_line = rows.on_one_line and self._on_one_line
                self._texts += filter(None, texts) if rows.has_deleted else texts  # type: ignore[arg-type] # as just seen
            if request.each:
                self.positions += [rows.position(at) for at in range(start, stop) if rows.sizes[at]]
            self._last = rows, stop - 1
            self.rows += stop - start
            self.size = size
        self.full = self.full or self.rows == request.limit
        return stop


def check_json(texts: Sequence[bytes | None], place: Callable[[int], object]) -> bool:
    """Refuse a text that is not exactly one JSON value; return whether none has a line end.

    An event that has been deleted has no text; `place` returns the position of a text.
    """
    present = [text for text in texts if text is not None]
    if _check_lines(SEPARATOR.join(present), len(present)) is not None:
        return True
    for index, text in enumerate(texts):
        try:
            if text is not None:
                _decode(text)
        except UNREADABLE as error:
            raise unreadable(f"The row at position {place(index)}", error) from error
    return not any(b"\n" in text or b"\r" in text for text in present)


def _check_lines(joined: bytes, count: int) -> tuple[bytes, list[int]] | None:
    """Return the lines of texts joined by SEPARATOR, and the bytes of each event's JSON.

    Returns:
        None unless each text is one JSON value, with neither line ends nor white space around it.
    """
    if b"\n" in joined or b"\r" in joined:
        return None
    body = joined.replace(SEPARATOR, BETWEEN_EVENTS)
    lines = b"%b%b%b" % (BEFORE_EVENT, body, AFTER_EVENT) if count else b""
    try:
        found = _decode_lines(lines)
    except UNREADABLE:
        return None
    # A value is on one line: if there are as many objects as texts, each text is one object. The
    # sizes show whether the decoder has dropped bytes, such as `1,` of the text `1,"data":2`.
    sizes = [*map(len, map(_data_of, found))]
    is_whole = sum(sizes) + len(BETWEEN_EVENTS) * count == len(lines)
    return (lines, sizes) if len(found) == count and is_whole else None


def check_surrogates(texts: Sequence[bytes | None], place: Callable[[int], object]) -> bool:
    """Refuse documents of PostgreSQL's type json with half a pair of surrogates; see `check_json`.

    PostgreSQL refuses any other invalid JSON itself, and in jsonb half a pair as well.
    """
    try:
        joined = b"".join(texts)  # type: ignore[arg-type] # None is a TypeError
    except TypeError:
        joined = b"".join(filter(None, texts))
    if b"\\" in joined and _SURROGATE.search(joined):  # the first test is much quicker
        return check_json(texts, place)
    return b"\n" not in joined and b"\r" not in joined


MANY = 32
"""Up to so many positions, reading row by row is faster than joining the rows."""

FIRST = 8
"""How many rows the first batch has, before any row's size is known."""

GROWTH = 8
"""By what factor a batch may be larger than the largest one so far."""

CHUNK = 250
"""How many rows of a stream are in memory at once, at most: larger chunks are not faster."""

LARGE = 1024 * 1024
"""Bytes of a batch, roughly: for longer texts the database and Python map new memory each time,
which costs more than the statements that larger batches save."""

STATEMENT = 32 * LARGE
"""Bytes that one statement reads as a stream, roughly."""


class BatchSize:
    """Choose batch sizes by the size of the rows read so far.

    A batch size never changes a page, only the number of statements that read it. Threads may
    share the object: they overwrite estimates only.
    """

    def __init__(self) -> None:
        self._largest = 0
        self._usual = 1
        self._most = 1

    def rows(self, left: int, room: int) -> int:
        """Return how many rows to fetch: `left`, or a quarter of those that fit into `room` bytes.

        A quarter, as rows are briefly in memory several times: the driver's copy and Python's. The
        room is below 0 after an event that is larger than a page.
        """
        if not self._largest:
            return min(left, FIRST)
        fitting = max(0, room) // self._largest
        if fitting < left:
            fitting = fitting // 4 + 1
        return min(left, fitting, self._most * GROWTH, LARGE // self._usual + 1)

    def stream(self, left: int) -> tuple[int, int]:
        """Return how many rows a statement streams, and how many of them are in memory at once."""
        if not self._largest:
            return min(left, 1_000), FIRST
        return min(left, STATEMENT // self._usual + 1), min(CHUNK, LARGE // self._largest + 1)

    def learn(self, rows: Rows) -> int:
        """Update the estimates from a batch of rows; return the bytes of the largest event.

        The effect of a large row on later batches fades.
        """
        largest = max(rows.sizes, default=0)
        if count := len(rows.sizes):
            self._largest = max(largest, self._largest // 2, 1)
            self._usual = max(rows.size // count, 1)
            self._most = max(self._most, count)
        return largest


class RowQuery:
    """Select positions and their events.

    It `streams` if the driver returns rows while the database still reads, and `joins` events to
    one text if the database does that more quickly. The columns `also` of the event come after the
    others, and last those of the position that are `placed`.

    Attributes:
        is_json: whether the database makes the JSON of events.
        may_stream: returns whether `stream` can read from a connection.
    """

    def __init__(
        self,
        near: NearRows,
        mapper: Mapper,
        database: Database,
        *,
        streams: bool = False,
        joins: bool = False,
        also: Sequence[ColumnElement[Any]] = (),
        placed: Sequence[ColumnElement[Any]] = (),
    ) -> None:
        self.near = near
        self._also = [each.label(f"a{index}") for index, each in enumerate(also)]
        self._placed = [each.label(f"p{index}") for index, each in enumerate(placed)]
        self.source = near.source
        self._mapper = mapper
        self._json = mapper.json
        self._check: Callable[[Sequence[bytes | None], Callable[[int], int]], bool] = check_json
        self._streamed = Streamed([])
        if database.makes_json:
            is_beside = near.source.events is None
            position = near.source.position if is_beside else None
            self._json = mapper.text(position)
            # What PostgreSQL itself makes of jsonb and other types is JSON on one line.
            is_safe = not mapper.has_stored_json
            self._check = (lambda _texts, _place: True) if is_safe else check_surrogates
            streams = streams and self._json is not None
            self._streamed = mapper.streamed(position) if streams else self._streamed
        self.is_json = self._json is not None
        self._joins = joins and self.is_json
        gaps = near.source.events is not None
        self._joined = lru_cache(maxsize=100)(partial(database.join_rows, gaps=gaps))
        self._database = database
        self.may_stream = database.may_stream if streams else lambda _connection: False
        self._compiled = lru_cache(maxsize=100)(database.compile_stream)

    def select(
        self,
        choose: Callable[[Select[Any]], Select[Any]],
        limit: ColumnElement[int],
        *,
        chosen: ColumnElement[bool] | None = None,
        backwards: bool = False,
        streams: bool = False,
    ) -> Select[Any]:
        """Build a statement for `read`, or one for `stream`.

        `choose` restricts and orders a query for positions, and `chosen` is a condition on events.
        """
        source = self.source
        columns: list[Any] = [self._json] if self._json is not None else self._mapper.columns
        columns = self._streamed.columns if streams else columns
        columns = [each.label(f"c{index}") for index, each in enumerate(columns, 1)]
        columns = [*columns, *self._also]
        query: Select[Any]
        if source.events is None:
            query = select(source.position.label("c0"), *columns, *self._placed)
            query = query.select_from(source.table)
            return choose(query if chosen is None else query.where(chosen)).limit(limit)
        # The positions in a subquery, so that no plan joins more than these.
        order = [source.position.label("position")]
        if source.partition is not None:
            order.insert(0, source.partition.label("partition"))
        references = [source.table.c[name] for name in source.key]
        positions = choose(select(*order, *references, *self._placed).select_from(source.table))
        page = (positions if chosen is not None else positions.limit(limit)).subquery("page")
        placed = [page.c[each.name] for each in self._placed]
        isouter = chosen is None or not source.lateral
        joined, columns, presence = join_events(source, page, columns, chosen, isouter=isouter)
        condition = None
        if chosen is not None and not source.lateral:
            # A deleted event has a NULL type, which a filter for the default type would accept.
            # Excluded in a CASE, so that the database still starts its join from the positions.
            condition = case((presence.is_not(None), chosen))
        # A deleted event has NULLs.
        if self._json is None:
            columns = [*columns, *placed, presence.label("presence")]
        else:
            json, *also = columns
            columns = [case((presence.is_not(None), json)).label("c1"), *also, *placed]
        query = select(page.c.position.label("c0"), *columns).select_from(joined)
        query = query if condition is None else query.where(condition)
        # By all columns of the positions' order, so that the database need not sort.
        ordered = [page.c[each.name] for each in order]
        query = query.order_by(*(each.desc() if backwards else each for each in ordered))
        return query.limit(limit)

    def stream(
        self, connection: Connection, query: Select[Any], values: Mapping[str, Any], size: int
    ) -> Iterator[Rows]:
        """Read rows by one statement, and yield them while the database still reads the next.

        The connection is one for which `may_stream` returns true; `size` rows are in memory at
        once.
        """
        compiled = self._compiled(query)
        _, head, before, between = self._streamed
        try:
            for count, value in self._database.stream(connection, compiled, values, size):
                texts = [*map(value, range(count), repeat(1))]
                position = partial(_position, value)
                on_one_line = self._check(texts, position)
                if head is not None:
                    heads = map(value, range(count), repeat(head))
                    pieces = zip(repeat(before), heads, repeat(between), texts, repeat(b"}"))
                    texts = [*map(b"".join, pieces)]
                yield Rows(position, texts, on_one_line=on_one_line)
        except DataError as error:
            raise _unreadable_after(values, error) from error

    def read(self, connection: Connection, query: Select[Any], values: Mapping[str, Any]) -> Rows:
        """Read rows by one statement, or by another where the database cannot join them."""
        if self._joins and values["until"] - values["after"] > MANY:
            try:
                found = _parse_joined(*self.fetch(connection, self._joined(query), values)[0])
            except DBAPIError as error:
                # What joins them needs more than what reads them, such as room on the disk.
                if is_late(error) or is_transient(error):
                    raise
                found = None
            if found is not None:
                return found
        rows = self.fetch(connection, query, values)
        if not rows:
            return Rows([].__getitem__, [])
        if self._json is None:
            return Rows.of_events(rows, self.event)
        positions = [row[0] for row in rows]
        texts = [None if row[1] is None else row[1].encode() for row in rows]
        on_one_line = self._check(texts, positions.__getitem__)
        return Rows(positions.__getitem__, texts, on_one_line=on_one_line)

    def row(self, connection: Connection, query: Select[Any], position: int) -> Row | None:
        """Read the one row of a statement with the parameter `position`, if there is one."""
        rows = self.read(connection, query, {"position": position})
        return (rows.position(0), rows.event(0)) if rows.sizes else None

    @staticmethod
    def fetch(connection: Connection, query: Select[Any], values: Mapping[str, Any]) -> list[Any]:
        """Read rows without turning them into events."""
        try:
            return list(connection.execute(query, values).all())
        except UNREADABLE as error:
            raise _unreadable_after(values, error) from error

    def event(self, row: Any) -> Event | None:
        """Make the event of a row; return None for a deleted one."""
        if self.source.events is not None and row[-1] is None:
            return None
        return self._mapper.event(row)


def _parse_joined(places: str | None, joined: str, size: int | None, gaps: str = "") -> Rows | None:
    """Return the rows of joined positions and events; None where these may not be all of them."""
    if places is None:
        return Rows([].__getitem__, [])
    text = joined.encode()
    # Each text has a separator between two rows, unless the database has cut it.
    if size is not None and len(places) + len(text) != size + 2 * places.count(","):
        return None
    positions = _positions(f"[{places}]")
    if positions != sorted(positions):  # SQLite does not promise the order, though it keeps it
        return None
    if "1" not in gaps and (found := _check_lines(text, len(positions))) is not None:
        return JoinedRows(positions, *found)
    texts: list[bytes | None] = [*text.split(SEPARATOR)]
    if len(texts) != len(positions):  # one holds a separator itself, which is no JSON
        return None
    if gaps:
        texts = [None if gap == "1" else text for gap, text in zip(gaps, texts, strict=True)]
    check_json(texts, positions.__getitem__)
    present = [one_line(text) for text in texts if text is not None]
    sizes = [0 if text is None else len(text) for text in texts]
    return JoinedRows(positions, Lines.of(present, on_one_line=True).text, sizes)


def _unreadable_after(values: Mapping[str, Any], error: Exception) -> FeedFailure:
    place = values.get("after", values.get("position"))
    return unreadable(f"A row at position {place} or after it", error)


def _position(value: Callable[[int, int], Any], index: int) -> int:
    return int(value(index, 0))
