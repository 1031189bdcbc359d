"""A table of events by key and version, and appends that expect a version."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from enum import Enum, auto
from typing import Any, cast

from sqlalchemy import Column, Connection, Select, Table, func, select
from sqlalchemy.engine import RowMapping
from sqlalchemy.orm import Session

from zeroeventhub.databases import database_of
from zeroeventhub.databases.bulk_insert import Unfit, converted, have_zones, table_form
from zeroeventhub.databases.error_codes import translate_store_errors
from zeroeventhub.databases.statements import expect_unique
from zeroeventhub.errors import ConfigurationError, Conflict, IdReused, StoreUnavailable
from zeroeventhub.event_log.events import Stored, unseen
from zeroeventhub.event_log.log_table import (
    DuplicateKey,
    connected,
    insert_row,
    insert_rows,
    writing,
)
from zeroeventhub.event_log.snapshots import AFTER, OF, Snapshots
from zeroeventhub.publisher.mapping import resolve


class ExpectedVersion(Enum):
    """What an append requires of its key, other than a certain version.

    Example:
        placed = NewEvent("order.placed", {"order": 18})
        with engine.begin() as connection:
            log.append_to(connection, "18", [placed], expected_version=ExpectedVersion.NO_EVENTS)

    Attributes:
        ANY: nothing; the events get the next versions.
        NO_EVENTS: the key has no events yet; the same as the number 0.
        SOME_EVENTS: the key has events, at any version.
    """

    ANY = auto()
    NO_EVENTS = auto()
    SOME_EVENTS = auto()


def check_expected(expected: Any) -> None:
    """Refuse a value that cannot be an expected version."""
    if isinstance(expected, ExpectedVersion):
        return
    if isinstance(expected, bool) or not isinstance(expected, int) or expected < 0:
        raise ConfigurationError(
            f"An expected version is that of the key's last event, 0 for a key without events, or "
            f"an ExpectedVersion; {expected!r} is neither."
        )


def is_expected(expected: int | ExpectedVersion, version: int) -> bool:
    """Return whether a key's version is an expected one."""
    match expected:
        case ExpectedVersion.ANY:
            return True
        case ExpectedVersion.NO_EVENTS:
            return version == 0
        case ExpectedVersion.SOME_EVENTS:
            return version > 0
    return version == expected


_TRIES = 20
"""How often an append is tried while other transactions append to the same key."""

_STORE = "The database of the events"


