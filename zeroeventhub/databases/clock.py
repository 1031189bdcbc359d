"""The time by the database's clock, which all processes of a consumer share."""

from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, DateTime, Double, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from zeroeventhub.databases import DATABASES
from zeroeventhub.databases.port import Database

_T = TypeVar("_T")


class _Clock(FunctionElement[_T]):
    """SQL that is an attribute of the database, called `name`."""


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
    """Return a time that was written by `Moment` with its zone."""
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


@compiles(_Clock)
def _compile(element: Any, compiler: Any, **_: Any) -> str:
    # A statement is also shown without a database, in SQLAlchemy's own dialect.
    sql: str = getattr(DATABASES.get(compiler.dialect.name, Database), element.name)
    return sql
