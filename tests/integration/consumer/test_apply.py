"""Pages and dead letters are applied, each in one transaction with its cursor."""

import asyncio
import logging
import threading
from contextlib import suppress
from dataclasses import dataclass, make_dataclass, replace

import httpx
import psycopg
import pytest
from harness.deliveries import (
    LONG,
    Poison,
    Rival,
    Seen,
    effects,
    event,
    failing,
    filled,
    halting,
    kill,
    numbers,
    opened,
    write,
    write_page,
    write_page_async,
)
from harness.statements import add, execute
from harness.stores import LOCK_WAITS, beside, call, outcome
from harness.waiting import DEADLINE, until
from sqlalchemy import Connection, NullPool, text
from sqlalchemy import event as sql_event
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from zeroeventhub import AsyncClient, Event, Failures, PendingPage
from zeroeventhub.errors import ConfigurationError, Halted, LeaseLost

ONE_TRY = Failures(tries=1, then="set-aside")
ASIDE = Failures(tries=2, then="set-aside")
HELD = Failures(tries=2, then="set-aside", hold_back=True)


@pytest.mark.parametrize("lanes", [1, 4])
def test_page_and_cursor_are_committed_together(either_shop, lanes):
    """A page whose events have one key takes one transaction, with the cursor in it."""
    shop = either_shop
    shop.feed.publish(event(1, "a"), event(2, "a"))
    shop.put("0")
    shop.run(write_page, lanes=lanes)
    assert (shop.landed(), shop.cursor()) == ([1, 2], "2")
    assert shop.observer.reports == [("applying", [1, 2]), ("committed", 2)]


@pytest.mark.parametrize("failures", [Failures(tries=5), Failures(tries=3, then="set-aside")])
def test_apply_that_changes_data_gets_it_unchanged_when_it_is_called_again(sync_shop, failures):
    """What apply has changed in an event's data before it raised is there in the next try."""
    shop, seen = sync_shop, []
    shop.feed.publish(*map(event, range(4)))

    def apply(connection, one: Event):
        seen.append(one.data.pop("n"))
        if seen.count(seen[-1]) < 3:
            raise Poison

    shop.run(apply, failures=failures, limit=2)
    assert ([*dict.fromkeys(seen)], shop.letters()) == ([0, 1, 2, 3], [])


def test_task_that_apply_awaits_and_that_was_cancelled_is_an_error_of_apply(async_shop):
    """A CancelledError that does not cancel the run is tried again like any other error."""
    shop, calls = async_shop, []
    shop.feed.publish(event(1))

    async def apply(connection, page):
        await write_page_async(connection, page)
        calls.append(page)
        if len(calls) < 2:
            task = asyncio.ensure_future(asyncio.sleep(60))
            task.cancel()
            await task

    shop.run(apply, failures=Failures(tries=2))
    assert (shop.landed(), len(calls)) == ([1], 2)
    assert shop.observer["failed"] == [("HandlerCancelled", 1)]


def test_cancelled_task_that_a_sync_apply_asks_is_an_error_of_apply(either_shop):
    """It is set aside like any other error, instead of ending the run without a word."""
    shop = either_shop

    async def cancelled():
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await asyncio.wait([task])
        return task

    def apply(connection: Connection, one: Event) -> None:
        write(connection, [one])
        if one.data["n"] == 2:
            outcome(beside(asyncio.run, cancelled())).result()

    shop.feed.publish(event(1), event(2), event(3))
    shop.run(apply, failures=ONE_TRY)
    assert (shop.landed(), shop.letters()) == ([1, 3], [(2, "failed", 1)])
    assert shop.observer["failed"] == [("HandlerCancelled", 1)] * 2


def test_error_of_apply_undoes_everything(either_shop):
    """What apply raises is the cause of the halt, and neither effects nor cursor stay."""
    shop = either_shop
    mine = Poison("mine")

    def apply(connection, page):
        write_page(connection, page)
        raise mine

    shop.feed.publish(event(1))
    with pytest.raises(Halted, match="Poison") as caught:
        shop.run(apply, failures=Failures(tries=2))
    assert caught.value.__cause__ is mine
    assert (shop.landed(), shop.cursor(), shop.leases()) == ([], "_first", 0)
    assert shop.observer["failed"] == [("Poison", 1), ("Poison", 2)]
    assert shop.observer["raised"] == [("Poison",)] * 2
    assert shop.observer["committed"] == []


