"""Real errors of real databases: which of them pass by themselves, and which stay."""

import asyncio
import sqlite3
import threading
from contextlib import closing, suppress

import psycopg
import pytest
from harness.databases import new_database
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError, PendingRollbackError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import QueuePool

from zeroeventhub.cursors.transience import is_transient, reaching_store
from zeroeventhub.errors import StoreUnavailable

SECRET = "canary-5f2a"

CREATE = "CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER NOT NULL)"
INSERT = "INSERT INTO t VALUES (1, 0), (2, 0)"
KILL = {"postgresql": "SELECT pg_terminate_backend({})", "mariadb": "KILL {}"}
WHO = {"postgresql": "SELECT pg_backend_pid()", "mariadb": "SELECT CONNECTION_ID()"}
SLEEP = {"postgresql": "SELECT pg_sleep(20)", "mariadb": "SELECT SLEEP(20)"}


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
    errors = []

    def cross(connection, number):
        try:
            connection.execute(update(number))
        except DBAPIError as error:
            errors.append(error)
        connection.rollback()

    with engine.connect() as one, engine.connect() as two:
        one.execute(update(1))
        two.execute(update(2))
        thread = threading.Thread(target=cross, args=(one, 2))
        thread.start()
        cross(two, 1)
        thread.join()
    assert [is_transient(error) for error in errors] == [True]


def test_serialization_failure_is_transient(engine, name):
    """A row that has changed since the snapshot asks to try again, where a database says so."""
    if name == "mariadb":
        with engine.connect() as connection, suppress(DBAPIError):
            connection.execute(text("SET innodb_snapshot_isolation = ON"))
    level = engine.execution_options(isolation_level="REPEATABLE READ")
    with level.connect() as one:
        if name == "mariadb":
            one.execute(text("SET innodb_snapshot_isolation = ON"))
        one.execute(text("SELECT * FROM t")).all()
        with level.begin() as two:
            two.execute(update(1))
        with pytest.raises(DBAPIError) as raised:
            one.execute(update(1))
    assert is_transient(raised.value)


@pytest.mark.parametrize("suffix", ["", " NOWAIT"])
def test_lock_that_is_not_to_be_had_is_transient(engine, name, suffix):
    """Waiting in vain for a lock passes, as does not waiting at all."""
    limit = {
        "postgresql": "SET lock_timeout = '100ms'",
        "mariadb": "SET innodb_lock_wait_timeout = 1",
    }
    with engine.connect() as one, engine.connect() as two:
        one.execute(update(1))
        two.execute(text(limit[name]))
        with pytest.raises(DBAPIError) as raised:
            two.execute(text(f"SELECT * FROM t WHERE id = 1 FOR UPDATE{suffix}"))
    assert is_transient(raised.value)


@pytest.mark.parametrize("driver", ["sync", "async"])
@pytest.mark.parametrize("running", [False, True])
def test_connection_that_was_ended_is_transient(engine, name, driver, running):
    """A session that is ended, between statements or in the middle of one, can be tried again."""
    statement = SLEEP[name] if running else "SELECT 1"
    timers = []

    def kill_soon(number):
        timers.append(threading.Timer(0.3 if running else 0.0, kill, (engine, name, number)))
        timers[0].start()
        if not running:
            timers[0].join()

    with pytest.raises(DBAPIError) as raised:
        if driver == "sync":
            with engine.connect() as connection:
                kill_soon(connection.scalar(text(WHO[name])))
                connection.execute(text(statement))
        else:
            asyncio.run(end_async(engine.url, name, statement, kill_soon))
    timers[0].join()
    assert is_transient(raised.value)


async def end_async(url, name, statement, kill_soon):
    """Have a statement of an async driver ended."""
    drivers = {"mariadb": "mariadb+aiomysql", "postgresql": "postgresql+psycopg"}
    engine = create_async_engine(url.set(drivername=drivers[name]))
    try:
        async with engine.connect() as connection:
            kill_soon(await connection.scalar(text(WHO[name])))
            await connection.execute(text(statement))
    finally:
        await engine.dispose()


def test_connection_that_the_driver_has_closed_is_transient(engine):
    """A driver that has given its connection up may have no number for that."""
    with engine.connect() as connection:
        connection.connection.driver_connection.close()
        with pytest.raises(DBAPIError) as raised:
            connection.execute(text("SELECT 1"))
    assert is_transient(raised.value)


def test_lost_connection_stays_transient_within_its_transaction(engine, name):
    """Who goes on in a transaction whose connection is gone learns of it once more."""
    with engine.connect() as connection:
        kill(engine, name, connection.scalar(text(WHO[name])))
        with pytest.raises(DBAPIError):
            connection.execute(text("SELECT 1"))
        with pytest.raises(PendingRollbackError) as raised:
            connection.execute(text("SELECT 1"))
    assert is_transient(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg://u:{SECRET}@127.0.0.1:1/d",
        f"mariadb+pymysql://u:{SECRET}@127.0.0.1:1/d",
        f"postgresql+psycopg://u:{SECRET}@127.0.0.1:1/d?async",
        f"mariadb+aiomysql://u:{SECRET}@127.0.0.1:1/d",
        f"postgresql+psycopg://u:{SECRET}@nowhere.invalid/d",
    ],
)
def test_server_that_is_not_there_is_transient(url):
    """A server that does not listen may do so again, and no secret is told of it."""

    async def connect(engine):
        with reaching_store():
            async with engine.connect():
                pass
        await engine.dispose()

    parsed = make_url(url)
    is_async = "aiomysql" in url or "async" in parsed.query
    parsed = parsed.difference_update_query(["async"])
    with pytest.raises(StoreUnavailable) as raised:
        if is_async:
            asyncio.run(connect(create_async_engine(parsed)))
        else:
            with reaching_store(), create_engine(parsed).connect():
                pass
    assert SECRET not in str(raised.value)
    assert "127.0.0.1" not in str(raised.value)


