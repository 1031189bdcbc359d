"""Pages inserted into tables, through every kind of transaction."""

import httpx
import psycopg
import pytest
from harness.billing import async_landed, effects, landed, make_tables, shop
from harness.shop import metadata, place
from harness.web import serving
from sqlalchemy import Connection, create_engine, delete, make_url
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from zeroeventhub import (
    AsyncClient,
    AsyncConsumer,
    AsyncPendingPage,
    Client,
    Consumer,
    CursorStore,
    PendingPage,
)
from zeroeventhub.errors import Fenced, Halted


@pytest.fixture
def feed(tmp_path):
    """The URL of a feed of 10 orders in one partition."""
    engine = create_engine(f"sqlite:///{tmp_path / 'publisher.db'}", connect_args={"timeout": 60})
    metadata.create_all(engine)
    with engine.begin() as connection:
        place(connection, 10)
    with serving(shop(engine, 1)) as url:
        yield f"{url}/orders"
    engine.dispose()


@pytest.fixture
def client(feed):
    """A client of the feed."""
    with httpx.Client() as http:
        yield Client(feed, http)


def prepared(engine):
    """Make a store, and its tables beside a table of effects."""
    store = CursorStore(engine)
    with engine.begin() as connection:
        make_tables(store, connection)
    return store


def consumer(client, store):
    """A consumer that ends at the head."""
    return Consumer(client, store, "billing", follow=False, limit=4)