def test_error_of_a_halt_is_in_the_store(every_shop):
    """The store says why a partition stands still, until it goes on; no page was applied."""
    shop = every_shop
    shop.feed.publish(event(1), event(2))
    with halting(Poison):
        shop.run(failing(2), failures=Failures(tries=2))
    (found,) = call(shop.store, shop.store.standings)
    place = "zeroeventhub: event 2 of 2 after cursor '_first' (id 'e2')"
    assert found.error == f"harness.deliveries.Poison: event 2 is poison\n{place}"
    assert found.tries == 2
    assert (found.cursor, shop.landed()) == ("_first", [])
    shop.run(write_page)
    (found,) = call(shop.store, shop.store.standings)
    assert (found.error, shop.landed()) == (None, [1, 2])


@pytest.mark.parametrize(("tries", "then"), [(3, "halt"), (2, "set-aside")])
def test_tries_that_failed_are_in_the_store_until_one_succeeds(every_shop, tries, then):
    """Between two tries the store has the error of the last; the page that succeeds clears it."""
    shop, found, calls = every_shop, [], []

    class Looking(Seen):
        """Looks at the store before each try."""

        def applying(self, consumer, partition, events):
            found.extend(call(shop.store, shop.store.standings))
            return super().applying(consumer, partition, events)

    def apply(connection, page):
        calls.append(page)
        if len(calls) < 3:
            raise Poison(f"try {len(calls)}")
        write_page(connection, page)

    shop.feed.publish(event(1))
    shop.run(apply, observer=Looking(), failures=Failures(tries=tries, then=then))
    assert [one.tries for one in found] == [None, 1, 2]
    assert found[2].error.startswith("harness.deliveries.Poison: try 2\n")
    assert found[1].retried_since == found[2].retried_since
    assert {one.halted_at for one in found} == {None}
    assert None not in {one.retry_seconds for one in found[1:]}
    (after,) = call(shop.store, shop.store.standings)
    assert (after.error, shop.landed()) == (None, [1])


def test_observer_that_suppresses_errors_is_refused(either_shop):
    """A run does not end well because the observer's context swallows that nothing was applied."""

    class Deaf(Seen):
        """Lets no error of a transaction pass."""

        def applying(self, consumer, partition, events):
            return suppress(Exception)

    shop = either_shop
    shop.feed.publish(event(1))
    with halting(ConfigurationError, "observer's `applying` suppresses errors"):
        shop.run(failing(1), observer=Deaf())
    assert (shop.landed(), shop.cursor()) == ([], "_first")


@dataclass(frozen=True)
class Spoilt(Exception):
    """An error that refuses every assignment: of a traceback, or of notes."""

    event: int


def test_frozen_error_is_tried_again_and_set_aside(either_shop):
    """What apply raises may be a frozen dataclass."""

    def apply(connection, one: Event):
        if one.data["n"] == 2:
            raise Spoilt(2)
        write(connection, [one])

    shop = either_shop
    shop.feed.publish(event(1), event(2), event(3))
    shop.run(apply, failures=Failures(tries=2, then="set-aside"))
    (letter,) = call(shop.store, shop.store.dead_letters.letters)
    assert letter.error.endswith("Spoilt: 2")
    assert (shop.landed(), letter.tries) == ([1, 3], 2)


def test_failure_that_cannot_be_stored_changes_nothing(either_shop, caplog):
    """A store without the table of failures retries and halts, and the log says what it lacks."""
    shop = either_shop
    execute(shop.engine, "DROP TABLE zeroeventhub_failures")
    shop.feed.publish(event(1))
    with halting(Poison):
        shop.run(failing(1), failures=Failures(tries=2))
    told = [one for one in caplog.records if "was not stored" in one.getMessage()]
    assert len(told) == 2
    assert "no table zeroeventhub_failures" in told[0].getMessage()
    assert (told[0].levelname, told[0].consumer, told[0].partition) == ("WARNING", "billing", 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "cursor", "lanes"),
    [
        (lambda shop: shop.put("0"), "0", 1),
        (lambda shop: shop.put("1"), "1", 2),
        (lambda shop: shop.take_over(0, seconds=0.3), "1", 1),
    ],
    ids=["another cursor", "the same cursor in lanes", "a lost lease"],
)
def test_stale_page_is_fenced_before_apply_is_called(either_shop, act, cursor, lanes):
    """A page from another cursor, by an older right, or of a lost lease is not applied."""
    shop, calls = either_shop, []

    def apply(connection, page):
        calls.append(page.previous_cursor)
        write_page(connection, page)

    shop.feed.publish(event(1, "d"), event(2, "d"), event(3, "a"))
    shop.put("1")
    rival = Rival(lambda: act(shop))
    shop.run(apply, lease=3, lanes=lanes, observer=rival)
    assert calls == [cursor] * lanes
    assert sorted(shop.landed()) == ([2, 3] if cursor == "1" else [1, 2, 3])
    assert rival["raised"] == [("Fenced",)] * lanes
    assert (rival["fenced"], rival["failed"]) == ([(0,)], [])


