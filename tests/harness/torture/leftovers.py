"""What lost writers leave on a server: sessions that still commit, and prepared transactions."""

import time

from sqlalchemy import Connection, Engine, text

from harness.torture.engines import WRITERS

_SESSIONS = text("""
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = :writers
""")
_PREPARED = text("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")

PATIENCE = 30


def clear(engine: Engine) -> None:
    """Wait until the writers' sessions are gone, and roll back what they have prepared."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if engine.dialect.name == "postgresql":
            _wait(connection)
            for name in connection.scalars(_PREPARED).all():
                connection.execute(text(f"ROLLBACK PREPARED '{name}'"))
        elif engine.dialect.name == "mariadb":
            for *_, name in connection.execute(text("XA RECOVER")).all():
                if name.startswith(engine.url.database.encode()):
                    connection.execute(text(f"XA ROLLBACK '{name.decode()}'"))


def _wait(connection: Connection) -> None:
    giving_up = time.monotonic() + PATIENCE
    while connection.scalar(_SESSIONS, {"writers": WRITERS}):
        assert time.monotonic() < giving_up, "a writer's session does not end"
        time.sleep(0.01)