class KeyedTable:
    """Append events to the keys of your table with an expected version, and read those of a key.

    Example:
        accounts = KeyedTable(movements, key="account", version="number")
        with engine.begin() as connection:
            accounts.append(connection, "ada", [{"amount": 100}], expected_version=0)

    Args:
        table: the table, which has a unique constraint or index on key and version.
        key: the column of keys.
        version: the column of versions.
        id: the column of unique ids, by which a repeated append is recognized and changes nothing;
            None to raise Conflict for it.
        same: the columns besides the key that have to be equal in a repeated append.
        snapshots: those of an EventLog, which go on counting where events were trimmed.

    Raises:
        ConfigurationError: the table has no such column, or is not declared to have such an index.
    """

    def __init__(
        self,
        table: Table,
        *,
        key: str = "key",
        version: str = "version",
        id: str | None = None,  # noqa: A002 - the name that users know
        same: Sequence[str] = (),
        snapshots: Snapshots | None = None,
    ) -> None:
        self._table = table
        self._snapshots = snapshots
        self._key, self._version = _column(table, key), _column(table, version)
        expect_unique(table, self._key, self._version)
        self._id = None if id is None else _column(table, id)
        compared = [_column(table, each) for each in same]
        if self._id is not None:
            expect_unique(table, self._id)
            self._stored = Stored(table, self._id, self._version, (self._key, *compared))
        self._required = {one.name for one in (self._id, *compared) if one is not None}
        self._last = self._last_version()
        self._rows = self.query(select(table))

    def version(self, handle: Connection | Session, key: str | int) -> int:
        """Return the version of a key's last event; 0 for a key that never had one."""
        with translate_store_errors(_STORE):
            return self._version_of(connected(handle, self._table), self._last, key)

    def read(
        self,
        handle: Connection | Session,
        key: str | int,
        *,
        after_version: int = 0,
        limit: int | None = None,
    ) -> Sequence[RowMapping]:
        """Read the events of a key in the order of their versions, by one query.

        Args:
            handle: your connection or session.
            key: the key.
            after_version: the version after which to begin.
            limit: how many to read at most; None for all.
        """
        with translate_store_errors(_STORE):
            values = {"of": key, "after": after_version}
            found = connected(handle, self._table).execute(self._rows.limit(limit), values)
            return found.mappings().all()

    def query(self, selected: Select[Any]) -> Select[Any]:
        """Restrict a query to the events of the key `:of` after the version `:after`, in order."""
        mine = selected.where(self._key == OF, self._version > AFTER)
        return mine.order_by(self._version)

    def append(
        self,
        handle: Connection | Session,
        key: str | int,
        rows: Iterable[Mapping[str, Any]],
        *,
        expected_version: int | ExpectedVersion,
    ) -> int:
        """Append rows to a key, in your transaction.

        After a Conflict the transaction is unchanged, and you may commit it. To read what other
        transactions have appended, begin a new one.

        Args:
            handle: the connection or session of the transaction.
            key: the key.
            rows: values by column name, without key and version; the same columns in each.
            expected_version: the version of the key's last event, or an ExpectedVersion.

        Returns:
            The version of the last row, also if the rows were appended before.

        Raises:
            Conflict: the key has another version.
            IdReused: the table has these ids with other events: roll the transaction back.
            StoreUnavailable: a transient error of the database: roll back, and try again.
            ConfigurationError: a row does not fit the table.
        """
        check_expected(expected_version)
        if cast("object", key) is None:
            raise ConfigurationError("None is no key: NULL values are distinct in a unique index.")
        rows = _listed(rows)
        connection = writing(handle, self._table)
        forms = table_form(self._table, connection.dialect).columns
        names = dict.fromkeys(name for row in rows for name in row)
        for name in names:
            if name not in forms or forms[name].column in {self._key, self._version}:
                raise ConfigurationError(
                    f"{name!r} is not a column of table {self._table.fullname!r} that a row may "
                    "have: give each row the table's columns without key and version."
                )
        if any(row.keys() != names.keys() for row in rows):
            raise ConfigurationError("Give every row values for the same columns.")
        if rows and (missing := self._required - names.keys()):
            raise ConfigurationError(
                f"A row has no {min(missing)!r}, which is needed to recognize a repeated append."
            )
        local = [name for name in names if forms[name].in_session_zone]
        in_utc = have_zones(row[name] for row in rows for name in local)
        zone = database_of(connection).as_published(connection) if in_utc else nullcontext()
        chosen = [forms[name] for name in names]
        values = [tuple(row[name] for name in names) for row in rows]
        try:
            values = converted(chosen, [one.from_python for one in chosen], values)
            ready = [{self._key.name: key, **dict(zip(names, row, strict=True))} for row in values]
            with translate_store_errors(_STORE), zone:
                return self._append(connection, key, ready, expected_version)
        except Unfit as error:
            raise ConfigurationError(
                f"A row does not fit table {self._table.fullname!r}: {error}."
            ) from error.__cause__

    def _append(
        self,
        connection: Connection,
        key: str | int,
        rows: Sequence[dict[str, Any]],
        expected: int | ExpectedVersion,
    ) -> int:
        version, taken = self._version_of(connection, self._last, key), None
        for _ in range(_TRIES):
            if fits := is_expected(expected, version):
                for number, row in enumerate(rows, version + 1):
                    row[self._version.name] = number
                try:
                    self._insert(connection, rows)
                except DuplicateKey as error:
                    taken = error
                else:
                    if rows and self._snapshots is not None:
                        self._snapshots.refuse_reused(connection, key, version + 1)
                    return version + len(rows)
            if (known := self._known(connection, rows, expected)) is not None:
                return known
            latest = self._last_version(database_of(connection).latest)
            found = self._version_of(connection, latest, key)
            if found == version:
                if fits:
                    raise unseen() from taken
                raise Conflict(
                    f"Key {key!r} has version {version}, which is not the expected one: nothing "
                    "was appended. Read the key's events in a new transaction, and decide again.",
                    key=key,
                    version=version,
                ) from taken
            version = found
        raise StoreUnavailable(
            f"Other transactions keep appending to key {key!r}: roll back, and try again."
        ) from taken

    def _insert(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows with versions.

        Raises:
            DuplicateKey: the version or id of the first row exists already; no row was inserted.
            IdReused: the version or id of a later row exists already.
        """
        if not rows:
            return
        insert_row(connection, self._table, rows[0])
        try:
            insert_rows(connection, self._table, rows[1:])
        except DuplicateKey as error:
            raise IdReused(
                "Some of these events exist already, and the rest do not: roll back. Then repeat "
                "exactly the earlier append, or give the new events ids of their own."
            ) from error

    def _known(
        self,
        connection: Connection,
        rows: Sequence[Mapping[str, Any]],
        expected: int | ExpectedVersion,
    ) -> int | None:
        """Return the last version of rows that were appended before; None if they were not."""
        if self._id is None or not rows:
            return None
        found = self._stored.find(connection, rows)
        if not found:
            return None
        known = [found.get(row[self._id.name]) for row in rows]
        # Events appended without a key's version have NULL as theirs.
        versions = [(one and one[self._version.name]) or 0 for one in known]
        first, last = versions[0], versions[0] + len(rows) - 1
        if first and versions == [*range(first, last + 1)] and is_expected(expected, first - 1):
            return last
        raise IdReused(
            "Some of these events were appended before, but not all of them, or not one after the "
            "other, or to another version: roll back, and give new events ids of their own."
        )

    def _last_version(
        self, see: Callable[[Select[Any]], Select[Any]] = lambda query: query
    ) -> Select[tuple[int]]:
        """Select the version of a key's last event, or of its snapshot if no event is left."""
        last = [select(func.max(self._version)).where(self._key == OF)]
        if self._snapshots is not None:
            last.append(self._snapshots.version)
        return select(func.coalesce(*(see(one).scalar_subquery() for one in last), 0))

    def _version_of(self, connection: Connection, query: Any, key: str | int) -> int:
        version: int = connection.scalar(query, {"of": key})
        return version


def _listed(rows: Any) -> list[Mapping[str, Any]]:
    """Return rows as a list, as an iterator can be read only once."""
    listed = [*rows] if isinstance(rows, Iterable) else [rows]
    if not all(isinstance(row, Mapping) for row in listed):
        raise ConfigurationError(
            'Give the rows in a list, also a single one, by the names of columns: [{"amount": 1}].'
        )
    return listed


def _column(table: Table, name: str) -> Column[Any]:
    column = resolve(table, name)
    if not isinstance(column, Column):
        raise ConfigurationError(f"{name!r} is not a column of table {table.fullname!r}.")
    return column