def test_lease_that_is_lost_while_apply_works_costs_the_commit(every_shop):
    """What apply has written when another process enters is rolled back, or the other waits."""
    shop, taken = every_shop, []

    def take_over():
        with suppress(LeaseLost):  # its own lease may run out while it waits for the commit
            shop.take_over(0, seconds=0.2)

    def apply(connection, page):
        write_page(connection, page)
        if not taken and shop.engine.dialect.name != "sqlite":
            rival = threading.Thread(target=take_over)
            taken.append(rival)
            rival.start()
            rival.join(0.1)

    shop.feed.publish(event(1), event(2))
    shop.run(apply, limit=1, lease=2)
    for rival in taken:
        rival.join(DEADLINE)
    assert shop.landed() == [1, 2]


def test_page_need_not_wait_for_the_disk(postgresql_shop):
    """Pages are committed as the consumer says; what is registered has been written before."""
    shop, seen, statements = postgresql_shop, [], []

    def apply(connection: Connection, page: PendingPage) -> None:
        seen.append(connection.scalar(text("SHOW synchronous_commit")))
        write_page(connection, page)

    engine = shop.async_engine.sync_engine if shop.is_async else shop.engine
    sql_event.listen(engine, "before_cursor_execute", lambda *told: statements.append(told[2]))
    shop.feed.publish(*map(event, range(4)))
    shop.run(apply, limit=2)
    shop.put("2")
    shop.run(apply, synchronous_commit=False, register_progress=True)
    assert seen == ["on", "on", "off"]
    assert "synchronous_commit TO on" in statements[statements.index("SELECT txid_current()") - 1]
    assert shop.cursor() == "4"


# Errors of the database.


def test_full_disk_halts_and_sets_nothing_aside(sync_shop):
    """A page that no longer fits is rolled back whole, and applied when there is room."""
    shop, room = sync_shop, [2**30]
    shop.feed.publish(*[event(n, "x" * 3000) for n in range(30)])

    @sql_event.listens_for(shop.engine, "connect")
    def limit(connection, _):
        connection.execute(f"PRAGMA max_page_count = {room[-1]}")

    def run(pages):
        with shop.engine.connect() as connection:
            room.append(connection.exec_driver_sql("PRAGMA page_count").scalar() + pages)
        shop.engine.dispose()
        shop.run(write_page, limit=3, failures=ONE_TRY)

    for before in (0, 1):
        with pytest.raises((Halted, OperationalError), match=r"OperationalError|disk is full"):
            run(7)
        assert before < int(shop.cursor()) < 30
        assert (shop.landed(), shop.letters()) == ([*range(int(shop.cursor()))], [])
    run(2**20)
    assert (shop.landed(), shop.letters()) == ([*range(30)], [])


FULL = {
    "postgresql": "DO $$ BEGIN RAISE 'no space left on device' USING ERRCODE = '53100'; END $$",
    "mariadb": "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114, MESSAGE_TEXT = 'table is full'",
}


def test_full_table_halts_and_sets_nothing_aside(server_shop):
    """Where only the table of the effects is full, events do not become dead letters."""
    shop = server_shop
    shop.feed.publish(*map(event, range(5)))

    def apply(connection: Connection, one: Event) -> None:
        write(connection, [one])
        if one.data["n"] == 3:
            connection.exec_driver_sql(FULL[shop.engine.dialect.name])

    async def apply_async(connection: AsyncConnection, one: Event) -> None:
        await connection.run_sync(apply, one)

    with pytest.raises(Halted):
        shop.run(apply_async if shop.is_async else apply, failures=ASIDE)
    assert (shop.landed(), shop.letters()) == ([], [])


def test_full_table_is_noticed_by_the_error_of_the_driver(postgresql_url):
    """An apply that uses the connection of psycopg gets its errors, which halt as well."""

    def apply(connection: psycopg.Connection, one: Event) -> None:
        connection.execute(FULL["postgresql"])

    with opened(postgresql_url) as shop:
        shop.feed.publish(event(1))
        with pytest.raises(Halted):
            shop.run(apply, failures=ASIDE)
        assert shop.letters() == []


