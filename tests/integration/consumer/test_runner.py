"""Partitions shared between processes, and nothing left however a run ends."""

import asyncio
import os
import signal
import threading
import time

import anyio
import httpx
import pytest
import sqlalchemy as sa
from harness.deliveries import (
    LONG,
    Seen,
    event,
    failing,
    filled,
    opened,
    write_page,
    write_page_async,
)
from harness.waiting import DEADLINE, until

from zeroeventhub import AsyncClient
from zeroeventhub.errors import Forbidden, Halted

LEASE = 0.9
LASTING = 3.0  # seconds of a lease that is renewed in time, however busy the machine is


@pytest.fixture
def busy(shop):
    """A shop with 20 events in 4 partitions."""
    return filled(shop)


# Shared between processes.


def test_consumers_share_partitions_and_share_again(shop):
    """A consumer that comes is given a share, and what one leaves is read by the others."""
    filled(shop)
    seen = [Seen(), Seen()]
    first = shop.start(lease=LEASE, observer=seen[0])
    until(lambda: len(seen[0].leases) == 4, "the first holds all")
    second = shop.start(lease=LEASE, observer=seen[1])
    until(lambda: [len(each.leases) for each in seen] == [2, 2], "they share")
    assert seen[0].leases.isdisjoint(seen[1].leases)
    shop.feed.place(8, first=20)
    shop.until_landed(28)
    first.stop()
    assert seen[0].leases == set()
    until(lambda: len(seen[1].leases) == 4, "the second holds all")
    shop.feed.place(8, first=28)
    shop.until_landed(36)
    second.stop()
    assert sorted(shop.landed()) == list(range(36))


def test_pinned_consumers_read_what_they_name(sync_shop):
    """A consumer that names partitions keeps those, and takes no part in the sharing of others."""
    shop, pinned, free = filled(sync_shop), Seen(), Seen()
    shop.start(lease=LASTING, observer=pinned, partitions=[0, 1, 2])
    until(lambda: pinned.leases, "the pinned one holds its partitions")
    shop.start(lease=LASTING, observer=free)
    until(lambda: free.leases, "the free one holds the other")
    for _ in range(5):
        assert (pinned.leases, free.leases) == ({0, 1, 2}, {3})
        threading.Event().wait(LASTING / 9)
    shop.until_landed(20)


def test_run_to_the_head_leaves_alone_what_a_living_process_reads(sync_shop):
    """A run that does not follow ends when what is left is read by a process that is alive."""
    shop = filled(sync_shop)
    living = shop.start(lease=LASTING, partitions=range(4))
    until(lambda: len(shop.observer.leases) == 4, "all leases are held")
    shop.until_landed(20)
    shop.run(write_page, lease=LASTING, observer=Seen())
    assert living.is_running
    assert len(shop.observer.leases) == 4
    living.stop()


def test_run_to_the_head_claims_once_for_all_partitions(sync_shop):
    """A run that does not follow does not claim anew behind each partition that it has drained."""
    statements, shop = [], filled(sync_shop, partitions=40)
    sa.event.listen(
        shop.engine, "before_cursor_execute", lambda *given: statements.append(given[2])
    )
    shop.run(write_page, lease=LONG)
    assert sorted(shop.landed()) == list(range(20))
    assert sum("zeroeventhub_members" in one for one in statements) < 15


def test_run_to_the_head_takes_over_from_a_process_that_died(shop):
    """A run that does not follow waits for the leases of one that shows no sign of life."""
    filled(shop).take_over(0, 1, seconds=0.4)
    shop.run(write_page, lease=LEASE)
    assert sorted(shop.landed()) == list(range(20))


def test_run_to_the_head_sees_a_life_whose_clock_was_set_back(sync_shop, caplog):
    """A run that does not follow ends beside a process whose renewed leases end sooner."""
    shop = filled(sync_shop)
    shop.take_over(*range(4), seconds=LONG)
    run = shop.start(lease=LEASE, follow=False)
    until(lambda: "hold all partitions" in caplog.text, "it waits for the rival")
    shop.take_over(*range(4), seconds=LONG / 2)
    until(lambda: not run.is_running, "it has ended")
    assert shop.landed() == []


def test_error_of_the_feed_ends_a_run(busy):
    """An error of the feed that only a person can mend is raised, after the pages at hand."""
    busy.feed.trouble[1, "_first"] = [Forbidden("not for you")]
    with pytest.raises(Forbidden):
        busy.run(write_page, follow=True)
    assert busy.leases() == 0


def test_halted_partition_leaves_the_others_running(busy):
    """The others are read to their ends; then the halted one comes out, with its cause."""

    def refuse(connection, page):
        write_page(connection, page)
        if page.partition == 2:
            raise ZeroDivisionError

    with pytest.raises(Halted, match="Partition 2") as halted:
        busy.run(refuse, limit=2)
    assert isinstance(halted.value.__cause__, ZeroDivisionError)
    assert halted.value.partition == 2
    assert sorted(busy.landed()) == [n for n in range(20) if n % 4 != 2]
    assert busy.observer["halted"] == [(2,)]
    busy.run(write_page)
    assert sorted(busy.landed()) == list(range(20))


def test_halted_partition_goes_on_where_its_cursor_is_put(shop):
    """A process that runs reads on where an operator puts the cursor of a partition that halted."""
    filled(shop, partitions=2)
    running = shop.start(failing(2), limit=1, lease=LASTING)
    until(lambda: shop.observer["halted"], "a partition halts")
    shop.put("2")
    shop.until_landed(19)
    running.stop()
    assert sorted(shop.landed()) == [n for n in range(20) if n != 2]


