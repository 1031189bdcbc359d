"""Real errors of real databases: which of them pass by themselves, and which stay."""

import asyncio
import sqlite3

import psycopg
import pymysql
import pytest
from harness.databases import new_database
from harness.stores import beside, outcome
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError, PendingRollbackError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub.cursors.transience import is_transient, reaching_store
from zeroeventhub.errors import StoreUnavailable

SECRET = "canary-5f2a"

CREATE = "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)"
INSERT = "INSERT INTO t VALUES (1, 0), (2, 0)"
KILL = {"postgresql": "SELECT pg_terminate_backend({})", "mariadb": "KILL {}"}
WHO = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT CONNECTION_ID()"}


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def server(request):
    """The name of a server, and the URL of a database on it with two rows."""
    with new_database(request.getfixturevalue(f"{request.param}_server_url")) as url:
        engine = create_engine(url)
        with engine.begin() as connection:
            connection.execute(text(CREATE))
            connection.execute(text(INSERT))
        engine.dispose()
        yield request.param, url


@pytest.fixture
def name(server):
    """The name of the server."""
    return server[0]


@pytest.fixture
def engine(server):
    """An engine of the database on the server."""
    engine = create_engine(server[1])
    yield engine
    engine.dispose()


def update(number):
    """Write a row."""
    return text(f"UPDATE t SET n = n + 1 WHERE id = {number}")


def kill(engine, name, number):
    """End a session of the server."""
    with engine.connect() as connection:
        connection.execute(text(KILL[name].format(number)))


def test_deadlock_is_transient(engine, name):
    """Of two transactions that wait for each other, one gets an error that passes."""

    def cross(connection, number):
        try:
            connection.execute(update(number))
        except DBAPIError as error:
            return error
        finally:
            connection.rollback()

    with engine.connect() as one, engine.connect() as two:
        one.execute(update(1))
        two.execute(update(2))
        other = beside(cross, one, 2)
        errors = [cross(two, 1), outcome(other)]
    assert [is_transient(error) for error in errors if error] == [True]


def test_serialization_failure_is_transient(engine, name):
    """A row that has changed since the snapshot asks to try again, where a database says so."""
    with engine.execution_options(isolation_level="REPEATABLE READ").connect() as one:
        if name == "mariadb":
            one.execute(text("SET innodb_snapshot_isolation = ON"))
        one.execute(text("SELECT * FROM t")).all()
        with engine.begin() as two:
            two.execute(update(1))
        with pytest.raises(DBAPIError) as raised:
            one.execute(update(1))
    assert is_transient(raised.value)


def test_connection_that_was_ended_is_transient(engine, name):
    """A session that is ended between statements can be tried again, by an async driver as well."""

    async def execute(engine):
        async with engine.connect() as connection:
            kill(sync, name, await connection.scalar(text(WHO[name])))
            await connection.execute(text("SELECT 1"))
        await engine.dispose()

    sync, driver = engine, "mariadb+aiomysql" if name == "mariadb" else "postgresql+psycopg"
    with pytest.raises(DBAPIError) as raised:
        asyncio.run(execute(create_async_engine(engine.url.set(drivername=driver))))
    assert is_transient(raised.value)


def test_lost_connection_stays_transient_within_its_transaction(engine, name):
    """A handler that goes on in a transaction whose connection is gone learns of it once more."""
    with engine.connect() as connection:
        kill(engine, name, connection.scalar(text(WHO[name])))
        with pytest.raises(DBAPIError):
            connection.execute(text("SELECT 1"))
        with pytest.raises(PendingRollbackError) as raised:
            connection.execute(text("SELECT 1"))
    assert is_transient(raised.value)
    assert not is_transient(PendingRollbackError("Roll back first.", code="7s2a"))


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "mariadb+pymysql", "mariadb+aiomysql"])
def test_server_that_is_not_there_is_transient(driver):
    """A server that does not listen may do so again, and the error names no secret."""

    async def connect(engine):
        async with engine.connect():
            pass

    url = make_url(f"{driver}://u:{SECRET}@127.0.0.1:1/d")
    with pytest.raises(StoreUnavailable) as raised, reaching_store():
        if "aiomysql" in driver:
            asyncio.run(connect(create_async_engine(url)))
        create_engine(url).connect()
    assert SECRET not in str(raised.value)
    assert "127.0.0.1" not in str(raised.value)


def test_client_that_may_not_connect_hears_so(server):
    """A name, a password or a database that is wrong stays so, and is not retried for ever."""
    url = make_url(server[1])
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
            other.execute(text(CREATE))
    engine.dispose()
    assert is_transient(raised.value)


