"""Restore a feed's table from its archive: write rows, and compare them with what was sealed.

While rows are missing, the feed's mark says that they were trimmed: readers get them from the
archive, or 410 from a feed without one, and skip none. The mark is lowered once all rows are there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Column, ColumnElement, Connection, Engine, func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import Label, TypeCoerce
from sqlalchemy.types import JSON

from zeroeventhub.databases import database_of
from zeroeventhub.databases.bulk_insert import ColumnForm, Unfit, insert_columns, table_form
from zeroeventhub.databases.error_codes import is_duplicate
from zeroeventhub.errors import ConfigurationError, FeedFailure, Unavailable
from zeroeventhub.publisher.archive_reader import ArchiveReader
from zeroeventhub.publisher.cursor import HIGHEST_POSITION, START
from zeroeventhub.publisher.definition import Definition
from zeroeventhub.publisher.keyset import NearRows
from zeroeventhub.publisher.mapping import UNREADABLE, unreadable
from zeroeventhub.publisher.reader import Reader
from zeroeventhub.publisher.retention import MarkTable
from zeroeventhub.publisher.sealing import SegmentRows

if TYPE_CHECKING:
    from zeroeventhub.archive.manifest import Manifest, Segment

SKIPPED = 1_000_000
"""Positions that stay free after the last sealed one, by default."""

WORKERS = 4
"""Row groups that are written at once, by default."""


@dataclass(frozen=True)
class Restored:
    """What was restored.

    Attributes:
        events: how many events were compared with the archive, byte for byte.
        written: how many of them this run has written; an earlier one has written the others.
        after: the position after which the table has all events; earlier ones are in the archive.
        until: the position of the last restored event.
        cursors: how many cursors of the archive are those of the table as well.
    """

    events: int
    written: int
    after: int
    until: int
    cursors: int


@dataclass
class _Count:
    """Count the events that were compared and written; `erased` is the last erased position."""

    events: int = 0
    written: int = 0
    erased: int = 0


@dataclass(frozen=True, kw_only=True)
class Restorer:
    """Restore a feed's table from its archive."""

    archive: ArchiveReader
    defined: Definition
    rows: SegmentRows  # of one partition
    all_near: NearRows
    reader: Reader
    marks: MarkTable

    def begin(self, engine: Engine, skipped: int) -> None:
        """Let the feed go on some positions after what is sealed, from an empty table."""
        manifest = self.archive.look()
        if not manifest.segments:
            raise ConfigurationError("The archive has no events.")
        with engine.begin() as connection:
            self._check(connection)
            self.marks.install(connection)
            is_begun = self._is_begun(connection, manifest)
            self.marks.thin(connection, manifest.compacted)
        if is_begun:
            return
        # Readers may have read events that were lost before they were sealed. If new events got
        # their positions, a reader's cursor might fit both.
        position = self.archive.archive.continue_after(skipped)
        with engine.begin() as connection:
            self.reader.ordering.continue_after(connection, position)
        with engine.begin() as connection:
            self.marks.locked(connection)
            if not self._is_begun(connection, manifest):
                self.marks.put(connection, manifest.sealed, manifest.segments[-1].last)

    def _is_begun(self, connection: Connection, manifest: "Manifest") -> bool:
        trimmed = self.marks.read(connection).trimmed
        if trimmed > manifest.sealed:
            raise ConfigurationError(
                f"The table was trimmed up to {trimmed}, and the archive ends at "
                f"{manifest.sealed}: it is not the archive of this table."
            )
        if not trimmed and self.all_near.first(connection, 0, HIGHEST_POSITION) is not None:
            raise ConfigurationError(
                "The table has events, and none was trimmed: there is nothing to restore. "
                "A table is restored before anything is written to it."
            )
        return trimmed > 0

    def restore(
        self,
        engine: Engine,
        since: datetime | None,
        workers: int,
        on_progress: Callable[[int, int], None],
    ) -> Restored:
        """Write the rows that are missing, compare all, and lower the mark."""
        archive = self.archive.archive
        manifest = archive.manifest
        with engine.connect() as connection:
            until = self.marks.read(connection).trimmed
            after = min(_after(manifest, since), until)
            begun = self.all_near.first(connection, 0, after)
        if begun is not None:
            # An earlier run, for which older segments were young enough, has written some of them.
            after = manifest.segments[manifest.at(begun)].after
        segments = [one for one in manifest.segments if one.upto > after and one.after < until]
        total, count = sum(one.events for one in segments), _Count()
        if database_of(engine).single_writer:
            workers = 1
        else:  # of two that write at once, SERIALIZABLE would give up one
            engine = engine.execution_options(isolation_level="READ COMMITTED")
        pool = ThreadPoolExecutor(workers, "restore")
        pending: set[Future[_Count]] = set()
        try:
            for segment in segments:
                for number in range(len(archive.load(segment, "footer").entries)):
                    pending.add(pool.submit(self._group, engine, segment, number, after, until))
                    if len(pending) > workers:
                        pending = _add(count, pending)
                        on_progress(count.events, total)
            while pending:
                pending = _add(count, pending)
                on_progress(count.events, total)
        finally:
            pool.shutdown(cancel_futures=True)
        ends = [one.last for one in segments if one.upto <= until]
        done = Restored(count.events, count.written, after, until, len(ends))
        earliest = next((one.last for one in manifest.segments if one.upto == after), START)
        with engine.begin() as connection, database_of(engine).as_published(connection):
            self._finish(connection, done, earliest, count.erased)
            for cursor in ends:
                self.reader.history.vouch_in_table(connection, cursor)
        return done

    def _group(
        self, engine: Engine, segment: "Segment", number: int, after: int, until: int
    ) -> _Count:
        """Write the rows of a row group in one transaction, unless they are there, and compare."""
        rows, erased = self.archive.archive.load(segment, number).rows(after, until)
        if not (events := len(rows)):
            return _Count(erased=erased)
        positions, partition = rows.column("position"), rows.column("partition")[0]
        here = f"from position {positions[0]} to {positions[-1]}"
        with engine.begin() as connection, database_of(engine).as_published(connection):
            found = self._read_rows(connection, rows)
            is_missing = not len(found)
            if is_missing:
                try:
                    self._write(connection, rows)
                except IntegrityError as error:
                    if not is_duplicate(error):
                        raise
                    raise FeedFailure(
                        "An event that was appended since this restore began has a unique value, "
                        "such as an id or a version of a key, of one that is still missing, "
                        f"{here}: delete the new one, and run this again. Append to the log only "
                        "when it is done."
                    ) from error
                except (*UNREADABLE, Unfit) as error:
                    place = f"A row of partition {partition} {here}"
                    raise unreadable(place, error, "does not fit into the table") from error
                found = self._read_rows(connection, rows)
            if self.defined.version is None and rows.column("version").null_count < events:
                raise ConfigurationError(
                    "The archive has versions of keys: name the column that holds them, as the "
                    "feed did that was sealed."
                )
            for name in rows.schema.names:
                if not rows.column(name).equals(found.column(name)):
                    raise FeedFailure(
                        f"The rows of partition {partition} {here} differ from the archive in "
                        f"their {name}."
                    )
        return _Count(events, events if is_missing else 0, erased)

    def _read_rows(self, connection: Connection, rows: Any) -> Any:
        """Read the table's rows from the first position of the given rows to their last."""
        from zeroeventhub.archive.segment_writer import as_batch  # noqa: PLC0415 - of another extra

        first, last = rows.column("position")[0].as_py(), rows.column("position")[-1].as_py()
        partition = rows.column("partition")[0].as_py()
        return as_batch(self.rows.read(connection, first - 1, last, len(rows) + 1, partition)[0])

    def _finish(self, connection: Connection, done: Restored, earliest: str, erased: int) -> None:
        """Check the number of rows, and lower the mark; rows may be erased up to a position."""
        if self.marks.locked(connection).trimmed != done.until:
            raise Unavailable("The table was trimmed or restored meanwhile: restore it again.")
        source = self.all_near.source
        there = source.position > done.after, source.position <= done.until
        query = select(func.count()).select_from(source.table).where(*there)
        if (rows := connection.scalar(query)) != done.events:
            raise FeedFailure(
                f"The table has {rows} events from position {done.after + 1} to {done.until}, and "
                f"the archive {done.events}."
            )
        if done.after < done.until:
            self.marks.put(connection, done.after, earliest)
        if erased:
            self.marks.thin(connection, erased)

    def _check(self, connection: Connection) -> None:
        """Refuse a table with rows that cannot be made from events, or not at their positions."""
        if reason := self.reader.ordering.unrestorable:
            raise ConfigurationError(reason)
        mapper, events = self.defined.mapper, self.defined.events
        for name, expression in mapper.data_columns.items():
            if _column_of(expression) is None:
                raise ConfigurationError(
                    f"{name or 'The data'} of events is made by the expression {expression}: only "
                    "what columns hold can be restored."
                )
        written = [*events.key, events.partition, self.defined.version]
        written += [*self.defined.attributes.values(), *mapper.data_columns.values()]
        written += mapper.header_columns.values()
        written += mapper.attribute_columns.values() if mapper.envelope else []
        names = {column.name for one in written if (column := _column_of(one)) is not None}
        for name, form in table_form(events.table, connection.dialect).columns.items():
            if form.default is msgspec.NODEFAULT and name not in names:
                raise ConfigurationError(
                    f"Column {name!r} of table {events.table.fullname!r} needs a value that no "
                    "event holds: give it a default, or let it be NULL."
                )

    def _write(self, connection: Connection, rows: Any) -> None:
        """Insert rows of a segment, whose events are not erased."""
        defined, mapper, events = self.defined, self.defined.mapper, self.defined.events
        numbered = _column_of(defined.version)
        if numbered is not None and not numbered.nullable and rows.column("version").null_count:
            raise ConfigurationError(
                f"The archive was sealed by an earlier release, without versions of keys: let "
                f"{numbered} be NULL, and number the events when they are restored."
            )
        forms = table_form(events.table, connection.dialect).columns
        found: dict[str, Sequence[Any]] = {}

        def put(
            expression: ColumnElement[Any] | None,
            values: Iterable[Any],
            convert: Callable[[ColumnForm, Any], Any] = _value,
        ) -> None:
            column = _column_of(expression)
            # The database computes the others; the comparison shows whether they are the same.
            if column is not None and column.name in forms:
                found[column.name] = [convert(forms[column.name], value) for value in values]

        texts = rows.column("data").to_pylist()
        if mapper.envelope is not None:
            members = [_members(text) for text in texts]
            for name, column in mapper.attribute_columns.items():
                put(column, [_text(each, name) for each in members])
            texts = [str(each["data"], "utf-8") for each in members]
        for name, column in defined.attributes.items():
            put(column, rows.column(name).to_pylist())
        # After these, which have the default type for NULL, and NULL for an empty text.
        headers = [_members(text or "{}") for text in rows.column("headers").to_pylist()]
        for name, column in mapper.header_columns.items():
            put(column, [_text(each, name) for each in headers])
        if "" in mapper.data_columns:
            column = mapper.data_columns[""]
            put(column, texts, partial(_from_json, column))
        else:
            members = [_members(text) for text in texts]
            for name, column in mapper.data_columns.items():
                values = [str(each[name], "utf-8") for each in members]
                put(column, values, partial(_from_json, column))
        put(defined.version, rows.column("version").to_pylist())
        put(events.partition, rows.column("partition").to_pylist())
        put(events.position, rows.column("position").to_pylist())
        insert_columns(connection, events.table, found)


