"""Pages of a loop of one's own: committed, told apart and inserted in every kind of transaction."""

from contextlib import asynccontextmanager, closing
from itertools import islice

import httpx
import psycopg
import pytest
from harness.deliveries import NAME, effects, event, kill, numbers, opened, write, write_page
from harness.engines import driver_connection
from sqlalchemy import Connection, NullPool, make_url
from sqlalchemy import event as sql_event
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session

from zeroeventhub import AsyncClient, AsyncConsumer, CursorStore
from zeroeventhub.errors import Fenced, StoreUnavailable
from zeroeventhub.testing import no_pauses


def conninfo(url):
    """Say it in the words of psycopg."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.fixture(
    params=[
        *["sqlite connection", "sqlite session", "postgresql connection", "mariadb connection"],
        *["sqlite driver", "postgresql driver", "mariadb driver"],
        pytest.param("postgresql session", marks=pytest.mark.test_all),
        pytest.param("mariadb session", marks=pytest.mark.test_all),
    ]
)
def loop(request):
    """A shop with 10 events, and a way to open a transaction that is committed by hand."""
    database, kind = request.param.split()
    url = request.getfixturevalue(f"{database}_url")
    with opened(url) as shop:
        shop.feed.publish(*map(event, range(10)))
        begin = {
            "connection": shop.engine.connect,
            "session": lambda: Session(shop.engine),
            "driver": lambda: closing(driver_connection(url)),
        }
        yield shop, begin[kind]


def test_page_is_committed_with_its_rows(loop):
    """Rows and cursor are there together, in order; rolled back, neither is, and it comes again."""
    shop, transaction = loop
    seen = []
    with shop.pages(limit=4) as pages:
        for page in pages:
            seen.append((page.previous_cursor, page.cursor))
            with transaction() as opened:
                page.commit(opened)
                page.insert_into(effects, opened)
                assert len(shop.landed()) == numbers(page.events)[0]
                if len(seen) > 1:
                    opened.commit()
    assert seen == [("_first", "4"), ("_first", "4"), ("4", "8"), ("8", "10")]
    assert shop.landed() == list(range(10))


def test_second_commit_of_a_page_is_fenced(loop):
    """Of two processes with one page the second is refused; its rows go, and the first's stay."""
    shop, transaction = loop
    first, second = (shop.page(limit=4) for _ in range(2))
    with transaction() as opened:
        first.insert_into(effects, opened, row=lambda one: {"n": one.data["n"] * 10})
        first.commit(opened)
        opened.commit()
    with transaction() as opened:
        second.insert_into(effects, opened)
        with pytest.raises(Fenced, match="roll back"):
            second.commit(opened)
        opened.rollback()
    assert shop.landed() == [0, 10, 20, 30]


