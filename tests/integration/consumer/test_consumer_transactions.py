"""Pages of a loop of one's own, committed through every kind of transaction."""

import itertools

import httpx
import psycopg
import pytest
from harness.billing import async_landed, effects, landed, make_tables, shop, write
from harness.shop import metadata, place
from harness.web import serving
from sqlalchemy import create_engine, event, insert, make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from zeroeventhub import AsyncClient, AsyncConsumer, Client, Consumer, CursorStore
from zeroeventhub.errors import ConfigurationError, Fenced, StoreUnavailable

INSERT = "INSERT INTO effects (n) VALUES (%s)"


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


@pytest.fixture
def store(engine):
    """A store on each database, beside a table of effects."""
    return prepared(engine)


def prepared(engine):
    """Make a store, and its tables beside a table of effects."""
    store = CursorStore(engine)
    with engine.begin() as connection:
        make_tables(store, connection)
    return store


def consumer(client, store, **options):
    """A consumer that ends at the head."""
    return Consumer(client, store, "billing", **{"follow": False, "limit": 4, **options})


def conninfo(url):
    """Say it in the words of psycopg."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def number(event):
    """Identify an order by its number; every other one is published a second time."""
    return str(event.data["n"] // 2)


def test_psycopg_connection_commits(postgresql, postgresql_url, client):
    """A page is committed with effects that a plain connection of psycopg has written."""
    store = prepared(postgresql)
    with psycopg.connect(conninfo(postgresql_url)) as connection:
        for page in consumer(client, store):
            for one in page.events:
                connection.execute(INSERT, [one.data["n"]])
            page.commit(connection)
            assert len(landed(store)) == 4 * (page.events[0].data["n"] // 4)
            connection.commit()
    assert landed(store) == list(range(10))


def test_psycopg_connection_that_rolls_back_has_not_committed(postgresql, postgresql_url, client):
    """Neither cursor nor effects are there if their transaction is rolled back; then both are."""
    store, seen = prepared(postgresql), []
    with psycopg.connect(conninfo(postgresql_url)) as connection:
        for page in itertools.islice(consumer(client, store), 2):
            seen.append(page.cursor)
            for one in page.events:
                connection.execute(INSERT, [one.data["n"]])
            page.commit(connection)
            connection.rollback() if len(seen) == 1 else connection.commit()
    assert seen[0] == seen[1]
    assert landed(store) == [0, 1, 2, 3]


def test_psycopg_connection_is_fenced(postgresql, postgresql_url, client):
    """Of two transactions of one page, the second is refused, and can be rolled back."""
    store = prepared(postgresql)
    first, second = (next(iter(consumer(client, store))) for _ in range(2))
    with psycopg.connect(conninfo(postgresql_url)) as connection:
        first.commit(connection)
        connection.commit()
        with pytest.raises(Fenced, match="roll back"):
            second.commit(connection)
        connection.rollback()
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("transaction", [None, "a connection"])
def test_what_is_no_transaction_is_refused(store, client, transaction):
    """What a page cannot be committed through is told, with what it can."""
    page = next(iter(consumer(client, store)))
    with pytest.raises(ConfigurationError, match="committed through SQLAlchemy's Connection"):
        page.commit(transaction)


def test_psycopg_connection_goes_with_a_store_on_postgresql(sqlite, postgresql_url, client):
    """A connection to another database than the store's is refused."""
    page = next(iter(consumer(client, prepared(sqlite))))
    with (
        psycopg.connect(conninfo(postgresql_url)) as connection,
        pytest.raises(ConfigurationError, match=r"psycopg\.Connection"),
    ):
        page.commit(connection)


@pytest.mark.parametrize("kind", ["connection", "session", "psycopg"])
def test_events_that_were_seen_are_told_apart(request, kind, client):
    """Events that come a second time are left out, within a page and behind it."""
    url = request.getfixturevalue("postgresql_url")
    engine = create_engine(url)
    store = prepared(engine)
    for page in consumer(client, store, identity=number, limit=3):
        if kind == "psycopg":
            with psycopg.connect(conninfo(url)) as connection:
                for one in page.unseen(connection):
                    connection.execute(INSERT, [one.data["n"]])
                page.commit(connection)
        else:
            opened = engine.connect() if kind == "connection" else Session(engine)
            with opened as transaction, transaction.begin():
                for one in page.unseen(transaction):
                    transaction.execute(insert(effects), [{"n": one.data["n"]}])
                page.commit(transaction)
    assert landed(store) == [0, 2, 4, 6, 8]
    engine.dispose()