_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _text(members: Mapping[str, msgspec.Raw], name: str) -> str | None:
    """Return the text of a member of a JSON object; None if it is not there."""
    return msgspec.json.decode(members[name], type=str) if name in members else None


def _column_of(expression: ColumnElement[Any] | None) -> Column[Any] | None:
    """Return the column that an expression only names, or declares to have a type."""
    while isinstance(expression, Label | TypeCoerce):
        expression = expression.element if isinstance(expression, Label) else expression.clause
    return expression if isinstance(expression, Column) else None


def _value(form: ColumnForm, value: Any) -> Any:
    """Convert an attribute, which is a text, a number or a time, to the form of its column."""
    if value is None:
        return None
    if isinstance(value, datetime) and form.form is str:
        return value.isoformat()
    if form.form is not Any and not form.is_json:
        value = msgspec.convert(value, form.form, strict=False)
    return value if form.from_python is None else form.from_python(value)


def _from_json(expression: ColumnElement[Any], form: ColumnForm, text: str) -> Any:
    """Convert JSON to the form of its column, which may hold it as text."""
    if form.is_json:
        return form.from_json and form.from_json(text.encode())
    if isinstance(expression.type, JSON):
        return text
    value = msgspec.json.decode(text, type=form.form if form.form is Any else form.form | None)
    return value if value is None or form.from_json is None else form.from_json(value)


def _after(manifest: "Manifest", since: datetime | None) -> int:
    """Return the position after which events are restored: the end of a segment."""
    if since is None:
        return 0
    young = (one.after for one in manifest.segments if one.latest is None or one.latest > since)
    return next(young, manifest.sealed)


def _add(count: _Count, pending: set[Future[_Count]]) -> set[Future[_Count]]:
    """Wait for a row group, and add up those that are done; return those that are not."""
    done, rest = wait(pending, return_when=FIRST_COMPLETED)
    for one in done:
        found = one.result()
        count.events += found.events
        count.written += found.written
        count.erased = max(count.erased, found.erased)
    return rest
