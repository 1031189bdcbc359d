"""The library's own tables in a host's database: their types, their clock, their statements."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    DateTime,
    Dialect,
    Double,
    Index,
    String,
    Table,
    Text,
    UniqueConstraint,
    inspect,
    select,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable
from sqlalchemy.sql.elements import ClauseElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from zeroeventhub.databases import DATABASES, database_of
from zeroeventhub.databases.port import Database
from zeroeventhub.errors import ConfigurationError

_T = TypeVar("_T")


def table_exists(connection: Connection, table: Table) -> bool:
    """Return whether a table exists, in the schema in which the connection finds it."""
    schema = connection.schema_for_object(table)
    return inspect(connection).has_table(table.name, schema=schema)


def unique_columns(connection: Connection, table: Table) -> list[set[str]]:
    """Return the sets of columns, each of which no two rows of a table have in common."""
    look, schema = inspect(connection), connection.schema_for_object(table)
    invalid = database_of(connection).invalid_indexes(connection, table)
    unique: list[Any] = [look.get_pk_constraint(table.name, schema=schema)["constrained_columns"]]
    unique += [
        found["column_names"]
        # Those of constraints as well; SQLAlchemy reads SQLite's from the text of the table.
        for found in look.get_indexes(table.name, schema, include_auto_indexes=True)
        if found["unique"]
        and found["name"] not in invalid
        # A partial index does not make its columns unique over all rows.
        and not any(name.endswith("_where") for name in found.get("dialect_options", {}))
    ]
    return [{*columns} for columns in unique if columns]


def portions(values: Sequence[_T], most: int = 1_000) -> Iterator[Sequence[_T]]:
    """Divide values among statements that name each of them: databases limit the parameters."""
    for start in range(0, len(values), most):
        yield values[start : start + most]


def expect_unique(table: Table, *columns: Column[Any]) -> None:
    """Refuse a table that is not declared to have a unique index on columns."""
    parts = [table.primary_key, *table.constraints, *table.indexes]
    unique = (
        {*part.columns}
        for part in parts
        if part is table.primary_key
        or isinstance(part, UniqueConstraint)
        or (isinstance(part, Index) and part.unique)
    )
    if {*columns} not in unique:
        names = ", ".join(f'"{column.name}"' for column in columns)
        raise ConfigurationError(
            f"Table {table.fullname!r} is not declared to be unique in ({names}), which keeps two "
            f"who append at once apart: add UniqueConstraint({names}), and create it."
        )


def _of_each(
    kind: TypeEngine[_T], own: Callable[[Database], TypeEngine[Any] | None]
) -> TypeEngine[_T]:
    """Return a type that is replaced by each database's own, if it has one."""
    for database in dict.fromkeys(DATABASES.values()):
        if (variant := own(database)) is not None:
            kind = kind.with_variant(variant, *database.names)
    return kind


def exact(kind: String) -> TypeEngine[str]:
    """Return a type of text that compares every character as it is."""

    def own(database: Database) -> TypeEngine[str] | None:
        collation = database.exact_collation
        return None if collation is None else type(kind)(kind.length, collation=collation)

    return _of_each(kind, own)


def long_text() -> TypeEngine[str]:
    """Return a type of exact text of any length, which Text is not on every database."""
    return _of_each(Text(), lambda database: database.long_text)


def fine_moment() -> TypeEngine[Any]:
    """Return a type of times with six decimals of a second."""
    return _of_each(DateTime(timezone=True), lambda database: database.fine_moment)


def document() -> TypeEngine[Any]:
    """Return the type of JSON that the database compares and indexes."""
    return _of_each(JSON(), lambda database: database.document)


def row_number() -> TypeEngine[int]:
    """Return the type of a key that the database numbers."""
    return _of_each(BigInteger(), lambda database: database.row_number)


class _Clock(FunctionElement[_T]):
    """SQL of a time by the database's clock, which all processes share: its attribute `name`."""


class UnixTime(_Clock[float]):
    """The seconds since 1970 at which the statement runs."""

    inherit_cache = True
    type = Double()
    name = "unix_time"


class Moment(_Clock[datetime]):
    """The time of the transaction or statement, in UTC if the type has no zone."""

    inherit_cache = True
    type = DateTime(timezone=True)
    name = "moment"


class StatementMoment(_Clock[datetime]):
    """The time of the statement as a column's default, to microseconds if the database has them."""

    inherit_cache = True
    type = DateTime(timezone=True)
    name = "statement_moment"


def unix_time(connection: Connection) -> float:
    """Return the seconds since 1970, by the database's clock."""
    return float(connection.execute(select(UnixTime())).scalar_one())


def as_utc(moment: datetime) -> datetime:
    """Return a time in UTC; without a zone it is of UTC already, as `Moment` writes it."""
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


@compiles(_Clock)
def _compile(element: Any, compiler: Any, **_: Any) -> str:
    # A statement is also shown without a database, in SQLAlchemy's own dialect.
    sql: str = getattr(DATABASES.get(compiler.dialect.name, Database), element.name)
    return sql


def creation(dialect: Dialect, table: Table) -> str:
    """Return the statement that creates a table unless it exists."""
    return statement_text(dialect, CreateTable(table, if_not_exists=True)).strip()


def statement_text(dialect: Dialect, statement: ClauseElement, **options: Any) -> str:
    """Return a statement as an operator runs it."""
    return str(statement.compile(dialect=_of_operators(dialect), **options))


def quoted(dialect: Dialect) -> Callable[[str], str]:
    """Return the function that quotes a name in statements that an operator runs."""
    return _of_operators(dialect).identifier_preparer.quote_identifier


def _of_operators(dialect: Dialect) -> Dialect:
    # In another parameter style percent signs would be doubled.
    make: Any = type(dialect)
    return make(paramstyle="named")  # type: ignore[no-any-return] # as `make` is any


def run(connection: Connection, statements: Iterable[str]) -> None:
    """Run statements as an operator would."""
    for statement in statements:
        # A colon in a statement, as in a cast, does not begin a parameter.
        connection.execute(text(statement.replace(":", r"\:")))


def insert_ignore(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows whose keys are missing, and return how many were inserted."""
    if not rows:
        return 0
    database = database_of(connection)
    statement, counted = database.insert_ignore(table), {"preserve_rowcount": True}
    parts = [list(rows)] if database.counts_many(connection.dialect) else rows
    return sum(
        connection.execute(statement, part, execution_options=counted).rowcount for part in parts
    )


def upsert(
    connection: Connection, table: Table, row: Mapping[str, Any], changes: Mapping[str, Any]
) -> None:
    """Insert a row, or change the existing row of its key; lock it in both cases.

    MariaDB and MySQL lock the gap where a query finds no row, so two processes that query first and
    then insert would deadlock.
    """
    connection.execute(database_of(connection).upsert(table, changes), dict(row))
