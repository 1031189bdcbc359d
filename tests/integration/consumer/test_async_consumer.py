"""The same consumer in tasks: side by side, ahead, and gone without a trace when it ends."""

import asyncio
import gc
import logging
import time
import weakref
from collections import Counter
from functools import partial

import httpx
import pytest
from harness.billing import PATIENCE, async_landed, async_write, make_tables, shop
from harness.shop import metadata, place
from harness.web import serving
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import AsyncClient, AsyncConsumer, CursorStore, Failures, Observer
from zeroeventhub.errors import ConfigurationError, Halted

PARTITIONS = 4

pytestmark = pytest.mark.anyio


@pytest.fixture
def feed(tmp_path):
    """The URL of a feed of 40 orders."""
    engine = create_engine(f"sqlite:///{tmp_path / 'publisher.db'}", connect_args={"timeout": 60})
    metadata.create_all(engine)
    with engine.begin() as connection:
        place(connection, 40, partitions=PARTITIONS)
    with serving(shop(engine, PARTITIONS)) as url:
        yield f"{url}/orders"
    engine.dispose()


@pytest.fixture
async def client(feed):
    """A client of the feed."""
    async with httpx.AsyncClient() as http:
        yield AsyncClient(feed, http)


@pytest.fixture
async def store(async_engine):
    """A store on each database, beside a table of effects."""
    return await prepared(async_engine)


async def prepared(engine):
    """Make a store, and its tables beside a table of effects."""
    store = CursorStore(engine)
    async with engine.begin() as connection:
        await connection.run_sync(partial(make_tables, store))
    return store


@pytest.fixture
async def parallel_store(postgresql_url):
    """A store on a database with several writers."""
    engine = create_async_engine(postgresql_url)
    yield await prepared(engine)
    await engine.dispose()


@pytest.fixture(autouse=True)
async def nothing_left(caplog):
    """No task outlives a run, and no error of one is lost."""
    yield
    gc.collect()
    tasks = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}
    assert {name for name in tasks if not name.startswith("TestRunner.")} == set()
    assert [one.getMessage() for one in caplog.records if one.name == "asyncio"] == []


def consumer(client, store, **options):
    """A consumer that ends at the head."""
    return AsyncConsumer(client, store, "billing", **{"follow": False, "limit": 3, **options})


async def until(store, count, condition=lambda: True):
    """Wait until so many effects are there, and a condition holds."""
    async with asyncio.timeout(PATIENCE):
        while len(await async_landed(store)) < count or not condition():  # noqa: ASYNC110 - short
            await asyncio.sleep(0.01)


async def leases(store):
    """Count the leases that are held."""
    held = text("SELECT count(*) FROM zeroeventhub_leases WHERE owner IS NOT NULL")
    async with store.engine.connect() as connection:
        return await connection.scalar(held)


async def test_partitions_are_applied_side_by_side(client, parallel_store):
    """As many partitions as concurrency says are in apply at the same moment."""
    meeting, met = asyncio.Barrier(PARTITIONS), set()

    async def meet(connection, page):
        await async_write(connection, page)
        if page.partition not in met:
            met.add(page.partition)
            async with asyncio.timeout(PATIENCE):
                await meeting.wait()

    await consumer(client, parallel_store, concurrency=PARTITIONS).run(meet)
    assert sorted(await async_landed(parallel_store)) == list(range(40))


class Fetches(AsyncClient):
    """A client that knows what was asked for, and how much at the same time."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.cursors = []
        self.now = self.most = 0

    async def asked(self, page):
        """Wait until the page behind one has been asked for."""
        while (page.partition, page.cursor) not in self.cursors:  # noqa: ASYNC110 - short
            await asyncio.sleep(0.01)

    async def fetch(self, partition, cursor, **options):
        self.cursors.append((partition, cursor))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await super().fetch(partition, cursor, **options)
        finally:
            self.now -= 1


@pytest.fixture
async def fetches(feed):
    """A client that counts."""
    async with httpx.AsyncClient() as http:
        yield Fetches(feed, http)


async def test_next_page_is_fetched_while_this_one_is_applied(fetches, store):
    """The feed is asked for the next page before the first one's transaction ends, and once."""

    async def hold(connection, page):
        await async_write(connection, page)
        async with asyncio.timeout(PATIENCE):
            if len(page.events) == 3:
                await fetches.asked(page)

    await consumer(fetches, store, partitions=[0]).run(hold)
    assert await async_landed(store) == list(range(0, 40, 4))
    assert max(Counter(fetches.cursors).values()) == 1


async def test_partitions_take_turns(fetches, store):
    """No more than so many are fetched or applied at a time, and all are read."""
    now, most = 0, 0

    async def count(connection, page):
        nonlocal now, most
        now += 1
        most = max(now, most)
        await async_write(connection, page)
        await asyncio.sleep(0.01)
        now -= 1

    await consumer(fetches, store, concurrency=2).run(count)
    assert sorted(await async_landed(store)) == list(range(40))
    assert fetches.most <= 2
    assert most == (1 if store.engine.dialect.name == "sqlite" else 2)


