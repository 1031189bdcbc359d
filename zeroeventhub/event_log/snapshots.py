"""The newest snapshot of each key of a log, and the versions that snapshots cover."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    CompoundSelect,
    Connection,
    Select,
    Table,
    Text,
    bindparam,
    case,
    func,
    literal_column,
    select,
    union_all,
)

from zeroeventhub.databases import database_of
from zeroeventhub.databases.port import Database
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.event_log.events import KeptEvent, kept_events, unseen

OF: BindParameter[Any] = bindparam("of")
"""The key whose events a query selects."""

AFTER: BindParameter[Any] = bindparam("after")
"""The version after which they begin."""


@dataclass(frozen=True)
class RestoredKey:
    """A key's newest snapshot, and the events after it.

    Example:
        with engine.begin() as connection:
            found = log.restore(connection, "17")
            types = [*(found.snapshot or []), *(event.type for event in found.events)]
            log.save_snapshot(connection, "17", found.version, types)

    Attributes:
        snapshot: the data of the snapshot; None without one.
        events: the events after it, in order.
        version: the key's version; 0 for a key that never had an event.
    """

    snapshot: Any
    events: list[KeptEvent]
    version: int


class Snapshots:
    """Save snapshots, and guard the versions that they cover.

    Attributes:
        table: the table, with one row for each key that has a snapshot.
    """

    def __init__(self, table: Table, events: Table) -> None:
        self.table = table
        self.version: Select[tuple[int]] = select(table.c.version).where(table.c.key == OF)
        after = func.coalesce(self.version.scalar_subquery(), 0)
        mine = events.c.key == OF, events.c.version > after
        self.restoring = self.beside(kept_events(events).where(*mine))
        self._look = lru_cache(maxsize=4)(self._build_look)

    def beside(self, events: Select[Any], *conditions: ColumnElement[bool]) -> CompoundSelect[Any]:
        """Add a key's snapshot to a query for its events, as a row without an id."""
        mine = kept_events(self.table).where(self.table.c.key == OF, *conditions)
        return union_all(select(events.subquery()), mine).order_by("version")

    def save(self, connection: Connection, key: str, version: int, text: str) -> None:
        """Save a snapshot as JSON, unless the key has one of a later version."""
        database, columns = database_of(connection), self.table.c
        number = bindparam("number", version, type_=BigInteger)
        data = database.json_parameter(bindparam("text", text, type_=Text), columns.data.type)
        is_later = columns.version <= number
        changes = {
            "version": case((is_later, number), else_=columns.version),
            "data": case((is_later, data), else_=columns.data),
        }
        values = {"key": key, "version": number, "data": data}
        connection.execute(database.upsert(self.table, changes).values(values))

    def refuse_reused(self, connection: Connection, key: str | int, first: int) -> None:
        """Refuse the events that were just inserted if others have had their versions.

        The unique index no longer knows a version that was trimmed since this transaction read the
        key's version. But a snapshot covers it, which was committed before the trim, and so before
        the insert: a look after the insert finds it.

        `first` is the version of the first event.

        Raises:
            StoreUnavailable: a snapshot covers the version.
            ConfigurationError: the transaction does not see what others have committed.
        """
        found = connection.execute(self._look(database_of(connection)), {"of": key}).one()
        if found.frozen:
            raise ConfigurationError(
                "An append to a key of a log with snapshots needs the isolation level READ "
                "COMMITTED, to see which versions were trimmed: roll back, and set it for the "
                "connection."
            )
        if found.covered is not None and found.covered >= first:
            raise unseen()

    def _build_look(self, database: Database) -> Select[Any]:
        covered = database.latest(self.version).scalar_subquery()
        return select(covered.label("covered"), literal_column(database.is_frozen).label("frozen"))
