"""Exactly once: effects and cursor move together, whatever happens in between."""

import asyncio
import os
import signal
import threading
import time
from functools import partial

import httpx
import pytest
from harness.billing import (
    Impatient,
    async_landed,
    async_write,
    landed,
    make_tables,
    shop,
    wait_until,
    write,
)
from harness.shop import metadata, orders, place
from harness.web import serving
from sqlalchemy import create_engine, insert
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from starlette.applications import Starlette

from zeroeventhub import (
    LAST,
    AsyncClient,
    AsyncConsumer,
    Client,
    Consumer,
    CursorStore,
    Failures,
    TableFeed,
    TypeFilter,
    feed_routes,
)
from zeroeventhub.errors import ConfigurationError, Fenced, Halted, Unreachable

PARTITIONS = 2


@pytest.fixture
def publisher(sqlite):
    """The publisher's engine, with 20 orders in its table."""
    metadata.create_all(sqlite)
    with sqlite.begin() as connection:
        place(connection, 20, partitions=PARTITIONS)
    return sqlite


@pytest.fixture
def client(publisher):
    """A client of the publisher's feed."""
    with serving(shop(publisher, PARTITIONS)) as url, httpx.Client() as session:
        yield Impatient(f"{url}/orders", session)


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def store(request, tmp_path):
    """A cursor store on each database, beside a table of effects."""
    if request.param == "sqlite":
        engine = create_engine(f"sqlite:///{tmp_path / 'consumer.db'}")
    else:
        engine = create_engine(request.getfixturevalue(f"{request.param}_url"))
    store = CursorStore(engine)
    with engine.begin() as connection:
        make_tables(store, connection)
    yield store
    engine.dispose()


def wait_for(store, count):
    """Wait until so many effects are there."""
    wait_until(lambda: len(landed(store)) >= count)


def consumer(client, store, name="billing", **options):
    """A consumer that ends at the head."""
    return Consumer(client, store, name, **{"follow": False, "limit": 3, **options})


def test_every_event_takes_effect_once(client, store):
    """Pages of all partitions come in turn, and every event is applied once."""
    for page in consumer(client, store):
        with store.engine.begin() as connection:
            write(connection, page)
            page.commit(connection)
    assert sorted(landed(store)) == list(range(20))
    assert [n for n in landed(store) if n % 2] == list(range(1, 20, 2))


def test_second_run_goes_on_where_the_first_ended(client, store, publisher):
    """A consumer with a cursor sees only what is new."""
    consumer(client, store).run(write)
    with publisher.begin() as connection:
        place(connection, 2, first=20, partitions=PARTITIONS)
    consumer(client, store).run(write)
    assert sorted(landed(store)) == list(range(22))


def test_session_commits_as_well(client, store):
    """A page can be committed through an ORM session."""
    for page in consumer(client, store):
        with Session(store.engine) as session, session.begin():
            write(session, page)
            page.commit(session)
    assert sorted(landed(store)) == list(range(20))


def test_page_without_commit_is_read_again(client, store):
    """A page that was not committed comes again, and nothing of it stays."""
    pages = []
    for page in consumer(client, store, partitions=[0]):
        pages.append([event.data["n"] for event in page.events])
        with store.engine.connect() as connection:
            write(connection, page)
            if len(pages) == 2:
                connection.rollback()
            else:
                page.commit(connection)
                connection.commit()
    assert pages[:3] == [[0, 2, 4], [6, 8, 10], [6, 8, 10]]
    assert landed(store) == list(range(0, 20, 2))


def test_commit_that_is_rolled_back_is_no_commit(client, store):
    """A page whose transaction is rolled back behind its commit comes again."""
    pages = []
    for page in consumer(client, store, partitions=[0]):
        pages.append(page.cursor)
        with store.engine.connect() as connection:
            write(connection, page)
            page.commit(connection)
            if len(pages) == 1:
                connection.rollback()
            connection.commit()
    assert pages[0] == pages[1]
    assert landed(store) == list(range(0, 20, 2))