def test_events_that_were_seen_are_told_apart(loop):
    """Events that come a second time are left out, once their transaction was committed."""
    shop, transaction = loop
    seen = []
    with shop.pages(limit=3, identity=lambda one: str(one.data["n"] // 2)) as pages:
        for page in pages:
            with transaction() as opened:
                unseen = page.unseen(opened)
                seen.append(numbers(unseen))
                page.insert_into(effects, opened, events=unseen)
                page.commit(opened)
                if len(seen) > 1:
                    opened.commit()
    assert seen == [[0, 2], [0, 2], [4], [6, 8], []]
    assert shop.landed() == [0, 2, 4, 6, 8]


# Inserting.


def inserting(kind, *, is_async=False):
    """Make a function that inserts a page through a kind of transaction, or the default's."""
    expected = kind or (AsyncConnection if is_async else Connection)

    async def async_apply(given, page):
        assert isinstance(given, expected)
        await page.insert_into(effects, given)

    def apply(given, page):
        assert isinstance(given, expected)
        page.insert_into(effects, given)

    chosen = async_apply if is_async else apply
    chosen.__annotations__ = {} if kind is None else {"given": kind}
    return chosen


@pytest.mark.parametrize(
    ("database", "is_async"),
    [("sqlite", True), ("postgresql", False), ("postgresql", True), ("mariadb", False)],
)
def test_run_gives_pages_that_are_inserted(request, database, is_async):
    """A function that `run` calls inserts its page through whatever transaction it asks for."""
    applies = [inserting(kind) for kind in (None, Connection, Session)]
    if is_async:
        kinds = (None, AsyncConnection, AsyncSession)
        applies += [inserting(kind, is_async=True) for kind in kinds]
    if database == "postgresql":
        plain = psycopg.AsyncConnection if is_async else psycopg.Connection
        applies.append(inserting(plain, is_async=is_async))
    with opened(request.getfixturevalue(f"{database}_url"), is_async=is_async) as shop:
        for number, apply in enumerate(applies):
            shop.feed.publish(event(2 * number), event(2 * number + 1))
            shop.run(apply)
        assert shop.landed() == list(range(2 * len(applies)))
        if database == "postgresql" and is_async:  # asyncpg knows parameters by their places
            url = make_url(shop.engine.url).set(drivername="postgresql+asyncpg")
            shop.async_engine = create_async_engine(url, poolclass=NullPool)
            shop.feed.publish(event(100), event(101))
            shop.run(inserting(AsyncConnection, is_async=True))
            assert shop.landed()[-2:] == [100, 101]


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["session", "psycopg"])
async def test_async_page_is_committed(postgresql_url, kind):
    """An async page goes through a session or psycopg, with what is unseen."""

    @asynccontextmanager
    async def plain():
        async with await psycopg.AsyncConnection.connect(conninfo(postgresql_url)) as connection:
            yield connection

    engine = create_async_engine(postgresql_url)
    begin = async_sessionmaker(engine).begin if kind == "session" else plain
    options = {"follow": False, "limit": 3, "identity": lambda one: str(one.data["n"] // 2)}
    with opened(postgresql_url) as shop:
        shop.feed.publish(*map(event, range(10)))
        async with httpx.AsyncClient() as http:
            client = AsyncClient(shop.url, http)

            def consumer():
                return AsyncConsumer(client, CursorStore(engine), NAME, **options)

            page, late = [await anext(aiter(consumer())) for _ in range(2)]
            async with begin() as begun:
                await page.commit(begun)
                await page.insert_into(effects, begun, events=await page.unseen(begun))
            with pytest.raises(Fenced):
                async with begin() as begun:
                    await late.commit(begun)
            async for page in consumer():
                async with begin() as begun:
                    await page.insert_into(effects, begun, events=await page.unseen(begun))
                    await page.commit(begun)
        assert shop.landed() == [0, 2, 4, 6, 8]
    await engine.dispose()


# Databases that are strict, or go away.


@pytest.mark.parametrize(
    "level", ["SERIALIZABLE", pytest.param("REPEATABLE READ", marks=pytest.mark.test_all)]
)
def test_strict_isolation_is_enough(sync_server_shop, level):
    """An engine of a stricter isolation level loses and doubles nothing, iterated or run."""
    shop = sync_server_shop
    shop.feed.publish(*map(event, range(10)))
    engine = shop.engine.execution_options(isolation_level=level)
    shop.store = CursorStore(engine)
    with shop.pages(limit=2) as pages:
        for page in islice(pages, 2):
            with engine.begin() as connection:
                page.commit(connection)
                write(connection, page.events)
    shop.run(write_page, limit=2)
    assert shop.landed() == list(range(10))


def test_lost_connection_is_waited_out(postgresql_url, caplog):
    """Loops and runs go on after a database has cut their connections, up to a number of times."""
    with opened(postgresql_url) as shop, no_pauses():
        shop.feed.publish(*map(event, range(6)))
        cuts = [1, 2]

        @sql_event.listens_for(shop.engine, "before_cursor_execute")
        def cut(connection, cursor, statement, *_):
            if "zeroeventhub_cursors" in statement and cuts:
                cuts.pop()
                kill(shop.engine, connection)

        page = shop.page(limit=2)
        assert (cuts, numbers(page.events)) == ([], [0, 1])
        cuts[:] = range(5)
        shop.run(write_page, limit=2)
        assert (cuts, shop.landed()) == ([], list(range(6)))
        # What the database said is not for the log.
        assert "zeroeventhub_cursors" not in caplog.text
        for read in (shop.page, lambda **options: shop.run(write_page, **options)):
            cuts[:] = range(100)
            with pytest.raises(StoreUnavailable):
                read(attempts=2)
            cuts.clear()