def lose_the_connection(engine, connection):
    """Lose the connection."""
    kill(engine, connection)
    connection.execute(text("SELECT 1"))


def lose_a_deadlock(engine, connection):
    """Lock two rows in the order that a rival does not, and give way."""

    def lock(connection, n):
        connection.execute(effects.update().where(effects.c.arrival == -n).values(k="locked"))

    with engine.connect() as rival:
        if engine.dialect.name == "postgresql":
            rival.execute(text("SET LOCAL deadlock_timeout = '60s'"))
            connection.execute(text("SET LOCAL deadlock_timeout = '10ms'"))
        # Of two, MariaDB sends away the one that has changed less.
        rival.execute(effects.insert(), [{"n": number} for number in range(100, 200)])
        lock(rival, 2)
        lock(connection, 1)
        waiting = beside(lock, rival, 1)
        with engine.connect() as other:
            query = text(LOCK_WAITS[engine.dialect.name])
            until(lambda: other.scalar(query), "the rival waits for a lock")
        try:
            lock(connection, 2)
        finally:
            outcome(waiting)
            rival.rollback()


@pytest.mark.parametrize(
    ("database", "trouble", "of_letter"),
    [
        ("postgresql", lose_the_connection, False),
        ("postgresql", lose_a_deadlock, True),
        ("mariadb", lose_the_connection, True),
        ("mariadb", lose_a_deadlock, False),
    ],
)
def test_trouble_of_the_store_is_no_failure_of_apply(request, database, trouble, of_letter):
    """A transaction of a page or a letter that is lost is tried again, and counts as no try."""
    lost = []

    def apply(connection: Connection, one: Event) -> None:
        write(connection, [one])
        if not lost:
            lost.append(one.data["n"])
            trouble(shop.engine, connection)

    with opened(request.getfixturevalue(f"{database}_url")) as shop:
        add(shop.engine, effects, [{"arrival": -n, "n": -n} for n in (1, 2)])
        shop.feed.publish(event(1), event(2))
        if of_letter:
            shop.run(failing(1, 2), failures=ONE_TRY)
            shop.retry()
            shop.observer.reports.clear()
        shop.run(apply, failures=ONE_TRY, attempts=2)
        assert (lost, shop.landed(), shop.letters()) == ([1], [-2, -1, 1, 2], [])
        assert (shop.observer["failed"], shop.observer["raised"]) == ([], [("StoreUnavailable",)])
        assert shop.observer["waited"] == [(0, "StoreUnavailable")]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_connection_that_is_lost_as_apply_returns_is_no_failure_of_apply(postgresql_url, driver):
    """A page is applied again whose session has ended before its savepoint was released."""
    lost = []

    async def apply(connection, page):
        await write_page_async(connection, page)
        if not lost:
            lost.append(await connection.scalar(text("SELECT pg_backend_pid()")))
            execute(shop.engine, f"SELECT pg_terminate_backend({lost[0]}, 10000)")
            await asyncio.sleep(0.1)  # until the driver has noticed

    with opened(postgresql_url, is_async=True) as shop:
        url = shop.async_engine.url.set(drivername=f"postgresql+{driver}")
        shop.async_engine = create_async_engine(url, poolclass=NullPool)
        shop.feed.publish(event(1), event(2))
        shop.run(apply)
        assert (shop.landed(), shop.observer["failed"]) == ([1, 2], [])
        assert shop.observer["waited"] == [(0, "StoreUnavailable")]


def test_interrupt_rolls_back_and_passes(either_shop):
    """What is no Exception ends the run at once, and leaves neither effects nor leases."""
    shop, calls = filled(either_shop), []

    def apply(connection, page):
        write_page(connection, page)
        calls.append(page.partition)
        raise SystemExit

    with pytest.raises(SystemExit):
        shop.run(apply, failures=ONE_TRY, lease=LONG)
    assert len(calls) == len(set(calls)), "a page is tried again"
    assert (shop.landed(), shop.letters()) == ([], [])
    assert (shop.cursor(), shop.leases()) == ("_first", 0)
    shop.run(write_page, lease=LONG)
    assert sorted(shop.landed()) == list(range(20))


