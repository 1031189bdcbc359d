"""A feed is a guest on its host's connections: read-only, in time, and they stay as they were."""

import asyncio
import time

import pytest
from harness.shop import metadata, orders, place
from sqlalchemy import Integer, create_engine, event, insert, literal_column, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import FIRST, TableFeed
from zeroeventhub.capacity import Capacity
from zeroeventhub.errors import Unavailable
from zeroeventhub.publisher.guest_connection import guest_for, visiting

SHORT = Capacity(statement_seconds=0.5)
LONG = 20
"""Seconds that nothing here takes, unless nothing ends it."""

SLEEPS = {
    "postgresql": text("SELECT pg_sleep(30)"),
    "mariadb": text("SELECT SLEEP(30)"),
    "sqlite": text("""
        WITH RECURSIVE numbers(n) AS (
            SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 20000000
        )
        SELECT count(*) FROM numbers
    """),
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
CHANGING = {
    "timestamp",
    "pseudo_thread_id",
    "rand_seed1",
    "rand_seed2",
    "last_insert_id",
    "identity",
}


@pytest.fixture
def host(database_url):
    """An engine of one connection, on a database with an empty table of orders."""
    engine = create_engine(database_url, pool_size=1, max_overflow=0)
    metadata.create_all(engine)
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
    feed = TableFeed(orders, data="data", **options)
    return feed.bind(engine, capacity).read(0, FIRST, 100)


def slow(dialect):
    """Return an expression that takes its time."""
    texts = {
        "postgresql": "(SELECT 1 FROM pg_sleep(30))",
        "mariadb": "(SELECT SLEEP(30))",
        "sqlite": "(WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers "
        "WHERE n < 20000000) SELECT max(n) FROM numbers)",
    }
    return literal_column(texts[dialect], Integer())


def fill(engine, count=3):
    """Write some orders."""
    with engine.begin() as connection:
        place(connection, count)


def as_host_likes(engine):
    """Let every new connection have settings of the host's own."""

    @event.listens_for(engine, "connect")
    def connect(connection, _):
        cursor = connection.cursor()
        for line in SET[engine.dialect.name]:
            cursor.execute(line)
        cursor.close()
        connection.commit()

    engine.dispose()


def test_nothing_can_be_written(host):
    """What a feed asks of a connection cannot write; what its host asks afterwards can."""
    guest = guest_for(host.dialect, 5)
    with host.connect() as connection, pytest.raises(DBAPIError), visiting(connection, guest):
        connection.execute(insert(orders), {"data": {"n": 0}})
    fill(host)
    assert len(read(host).events) == 3
    fill(host)
    assert len(read(host).events) == 6


@pytest.mark.parametrize("own", [False, True], ids=["plain", "own settings"])
def test_connection_is_given_back_as_it_was(host, own):
    """A page, an error, a statement that takes too long: the connection is what it was before."""
    fill(host)
    if own:
        as_host_likes(host)
    before = session(host)
    assert len(read(host).events) == 3
    assert session(host) == before
    with pytest.raises(Unavailable, match="longer"):
        read_slowly(host)
    assert session(host) == before
    with (
        pytest.raises(ZeroDivisionError),
        host.connect() as connection,
        visiting(connection, guest_for(host.dialect, 5)),
    ):
        raise ZeroDivisionError
    assert session(host) == before
    with (
        pytest.raises(DBAPIError),
        host.connect() as connection,
        visiting(connection, guest_for(host.dialect, 5)),
    ):
        connection.execute(text("SELECT nonsense"))
    assert session(host) == before


@pytest.mark.parametrize("own", [False, True], ids=["plain", "own settings"])
def test_connection_that_may_be_in_the_middle_of_something_is_closed(host, own):
    """Where a use of a connection is cut short, its host gets another one, as it is at first."""
    if own:
        as_host_likes(host)
    before = session(host)
    guest = guest_for(host.dialect, 5)
    with (
        pytest.raises(KeyboardInterrupt),
        host.connect() as connection,
        visiting(connection, guest),
    ):
        raise KeyboardInterrupt
    assert session(host)[:2] == before[:2]


def read_slowly(engine):
    """Ask for a page that takes longer than it may."""
    feed = TableFeed(orders, data={"n": slow(engine.dialect.name)})
    return feed.bind(engine, SHORT).read(0, FIRST, 100)


def test_statement_that_takes_too_long_is_a_503(host):
    """A statement is ended by the database when it takes longer than the capacity says."""
    fill(host)
    began = time.monotonic()
    with pytest.raises(Unavailable, match="longer than it may"):
        read_slowly(host)
    assert time.monotonic() - began < LONG
    assert len(read(host).events) == 3


def test_deadline_is_for_each_statement(host):
    """Statements that are each in time may take longer together."""
    with host.connect() as connection, visiting(connection, guest_for(host.dialect, 0.6)):
        for _ in range(4):
            connection.execute(text("SELECT 1"))
            time.sleep(0.25)
        connection.execute(text("SELECT 1"))


def test_lock_that_is_not_had_in_time_is_a_503(postgresql_url, mariadb_url):
    """A host that alters its table keeps a page waiting for no longer than a statement may take."""
    for url, lock in (
        (postgresql_url, "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE"),
        (mariadb_url, "LOCK TABLES orders WRITE"),
    ):
        engine = create_engine(url)
        metadata.create_all(engine)
        fill(engine)
        feed = TableFeed(orders, data="data").bind(engine, Capacity(statement_seconds=1))
        assert len(feed.read(0, FIRST, 100).events) == 3
        with engine.connect() as connection:
            connection.execute(text(lock))
            began = time.monotonic()
            with pytest.raises(Unavailable, match="longer than it may"):
                feed.read(0, FIRST, 100)
            assert time.monotonic() - began < LONG
            connection.rollback()
            connection.invalidate()
        assert len(feed.read(0, FIRST, 100).events) == 3
        engine.dispose()


@pytest.mark.parametrize(
    ("database", "line"),
    [
        ("postgresql", "SET statement_timeout = '300ms'"),
        ("mariadb", "SET max_statement_time = 0.3"),
    ],
)
def test_host_may_allow_less(request, database, line):
    """What the host's connections have as a timeout is kept, where it is shorter."""
    engine = create_engine(request.getfixturevalue(f"{database}_url"))

    @event.listens_for(engine, "connect")
    def connect(connection, _):
        cursor = connection.cursor()
        cursor.execute(line)
        cursor.close()
        connection.commit()

    began, guest = time.monotonic(), guest_for(engine.dialect, 60)
    with pytest.raises(DBAPIError), engine.connect() as connection, visiting(connection, guest):
        connection.execute(SLEEPS[database]).all()
    assert time.monotonic() - began < LONG
    engine.dispose()


def test_isolation_of_the_host_is_not_the_feeds(host):
    """Each statement of a feed sees the last commits, however strict the host's engine is."""
    strict = create_engine(host.url, isolation_level="SERIALIZABLE", pool_size=1, max_overflow=0)
    with strict.connect() as connection, visiting(connection, guest_for(strict.dialect, 5)):
        count = text("SELECT count(*) FROM orders")
        assert connection.scalar(count) == 0
        fill(host)
        assert connection.scalar(count) == 3
    strict.dispose()


def test_transaction_that_a_hook_begins_is_ended(sqlite):
    """A host of SQLite whose hook begins transactions that lock the database is not locked."""

    @event.listens_for(sqlite, "connect")
    def connect(connection, _):
        connection.isolation_level = None

    @event.listens_for(sqlite, "begin")
    def begin(connection):
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    metadata.create_all(sqlite)
    other = create_engine(sqlite.url)
    with sqlite.connect() as connection, visiting(connection, guest_for(sqlite.dialect, 5)):
        connection.execute(text("SELECT 1"))
        fill(other)
        assert connection.scalar(text("SELECT count(*) FROM orders")) == 3
    fill(sqlite)
    assert len(read(sqlite).events) == 6
    assert len(read(sqlite).events) == 6
    other.dispose()


def test_connection_that_breaks_is_never_seen_again(postgresql_url):
    """A connection that breaks in use ends in a 503, and the next one is whole."""
    engine = create_engine(postgresql_url, pool_size=1, max_overflow=0)
    metadata.create_all(engine)
    fill(engine)
    feed = TableFeed(orders, data="data").bind(engine)
    feed.info()
    admin = create_engine(postgresql_url, isolation_level="AUTOCOMMIT")

    @event.listens_for(engine, "before_cursor_execute")
    def cut(connection, cursor, statement, *_):
        if "orders" in statement:
            event.remove(engine, "before_cursor_execute", cut)
            with admin.connect() as other:
                other.execute(
                    text("SELECT pg_terminate_backend(:pid)"),
                    {"pid": connection.connection.driver_connection.info.backend_pid},
                )

    before = session(engine)
    with pytest.raises(Unavailable, match="cannot answer"):
        feed.read(0, FIRST, 100)
    assert len(feed.read(0, FIRST, 100).events) == 3
    assert session(engine)[:2] == before[:2]
    admin.dispose()
    engine.dispose()


@pytest.mark.anyio
async def test_async_engine_is_visited_in_the_same_way(async_url, host):
    """An async feed is as good a guest: read-only, in time, and nothing is left behind."""
    fill(host)
    engine = create_async_engine(async_url, pool_size=1, max_overflow=0)
    guest = guest_for(engine.dialect, 0.5)

    def write(connection):
        with visiting(connection, guest):
            connection.execute(insert(orders), {"data": {"n": 0}})

    def sleep(connection):
        with visiting(connection, guest):
            connection.execute(SLEEPS[host.dialect.name]).all()

    before = await settings(engine)
    for question in (write, sleep):
        with pytest.raises(DBAPIError):
            async with engine.connect() as connection:
                await connection.run_sync(question)
        assert await settings(engine) == before
    feed = TableFeed(orders, data="data").bind(engine, SHORT)
    assert len((await feed.read(0, FIRST, 100)).events) == 3
    assert await settings(engine) == before
    stuck = TableFeed(orders, data={"n": slow(host.dialect.name)}).bind(engine, SHORT)
    with pytest.raises(Unavailable, match="longer than it may"):
        await stuck.read(0, FIRST, 100)
    assert await settings(engine) == before
    await engine.dispose()


@pytest.mark.anyio
async def test_cancelled_question_leaves_nothing_behind(async_url, host):
    """Who is cancelled in the middle of a query gives back nothing that is half done."""
    fill(host)
    engine = create_async_engine(async_url, pool_size=1, max_overflow=0)
    before = await settings(engine)
    capacity = Capacity(statement_seconds=3)
    stuck = TableFeed(orders, data={"n": slow(host.dialect.name)}).bind(engine, capacity)
    asking = asyncio.create_task(stuck.read(0, FIRST, 100))
    await asyncio.sleep(1)
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


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_positions_are_committed_before_they_are_shown(database, request):
    """What gives positions is committed by itself; whoever reads them may not write."""
    engine = create_engine(request.getfixturevalue(f"{database}_url"))
    metadata.create_all(engine)
    feed = TableFeed(orders, data="data", ordering="sequenced")
    with engine.begin() as connection:
        feed.install(connection)
    fill(engine)
    ordering = feed.ordering(engine.dialect.name)
    with engine.connect() as connection, engine.connect() as other:
        step = ordering.step(connection)
        with visiting(connection, guest_for(engine.dialect, 5), step):
            assert ordering.horizon(connection).settled == 3
            assert ordering.horizon(other).settled == 3
            with pytest.raises(DBAPIError):
                connection.execute(insert(orders), {"data": {"n": 3}})
    assert len(feed.bind(engine).read(0, FIRST, 100).events) == 3
    engine.dispose()


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_giving_positions_has_a_deadline(database, request):
    """Giving positions does not wait for a lock for longer than a statement may take."""
    engine = create_engine(request.getfixturevalue(f"{database}_url"))
    metadata.create_all(engine)
    feed = TableFeed(orders, data="data", ordering="sequenced")
    with engine.begin() as connection:
        feed.install(connection)
    bound = feed.bind(engine, Capacity(statement_seconds=1))
    fill(engine)
    assert len(bound.read(0, FIRST, 100).events) == 3
    fill(engine)
    positions = feed.ordering(database).source.table.name
    lock = {
        "postgresql": f"LOCK TABLE {positions} IN ACCESS EXCLUSIVE MODE",
        "mariadb": f"LOCK TABLES {positions} WRITE",
    }
    with engine.connect() as connection:
        connection.execute(text(lock[database]))
        began = time.monotonic()
        with pytest.raises(Unavailable, match="longer than it may"):
            bound.read(0, FIRST, 100)
        assert time.monotonic() - began < LONG
        connection.invalidate()
    assert len(bound.read(0, FIRST, 100).events) == 6
    engine.dispose()