def test_observer_that_raises_ends_the_run(busy):
    """An observer must not raise; one that does leaves no run that waits for ever."""
    broken = Seen()
    broken.halted = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        busy.run(lambda connection, page: int("x"), observer=broken)
    assert busy.leases() == 0


def test_thread_that_cannot_be_started_ends_the_run(sync_shop, monkeypatch):
    """A machine without room for another thread ends a run, and its leases, with that error."""
    shop, start, started = filled(sync_shop), threading.Thread.start, []

    def start_two(thread):
        if "partition" in thread.name:
            if len(started) == 2:
                raise RuntimeError("can't start new thread")
            started.append(thread)
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start_two)
        with pytest.raises(RuntimeError, match="can't start"):
            shop.run(write_page)
    assert shop.leases() == 0
    shop.run(write_page)
    assert sorted(shop.landed()) == list(range(20))


def test_page_that_no_thread_can_fetch_ahead_is_fetched_later(sync_shop, monkeypatch):
    """A machine without room for another thread applies all events, and none counts as failed."""
    shop, start = filled(sync_shop), threading.Thread.start

    def start_reader(thread):
        if thread.name.endswith(", ahead"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_reader)
    monkeypatch.setattr("zeroeventhub.consumer.concurrency.WORTH_A_THREAD", 0)
    shop.run(write_page, limit=2, http=httpx.Client)
    assert sorted(shop.landed()) == list(range(20))
    assert shop.observer["failed"] == []


# Stopping.


def test_cursor_that_is_put_back_is_seen_at_the_head(shop):
    """A run that waits at the head reads again what an operator wants again, without any news."""
    filled(shop, 2, 1)
    running = shop.start(lease=2)
    shop.until_landed(2)
    until(lambda: len(shop.feed.asked) > 2, "the head is looked at")
    shop.put("0")
    until(lambda: shop.count() == 4, "the events are applied again")
    running.stop()
    assert shop.landed() == [0, 1, 0, 1]


@pytest.mark.parametrize("where", ["pause", "wait", "lost feed"])
def test_stop_wakes_a_run_that_waits(busy, where):
    """A run ends at once at the head, while the feed waits in its place, and in a back-off."""
    if where == "wait":
        busy.feed.wait()
    if where == "lost feed":
        busy.url = "http://127.0.0.1:1/orders"
    running = busy.start(poll_interval=60)
    if where == "lost feed":
        until(lambda: len(busy.observer["waited"]) >= 3, "the run backs off")
        assert busy.observer["waited"][0] == (None, "Unreachable")
    else:
        busy.until_landed(20)
        asked = 8 if where == "wait" else 4
        until(lambda: len(busy.feed.asked) >= asked, "the head is looked at")
    running.stop(10)
    assert busy.leases() == 0


def test_stop_keeps_tasks_that_wait_for_their_turn_from_asking(async_shop):
    """A feed that hangs delays no end: partitions that wait for a slot send it no request."""
    shop, hangs, goes_on = filled(async_shop, 20, 8), threading.Event(), threading.Event()

    def read(cursor, page):
        if shop.count() == 20:
            hangs.set()
            goes_on.wait(DEADLINE)

    shop.feed.on_read = read
    running = shop.start(concurrency=2)
    until(hangs.is_set, "the feed hangs")
    threading.Event().wait(0.3)  # until all others wait, which nothing tells
    try:
        asked = len(shop.feed.asked)
        running.stop(10)
        assert len(shop.feed.asked) == asked
    finally:
        goes_on.set()


@pytest.mark.parametrize("by", ["asyncio", "anyio"])
def test_run_that_is_cancelled_leaves_nothing(async_shop, by):
    """Cancelling a run rolls the pages at hand back, gives the leases back, and ends its tasks."""
    shop = filled(async_shop)

    async def hang(connection, page):
        await write_page_async(connection, page)
        cancel()
        await asyncio.sleep(DEADLINE)

    async def run():
        nonlocal cancel
        with anyio.CancelScope() as scope:
            # A scope cancels again and again, for as long as something is awaited in it.
            cancel = scope.cancel if by == "anyio" else asyncio.current_task().cancel
            try:
                async with httpx.AsyncClient() as http:
                    await shop.consumer(AsyncClient(shop.url, http)).run(hang)
            finally:
                tasks.extend(task.get_name() for task in asyncio.all_tasks())

    async def main():
        await asyncio.wait([asyncio.create_task(run(), name="run")], timeout=DEADLINE)

    cancel, tasks = None, []
    asyncio.run(main())
    assert (shop.landed(), shop.leases()) == ([], 0)
    assert [name for name in tasks if "partition" in name] == []
    shop.run(write_page)
    assert sorted(shop.landed()) == list(range(20))


def test_run_that_is_interrupted_as_it_renews_its_leases_leaves_nothing(sqlite_url):
    """Ctrl-C while the main thread waits for SQLite ends the run, and gives the leases back."""

    def interrupt(connection, page):
        write_page(connection, page)
        time.sleep(LEASE / 2)  # meanwhile the leases are due, and wait for this page
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(LEASE / 2)

    # A process that a shell has started in the background ignores Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with opened(sqlite_url) as shop:
            filled(shop, 2, 1)
            with pytest.raises(KeyboardInterrupt):
                shop.run(interrupt, lease=LEASE)
            assert shop.leases() == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_event_reaches_a_consumer_that_waits_at_the_head(shop):
    """What is published while the feed waits is there at once, however seldom one would look."""
    shop.feed.wait()
    shop.feed.publish(event(0))
    running = shop.start(poll_interval=60)
    shop.until_landed(1)
    until(lambda: len(shop.feed.asked) >= 2, "the feed waits")
    shop.feed.publish(event(1))
    shop.until_landed(2)
    running.stop()
    assert shop.landed() == [0, 1]
