"""A feed is a guest on its host's connections: read-only, in time, and they stay as they were."""

import asyncio
import time
from contextlib import contextmanager, suppress
from unittest.mock import Mock

import pytest
from harness.log import connected
from harness.published import published
from harness.shop import fill, orders, write
from harness.statements import execute
from harness.waiting import until
from sqlalchemy import Integer, create_engine, event, insert, inspect, literal_column, text
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.errors import FeedFailure, Unavailable
from zeroeventhub.settings import Capacity

SHORT = Capacity(statement_seconds=0.3)
LONG = 20  # seconds that nothing here takes, unless nothing ends it
SLEEPS = {
    "postgresql": "(SELECT 1 FROM pg_sleep(30))",
    "mariadb": "(SELECT SLEEP(30))",
    "sqlite": "(WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers "
    "WHERE n < 200000000) SELECT max(n) FROM numbers)",
}
SESSION = {
    "postgresql": "SELECT name, setting FROM pg_settings ORDER BY name",
    "mariadb": "SHOW SESSION VARIABLES",
    "sqlite": "SELECT query_only, timeout FROM pragma_query_only, pragma_busy_timeout",
}
SET = {
    "postgresql": [
        "SET statement_timeout = '7s'",
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE, READ ONLY",
    ],
    "mariadb": [
        "SET SESSION max_statement_time = 7, lock_wait_timeout = 70, tx_read_only = 1",
        "SET SESSION tx_isolation = 'SERIALIZABLE', autocommit = 1",
    ],
    "sqlite": ["PRAGMA query_only = 1"],
}
CHANGING = {"timestamp", "pseudo_thread_id", "last_insert_id", "identity"}
CHANGING |= {"rand_seed1", "rand_seed2"}


@pytest.fixture
def host(database_url):
    """An engine of one connection, on a database with an empty table of orders."""
    engine = fill(create_engine(database_url, pool_size=1, max_overflow=0), 0)
    yield engine
    engine.dispose()


def session(engine):
    """Return the settings of the connection that an engine has, and those of its driver."""
    with engine.connect() as connection:
        found = connection.exec_driver_sql(SESSION[engine.dialect.name]).all()
        if engine.dialect.name == "mariadb":
            found = [row for row in found if row[0] not in CHANGING]
            own = """SELECT VARIABLE_NAME, VARIABLE_VALUE FROM information_schema.USER_VARIABLES
                WHERE VARIABLE_VALUE IS NOT NULL"""
            found += connection.exec_driver_sql(own).all()
        driver = connection.connection.driver_connection
        names = ("autocommit", "isolation_level", "read_only", "deferrable", "in_transaction")
        mine = {name: getattr(driver, name, None) for name in names}
        mine.pop("in_transaction" if engine.dialect.name != "sqlite" else "", None)
        number = id(driver)
        connection.rollback()
    return found, {name: one for name, one in mine.items() if not callable(one)}, number


def read(engine, capacity=None, **options):
    """Read a page of the table of orders."""
    feed = TableFeed(orders, **{"data": "data", **options})
    return feed.bind(engine, capacity).read(0, FIRST, 100)


def slow(engine):
    """What an event's data is to be, where that takes its time."""
    return {"n": literal_column(SLEEPS[engine.dialect.name], Integer())}


@contextmanager
def during(engine, act):
    """Do something on the feed's connection, through the driver, before its page is read."""
    acted = []

    def hook(connection, cursor, statement, *_):
        if ".data" in statement and not acted:
            acted.append(statement)
            act(connection.connection.cursor())

    event.listen(engine, "before_cursor_execute", hook)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", hook)
        assert acted


def as_host_likes(engine, lines):
    """Let every new connection have settings of the host's own."""

    @event.listens_for(engine, "connect")
    def connect(connection, _):
        cursor = connection.cursor()
        for line in lines:
            cursor.execute(line)
        cursor.close()
        connection.commit()

    engine.dispose()


def refusing_writes(engine):
    """Show that the feed's connection cannot write, before its page is read."""

    def try_to_write(cursor):
        with pytest.raises(engine.dialect.loaded_dbapi.Error):
            cursor.execute("INSERT INTO orders (part, data) VALUES (0, '{}')")

    return during(engine, try_to_write)


def test_nothing_can_be_written(host):
    """What a feed asks of a connection cannot write; what its host asks afterwards can."""
    write(host, 3)
    with refusing_writes(host), suppress(FeedFailure, Unavailable):
        read(host)
    assert len(read(host).events) == 3
    write(host, 3)
    assert len(read(host).events) == 6


@pytest.mark.parametrize("own", [False, True], ids=["plain", "own settings"])
def test_connection_is_given_back_as_it_was(host, own):
    """A page, an error, a statement that takes too long: the connection is what it was before."""
    write(host, 3)
    if own:
        as_host_likes(host, SET[host.dialect.name])
    before = session(host)
    assert len(read(host).events) == 3
    assert session(host) == before
    with pytest.raises(Unavailable, match="longer"):
        read(host, SHORT, data=slow(host))
    assert session(host) == before
    with during(host, Mock(side_effect=ZeroDivisionError)), pytest.raises(ZeroDivisionError):
        read(host)
    assert session(host) == before
    with pytest.raises(FeedFailure):
        read(host, data={"n": literal_column("nonsense", Integer())})
    assert session(host) == before
    # In the middle of something a connection is closed, and its host gets another one.
    with during(host, Mock(side_effect=KeyboardInterrupt)), pytest.raises(KeyboardInterrupt):
        read(host)
    assert session(host)[:2] == before[:2]


LOCK = {"postgresql": "LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", "mariadb": "LOCK TABLES {} WRITE"}