def test_second_commit_of_a_page_is_fenced(client, store):
    """Of two consumers that hold the same page only one can commit it."""
    first = next(iter(consumer(client, store)))
    second = next(iter(consumer(client, store)))
    assert first.events == second.events
    with store.engine.begin() as connection:
        write(connection, first)
        first.commit(connection)
    with pytest.raises(Fenced, match="roll back"), store.engine.begin() as connection:
        write(connection, second)
        second.commit(connection)
    assert landed(store) == [0, 2, 4]


def test_run_gives_way_to_a_process_of_the_same_name(client, store):
    """Consumers of one name that run side by side apply every event once between them."""
    threads = [
        threading.Thread(target=consumer(client, store, limit=1, lease=0.6).run, args=[write])
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(landed(store)) == list(range(20))


def test_error_in_apply_leaves_nothing_behind(client, store):
    """An exception of the caller rolls effects and cursor back, and comes out as a cause."""

    def explode(connection, page):
        write(connection, page)
        raise ZeroDivisionError

    with pytest.raises(Halted) as halted:
        consumer(client, store, failures=Failures(tries=2)).run(explode)
    assert isinstance(halted.value.__cause__, ZeroDivisionError)
    assert landed(store) == []
    consumer(client, store).run(write)
    assert sorted(landed(store)) == list(range(20))


def test_start_is_first_last_or_a_cursor(client, store, publisher):
    """A consumer without a cursor starts where it was told to."""
    consumer(client, store, "late", start=LAST).run(write)
    assert landed(store) == []
    with publisher.begin() as connection:
        place(connection, 1, first=20)
    consumer(client, store, "late").run(write)
    assert landed(store) == [20]
    consumer(client, store, "middle", start="1-17", partitions=[0]).run(write)
    assert landed(store) == [20, 18, 20]


def test_following_consumer_is_stopped(client, store, publisher):
    """A consumer that follows waits at the head, sees what is new, and ends when stopped."""
    following = consumer(client, store, follow=True, poll_interval=0.01)
    thread = threading.Thread(target=following.run, args=[write], daemon=True)
    thread.start()
    wait_for(store, 20)
    with publisher.begin() as connection:
        place(connection, 1, first=20)
    wait_for(store, 21)
    following.stop()
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_server_that_goes_and_comes_back_is_waited_for(publisher, store):
    """A consumer outlives the publisher's restart without a word from anybody."""
    with httpx.Client() as session:
        with serving(shop(publisher, PARTITIONS)) as url:
            port = int(url.rpartition(":")[2])
            client = Impatient(f"{url}/orders", session)
            following = Consumer(client, store, "x", poll_interval=0.01)
            thread = threading.Thread(target=following.run, args=[write], daemon=True)
            thread.start()
            wait_for(store, 20)
        with publisher.begin() as connection:
            place(connection, 5, first=20, partitions=PARTITIONS)
        time.sleep(0.3)
        with serving(shop(publisher, PARTITIONS), port):
            wait_for(store, 25)
            following.stop()
            thread.join(timeout=10)
    assert sorted(landed(store)) == list(range(25))


def test_attempts_end_in_the_error(store):
    """A consumer with a number of attempts raises the last one's error."""
    with httpx.Client() as session:
        away = Client("http://127.0.0.1:1/orders", session)
        with pytest.raises(Unreachable):
            consumer(away, store, attempts=2).run(write)


def test_name_must_fit_the_store(client, store):
    """A name that cannot be a key is refused before anything is read."""
    for name in ("", "x" * 201):
        with pytest.raises(ConfigurationError, match="name"):
            Consumer(client, store, name)


def test_kind_of_engine_must_fit_the_consumer(client, async_url):
    """A sync consumer with an async store is told so."""
    store = CursorStore(create_async_engine(async_url))
    with pytest.raises(ConfigurationError, match="AsyncConsumer"):
        consumer(client, store).run(write)


@pytest.fixture
def one_partition(publisher):
    """The publisher's orders in a partition alone, so that the feed is asked to wait."""
    feed = TableFeed(orders, data="data", type="kind")
    return Starlette(routes=feed_routes("/orders", feed, publisher))


def running(run, *arguments):
    """Start something in a thread of its own."""
    thread = threading.Thread(target=run, args=arguments, daemon=True)
    thread.start()
    return thread


HEAD = 1.0
"""Seconds after which a consumer that has read everything surely waits at the head."""


def test_event_reaches_a_consumer_that_waits_at_the_head(one_partition, store, publisher):
    """What is committed while the feed waits is there at once, however seldom one would look."""
    with serving(one_partition) as url, httpx.Client() as session:
        client = Client(f"{url}/orders", session)
        following = consumer(client, store, follow=True, limit=None, poll_interval=30)
        thread = running(following.run, write)
        wait_for(store, 20)
        time.sleep(HEAD)
        for number in range(20, 23):
            started = time.monotonic()
            with publisher.begin() as connection:
                place(connection, 1, first=number)
            wait_for(store, number + 1)
            assert time.monotonic() - started < 4
        following.stop()
        thread.join(timeout=8)
        assert not thread.is_alive()
    assert landed(store) == list(range(23))


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_stop_ends_a_wait_within_its_time(one_partition, store):
    """A consumer that is stopped while the feed waits ends when that answers, within 5 seconds."""
    with serving(one_partition) as url, httpx.Client() as session:
        client = Client(f"{url}/orders", session)
        following = consumer(client, store, follow=True, limit=None, poll_interval=30)
        thread = running(following.run, write)
        wait_for(store, 20)
        time.sleep(HEAD)
        started = time.monotonic()
        following.stop()
        thread.join(timeout=20)
    assert not thread.is_alive()
    assert time.monotonic() - started < 6


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_sigterm_ends_a_wait_within_its_time(one_partition, store):
    """A signal while the feed waits ends the run when that answers, within 5 seconds."""
    with serving(one_partition) as url, httpx.Client() as session:
        client = Client(f"{url}/orders", session)
        following = consumer(client, store, follow=True, limit=None, poll_interval=30)
        sent = []

        def send():
            wait_for(store, 20)
            time.sleep(HEAD)
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGTERM)

        thread = running(send)
        following.run(write)
        thread.join()
    assert time.monotonic() - sent[0] < 6
    assert landed(store) == list(range(20))


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (TypeFilter({"PAID"}), [20, 22]),
        (TypeFilter({"placed"}, skip=True), [20, 21, 22]),
        (TypeFilter({"nothing"}), []),
    ],
)
def test_consumer_reads_the_types_that_it_names(one_partition, store, publisher, types, expected):
    """Only events of the types asked for take effect, and the cursor moves over the others."""
    with publisher.begin() as connection:
        rows = [
            {"part": 0, "data": {"n": n}, "kind": k}
            for n, k in zip(range(20, 23), ["paid", "sent", "Paid"], strict=True)
        ]
        connection.execute(insert(orders), rows)
    with serving(one_partition) as url, httpx.Client() as session:
        client = Client(f"{url}/orders", session)
        consumer(client, store, types=types).run(write)
        assert landed(store) == expected
        with store.engine.connect() as connection:
            assert store.cursors(connection, "billing") == {0: client.fetch(0, LAST).cursor}
        place_paid = {"part": 0, "data": {"n": 23}, "kind": "paid"}
        with publisher.begin() as connection:
            connection.execute(insert(orders), [place_paid])
        consumer(client, store, types=TypeFilter({"paid"})).run(write)
    assert landed(store) == [*expected, 23]


