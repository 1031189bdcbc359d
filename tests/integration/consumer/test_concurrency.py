"""Partition beside partition: how many are applied at a time, and what is fetched ahead."""

import asyncio
import threading
import weakref
from collections import Counter
from itertools import accumulate

import httpx
import msgspec
import pytest
from harness.deliveries import (
    Inside,
    Rival,
    Running,
    Seen,
    effects,
    event,
    filled,
    opened,
    write_page,
    write_page_async,
)
from harness.waiting import DEADLINE, until
from sqlalchemy import text

from zeroeventhub import AsyncClient, Client, ConnectionPool, Failures
from zeroeventhub.consumer.concurrency import Limiter, Tasks
from zeroeventhub.errors import Unavailable

LEASE = 0.9


@pytest.mark.parametrize(
    ("database", "driver", "options"),
    [
        ("postgresql", "sync", {"concurrency": 4}),
        ("mariadb", "sync", {"lanes": 4}),
        ("mariadb", "async", {"concurrency": 4}),
        ("postgresql", "async", {"lanes": 4}),
    ],
    ids=str,
)
def test_partitions_and_lanes_are_applied_side_by_side(request, database, driver, options):
    """As many as the consumer has are in apply at the same moment, in threads and in tasks."""
    barrier, meeting = threading.Barrier(4), asyncio.Barrier(4)

    def meet(connection, page):
        write_page(connection, page)
        barrier.wait(DEADLINE)

    async def meet_async(connection, page):
        await write_page_async(connection, page)
        async with asyncio.timeout(DEADLINE):
            await meeting.wait()

    with opened(request.getfixturevalue(f"{database}_url"), is_async=driver == "async") as shop:
        shop.feed.__init__(4 if "concurrency" in options else 1)
        for number, key in enumerate("dbea"):  # of lanes 0 to 3
            shop.feed.publish(event(number, key), partition=number % len(shop.feed.layout))
        shop.put("0")
        shop.run(meet_async if shop.is_async else meet, **options)
        assert sorted(shop.landed()) == [0, 1, 2, 3]


def test_no_more_partitions_are_applied_than_concurrency_says(postgresql_shop):
    """More partitions take turns, all are read, and only those that work hold connections."""
    shop, inside = filled(postgresql_shop, 24, 6), Inside()

    def slow(connection, page):
        write_page(connection, page)
        connection.execute(text("SELECT pg_sleep(0.01)"))

    shop.run(slow, concurrency=2, limit=2, observer=inside)
    assert inside.most == 2
    assert sorted(shop.landed()) == list(range(24))


