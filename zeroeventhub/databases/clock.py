"""The time by the database's clock, which all processes of a consumer share."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, DateTime, Double, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from zeroeventhub.databases import DATABASES, database_of
from zeroeventhub.databases.port import Database

__all__ = ["Moment", "StatementMoment", "UnixTime", "as_utc", "unix_time"]


class UnixTime(FunctionElement[float]):
    """The seconds since 1970, by the database's clock, when the statement is carried out."""

    type = Double()
    inherit_cache = True
    name = "unix_time"


class Moment(FunctionElement[datetime]):
    """The moment by the database's clock, in UTC wherever the type itself has no zone."""

    type = DateTime(timezone=True)
    inherit_cache = True
    name = "moment"


class StatementMoment(FunctionElement[datetime]):
    """The same of the statement, to microseconds where the database has them, as a default."""

    type = DateTime(timezone=True)
    inherit_cache = True
    name = "statement_moment"


def unix_time(connection: Connection) -> float:
    """Return the seconds since 1970, by the database's clock."""
    return float(connection.execute(select(UnixTime())).scalar_one())


def as_utc(moment: datetime) -> datetime:
    """Return a moment that was written by `Moment` with its zone."""
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


@compiles(UnixTime)
def _unix_time(_: UnixTime, compiler: Any, **__: Any) -> str:
    return database_of(compiler).unix_time


@compiles(Moment)
def _moment(_: Moment, compiler: Any, **__: Any) -> str:
    # A statement is also shown without a database, in a dialect of SQLAlchemy's own.
    return getattr(DATABASES.get(compiler.dialect.name), "moment", Database.moment)


@compiles(StatementMoment)
def _statement_moment(_: StatementMoment, compiler: Any, **__: Any) -> str:
    database = DATABASES.get(compiler.dialect.name)
    return getattr(database, "statement_moment", Database.statement_moment)