def test_run_ends_at_the_head_beside_writers_that_never_pause(one_partition, store, publisher):
    """A run that does not follow ends with the page that held everything just then."""
    written, stopping = [20], threading.Event()

    def write_on():
        while not stopping.is_set():
            with publisher.begin() as connection:
                place(connection, 1, first=written[0])
            written[0] += 1
            time.sleep(0.002)  # SQLite lets nobody read while it writes

    thread = running(write_on)
    try:
        with serving(one_partition) as url, httpx.Client() as session:
            before = written[0]
            consumer(Client(f"{url}/orders", session), store, limit=None).run(write)
            assert written[0] > before
    finally:
        stopping.set()
        thread.join()
    seen = landed(store)
    assert len(seen) >= before
    assert seen == list(range(len(seen)))


@pytest.fixture
async def async_store(async_engine):
    """A cursor store on each database, read asynchronously, beside a table of effects."""
    store = CursorStore(async_engine)
    async with async_engine.begin() as connection:
        await connection.run_sync(partial(make_tables, store))
    return store


@pytest.fixture
def feed_url(tmp_path):
    """The URL of a feed of 20 orders in 2 partitions."""
    engine = create_engine(f"sqlite:///{tmp_path / 'publisher.db'}")
    metadata.create_all(engine)
    with engine.begin() as connection:
        place(connection, 20, partitions=PARTITIONS)
    with serving(shop(engine, PARTITIONS)) as url:
        yield f"{url}/orders"
    engine.dispose()