def test_inbox_goes_back_with_its_transaction(store, client):
    """An event counts as seen when the transaction is committed that saw it, and not before."""
    page = next(iter(consumer(client, store, identity=number)))
    with store.engine.connect() as connection:
        assert len(page.unseen(connection)) == 2
        connection.rollback()
        assert len(page.unseen(connection)) == 2
        connection.commit()
        assert page.unseen(connection) == []


def test_event_without_an_id_cannot_be_told_apart(store, client):
    """Who asks for what is unseen is told that an event has no id."""
    page = next(iter(consumer(client, store)))
    with pytest.raises(ConfigurationError, match="identity"), store.engine.begin() as connection:
        page.unseen(connection)


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_strict_isolation_is_enough(request, database, level, client):
    """An engine of a stricter isolation level loses and doubles nothing, iterated or run."""
    engine = create_engine(request.getfixturevalue(f"{database}_url"), isolation_level=level)
    store = prepared(engine)
    for page in itertools.islice(consumer(client, store, limit=2), 2):
        with engine.begin() as connection:
            page.commit(connection)
            write(connection, page)
    consumer(client, store, limit=2).run(write)
    assert landed(store) == list(range(10))
    engine.dispose()


def breaking(engine, statements):
    """Cut the connection before so many statements that change a cursor; return what was cut."""
    cut = []

    @event.listens_for(engine, "before_cursor_execute")
    def terminate(connection, cursor, statement, *_):
        if "zeroeventhub_cursors" in statement and len(cut) < statements:
            cut.append(statement)
            pid = connection.connection.driver_connection.info.backend_pid
            with psycopg.connect(conninfo(engine.url)) as admin:
                admin.execute("SELECT pg_terminate_backend(%s)", [pid])

    return cut


def test_lost_connection_is_waited_out_by_a_loop(postgresql, client):
    """A loop of one's own goes on behind a database that has cut its connections."""
    store = prepared(postgresql)
    cut = breaking(postgresql, 2)
    pages = iter(consumer(client, store))
    first = next(pages)
    assert len(cut) == 2
    assert [one.data["n"] for one in first.events] == [0, 1, 2, 3]


def test_lost_connection_is_waited_out_by_a_run(postgresql, client, caplog):
    """A run goes on behind a database that has cut its connections, and applies all once."""
    store = prepared(postgresql)
    cut = breaking(postgresql, 5)
    consumer(client, store, limit=2).run(write)
    assert (len(cut), landed(store)) == (5, list(range(10)))
    # What the database said is no business of the log's.
    assert "zeroeventhub_cursors" not in caplog.text


def test_attempts_end_a_loop_whose_store_is_away(postgresql, client):
    """A loop of one's own with a number of attempts raises the last one's error."""
    store = prepared(postgresql)
    breaking(postgresql, 100)
    with pytest.raises(StoreUnavailable):
        next(iter(consumer(client, store, attempts=2)))


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["connection", "session", "psycopg"])
async def test_async_page_is_committed(feed, postgresql_url, kind):
    """An async page goes through a connection, a session, or psycopg, with what is unseen."""
    engine = create_async_engine(postgresql_url)
    store = CursorStore(engine)
    async with engine.begin() as connection:
        await connection.run_sync(lambda sync: make_tables(store, sync))
    options = {"follow": False, "limit": 3, "identity": number}
    async with httpx.AsyncClient() as http:
        async for page in AsyncConsumer(AsyncClient(feed, http), store, "billing", **options):
            if kind == "psycopg":
                async with await psycopg.AsyncConnection.connect(conninfo(postgresql_url)) as plain:
                    for one in await page.unseen(plain):
                        await plain.execute(INSERT, [one.data["n"]])
                    await page.commit(plain)
                continue
            opened = engine.connect() if kind == "connection" else AsyncSession(engine)
            async with opened as transaction, transaction.begin():
                for one in await page.unseen(transaction):
                    await transaction.execute(insert(effects), [{"n": one.data["n"]}])
                await page.commit(transaction)
    assert await async_landed(store) == [0, 2, 4, 6, 8]
    await engine.dispose()