def conninfo(url):
    """Say it in the words of psycopg."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_page_is_inserted_in_the_transaction_that_commits_it(engine, client, kind):
    """Rows and cursor are there together, in order; rolled back, neither is."""
    store = prepared(engine)
    seen = []
    for page in consumer(client, store):
        seen.append(page.previous_cursor)
        opened = engine.connect() if kind == "connection" else Session(engine)
        with opened as transaction:
            page.commit(transaction)
            page.insert_into(effects, transaction)
            if len(seen) > 1:
                transaction.commit()
    assert seen[0] == seen[1]
    assert landed(store) == list(range(10))


def test_page_is_inserted_through_a_connection_of_psycopg(postgresql, postgresql_url, client):
    """A plain connection of psycopg takes rows and cursor, and commits them itself."""
    store = prepared(postgresql)
    with psycopg.connect(conninfo(postgresql_url)) as connection:
        for page in consumer(client, store):
            page.insert_into(effects, connection)
            page.commit(connection)
            assert len(landed(store)) == page.events[0].data["n"]
            connection.commit()
    assert landed(store) == list(range(10))


def test_page_that_was_committed_before_is_not_inserted_twice(engine, client):
    """Of two processes with one page, the second is fenced, and its rows go."""
    store = prepared(engine)
    first, second = (next(iter(consumer(client, store))) for _ in range(2))
    for page in (first, second):
        with engine.connect() as connection:
            page.insert_into(effects, connection)
            if page is second:
                with pytest.raises(Fenced):
                    page.commit(connection)
                connection.rollback()
            else:
                page.commit(connection)
                connection.commit()
    assert landed(store) == [0, 1, 2, 3]


def parity(event):
    """An identity that many events have in common."""
    return str(event.data["n"] % 2)


def test_events_that_were_seen_are_not_inserted(engine, client):
    """Of a page, those events are inserted that are given; `run` gives those that are unseen."""
    store = prepared(engine)
    for page in Consumer(client, store, "billing", follow=False, limit=3, identity=parity):
        with engine.begin() as connection:
            page.commit(connection)
            page.insert_into(effects, connection, events=page.unseen(connection))
    assert landed(store) == [0, 1]
    options = {"follow": False, "limit": 3, "identity": parity, "inbox": True}
    with engine.begin() as connection:
        connection.execute(delete(effects))
    Consumer(client, store, "other", **options).run(through_connection)
    assert landed(store) == [0, 1]


def through_connection(connection: Connection, page: PendingPage) -> None:
    """Insert a page."""
    page.insert_into(effects, connection)


def through_session(session: Session, page: PendingPage) -> None:
    """Insert a page."""
    page.insert_into(effects, session)


def through_psycopg(connection: psycopg.Connection, page: PendingPage) -> None:
    """Insert a page."""
    page.insert_into(effects, connection)


async def through_async_connection(connection: AsyncConnection, page: AsyncPendingPage) -> None:
    """Insert a page."""
    await page.insert_into(effects, connection)


async def through_async_session(session: AsyncSession, page: AsyncPendingPage) -> None:
    """Insert a page."""
    await page.insert_into(effects, session)


async def through_async_psycopg(
    connection: psycopg.AsyncConnection, page: AsyncPendingPage
) -> None:
    """Insert a page."""
    await page.insert_into(effects, connection)


@pytest.mark.parametrize("apply", [through_connection, through_session])
def test_run_gives_pages_that_are_inserted(engine, client, apply):
    """A function that `run` calls inserts its page through whatever transaction it asks for."""
    store = prepared(engine)
    consumer(client, store).run(apply)
    assert landed(store) == list(range(10))


def test_run_gives_pages_that_psycopg_inserts(postgresql, client):
    """The same through the connection of the driver."""
    store = prepared(postgresql)
    consumer(client, store).run(through_psycopg)
    assert landed(store) == list(range(10))


@pytest.mark.anyio
@pytest.mark.parametrize(
    "apply",
    [
        through_async_connection,
        through_async_session,
        through_connection,
        through_session,
    ],
)
async def test_async_run_gives_pages_that_are_inserted(async_engine, feed, apply):
    """The same with asyncio, for async functions and for ordinary ones."""
    await run_async(async_engine, feed, apply)


async def run_async(engine, feed, apply):
    """Run a consumer over an engine, and look at what has landed."""
    store = CursorStore(engine)
    async with engine.begin() as connection:
        await connection.run_sync(lambda inner: make_tables(store, inner))
    async with httpx.AsyncClient() as http:
        following = AsyncConsumer(AsyncClient(feed, http), store, "billing", follow=False, limit=4)
        await following.run(apply)
    assert await async_landed(store) == list(range(10))


@pytest.mark.anyio
async def test_async_page_is_inserted_through_a_connection_of_psycopg(postgresql_url, feed):
    """A plain async connection of psycopg takes rows and cursor."""
    engine = create_async_engine(postgresql_url)
    store = CursorStore(engine)
    async with engine.begin() as connection:
        await connection.run_sync(lambda inner: make_tables(store, inner))
    async with (
        httpx.AsyncClient() as http,
        await psycopg.AsyncConnection.connect(conninfo(postgresql_url)) as connection,
    ):
        async for page in AsyncConsumer(
            AsyncClient(feed, http), store, "billing", follow=False, limit=4
        ):
            await page.commit(connection)
            await page.insert_into(effects, connection)
            await connection.commit()
    assert await async_landed(store) == list(range(10))
    await engine.dispose()


@pytest.mark.anyio
async def test_events_of_an_async_page_are_chosen(postgresql_url, feed):
    """Of an async page as well, those events are inserted that are given."""
    engine = create_async_engine(postgresql_url)
    store = CursorStore(engine)
    async with engine.begin() as connection:
        await connection.run_sync(lambda inner: make_tables(store, inner))
    async with httpx.AsyncClient() as http:
        async for page in AsyncConsumer(
            AsyncClient(feed, http), store, "billing", follow=False, limit=4
        ):
            async with engine.begin() as connection:
                await page.commit(connection)
                await page.insert_into(effects, connection, events=page.events[:1])
    assert await async_landed(store) == [0, 4, 8]
    await engine.dispose()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("driver", "apply"), [("psycopg", through_async_psycopg), ("asyncpg", through_async_connection)]
)
async def test_async_drivers_insert_pages(postgresql_url, feed, driver, apply):
    """So does the driver's own connection, and a driver that knows parameters by their places."""
    url = make_url(postgresql_url).set(drivername=f"postgresql+{driver}")
    engine = create_async_engine(url)
    await run_async(engine, feed, apply)
    await engine.dispose()


def test_row_function_makes_the_rows(engine, client):
    """A function chooses what becomes of an event."""
    store = prepared(engine)
    for page in consumer(client, store):
        with engine.begin() as connection:
            page.commit(connection)
            page.insert_into(effects, connection, row=lambda one: {"n": one.data["n"] * 10})
    assert landed(store) == [number * 10 for number in range(10)]


def test_event_that_does_not_fit_halts_its_partition(engine, client):
    """An event that does not fit is told as any other that cannot be applied."""
    store = prepared(engine)

    def apply(connection: Connection, page: PendingPage) -> None:
        page.insert_into(effects, connection, row=lambda one: {"worker": str(one.data["n"])})

    with pytest.raises(Halted, match="column 'n' needs a value"):
        consumer(client, store).run(apply)
    assert landed(store) == []
