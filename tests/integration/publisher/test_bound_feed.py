"""A feed bound to an engine, sync or async: each question, and looks at the head that are small."""

import asyncio
import threading
import uuid
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from harness.engines import async_url, cancelling, connected
from harness.published import install
from harness.shop import fill, metadata, orders, place, write
from harness.statements import execute, scalars
from sqlalchemy import create_engine, event, insert, text
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import FIRST, TableFeed, TypeFilter
from zeroeventhub.errors import BadCursor, Diverged, Unavailable
from zeroeventhub.feed import ArchiveMiss
from zeroeventhub.settings import Capacity


@contextmanager
def asking(engine):
    """Note the statements that are sent through a sync engine meanwhile."""
    asked = []

    def note(_connection, _cursor, statement, *_):
        asked.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield asked
    event.remove(engine, "before_cursor_execute", note)


@pytest.fixture
def host(postgresql_url):
    """An engine of one connection, on a database with three orders."""
    engine = create_engine(postgresql_url, pool_size=1, max_overflow=0)
    fill(engine, 3)
    yield engine
    engine.dispose()


def bound(engine, ordering, **capacity):
    """Publish the table of orders, in an order, on an engine."""
    source = TableFeed(orders, data="data", ordering=ordering)
    install(source, engine)
    return source.bind(engine, Capacity(**capacity))


@pytest.mark.anyio
async def test_server_without_room_passes_by_whatever_driver(postgresql):
    """A server that takes no more connections is no fault of the feed: its readers ask again."""
    role = f"crowd_{uuid.uuid4().hex[:8]}"
    fill(postgresql, 3)
    execute(postgresql, f"CREATE ROLE {role} LOGIN PASSWORD 'crowd' CONNECTION LIMIT 0")
    full = postgresql.url.set(username=role, password="crowd")
    engine = create_async_engine(full.set(drivername="postgresql+asyncpg"))
    try:
        with connected(full) as sync, pytest.raises(Unavailable):
            TableFeed(orders).bind(sync).read(0, FIRST, 9)
        with pytest.raises(Unavailable):
            await TableFeed(orders).bind(engine).read(0, FIRST, 9)
    finally:
        execute(postgresql, f"DROP ROLE {role}")


@pytest.mark.anyio
async def test_async_feed_answers_as_the_sync_feed_does(any_engine, any_async_engine):
    """Every question has the same answer through an async engine, with all that it was asked by."""
    metadata.create_all(any_engine)
    noon = datetime(2013, 1, 1, 12, tzinfo=UTC)
    with any_engine.begin() as connection:
        rows = [
            {"part": n % 2, "kind": "ab"[n % 3 % 2], "placed": noon + timedelta(hours=n), "data": n}
            for n in range(20)
        ]
        connection.execute(insert(orders), rows)
    options = {"data": "data", "type": "kind", "time": "placed", "mutable": True}
    source = TableFeed(orders, partition="part", partitions=2, **options)
    feed, other = source.bind(any_engine), source.bind(any_async_engine)
    types = TypeFilter(frozenset({"a"}))
    stop, start = feed.cursor_after(15), feed.cursor_after(3)
    for name, arguments, given in [
        ("info", (), {}),
        ("head", (), {}),
        ("read", (1, start, 3), {"types": types, "stop": stop, "each": True}),
        ("read", (0, start, 99), {"stop": stop}),
        ("read_pages", (0, start, 2, 3), {"types": types, "stop": stop}),
        ("splits", (1, 3), {"start": start, "stop": stop}),
        ("cursor_of_count", (1, start, 99), {"stop": stop}),
        ("cursor_after", (7,), {}),
        ("cursor_at", (noon + timedelta(hours=5), 1), {}),
        ("cursor_of", ("4", 1), {"types": types}),
        ("vouch", ([start, stop],), {}),
    ]:
        said = getattr(feed, name)(*arguments, **given)
        assert repr(await getattr(other, name)(*arguments, **given)) == repr(said), name
    lag = await other.lag(1, start)
    assert (lag.events, lag.exact) == (feed.lag(1, start).events, True) == (9, True)
    for refused in (["1-99"], [start, "nonsense"]):
        with pytest.raises((Diverged, BadCursor)):
            await other.vouch(refused)
    assert [one.level for one in await other.check()] == [one.level for one in feed.check()]


