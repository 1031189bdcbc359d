"""SQLite: a file, one writer at a time, and Python functions that its SQL lacks."""

import json
import math
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Annotated, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from msgspec import Meta
from sqlalchemy import (
    JSON,
    Boolean,
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    Float,
    Insert,
    Integer,
    LargeBinary,
    Numeric,
    Select,
    String,
    Table,
    event,
    func,
    literal_column,
    null,
    select,
    text,
    type_coerce,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import OperationalError
from sqlalchemy.types import NullType, TypeEngine

from zeroeventhub.databases.index_hint import IndexHint, Keyset, explain
from zeroeventhub.databases.port import (
    SEPARATOR,
    Captured,
    CaptureDdl,
    Database,
    ErrorCodes,
    literal,
    state_error,
)
from zeroeventhub.errors import ConfigurationError
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

_FILE = text("SELECT file FROM pragma_database_list WHERE name = 'main'")

_JOURNAL = (
    "In journal mode {} a writer and a reader keep each other waiting, and a writer without a busy "
    "timeout fails beside a reader's statement."
)
_NO_JOURNAL = (
    "In journal mode {} a part may stay of a transaction that failed, or whose process was killed, "
    "and the file may be damaged."
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
    # Its driver raises OverflowError for any other, which names neither event nor column.
    whole_number = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    yields_at_each_row = True
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
        unfit=frozenset({"SQLITE_CONSTRAINT_CHECK"}),
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

    def text_hash(self, text: str) -> str:
        return f"{_HASH}(CAST({text} AS TEXT))"

    def remainder(self, dividend: str, divisor: str) -> str:
        return f"({dividend} % {divisor})"

    def prepare(self, engine: Engine) -> None:
        if not event.contains(engine, "checkout", _prepare):
            # Not on "connect": the pool may have connections already.
            event.listen(engine, "checkout", _prepare)

    def decimals(
        self, connection: Connection, time: ColumnElement[Any], *, is_side_table: bool
    ) -> int:
        # CURRENT_TIMESTAMP has seconds; the trigger of "sequenced" writes milliseconds.
        return 3 if is_side_table else 0

    def not_before(self, time: ColumnElement[Any], moment: datetime) -> ColumnElement[bool]:
        # A time is text, with a fraction or, as CURRENT_TIMESTAMP writes it, without; the shortest
        # form of a moment sorts before all its other forms.
        text = moment.isoformat(sep=" ")
        return type_coerce(time, String) >= (text.rstrip("0") if "." in text else text)

    def checked(self, kind: TypeEngine[Any]) -> Callable[[Any], Any] | None:
        match kind:
            case Boolean():
                return _truth
            case LargeBinary():
                return _bytes
        return None

    def joins_rows(self, dialect: Dialect) -> bool:
        return True

    def join_rows(self, rows: Select[Any], *, gaps: bool) -> Select[Any]:
        position, text, *_ = rows.subquery("row").c
        # A literal, and no function or parameter, which SQLite would evaluate for each row.
        separator: ColumnElement[str] = literal_column(f"'{SEPARATOR.decode()}'")
        event = func.coalesce(text, "") if gaps else text
        joined = select(func.group_concat(position), func.group_concat(event, separator), null())
        return joined.add_columns(func.group_concat(text.is_(None), "")) if gaps else joined

    def as_stored(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        # It keeps a value in whatever form a program has written, of which SQLAlchemy makes one.
        return type_coerce(column, NullType())

    def capture(self, connection: Connection, one: Captured) -> CaptureDdl:
        return _capture(connection, one)

    def warnings(self, connection: Connection) -> list[tuple[str, str, str]]:
        mode = str(connection.exec_driver_sql("PRAGMA journal_mode").scalar_one())
        # A database in memory has the mode memory as well.
        if mode == "wal" or not connection.scalar(_FILE):
            return []
        sentence = _NO_JOURNAL if mode in {"memory", "off"} else _JOURNAL
        return [("journal", sentence.format(mode), "PRAGMA journal_mode = WAL")]

    def update_trigger(self, connection: Connection, table: Table) -> str | None:
        name: str | None = connection.scalar(_TRIGGERS, {"table": table.name})
        return name

    def missing_file(self, engine: Engine) -> str | None:
        file = engine.url.database
        if file and "uri" in engine.url.query:
            file = url2pathname(urlsplit(file).path)
        return file if file and not Path(file).exists() else None


def _truth(value: Any) -> bool | None:
    """Return a boolean; of a text, such as 'f' or 'false', SQLAlchemy would make true."""
    if isinstance(value, str | bytes):
        raise ValueError("a text is not a boolean")  # noqa: TRY004 - of the row, not of the caller
    return None if value is None else bool(value)


def _bytes(value: Any) -> bytes | None:
    """Return bytes; a text would be published as it is, and read as Base64."""
    if value is None or isinstance(value, bytes):
        return value
    raise ValueError("a value is not bytes")


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
    """Make a connection read-only, and interrupt what takes too long by a progress handler."""

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


# Of a primary key only texts that it takes for equal, though they are the keys of other events.
_UNIQUE = text("""SELECT list.name, info.name AS column_name, info.coll
    FROM pragma_index_list(:table) AS list, pragma_index_xinfo(list.name) AS info
    WHERE list."unique" AND info.key AND (list.origin <> 'pk' OR info.coll <> 'BINARY')
    ORDER BY list.seq, info.seqno""")

# SQLite has types of values, not of columns. 17 digits say which number of double precision it is.
_CAPTURED_VALUE = """CASE typeof({0}) WHEN 'blob' THEN json_quote(lower(hex({0}))) \
WHEN 'real' THEN {1} ELSE {2} END"""
_REAL = """CASE WHEN {0} - {0} = 0 THEN printf('%!.17g', {0}) \
WHEN {0} > 0 THEN '"Infinity"' ELSE '"-Infinity"' END"""
_QUOTED = "json_quote({0})"
_DECIMAL = "json_quote(CAST({0} AS TEXT))"
_JSON = "CASE WHEN json_valid({0}) THEN json({0}) ELSE json_quote({0}) END"

# As text a number of double precision has 15 digits, which two numbers may have in common.
_KEY = """CASE WHEN typeof({0}) = 'blob' THEN lower(hex({0})) \
WHEN typeof({0}) = 'real' AND CAST(CAST({0} AS TEXT) AS REAL) <> {0} THEN printf('%!.17g', {0}) \
ELSE {0} END"""

_ID = "SELECT 0, lower(hex(randomblob(16)))"
_NULL_KEY = "a row whose primary key is NULL cannot be captured"


def _value(one: Captured, row: str, name: str) -> str:
    """Return the SQL of the JSON of a row's value."""
    kind, column = one.types[name], f"{row}.{one.quote(name)}"
    is_decimal = isinstance(kind, Numeric) and not isinstance(kind, Float)
    real = _DECIMAL if is_decimal else _REAL
    other = _DECIMAL if is_decimal else _JSON if isinstance(kind, JSON) else _QUOTED
    return _CAPTURED_VALUE.format(column, real.format(column), other.format(column))


def _document(one: Captured, row: str, names: Iterable[str]) -> str:
    """Return the SQL of the JSON object of some values of a row."""
    # Joined, as a function takes no more than 127 arguments.
    pairs = (f"{literal(json.dumps(name) + ':')} || {_value(one, row, name)}" for name in names)
    return "('{' || " + " || ',' || ".join(pairs) + " || '}')"


def _key(one: Captured, row: str) -> str:
    """Return the SQL of the key of a row's events."""
    prefix = literal(f"{one.label}/")
    if len(one.key) > 1:
        values = " || ',' || ".join(_value(one, row, name) for name in one.key)
        return f"{prefix} || '[' || {values} || ']'"
    column = f"{row}.{one.quote(one.key[0])}"
    return f"{prefix} || " + _KEY.format(column)


def _capture(connection: Connection, one: Captured) -> CaptureDdl:
    """Return the triggers.

    REPLACE deletes rows without firing their triggers, as a rule. A row of the same key needs none;
    one that had the same value in another unique index is noted before the change, and the event of
    its deletion is written after it, or before the next change, which triggers of the host may make
    in between.
    """
    if one.schema or one.log_schema:
        raise ConfigurationError(
            "On SQLite, a trigger writes to no other file than its own: name table and log "
            "without a schema, on a connection to that file."
        )
    replaced = one.quote(f"{one.name}_replaced")
    opening = literal(f'{{"table":{json.dumps(one.label)},"operation":"')

    def data(operation: str, row: str, before: str, after: str) -> str:
        return (
            f"""{opening} || {operation} || '","key":' || {_document(one, row, one.key)} || """
            f"""',"before":' || {before} || ',"after":' || {after} || """
            """',"transaction":null,"actor":null}'"""
        )

    def insert(operation: str, row: str, before: str, after: str) -> str:
        kind = f"{literal(f'{one.label}.')} || {operation}"
        return (
            f"{one.insert} {_ID}, {_key(one, row)}, {kind}, {data(operation, row, before, after)}"
        )

    there = f"now.{one.quote(one.key[0])} IS NOT NULL"
    row_now = f"CASE WHEN {there} THEN {_document(one, 'now', one.types)} ELSE 'null' END"

    def changed(row: str, operation: str, before: str, condition: str) -> str:
        """Return the statement that says what has become of the row that had or has a key."""
        joined = f"{one.same_key('now', row)} AND {_key(one, 'now')} = {_key(one, row)}"
        return (
            f"{insert(operation, row, before, row_now)} "
            f"FROM (SELECT 1) LEFT JOIN {one.table} AS now ON {joined} WHERE {condition};"
        )

    old = changed(
        "OLD",
        f"CASE WHEN {there} THEN 'update' ELSE 'delete' END",
        _document(one, "OLD", one.types),
        "1",
    )
    new = changed("NEW", "'insert'", "'null'", there)
    moved = changed(
        "NEW", "'insert'", "'null'", f"{there} AND {_key(one, 'OLD')} <> {_key(one, 'NEW')}"
    )
    is_null = " OR ".join(f"NEW.{one.quote(name)} IS NULL" for name in one.key)
    refused = f"SELECT RAISE(ABORT, {literal(_NULL_KEY)}) WHERE {is_null};"
    bodies = {
        "AFTER INSERT": [refused, new],
        "AFTER UPDATE": [refused, old, moved],
        "AFTER DELETE": [old],
    }
    indexes: dict[str, list[str]] = {}
    for index, column, collation in connection.execute(_UNIQUE, {"table": one.label}):
        # NULL for an expression, for which any row might have to go.
        equal = "1" if column is None else "known.{0} = NEW.{0}".format(one.quote(column))
        indexes.setdefault(index, []).append(f"{equal} COLLATE {one.quote(collation)}")
    side: tuple[str, ...] = ()
    if indexes:
        numbers = [f"key_{number}" for number in range(len(one.key))]
        side = (f"CREATE TABLE {replaced} (change, key, data, {', '.join(numbers)})",)
        equal = " OR ".join(" AND ".join(columns) for columns in indexes.values())
        gone = data("'delete'", "known", _document(one, "known", one.types), "'null'")
        keys = ", ".join(f"known.{one.quote(name)}" for name in one.key)
        same = " AND ".join(
            f"now.{one.quote(name)} = noted.{number}"
            for name, number in zip(one.key, numbers, strict=True)
        )
        forget = f"DELETE FROM {replaced} WHERE"  # noqa: S608 - names are quoted
        other = f" AND {_key(one, 'known')} <> {_key(one, 'OLD')}"
        for change, others in (("INSERT", ""), ("UPDATE", other)):
            write = (
                f"{one.insert} {_ID}, noted.key, "  # noqa: S608 - names are quoted
                f"{literal(f'{one.label}.delete')}, noted.data "
                f"FROM {replaced} AS noted WHERE change = '{change}' "
                f"AND NOT EXISTS (SELECT 1 FROM {one.table} AS now WHERE {same} "
                f"AND {_key(one, 'now')} = noted.key);\n    "
                f"{forget} change = '{change}';"
            )
            note = (
                f"INSERT INTO {replaced} "  # noqa: S608 - names are quoted
                f"SELECT '{change}', {_key(one, 'known')}, {gone}, {keys} "
                f"FROM {one.table} AS known WHERE ({equal}){others};"
            )
            bodies[f"BEFORE {change}"] = [write, note]
            bodies[f"AFTER {change}"].insert(0, write)
        bodies["AFTER UPDATE"].append(
            f"{forget} key = {_key(one, 'OLD')} AND {_key(one, 'OLD')} <> {_key(one, 'NEW')};"
        )
        bodies["AFTER DELETE"].append(f"{forget} key = {_key(one, 'OLD')};")
    names = {event: one.quote(f"{one.name}_{event.replace(' ', '_').lower()}") for event in bodies}
    triggers = tuple(
        f"CREATE TRIGGER {names[event]} {event} ON {one.table} FOR EACH ROW BEGIN\n    "
        + "\n    ".join(body)
        + "\nEND"
        for event, body in bodies.items()
    )
    drop = (
        *(
            f"DROP TRIGGER IF EXISTS {one.quote(f'{one.name}_{when}_{event}')}"
            for when in ("before", "after")
            for event in ("insert", "update", "delete")
        ),
        f"DROP TABLE IF EXISTS {replaced}",
    )
    read = insert("'read'", "one", "'null'", _document(one, "one", one.types))
    order = ", ".join(f"one.{one.quote(name)}" for name in one.key)
    return CaptureDdl(
        # The first statement keeps other writers out.
        install=(f"{read} FROM {one.table} AS one ORDER BY {order}", *drop, *side, *triggers),
        uninstall=drop,
        code=triggers,
        installed="SELECT sql FROM sqlite_master WHERE type = 'trigger' "  # noqa: S608 - the same
        f"AND name LIKE '{one.name}%'",
        listed=[*one.types],
    )
