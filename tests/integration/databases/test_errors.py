"""Real errors of real databases: which of them pass by themselves, and which stay."""

import asyncio
import sqlite3

import psycopg
import pymysql
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub.databases.errors import is_transient, reaching_store
from zeroeventhub.errors import StoreUnavailable

SECRET = "canary-5f2a"

KILL = {"postgresql": "SELECT pg_terminate_backend({})", "mariadb": "KILL {}"}
WHO = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT CONNECTION_ID()"}
SERVERS = pytest.mark.parametrize("database_url", ["postgresql", "mariadb"], indirect=True)


def kill(engine, number):
    """End a session of the server."""
    with engine.connect() as connection:
        connection.execute(text(KILL[engine.dialect.name].format(number)))


@SERVERS
def test_connection_that_was_ended_is_transient(engine):
    """A session that is ended between statements can be tried again, by an async driver as well."""

    async def execute(one):
        async with one.connect() as connection:
            kill(engine, await connection.scalar(text(WHO[engine.dialect.name])))
            await connection.execute(text("SELECT 1"))
        await one.dispose()

    driver = {"postgresql": "postgresql+psycopg", "mariadb": "mariadb+aiomysql"}
    url = engine.url.set(drivername=driver[engine.dialect.name])
    with pytest.raises(DBAPIError) as raised:
        asyncio.run(execute(create_async_engine(url)))
    assert is_transient(raised.value)


@SERVERS
def test_lost_connection_stays_transient_within_its_transaction(engine):
    """A handler that goes on in a transaction whose connection is gone learns of it once more."""
    with engine.connect() as connection:
        kill(engine, connection.scalar(text(WHO[engine.dialect.name])))
        for kind in (DBAPIError, PendingRollbackError):
            with pytest.raises(kind) as raised:
                connection.execute(text("SELECT 1"))
            assert is_transient(raised.value)
    assert not is_transient(PendingRollbackError("Roll back first.", code="7s2a"))


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mariadb+pymysql"])
def test_server_that_is_not_there_is_transient(driver):
    """A server that does not listen may do so again, and the error names no secret."""
    url = make_url(f"{driver}://u:{SECRET}@127.0.0.1:1/d")
    with pytest.raises(StoreUnavailable) as raised, reaching_store():
        create_engine(url).connect()
    assert SECRET not in str(raised.value)
    assert "127.0.0.1" not in str(raised.value)


@SERVERS
def test_client_that_may_not_connect_hears_so(database_url):
    """A name, a password or a database that is wrong stays so, and is not retried for ever."""
    url = make_url(database_url)
    for wrong in (url.set(database="nothing_here"), url.set(username="nobody_here", password="x")):
        engine = create_engine(wrong)
        with pytest.raises(DBAPIError) as raised, reaching_store(), engine.connect():
            pass
        assert not is_transient(raised.value)


def test_locked_sqlite_is_transient(sqlite_url):
    """A database that another one writes to is free later."""
    engine = create_engine(sqlite_url, connect_args={"timeout": 0.01})
    with engine.connect() as writer, engine.connect() as other:
        writer.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(DBAPIError) as raised:
            other.execute(text("CREATE TABLE t (id INTEGER PRIMARY KEY)"))
    engine.dispose()
    assert is_transient(raised.value)


def test_full_pool_is_transient(sqlite_url):
    """An engine whose connections are all in use has one later."""
    small = create_engine(sqlite_url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    with small.connect(), pytest.raises(PoolTimeoutError) as raised:
        small.connect()
    small.dispose()
    assert is_transient(raised.value)


def test_error_of_a_statement_stays(engine):
    """What a database refuses for its content is raised as it is."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)"))
        connection.execute(text("INSERT INTO t VALUES (1, 0)"))
    refused = ["INSERT INTO t VALUES (1, 1)", "INSERT INTO t VALUES (9, NULL)"]
    for statement in (*refused, "SELECT * FROM nothing_here", "SELEC 1"):
        with pytest.raises(DBAPIError) as raised, reaching_store(), engine.begin() as connection:
            connection.execute(text(statement))
        assert not is_transient(raised.value)


def of_sqlite(code):
    """Make an error of SQLite."""
    error = sqlite3.OperationalError("It is locked.")
    error.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{code}")
    return error


def of_postgresql(state):
    """Make an error of PostgreSQL."""
    error = psycopg.OperationalError("No.")
    error.sqlstate = state
    return error


PASSING_RESULTS = "BUSY_RECOVERY BUSY_SNAPSHOT LOCKED_SHAREDCACHE PROTOCOL"
STAYING_RESULTS = (
    "IOERR IOERR_READ IOERR_LOCK IOERR_BLOCKED READONLY FULL ERROR CANTOPEN CORRUPT_VTAB NOTADB "
    "CONSTRAINT_UNIQUE INTERRUPT"
)
PASSING_STATES = "08000 08006 25006 25P03 40001 40P01 53300 55P03 57P01 57P02 57P03 57P05"
STAYING_STATES = "22P02 23505 25P02 28P01 3D000 40002 42501 42P01 53100 53200 57014 XX000"
PASSING_NUMBERS = (
    "1020 1040 1047 1053 1158 1159 1160 1161 1203 1205 1213 1412 1613 1614 1792 1836 1927 2002 "
    "2003 2006 2013 2055 3572 4031"
)
STAYING_NUMBERS = "1044 1045 1048 1049 1062 1064 1114 1142 1146 1264 1290 1317 1366 1406 1452 2059"


@pytest.mark.parametrize(
    ("error", "passing", "staying"),
    [
        (of_sqlite, PASSING_RESULTS, STAYING_RESULTS),
        (of_postgresql, PASSING_STATES, STAYING_STATES),
        (lambda n: pymysql.err.OperationalError(int(n)), PASSING_NUMBERS, STAYING_NUMBERS),
    ],
    ids=["SQLite", "PostgreSQL", "MariaDB"],
)
def test_code_of_an_error_tells_whether_it_passes(error, passing, staying):
    """A code that passes is transient, and any other one stays; SQLite's count without details."""
    found = [code for code in f"{passing} {staying}".split() if is_transient(error(code))]
    assert " ".join(found) == passing


def test_server_that_has_become_a_replica_is_transient():
    """MariaDB has one number for all options that forbid a statement; being read-only passes."""
    said = "The MariaDB server is running with the {} option so it cannot execute this statement"
    error = pymysql.err.OperationalError
    assert is_transient(error(1290, said.format("--read-only")))
    assert not is_transient(error(1290, said.format("--secure-file-priv")))


@pytest.mark.parametrize("error", [ConnectionError(), KeyError(1213)])
def test_errors_of_anything_else_pass_as_they_are(error):
    """What is not the database's is not taken for it."""
    assert not is_transient(error)
    with pytest.raises(type(error)), reaching_store():
        raise error
