"""What differs between PostgreSQL, MariaDB, MySQL and SQLite: one port, and a file for each."""

from typing import Any

from zeroeventhub.databases.mysql import MySQL
from zeroeventhub.databases.port import Database
from zeroeventhub.databases.postgresql import PostgreSQL
from zeroeventhub.databases.sqlite import SQLite
from zeroeventhub.errors import ConfigurationError

__all__ = ["DATABASES", "database_of", "driver_of"]

DATABASES: dict[str, Database] = {
    name: database for database in (PostgreSQL(), MySQL(), SQLite()) for name in database.names
}
"""The databases that the library knows, by what SQLAlchemy calls their dialects."""


def database_of(bind: Any) -> Database:
    """Return the database of an engine, a connection or a dialect of SQLAlchemy's."""
    name = getattr(getattr(bind, "dialect", bind), "name", type(bind).__name__)
    if (database := DATABASES.get(name)) is None:
        raise ConfigurationError(
            f"There is no support for {name}: give an engine of PostgreSQL, MariaDB, MySQL or "
            "SQLite."
        )
    return database


def driver_of(scheme: str) -> str:
    """Return the driver that the command line uses for the scheme of a URL."""
    return next(
        (each.drivers[scheme] for each in DATABASES.values() if scheme in each.drivers), scheme
    )