def test_who_may_not_connect_is_told_so(server):
    """A name, a password or a database that is wrong stays so, and is not retried for ever."""
    url = make_url(server[1])
    for wrong in (url.set(database="nothing_here"), url.set(username="nobody_here", password="x")):
        engine = create_engine(wrong)
        with pytest.raises(DBAPIError) as raised, reaching_store(), engine.connect():
            pass
        assert not is_transient(raised.value)


def test_full_server_is_transient(postgresql_url):
    """A connection that is one too many can be had later."""
    engine = create_engine(postgresql_url)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        database = engine.url.database
        connection.execute(text("CREATE ROLE guest_of_one LOGIN CONNECTION LIMIT 0"))
        try:
            guest = create_engine(engine.url.set(username="guest_of_one"))
            with pytest.raises(DBAPIError) as raised, guest.connect():
                pass
            assert database
        finally:
            connection.execute(text("DROP ROLE guest_of_one"))
    engine.dispose()
    assert is_transient(raised.value)


def test_full_pool_is_transient(engine):
    """An engine whose connections are all in use has one later."""
    small = create_engine(engine.url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    assert isinstance(small.pool, QueuePool)
    with small.connect(), pytest.raises(PoolTimeoutError) as raised:
        small.connect()
    small.dispose()
    assert is_transient(raised.value)


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("INSERT INTO t VALUES (1, 1)", IntegrityError),
        ("INSERT INTO t (id) VALUES (9)", DBAPIError),
        ("SELECT * FROM nothing_here", ProgrammingError),
        ("SELEC 1", ProgrammingError),
    ],
)
def test_error_of_a_statement_stays(engine, statement, kind):
    """What a database refuses for its content is raised as it is."""
    with pytest.raises(kind) as raised, reaching_store(), engine.begin() as connection:
        connection.execute(text(statement))
        if "(id)" in statement:  # MariaDB may have been told to be lax
            raise IntegrityError("", {}, Exception())
    assert not is_transient(raised.value)


def test_errors_of_psycopg_itself_are_told_apart(postgresql_url):
    """A handler that has the plain connection is understood as well."""
    engine = create_engine(postgresql_url)
    address = make_url(postgresql_url).set(drivername="postgresql")
    plain = address.render_as_string(hide_password=False)
    with psycopg.connect(plain) as connection:
        with pytest.raises(psycopg.Error) as stays:
            connection.execute("SELECT 1 / 0")
        connection.rollback()
        kill(engine, "postgresql", connection.info.backend_pid)
        with pytest.raises(psycopg.Error) as passes:
            connection.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError) as closed:
            connection.execute("SELECT 1")
    engine.dispose()
    assert [is_transient(one.value) for one in (stays, passes, closed)] == [False, True, True]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_locked_sqlite_is_transient(tmp_path, asynchronous):
    """A database that another one writes to is free later."""
    path = tmp_path / "test.db"
    with closing(sqlite3.connect(path)) as writer:
        writer.execute(CREATE)
        writer.execute("BEGIN IMMEDIATE")

        async def write(engine):
            try:
                async with engine.begin() as connection:
                    await connection.execute(text(INSERT))
            finally:
                await engine.dispose()

        with pytest.raises(DBAPIError) as raised:
            if asynchronous:
                engine = create_async_engine(
                    f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 0.05}
                )
                asyncio.run(write(engine))
            else:
                engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 0.05})
                with engine.begin() as connection:
                    connection.execute(text(INSERT))
                engine.dispose()
    assert is_transient(raised.value)


def test_other_errors_of_sqlite_stay(sqlite):
    """A full disk or a wrong statement is not waited out."""
    with sqlite.connect() as connection:
        connection.execute(text(CREATE))
        connection.execute(text("PRAGMA max_page_count = 3"))
        for statement in ("INSERT INTO t VALUES (1, 1), (1, 1)", "SELECT * FROM nothing_here"):
            with pytest.raises(DBAPIError) as raised:
                connection.execute(text(statement))
            assert not is_transient(raised.value)
        with pytest.raises(DBAPIError) as full:
            connection.execute(text("CREATE TABLE u AS SELECT randomblob(100000)"))
        assert "full" in str(full.value)
        assert not is_transient(full.value)


@pytest.mark.parametrize("error", [ValueError("deadlock"), ConnectionError(), KeyError(1213)])
def test_errors_of_anything_else_pass_as_they_are(error):
    """What is not the database's is not taken for it."""
    assert not is_transient(error)
    with pytest.raises(type(error)), reaching_store():
        raise error


def test_store_that_has_said_so_already_says_it_as_it_did():
    """An error that is transient by name keeps its sentence."""
    with pytest.raises(StoreUnavailable, match="again"), reaching_store():
        raise StoreUnavailable("Try again.")
