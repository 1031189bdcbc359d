"""Check what a feed needs of its database: before the first read, and then once a minute."""

import logging
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Literal

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    DateTime,
    Select,
    Table,
    func,
    inspect,
    literal_column,
    select,
)
from sqlalchemy.exc import NoSuchTableError, SQLAlchemyError

from zeroeventhub.databases import database_of
from zeroeventhub.databases.statements import unique_columns
from zeroeventhub.errors import ConfigurationError, FeedFailure
from zeroeventhub.feed import ArchiveMiss
from zeroeventhub.protocol import FeedInfo
from zeroeventhub.publisher.archive_reader import ArchiveReader
from zeroeventhub.publisher.cursor import HIGHEST_POSITION
from zeroeventhub.publisher.definition import Definition
from zeroeventhub.publisher.keyset import NearRows, NeededIndex
from zeroeventhub.publisher.lookups import value_of
from zeroeventhub.publisher.ordering import Ordering
from zeroeventhub.publisher.page_query import PageQuery
from zeroeventhub.publisher.retention import MarkTable
from zeroeventhub.publisher.rows import ReadRequest


@dataclass(frozen=True)
class Finding:
    """One result of a check of a feed's table.

    Attributes:
        level: "ok"; "warning" if it makes the feed slow or is probably a mistake; "error" if the
            feed cannot be read.
        subject: the subject in one word, such as "index".
        sentence: what the check found, and what the operator should do.
        statement: the SQL statement that repairs it; None if there is none.
    """

    level: Literal["ok", "warning", "error"]
    subject: str
    sentence: str
    statement: str | None = None


GROWTH = 1_000
"""How many partitions a feed grows by at once, at most: a larger partition number counts as a
writer's mistake."""

SMALL = 5_000
"""How many events a table has before the log warns of a missing index."""

CHECK_INTERVAL = 60.0
"""Seconds between two checks."""

_log = logging.getLogger("zeroeventhub.publisher")


