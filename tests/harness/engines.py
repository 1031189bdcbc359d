"""Engines of the tests, and what all of them have in common once this module is imported."""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, make_url
from sqlalchemy.ext.asyncio import AsyncEngine


@event.listens_for(Engine, "do_connect")
def _suit(dialect, _record, _arguments, parameters) -> None:
    if dialect.name == "sqlite":
        # SQLite queues writers without order; the last in the queue needs patience, in seconds.
        parameters.setdefault("timeout", 60)
    elif dialect.driver == "pymysql":
        # To load certificates takes longer than all else, and none are asked for here.
        parameters.setdefault("ssl_disabled", True)


@event.listens_for(Engine, "connect")
def _hurry(connection, _record) -> None:
    """Let SQLite not wait for the disk: no test cuts the power."""
    if "sqlite" in type(connection).__module__:
        connection.execute("PRAGMA synchronous = OFF")


@contextmanager
def connected(url: URL | str, **arguments: Any) -> Iterator[Engine]:
    """Yield an engine whose driver is given some arguments."""
    engine = create_engine(url, connect_args=arguments)
    try:
        yield engine
    finally:
        engine.dispose()


def async_url(url: URL | str) -> URL:
    """Return a database's URL for an async engine."""
    url = make_url(url)
    drivers = {"sqlite": "sqlite+aiosqlite", "mariadb+pymysql": "mariadb+aiomysql"}
    return url.set(drivername=drivers.get(url.drivername, url.drivername))


@contextmanager
def cancelling(engine: AsyncEngine, table: str) -> Iterator[None]:
    """Cancel each task that reads a table, and let no garbage be collected meanwhile."""

    def cancel(_connection, _cursor, statement, *_) -> None:
        if f"FROM {table}" in statement:
            asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)

    gc.disable()
    event.listen(engine.sync_engine, "before_cursor_execute", cancel)
    try:
        yield
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", cancel)
        gc.enable()


def driver_connection(url: URL | str) -> Any:
    """Connect by the driver alone, with the driver's own defaults."""
    url = make_url(url)
    dialect = url.get_dialect()()
    arguments, options = dialect.create_connect_args(url)
    options.pop("client_flag", None)  # SQLAlchemy's choice of what PyMySQL counts
    return dialect.import_dbapi().connect(*arguments, **options)