@pytest.mark.parametrize("lanes", [1, 4])
def test_cancelled_task_rolls_back(async_shop, lanes):
    """An apply that is cancelled leaves nothing of the page."""

    async def apply(connection, page) -> None:
        await write_page_async(connection, page)
        asyncio.current_task().cancel()
        await asyncio.sleep(DEADLINE)

    async_shop.feed.publish(event(1, "a"), event(2, "b"))
    async_shop.put("0")
    with pytest.raises(asyncio.CancelledError):
        async_shop.run(apply, lanes=lanes)
    assert (async_shop.landed(), async_shop.cursor()) == ([], "0")


def test_task_cancelled_before_apply_gives_its_connection_back_as_it_was(async_shop):
    """Leases are released, and the program commits, by the connection of the page."""
    shop = async_shop
    shop.feed.publish(event(1))

    def key(one):
        asyncio.current_task().cancel()

    async def run():
        engine = create_async_engine(shop.async_engine.url, pool_size=1, max_overflow=0)
        shop.async_engine = engine
        async with httpx.AsyncClient() as http:
            client = AsyncClient(shop.url, http)
            with pytest.raises(asyncio.CancelledError):
                await shop.consumer(client, failures=HELD, key=key).run(wrong)
        async with engine.begin() as connection:
            await connection.run_sync(write, [event(2)])
        await engine.dispose()

    asyncio.run(run())
    assert (shop.landed(), shop.cursor(), shop.leases()) == ([2], "_first", 0)


def wrong(connection, page):
    """Be called, though nothing is to be applied."""
    raise AssertionError("apply was called")


# The inbox.


def test_event_that_comes_again_is_dropped(every_shop):
    """Within a page and in a later one, only the first of those with one id is applied."""
    shop = every_shop
    shop.feed.publish(event(1), event(2), event(1), event(2), event(3))
    shop.run(write_page, inbox=True, limit=3)
    assert shop.landed() == [1, 2, 3]
    assert shop.observer["duplicate"] == [(1,), (1,)]
    assert shop.observer["committed"] == [(2,), (1,)]


def test_event_is_seen_once_it_is_applied_or_set_aside(shop):
    """Events of a page that was rolled back come as new ones; one that has a letter does not."""
    shop.feed.publish(event(1), event(2))
    with halting(Poison):
        shop.run(failing(2), inbox=True)
    shop.run(failing(1), inbox=True, failures=ASIDE)
    shop.feed.publish(event(1), event(2))
    shop.run(wrong, inbox=True, failures=ASIDE)
    assert (shop.landed(), shop.letters()) == ([2], [(1, "failed", 2)])
    shop.retry()
    shop.run(write_page, inbox=True)
    assert (shop.landed(), shop.letters()) == ([2, 1], [])


@pytest.mark.parametrize("exactly_once", [False, True])
def test_apply_may_ask_the_inbox_itself(shop, exactly_once):
    """A function that was written for a loop gets its events, whether or not `run` has an inbox."""

    def apply(connection, page):
        write(connection, page.unseen(connection))
        if page.events[0].data["n"] == 2 and not shop.letters():
            raise Poison

    shop.feed.exactly_once = exactly_once
    shop.feed.publish(*[event(n) for n in range(4) for _ in range(2)])
    shop.run(apply, limit=2, failures=ASIDE)
    assert shop.landed() == [0, 1, 3]
    shop.retry()
    shop.run(apply)
    assert shop.landed() == [0, 1, 3, 2]


def test_lanes_share_the_inbox(shop):
    """In lanes too each event is applied once."""
    page = [event(n, f"k{n}") for n in range(8)]
    shop.feed.publish(*page, *page, event(8, "k0"))
    shop.put("0")
    shop.run(write_page, inbox=True, lanes=4, limit=8)
    assert sorted(shop.landed()) == list(range(9))
    assert sum(count for (count,) in shop.observer["duplicate"]) == 8


@pytest.mark.parametrize("attributes", [{}, {"specversion": "1.0", "source": "/shop", "id": ""}])
def test_event_without_an_id_halts_or_is_warned_of_once(sync_shop, caplog, attributes):
    """An inbox that was asked for halts the partition; one that only the feed needs warns."""
    shop, nameless = sync_shop, [Event.of({**attributes, "n": n}) for n in (2, 2, 3)]
    shop.feed.exactly_once = False
    shop.feed.publish(event(1), *nameless[:2], event(1), nameless[2])
    with halting(ConfigurationError, "has no id"):
        shop.run(write_page, inbox=True)
    assert (shop.landed(), shop.cursor()) == ([], "_first")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "zeroeventhub.consumer"):
        shop.run(write_page, limit=3)
    assert shop.landed() == [1, 2, 2, 3]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "without an id" in caplog.text