class Counted(AsyncClient):
    """A client that counts pages which are fetched or held."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.pages = self.most = 0

    def count(self, number):
        self.pages += number
        self.most = max(self.most, self.pages)

    async def fetch(self, partition, cursor, **options):
        # Room is taken before the page is there.
        self.count(1)
        page = await super().fetch(partition, cursor, **options)
        weakref.finalize(page, self.count, -1)
        return page


@pytest.mark.parametrize("concurrency", [1, PARTITIONS])
async def test_memory_holds_two_pages_for_each_partition(feed, store, concurrency):
    """The page that is applied and the one behind it, and no third, whatever fails."""
    failures = Counter()

    async def often_fail(connection, page):
        await async_write(connection, page)
        if page.events[0].data["n"] % 3 == 0 and failures[page.cursor] < 2:
            failures[page.cursor] += 1
            raise ZeroDivisionError

    async with httpx.AsyncClient() as http:
        client = Counted(feed, http)
        await consumer(client, store, concurrency=concurrency, limit=2).run(often_fail)
    assert sorted(await async_landed(store)) == list(range(40))
    assert client.most <= 2 * concurrency


async def test_stop_does_not_wait_for_the_feed(client, store):
    """A page that is on its way, or that the feed waits for, is given up at once."""
    following = consumer(client, store, follow=True)
    running = asyncio.create_task(following.run(async_write))
    await until(store, 40)
    # By now, the feed waits in all partitions.
    await asyncio.sleep(0.5)
    started = time.monotonic()
    following.stop()
    await running
    assert time.monotonic() - started < 1
    assert await leases(store) == 0


async def test_run_that_is_cancelled_leaves_nothing(client, store):
    """Cancelling a run rolls the pages at hand back, and gives the leases back."""
    begun = asyncio.Event()

    async def hang(connection, page):
        await async_write(connection, page)
        begun.set()
        await asyncio.sleep(PATIENCE)

    running = asyncio.create_task(consumer(client, store).run(hang))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await async_landed(store), await leases(store)) == ([], 0)
    await consumer(client, store).run(async_write)
    assert sorted(await async_landed(store)) == list(range(40))


async def test_halted_partition_leaves_the_others_running(client, store):
    """The others are read to their ends; then the halted one comes out, with its cause."""

    async def refuse(connection, page):
        await async_write(connection, page)
        if page.partition == 2:
            raise ZeroDivisionError

    with pytest.raises(Halted, match="Partition 2") as halted:
        await consumer(client, store, failures=Failures(tries=2)).run(refuse)
    assert isinstance(halted.value.__cause__, ZeroDivisionError)
    assert sorted(await async_landed(store)) == [n for n in range(40) if n % 4 != 2]


async def test_cancellation_within_apply_ends_the_run(client, store):
    """Who cancels himself is not waited for for ever."""

    async def give_up(connection, page):
        raise asyncio.CancelledError

    running = asyncio.create_task(consumer(client, store).run(give_up))
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, PATIENCE)
    assert await leases(store) == 0


async def test_partitions_are_shared_between_consumers(client, store):
    """Two consumers of one name read half of the partitions each."""
    held = {}

    class Watch(Observer):
        """Remembers the leases of one of them."""

        def __init__(self, name):
            self.name = name

        def held(self, consumer, partitions):
            held[self.name] = len(partitions)

    both = [
        consumer(client, store, follow=True, lease=0.6, poll_interval=0.02, observer=Watch(name))
        for name in "ab"
    ]
    running = [asyncio.create_task(one.run(async_write)) for one in both]
    await until(store, 0, lambda: held == {"a": 2, "b": 2})
    both[0].stop()
    await running[0]
    await until(store, 40, lambda: held == {"a": 0, "b": 4})
    both[1].stop()
    await running[1]
    assert sorted(await async_landed(store)) == list(range(40))


async def test_database_in_memory_is_refused(client):
    """A connection that all tasks would share is refused."""
    engine = create_async_engine("sqlite+aiosqlite://")
    store = await prepared(engine)
    with pytest.raises(ConfigurationError, match="in memory"):
        await consumer(client, store).run(async_write)
    await engine.dispose()


async def test_log_tells_of_what_is_tried_again(client, store, caplog):
    """A line has the consumer and the partition as fields, and no text of a handler's."""
    failed = []

    async def leak(connection, page):
        await async_write(connection, page)
        if page.partition == 1 and not failed:
            failed.append(1)
            raise ValueError("secret")

    with caplog.at_level(logging.WARNING, "zeroeventhub.consumer"):
        await consumer(client, store).run(leak)
    (record,) = caplog.records
    assert (record.consumer, record.partition, "secret" in caplog.text) == ("billing", 1, False)
    assert sorted(await async_landed(store)) == list(range(40))
