"""What lost writers leave on a server: sessions that still commit, and prepared transactions."""

from sqlalchemy import Connection, Engine, text

from harness.torture.engines import WRITERS
from harness.waiting import until

_SESSIONS = text("""
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = :writers
""")
_PREPARED = text("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")


def clear(engine: Engine) -> None:
    """Wait until the writers' sessions are gone, and roll back what they have prepared."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if engine.dialect.name == "postgresql":
            until(lambda: _are_gone(connection), "the writers' sessions end")
            for name in connection.scalars(_PREPARED).all():
                connection.execute(text(f"ROLLBACK PREPARED '{name}'"))
        elif engine.dialect.name == "mariadb":
            for *_, name in connection.execute(text("XA RECOVER")).all():
                if name.startswith(engine.url.database.encode()):
                    connection.execute(text(f"XA ROLLBACK '{name.decode()}'"))


def _are_gone(connection: Connection) -> bool:
    return connection.scalar(_SESSIONS, {"writers": WRITERS}) == 0
