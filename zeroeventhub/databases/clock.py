"""What time it is by the database's clock, which is one for all processes of a consumer."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, DateTime, Double, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

__all__ = ["Moment", "UnixTime", "as_utc", "unix_time"]


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


def unix_time(connection: Connection) -> float:
    """Return the seconds since 1970, by the database's clock."""
    return float(connection.execute(select(UnixTime())).scalar_one())


def as_utc(moment: datetime) -> datetime:
    """Return a moment that was written by `Moment` with its zone."""
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


@compiles(UnixTime, "postgresql")
def _unix_time_postgresql(*_: Any, **__: Any) -> str:
    # now() is when the transaction began, which may have waited for a lock since.
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


@compiles(UnixTime, "mysql", "mariadb")
def _unix_time_mysql(*_: Any, **__: Any) -> str:
    # UNIX_TIMESTAMP(NOW(6)) goes by way of local time, where an hour comes twice in autumn.
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6)) / 1000000E0)"


@compiles(UnixTime, "sqlite")
def _unix_time_sqlite(*_: Any, **__: Any) -> str:
    # unixepoch('subsec') needs SQLite 3.42.
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(Moment)
def _moment(*_: Any, **__: Any) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(Moment, "mysql", "mariadb")
def _moment_mysql(*_: Any, **__: Any) -> str:
    return "UTC_TIMESTAMP()"
