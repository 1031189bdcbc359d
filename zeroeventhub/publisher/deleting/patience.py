"""For how long a batch waits for the locks of others."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from zeroeventhub.publisher.time_bound import time_bound

__all__ = ["PATIENCE", "impatient"]

PATIENCE = 1.0
"""Seconds that a batch waits for the locks of others, at most."""

_ON_MYSQL = ("innodb_lock_wait_timeout", "lock_wait_timeout")


@contextmanager
def impatient(connection: Connection) -> Iterator[None]:
    """Let the statements of a transaction see the last commits, and wait for nobody for long."""
    name = connection.dialect.name
    if name == "sqlite":
        yield
        return
    connection = connection.execution_options(isolation_level="READ COMMITTED")
    if name == "postgresql":
        connection.exec_driver_sql(f"SELECT {time_bound('lock_timeout', PATIENCE)}")
        yield
        return
    kept = ", ".join(f"@zeroeventhub_{each} = @@SESSION.{each}" for each in _ON_MYSQL)
    set_ = ", ".join(f"SESSION {each} = {max(1, int(PATIENCE))}" for each in _ON_MYSQL)
    back = ", ".join(f"SESSION {each} = @zeroeventhub_{each}" for each in _ON_MYSQL)
    connection.exec_driver_sql(f"SET {kept}, {set_}")
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql(f"SET {back}")