def late(connection):
    """Say that the database does not answer."""
    raise Unavailable("Not now.")


async def ask(feed, statement):
    """Query the database, meet an error, and fetch a part of an archive; return what came of it."""
    found = []

    def miss(connection):
        if len(found) < 2:
            raise ArchiveMiss(lambda: found.append(threading.get_ident()))
        return connection.scalar(text(statement))

    try:
        await feed.answer(late)
    except Unavailable:
        found.append("late")
    return [await feed.answer(miss), *found]


@pytest.mark.anyio
async def test_method_works_with_every_engine(any_engine, any_async_engine):
    """Queries have a connection, an error is raised where its query is, and work does not block."""
    metadata.create_all(any_engine)
    source = TableFeed(orders, data="data")
    sync = source.bind(any_engine).run(ask, "SELECT 7")
    found = await source.bind(any_async_engine).run(ask, "SELECT 7")
    assert sync == [7, "late", threading.get_ident()]
    assert found[:2] == sync[:2]
    assert found[2] != sync[2]


@pytest.mark.anyio
async def test_read_that_is_cancelled_keeps_no_writer_waiting(sqlite):
    """SQLite's lock goes with a read that is cancelled, and not when garbage is collected."""
    fill(sqlite, 2_000)
    engine = create_async_engine(async_url(sqlite.url))
    feed = TableFeed(orders, data="data").bind(engine)
    await feed.info()
    with cancelling(engine, "orders"):
        done, _ = await asyncio.wait([asyncio.create_task(feed.read(0, FIRST, 1_000))])
        assert done.pop().cancelled()
        with connected(sqlite.url, timeout=0.5) as other:
            write(other, 1)
    await engine.dispose()


def test_database_that_is_away_is_unavailable(tmp_path):
    """A database that cannot be reached is one to come back to."""
    away = create_engine(f"sqlite:///{tmp_path / 'missing' / 'test.db'}")
    for ask in (TableFeed(orders, data="data").bind(away).info, TableFeed(orders).bind(away).head):
        with pytest.raises(Unavailable) as caught:
            ask()
        assert caught.value.retry_after == 1


@pytest.mark.parametrize(("ordering", "statements"), [("observed", 1), ("gated", 2)])
def test_look_where_nothing_is_written_is_small(host, ordering, statements):
    """Where nothing was written, a page opens no transaction and does not ask for writers."""
    feed = bound(host, ordering)
    before = session(host)
    assert feed.head() == 3
    assert session(host) == before
    for count in (2, 1):
        feed.head()
        with asking(host) as asked:
            feed.head()
        assert len(asked) == statements
        assert not [statement for statement in asked if "BEGIN" in statement]
        with asking(host) as asked:
            assert feed.read(0, FIRST, 1).events
        assert ordering == "gated" or not any("pg_locks" in statement for statement in asked)
        write(host, count)
    assert feed.head() == 6
    assert session(host) == before


def test_look_waits_for_who_writes(host, postgresql_url):
    """A number that was drawn is looked at until its writer has ended."""
    feed = bound(host, "observed")
    assert feed.head() == 3
    with connected(postgresql_url) as writing, writing.connect() as connection:
        place(connection, 1)
        assert [feed.head() for _ in range(2)] == [3, 3]
        write(writing)
        assert feed.head() == 3
        connection.commit()
    assert feed.head() == 5


def session(engine):
    """Return the settings of the one connection of an engine."""
    return scalars(engine, "SELECT name || '=' || setting FROM pg_settings ORDER BY name")


def test_look_does_not_wait_for_long(host, postgresql_url):
    """An altered sequence keeps a look waiting for no longer than a statement may take."""
    feed = bound(host, "observed", statement_seconds=2)
    assert feed.head() == 3
    with connected(postgresql_url) as altering, altering.connect() as connection:
        connection.execute(text("ALTER SEQUENCE orders_id_seq MAXVALUE 1000000"))
        with pytest.raises(Unavailable, match="longer than it may"):
            feed.head()
    assert feed.head() == 3
