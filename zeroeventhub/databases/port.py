"""The interface of the databases: everything that differs between them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Protocol

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    Insert,
    Select,
    Table,
    func,
    insert,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.types import TypeEngine

from zeroeventhub.databases.index_hint import IndexHint, Keyset

SEPARATOR = b"\x1e"
"""The record separator, which is never in JSON."""


@dataclass(frozen=True)
class ErrorCodes:
    """A database's codes of errors: states, numbers, or SQLite's names.

    Attributes:
        late: a statement, or a wait for a lock, exceeded its time limit.
        changed: a table, column, index or function is missing or has changed.
        denied: the user lacks a right.
        duplicate: a unique value exists already.
        full: there is no room for more rows.
        unfit: a value cannot be stored, or a CHECK forbids it.
    """

    late: frozenset[Hashable] = frozenset()
    changed: frozenset[Hashable] = frozenset()
    denied: frozenset[Hashable] = frozenset()
    duplicate: frozenset[Hashable] = frozenset()
    full: frozenset[Hashable] = frozenset()
    unfit: frozenset[Hashable] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Captured:
    """A table whose changes triggers write to a log.

    Attributes:
        label: its name.
        schema: its schema, in which the triggers are as well; None for the connection's default.
        log: the name of the log's table.
        log_schema: the schema of the log's table.
        name: how the names of the triggers begin.
        types: the types of its columns, by name.
        key: the columns of its primary key.
        longest_key: the most characters of an event's key; a digest stands for a longer one.
        quote: quotes a name.
    """

    label: str
    schema: str | None
    log: str
    log_schema: str | None
    name: str
    types: Mapping[str, TypeEngine[Any]]
    key: Sequence[str]
    longest_key: int
    quote: Callable[[str], str]

    @property
    def table(self) -> str:
        """The table's name as SQL has it."""
        return self.own(self.label)

    @property
    def log_table(self) -> str:
        """The name of the log's table as SQL has it."""
        return self._qualified(self.log_schema, self.log)

    def own(self, name: str) -> str:
        """Return a name in the schema of the table as SQL has it."""
        return self._qualified(self.schema, name)

    def _qualified(self, schema: str | None, name: str) -> str:
        return ".".join(self.quote(part) for part in (schema, name) if part)

    def same_key(self, one: str, other: str) -> str:
        """Return the condition that two rows have equal keys, by the index of the table."""
        keys = map(self.quote, self.key)
        return " AND ".join(f"{one}.{name} = {other}.{name}" for name in keys)

    @property
    def insert(self) -> str:
        """The beginning of the statement that inserts partition, id, key, type and data."""
        columns = ", ".join(map(self.quote, ("partition", "id", "key", "type", "data")))
        return f"INSERT INTO {self.log_table} ({columns})"


@dataclass(frozen=True, kw_only=True)
class CaptureDdl:
    """The statements that let triggers write the changes of a table to a log.

    Attributes:
        install: lock writers out, write the rows that are there to the log, and create or replace
            the triggers.
        release: what is to be run after `install`, also after an error.
        uninstall: remove the triggers.
        code: those statements of `install` whose code has to be in the database.
        installed: the query for the code that is there.
        listed: the columns that the code names.
        refused: why the table is not captured, though its triggers can be removed; None if it is.
    """

    install: tuple[str, ...]
    release: tuple[str, ...] = ()
    uninstall: tuple[str, ...]
    code: tuple[str, ...]
    installed: str
    listed: Sequence[str]
    refused: str | None = None


def literal(text: str) -> str:
    """Return a text as SQL has it."""
    return "'" + text.replace("'", "''") + "'"


class ReadOnlySession(Protocol):
    """Makes a connection of the host's read-only with deadlines, and restores it."""

    def begin(self, connection: Connection, step: str | None) -> Any:
        """Make a connection read-only, with a time limit for each statement.

        Each statement sees what was committed before it.

        Args:
            connection: no transaction is open on it.
            step: a statement that writes, to be committed before anything is read; None for none.

        Returns:
            What `end` needs to know.
        """

    def end(self, connection: Connection, kept: Any) -> None:
        """Restore a connection."""


