"""Look at what a feed relies on, before it is read and then once a minute."""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Table,
    func,
    inspect,
    literal_column,
    select,
)
from sqlalchemy.exc import NoSuchTableError, SQLAlchemyError
from sqlalchemy.sql.visitors import iterate

from zeroeventhub.databases import database_of
from zeroeventhub.errors import ConfigurationError, FeedFailure, Gone
from zeroeventhub.publisher.cursor import HIGHEST_POSITION
from zeroeventhub.publisher.keyset import NearRows, NeededIndex
from zeroeventhub.publisher.ordering import Ordering
from zeroeventhub.publisher.page_query import PageQuery, ReadRequest
from zeroeventhub.publisher.retention import MarkTable

__all__ = [
    "Checkup",
    "Columns",
    "Finding",
]


@dataclass(frozen=True)
class Finding:
    """Say one thing about a feed's table.

    Attributes:
        level: "ok"; "warning" for what makes the feed slow, or is likely a mistake; "error" for
            what keeps it from answering.
        subject: what it is about, in a word.
        sentence: what was found, and what to do about it.
        statement: the SQL that mends it, where there is one.
    """

    level: Literal["ok", "warning", "error"]
    subject: str
    sentence: str
    statement: str | None = None


class Columns:
    """Remember the columns of a feed's table as they were when it was first looked at.

    Args:
        table: the table.
        used: the expressions that the feed reads.
    """

    def __init__(self, table: Table, used: Iterable[ColumnElement[Any]]) -> None:
        self._table = table
        parts = [part for expression in used for part in iterate(expression)]
        self._names = [*dict.fromkeys(_names(table, parts))]
        self._before: dict[str, str] = {}

    def check(self, connection: Connection) -> None:
        """Refuse a table that lacks a column.

        Raises:
            ConfigurationError: it does, or it is not there.
        """
        found = self._found(connection)
        if missing := [name for name in self._names if name not in found]:
            raise ConfigurationError(
                f"Table {self._table.fullname!r} has no column {', '.join(map(repr, missing))}, "
                "which the feed reads."
            )
        self._before = self._before or found

    def refuse_changes(self, connection: Connection) -> None:
        """Refuse a table whose columns have changed since they were first looked at.

        Their values may have another form since, so that no event is what a cursor takes it for.

        Raises:
            ConfigurationError: the table or a column is gone.
            FeedFailure: a column is of another type.
        """
        self.check(connection)
        found = self._found(connection)
        if changed := [name for name, kind in self._before.items() if found[name] != kind]:
            raise FeedFailure(
                f"The type of {', '.join(map(repr, changed))} in table {self._table.fullname!r} "
                "is another one than when this feed was started, and so may the form of its events "
                "be: change it back, or restart the feed."
            )

    def _found(self, connection: Connection) -> dict[str, str]:
        """Return the types of the columns by name, as the database has them now."""
        schema = connection.schema_for_object(self._table)
        try:
            columns = inspect(connection).get_columns(self._table.name, schema=schema)
        except NoSuchTableError:
            raise ConfigurationError(f"There is no table {self._table.fullname!r}.") from None
        types = {column["name"]: repr(column["type"]) for column in columns}
        return {name: types[name] for name in self._names if name in types}


def _names(table: Table, parts: Iterable[Any]) -> Iterator[str]:
    """Name the columns of a table among parts of expressions, also those of an ORM class for it."""
    for part in parts:
        if isinstance(part, Column) and getattr(part.table, "fullname", None) == table.fullname:
            yield part.name


GROWTH = 1_000
"""How many partitions a feed grows by at once, at most: a larger number is taken for a mistake of
the writer's."""

SMALL = 5_000
"""How many events a table may have before a missing index is worth a warning in the log."""

CHECK_INTERVAL = 60.0
"""Seconds between two looks at what the feed relies on."""

_log = logging.getLogger("zeroeventhub.publisher")


