"""Seal the events up to the horizon into an archive: read rows, write segments."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from types import NoneType
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Uuid

from zeroeventhub.databases.json_form import json_form
from zeroeventhub.databases.port import Database
from zeroeventhub.errors import ConfigurationError, FeedFailure
from zeroeventhub.extensions import COMPACTED
from zeroeventhub.protocol import Event
from zeroeventhub.publisher.archive_reader import ArchiveReader
from zeroeventhub.publisher.cursor import Place
from zeroeventhub.publisher.definition import Definition
from zeroeventhub.publisher.keyset import LIMIT, NearRows
from zeroeventhub.publisher.lookups import value_of
from zeroeventhub.publisher.mapping import UNREADABLE, as_moment, attribute_text, unreadable
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.rows import Row, RowQuery, check_json
from zeroeventhub.wire.ndjson import one_line

if TYPE_CHECKING:
    from zeroeventhub.archive.manifest import Description, Manifest
    from zeroeventhub.archive.segment_writer import SegmentWriter

_encode = msgspec.json.Encoder().encode


Columns = Mapping[str, Sequence[Any]]
"""Rows in the form of a segment: its columns by name."""


AT_FIRST, AT_ONCE = 10, 2_000
"""Rows that the first statement of a segment reads, and each other one, at most: after small events
as many large ones may follow, all of which are in memory at once. More make it no faster."""

BYTES_AT_ONCE = 16 * 1024 * 1024
"""Bytes of JSON that one statement reads, by the size of the rows before, unless a segment has
fewer."""

SEGMENT_EVENTS = 1_000_000
"""Events of a segment at most, by default."""

SEGMENT_BYTES = 256 * 1024 * 1024
"""Bytes of JSON at which a segment is closed, by default: it is built in memory."""


@dataclass(frozen=True, kw_only=True)
class SealOptions:
    """The options of `BoundFeed.seal`; ConfigurationError if a number is below 1."""

    older_than: timedelta | None
    segment_events: int
    segment_bytes: int
    least: int
    on_progress: Callable[[int], None]

    def __post_init__(self) -> None:
        """Refuse empty segments."""
        for name in ("segment_events", "segment_bytes", "least"):
            if not getattr(self, name) >= 1:  # nor NaN
                raise ConfigurationError(f"{name} has to be above zero.")


@dataclass(frozen=True)
class Sealed:
    """What was sealed.

    Attributes:
        segments: how many segments were added.
        events: how many events they hold.
        size: how many bytes they have.
        position: the position up to which the archive now has all events.
    """

    segments: int
    events: int
    size: int
    position: int


Call = Callable[..., Awaitable[Any]]
"""Call a function with arguments: see `answer` and `work` of a bound feed."""


_NUMBERS = {"partition", "version"}
"""The columns of a segment that are kept as numbers, and are no attributes of events."""


class SegmentRows:
    """Read rows of a table, of one partition or of all, in the form of a segment.

    Attributes:
        attributes: those of `id`, `type`, `key` and `time` that events have.
    """

    def __init__(
        self,
        near: NearRows,
        defined: Definition,
        database: Database,
        partition: ColumnElement[Any] | None,
    ) -> None:
        attributes, mapper = defined.attributes, defined.mapper
        self._near = near
        # Types as the table compares them, by which readers choose events.
        chosen = {
            name: database.unpadded(column) if name == "type" else column
            for name, column in attributes.items()
        }
        self._forms = {name: json_form(column, name) for name, column in chosen.items()}
        self._kind = defined.default_type or None
        self._placed = {} if partition is None else {"partition": partition}
        if defined.version is not None:
            self._placed["version"] = defined.version
        if "time" not in attributes and near.source.given_at is not None:
            self._placed["time"] = near.source.given_at
        also, placed = [form.select for form in self._forms.values()], self._placed.values()
        self._query = RowQuery(near, mapper, database, also=also, placed=[*placed])
        self._columns = 1 if self._query.is_json else len(mapper.columns)
        kinds = {"type"} if self._kind else set()
        self.attributes = {*self._forms, *self._placed, *kinds} - _NUMBERS

    def read(
        self, connection: Connection, after: int, until: int, limit: int, partition: int = 0
    ) -> tuple[Columns, Row | None]:
        """Return the first rows in (after, until], `limit` at most, and the last one of them.

        A reader of all partitions ignores `partition`.

        Raises:
            FeedFailure: a row cannot be published, or an attribute cannot be stored in a segment.
        """
        hint = self._near.hint(connection)
        query = self._query.select(lambda chosen: self._near.above(chosen, hint), LIMIT)
        values = {"partition": partition, "after": after, "until": until, "limit": limit}
        rows = self._query.fetch(connection, query, values)
        if not rows:
            return {"position": ()}, None
        columns = list(zip(*rows, strict=True))
        found: dict[str, Sequence[Any]] = {"position": columns[0]}
        names = [*self._forms, *self._placed]
        # One more column may follow, NULL if the event is deleted.
        attributes = dict(zip(names, columns[1 + self._columns :], strict=False))
        if self._kind is not None:
            attributes.setdefault("type", (None,) * len(rows))
        try:
            found |= {name: self._values(name, values) for name, values in attributes.items()}
        except UNREADABLE as error:
            place = f"A row after position {after}"
            raise unreadable(place, error, "has an attribute that cannot be kept") from error
        found |= self._events(rows, columns)
        raw = found["data"][-1]
        last = None if raw is None else Event(raw if isinstance(raw, bytes) else raw.encode())
        return found, (columns[0][-1], last)

    def texts(self, name: str, values: Sequence[str]) -> Sequence[str]:
        """Return texts of an attribute as segments have them; a UUID is written in several ways."""
        form = self._forms.get(name)
        if form is None or not isinstance(form.select.type, Uuid):
            return values
        found = (value_of(form.select, value) for value in values)
        return [str(one) for one in found if one is not None]

    def _values(self, name: str, values: Sequence[Any]) -> Sequence[Any]:
        """Convert the values of an attribute to their form in segments."""
        form = self._forms.get(name)
        if form is not None and form.convert is not None:
            values = [None if value is None else form.convert(value) for value in values]
        if name in _NUMBERS:
            return values
        if name == "time":
            return [None if value is None else as_moment(value) for value in values]
        if not {*map(type, values)} <= {str, NoneType}:
            values = [None if value is None else attribute_text(value) for value in values]
        if name == "type" and self._kind is not None:
            values = [value or self._kind for value in values]
        return values

    def _events(self, rows: list[Any], columns: list[tuple[Any, ...]]) -> dict[str, Sequence[Any]]:
        """Return the JSON of events, None for deleted ones, and their headers if any."""
        if not self._query.is_json:
            events = [self._query.event(row) for row in rows]
            headers = [
                _encode(event.headers) if event and event.headers else None for event in events
            ]
            data = [None if event is None else event.raw for event in events]
            return {"data": data, "headers": headers}
        texts = columns[1]
        raw = [None if text is None else text.encode() for text in texts]
        if not check_json(raw, columns[0].__getitem__):  # some have line ends
            texts = tuple(text and one_line(text.encode()).decode() for text in texts)
        return {"data": texts}


@dataclass(frozen=True, kw_only=True)
class Sealer:
    """Seal a feed's table into its archive."""

    archive: ArchiveReader
    defined: Definition
    rows: SegmentRows  # of all partitions
    reader: Reader

    async def seal(self, options: SealOptions, ask: Call, work: Call) -> Sealed:
        """Seal the table; see `BoundFeed.seal`."""
        segments = events = size = 0
        until = None
        archive = self.archive.archive
        while True:
            known = await work(self.archive.look)
            if until is None:
                until = await ask(self._sealable, known, options.older_than)
            if known.sealed >= until:
                break
            writer = archive.segment_writer()
            last = await self._collect(
                writer, options, ask, work, known=known, until=until, before=events
            )
            is_small = writer.places < min(options.least, options.segment_events)
            if last is None or (is_small and writer.size < options.segment_bytes):
                break
            written = await work(writer.finish, known.sealed, *last)
            described = await ask(self._description)
            if any(partition.closed for partition in described.info.partitions):
                # For readers of the archive alone, a closed partition ends at its last sealed
                # event: until all of these are sealed, they see the partitions of before.
                before = known.description
                described = before and msgspec.structs.replace(described, info=before.info)
            if await work(archive.add, written, self.archive.feed, described):
                segments, size = segments + 1, size + written.segment.size
                events += written.segment.events
        if segments:
            await work(archive.merge, options.segment_events, options.segment_bytes)
        manifest, described = archive.manifest, await ask(self._description)
        if (
            manifest.segments
            and manifest.description != described
            and await ask(self.reader.has_ends, manifest.sealed)
        ):
            await work(archive.describe, described)
        return Sealed(segments, events, size, archive.manifest.sealed)

    def _description(self, connection: Connection) -> "Description":
        """Return what the archive says of the feed, whose rows have been read."""
        from zeroeventhub.archive.manifest import Description  # noqa: PLC0415 - of another extra

        defined, info = self.defined, self.reader.checks.info
        return Description(
            # Of the extensions, only this says something of the events.
            replace(info, extensions=info.extensions & {COMPACTED}),
            tuple(sorted(defined.ids)),
            tuple(sorted(self.rows.attributes)),
            defined.mapper.recipe,
            self.reader.history.mark(connection).compacted,
        )

    async def _collect(
        self,
        writer: "SegmentWriter",
        options: SealOptions,
        ask: Call,
        work: Call,
        *,
        known: "Manifest",
        until: int,
        before: int,
    ) -> tuple[int, str] | None:
        """Collect the events of a segment; return its last position and the cursor after it."""
        after: tuple[int, str | None] = known.sealed, known.last
        last, places, rows = None, 0, AT_FIRST
        most_bytes = min(options.segment_bytes, BYTES_AT_ONCE)
        begun: Future[None] | None = None
        worker = ThreadPoolExecutor(1)
        try:
            while places < options.segment_events and writer.size < options.segment_bytes:
                limit = min(rows, AT_ONCE, options.segment_events - places)
                columns, found = await ask(self._rows, after, until, limit)
                if found is None:
                    break
                if begun is not None:
                    await work(begun.result)
                # In a thread while the next rows are read: its size lags by one step.
                begun = worker.submit(writer.add, columns)
                count, after, last = len(columns["position"]), found, found
                places += count
                size = sum(len(text) for text in columns["data"] if text)
                rows = 1 + count * most_bytes // max(size, 1)
                options.on_progress(before + places)
                if count < limit:
                    break
            if begun is not None:
                await work(begun.result)
        finally:
            worker.shutdown(wait=False)
        return last

    def erase(self, ids: Collection[str], keys: Collection[str]) -> int:
        """Erase events from the archive; see `BoundFeed.erase`."""
        is_text = isinstance(ids, str) or isinstance(keys, str)
        ids, keys = [*ids], [*keys]
        if is_text or not all(isinstance(one, str) for one in ids + keys):
            raise ConfigurationError("Give ids and keys of events as lists of text.")
        if not self.archive.archive.erasable:
            raise ConfigurationError(
                "Pages of this feed are marked as ones that never change, and caches keep them for "
                "a year: stop that by Archive(…, erasable=True) in all its processes, then erase."
            )
        for name, values in (("id", ids), ("key", keys)):
            # The archive stores columns only: not the position that is the id of other events.
            if values and name not in self.rows.attributes:
                raise ConfigurationError(
                    f"This feed has no column of {name}s by which its archive could find events: "
                    f"give it one, by {name}=…, before events are sealed."
                )
        ids, keys = self.rows.texts("id", ids), self.rows.texts("key", keys)
        self.archive.look()
        return self.archive.archive.erase(ids, keys, lambda position: str(Place(position)))

    def _sealable(
        self, connection: Connection, kept: "Manifest", older_than: timedelta | None
    ) -> int:
        """Return the position up to which the table can be sealed."""
        _, until = self.reader.removable(connection, older_than)
        trimmed = self.reader.history.mark(connection).trimmed
        if self.rows.read(connection, 0, trimmed, 1)[1] is not None:
            raise FeedFailure(
                f"The table's numbers start again below {trimmed}, up to which it was trimmed; or "
                "it is being restored, and can be sealed when that is done."
            )
        self._refuse_gap(connection, kept.sealed)
        if kept.last is not None:
            self.reader.vouch_in_table(connection, kept.last)
        return until

    def _rows(
        self, connection: Connection, after: tuple[int, str | None], until: int, limit: int
    ) -> tuple[Columns, tuple[int, str] | None]:
        """Return the first rows after a position and its cursor, and the last of both."""
        position, cursor = after
        columns, last = self.rows.read(connection, position, until, limit)
        # After the rows: a trim that deleted some of them has moved the mark by now.
        self._refuse_gap(connection, position)
        if cursor is not None:  # a failover may have replaced the history meanwhile
            self.reader.history.vouch_in_table(connection, cursor)
        return columns, None if last is None else (last[0], self.reader.history.cursor(*last))

    def _refuse_gap(self, connection: Connection, sealed: int) -> None:
        trimmed = self.reader.history.mark(connection).trimmed
        # If another process has sealed them meanwhile, the archive refuses this segment.
        if trimmed > sealed and not self.archive.holds(trimmed):
            raise ConfigurationError(
                f"The table was trimmed up to {trimmed}, and the archive ends at {sealed}: what "
                "lies between is in neither. Trim only what is sealed, as a feed with an archive "
                "does by itself; an archive has to begin with the first event."
            )
