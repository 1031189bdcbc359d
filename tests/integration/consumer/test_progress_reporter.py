"""How far a consumer has come, as it registers that with its publisher."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from harness.log import connected
from harness.registered import age, fill, heard, served, source
from harness.shop import metadata, orders
from harness.statements import add
from harness.stores import new_store
from harness.waiting import until
from sqlalchemy.ext.asyncio import create_async_engine

from zeroeventhub import AsyncClient, AsyncConsumer, Client, Consumer, CursorStore
from zeroeventhub.consumer import progress_reporter as progress
from zeroeventhub.errors import Forbidden


@pytest.fixture
def any_shop(any_engine):
    """An engine of a database with twenty orders."""
    metadata.create_all(any_engine)
    fill(any_engine)
    return any_engine


@pytest.fixture
def any_feed(any_shop):
    """The feed over it."""
    return source().bind(any_shop)


@contextmanager
def consuming(url, folder, client=Client, **options):
    """Yield a consumer that reads to the head, and its store."""
    with connected(f"sqlite:///{folder}/consumer.db") as engine, httpx.Client() as http:
        store = new_store(engine)
        options = {"follow": False, "limit": 4, "register_progress": True, **options}
        yield Consumer(client(url, http), store, "billing", **options), store


def do_nothing(_connection, _event):
    """Apply an event to nothing."""


@pytest.mark.parametrize("way", ["run", "loop"])
def test_consumer_registers_what_it_has_committed(any_shop, any_feed, tmp_path, way):
    """At its end the publisher knows its cursors; of a consumer that was not asked to, nothing."""
    with served(any_shop) as url:
        for registers in (False, True):
            assert any_feed.registered() == []
            with consuming(url, tmp_path, register_progress=registers) as (consumer, store):
                if way == "run":
                    consumer.run(do_nothing)
                for page in consumer if way == "loop" else ():
                    with store.engine.begin() as connection:
                        page.commit(connection)
                with store.engine.connect() as connection:
                    cursors = store.cursors(connection, "billing")
    assert {one.partition: one.cursor for one in any_feed.registered()} == cursors
    assert any_feed.plan_trim(below=21).until == 20


@pytest.mark.anyio
async def test_async_consumer_registers(any_shop, any_feed, tmp_path):
    """An async consumer tells what a sync one does."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/async.db")
    store = CursorStore(engine)
    async with engine.begin() as connection:
        await connection.run_sync(store.create_tables)
    with served(any_shop) as url:
        async with httpx.AsyncClient() as http:
            client, options = AsyncClient(url, http), {"follow": False, "register_progress": True}
            await AsyncConsumer(client, store, "billing", **options).run(do_nothing)
    await engine.dispose()
    assert {*heard(any_feed)} == {("", "billing", 0), ("", "billing", 1)}


@pytest.mark.slow
def test_consumer_registers_while_it_runs(any_shop, any_feed, tmp_path, monkeypatch):
    """A consumer at the head has told how far it is, and is heard of though nothing comes."""
    monkeypatch.setattr(progress, "INTERVAL", 0.05)
    monkeypatch.setattr(progress, "UNCHANGED", 0.2)
    with (
        served(any_shop) as url,
        consuming(url, tmp_path, follow=True) as (consumer, _),
        ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(consumer.run, do_nothing)
        try:
            until(lambda: {*heard(any_feed).values()} == {19, 20}, "it is heard of at the head")
            add(any_shop, orders, {"part": 0, "data": {"n": 20}})
            until(lambda: heard(any_feed).get(("", "billing", 0)) == 21, "it tells of what comes")
            age(any_shop, 3600)
            until(lambda: all(one.heard < 60 for one in any_feed.registered()), "it tells again")
        finally:
            consumer.stop()
        running.result(60)


def test_publisher_that_does_not_hear_keeps_no_consumer_from_consuming(any_shop, tmp_path, caplog):
    """Where registering is refused, the consumer goes on, and its log says so once."""

    class Refused(Client):
        def register_progress(self, *given):
            raise Forbidden("It is not wanted.")

    with served(any_shop) as url, consuming(url, tmp_path, Refused) as (consumer, store):
        consumer.run(do_nothing)
        with store.engine.connect() as connection:
            assert len(store.cursors(connection, "billing")) == 2
    assert "It is not wanted." in caplog.text
    assert caplog.text.count("progress was not reported to the publisher") == 1