@pytest.mark.parametrize(
    ("exactly_once", "options", "landed"),
    [
        (False, {}, [0, 1, 2, 3]),
        (True, {}, [0, 0, 1, 1, 2, 2, 3, 3]),
        (False, {"inbox": False}, [0, 0, 1, 1, 2, 2, 3, 3]),
        (True, {"inbox": True}, [0, 1, 2, 3]),
        (False, {"identity": lambda one: str(one.data["n"] % 3)}, [0, 1, 2]),
        (False, {"identity": lambda one: one.data.get("gone", "")}, [0, 0, 1, 1, 2, 2, 3, 3]),
    ],
)
def test_inbox_is_kept_for_feeds_that_do_not_promise(shop, exactly_once, options, landed):
    """An event that is published twice is applied once, where feed or caller call for it."""
    shop.feed.exactly_once = exactly_once
    shop.feed.publish(*[event(n) for n in range(4) for _ in range(2)])
    shop.run(write_page, limit=3, **options)
    assert shop.landed() == landed


# Dead letters.


@pytest.mark.parametrize("poison", [(1,), (2, 3)])
def test_what_fails_is_set_aside_and_the_rest_is_applied(either_shop, poison):
    """A poison event at any place of a page leaves its dead letter and no effect."""
    shop, seen = either_shop, []
    shop.feed.publish(event(1), event(2), event(3))
    shop.run(failing(*poison, seen=seen), failures=ASIDE)
    assert shop.landed() == [n for n in (1, 2, 3) if n not in poison]
    assert shop.letters() == [(n, "failed", 2) for n in poison]
    assert shop.cursor() == "3"
    whole = list(range(1, poison[0] + 1))
    assert seen == [*whole, *whole, *[n for n in (1, 2, 3) for _ in range(1 + (n in poison))]]
    assert shop.observer["set aside"] == [(len(poison), 0)]
    assert shop.observer["failed"] == [("Poison", 1), ("Poison", 2)] * (1 + len(poison))
    assert shop.observer["committed"] == [(3 - len(poison),)]


def test_event_that_succeeds_at_last_is_no_letter(shop):
    """Each event of a page that failed has all its tries again."""
    left = [1, 1, 1]

    def apply(connection: Connection, one: Event) -> None:
        write(connection, [one])
        if left:
            left.pop()
            raise Poison

    shop.feed.publish(event(1), event(2))
    shop.run(apply, failures=ASIDE)
    assert (shop.landed(), shop.letters()) == ([1, 2], [])
    assert shop.observer["failed"] == [("Poison", 1), ("Poison", 2), ("Poison", 1)]


def test_only_the_page_that_failed_is_applied_event_by_event(shop):
    """The page after one that was set aside is given whole again, and has all its tries."""
    pages = []

    def apply(connection, page):
        pages.append((page.previous_cursor, page.cursor, numbers(page.events)))
        write_page(connection, page)
        if 2 in pages[-1][2]:
            raise Poison

    shop.feed.publish(*map(event, range(1, 7)))
    shop.run(apply, limit=3, failures=Failures(tries=1, then="set-aside"))
    one_by_one = [("_first", "3", [n]) for n in (1, 2, 3)]
    assert pages == [("_first", "3", [1, 2, 3]), *one_by_one, ("3", "6", [4, 5, 6])]
    assert (shop.landed(), shop.letters()) == ([1, 3, 4, 5, 6], [(2, "failed", 1)])


def test_event_that_does_not_fit_the_model_is_set_aside(shop):
    """What cannot be decoded fails like a handler that raised."""
    numbered = make_dataclass("Numbered", [("n", int), ("amount", int, 0)])

    def apply(connection: Connection, one: numbered) -> None:
        connection.execute(effects.insert().values(n=one.n))

    shop.feed.publish(event(1), event(2, amount="much"), event(3))
    shop.run(apply, failures=ASIDE)
    assert (shop.landed(), shop.letters()) == ([1, 3], [(2, "failed", 2)])


def test_letters_stand_and_fall_with_the_cursor(shop):
    """A transaction that is fenced leaves no letters."""
    shop.feed.publish(event(1))
    late = Rival(lambda: shop.put("0"), lambda _: len(late["failed"]) == 2)
    shop.run(failing(1), failures=ASIDE, observer=late)
    assert (late["fenced"], shop.letters()) == ([(0,)], [(1, "failed", 2)])