@pytest.mark.anyio
async def test_async_consumer_applies_every_event_once(feed_url, async_store):
    """An async consumer commits through a connection or a session, and resumes."""
    async with httpx.AsyncClient() as session:
        client = AsyncClient(feed_url, session)
        options = {"follow": False, "limit": 3}
        async for page in AsyncConsumer(client, async_store, "a", partitions=[0], **options):
            async with AsyncSession(async_store.engine) as transaction, transaction.begin():
                await async_write(transaction, page)
                await page.commit(transaction)
        await AsyncConsumer(client, async_store, "a", **options).run(async_write)
    landed = await async_landed(async_store)
    assert landed[:10] == list(range(0, 20, 2))
    assert sorted(landed) == list(range(20))


@pytest.mark.anyio
async def test_async_commit_is_fenced(feed_url, async_store):
    """Of two async consumers that hold the same page only one can commit it."""
    async with httpx.AsyncClient() as session:
        client = AsyncClient(feed_url, session)
        pages = [
            await anext(aiter(AsyncConsumer(client, async_store, "a", limit=2))) for _ in range(2)
        ]
    async with async_store.engine.begin() as connection:
        await pages[0].commit(connection)
    with pytest.raises(Fenced):
        async with async_store.engine.begin() as connection:
            await pages[1].commit(connection)


@pytest.mark.anyio
async def test_async_consumer_is_stopped_while_it_waits(feed_url, async_store):
    """An async consumer that waits at the head ends at once when it is stopped."""
    async with httpx.AsyncClient() as session:
        following = AsyncConsumer(
            AsyncClient(feed_url, session), async_store, "a", poll_interval=60
        )
        seen = 0

        async def count(connection, page):
            nonlocal seen
            seen += len(page.events)
            if seen == 20:
                following.stop()

        await following.run(count)
    assert seen == 20


async def async_wait_for(store, count):
    """Wait until so many effects are there."""
    while len(await async_landed(store)) < count:  # noqa: ASYNC110 - another process may write
        await asyncio.sleep(0.01)


@pytest.mark.anyio
async def test_event_reaches_an_async_consumer_that_waits_at_the_head(
    one_partition, async_store, publisher
):
    """What is committed while the feed waits is there at once, and a stop ends within the wait."""

    def append():
        with publisher.begin() as connection:
            place(connection, 1, first=20)

    with serving(one_partition) as url:
        async with httpx.AsyncClient() as session:
            client = AsyncClient(f"{url}/orders", session)
            following = AsyncConsumer(client, async_store, "a", poll_interval=30)
            running = asyncio.create_task(following.run(async_write))
            await async_wait_for(async_store, 20)
            await asyncio.sleep(HEAD)
            started = time.monotonic()
            await asyncio.to_thread(append)
            await async_wait_for(async_store, 21)
            assert time.monotonic() - started < 4
            await asyncio.sleep(HEAD)
            started = time.monotonic()
            following.stop()
            await running
            assert time.monotonic() - started < 6
    assert await async_landed(async_store) == list(range(21))


@pytest.mark.anyio
async def test_async_consumer_reads_the_types_that_it_names(one_partition, async_store, publisher):
    """An async consumer asks for types as a sync one does."""
    with publisher.begin() as connection:
        connection.execute(insert(orders), [{"part": 0, "data": {"n": 20}, "kind": "paid"}])
    with serving(one_partition) as url:
        async with httpx.AsyncClient() as session:
            client = AsyncClient(f"{url}/orders", session)
            options = {"follow": False, "types": TypeFilter({"paid"})}
            await AsyncConsumer(client, async_store, "a", **options).run(async_write)
    assert await async_landed(async_store) == [20]