def test_error_of_a_statement_in_sqlite_stays(sqlite):
    """What SQLite refuses for its content is not waited out."""
    with sqlite.connect() as connection, pytest.raises(DBAPIError) as raised:
        connection.execute(text("SELECT * FROM nothing_here"))
    assert not is_transient(raised.value)


def test_full_pool_is_transient(sqlite_url):
    """An engine whose connections are all in use has one later."""
    small = create_engine(sqlite_url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    with small.connect(), pytest.raises(PoolTimeoutError) as raised:
        small.connect()
    small.dispose()
    assert is_transient(raised.value)


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("INSERT INTO t VALUES (1, 1)", IntegrityError),
        ("INSERT INTO t VALUES (9, NULL)", IntegrityError),
        ("SELECT * FROM nothing_here", ProgrammingError),
        ("SELEC 1", ProgrammingError),
    ],
)
def test_error_of_a_statement_stays(engine, statement, kind):
    """What a database refuses for its content is raised as it is."""
    with pytest.raises(kind) as raised, reaching_store(), engine.begin() as connection:
        connection.execute(text(statement))
    assert not is_transient(raised.value)


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        ("BUSY_RECOVERY", True),
        ("BUSY_SNAPSHOT", True),
        ("LOCKED_SHAREDCACHE", True),
        ("PROTOCOL", True),
        ("IOERR", False),
        ("IOERR_READ", False),
        ("IOERR_LOCK", False),
        ("IOERR_BLOCKED", False),
        ("READONLY", False),
        ("FULL", False),
        ("ERROR", False),
        ("CANTOPEN", False),
        ("CORRUPT_VTAB", False),
        ("NOTADB", False),
        ("CONSTRAINT_UNIQUE", False),
        ("INTERRUPT", False),
    ],
)
def test_code_of_sqlite_is_told_by_its_primary_code(code, passes):
    """An extended code is what its primary code is, and only a lock passes."""
    error = sqlite3.OperationalError("It is locked.")
    error.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{code}")
    assert is_transient(error) is passes


PASSING_STATES = "08000 08006 25006 25P03 40001 40P01 53300 55P03 57P01 57P02 57P03 57P05"
STAYING_STATES = "22P02 23505 25P02 28P01 3D000 40002 42501 42P01 53100 53200 57014 XX000"
PASSING_NUMBERS = (
    "1020 1040 1047 1053 1158 1159 1160 1161 1203 1205 1213 1412 1613 1614 1792 1836 1927 2002 "
    "2003 2006 2013 2055 3572 4031"
)
STAYING_NUMBERS = "1044 1045 1048 1049 1062 1064 1114 1142 1146 1264 1290 1317 1366 1406 1452 2059"


def test_states_of_postgresql_are_told_apart():
    """A state that passes is transient, and any other one stays, of whatever class it is."""
    errors = {state: psycopg.OperationalError("No.") for state in PASSING_STATES.split()}
    for state in STAYING_STATES.split():
        errors[state] = psycopg.errors.lookup(state)("No.")
    for state, error in errors.items():
        error.sqlstate = state
    assert " ".join(filter(lambda state: is_transient(errors[state]), errors)) == PASSING_STATES


@pytest.mark.parametrize("kind", [pymysql.err.OperationalError, pymysql.err.InternalError])
def test_numbers_of_mariadb_are_told_apart(kind):
    """A number that passes is transient, and any other one stays, of whatever class it is."""
    numbers = f"{PASSING_NUMBERS} {STAYING_NUMBERS}".split()
    found = [number for number in numbers if is_transient(kind(int(number), "No."))]
    assert " ".join(found) == PASSING_NUMBERS


def test_server_that_has_become_a_replica_is_transient():
    """MariaDB has one number for all options that forbid a statement; being read-only passes."""
    said = "The MariaDB server is running with the {} option so it cannot execute this statement"
    error = pymysql.err.OperationalError
    assert is_transient(error(1290, said.format("--read-only")))
    assert not is_transient(error(1290, said.format("--secure-file-priv")))


@pytest.mark.parametrize("error", [ValueError("deadlock"), ConnectionError(), KeyError(1213)])
def test_errors_of_anything_else_pass_as_they_are(error):
    """What is not the database's is not taken for it."""
    assert not is_transient(error)
    with pytest.raises(type(error)), reaching_store():
        raise error


def test_store_that_has_said_so_already_says_it_as_it_did():
    """An error that is transient by name keeps its sentence."""
    with pytest.raises(StoreUnavailable, match="Try again"), reaching_store():
        raise StoreUnavailable("Try again.")
