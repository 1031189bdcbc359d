"""Fixtures that every test may use."""

import pytest
from harness.databases import mariadb_server, new_database, postgresql_server
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

# SQLite queues writers without order; the last in the queue needs patience, in seconds.
PATIENCE = {"timeout": 60}


@pytest.fixture(scope="session")
def postgresql_server_url():
    """The URL of a PostgreSQL server."""
    with postgresql_server() as url:
        yield url


@pytest.fixture
def postgresql_url(postgresql_server_url):
    """The URL of an empty PostgreSQL database."""
    with new_database(postgresql_server_url) as url:
        yield url


@pytest.fixture(scope="session")
def mariadb_server_url():
    """The URL of a MariaDB or MySQL server."""
    with mariadb_server() as url:
        yield url


@pytest.fixture
def mariadb_url(mariadb_server_url):
    """The URL of an empty MariaDB database."""
    with new_database(mariadb_server_url) as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path):
    """The URL of an SQLite database that does not exist yet."""
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def database_url(request):
    """The URL of an empty database, on each database in turn."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def engine(database_url):
    """An engine of an empty database, on each database in turn."""
    patience = PATIENCE if database_url.startswith("sqlite") else {}
    engine = create_engine(database_url, connect_args=patience)
    yield engine
    engine.dispose()


@pytest.fixture
def postgresql(postgresql_url):
    """An engine of an empty PostgreSQL database."""
    engine = create_engine(postgresql_url)
    yield engine
    engine.dispose()


@pytest.fixture
def mariadb(mariadb_url):
    """An engine of an empty MariaDB database."""
    engine = create_engine(mariadb_url)
    yield engine
    engine.dispose()


@pytest.fixture
def sqlite(sqlite_url):
    """An engine of an empty SQLite database."""
    engine = create_engine(sqlite_url, connect_args=PATIENCE)
    yield engine
    engine.dispose()


@pytest.fixture
def async_url(database_url):
    """The same database's URL for an async engine."""
    return database_url.replace("sqlite://", "sqlite+aiosqlite://").replace("+pymysql", "+aiomysql")


@pytest.fixture
def anyio_backend():
    """Async tests run on asyncio, as SQLAlchemy does."""
    return "asyncio"


@pytest.fixture
async def async_engine(async_url):
    """An async engine of an empty database, on each database in turn."""
    engine = create_async_engine(async_url)
    yield engine
    await engine.dispose()
