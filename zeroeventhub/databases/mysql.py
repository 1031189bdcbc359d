"""MariaDB and MySQL, which differ in the names of settings, and in little else."""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any, ClassVar

from sqlalchemy import (
    TIMESTAMP,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Insert,
    LargeBinary,
    Select,
    Table,
    Time,
    cast,
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from zeroeventhub.databases.index_hint import IndexHint, Keyset
from zeroeventhub.databases.port import (
    SEPARATOR,
    Captured,
    CaptureDdl,
    Database,
    ErrorCodes,
    literal,
)

_TRANSIENT = frozenset(
    {
        1020,  # the row has changed since the snapshot
        1040,  # too many connections
        1047,  # a node of a cluster is not ready
        1053,  # the server shuts down
        *(1158, 1159, 1160, 1161),  # the connection broke
        1180,  # a node left its cluster during a COMMIT
        1203,  # too many connections of this user
        1205,  # lock timeout
        1213,  # deadlock
        1412,  # the table was altered since the snapshot
        1613,  # lock timeout of XA
        1614,  # deadlock of XA
        *(1792, 1836),  # read-only: the server has become a replica
        1927,  # the connection was killed
        *(2002, 2003),  # the server cannot be reached
        *(2006, 2013, 2055),  # the connection was lost
        3572,  # a row is locked, and the statement does not wait
        4031,  # the session was idle for too long
    }
)
_READ_ONLY = 1290  # or another option that forbids a statement
_DRIVERS = {"pymysql", "aiomysql", "asyncmy", "MySQLdb"}

_TRIGGERS = text("""SELECT trigger_name
    FROM information_schema.triggers WHERE event_object_schema = coalesce(:schema, DATABASE())
    AND event_object_table = :table AND event_manipulation = 'UPDATE'
    AND trigger_name NOT LIKE 'zeroeventhub%'""")

_OTHER_TEXTS = text("""SELECT column_name
    FROM information_schema.columns WHERE table_schema = coalesce(:schema, DATABASE())
    AND table_name = :table
    AND (character_set_name <> 'utf8mb4' OR data_type IN ('inet4', 'inet6'))""")

# Without rights on MariaDB; MySQL has no such variable.
_REPLICATES = text("SHOW GLOBAL STATUS WHERE Variable_name = 'Slaves_running' AND Value > 0")
# As a value it is 0 or 1, or on MariaDB since 11.8 a text such as OFF, which is no false one.
_READ_ONLY_SERVER = text(
    "SHOW GLOBAL VARIABLES WHERE Variable_name = 'read_only' AND Value <> 'OFF'"
)
_WRITABLE_REPLICA = (
    "This server replicates from another and may be written to itself. If events come from there, "
    "observed skips some of them, and sequenced gives positions here, which stops the replication."
)

_CLUSTERED = text("SHOW GLOBAL VARIABLES WHERE Variable_name = 'wsrep_on' AND Value = 'ON'")
_LOCKED_CLUSTER = (
    "This server is a node of a Galera cluster, which stands still for good if another node writes "
    "to the table while LOCK TABLES keeps writers here out, as the installation of triggers does: "
    "append the event in the transaction of the change."
)

# SQLAlchemy leaves out those of a period that has no overlaps.
_KEY = text("""SELECT column_name
    FROM information_schema.statistics WHERE table_schema = coalesce(:schema, DATABASE())
    AND table_name = :table AND index_name = 'PRIMARY' ORDER BY seq_in_index""")

_LOCK_TIMEOUTS = ("innodb_lock_wait_timeout", "lock_wait_timeout")

_HINT = "FORCE INDEX ({})"


class MySQL(Database):
    """MariaDB or MySQL; a URL of one may connect to the other."""

    names = ("mariadb", "mysql")
    drivers: ClassVar = {"mariadb": "mariadb+pymysql", "mysql": "mysql+pymysql"}
    deletes_ranges = False
    cascades_fire_triggers = False
    # UNIX_TIMESTAMP(NOW(6)) would convert local time, in which an hour comes twice in autumn.
    unix_time = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) / 1000000E0)"
    moment = "UTC_TIMESTAMP()"
    statement_moment = "(UTC_TIMESTAMP(6))"
    fine_moment = mysql.DATETIME(fsp=6)
    exact_collation = "utf8mb4_bin"
    long_text = mysql.LONGTEXT(collation="utf8mb4_bin")
    error_codes = ErrorCodes(
        late=frozenset({1969, 3024, 1205}),  # a statement of MariaDB, one of MySQL, a lock
        changed=frozenset({1054, 1146, 1176, 1305}),  # a column, a table, an index, a routine
        denied=frozenset({1044, 1142, 1143, 1227, 1370}),
        duplicate=frozenset({1062}),
        full=frozenset({1021, 1114}),  # the disk, a table
        # JSON, nested too deeply, a CHECK of MySQL, one of MariaDB, whose JSON is one
        unfit=frozenset({3140, 3157, 3819, 4025}),
    )

    def title(self, dialect: Dialect) -> str:
        return "MariaDB" if is_mariadb(dialect) else "MySQL"

    def insert_ignore(self, table: Table) -> Insert:
        return insert(table).prefix_with("IGNORE")

    def insert_new(self, table: Table) -> Insert:
        # INSERT IGNORE would ignore other errors than duplicates as well.
        return insert(table)

    def upsert(self, table: Table, changes: Mapping[str, Any]) -> Insert:
        return mysql.insert(table).on_duplicate_key_update(dict(changes))

    def skip_locked(self, connection: Connection, query: Select[Any]) -> Select[Any]:
        # Only SERIALIZABLE makes readers wait for writers.
        serializable = connection.get_isolation_level() == "SERIALIZABLE"
        return query.with_for_update(skip_locked=True) if serializable else query

    def latest(self, query: Select[Any]) -> Select[Any]:
        return query.with_for_update(read=True)

    @contextmanager
    def lock_timeout(self, connection: Connection, seconds: float) -> Iterator[None]:
        connection = connection.execution_options(isolation_level="READ COMMITTED")
        with _with_settings(connection, dict.fromkeys(_LOCK_TIMEOUTS, max(1, int(seconds)))):
            yield

    def in_session_zone(self, kind: TypeEngine[Any]) -> bool:
        return isinstance(kind, TIMESTAMP)

    def as_published(self, connection: Connection) -> AbstractContextManager[None]:
        return _with_settings(connection, {"time_zone": "'+00:00'"})

    def read_only(self, dialect: Dialect, seconds: float) -> "_Session":
        return _Session(seconds)

    def is_transient(self, error: BaseException) -> bool:
        if not any(kind.__module__.partition(".")[0] in _DRIVERS for kind in type(error).__mro__):
            return False
        # Most numbers share one state, HY000, which says nothing.
        number = next(iter(getattr(error, "args", ())), None)
        return number in _TRANSIENT or (number == _READ_ONLY and "read" in str(error))

    def choose_index(self, connection: Connection, keys: Keyset) -> IndexHint:
        """Find an index of columns; an expression has no index without a generated column."""
        needed = [key for key in (keys.partition, keys.position) if key is not None]
        names = [key.name for key in needed if isinstance(key, Column)]
        if not isinstance(keys.table, Table) or len(names) < len(needed):
            return IndexHint()
        look, table = inspect(connection), keys.table.name
        schema = connection.schema_for_object(keys.table)
        key = look.get_pk_constraint(table, schema)["constrained_columns"]
        if key[: len(names)] == names:
            return IndexHint("PRIMARY", _HINT)
        for index in look.get_indexes(table, schema):
            if index["column_names"][: len(names)] == names and not index.get("column_sorting"):
                return IndexHint(index["name"], _HINT)
        return IndexHint()

    def warnings(self, connection: Connection) -> list[tuple[str, str, str]]:
        if connection.execute(_REPLICATES).first() is None or is_read_only(connection):
            return []
        return [("replica", _WRITABLE_REPLICA, "SET GLOBAL read_only = 1")]

    def exact(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        # Cast text in the database, as aiomysql cannot send bytes.
        return cast(cast(text, mysql.CHAR(charset="utf8mb4")), LargeBinary)

    def lower(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        # Byte by byte: in UTF-8, bytes of ASCII are never part of another letter.
        return cast(func.lower(cast(text, mysql.CHAR(charset="latin1"))), LargeBinary)

    def text_hash(self, text: str) -> str:
        # CAST would convert to the connection's character set first, and lose what it lacks.
        return f"CAST(CONV(LEFT(MD5(CONVERT({text} USING utf8mb4)), 8), 16, 10) AS UNSIGNED)"

    def decimals(
        self, connection: Connection, time: ColumnElement[Any], *, is_side_table: bool
    ) -> int:
        return getattr(time.type.dialect_impl(connection.dialect), "fsp", None) or 0

    def checked(self, kind: TypeEngine[Any]) -> Callable[[Any], Any] | None:
        return _time if isinstance(kind, Time) else None

    def joins_rows(self, dialect: Dialect) -> bool:
        # These read each value of a row by statements of Python.
        return dialect.driver in {"pymysql", "aiomysql"}

    def join_rows(self, rows: Select[Any], *, gaps: bool) -> Select[Any]:
        # MariaDB keeps the rows in a table, which cuts expressions that are longer than it expects.
        whole = func.length([*rows.selected_columns][1].element).label("size")
        place, text, *_, size = rows.add_columns(whole).subquery("row").c
        position = place + 0  # without the zeros of ZEROFILL
        # With a mode of MariaDB, the empty text is NULL, which is left out.
        event = func.coalesce(text, "0") if gaps else text

        def joined(one: ColumnElement[Any], separator: str) -> ColumnElement[str]:
            # MariaDB keeps rows with long texts in any order.
            return func.aggregate_strings(one, separator).aggregate_order_by(position)

        texts: list[ColumnElement[Any]] = [
            joined(position, ","),
            joined(event, SEPARATOR.decode()),
            func.sum(func.length(position) + func.coalesce(size, 1)),
        ]
        return select(*texts, joined(text.is_(None), "")) if gaps else select(*texts)

    def capture(self, connection: Connection, one: Captured) -> CaptureDdl:
        if one.schema is not None and one.log_schema is None:
            # A trigger looks a name up in its own schema, not in that of the connection.
            one = replace(one, log_schema=connection.dialect.default_schema_name)
        table = {"schema": one.schema, "table": one.label}
        one = replace(one, key=connection.scalars(_KEY, table).all())
        ddl = _capture(one, {*connection.scalars(_OTHER_TEXTS, table)})
        return replace(ddl, refused=_LOCKED_CLUSTER if is_node(connection) else None)

    def update_trigger(self, connection: Connection, table: Table) -> str | None:
        names = {"table": table.name, "schema": connection.schema_for_object(table)}
        name: str | None = connection.scalar(_TRIGGERS, names)
        return name

    def script(self, statements: tuple[str, ...]) -> str:
        # Some have semicolons inside.
        return "DELIMITER $$\n" + "".join(f"{line}$$\n" for line in statements) + "DELIMITER ;"


def _time(value: timedelta | None) -> time | str | None:
    """Return a time of day, or the text of a TIME that is below 0 or reaches over a day."""
    if value is None:
        return None
    if not value.days:
        return (datetime.min.replace(tzinfo=UTC) + value).time()
    total = abs(value)
    minutes, seconds = divmod(total.days * 86_400 + total.seconds, 60)
    sign, rest = "-" * (value.days < 0), f".{total.microseconds:06}"
    text = f"{sign}{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
    return text + rest if total.microseconds else text


def is_mariadb(bind: Any) -> bool:
    """Return whether a connection or dialect is of MariaDB, whatever the URL says."""
    return bool(getattr(bind, "dialect", bind).is_mariadb)


def is_read_only(connection: Connection) -> bool:
    """Return whether the server is a replica, or refuses writes for another reason."""
    return connection.execute(_READ_ONLY_SERVER).first() is not None


def is_node(connection: Connection) -> bool:
    """Return whether the server is a node of a Galera cluster, others of which may be ahead."""
    return connection.execute(_CLUSTERED).first() is not None


class _Session:
    """Set the session for the feed, and set it back; each is one statement.

    `seconds` limit a statement, unless the host allows less.
    """

    def __init__(self, seconds: float) -> None:
        # A connection knows which of the two it has reached.
        self._statements = {each: _session_statements(seconds, each) for each in (False, True)}

    def begin(self, connection: Connection, step: str | None) -> None:
        begin, begin_writing, read_only, _ = self._statements[is_mariadb(connection)]
        for statement in (begin,) if step is None else (begin_writing, step, read_only):
            connection.exec_driver_sql(statement)

    def end(self, connection: Connection, kept: None) -> None:
        *_, end = self._statements[is_mariadb(connection)]
        connection.exec_driver_sql(end)


def _session_statements(seconds: float, of_mariadb: bool) -> tuple[str, str, str, str]:
    """Return what sets a session, all but its mode read-only, that mode, and all of it back."""
    kind = "tx" if of_mariadb else "transaction"
    limit = "max_statement_time" if of_mariadb else "max_execution_time"
    read_only = f"{kind}_read_only"
    most = f"{seconds:.3f}" if of_mariadb else str(math.ceil(seconds * 1000))
    values = {
        "autocommit": "1",
        f"{kind}_isolation": "'READ-COMMITTED'",
        # The host's own limit is kept if it is less; 0 is no limit.
        limit: f"IF(@@SESSION.{limit} = 0, {most}, LEAST(@@SESSION.{limit}, {most}))",
        **{name: f"LEAST(@@SESSION.{name}, {math.ceil(seconds)})" for name in _LOCK_TIMEOUTS},
        # A TIMESTAMP is an instant, which comes in the session's time zone.
        "time_zone": "'+00:00'",
        # MariaDB cuts joined texts that are longer: of a page, and of events that get positions.
        "group_concat_max_len": "GREATEST(@@SESSION.group_concat_max_len, 4194304)",
    }
    begin, end = _settings({**values, read_only: 1})
    begin_writing, _ = _settings({**values, read_only: f"@@SESSION.{read_only}"})
    return begin, begin_writing, f"SET SESSION {read_only} = 1", end


def _settings(values: Mapping[str, Any]) -> tuple[str, str]:
    """Return the statement that sets variables of a session, and the one that sets them back."""
    kept = {name: f"@zeroeventhub_{name}" for name in values}
    # All values are read before the first one is set.
    keep = [f"{own} = @@SESSION.{name}" for name, own in kept.items()]
    to_set = [f"SESSION {name} = {value}" for name, value in values.items()]
    back = [f"SESSION {name} = {own}" for name, own in kept.items()]
    forget = [f"{own} = NULL" for own in kept.values()]
    return "SET " + ", ".join([*keep, *to_set]), "SET " + ", ".join([*back, *forget])


@contextmanager
def _with_settings(connection: Connection, values: Mapping[str, Any]) -> Iterator[None]:
    begin, end = _settings(values)
    connection.exec_driver_sql(begin)
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(end)


_MOMENT = "%Y-%m-%dT%H:%i:%s.%f"

_HEX = "LOWER(HEX({0}))"

_NUMBER = "{0} + 0"

_CAPTURED = {
    # Readers may take a number for a binary one, which would not keep the digits.
    "DECIMAL": "CAST({0} AS CHAR)",
    # As the same number of double precision, since FLOAT is written with six digits.
    "FLOAT": "{0} + 0E0",
    **dict.fromkeys(("BIT", "YEAR"), _NUMBER),
    "DATETIME": f"DATE_FORMAT({{0}}, '{_MOMENT}')",
    # Without the session's time zone, in which an hour comes twice in autumn.
    "TIMESTAMP": "DATE_FORMAT(TIMESTAMPADD(MICROSECOND, UNIX_TIMESTAMP({0}) * 1000000, "
    f"'1970-01-01 00:00:00.000000'), '{_MOMENT}+00:00')",
    **dict.fromkeys(("BINARY", "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB"), _HEX),
    "NullType": _HEX,  # a geometry, of which SQLAlchemy knows nothing
}
"""How a value becomes part of JSON, by the name of its type; others are as JSON_OBJECT has them."""


def _capture(one: Captured, converted: Container[str]) -> CaptureDdl:
    """Return the triggers; none of the host's can change the row again, as MySQL forbids that.

    `converted` are its columns of text in another character set than that of JSON, or none.
    """
    label, prefix = literal(one.label), literal(f"{one.label}/")

    def value(row: str, name: str) -> str:
        kind = one.types[name]
        # No number of JSON begins with the zeros that ZEROFILL writes.
        other = _NUMBER if getattr(kind, "zerofill", False) else "{0}"
        form = _CAPTURED.get(type(kind).__name__, other)
        if name in converted:
            form = "CONVERT({0} USING utf8mb4)"
        return form.format(f"{row}.{one.quote(name)}")

    def members(row: str, names: Iterable[str]) -> str:
        return ", ".join(f"{literal(name)}, {value(row, name)}" for name in names)

    def key(row: str) -> str:
        values = ", ".join(value(row, name) for name in one.key)
        text = values if len(one.key) == 1 else f"JSON_ARRAY({values})"
        return f"CONVERT(CONCAT({prefix}, {text}) USING utf8mb4) COLLATE utf8mb4_bin"

    def event(operation: str, before: str | None, after: str | None) -> str:
        row = str(after or before)
        long = f"CONCAT({prefix}, MD5({key(row)}))"
        before, after = (
            "NULL" if each is None else f"JSON_OBJECT({members(each, one.types)})"
            for each in (before, after)
        )
        return (
            f"0, UUID(), IF(CHAR_LENGTH({key(row)}) > {one.longest_key}, {long}, {key(row)}), "
            f"{literal(f'{one.label}.{operation}')}, JSON_OBJECT('table', {label}, "
            f"'operation', '{operation}', 'key', JSON_OBJECT({members(row, one.key)}), "
            f"'before', {before}, 'after', {after}, 'transaction', NULL, "
            # A variable that is not set is binary, and all beside it would be.
            "'actor', CONVERT(@zeroeventhub_actor USING utf8mb4))"
        )

    def insert(operation: str, before: str | None, after: str | None) -> str:
        # Not INSERT … SELECT, which locks the numbers of the log to the end of the statement.
        return f"{one.insert} VALUES ({event(operation, before, after)})"

    inserted, deleted = insert("insert", None, "NEW"), insert("delete", "OLD", None)
    same = f"BINARY {key('OLD')} = BINARY {key('NEW')}"
    update = insert("update", "OLD", "NEW")
    bodies = {
        "insert": inserted,
        "update": f"IF {same} THEN\n{update};\nELSE\n{deleted};\n{inserted};\nEND IF",
        "delete": deleted,
    }
    names = {event: one.own(f"{one.name}_{event}") for event in bodies}
    triggers = tuple(
        f"CREATE TRIGGER {names[event]} AFTER {event.upper()} ON {one.table} FOR EACH ROW "
        f"BEGIN\n{body};\nEND"
        for event, body in bodies.items()
    )
    drop = tuple(f"DROP TRIGGER IF EXISTS {name}" for name in names.values())
    order = ", ".join(map(one.quote, one.key))
    row = event("read", None, one.table)
    read = f"{one.insert} SELECT {row} FROM {one.table} ORDER BY {order}"  # noqa: S608 - quoted
    of_schema = literal(one.schema) if one.schema else "DATABASE()"
    return CaptureDdl(
        # Each of the statements that follow the first INSERT commits what came before.
        install=(f"LOCK TABLES {one.table} WRITE, {one.log_table} WRITE", read, *drop, *triggers),
        release=("UNLOCK TABLES",),
        uninstall=drop,
        code=triggers,
        installed="SELECT action_statement "  # noqa: S608 - names are quoted
        f"FROM information_schema.triggers WHERE trigger_schema = {of_schema} "
        # A trigger stays with its table when that is renamed.
        f"AND trigger_name LIKE '{one.name}%' AND event_object_table = {label}",
        listed=[*one.types],
    )