class Database(ABC):
    """What is particular to a kind of database; one instance serves all connections to it.

    Attributes:
        names: what SQLAlchemy calls its dialects.
        drivers: by the scheme of a URL, the driver that the command line uses.
        single_writer: whether one transaction writes at a time, so that writers take turns.
        locks_rows: whether a transaction can lock rows that it reads.
        aborts_on_error: whether a transaction cannot go on after an error.
        commits_without_disk: whether a transaction may commit before the disk has it.
        deletes_ranges: whether deleting a range of rows blocks no other writer.
        indexes_expressions: whether an index may hold expressions.
        adds_constraints: whether a constraint can be added to a table.
        cascades_fire_triggers: whether a change that a foreign key makes fires triggers.
        keeps_zones: whether a column of times with zones stores the zone of each.
        whole_number: the type as which JSON's whole numbers are decoded.
        makes_json: whether it makes the JSON of most events itself, by the functions of PostgreSQL
            in `JsonForm.text`.
        yields_at_each_row: whether its driver lets other threads of Python run at each row. A page
            is then written faster without another thread beside it.
        unix_time: the SQL of the seconds since 1970 at which the statement runs.
        is_frozen: the SQL of whether the transaction cannot see later commits, even by `latest`.
        moment: the SQL of the time now, in UTC if the type has no zone.
        statement_moment: the SQL of the statement's time, as the default of a column.
        fine_moment: a type of times with six decimals; None for SQLAlchemy's.
        document: the type of JSON; None for SQLAlchemy's.
        row_number: the type of a key that the database numbers; None for SQLAlchemy's.
        exact_collation: the collation that compares every character as it is; None if columns
            need none.
        long_text: a type of text of any length, compared exactly; None for Text, if it is both.
        error_codes: its codes of errors.
    """

    names: tuple[str, ...]
    drivers: ClassVar[Mapping[str, str]] = {}
    single_writer = False
    locks_rows = True
    aborts_on_error = False
    commits_without_disk = False
    deletes_ranges = True
    indexes_expressions = False
    adds_constraints = True
    cascades_fire_triggers = True
    keeps_zones = False
    whole_number: Any = int
    makes_json = False
    yields_at_each_row = False
    unix_time: str
    is_frozen = "0"
    moment = "CURRENT_TIMESTAMP"
    statement_moment = "CURRENT_TIMESTAMP"
    fine_moment: TypeEngine[Any] | None = None
    document: TypeEngine[Any] | None = None
    row_number: TypeEngine[Any] | None = None
    exact_collation: str | None = None
    long_text: TypeEngine[Any] | None = None
    error_codes = ErrorCodes()

    def as_stored(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return a column whose values, as they are read, find their rows again."""
        return column

    def title(self, dialect: Dialect) -> str:
        """Return the name of the product that a connection has reached."""
        return dialect.name

    # Writing rows.

    @abstractmethod
    def insert_ignore(self, table: Table) -> Insert:
        """Build a statement that inserts the rows whose keys are missing."""

    def insert_new(self, table: Table) -> Insert:
        """Build a statement that inserts a row, or leaves the transaction usable if its key exists.

        It either inserts nothing or raises IntegrityError with a code of `duplicate`.
        """
        return self.insert_ignore(table)

    def identity_insert(self, table: Table) -> Insert:
        """Build a statement that inserts rows, with values of columns that the database numbers."""
        return insert(table)

    @abstractmethod
    def upsert(self, table: Table, changes: Mapping[str, Any]) -> Insert:
        """Build a statement that inserts a row or changes the row of its key, and locks it."""

    def skip_locked(self, connection: Connection, query: Select[Any]) -> Select[Any]:
        """Make a query skip locked rows, if it would otherwise wait for them."""
        return query

    def latest(self, query: Select[Any]) -> Select[Any]:
        """Make a query see the last commits, or fail, instead of the transaction's snapshot."""
        return query

    def json_parameter(self, text: ColumnElement[Any], kind: TypeEngine[Any]) -> ColumnElement[Any]:
        """Return the value of a JSON column, given as text."""
        return text

    def counts_many(self, dialect: Dialect) -> bool:
        """Return whether the driver counts the rows of a statement that it runs for many."""
        return True

    def copies(self, dialect: Dialect) -> bool:
        """Return whether the driver can `copy` rows, which is quicker than any statement."""
        return False

    def copy(
        self,
        connection: Connection,
        columns: Sequence[Column[Any]],
        rows: Sequence[Sequence[Any]] | bytes,
        meanwhile: Callable[[], object],
    ) -> None:
        """Insert many rows at once; see `copies`.

        Args:
            connection: in the transaction that the rows are to be part of.
            columns: the columns of the values.
            rows: values as the driver takes them, or CSV in UTF-8, in which `null` is NULL and a
                backslash escapes quotes and itself.
            meanwhile: called when the rows were written, before the database has stored all of
                them; it returns at once.
        """
        raise NotImplementedError

    # Locks and timeouts.

    def lock_creation(self, connection: Connection) -> None:
        """Wait until no other transaction creates tables, if doing so at once is an error."""

    def limit_idle(self, connection: Connection, seconds: float) -> None:
        """Make the database end the transaction of a process that is idle for so long."""

    def lock_timeout(self, connection: Connection, seconds: float) -> AbstractContextManager[None]:
        """Let the statements of a transaction see the last commits, and wait for locks so long.

        No statement has run in the transaction yet.
        """
        return nullcontext()

    def in_session_zone(self, kind: TypeEngine[Any]) -> bool:
        """Return whether a column of times is an instant that is written in the session's zone.

        Args:
            kind: its type, as SQLAlchemy's dialect has it.
        """
        return False

    def as_published(self, connection: Connection) -> AbstractContextManager[None]:
        """Let a transaction read and write values in the forms in which `read_only` reads them.

        Times without a zone are in UTC, and what the host has set of styles and digits is left out.
        """
        return nullcontext()

    @abstractmethod
    def read_only(self, dialect: Dialect, seconds: float) -> ReadOnlySession:
        """Return what makes connections of a dialect read-only.

        A statement may take some seconds, unless the host allows less.
        """

    # Errors.

    @abstractmethod
    def is_transient(self, error: BaseException) -> bool:
        """Return whether the same transaction may succeed if it is tried again.

        The error is of a driver, which may be that of another database.
        """

    def has_rolled_back(self, error: BaseException) -> bool:
        """Return whether the database itself rolls the whole transaction back at such an error."""
        return False

    # Indexes.

    @abstractmethod
    def choose_index(self, connection: Connection, keys: Keyset) -> IndexHint:
        """Choose an index to read rows in the order of their positions."""

    def is_indexed(self, connection: Connection, keys: Keyset) -> bool:
        """Return whether rows are found by an index."""
        return self.choose_index(connection, keys).index is not None

    def invalid_indexes(self, connection: Connection, table: Table) -> Collection[str]:
        """Return the names of a table's indexes that the database could not build."""
        return ()

    # Expressions.

    @abstractmethod
    def exact(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return an expression that is equal only for the same characters."""

    def lower(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return a result of `exact` with its ASCII letters in lower case, and only these."""
        return func.lower(text)

    def unpadded(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return a column; one of text without the spaces at its end that comparisons ignore."""
        return column

    @abstractmethod
    def text_hash(self, text: str) -> str:
        """Return the SQL of the hash of a text or a whole number, as docs/partitions.md has it."""

    def remainder(self, dividend: str, divisor: str) -> str:
        """Return the SQL of the remainder of a division, without a percent sign."""
        return f"mod({dividend}, {divisor})"

    def prepare(self, engine: Engine) -> None:
        """Give every connection of an engine what `text_hash` needs; repeating it is harmless."""

    @abstractmethod
    def decimals(
        self, connection: Connection, time: ColumnElement[Any], *, is_side_table: bool
    ) -> int:
        """Return how many decimals of a second a column of times keeps.

        A side table is one of positions.
        """

    def not_before(self, time: ColumnElement[Any], moment: datetime) -> ColumnElement[bool]:
        """Return the condition that a column of times is not before a moment, of UTC."""
        return time >= moment

    # Reading rows.

    def checked(self, kind: TypeEngine[Any]) -> Callable[[Any], Any] | None:
        """Return what converts the driver's value to one of a type, or raises ValueError.

        None where SQLAlchemy converts it, and mistakes no value for another.
        """
        return None

    def joins_rows(self, dialect: Dialect) -> bool:
        """Return whether a page is read faster as one text, by `join_rows`, than row by row."""
        return False

    def join_rows(self, rows: Select[Any], *, gaps: bool) -> Select[Any]:
        """Join the positions of rows by commas, and their events by SEPARATOR.

        The third column has the bytes of all of them, without the separators; NULL if the texts are
        never cut. If the rows may have gaps, a fourth one has a 1 for each event that is NULL, and
        a 0 for each other.
        """
        raise NotImplementedError

    def can_stream(self, dialect: Dialect) -> bool:
        """Return whether a driver can `stream`."""
        return False

    def may_stream(self, connection: Connection) -> bool:
        """Return whether the host's settings allow a connection of such a driver to `stream`."""
        return False

    def compile_stream(self, query: Select[Any]) -> Any:
        """Compile a statement for `stream`."""
        raise NotImplementedError

    def stream(
        self, connection: Connection, compiled: Any, values: Mapping[str, Any], size: int
    ) -> Iterator[Any]:
        """Run a statement, and yield rows while the database reads further ones.

        The connection is one that `may_stream`, and `size` rows are in memory at once.

        Yields:
            The number of rows, and a function that returns a value as bytes by the index of its row
            and of its column.
        """
        raise NotImplementedError

    # Changes of tables.

    def capture(self, connection: Connection, one: Captured) -> CaptureDdl:
        """Return the statements of the triggers that write the changes of a table to a log.

        What the log says of a key is its row: a trigger reads the row that is there when it runs,
        if triggers of the host may have changed it again.
        """
        raise NotImplementedError

    # Checks and statements for operators.

    def warnings(self, connection: Connection) -> list[tuple[str, str, str]]:
        """Return settings that harm a feed: a word for each, a sentence, and SQL."""
        return []

    def updated_rows(self, connection: Connection, table: Table) -> int:
        """Return how many rows of a table were updated, by the database's statistics."""
        return 0

    def update_trigger(self, connection: Connection, table: Table) -> str | None:
        """Return the name of a trigger for updates that is not the library's own."""
        return None

    def hides_rows(self, connection: Connection, table: Table) -> bool:
        """Return whether policies may hide rows of a table from the connection's user."""
        return False

    def script(self, statements: tuple[str, ...]) -> str:
        """Return statements as the database's own client reads them, as one transaction."""
        return "BEGIN;\n" + "".join(f"{statement};\n" for statement in statements) + "COMMIT;"

    def missing_file(self, engine: Engine) -> str | None:
        """Return the path of the database's file if it does not exist; else None."""
        return None


class Autocommit:
    """A session in which each statement is a transaction, and that sets nothing else."""

    def begin(self, connection: Connection, step: str | None) -> bool:
        """Keep the driver from beginning transactions."""
        return set_autocommit(connection, to=True)

    def end(self, connection: Connection, kept: bool) -> None:
        """Restore the connection."""
        set_autocommit(connection, to=kept)


@contextmanager
def read_only(
    connection: Connection, session: ReadOnlySession, step: str | None = None
) -> Iterator[None]:
    """Use a connection of the host's read-only; close it if it cannot be restored.

    Args:
        connection: each of its statements sees what was committed before it.
        session: that of its database.
        step: as in `ReadOnlySession.begin`.
    """
    is_restored = False
    try:
        kept = session.begin(connection, step)
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception):
                connection.invalidate()  # a query was cut short: its result is still to come
            raise
        finally:
            if not connection.invalidated:  # the pool discards a connection that broke
                session.end(connection, kept)
            is_restored = True
    finally:
        if not is_restored:
            connection.invalidate()


def set_autocommit(connection: Connection, *, to: bool) -> bool:
    """Set the driver's autocommit mode, and return the one before."""
    driver: Any = connection.connection.dbapi_connection
    try:
        kept = bool(driver.autocommit)
        driver.autocommit = to
    except connection.dialect.loaded_dbapi.Error as error:
        raise state_error(error) from error
    return kept


def state_error(error: Exception) -> OperationalError:
    """Return SQLAlchemy's error for one of the driver's that concerns a connection's state."""
    return OperationalError("the state of the connection", None, error)
