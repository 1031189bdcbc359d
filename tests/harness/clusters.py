"""PostgreSQL clusters of a test's own: one that may crash, and standbys that may be promoted."""

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from harness.databases import SETTINGS, own_postgresql
from harness.waiting import until

PATIENCE = 60  # seconds that a server may take for anything


class Cluster:
    """A PostgreSQL server that runs in a folder, for as long as its test needs it."""

    def __init__(self, server):
        self._server = server
        self.url = server.get_uri(driver="psycopg")

    @property
    def socket(self) -> str:
        return str(self._server.get_postmaster_info().socket_dir)

    @contextmanager
    def standby(self) -> Iterator["Cluster"]:
        """Make a standby by streaming replication, of everything that is here."""
        with tempfile.TemporaryDirectory(prefix="zeh-") as folder:
            data = Path(folder) / "data"
            data.mkdir(mode=0o700)
            # As root, the server runs as another user; who is not root is that user already.
            if self._server.system_user is not None:
                Path(folder).chmod(0o755)
                shutil.chown(data, self._server.system_user)
            subprocess.run(
                [
                    self._server.bin_path / "pg_basebackup",
                    f"--dbname={self._server.get_uri()}",
                    f"--pgdata={data}",
                    "--write-recovery-conf",
                    "--checkpoint=fast",
                    "--no-sync",
                ],
                user=self._server.system_user,
                check=True,
                capture_output=True,
                timeout=PATIENCE,
            )
            # What says who uses the primary, and where it listens, does not go for its copy.
            for name in (".handle_pids.json", ".s.PGSQL.5432.lock"):
                (data / name).unlink(missing_ok=True)
            with _running(own_postgresql(data)) as standby:
                yield standby

    def catch_up(self, primary: "Cluster") -> None:
        """Wait until everything that the primary has written by now has arrived here."""
        written = primary.ask("SELECT pg_current_wal_flush_lsn()")
        arrived = f"SELECT pg_last_wal_replay_lsn() >= '{written}'"
        until(lambda: self.ask(arrived), "a standby has caught up", PATIENCE)

    def cut_off(self) -> None:
        """Let a standby hear of nothing from now on."""
        self.ask("ALTER SYSTEM SET primary_conninfo = ''")
        self.ask("SELECT pg_reload_conf()")
        connected = "SELECT count(*) FROM pg_stat_wal_receiver"
        until(lambda: not self.ask(connected), "a standby hears of nothing", PATIENCE)

    def promote(self) -> None:
        assert self.ask(f"SELECT pg_promote(true, {PATIENCE})")

    def crash(self) -> None:
        """Kill a session's process, which takes the whole server down, and wait for its return."""
        began = self.ask("SELECT pg_postmaster_start_time()")
        engine = create_engine(self.url)
        with engine.connect() as connection:
            os.kill(connection.scalar(text("SELECT pg_backend_pid()")), signal.SIGKILL)
            connection.invalidate()
        engine.dispose()
        until(self._answers, "a server answers again", PATIENCE)
        # The process that watches over all others lives on: the same server has recovered.
        assert self.ask("SELECT pg_postmaster_start_time()") == began

    def new_database(self) -> str:
        """Create an empty database that lives as long as the server; return its URL."""
        name = f"test_{uuid.uuid4().hex}"
        self.ask(f"CREATE DATABASE {name}")
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)

    def ask(self, question: str) -> object:
        """Answer a question of one row and one column, or do as told."""
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                answer = connection.execute(text(question))
                return answer.scalar() if answer.returns_rows else None
        finally:
            engine.dispose()

    def _answers(self) -> bool:
        try:
            return self.ask("SELECT 1") == 1
        except DBAPIError:
            return False


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Run a server of one's own, wherever the other tests have theirs."""
    with tempfile.TemporaryDirectory(prefix="zeh-") as folder:
        server = own_postgresql(Path(folder) / "data")
        server.ensure_pgdata_inited()
        with (server.pgdata / "postgresql.conf").open("a") as settings:
            settings.write(SETTINGS)
        with _running(server) as found:
            yield found


@contextmanager
def _running(server) -> Iterator[Cluster]:
    server.start()
    try:
        yield Cluster(server)
    finally:
        server.cleanup()
