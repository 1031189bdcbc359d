"""Real errors of real databases: which of them pass by themselves, and which stay."""

import asyncio

import pytest
from harness.statements import execute
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub.databases.error_codes import is_transient, translate_store_errors
from zeroeventhub.errors import StoreUnavailable

SECRET = "canary-5f2a"

KILL = {"postgresql": "SELECT pg_terminate_backend({})", "mariadb": "KILL {}"}
WHO = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT CONNECTION_ID()"}
SERVERS = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)


@SERVERS
def test_connection_that_was_ended_is_transient(engine):
    """A session that is ended between statements can be tried again, by an async driver as well."""

    async def use(one):
        async with one.connect() as connection:
            number = await connection.scalar(text(WHO[engine.dialect.name]))
            execute(engine, KILL[engine.dialect.name].format(number))
            await connection.execute(text("SELECT 1"))
        await one.dispose()

    driver = {"postgresql": "postgresql+psycopg", "mariadb": "mariadb+aiomysql"}
    url = engine.url.set(drivername=driver[engine.dialect.name])
    with pytest.raises(DBAPIError) as raised:
        asyncio.run(use(create_async_engine(url)))
    assert is_transient(raised.value)


@SERVERS
def test_lost_connection_stays_transient_within_its_transaction(engine):
    """A handler that goes on in a transaction whose connection is gone learns of it once more."""
    with engine.connect() as connection:
        number = connection.scalar(text(WHO[engine.dialect.name]))
        execute(engine, KILL[engine.dialect.name].format(number))
        for kind in (DBAPIError, PendingRollbackError):
            with pytest.raises(kind) as raised:
                connection.execute(text("SELECT 1"))
            assert is_transient(raised.value)
    assert not is_transient(PendingRollbackError("Roll back first.", code="7s2a"))


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mariadb+pymysql"])
def test_server_that_is_not_there_is_transient(driver):
    """A server that does not listen may do so again, and the error names no secret."""
    url = make_url(f"{driver}://u:{SECRET}@127.0.0.1:1/d")
    with pytest.raises(StoreUnavailable) as raised, translate_store_errors():
        create_engine(url).connect()
    assert SECRET not in str(raised.value)
    assert "127.0.0.1" not in str(raised.value)


@SERVERS
def test_client_that_may_not_connect_hears_so(database_url):
    """A name, a password or a database that is wrong stays so, and is not retried for ever."""
    url = make_url(database_url)
    for wrong in (url.set(database="nothing_here"), url.set(username="nobody_here", password="x")):
        engine = create_engine(wrong)
        with pytest.raises(DBAPIError) as raised, translate_store_errors(), engine.connect():
            pass
        assert not is_transient(raised.value)


def test_full_pool_is_transient(sqlite_url):
    """An engine whose connections are all in use has one later."""
    small = create_engine(sqlite_url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    with small.connect(), pytest.raises(PoolTimeoutError) as raised:
        small.connect()
    assert is_transient(raised.value)


def test_error_of_a_statement_stays(engine):
    """What a database refuses for its content is raised as it is."""
    execute(engine, "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)")
    execute(engine, "INSERT INTO t VALUES (1, 0)")
    refused = ["INSERT INTO t VALUES (1, 1)", "INSERT INTO t VALUES (9, NULL)"]
    for statement in (*refused, "SELECT * FROM nothing_here", "SELEC 1"):
        with pytest.raises(DBAPIError) as raised, translate_store_errors():
            execute(engine, statement)
        assert not is_transient(raised.value)


@pytest.mark.parametrize("error", [ConnectionError(), KeyError(1213)])
def test_errors_of_anything_else_pass_as_they_are(error):
    """What is not the database's is not taken for it."""
    assert not is_transient(error)
    with pytest.raises(type(error)), translate_store_errors():
        raise error