class Checkup:
    """Look at all that a feed relies on before it is read, and then from time to time.

    Args:
        ordering: knows what the order of events needs.
        columns: knows which columns the feed reads.
        pages: reads events.
        partitions: those that there are to read.
        near: what finds rows by indexes for the feed's queries.
        indexes: what those queries need, first the one of pages.
        marks: knows what was trimmed; None where that is not kept.
        lasting: the table whose rows must not change; None where the feed says that they do.

    Attributes:
        partitions: those that there are to read.
        grow: gives the feed so many partitions; None where their number is fixed.
        unpublished: a sentence about an event that is in no partition of the feed; None if there
            was none when the table was last looked at.
    """

    def __init__(
        self,
        ordering: Ordering,
        columns: Columns,
        pages: PageQuery,
        *,
        partitions: Collection[int],
        near: Collection[NearRows],
        indexes: Collection[NeededIndex],
        marks: MarkTable | None = None,
        lasting: Table | None = None,
    ) -> None:
        self._ordering = ordering
        self._columns = columns
        self._pages = pages
        self.partitions = partitions
        self._near = near
        self._indexes = indexes
        self._marks = marks
        self._lasting = lasting
        self.grow: Callable[[int], None] | None = None
        self.unpublished: str | None = None
        self._passed = False
        self._looked_at = -math.inf

    @property
    def are_due(self) -> bool:
        """Tell whether the table should be looked at before it is read."""
        return not self._passed or monotonic() - self._looked_at > CHECK_INTERVAL

    def look_if_due(self, connection: Connection) -> None:
        """Check what the feed relies on, if it is time.

        Raises:
            ConfigurationError: the table does not have it.
        """
        if not self.are_due:
            return
        # Said first, so that readers beside this one do not check as well.
        last, self._looked_at = self._looked_at, monotonic()
        try:
            self._refuse(connection)
            if not self._passed:
                self._warn(connection)
        except BaseException:
            self._looked_at = last
            raise
        self._passed = True

    @contextmanager
    def doubting(self) -> Iterator[None]:
        """Look at the table again before anything else is read, if a question about it failed."""
        try:
            yield
        except (FeedFailure, SQLAlchemyError):
            self._looked_at = -math.inf
            raise

    @contextmanager
    def looking_twice(self, connection: Connection) -> Iterator[None]:
        """Say that history is another one only if the table still is what it was."""
        try:
            yield
        except Gone:
            self._columns.refuse_changes(connection)
            raise

    def _refuse(self, connection: Connection) -> None:
        """Refuse a table that cannot be published.

        Events in no partition of the feed do not stop the other partitions: the log gets an error.

        Raises:
            ConfigurationError: it lacks what the feed relies on.
        """
        self._look_at_ordering(connection)
        self._look_at_columns(connection)
        if self._marks is not None:
            self._marks.check(connection)
        self.unpublished = None
        try:
            self._look_at_partitions(connection)
        except ConfigurationError as error:
            self.unpublished = str(error)
            _log.error("%s", error)

    def refuse_unpublished(self, connection: Connection) -> None:
        """Refuse to go on while events are in no partition of the feed.

        Raises:
            ConfigurationError: there are some.
        """
        self._look_at_partitions(connection)

    def findings(self, connection: Connection) -> list[Finding]:
        """Return what there is to say, up to the first thing that keeps from looking further."""
        found = [_server(connection)]
        looks: dict[str, Callable[[Connection], str]] = {
            "columns": self._look_at_columns,
            "ordering": self._look_at_ordering,
            "partitions": self._look_at_partitions,
            "events": self._look_at_events,
            **({} if self._marks is None else {"retention": self._look_at_retention}),
        }
        for subject, look in looks.items():
            try:
                found.append(Finding("ok", subject, look(connection)))
            except (ConfigurationError, FeedFailure) as error:
                found.append(Finding("error", subject, str(error)))
                if subject == "columns":
                    return found
            except SQLAlchemyError as error:
                reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
                found.append(Finding("error", subject, f"The database refused: {reason}"))
                return found
        database = database_of(connection)
        found += [Finding("warning", *warning) for warning in database.warnings(connection)]
        if self._lasting is not None and (sign := _sign_of_updates(connection, self._lasting)):
            found.append(Finding("warning", "updates", f"{sign} {_ROWS_LAST}"))
        return found + [self._look_at_index(connection, index) for index in self._indexes]

    def _warn(self, connection: Connection) -> None:
        """Tell the log of an index that pages lack, if the table is not a small one."""
        pages = next(iter(self._indexes))
        if pages.is_there(connection) or not self._is_large(connection):
            return
        _log.warning(
            "No index serves %s, and each costs more the larger the table is: %s",
            pages.purpose,
            pages.create(connection) or _NO_SUCH_INDEX,
        )

    def _is_large(self, connection: Connection) -> bool:
        table = self._ordering.source.table
        some = select(literal_column("1")).select_from(table).limit(SMALL + 1).subquery()
        return (connection.scalar(select(func.count()).select_from(some)) or 0) > SMALL

    def _look_at_columns(self, connection: Connection) -> str:
        self._columns.check(connection)
        for near in self._near:
            near.choose_index(connection)  # indexes come and go as well
        return "The table has all columns that the feed reads."

    def _look_at_ordering(self, connection: Connection) -> str:
        self._ordering.check(connection)
        return "The order of events can be kept."

    def _look_at_partitions(self, connection: Connection) -> str:
        if self.grow is not None:
            before = len(self._pages.ids)
            largest = self._pages.largest_partition(connection, before + GROWTH)
            trimmed = () if self._marks is None else self._marks.read(connection).partitions
            count = max(largest or 0, *trimmed, *self._pages.ids) + 1
            if count > before:
                self.grow(count)
        self._pages.refuse_unpublished(connection)
        return "Every event is in a partition of the feed."

    def _look_at_events(self, connection: Connection) -> str:
        for partition in self.partitions:
            self._pages.read(connection, ReadRequest(partition, 0, HIGHEST_POSITION, limit=1))
        return "The first events have a JSON form."

    def _look_at_retention(self, connection: Connection) -> str:
        assert self._marks is not None  # noqa: S101 - it is not looked at otherwise
        self._marks.check(connection)
        return "What was trimmed is known."

    @staticmethod
    def _look_at_index(connection: Connection, index: NeededIndex) -> Finding:
        if index.is_there(connection):
            return Finding("ok", "index", f"An index serves {index.purpose}.")
        statement = index.create(connection)
        sentence = f"No index serves {index.purpose}: the larger the table, the more each costs."
        return Finding(
            "warning", "index", sentence if statement else f"{sentence} {_NO_SUCH_INDEX}", statement
        )


_ROWS_LAST = (
    "A feed publishes each row once, as it was inserted: an update reaches no consumer, and a "
    "cursor at a changed row is refused. Insert a row for each change instead: see "
    '"My rows change" in docs/ordering.md.'
)


def _sign_of_updates(connection: Connection, table: Table) -> str | None:
    """Say why the rows of a table seem to be updated; None if nothing says so."""
    columns = [one.name for one in table.c if one.onupdate or one.server_onupdate]
    if columns:
        return f"Column {columns[0]!r} is set when a row is updated."
    database = database_of(connection)
    if updated := database.updated_rows(connection, table):
        return f"The statistics of the database know of {updated:,} updated rows."
    trigger = database.update_trigger(connection, table)
    return None if trigger is None else f"The trigger {trigger!r} expects that rows are updated."


_NO_SUCH_INDEX = "Let the database fill a column with the partition, and index that."


def _server(connection: Connection) -> Finding:
    dialect = connection.dialect
    name = database_of(dialect).title(dialect)
    version = ".".join(map(str, dialect.server_version_info or ()))
    return Finding("ok", "server", f"This is {name} {version}.")
