"""MariaDB and MySQL, which differ in the names of settings, and in little else."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Insert,
    LargeBinary,
    Select,
    String,
    Table,
    cast,
    func,
    insert,
    inspect,
    text,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeEngine

from zeroeventhub.databases.index_hint import IndexHint, Keyset
from zeroeventhub.databases.port import Database, ErrorCodes

__all__ = ["MySQL"]

_TRANSIENT = frozenset(
    {
        1020,  # the row has changed since the snapshot
        1040,  # too many connections
        1047,  # a node of a cluster that is not ready
        1053,  # the server shuts down
        1158,  # the connection broke, here and below
        1159,
        1160,
        1161,
        1203,  # too many connections of this user
        1205,  # a lock was not to be had in time
        1213,  # deadlock
        1412,  # the table was altered since the snapshot
        1613,  # a lock was not to be had in time
        1614,  # deadlock
        1792,  # read-only, here and below: the server has become a replica
        1836,
        1927,  # the connection was killed
        2002,  # the server cannot be reached, here and below
        2003,
        2006,  # the connection was lost, here and below
        2013,
        2055,
        3572,  # a lock was not to be had at once
        4031,  # the session was idle for too long
    }
)
_READ_ONLY = 1290
_DRIVERS = {"pymysql", "aiomysql", "asyncmy", "MySQLdb"}

_COLLATION = "utf8mb4_bin"

_TRIGGERS = text("""SELECT trigger_name
    FROM information_schema.triggers WHERE event_object_schema = coalesce(:schema, DATABASE())
    AND event_object_table = :table AND event_manipulation = 'UPDATE'
    AND trigger_name NOT LIKE 'zeroeventhub%'""")

_LOCK_TIMEOUTS = ("innodb_lock_wait_timeout", "lock_wait_timeout")

_VARIABLES = {
    True: {
        "autocommit": "1",
        "tx_isolation": "'READ-COMMITTED'",
        "tx_read_only": "1",
        "max_statement_time": "{seconds}",
        "lock_wait_timeout": "{whole}",
        "innodb_lock_wait_timeout": "{whole}",
    },
    False: {
        "autocommit": "1",
        "transaction_isolation": "'READ-COMMITTED'",
        "transaction_read_only": "1",
        "max_execution_time": "{milliseconds}",
        "lock_wait_timeout": "{whole}",
        "innodb_lock_wait_timeout": "{whole}",
    },
}
"""What a session of MariaDB (True) or MySQL (False) is set to for as long as the feed has it."""


class MySQL(Database):
    """Be MariaDB or MySQL; a URL of one leads to the other as well."""

    names = ("mariadb", "mysql")
    drivers: ClassVar = {"mariadb": "mariadb+pymysql", "mysql": "mysql+pymysql"}
    deletes_ranges = False
    # UNIX_TIMESTAMP(NOW(6)) goes by way of local time, where an hour comes twice in autumn.
    unix_time = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) / 1000000E0)"
    moment = "UTC_TIMESTAMP()"
    statement_moment = "(UTC_TIMESTAMP(6))"
    fine_moment = mysql.DATETIME(fsp=6)
    error_codes = ErrorCodes(
        late=frozenset({1969, 3024, 1205}),  # a statement of MariaDB, one of MySQL, a lock
        changed=frozenset({1054, 1146, 1176, 1305}),  # a column, a table, an index, a routine
        denied=frozenset({1044, 1142, 1143, 1227, 1370}),
        duplicate=frozenset({1062}),
    )

    def title(self, dialect: Dialect) -> str:
        is_mariadb = dialect.name == "mariadb" or getattr(dialect, "is_mariadb", False)
        return "MariaDB" if is_mariadb else "MySQL"

    def insert_ignore(self, table: Table) -> Insert:
        return insert(table).prefix_with("IGNORE")

    def insert_new(self, table: Table) -> Insert:
        # INSERT IGNORE would pass over more than what is there already.
        return insert(table)

    def upsert(self, table: Table, changes: Mapping[str, Any]) -> Insert:
        return mysql.insert(table).on_duplicate_key_update(dict(changes))

    def skip_locked(self, connection: Connection, query: Select[Any]) -> Select[Any]:
        # Only SERIALIZABLE makes readers wait for writers.
        serializable = connection.get_isolation_level() == "SERIALIZABLE"
        return query.with_for_update(skip_locked=True) if serializable else query

    def latest(self, query: Select[Any]) -> Select[Any]:
        return query.with_for_update(read=True)

    def exact_text(self, kind: String) -> TypeEngine[str]:
        return type(kind)(kind.length, collation=_COLLATION)

    def long_text(self, *, is_exact: bool) -> TypeEngine[str]:
        return mysql.LONGTEXT(collation=_COLLATION) if is_exact else mysql.LONGTEXT()

    @contextmanager
    def lock_timeout(self, connection: Connection, seconds: float) -> Iterator[None]:
        connection = connection.execution_options(isolation_level="READ COMMITTED")
        kept = ", ".join(f"@zeroeventhub_{each} = @@SESSION.{each}" for each in _LOCK_TIMEOUTS)
        set_ = ", ".join(f"SESSION {each} = {max(1, int(seconds))}" for each in _LOCK_TIMEOUTS)
        back = ", ".join(f"SESSION {each} = @zeroeventhub_{each}" for each in _LOCK_TIMEOUTS)
        connection.exec_driver_sql(f"SET {kept}, {set_}")
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.exec_driver_sql(f"SET {back}")

    def read_only(self, dialect: Dialect, seconds: float) -> "_Session":
        return _Session(seconds)

    def is_transient(self, error: BaseException) -> bool:
        if not any(kind.__module__.partition(".")[0] in _DRIVERS for kind in type(error).__mro__):
            return False
        # Most numbers share one state, HY000, which says nothing.
        number = next(iter(getattr(error, "args", ())), None)
        return number in _TRANSIENT or (number == _READ_ONLY and "read" in str(error))

    def choose_index(self, connection: Connection, keys: Keyset) -> IndexHint:
        """Find an index of columns; an expression has none there without a column of its own."""
        needed = [key for key in (keys.partition, keys.position) if key is not None]
        names = [key.name for key in needed if isinstance(key, Column)]
        if not isinstance(keys.table, Table) or len(names) < len(needed):
            return IndexHint()
        look, table, schema = inspect(connection), keys.table.name, keys.table.schema
        key = look.get_pk_constraint(table, schema)["constrained_columns"]
        if key[: len(names)] == names:
            return IndexHint("PRIMARY", _HINT)
        for index in look.get_indexes(table, schema):
            if index["column_names"][: len(names)] == names and not index.get("column_sorting"):
                return IndexHint(index["name"], _HINT)
        return IndexHint()

    def exact(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        # Of text and not of bytes from Python, which aiomysql cannot send.
        return cast(cast(text, mysql.CHAR(charset="utf8mb4")), LargeBinary)

    def lower(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        # Byte by byte: in UTF-8, bytes of ASCII are never part of another letter.
        return cast(func.lower(cast(text, mysql.CHAR(charset="latin1"))), LargeBinary)

    def text_hash(self, text: str) -> str:
        # CONVERT goes from the column's own character set to UTF-8; CAST would go by way of that of
        # the connection, and lose what it lacks.
        return f"CAST(CONV(LEFT(MD5(CONVERT({text} USING utf8mb4)), 8), 16, 10) AS UNSIGNED)"

    def decimals(self, kind: TypeEngine[Any] | None, *, is_side_table: bool) -> int:
        return getattr(kind, "fsp", None) or 0

    def update_trigger(self, connection: Connection, table: Table) -> str | None:
        names = {"table": table.name, "schema": table.schema}
        name: str | None = connection.scalar(_TRIGGERS, names)
        return name

    def script(self, statements: tuple[str, ...]) -> str:
        # Some have semicolons inside.
        return "DELIMITER $$\n" + "".join(f"{line}$$\n" for line in statements) + "DELIMITER ;"


_HINT = "FORCE INDEX ({})"


class _Session:
    """Set the session for the feed, and set it back; each is one statement.

    Args:
        seconds: for a statement, if the host does not allow less.
    """

    def __init__(self, seconds: float) -> None:
        numbers = {
            "seconds": f"{seconds:.3f}",
            "milliseconds": str(math.ceil(seconds * 1000)),
            "whole": str(math.ceil(seconds)),
        }
        self._texts = {
            mariadb: _Texts({name: value.format(**numbers) for name, value in variables.items()})
            for mariadb, variables in _VARIABLES.items()
        }

    def begin(self, connection: Connection, step: str | None) -> None:
        texts = self._of(connection)
        if step is None:
            connection.exec_driver_sql(texts.arrive)
            return
        connection.exec_driver_sql(texts.arrive_writing)
        connection.exec_driver_sql(step)
        connection.exec_driver_sql(texts.read_only)

    def end(self, connection: Connection, kept: None) -> None:
        connection.exec_driver_sql(self._of(connection).leave)

    def _of(self, connection: Connection) -> "_Texts":
        dialect: Any = connection.dialect
        return self._texts[bool(dialect.is_mariadb)]


class _Texts:
    """Hold the statements that set a session.

    Args:
        variables: with what they are set to.
    """

    def __init__(self, variables: dict[str, str]) -> None:
        # All values are read before the first one is set.
        kept = {name: f"@zeroeventhub_{name}" for name in variables}
        keep = [f"{kept[name]} = @@SESSION.{name}" for name in variables]
        set_ = {name: f"SESSION {name} = {_least(name, to)}" for name, to in variables.items()}
        (last,) = (name for name in variables if name.endswith("read_only"))
        first = [text for name, text in set_.items() if name != last]
        self.arrive = "SET " + ", ".join([*keep, *set_.values()])
        self.arrive_writing = "SET " + ", ".join([*keep, *first])
        self.read_only = f"SET {set_[last]}"
        back = [f"SESSION {name} = {text}" for name, text in kept.items()]
        self.leave = "SET " + ", ".join([*back, *(f"{text} = NULL" for text in kept.values())])


def _least(name: str, to: str) -> str:
    """Leave a time as it is that the host has set to less; 0 is none."""
    if not name.startswith("max_"):
        return f"LEAST(@@SESSION.{name}, {to})" if name.endswith("timeout") else to
    return f"IF(@@SESSION.{name} = 0, {to}, LEAST(@@SESSION.{name}, {to}))"