@dataclass(kw_only=True)
class Checkup:
    """Check everything that a feed needs before it is read, and again from time to time.

    Attributes:
        info: the feed's description; a feed that finds its partitions in the table gets others.
        near: the searches whose index is chosen again at each check.
        indexes: the indexes that the feed's queries need, first the one for pages.
        due_at: when the table has to be checked again, by the monotonic clock.
        unpublished: a sentence about an event that is in no partition of the feed; None if the
            last check found none.
    """

    defined: Definition
    info: FeedInfo
    ordering: Ordering
    pages: PageQuery
    near: Collection[NearRows]
    indexes: Sequence[NeededIndex]
    marks: MarkTable | None
    archive: ArchiveReader | None
    due_at: float = -math.inf
    unpublished: str | None = None
    _types: dict[str, str] = field(default_factory=dict)
    _passed: bool = False

    @property
    def table(self) -> Table:
        """Return the table of the events."""
        return self.defined.events.table

    def run(self, connection: Connection) -> None:
        """Check what the feed needs."""
        before, due_at = self.due_at, monotonic() + CHECK_INTERVAL
        if self._passed:
            self.due_at = due_at  # so that concurrent readers do not check as well
        try:
            self._refuse(connection)
            if not self._passed:
                self._warn(connection)
                self._passed, self.due_at = True, due_at
        except BaseException:
            self.due_at = before
            raise

    def refuse_changes(self, connection: Connection) -> None:
        """Refuse a table whose columns have changed type since the first check.

        With another type, the same events may have another JSON form, and no cursor's digest fits.
        """
        found = self._find_columns(connection)
        if changed := [name for name, kind in self._types.items() if found[name] != kind]:
            raise FeedFailure(
                f"The SQL type of {', '.join(map(repr, changed))} in table {self.table.fullname!r} "
                "has changed since this feed was started, which may change the JSON of its events: "
                "change it back, or restart the feed."
            )

    def _find_columns(self, connection: Connection) -> dict[str, str]:
        """Return the types of the columns by name, and remember those of the first call."""
        schema = connection.schema_for_object(self.table)
        try:
            columns = inspect(connection).get_columns(self.table.name, schema=schema)
        except NoSuchTableError:
            raise ConfigurationError(f"There is no table {self.table.fullname!r}.") from None
        types = {column["name"]: repr(column["type"]) for column in columns}
        used = self.defined.used
        if missing := [name for name in used if name not in types]:
            raise ConfigurationError(
                f"Table {self.table.fullname!r} has no column {', '.join(map(repr, missing))}, "
                "which the feed reads."
            )
        found = {name: types[name] for name in used}
        self._types = self._types or found
        return found

    def _refuse(self, connection: Connection) -> None:
        """Refuse a table that cannot be published.

        An event outside the feed's partitions does not stop them: it is logged as an error.
        """
        self.ordering.check(connection)
        self._check_columns(connection)
        self._check_versions(connection)
        if self.marks is not None:
            self.marks.check(connection)
        self.unpublished = None
        try:
            self.refuse_unpublished(connection)
        except ConfigurationError as error:
            self.unpublished = str(error)
            _log.error("%s", self.unpublished)

    def refuse_unpublished(self, connection: Connection) -> None:
        """Let the feed grow with its table; refuse an event that is in no partition of it."""
        if self.defined.grows:
            before = len(self.pages.ids)
            largest = self.pages.largest_partition(connection, before + GROWTH)
            trimmed = () if self.marks is None else self.marks.read(connection).partitions
            count = max(largest or 0, *trimmed, *self.pages.ids) + 1
            if count > before:
                self._grow(count)
        self.pages.refuse_unpublished(connection)

    def _grow(self, count: int) -> None:
        """Add partitions, by whole assignments: other threads read these attributes."""
        self.pages.ids = range(count)
        if self.marks is not None:
            self.marks.partitions = range(count)
        # Last: as soon as consumers see the new token, they request the new partitions.
        self.info = replace(FeedInfo.of(count), extensions=self.info.extensions)

    def findings(self, connection: Connection) -> list[Finding]:
        """Return the results of all checks, up to the first that makes the rest impossible."""
        dialect, database = connection.dialect, database_of(connection)
        version = ".".join(map(str, dialect.server_version_info or ()))
        found = [Finding("ok", "server", f"This is {database.title(dialect)} {version}.")]
        checks: dict[str, tuple[Callable[[Connection], None], str]] = {
            "columns": (self._check_columns, "The table has all columns that the feed reads."),
            "ordering": (self.ordering.check, "The order of events can be kept."),
            "partitions": (self.refuse_unpublished, "Every event is in a partition of the feed."),
            "events": (self._read_first, "The first event of each partition has a JSON form."),
        }
        if self.defined.unique:
            checks["versions"] = self._check_versions, "No two events of a key have one version."
        if self.marks is not None:
            checks["retention"] = self._check_trimmed, "What was trimmed is known."
        for subject, (check, sentence) in checks.items():
            try:
                check(connection)
                found.append(Finding("ok", subject, sentence))
            except (ConfigurationError, FeedFailure) as error:
                found.append(Finding("error", subject, str(error)))
                if subject == "columns":
                    return found
            except SQLAlchemyError as error:
                reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
                found.append(Finding("error", subject, f"The database refused: {reason}"))
                return found
        indexes = (self._find_index(connection, index) for index in self.indexes)
        return [*found, *self._warnings(connection), *indexes]

    def _warnings(self, connection: Connection) -> Iterator[Finding]:
        """Yield what does not keep the feed from being read."""
        database = database_of(connection)
        for warning in (*database.warnings(connection), *self.ordering.warnings(connection)):
            yield Finding("warning", *warning)
        if database.hides_rows(connection, self.table):
            yield Finding("warning", "policies", _HIDDEN)
        if not self.defined.is_mutable and (sign := _sign_of_updates(connection, self.table)):
            yield Finding("warning", "updates", f"{sign} {_ROWS_LAST}")
        time = self.defined.events.time
        if time is not None and not isinstance(time.type, DateTime):
            sentence = (
                f"The time of events is {time.type}, so readers cannot start at a time: "
                "declare the column as a timestamp."
            )
            yield Finding("warning", "time", sentence)
        shown = self.defined.attributes.get("id") if self.defined.envelope else None
        if shown is not None:
            for sentence in self._of_ids(connection, shown):
                yield Finding("warning", "id", sentence)

    def _of_ids(self, connection: Connection, identity: ColumnElement[Any]) -> Iterator[str]:
        try:
            value_of(identity, "")
        except ConfigurationError as error:
            yield f"{error} Clients of HTTP feeds, who ask by it, get 500 after their first page."
        schema = connection.schema_for_object(self.table)
        columns = inspect(connection).get_columns(self.table.name, schema=schema)
        nullable = {one["name"] for one in columns if one["nullable"]}
        if isinstance(identity, Column) and identity.name in nullable and not identity.primary_key:
            yield (
                f"An event whose {identity.name!r} is NULL has its position for an id, by which no "
                "HTTP feed finds it, and which may be the id of another event: the inbox of a "
                "consumer then skips one of them. Declare the column NOT NULL."
            )

    def _warn(self, connection: Connection) -> None:
        """Log a warning if pages lack an index and the table is not small."""
        pages = self.indexes[0]
        if pages.is_there(connection):
            return
        some: Select[Any] = select(literal_column("1")).select_from(self.ordering.source.table)
        count = select(func.count()).select_from(some.limit(SMALL + 1).subquery())
        if (connection.scalar(count) or 0) > SMALL:
            _log.warning(
                "No index serves %s, and each costs more the larger the table is: %s",
                pages.purpose,
                pages.create(connection) or _NO_SUCH_INDEX,
            )

    def _check_columns(self, connection: Connection) -> None:
        self._find_columns(connection)
        for near in self.near:
            near.choose_index(connection)  # indexes come and go as well

    def _check_versions(self, connection: Connection) -> None:
        unique = self.defined.unique
        if not unique or any(one <= {*unique} for one in unique_columns(connection, self.table)):
            return
        key, version, *_ = unique
        raise ConfigurationError(
            f"Table {self.table.fullname!r} may have two events of one version, of which the "
            f"history of their key would show one: create a unique index on {key!r} and "
            f"{version!r}."
        )

    def _check_trimmed(self, connection: Connection) -> None:
        if self.marks is None:
            return
        self.marks.check(connection)
        if self.archive is not None:
            self.archive.expect_sealed(self.marks.read(connection).trimmed)

    def _read_first(self, connection: Connection) -> None:
        for partition in self.info.partitions:
            with suppress(ArchiveMiss):  # events in an archive were read when they were sealed
                [*self.pages.read(connection, ReadRequest(partition.id, 0, HIGHEST_POSITION, 1))]

    @staticmethod
    def _find_index(connection: Connection, index: NeededIndex) -> Finding:
        if index.is_there(connection):
            return Finding("ok", "index", f"An index serves {index.purpose}.")
        statement = index.create(connection)
        sentence = f"No index serves {index.purpose}: the larger the table, the more each costs."
        return Finding(
            "warning", "index", sentence if statement else f"{sentence} {_NO_SUCH_INDEX}", statement
        )


_HIDDEN = (
    "Row-level security applies to the feed's user: events that its policies hide are left out, "
    "and one that they show later is skipped. Give the user BYPASSRLS, or a policy that shows the "
    "same rows at all times."
)

_ROWS_LAST = (
    "A feed publishes each row once, as it was inserted: an update reaches no consumer, and a "
    "cursor at a changed row is refused. Insert a row for each change instead: see "
    "docs/changes.md."
)


def _sign_of_updates(connection: Connection, table: Table) -> str | None:
    """Return a sentence about a sign that a table's rows are updated; None without a sign."""
    columns = [one.name for one in table.c if one.onupdate or one.server_onupdate]
    if columns:
        return f"Column {columns[0]!r} is set when a row is updated."
    database = database_of(connection)
    if updated := database.updated_rows(connection, table):
        return f"The statistics of the database know of {updated:,} updated rows."
    trigger = database.update_trigger(connection, table)
    return None if trigger is None else f"The trigger {trigger!r} expects that rows are updated."


_NO_SUCH_INDEX = "Let the database fill a column with the partition, and index that."