@pytest.mark.parametrize("ordering", ["observed", "sequenced"])
@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_lock_that_is_not_had_in_time_is_a_503(request, database, ordering):
    """A locked table keeps a page waiting for no longer than a statement may take."""
    engine = request.getfixturevalue(database)
    feed = published(engine, ordering=ordering)
    hurried = TableFeed(orders, data="data", ordering=ordering).bind(engine, SHORT)
    write(engine, 3)
    assert len(feed.read(0, FIRST, 100).events) == 3
    write(engine, 3)
    added = (name for name in inspect(engine).get_table_names() if "_positions" in name)
    table = "orders" if ordering == "observed" else next(added)
    with engine.connect() as connection:
        connection.execute(text(LOCK[database].format(table)))
        began = time.monotonic()
        with pytest.raises(Unavailable, match="longer than it may"):
            hurried.read(0, FIRST, 100)
        assert time.monotonic() - began < LONG
        connection.rollback()
        connection.invalidate()
    # MariaDB lets go of the lock a little after its connection is closed.
    until(lambda: len(feed.read(0, FIRST, 100).events) == 6, "the events behind the lock come")


LESS = {"postgresql": "SET statement_timeout = 300", "mariadb": "SET max_statement_time = 0.3"}


@pytest.mark.parametrize("database", LESS)
def test_host_may_allow_less(request, database):
    """What the host's connections have as a timeout is kept, where it is shorter."""
    engine = request.getfixturevalue(database)
    published(engine)
    write(engine, 3)
    as_host_likes(engine, [LESS[database]])
    with pytest.raises(Unavailable, match="longer than it may"):
        read(engine, Capacity(statement_seconds=60), data=slow(engine))


def test_transaction_that_a_hook_begins_is_ended(sqlite):
    """A host of SQLite whose hook begins transactions that lock the database is not locked."""
    published(sqlite)
    write(sqlite, 3)
    sqlite.dispose()
    event.listen(sqlite, "connect", lambda own, _: setattr(own, "isolation_level", None))
    event.listen(sqlite, "begin", lambda own: own.exec_driver_sql("BEGIN IMMEDIATE") and None)
    with connected(sqlite.url) as other, during(sqlite, lambda cursor: write(other, 3)):
        assert len(read(sqlite).events) == 3
    write(sqlite, 3)
    assert [len(read(sqlite).events) for _ in range(2)] == [9, 9]


def test_connection_that_breaks_is_never_seen_again(postgresql_url):
    """A connection that breaks in use ends in a 503, and the next one is whole."""
    engine = fill(create_engine(postgresql_url, pool_size=1, max_overflow=0), 3)
    feed = TableFeed(orders, data="data").bind(engine)
    feed.info()
    admin = create_engine(postgresql_url)
    execute(admin, "SELECT 1")  # it connects before the feed's time begins

    @event.listens_for(engine, "before_cursor_execute")
    def cut(connection, cursor, statement, *_):
        if "orders" in statement:
            event.remove(engine, "before_cursor_execute", cut)
            number = connection.connection.driver_connection.info.backend_pid
            execute(admin, f"SELECT pg_terminate_backend({number})")

    before = session(engine)
    with pytest.raises(Unavailable, match="cannot answer"):
        feed.read(0, FIRST, 100)
    assert len(feed.read(0, FIRST, 100).events) == 3
    assert session(engine)[:2] == before[:2]


@pytest.mark.anyio
async def test_async_engine_is_visited_in_the_same_way(async_url, host):
    """An async feed is as good a guest: read-only, in time, and nothing is left behind."""
    write(host, 3)
    engine = create_async_engine(async_url, pool_size=1, max_overflow=0)
    feed = TableFeed(orders, data="data").bind(engine)
    before = await settings(engine)
    assert len((await feed.read(0, FIRST, 100)).events) == 3
    assert await settings(engine) == before
    with refusing_writes(engine.sync_engine), suppress(FeedFailure, Unavailable):
        await feed.read(0, FIRST, 100)
    assert await settings(engine) == before
    stuck = TableFeed(orders, data=slow(host)).bind(engine, SHORT)
    with pytest.raises(Unavailable, match="longer than it may"):
        await stuck.read(0, FIRST, 100)
    assert await settings(engine) == before
    await engine.dispose()


@pytest.mark.slow
@pytest.mark.anyio
async def test_cancelled_question_leaves_nothing_behind(async_url, host):
    """A reader that is cancelled in the middle of a query gives back nothing that is half done."""
    write(host, 3)
    engine = create_async_engine(async_url, pool_size=1, max_overflow=0)
    before = await settings(engine)
    stuck = TableFeed(orders, data=slow(host)).bind(engine, Capacity(statement_seconds=1))
    asked = asyncio.Event()

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def note(connection, cursor, statement, *_):
        if SLEEPS[host.dialect.name] in statement.replace("%%", "%"):
            asked.set()

    asking = asyncio.create_task(stuck.read(0, FIRST, 100))
    await asyncio.wait_for(asked.wait(), LONG)
    await asyncio.sleep(0.1)  # until the statement is under way
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await settings(engine) == before
    feed = TableFeed(orders, data="data").bind(engine)
    assert len((await feed.read(0, FIRST, 100)).events) == 3
    async with engine.begin() as connection:
        await connection.execute(insert(orders), {"data": {"n": 3}})
    await engine.dispose()


async def settings(engine):
    """Return the settings of the connection that an async engine has."""
    async with engine.connect() as connection:
        found = (await connection.exec_driver_sql(SESSION[engine.dialect.name])).all()
        return [row for row in found if row[0] not in CHANGING]
