"""SQLite: a file, one writer at a time, and Python functions that its SQL lacks."""

import math
import re
import sqlite3
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

from msgspec import Meta
from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    Insert,
    Integer,
    Select,
    String,
    Table,
    event,
    func,
    literal_column,
    select,
    text,
    type_coerce,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import OperationalError
from sqlalchemy.types import TypeEngine

from zeroeventhub.databases.capture import Captured, CaptureDdl
from zeroeventhub.databases.capture_sqlite import capture
from zeroeventhub.databases.index_hint import IndexHint, Keyset, explain
from zeroeventhub.databases.port import SEPARATOR, Database, ErrorCodes
from zeroeventhub.databases.read_only import state_error
from zeroeventhub.partitions import key_hash

_RESULTS = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})

_ROLLED_BACK = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM})

_HASH = "zeroeventhub_hash"
"""The name of the SQL function that computes the hash of a key."""

_SEARCH = {
    True: re.compile(r"^SEARCH .* \([^=]+>\? AND "),
    False: re.compile(r"^SEARCH .* \([^=]+=\? AND [^=]+>\? AND "),
}
"""How a plan describes the search for a range, without partitions (True) or in one of them."""

_TRIGGERS = text("""SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :table
        AND upper(sql) LIKE '%UPDATE ON%' AND name NOT LIKE 'zeroeventhub%'""")

_JOURNAL = (
    "In journal mode {} a writer and a reader keep each other waiting, and a writer without a busy "
    "timeout fails beside a reader's statement."
)

TICKS = 100_000
"""Steps of SQLite's machine between two checks of the deadline: a few milliseconds. Each check
waits for the interpreter's lock."""