# Keys that are held back.


def test_later_events_of_a_key_are_held_back(every_shop):
    """After an event that was set aside, those of its key wait, on the same page and later."""
    shop, seen = every_shop, []
    page = [event(1, "a"), event(2, "b"), event(3, "a"), event(4), event(5, "b")]
    shop.feed.publish(*page, event(6, "a"), event(7, "b"), event(8, "a"))
    shop.run(failing(1, seen=seen), failures=HELD, limit=5)
    assert seen == [1, 1, 1, 1, 2, 4, 5, 7]
    assert shop.landed() == [2, 4, 5, 7]
    assert shop.letters() == [(1, "failed", 2), *[(n, "held", 0) for n in (3, 6, 8)]]
    assert shop.observer["set aside"] == [(1, 1), (0, 2)]


def test_key_is_held_back_on_a_page_that_fails_as_well(shop):
    """Keys of earlier pages are held back event by event, and apply is not called for nothing."""
    shop.feed.publish(event(1, "a"), event(2, "a"), event(3, "b"), event(4, "a"), event(5, "b"))
    shop.run(failing(1, 3), failures=HELD, limit=1)
    shop.feed.publish(event(6, "a"), event(7, "c"))
    shop.run(failing(7), failures=HELD)
    assert shop.landed() == []
    failed = {n for n, state, _ in shop.letters() if state == "failed"}
    assert (failed, len(shop.letters())) == ({1, 3, 7}, 7)
    shop.feed.publish(event(8, "a"))
    shop.run(wrong, failures=HELD)
    assert (shop.cursor(), shop.letters()[-1]) == ("8", (8, "held", 0))


# Dead letters that are applied again.


@pytest.fixture
def lettered(shop):
    """A shop with letters of events 1, 2 (held), 3 and 5."""
    return with_letters(shop)


def with_letters(shop):
    """Leave letters of events 1, 2 (held), 3 and 5 in a shop."""
    shop.feed.publish(event(1, "a"), event(2, "a"), event(3, "b"), event(4, "c"), event(5))
    shop.run(failing(1, 3, 5), failures=HELD)
    assert shop.landed() == [4]
    assert [n for n, *_ in shop.letters()] == [1, 2, 3, 5]
    shop.observer.reports.clear()
    return shop


def test_letters_are_applied_in_order_and_forgotten(every_shop):
    """Letters that succeed are applied once, and then those that were held back for them."""
    shop = with_letters(every_shop)
    shop.run(write_page, failures=HELD)
    assert shop.landed() == [4]
    shop.retry()
    shop.run(write_page, failures=HELD)
    assert shop.landed() == [4, 1, 2, 3, 5]
    assert (shop.letters(), shop.cursor()) == ([], "5")
    assert shop.observer["applying"] == [([n],) for n in (1, 2, 3, 5)]
    assert shop.observer["committed"] == [(1,)] * 4


def test_letter_that_fails_again_waits_with_those_after_it(lettered):
    """The error is written down, not raised; later letters of the key wait, others go on."""
    shop, seen = lettered, []
    shop.retry()
    shop.run(failing(1, seen=seen), failures=HELD)
    assert seen == [1, 1, 3, 5]
    assert shop.landed() == [4, 3, 5]
    assert shop.letters() == [(1, "failed", 4), (2, "held", 0)]
    assert shop.observer["failed"] == [("Poison", 3), ("Poison", 4)]
    shop.feed.publish(event(6, "a"))
    shop.retry()
    shop.run(write_page, failures=HELD)
    assert shop.landed() == [4, 3, 5, 1, 2, 6]


def test_letters_are_looked_for_until_none_is_due(sync_shop):
    """Once the letters of a partition are applied, pages cost no statement about letters."""
    shop, looked = with_letters(sync_shop), []
    shop.retry()
    shop.feed.publish(*[event(number) for number in range(6, 36)])

    @sql_event.listens_for(shop.engine, "before_cursor_execute")
    def note(connection, cursor, statement, *_):
        if "dead_letters" in statement:
            looked.append(statement)

    shop.run(write_page, failures=HELD, limit=1)
    assert shop.landed() == [4, 1, 2, 3, 5, *range(6, 36)]
    assert len(looked) < 30, len(looked)


