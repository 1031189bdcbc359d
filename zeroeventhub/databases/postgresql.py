"""PostgreSQL: by any driver, and quicker by psycopg, with COPY and streams."""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, ClassVar

from sqlalchemy import (
    AdaptedConnection,
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Insert,
    Select,
    String,
    Table,
    Text,
    cast,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql.psycopg import dialect as psycopg_dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import TypeEngine

from zeroeventhub.databases.index_hint import IndexHint, Keyset, explain
from zeroeventhub.databases.port import Captured, CaptureDdl, Database, ErrorCodes, set_autocommit
from zeroeventhub.databases.postgresql_capture import capture

_TRANSIENT = frozenset(
    {
        "25006",  # read-only: the server has become a standby
        "25P03",  # the session was ended while it was idle in a transaction
        "40001",  # serialization
        "40P01",  # deadlock
        "53300",  # too many connections
        "55P03",  # lock timeout
        "57P01",  # the server shuts down, or an administrator has ended the session
        "57P02",  # another session crashed
        "57P03",  # the server starts up
        "57P05",  # the session was idle for too long
    }
)

_FINAL = (
    "authentication failed",
    "does not exist",
    "no password supplied",
    "no pg_hba.conf entry",
    "not permitted to log in",
)
"""Parts of the errors for a user who may not connect; psycopg has no code for these."""

_SEND_SEVERAL = {"psycopg", "psycopg_async", "psycopg2"}
"""The drivers that send several statements at once."""

_CHUNKED_ROWS = 170_000  # the first version of libpq that returns many rows at a time

_UPDATED = text(
    "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relid = CAST(CAST(:name AS regclass) AS oid)"
)
_TRIGGERS = text("""SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND (tgtype & 16) > 0
        AND tgname NOT LIKE 'zeroeventhub%'
        AND tgrelid = CAST(CAST(:name AS regclass) AS oid)""")

# An index that could not be built concurrently stays, as where two rows have the same value.
_INVALID = text("""SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
    WHERE indrelid = CAST(:name AS regclass) AND NOT indisvalid""")

_PRECISION = text("""SELECT nullif(coalesce(nullif(atttypmod, -1), typtypmod), -1)
    FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
    WHERE attrelid = CAST(:name AS regclass) AND attname = :column
        AND coalesce(nullif(typbasetype, 0), atttypid)
            IN ('timestamp'::regtype, 'timestamptz'::regtype)""")

_SECURED = text("SELECT row_security_active(CAST(:name AS regclass))")

_FORMS = {"datestyle": "ISO", "intervalstyle": "postgres", "extra_float_digits": "3"}
"""Settings of text: drivers read PostgreSQL's own style alone, and floats need all their digits."""

# That of psycopg, for which SQLAlchemy casts each parameter: PostgreSQL cannot infer all types.
_NUMBERED: Any = psycopg_dialect(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call] # it has no annotations


class PostgreSQL(Database):
    """PostgreSQL."""

    names = ("postgresql",)
    drivers: ClassVar = {"postgres": "postgresql+psycopg", "postgresql": "postgresql+psycopg"}
    aborts_on_error = True
    commits_without_disk = True
    indexes_expressions = True
    keeps_zones = True
    makes_json = True
    # now() is the start of the transaction, which may have waited for a lock since.
    unix_time = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"
    is_frozen = "(current_setting('transaction_isolation') IN ('repeatable read', 'serializable'))"
    # CURRENT_TIMESTAMP is the start of the transaction.
    statement_moment = "statement_timestamp()"
    document = postgresql.JSONB()
    error_codes = ErrorCodes(
        late=frozenset({"57014", "55P03", "25P03"}),  # a statement, a lock, or between statements
        changed=frozenset({"42P01", "42703", "42883", "0A000"}),  # table, column, function, result
        denied=frozenset({"42501"}),
        duplicate=frozenset({"23505"}),
        full=frozenset({"53100"}),
        # A number, a text, a character, a CHECK, JSON that is nested too deeply.
        unfit=frozenset({"22003", "22P02", "22P05", "23514", "54001"}),
    )

    def title(self, dialect: Dialect) -> str:
        return "PostgreSQL"

    def insert_ignore(self, table: Table) -> Insert:
        return postgresql.insert(table).on_conflict_do_nothing()

    def identity_insert(self, table: Table) -> Insert:
        return _IdentityInsert(table)

    def upsert(self, table: Table, changes: Mapping[str, Any]) -> Insert:
        keys = [column.name for column in table.primary_key]
        return postgresql.insert(table).on_conflict_do_update(index_elements=keys, set_=changes)

    def json_parameter(self, text: ColumnElement[Any], kind: TypeEngine[Any]) -> ColumnElement[Any]:
        return cast(text, kind)

    def counts_many(self, dialect: Dialect) -> bool:
        return dialect.driver != "asyncpg"

    def copies(self, dialect: Dialect) -> bool:
        return dialect.driver == "psycopg"

    def copy(
        self,
        connection: Connection,
        columns: Sequence[Column[Any]],
        rows: Sequence[Sequence[Any]] | bytes,
        meanwhile: Callable[[], object],
    ) -> None:
        statement = _copy_statement(tuple(columns), connection.dialect)
        arguments: tuple[Any, ...] = (statement, "write_row", rows)
        if isinstance(rows, bytes):
            statement += r" (FORMAT csv, NULL 'null', ESCAPE E'\\', ENCODING 'UTF8')"
            arguments = (statement, "write", [rows])
        if not connection.in_transaction():
            connection.begin()  # as SQLAlchemy does at the first of its own statements
        driver: Any = connection.connection.dbapi_connection
        try:
            if isinstance(driver, AdaptedConnection):
                driver.run_async(lambda own: _copy_async(own, meanwhile, *arguments))
            else:
                _copy_sync(driver, meanwhile, *arguments)
        except connection.dialect.loaded_dbapi.Error as error:
            raise _statement_error(connection, statement, error) from error

    def lock_creation(self, connection: Connection) -> None:
        key = 0x7A65726F  # "zero" in ASCII
        connection.execute(select(func.pg_advisory_xact_lock(key)))

    def limit_idle(self, connection: Connection, seconds: float) -> None:
        limit = {"idle_in_transaction_session_timeout": round(seconds * 1000)}
        connection.exec_driver_sql(f"SELECT {_set_local(limit)}")

    @contextmanager
    def lock_timeout(self, connection: Connection, seconds: float) -> Iterator[None]:
        connection = connection.execution_options(isolation_level="READ COMMITTED")
        connection.exec_driver_sql(f"SELECT {time_bound('lock_timeout', seconds)}")
        yield

    @contextmanager
    def as_published(self, connection: Connection) -> Iterator[None]:
        connection.exec_driver_sql(f"SELECT {_set_local(_FORMS)}")
        yield

    def read_only(self, dialect: Dialect, seconds: float) -> "_Session":
        return _Session(seconds, together=dialect.driver in _SEND_SEVERAL)

    def is_transient(self, error: BaseException) -> bool:
        state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if isinstance(state, str):
            return state in _TRANSIENT or state.startswith("08")  # the connection broke
        kinds = [(kind.__name__, kind.__module__) for kind in type(error).__mro__]
        if any(name == "InterfaceError" and "asyncpg" in module for name, module in kinds):
            return "connection is closed" in str(error)
        is_operational = any(
            name == "OperationalError" and module.partition(".")[0] in {"psycopg", "psycopg2"}
            for name, module in kinds
        )
        return is_operational and not any(sentence in str(error) for sentence in _FINAL)

    def choose_index(self, connection: Connection, keys: Keyset) -> IndexHint:
        by_pairs = keys.partition is not None and self.is_indexed(connection, keys)
        return IndexHint(by_pairs=by_pairs)

    def is_indexed(self, connection: Connection, keys: Keyset) -> bool:
        """Return whether an index of columns or expressions has the order."""
        hint = IndexHint(by_pairs=keys.partition is not None)
        found = explain(connection, keys, hint, "EXPLAIN (FORMAT JSON)").scalar_one()
        plan = found if isinstance(found, list) else json.loads(found)
        nodes = [*_nodes(plan[0]["Plan"])]
        scans = [node for node in nodes if "Relation Name" in node]
        sorts = [node for node in nodes if node["Node Type"] in {"Sort", "Incremental Sort"}]
        wanted = "ROW(" if hint.by_pairs else "("
        return not sorts and all(wanted in node.get("Index Cond", "") for node in scans)

    def exact(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        return text.collate("C")

    def unpadded(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return cast(column, Text) if isinstance(column.type, String) else column

    def text_hash(self, text: str) -> str:
        # In a database of another encoding than UTF8 it is the hash of other bytes.
        return f"CAST(CAST('x' || substr(md5(CAST({text} AS text)), 1, 8) AS bit(32)) AS bigint)"

    def decimals(
        self, connection: Connection, time: ColumnElement[Any], *, is_side_table: bool
    ) -> int:
        # Neither the type for a dialect nor a declaration of DateTime says how many there are.
        precision: int | None = getattr(time.type, "precision", None)
        if isinstance(time, Column):
            named = {"name": quoted_name(connection, time.table), "column": time.name}
            precision = connection.scalar(_PRECISION, named)
        return 6 if precision is None else precision

    def not_before(self, time: ColumnElement[Any], moment: datetime) -> ColumnElement[bool]:
        # Without a type it is of the column's own, whatever type was declared: PostgreSQL would
        # compare a time with a zone and one without by the session's zone.
        return time >= literal_column(f"'{moment.isoformat(sep=' ')}+00'")

    def can_stream(self, dialect: Dialect) -> bool:
        if dialect.driver != "psycopg":
            return False
        from psycopg import pq  # noqa: PLC0415 - of another extra

        return pq.version() >= _CHUNKED_ROWS

    def may_stream(self, connection: Connection) -> bool:
        if connection.get_execution_options().get("schema_translate_map"):
            return False
        driver: Any = connection.connection.driver_connection
        return bool(driver.info.encoding == "utf-8")

    def compile_stream(self, query: Select[Any]) -> tuple[str, list[str], dict[str, Any]]:
        """Return the statement for libpq, its parameters' names, and the values given in it."""
        compiled = query.compile(dialect=_NUMBERED, compile_kwargs={"render_postcompile": True})
        given = {name: value for name, value in compiled.params.items() if value is not None}
        return str(compiled), list(compiled.positiontup or ()), given

    def stream(
        self,
        connection: Connection,
        compiled: tuple[str, list[str], dict[str, Any]],
        values: Mapping[str, Any],
        size: int,
    ) -> Iterator[Any]:
        """Stream rows by libpq, without making Python's values of them, in half of the time."""
        from psycopg.errors import error_from_result  # noqa: PLC0415 - of another extra
        from psycopg.generators import fetch  # noqa: PLC0415

        driver: Any = connection.connection.driver_connection
        adapted: Any = connection.connection.dbapi_connection
        statement, names, more = compiled
        parameters = [*map({**more, **values}.__getitem__, names)]
        pgconn = driver.pgconn
        arguments = (connection, None, statement, parameters, SimpleNamespace(), False)
        for listener in connection.dispatch.before_cursor_execute:  # those of the host's engine
            listener(*arguments)

        def result() -> Any:
            if isinstance(adapted, AdaptedConnection):
                return adapted.run_async(lambda own: own.wait(fetch(pgconn)))
            return driver.wait(fetch(pgconn))

        try:
            sent = [*map(str.encode, map(str, parameters))]
            pgconn.send_query_params(statement.encode(), sent)
            pgconn.set_chunked_rows_mode(size)
            is_complete = False
            try:
                while (found := result()) is not None:
                    if found.ntuples:
                        yield found.ntuples, found.get_value
                    elif found.error_message:
                        raise error_from_result(found, "utf-8")
                is_complete = True
            finally:
                # The connection accepts no other statement before the end of this one's result.
                while not is_complete and result() is not None:
                    pass
        except connection.dialect.loaded_dbapi.Error as error:
            raise _statement_error(connection, statement, error) from error
        for listener in connection.dispatch.after_cursor_execute:
            listener(*arguments)

    def capture(self, connection: Connection, one: Captured) -> CaptureDdl:
        return capture(connection, one)

    def updated_rows(self, connection: Connection, table: Table) -> int:
        return connection.scalar(_UPDATED, {"name": quoted_name(connection, table)}) or 0

    def update_trigger(self, connection: Connection, table: Table) -> str | None:
        name: str | None = connection.scalar(_TRIGGERS, {"name": quoted_name(connection, table)})
        return name

    def invalid_indexes(self, connection: Connection, table: Table) -> Collection[str]:
        return connection.scalars(_INVALID, {"name": quoted_name(connection, table)}).all()

    def hides_rows(self, connection: Connection, table: Table) -> bool:
        return bool(connection.scalar(_SECURED, {"name": quoted_name(connection, table)}))


def _set_local(settings: Mapping[str, Any]) -> str:
    """Return the SQL that changes settings up to the end of the transaction."""
    return ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings.items())


def time_bound(setting: str, seconds: float) -> str:
    """Return the SQL that sets a time limit such as lock_timeout, unless the host allows less."""
    # The setting is text such as 30s, and 0 for none.
    return (
        f"set_config('{setting}', CAST(least(nullif(CAST(extract(epoch FROM "
        f"CAST(current_setting('{setting}') AS interval)) * 1000 AS bigint), 0), "
        f"{math.ceil(seconds * 1000)}) AS text), true)"
    )


class _IdentityInsert(Insert):
    """Insert values of columns GENERATED ALWAYS as well, as COPY does."""

    inherit_cache = True


@compiles(_IdentityInsert)
def _override(insert: _IdentityInsert, compiler: Any, **options: Any) -> str:
    text: str = compiler.visit_insert(insert, **options)
    return text.replace(") VALUES ", ") OVERRIDING SYSTEM VALUE VALUES ", 1)


class _Session:
    """Read in a transaction, whose end takes back its settings.

    At READ COMMITTED each statement sees what was committed before it, as the orderings need it.

    `seconds` limit a statement, unless the host allows less; `together` says that the driver sends
    several statements at once.
    """

    def __init__(self, seconds: float, *, together: bool) -> None:
        self._together = together
        bounds = ", ".join(
            time_bound(name, seconds)
            for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        )
        # Whatever statistics say, rows are read in the order of an index, and not sorted.
        order = dict.fromkeys(("enable_sort", "enable_incremental_sort", "enable_seqscan"), "off")
        self._reading = (
            "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY",
            f"SELECT {bounds}, {_set_local(order | _FORMS)}",
        )
        self._writing = ("BEGIN ISOLATION LEVEL READ COMMITTED", f"SELECT {bounds}")

    def begin(self, connection: Connection, step: str | None) -> bool:
        kept = set_autocommit(connection, to=True)
        statements: tuple[str, ...] = self._reading
        if step is not None:
            # The commit has no time limit: if it waits for a standby and were given up, readers
            # would see what the standby may never have. Only the connection that gives positions
            # waits so.
            unlimited = "SET LOCAL statement_timeout = 0"
            statements = (*self._writing, step, unlimited, "COMMIT", *self._reading)
        # A driver that prepares every statement, by a threshold of 0, cannot prepare several.
        driver = connection.connection.driver_connection
        together = self._together and getattr(driver, "prepare_threshold", None) != 0
        for statement in ["; ".join(statements)] if together else statements:
            connection.exec_driver_sql(statement)
        return kept

    def end(self, connection: Connection, kept: bool) -> None:
        connection.exec_driver_sql("ROLLBACK")
        set_autocommit(connection, to=kept)


def quoted_name(connection: Connection, table: Table) -> str:
    """Return a table's name for `regclass`, with the schema in which queries find the table."""
    names = (connection.schema_for_object(table), table.name)
    return ".".join('"' + name.replace('"', '""') + '"' for name in names if name)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def _statement_error(connection: Connection, statement: str, error: Exception) -> Exception:
    """Return SQLAlchemy's error for one of the driver's."""
    dialect: Any = connection.dialect
    kind = dialect.loaded_dbapi.Error
    return DBAPIError.instance(statement, None, error, kind, dialect=dialect)


@lru_cache(maxsize=64)
def _copy_statement(columns: tuple[Column[Any], ...], dialect: Dialect) -> str:
    quoted = dialect.identifier_preparer
    names = ", ".join(quoted.format_column(column) for column in columns)
    statement = f"COPY {quoted.format_table(columns[0].table)} ({names}) FROM STDIN"
    return statement.replace("%%", "%")  # it has no parameters, for which percent signs are doubled


def _copy_sync(
    driver: Any, meanwhile: Callable[[], object], statement: str, write: str, items: Iterable[Any]
) -> None:
    with driver.cursor() as cursor, cursor.copy(statement) as copy:
        for item in items:
            getattr(copy, write)(item)
        meanwhile()


async def _copy_async(
    driver: Any, meanwhile: Callable[[], object], statement: str, write: str, items: Iterable[Any]
) -> None:
    async with driver.cursor() as cursor, cursor.copy(statement) as copy:
        for item in items:
            await getattr(copy, write)(item)
        meanwhile()
