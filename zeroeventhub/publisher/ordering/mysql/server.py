"""What MariaDB and MySQL tell of themselves and of a table."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.ordering.port import Events

__all__ = [
    "check_engine",
    "check_server",
    "error_number",
    "granted",
    "is_mariadb",
    "is_read_only",
    "quoted",
]

_DENIED = {1142, 1227, 1401}
"""The numbers by which a server denies a table, an action, or a look at prepared transactions."""

_TABLE = text("""
    SELECT ENGINE AS engine FROM information_schema.TABLES
    WHERE TABLE_SCHEMA = COALESCE(:schema, DATABASE()) AND TABLE_NAME = :name
""")


def check_server(connection: Connection, oldest: dict[bool, tuple[int, ...]]) -> None:
    """Refuse a server that is too old.

    Args:
        connection: to the server.
        oldest: the oldest version of MariaDB (True) and of MySQL (False) that will do.
    """
    dialect: Any = connection.dialect
    needed = oldest[is_mariadb(connection)]
    if dialect.server_version_info < needed:
        name = "MariaDB" if is_mariadb(connection) else "MySQL"
        raise ConfigurationError(
            f"This ordering needs {name} {'.'.join(map(str, needed))} or later; this is "
            f"{'.'.join(map(str, dialect.server_version_info))}."
        )


def check_engine(connection: Connection, events: Events) -> None:
    """Refuse a table that is not there, or has no transactions.

    Raises:
        ConfigurationError: it is a view, or kept by an engine such as MyISAM.
    """
    schema = connection.schema_for_object(events.table)
    found = connection.execute(_TABLE, {"schema": schema, "name": events.table.name}).first()
    if found is None:
        raise ConfigurationError(f"There is no table {events.table.fullname!r}.")
    if found.engine is None:
        raise ConfigurationError(f"{events.table.fullname!r} is a view: publish its table.")
    if found.engine != "InnoDB":
        raise ConfigurationError(
            f"{events.table.fullname!r} is not a table of InnoDB but {found.engine}, which has no "
            f"transactions: ALTER TABLE {events.table.fullname} ENGINE = InnoDB."
        )


def is_mariadb(connection: Connection) -> bool:
    """Tell MariaDB from MySQL; a URL of one leads to the other as well."""
    dialect: Any = connection.dialect
    return bool(dialect.is_mariadb)


def is_read_only(connection: Connection) -> bool:
    """Tell whether the server is a replica, or closed to writers in another way."""
    return bool(connection.scalar(text("SELECT @@global.read_only")))


@contextmanager
def granted(rights: str) -> Iterator[None]:
    """Ask for rights where the server denies what is done without them.

    Raises:
        ConfigurationError: the feed's user has not been granted them.
    """
    try:
        yield
    except DBAPIError as error:
        if error_number(error) not in _DENIED:
            raise
        raise ConfigurationError(
            f"The feed's user may not see who is writing: GRANT {rights} TO it, or choose the "
            "ordering sequenced."
        ) from error


def error_number(error: DBAPIError) -> int | None:
    """Return the server's number of an error, whatever the driver."""
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], int) else None


def quoted(*names: str | None) -> str:
    """Quote a name of one or several parts; those that are None are left out."""
    return ".".join("`{}`".format(name.replace("`", "``")) for name in names if name)