def test_run_that_is_stopped_ends_between_letters(lettered):
    """Letters that are not applied yet wait for the next run."""
    shop = lettered
    shop.retry()

    def apply(connection, one: Event):
        write(connection, [one])
        running.ask_to_stop()

    running = shop.start(apply, failures=HELD)
    until(lambda: not running.is_running, "the run has ended")
    assert (shop.landed(), len(shop.letters())) == ([4, 1], 3)
    shop.run(write_page, failures=HELD)
    assert shop.landed() == [4, 1, 2, 3, 5]


def test_letters_that_are_marked_at_the_head_are_applied(lettered):
    """A consumer that waits at the head finds them without any news of the feed."""
    running = lettered.start(write_page, failures=HELD, lease=2)
    lettered.retry()
    lettered.until_landed(5)
    running.stop()
    assert lettered.landed() == [4, 1, 2, 3, 5]


def test_letters_of_a_partition_that_has_ended_are_applied(lettered):
    """A closed partition that was read to its end is entered again for its letters."""
    lettered.feed.layout[0] = replace(lettered.feed.layout[0], closed=True)
    lettered.run(write_page, failures=HELD)
    lettered.retry()
    lettered.run(write_page, failures=HELD)
    assert (lettered.landed(), lettered.letters()) == ([4, 1, 2, 3, 5], [])


def test_process_that_has_lost_its_right_applies_no_letter(lettered):
    """If an operator moves the cursor, a retry of dead letters that has begun is rolled back."""
    shop = lettered
    shop.retry()
    operator = Rival(lambda: shop.put("5"))
    shop.run(write_page, failures=HELD, observer=operator)
    assert operator.reports[:2] == [("applying", [1]), ("raised", "Fenced")]
    assert (operator["fenced"], shop.landed()) == ([(0,)], [4, 1, 2, 3, 5])


def test_letter_that_is_discarded_meanwhile_is_not_applied(postgresql_shop):
    """What an operator discards while it is applied is undone and stays gone."""
    shop, discarded = postgresql_shop, []
    shop.feed.publish(event(1, "a"))
    shop.run(failing(1), failures=HELD)
    shop.retry()

    def apply(connection: Connection, one: Event) -> None:
        write(connection, [one])
        discarded.append(call(shop.store, shop.store.dead_letters.discard))

    shop.run(apply, failures=Failures(tries=1, then="set-aside"))
    assert (shop.landed(), shop.letters(), len(discarded)) == ([], [], 1)
    assert shop.observer["raised"][-1] == ("Fenced",)


def test_letter_that_is_discarded_before_its_turn_is_not_applied(lettered):
    """What an operator discards leaves its turn to the next letter, which is applied as itself."""
    shop, seen = lettered, []

    def discard():
        first, *_ = call(shop.store, shop.store.dead_letters.letters)
        call(shop.store, shop.store.dead_letters.discard, [first.id])

    shop.retry()
    shop.run(failing(seen=seen), failures=HELD, observer=Rival(discard))
    assert (seen, shop.landed(), shop.letters()) == ([2, 3, 5], [4, 2, 3, 5], [])


def test_letter_whose_transaction_cannot_be_committed_has_failed(postgresql_url):
    """A constraint that is checked at the end fails the letter, and not the consumer."""

    def apply(connection: Connection, one: Event) -> None:
        write(connection, [one, one])

    with opened(postgresql_url) as shop:
        shop.feed.publish(event(1, "a"), event(2, "b"))
        shop.run(failing(1), failures=HELD)
        execute(shop.engine, "ALTER TABLE effects ADD UNIQUE (n) INITIALLY DEFERRED")
        shop.retry()
        shop.run(apply, failures=HELD)
        assert (shop.landed(), shop.letters()) == ([2], [(1, "failed", 3)])
        assert shop.observer["failed"][-1] == ("IntegrityError", 3)


@pytest.mark.parametrize("lanes", [1, 2])
def test_partition_halts_at_too_many_dead_letters(shop, lanes):
    """A handler that fails at everything fills no table: the partition stands still in time."""
    shop.feed.publish(*map(event, range(9)))
    aside = Failures(tries=1, then="set-aside", at_most=4)
    with pytest.raises(Halted, match="at_most"):
        shop.run(failing(*range(9)), failures=aside, limit=2, lanes=lanes)
    assert 3 <= len(shop.letters()) <= 4
    assert shop.cursor() == "4"
    call(shop.store, shop.store.dead_letters.discard)
    shop.run(failing(), failures=aside)
    assert shop.landed() == [4, 5, 6, 7, 8]
