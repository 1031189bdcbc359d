"""Look at everything that a feed relies on in its database, without changing anything."""

import logging
from collections.abc import Callable, Collection

from sqlalchemy import Connection, Table, func, literal_column, select, text
from sqlalchemy.exc import SQLAlchemyError

from zeroeventhub.errors import ConfigurationError, FeedFailure
from zeroeventhub.publisher.columns import Columns
from zeroeventhub.publisher.cursor import HIGHEST_POSITION
from zeroeventhub.publisher.finding import Finding
from zeroeventhub.publisher.near_rows import NearRows
from zeroeventhub.publisher.needed_index import NeededIndex
from zeroeventhub.publisher.ordering import Ordering
from zeroeventhub.publisher.page_query import PageQuery
from zeroeventhub.publisher.retention import Marks

__all__ = ["Checkup"]

GROWTH = 1_000
"""How many partitions a feed grows by at once, at most: a larger number is taken for a mistake of
the writer's."""

SMALL = 5_000
"""How many events a table may have before a missing index is worth a warning in the log."""

_log = logging.getLogger("zeroeventhub.publisher")


class Checkup:
    """Look at a feed's table.

    Args:
        ordering: knows what the order of events needs.
        columns: knows which columns the feed reads.
        pages: reads events.
        partitions: those that there are to read.
        near: what finds rows by indexes for the feed's queries.
        indexes: what those queries need, first the one of pages.
        marks: knows what was trimmed; None where nobody tells.
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
        marks: Marks | None = None,
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

    def refuse(self, connection: Connection) -> None:
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

    def refuse_changes(self, connection: Connection) -> None:
        """Refuse a table that is another one by now; see `Columns.refuse_changes`."""
        self._columns.refuse_changes(connection)

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
        if connection.dialect.name == "sqlite" and (mode := _locking_journal(connection)):
            found.append(Finding("warning", "journal", _JOURNAL.format(mode), _WAL))
        if self._lasting is not None and (sign := _sign_of_updates(connection, self._lasting)):
            found.append(Finding("warning", "updates", f"{sign} {_ROWS_LAST}"))
        return found + [self._look_at_index(connection, index) for index in self._indexes]

    def warn(self, connection: Connection) -> None:
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
            near.find_way(connection)  # indexes come and go as well
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
        return "Every event is in a partition that somebody can read."

    def _look_at_events(self, connection: Connection) -> str:
        for partition in self.partitions:
            self._pages.read(connection, partition, after=0, until=HIGHEST_POSITION, limit=1)
        return "The first events have a JSON form."

    def _look_at_retention(self, connection: Connection) -> str:
        assert self._marks is not None  # noqa: S101 - nobody looks otherwise
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

_JOURNAL = (
    "In journal mode {} a writer and a reader keep each other waiting, and a writer without a busy "
    "timeout fails beside a reader's statement."
)

_WAL = "PRAGMA journal_mode = WAL"


def _locking_journal(connection: Connection) -> str | None:
    """Return SQLite's journal mode if readers lock writers out in it."""
    mode = str(connection.exec_driver_sql("PRAGMA journal_mode").scalar_one())
    return mode if mode in {"delete", "truncate", "persist"} else None


_STATISTICS = text(
    "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relid = CAST(CAST(:name AS regclass) AS oid)"
)

_ON_UPDATE = {
    "sqlite": """SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :table
        AND upper(sql) LIKE '%UPDATE ON%' AND name NOT LIKE 'zeroeventhub%'""",
    "postgresql": """SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND (tgtype & 16) > 0
        AND tgname NOT LIKE 'zeroeventhub%'
        AND tgrelid = CAST(CAST(:name AS regclass) AS oid)""",
}
_ON_UPDATE["mysql"] = _ON_UPDATE["mariadb"] = """SELECT trigger_name
    FROM information_schema.triggers WHERE event_object_schema = coalesce(:schema, DATABASE())
    AND event_object_table = :table AND event_manipulation = 'UPDATE'
    AND trigger_name NOT LIKE 'zeroeventhub%'"""
"""How to find triggers for updates that are not a feed's own."""


def _sign_of_updates(connection: Connection, table: Table) -> str | None:
    """Say why the rows of a table seem to be updated; None if nothing says so."""
    columns = [one.name for one in table.c if one.onupdate or one.server_onupdate]
    if columns:
        return f"Column {columns[0]!r} is set when a row is updated."
    name = connection.dialect.identifier_preparer.format_table(table)
    if connection.dialect.name == "postgresql":
        updated = connection.scalar(_STATISTICS, {"name": name})
        if updated:
            return f"The statistics of the database know of {updated:,} updated rows."
    query = text(_ON_UPDATE[connection.dialect.name])
    names = {"name": name, "table": table.name, "schema": table.schema}
    known = {key: value for key, value in names.items() if f":{key}" in query.text}
    trigger = connection.execute(query, known).first()
    return None if trigger is None else f"The trigger {trigger[0]!r} expects that rows are updated."


_NO_SUCH_INDEX = "Let the database fill a column with the partition, and index that."


def _server(connection: Connection) -> Finding:
    dialect = connection.dialect
    name = {"postgresql": "PostgreSQL", "sqlite": "SQLite", "mysql": "MySQL"}.get(
        dialect.name, "MariaDB"
    )
    if getattr(dialect, "is_mariadb", False):
        name = "MariaDB"
    version = ".".join(map(str, dialect.server_version_info or ()))
    return Finding("ok", "server", f"This is {name} {version}.")
