"""Consumers of tests: databases, stores, and runs to the head with pauses that take no time."""

import asyncio
import gc
import threading
import time
from pathlib import Path

import pytest
from harness.waiting import until
from sqlalchemy import Column, Integer, MetaData, Table, func, inspect, select

from zeroeventhub import AsyncConsumer, Consumer, Event
from zeroeventhub.consumer.steps import Pause
from zeroeventhub.errors import Halted, Trimmed, Unavailable
from zeroeventhub.testing import (
    Faults,
    async_client_of,
    async_run_to_head,
    async_sqlite_engine,
    async_store_of,
    client_of,
    feed_of,
    no_pauses,
    run_to_head,
    sqlite_engine,
    store_of,
)

metadata = MetaData()
numbers = Table("numbers", metadata, Column("n", Integer))


def test_database_is_removed_with_its_engine():
    """Nothing is left of a database once its engine is dropped."""
    folders = []
    for make in (sqlite_engine, async_sqlite_engine):
        engine = make()
        folders.append(Path(engine.url.database).parent)
        assert folders[-1].exists()
        del engine
        gc.collect()
    assert [folder.exists() for folder in folders] == [False, False]


def test_reader_sees_what_was_committed_beside_a_writer():
    """A connection reads while another one writes, as where a handler looks something up."""
    engine = sqlite_engine()
    metadata.create_all(engine)
    with engine.begin() as writer:
        writer.execute(numbers.insert().values(n=1))
        with engine.connect() as reader:
            assert reader.scalar(select(func.count()).select_from(numbers)) == 0


def test_store_has_all_tables():
    """The tables of the store and those that are prepared are there, sync and async."""
    expected = {"zeroeventhub_cursors", "zeroeventhub_inbox", "numbers"}
    assert expected <= {*inspect(store_of(metadata.create_all).engine).get_table_names()}
    assert "numbers" not in inspect(store_of().engine).get_table_names()

    async def names():
        async with async_store_of(metadata.create_all).engine.connect() as connection:
            return await connection.run_sync(lambda one: inspect(one).get_table_names())

    assert expected <= {*asyncio.run(names())}


EVENTS = [[{"n": 2 * n} for n in range(5)], [{"n": 2 * n + 1} for n in range(5)]]


def write(connection, event: Event) -> None:
    """Write the number of an event."""
    connection.execute(numbers.insert().values(n=event.data["n"]))


def written(engine):
    """Read all numbers."""
    with engine.connect() as connection:
        return sorted(connection.scalars(select(numbers)))


def test_consumer_is_run_to_the_head():
    """All partitions are applied, and what is appended later with the next run."""
    feed, store = feed_of(EVENTS), store_of(metadata.create_all)
    consumer = Consumer(client_of(feed), store, "billing", limit=2)
    run_to_head(consumer, write)
    assert written(store.engine) == [*range(10)]
    feed.append({"n": 10})
    run_to_head(consumer, write)
    assert written(store.engine) == [*range(11)]


def test_async_consumer_is_run_to_the_head():
    """An AsyncConsumer applies all that there is."""

    async def run():
        store = async_store_of(metadata.create_all)
        consumer = AsyncConsumer(async_client_of(feed_of(EVENTS)), store, "billing")
        await async_run_to_head(consumer, write)
        async with store.engine.connect() as connection:
            return sorted(await connection.scalars(select(numbers)))

    assert asyncio.run(run()) == [*range(10)]


def test_pauses_take_no_time_and_are_recorded():
    """Faults are waited out at once; the pauses say how long they would have been, and why."""
    faults = Faults()
    for _ in range(3):
        faults.unavailable(retry_after=20)
    faults.cut_page()
    store = store_of(metadata.create_all)
    began = time.monotonic()
    pauses = run_to_head(Consumer(client_of(feed_of(["a"]), faults=faults), store, "c"), drop)
    assert time.monotonic() - began < 10
    assert [type(pause.reason).__name__ for pause in pauses] == ["Unavailable"] * 3 + ["CutPage"]
    assert [pause.seconds for pause in pauses[:3]] == [20, 20, 20]


def drop(connection, page):
    """Apply nothing."""


def test_error_of_the_feed_ends_the_run():
    """What cannot be waited out is raised, as by a consumer that runs otherwise."""
    faults = Faults()
    faults.trimmed()
    with pytest.raises(Trimmed):
        run_to_head(Consumer(client_of(feed_of(["a"]), faults=faults), store_of(), "c"), drop)

    def refuse(connection, page):
        raise ValueError

    with pytest.raises(Halted):
        run_to_head(Consumer(client_of(feed_of(["a"])), store_of(), "c"), refuse)


def test_retries_without_end_fail_the_test(monkeypatch):
    """A consumer whose feed never recovers fails the test instead of running for ever."""
    monkeypatch.setattr("zeroeventhub.testing.consumers.MOST_RETRIES", 20)
    faults = Faults()
    for _ in range(30):
        faults.reset()
    consumer = Consumer(client_of(feed_of(["a"]), faults=faults), store_of(), "c")
    with pytest.raises(AssertionError, match=r"has tried again 20 times: http://feed\.test"):
        run_to_head(consumer, drop)


def test_pauses_at_the_head_are_no_retries():
    """A consumer that has paused at the head a thousand times may try again."""
    with no_pauses() as pauses:
        for _ in range(1000):
            Pause(1).begin()
        Pause(1, Unavailable("It is busy.")).begin()
    assert len(pauses) == 1001


def test_pauses_of_others_are_controlled_in_a_block():
    """Whoever runs the consumer, its pauses take no time in the block, and their own time after."""
    feed, store = feed_of(["a"]), store_of(metadata.create_all)
    consumer = Consumer(client_of(feed), store, "c", poll_interval=1000)
    with no_pauses() as outer, no_pauses() as pauses:
        thread = threading.Thread(target=consumer.run, args=(drop,), daemon=True)
        thread.start()
        until(lambda: len(pauses) > 2, "the consumer pauses at the head")
        consumer.stop()
        thread.join(30)
        assert not thread.is_alive()
    assert pauses[0].reason is None
    assert outer == pauses
    assert pauses[0].begin() == pauses[0].seconds


def test_blocks_that_overlap_leave_nothing_behind():
    """Consumers that run beside each other do not let the pauses of later tests take no time."""
    first, second = no_pauses(), no_pauses()
    first.__enter__()
    pauses = second.__enter__()
    first.__exit__(None, None, None)
    assert Pause(5.0).begin() < 1
    second.__exit__(None, None, None)
    assert Pause(5.0).begin() == 5
    assert [one.seconds for one in pauses] == [5]


def test_pages_of_an_own_loop_pause_as_little():
    """A loop over a consumer's pages waits out faults at once as well."""
    faults = Faults()
    faults.unavailable(retry_after=20)
    client = client_of(feed_of(["a"]), faults=faults)
    with no_pauses() as pauses:
        page = next(iter(Consumer(client, store_of(), "c", follow=False)))
    assert [event.data for event in page.events] == ["a"]
    assert pauses[0].seconds == 20