def test_sqlite_is_written_by_one_at_a_time(either_shop):
    """No partition or lane waits for SQLite's lock while another transaction is open."""
    shop, inside = either_shop, Inside()
    shop.feed.__init__(4)
    for n in range(20):
        shop.feed.publish(event(n, "dbea"[n // 4 % 4]), partition=n % 4)
    shop.run(write_page, lanes=4, limit=4, observer=inside)
    assert (inside.most, sorted(shop.landed())) == (1, list(range(20)))


@pytest.mark.slow
def test_lease_is_renewed_before_the_next_partition_writes(sqlite_url):
    """The renewal does not queue behind partitions that wait for the only writer."""
    renewals, begun = set(), []

    class Renewed(Seen):
        """Notes how many pages had been begun when leases were renewed."""

        def held(self, consumer, partitions):
            renewals.add(len(begun))

    def slow(connection, page):
        begun.append(page.partition)
        write_page(connection, page)
        if len(begun) == 1:
            threading.Event().wait(LEASE)

    with opened(sqlite_url) as shop:
        filled(shop).run(slow, concurrency=4, limit=1, lease=LEASE, observer=Renewed())
        assert sorted(shop.landed()) == list(range(20))
    assert 1 in renewals


def test_next_page_is_fetched_while_this_one_is_applied(either_shop):
    """The feed is asked for the next page before the first one's transaction ends, and once."""
    shop = filled(either_shop, 9, 1)

    def is_asked(page):
        return page.cursor == "9" or (0, page.cursor) in shop.feed.asked

    def hold(connection, page):
        until(lambda: is_asked(page), "the next page is asked for")

    async def hold_async(connection, page):
        await asyncio.to_thread(hold, connection, page)

    shop.run(hold_async if shop.is_async else hold, limit=3)
    assert (shop.feed.asked, shop.cursor()) == ([(0, "_first"), (0, "3"), (0, "6")], "9")


def test_next_page_is_requested_before_this_one_is_decoded(sync_shop):
    """The publisher works on a page while the consumer decodes the events of the one before."""
    shop, following, asked = filled(sync_shop, 12, 1), {3: "6", 6: "9"}, {}

    class Order(msgspec.Struct):
        n: int

        def __post_init__(self):
            if self.n in following and self.n not in asked:
                asked[self.n] = False  # stays so if the wait raises, which only decodes again
                until(lambda: (0, following[self.n]) in shop.feed.asked, "the next page is asked")
                asked[self.n] = True

    def apply(connection, order: Order):
        assert order.n in range(12)

    shop.run(apply, limit=3, http=ConnectionPool)
    assert asked == {3: True, 6: True}
    assert shop.feed.asked == [(0, "_first"), (0, "3"), (0, "6"), (0, "9")]


def test_rows_are_made_while_the_database_stores_others(sync_server_shop):
    """The next page is requested at once, and decoded when the rows of this one are stored."""
    shop, fetched, early = filled(sync_server_shop, 12, 1), [], []

    class Fetched(Seen):
        """Counts the pages that were decoded."""

        def fetched(self, consumer, partition, events, seconds):
            fetched.append(events)

    def insert(connection, page):
        if page.cursor in {"3", "12"}:  # the first page shows that rows are made, the last is alone
            page.insert_into(effects, connection)
            return
        until(lambda: (0, page.cursor) in shop.feed.asked, "the next page is asked for")
        threading.Event().wait(0.05)
        early.append(len(fetched))
        page.insert_into(effects, connection)
        until(lambda: len(fetched) > early[-1], "the next page is decoded")

    shop.run(insert, limit=3, observer=Fetched())
    assert (shop.landed(), len(shop.feed.asked)) == ([*range(12)], 4)
    assert early == [2, 3]


def test_page_that_waits_for_an_insertion_comes_in_its_turn(server_shop):
    """Each page is asked for once, also after errors, and a run that is stopped asks for none."""
    shop, failed = filled(server_shop, 14, 1), []

    def fail_once(name):
        if name not in failed:
            failed.append(name)
            raise ZeroDivisionError

    def apply(connection, page):
        number = int(page.cursor) // 2
        if number == 2:
            fail_once("before")
        if number == 3:
            write_page(connection, page)
        else:
            page.insert_into(effects, connection)
        if number == 4:
            fail_once("after")

    def stop(connection, page):
        running.ask_to_stop()
        write_page(connection, page)

    shop.run(apply, limit=2, failures=Failures(tries=2))
    assert failed == ["before", "after"]
    assert shop.landed() == [*range(14)]
    assert max(Counter(shop.feed.asked).values()) == 1
    shop.feed.place(6, first=14)
    running = Running(shop, stop, {"limit": 2})
    running.run()
    assert shop.landed() == [*range(16)]


def test_page_that_was_fetched_ahead_is_dropped_where_the_cursor_moved(shop):
    """A page that was fetched after one that was fenced is not taken for what follows."""
    filled(shop, 10, 1)

    operator = Rival(lambda: shop.put("2"), lambda events: events[0].data["n"] == 4)
    shop.run(write_page, limit=2, observer=operator)
    assert shop.landed() == [0, 1, 2, 3, *range(2, 10)]
    assert Counter(shop.feed.asked)[0, "6"] == 2


@pytest.mark.slow
def test_error_of_a_page_that_was_fetched_ahead_is_tried_again(shop):
    """What went wrong ahead is waited out as if it had gone wrong in its turn."""
    filled(shop, 6, 1).feed.trouble[0, "2"] = [Unavailable("busy")]
    shop.run(write_page, limit=2)
    assert shop.landed() == list(range(6))
    assert Counter(shop.feed.asked)[0, "2"] == 2
    assert shop.observer["waited"] == [(0, "Unavailable")]


def counted(client, held):
    """Make a class of clients that notes each page that is fetched, or held no longer."""

    class Counted(client):
        """Notes a page before it is there, since room is taken for it."""

        def fetch(self, partition, cursor, **options):
            held.append(1)
            fetched = super().fetch(partition, cursor, **options)
            return self._arrive(fetched) if client is AsyncClient else self._count(fetched)

        async def _arrive(self, fetched):
            return self._count(await fetched)

        def _count(self, page):
            weakref.finalize(page, held.append, -1)
            return page

    return Counted


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 4])
def test_memory_holds_two_pages_for_each_partition_that_is_worked_on(either_shop, concurrency):
    """A partition holds the page that is applied and the next, and no third, whatever fails."""
    shop, failures, held = either_shop, Counter(), []

    def often_fail(connection, page):
        write_page(connection, page)
        if page.events[0].data["n"] % 3 == 0 and not failures[page.partition, page.cursor]:
            failures[page.partition, page.cursor] += 1
            raise ZeroDivisionError

    client = counted(AsyncClient if shop.is_async else Client, held)
    options = {"concurrency": concurrency, "limit": 2, "failures": Failures(tries=2)}
    filled(shop).run(often_fail, client=client, http=httpx.Client, **options)
    assert sorted(shop.landed()) == list(range(20))
    # On each page they are counted anew.
    assert set(shop.observer["failed"]) == {("ZeroDivisionError", 1)}
    # Without room for all, no page is fetched ahead.
    most = max(accumulate(held))
    assert most <= 2 * concurrency
    assert most > concurrency or concurrency < 4
    # A page that is applied a second time has the next one fetched once.
    assert concurrency < 4 or max(Counter(shop.feed.asked).values()) == 1


@pytest.mark.slow
def test_turns_are_fair(sqlite_url):
    """A partition with much to read lets others read after a second, and holds one page then."""
    order, ahead = [], []

    def slow(connection, page):
        order.append(page.partition)
        threading.Event().wait(0.01)
        if len(set(order)) == 2:
            ahead.append((page.partition, page.cursor) in shop.feed.asked)
            running.ask_to_stop()

    with opened(sqlite_url) as shop:
        running = Running(filled(shop, 800, 2), slow, {"concurrency": 1, "limit": 1})
        running.run()
    assert len(order) < 400, "one partition was read to its end before the other"
    assert ahead[0] is False


def test_page_that_is_on_its_way_is_waited_for(sync_shop):
    """A run of threads leaves no request behind, and does nothing with its answer."""
    shop, answered = filled(sync_shop, 6, 1), []

    def slow(cursor, _):
        # A thread fetches ahead of a feed that takes its time.
        threading.Event().wait(0.2)
        if cursor != "_first":
            answered.append(cursor)

    def stop(connection, page):
        write_page(connection, page)
        until(lambda: (0, "2") in shop.feed.asked, "the next page is asked for")
        running.ask_to_stop()

    shop.feed.on_read = slow
    running = Running(shop, stop, {"follow": True, "limit": 2, "http": httpx.Client})
    running.run()
    assert (answered, shop.landed()) == (["2"], [0, 1])


def test_page_that_was_requested_ahead_is_given_up(sync_shop):
    """A run that is stopped does not wait for the response to a request that was sent ahead."""
    shop, answer = filled(sync_shop, 6, 1), threading.Event()
    shop.feed.on_read = lambda cursor, _: cursor == "_first" or answer.wait(DEADLINE)

    def stop(connection, page):
        write_page(connection, page)
        until(lambda: (0, "2") in shop.feed.asked, "the next page is asked for")
        running.ask_to_stop()

    running = Running(shop, stop, {"follow": True, "limit": 2})
    try:
        running.run()
    finally:
        answer.set()
    assert shop.landed() == [0, 1]


def test_page_that_is_on_its_way_is_given_up_by_a_task(async_shop):
    """A run of tasks that is stopped does not wait for the feed's answer."""
    shop, answer = filled(async_shop, 6, 1), threading.Event()
    shop.feed.on_read = lambda *_: answer.wait(DEADLINE)
    running = shop.start()
    until(lambda: shop.feed.asked, "the only task waits for its first page")
    try:
        running.stop(15)  # before the client gives the feed up by itself
    finally:
        answer.set()
    assert (shop.landed(), shop.leases()) == ([], 0)


@pytest.mark.parametrize("waits", [False, True])
def test_slot_of_a_task_that_is_cancelled_goes_to_the_next(waits):
    """A task that is cancelled in line, or as it is given a slot, leaves the slot to the next."""

    async def cancel_one():
        limiter = Limiter(1, Tasks())
        await limiter.acquire()
        cancelled, following = (asyncio.create_task(limiter.acquire()) for _ in range(2))
        await asyncio.sleep(0)
        if waits:
            cancelled.cancel()
            await asyncio.wait([cancelled])
        limiter.release()
        cancelled.cancel()
        await asyncio.wait_for(following, 5)

    asyncio.run(cancel_one())
