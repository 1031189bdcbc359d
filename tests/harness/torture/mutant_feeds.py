"""Feeds that read their pages in a way that looks right and is not."""

from sqlalchemy import Connection, Engine, Row, Table, text
from sqlalchemy.exc import OperationalError

from zeroeventhub import FIRST, Event
from zeroeventhub.errors import Unavailable
from zeroeventhub.protocol import Page


class _Feed:
    """Read pages by a query of one's own; a cursor holds the first columns of its last row."""

    query: str
    start: tuple[str, ...]

    def __init__(self, table: Table) -> None:
        self._query = text(self.query.format(table=table.name))
        self._table = table

    def install(self, connection: Connection) -> None:
        """Add nothing to the database."""

    def bind(self, engine: Engine) -> "_Feed":
        """Read through an engine."""
        self._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
        return self

    def read(self, partition: int, cursor: str, limit: int) -> Page:
        """Read a page."""
        place = self.start if cursor == FIRST else tuple(cursor.split("-"))
        values = dict(zip(("first", "second"), place, strict=False))
        try:
            with self._engine.connect() as connection:
                rows = connection.execute(
                    self._query, {"part": partition, "limit": limit, **values}
                ).all()
        except OperationalError as error:
            raise Unavailable("The reader was chosen to end a deadlock.") from error
        if rows:
            place = tuple(map(str, rows[-1][: len(self.start)]))
        return Page([_event(row) for row in rows], "-".join(place))

    def head(self) -> int:
        """Know nothing of a horizon."""
        return 0


def _event(row: Row) -> Event:
    *_, key, n = row
    return Event.of({"key": key, "n": n})


class XidOrder(_Feed):
    """Read in the order of transaction ids, below the oldest that is open."""

    query = """SELECT xid, id, key, n FROM {table}
        WHERE part = :part AND xid < pg_snapshot_xmin(pg_current_snapshot())
            AND (xid, id) > (CAST(:first AS xid8), CAST(:second AS bigint))
        ORDER BY xid, id LIMIT :limit"""
    start = ("0", "0")

    def install(self, connection: Connection) -> None:
        """Let every row hold the id of its transaction."""
        added = f"ALTER TABLE {self._table.name} ADD xid xid8 DEFAULT pg_current_xact_id()"
        connection.execute(text(added))


class LockingReads(_Feed):
    """Wait for the rows of open transactions by locking what is read."""

    query = """SELECT id, `key`, n FROM {table} WHERE part = :part AND id > :first
        ORDER BY id LIMIT :limit LOCK IN SHARE MODE"""
    start = ("0",)