class SQLite(Database):
    """SQLite."""

    names = ("sqlite",)
    single_writer = True
    locks_rows = False
    indexes_expressions = True
    adds_constraints = False
    takes_booleans = True
    # Its driver raises OverflowError for any other, which names neither event nor column.
    whole_number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    # Python's driver acquires and releases the interpreter's lock for each row.
    joins_rows = True
    # unixepoch('subsec') needs SQLite 3.42.
    unix_time = "((julianday('now') - 2440587.5) * 86400.0)"
    # Moments are compared as text, with six decimals.
    statement_moment = "(strftime('%Y-%m-%d %H:%M:%f000', 'now'))"
    row_number = Integer()
    error_codes = ErrorCodes(
        late=frozenset({"SQLITE_INTERRUPT"}),
        changed=frozenset({"SQLITE_ERROR"}),
        duplicate=frozenset(
            {sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY}
        ),
        full=frozenset({"SQLITE_FULL"}),
    )

    def title(self, dialect: Dialect) -> str:
        return "SQLite"

    def insert_ignore(self, table: Table) -> Insert:
        return sqlite.insert(table).on_conflict_do_nothing()

    def upsert(self, table: Table, changes: Mapping[str, Any]) -> Insert:
        keys = [column.name for column in table.primary_key]
        return sqlite.insert(table).on_conflict_do_update(index_elements=keys, set_=changes)

    def read_only(self, dialect: Dialect, seconds: float) -> "_Session":
        return _Session(seconds)

    def is_transient(self, error: BaseException) -> bool:
        # The lowest byte is the primary result code; the others are details.
        return (
            isinstance(error, sqlite3.Error)
            and getattr(error, "sqlite_errorcode", 0) & 0xFF in _RESULTS
        )

    def has_rolled_back(self, error: BaseException) -> bool:
        # Where, for instance, the disk is full.
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _ROLLED_BACK

    def choose_index(self, connection: Connection, keys: Keyset) -> IndexHint:
        """Find an index by trying them all, as some are of expressions."""
        if not isinstance(keys.table, Table) or _is_row_id(connection, keys):
            return IndexHint()
        known = text("SELECT name FROM pragma_index_list(:name, :schema) ORDER BY seq")
        names = {"name": keys.table.name, "schema": keys.table.schema or "main"}
        for index in connection.scalars(known, names).all():
            hint = IndexHint(index, "INDEXED BY {}")
            try:
                plan = explain(connection, keys, hint, "EXPLAIN QUERY PLAN").all()
            except OperationalError:  # a partial index
                continue
            if len(plan) == 1 and _SEARCH[keys.partition is None].search(plan[0].detail):
                return hint
        return IndexHint()

    def is_indexed(self, connection: Connection, keys: Keyset) -> bool:
        return _is_row_id(connection, keys) or super().is_indexed(connection, keys)

    def exact(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        return text.collate("BINARY")

    def lower(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.lower(text)

    def text_hash(self, text: str) -> str:
        return f"{_HASH}(CAST({text} AS TEXT))"

    def remainder(self, dividend: str, divisor: str) -> str:
        return f"({dividend} % {divisor})"

    def prepare(self, engine: Engine) -> None:
        if not event.contains(engine, "checkout", _prepare):
            # Not on "connect": the pool may have connections already.
            event.listen(engine, "checkout", _prepare)

    def decimals(self, kind: TypeEngine[Any] | None, *, is_side_table: bool) -> int:
        # CURRENT_TIMESTAMP has seconds; the trigger of "sequenced" writes milliseconds.
        return 3 if is_side_table else 0

    def not_before(self, time: ColumnElement[Any], moment: datetime) -> ColumnElement[bool]:
        # A time is text, with a fraction or, as CURRENT_TIMESTAMP writes it, without; the shortest
        # form of a moment sorts before all its other forms.
        text = moment.replace(tzinfo=None).isoformat(sep=" ")
        return type_coerce(time, String) >= (text.rstrip("0") if "." in text else text)

    def join_rows(self, rows: Select[Any], *, gaps: bool) -> Select[Any]:
        position, text, *_ = rows.subquery("row").c
        # A literal, and no function or parameter, which SQLite would evaluate for each row.
        separator: ColumnElement[str] = literal_column(f"'{SEPARATOR.decode()}'")
        event = func.coalesce(text, "") if gaps else text
        joined = select(func.group_concat(position), func.group_concat(event, separator))
        return joined.add_columns(func.group_concat(text.is_(None), "")) if gaps else joined

    def capture(self, connection: Connection, one: Captured) -> CaptureDdl:
        return capture(connection, one)

    def warnings(self, connection: Connection) -> list[tuple[str, str, str]]:
        mode = str(connection.exec_driver_sql("PRAGMA journal_mode").scalar_one())
        if mode not in {"delete", "truncate", "persist"}:
            return []
        return [("journal", _JOURNAL.format(mode), "PRAGMA journal_mode = WAL")]

    def update_trigger(self, connection: Connection, table: Table) -> str | None:
        name: str | None = connection.scalar(_TRIGGERS, {"table": table.name})
        return name

    def missing_file(self, engine: Engine) -> str | None:
        file = engine.url.database
        return file if file and not Path(file).exists() else None


def register(connection: Any) -> None:
    """Give a connection to SQLite the function that computes the hash.

    Args:
        connection: of the sqlite3 module, or the one by which SQLAlchemy adapts aiosqlite.
    """
    connection.create_function(
        _HASH, 1, lambda text: None if text is None else key_hash(text), deterministic=True
    )


def _prepare(connection: Any, record: Any, _: Any) -> None:
    if _HASH not in record.info:
        register(connection)
        record.info[_HASH] = True


def _is_row_id(connection: Connection, keys: Keyset) -> bool:
    """Return whether the position is the row id, by which SQLite finds rows without an index."""
    plan = explain(connection, keys, IndexHint(), "EXPLAIN QUERY PLAN").all()
    return keys.partition is None and "USING INTEGER PRIMARY KEY (rowid>?" in plan[0].detail


class _Session:
    """Make a connection read-only, and interrupt its statements by a progress handler.

    Args:
        seconds: time limit of a statement.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def begin(self, connection: Connection, step: str | None) -> tuple[int, Any]:
        deadline = math.inf

        def begun(*_: Any) -> None:
            nonlocal deadline
            deadline = monotonic() + self._seconds

        if not connection.in_transaction():
            connection.begin()  # as a hook of the host's may begin a transaction in the database
        _end_transaction(connection)
        kept = int(connection.exec_driver_sql("PRAGMA query_only").scalar_one())
        connection.exec_driver_sql("PRAGMA query_only = 1")
        event.listen(connection, "before_cursor_execute", begun)
        _watch(connection, lambda: monotonic() > deadline)
        return kept, begun

    def end(self, connection: Connection, kept: tuple[int, Any]) -> None:
        query_only, begun = kept
        _watch(connection, None)
        event.remove(connection, "before_cursor_execute", begun)
        _end_transaction(connection)
        connection.exec_driver_sql(f"PRAGMA query_only = {query_only}")


def _end_transaction(connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
    if driver.in_transaction:
        try:
            connection.connection.dbapi_connection.rollback()  # type: ignore[union-attr] # it is open
        except connection.dialect.loaded_dbapi.Error as error:
            raise state_error(error) from error


def _watch(connection: Connection, is_late: Any) -> None:
    """Set the handler that interrupts a statement, or remove it."""
    driver: Any = connection.connection.dbapi_connection
    if hasattr(driver, "set_progress_handler"):
        driver.set_progress_handler(is_late, TICKS)
    else:
        driver.run_async(lambda own: own.set_progress_handler(is_late, TICKS))
