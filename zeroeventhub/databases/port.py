"""The interface of the databases: all that differs between them."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    Insert,
    Select,
    String,
    Table,
)
from sqlalchemy.types import TypeEngine

from zeroeventhub.databases.index_hint import IndexHint, Keyset
from zeroeventhub.databases.read_only import ReadOnlySession

__all__ = ["SEPARATOR", "Database", "ErrorCodes"]

SEPARATOR = b"\x1e"
"""The record separator, which is never in JSON."""


@dataclass(frozen=True)
class ErrorCodes:
    """List a database's names of errors: states, numbers, or SQLite's words.

    Attributes:
        late: a statement, or a wait for a lock, took longer than it may.
        changed: what a statement names is not there, or not what it was.
        denied: the user lacks a right.
        duplicate: a unique value is there already.
    """

    late: frozenset[Hashable] = frozenset()
    changed: frozenset[Hashable] = frozenset()
    denied: frozenset[Hashable] = frozenset()
    duplicate: frozenset[Hashable] = frozenset()


class Database(ABC):
    """Say what is particular to a kind of database; one instance for all connections to it.

    Attributes:
        names: what SQLAlchemy calls its dialects.
        drivers: by the scheme of a URL, the driver that the command line uses.
        single_writer: whether one transaction writes at a time, so that writers take turns.
        locks_rows: whether a transaction can lock rows that it reads.
        aborts_on_error: whether a transaction cannot go on after an error.
        commits_without_disk: whether a transaction may commit before the disk has it.
        deletes_ranges: whether deleting a range of rows keeps no other writer waiting.
        indexes_expressions: whether an index may hold expressions.
        adds_constraints: whether a constraint can be added to a table.
        keeps_zones: whether a column of moments with zones knows the zone of each.
        takes_booleans: whether its driver takes them as Python has them, whatever SQLAlchemy says.
        makes_json: whether it writes the JSON of most events itself, by the functions of PostgreSQL
            that `JsonForm.text` has.
        joins_rows: whether a page is quicker to read as one text, because each row that the driver
            returns costs much.
        unix_time: the SQL of the seconds since 1970, when the statement is carried out.
        moment: the SQL of the moment, in UTC wherever the type itself has no zone.
        statement_moment: the SQL of the moment of the statement, as the default of a column.
        error_codes: what it calls errors.
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
    keeps_zones = False
    takes_booleans = False
    makes_json = False
    joins_rows = False
    unix_time: str
    moment = "CURRENT_TIMESTAMP"
    statement_moment = "CURRENT_TIMESTAMP"
    error_codes = ErrorCodes()

    def title(self, dialect: Dialect) -> str:
        """Return the name of the product that a connection has found."""
        return dialect.name

    # Rows that are written.

    @abstractmethod
    def insert_ignore(self, table: Table) -> Insert:
        """Build a statement that inserts rows whose keys are free, and passes over the rest."""

    def insert_new(self, table: Table) -> Insert:
        """Build a statement that inserts a row, or leaves the transaction usable if its key exists.

        It either inserts nothing or raises IntegrityError with a code of `duplicate`.
        """
        return self.insert_ignore(table)

    @abstractmethod
    def upsert(self, table: Table, changes: Mapping[str, Any]) -> Insert:
        """Build a statement that inserts a row or changes the one of its key, and locks it."""

    def skip_locked(self, connection: Connection, query: Select[Any]) -> Select[Any]:
        """Let a query pass over rows that are locked, where it would wait for them."""
        return query

    def latest(self, query: Select[Any]) -> Select[Any]:
        """Let a query see the last commits, or fail; not what the transaction saw first."""
        return query

    def json_parameter(self, text: ColumnElement[Any], kind: TypeEngine[Any]) -> ColumnElement[Any]:
        """Return the value of a column of JSON, given as text."""
        return text

    def copies(self, dialect: Dialect) -> bool:
        """Return whether `copy` inserts rows, which is quicker than any statement."""
        return False

    def copy(
        self,
        connection: Connection,
        columns: Sequence[Column[Any]],
        rows: Sequence[Sequence[Any]],
        csv: bytes | None,
    ) -> None:
        """Insert many rows at once; see `copies`.

        Args:
            connection: in the transaction that the rows are to be part of.
            columns: those that there are values for.
            rows: values as the driver takes them.
            csv: the same as CSV in UTF-8, in which `null` is NULL and a backslash stands before
                quotes and before itself; None where they could not be written so.
        """
        raise NotImplementedError

    # Types of the library's own columns; None for SQLAlchemy's.

    def exact_text(self, kind: String) -> TypeEngine[str] | None:
        """Return a type of text that compares every character as it is."""
        return None

    def long_text(self, *, is_exact: bool) -> TypeEngine[str] | None:
        """Return a type of text of any length, where Text has a limit.

        Args:
            is_exact: whether every character is compared as it is.
        """
        return None

    fine_moment: TypeEngine[Any] | None = None
    """A type of moments with six decimals."""

    document: TypeEngine[Any] | None = None
    """The type of JSON."""

    row_number: TypeEngine[Any] | None = None
    """The type of a key that the database numbers."""

    # Locks and timeouts.

    def lock_creation(self, connection: Connection) -> None:
        """Keep other processes from creating a table at the same moment, if that is an error.

        Args:
            connection: in a transaction, which keeps the lock.
        """

    def limit_idle(self, connection: Connection, seconds: float) -> None:
        """Let the database end the transaction of a process that does nothing for so long."""

    def lock_timeout(self, connection: Connection, seconds: float) -> AbstractContextManager[None]:
        """Let the statements of a transaction see the last commits, and wait for locks no longer.

        Args:
            connection: no statement has been run in its transaction.
            seconds: for which a statement may wait for a lock.
        """
        return nullcontext()

    @abstractmethod
    def read_only(self, dialect: Dialect, seconds: float) -> ReadOnlySession:
        """Return what makes connections read-only.

        Args:
            dialect: of these connections.
            seconds: for a statement, unless the host allows less.
        """

    # Errors.

    @abstractmethod
    def is_transient(self, error: BaseException) -> bool:
        """Return whether the same transaction may succeed if it is tried again.

        Args:
            error: of a driver, which may be that of another database.
        """

    # How rows are found.

    @abstractmethod
    def choose_index(self, connection: Connection, keys: Keyset) -> IndexHint:
        """Find how rows are read in the order of their positions, by the indexes there are now."""

    def is_indexed(self, connection: Connection, keys: Keyset) -> bool:
        """Return whether rows are found by an index."""
        return self.choose_index(connection, keys).index is not None

    # Expressions.

    @abstractmethod
    def exact(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return what is equal only to the same text, whatever the database takes for equal."""

    @abstractmethod
    def lower(self, text: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return what `exact` returned with only its ASCII letters in lower case."""

    @abstractmethod
    def text_hash(self, text: str) -> str:
        """Return the SQL of the hash of a text, as docs/partitions.md defines it.

        Args:
            text: the SQL of the text, or of a whole number.
        """

    def remainder(self, dividend: str, divisor: str) -> str:
        """Return the SQL of what is left of a division, without a percent sign."""
        return f"mod({dividend}, {divisor})"

    def prepare(self, engine: Engine) -> None:
        """Give every connection of an engine what `text_hash` needs; again, and nothing changes."""

    @abstractmethod
    def decimals(self, kind: TypeEngine[Any] | None, *, is_side_table: bool) -> int:
        """Return how many decimals of a second a column of moments keeps.

        Args:
            kind: the type, as SQLAlchemy's dialect has it; None if it is not known.
            is_side_table: whether the moments are those of positions beside the events.
        """

    def not_before(self, time: ColumnElement[Any], moment: datetime) -> ColumnElement[bool]:
        """Return what holds where a column is a moment or later one.

        Args:
            time: the column.
            moment: in the form of the column.
        """
        return time >= moment

    # Rows that are read.

    def join_rows(self, rows: Select[Any], *, gaps: bool) -> Select[Any]:
        """Join the positions of rows by commas, and their events by SEPARATOR; see `joins_rows`.

        Args:
            rows: selects a position and an event.
            gaps: whether an event may be NULL; a third text then has 1 for each that is, and 0.
        """
        raise NotImplementedError

    def can_stream(self, dialect: Dialect) -> bool:
        """Return whether a driver returns rows while the database still reads; see `stream`."""
        return False

    def may_stream(self, connection: Connection) -> bool:
        """Return whether a connection of such a driver is able to, as the host has set it."""
        return False

    def compile_stream(self, query: Select[Any]) -> Any:
        """Return what `stream` takes of a statement."""
        raise NotImplementedError

    def stream(
        self, connection: Connection, compiled: Any, values: Mapping[str, Any], size: int
    ) -> Iterator[Any]:
        """Run a statement, and yield what it returns while the database still reads the next.

        Args:
            connection: of which `may_stream` holds.
            compiled: made by `compile_stream`.
            values: its parameters.
            size: how many rows are in memory at once.

        Yields:
            How many rows there are, and a function that returns a value as bytes by the index of
            its row and of its column.
        """
        raise NotImplementedError

    # Checks of a table, and statements for operators.

    def warnings(self, connection: Connection) -> list[tuple[str, str, str]]:
        """Say which settings make a feed slow: a word for each, a sentence, and SQL to mend it."""
        return []

    def updated_rows(self, connection: Connection, table: Table) -> int:
        """Return how many rows of a table were updated, as far as statistics say."""
        return 0

    def update_trigger(self, connection: Connection, table: Table) -> str | None:
        """Return the name of a trigger for updates that is not the library's own."""
        return None

    def script(self, statements: tuple[str, ...]) -> str:
        """Return statements as the database's own client reads them, as one transaction."""
        return "BEGIN;\n" + "".join(f"{statement};\n" for statement in statements) + "COMMIT;"

    def missing_file(self, engine: Engine) -> str | None:
        """Name the file of a database that is not there; None for all else."""
        return None
