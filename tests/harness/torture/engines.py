"""Engines for those who write and for those who read."""

import random
import time

from sqlalchemy import Engine, create_engine, event, make_url

PATIENCE = 60
"""Seconds that SQLite's writers wait for their turn."""

READING_PAUSE = 0.005
"""Seconds at most that a reader dawdles behind a statement, so that writers come in between."""

WRITERS = "torture writer"


def writing_engine(url: str, dice: random.Random) -> Engine:
    """Make an engine for writers, whose sessions an operator can tell from others."""
    match make_url(url).get_backend_name():
        case "postgresql":
            arguments = {"application_name": WRITERS, "options": "-c deadlock_timeout=50ms"}
        case "sqlite":
            arguments = {"timeout": PATIENCE, "isolation_level": None}
        case _:
            arguments = {"local_infile": True, "init_command": "SET innodb_lock_wait_timeout = 5"}
    engine = create_engine(url, connect_args=arguments, pool_size=40, max_overflow=20)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _hurry)
        event.listen(engine, "begin", lambda connection: _begin(connection, dice))
    return engine


def reading_engine(url: str, dice: random.Random) -> Engine:
    """Make an engine whose readers dawdle between any two statements of a read."""
    sqlite = make_url(url).get_backend_name() == "sqlite"
    engine = create_engine(url, connect_args={"timeout": PATIENCE} if sqlite else {})

    @event.listens_for(engine, "after_cursor_execute")
    def dawdle(*_: object) -> None:
        if dice.random() < 0.5:
            time.sleep(dice.random() * READING_PAUSE)

    return engine


def _hurry(connection, _record) -> None:
    connection.execute("PRAGMA synchronous = OFF")


def _begin(connection, dice: random.Random) -> None:
    # The driver would begin at the first write, and a savepoint before it be a transaction.
    connection.exec_driver_sql(dice.choice(("BEGIN", "BEGIN IMMEDIATE")))
