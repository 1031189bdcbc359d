"""A consumer from start to end: where it starts, what it reads, and what it outlives."""

import threading

import pytest
from harness.deliveries import NAME, Feed, event, filled, numbers, opened, write, write_page
from harness.readers import client_of, mounted
from harness.shop import metadata, orders
from harness.statements import add, execute
from harness.waiting import DEADLINE, until
from harness.web import serving
from sqlalchemy import Connection, create_engine, select
from sqlalchemy import event as sql_event
from starlette.applications import Starlette

from zeroeventhub import (
    LAST,
    AsyncConsumer,
    Consumer,
    CursorStore,
    Event,
    Failures,
    Partition,
    TableFeed,
    TypeFilter,
    feed_routes,
)
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import CAUGHT_UP


def loop(shop, **options):
    """Commit the pages of a loop; return their partitions and numbers."""
    found = []
    with shop.pages(**options) as pages:
        for page in pages:
            with shop.engine.begin() as connection:
                page.commit(connection)
                write(connection, page.events)
            found.append((page.partition, numbers(page.events)))
    return found


@pytest.mark.parametrize("extensions", [(), (CAUGHT_UP,)])
def test_loop_gets_pages_of_all_partitions_in_turn(sync_shop, extensions):
    """Pages of all partitions come in turn, every event once, and the next loop goes on there."""
    filled(sync_shop, 10, 2).feed.extensions = frozenset(extensions)
    assert loop(sync_shop, limit=3) == [*[(0, [0, 2, 4]), (1, [1, 3, 5]), (0, [6, 8]), (1, [7, 9])]]
    sync_shop.feed.place(2, first=10)
    assert loop(sync_shop, partitions=[1]) == [(1, [11])]
    assert loop(sync_shop) == [(0, [10])]


def test_loop_that_is_stopped_ends(sync_shop):
    """A loop ends at its next step when it is stopped, and a stopped consumer stays stopped."""
    filled(sync_shop, 4, 1)
    with client_of(sync_shop.url) as client:
        consumer = sync_shop.consumer(client, follow=True, poll_interval=60)
        for number, _ in enumerate(consumer):
            assert number == 0
            consumer.stop()
        assert list(consumer) == []


def test_stop_wakes_a_loop_at_the_head(sync_shop):
    """A loop that pauses at the head is stopped from another thread."""
    shop, ended = filled(sync_shop, 1, 1), []
    shop.put("1")
    with client_of(shop.url) as client:
        consumer = Consumer(client, shop.store, NAME, poll_interval=60)
        thread = threading.Thread(target=lambda: ended.append(list(consumer)))
        thread.start()
        until(lambda: shop.feed.asked, "the head is looked at")
        consumer.stop()
        thread.join(DEADLINE)
    assert ended == [[]]


def test_start_is_first_last_or_a_cursor(shop):
    """A consumer without a cursor starts where it was told to; one that has a cursor goes on."""
    filled(shop, 4, 1)
    shop.run(write_page, start=LAST)
    assert shop.landed() == []
    shop.feed.publish(event(4))
    shop.run(write_page, start=LAST)
    assert shop.landed() == [4]
    execute(shop.engine, shop.store.tables.cursors.delete())
    shop.run(write_page, start="3")
    assert shop.landed() == [4, 3, 4]


def test_layout_that_changes_while_it_is_followed_is_read_on(either_shop):
    """Children follow their parent, heirs go on from its cursor, and every event comes once."""
    shop = filled(either_shop, 4, 2)
    running = shop.start(lease=0.3)
    shop.until_landed(4)
    feed = shop.feed
    feed.publish(event(4))
    feed.publish(event(5), partition=2)
    feed.logs[3] = [event(1), event(3), event(6)]
    feed.layout[:] = [
        *[Partition(2, starts_after=0), Partition(0, closed=True), Partition(3, cursor_from=(1,))]
    ]
    feed.token = "2"
    shop.until_landed(7)
    running.stop()
    assert sorted(shop.landed()) == list(range(7))
    assert [n for n in shop.landed() if n in (0, 2, 4, 5)] == [0, 2, 4, 5]


def test_child_waits_for_its_parent_where_a_reset_comes_in_between(sqlite_url):
    """A reset between the child's lease and its first page has the parent read again first."""
    operator, resets = CursorStore(create_engine(sqlite_url)), []
    with opened(sqlite_url) as shop:
        shop.feed.layout[:] = [Partition(0, closed=True), Partition(1, starts_after=0)]
        shop.feed.publish(event(1), event(2))
        shop.feed.publish(event(11), event(12), partition=1)

        @sql_event.listens_for(shop.engine, "begin")
        def reset_once(_):
            leases = operator.tables.leases
            with operator.engine.begin() as connection:
                owner = connection.scalar(select(leases.c.owner).where(leases.c.partition == 1))
                has_ended = any(one.ended for one in operator.standings(connection, NAME))
                if has_ended and owner is not None and not resets:
                    resets.append(operator.reset(connection, NAME))

        shop.run(write_page, lease=1)
        assert (len(resets), shop.landed()) == (1, [1, 2, 1, 2, 11, 12])
    operator.engine.dispose()


def test_server_that_goes_and_comes_back_is_waited_for(sqlite_url):
    """A consumer outlives the publisher's restart by itself."""
    feed = Feed(2)
    feed.place(4)
    application = Starlette(routes=feed_routes("/orders", feed))
    with opened(sqlite_url) as shop:
        with serving(application) as url:
            shop.url = f"{url}/orders"
            running = shop.start()
            shop.until_landed(4)
        until(lambda: shop.observer["waited"], "the feed is missed")
        feed.place(2, first=4)
        with serving(Starlette(routes=application.routes), int(url.rpartition(":")[2])):
            shop.until_landed(6)
            running.stop()
        assert sorted(shop.landed()) == list(range(6))


def test_consumer_reads_the_types_that_it_names(shop, sqlite_url):
    """Only events of the types asked for take effect, and the cursor moves over the others."""
    publisher = create_engine(f"{sqlite_url}.publisher")
    metadata.create_all(publisher)
    table = TableFeed(orders, data="data", type="kind")
    kinds = ["placed", "paid", "placed", "Paid", "placed"]
    add(publisher, orders, [{"data": {"n": n}, "kind": kind} for n, kind in enumerate(kinds)])
    with mounted(table, publisher) as shop.url, client_of(shop.url) as client:
        shop.run(write_page, types=TypeFilter({"PAID"}))
        assert shop.cursor() == client.fetch(0, LAST).cursor
    assert shop.landed() == [1, 3]
    publisher.dispose()


@pytest.mark.slow
def test_everything_takes_effect_once_at_last(either_shop):
    """With models, lanes, an inbox and dead letters, each key's events take effect in order."""
    events, keys, poison = 40, 5, {7, 8}
    shop = filled(either_shop, events, 2)

    def apply(connection: Connection, one: Event) -> None:
        """Write the event, but not all of them."""
        write(connection, [one])
        if one.data["n"] in poison:
            raise ZeroDivisionError

    options = {
        "limit": 13,
        "lanes": 3,
        "key": lambda one: str(one.data["n"] % keys),
        "identity": lambda one: str(one.data["n"]),
        "inbox": True,
        "failures": Failures(tries=1, then="set-aside", hold_back=True),
    }
    shop.run(apply, **options)
    assert {n for n, state, _ in shop.letters() if state == "failed"} == poison
    behind = {n for n in range(events) if n % keys in {2, 3}}
    assert poison < {n for n, *_ in shop.letters()} <= behind
    poison.clear()
    shop.retry()
    shop.run(apply, **options)
    assert (sorted(shop.landed()), shop.letters()) == (list(range(events)), [])
    for number in range(2 * keys):
        mine = [n for n in shop.landed() if n % (2 * keys) == number]
        assert mine == sorted(mine)


# What is refused.


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"name": ""}, "name"),
        ({"lanes": 0}, "lanes is 1 or more"),
        ({"lease": float("inf")}, "above 0"),
        ({"identity": "id"}, "identity is a function"),
    ],
)
def test_option_that_cannot_work_is_refused(sqlite, options, complaint):
    """What is out of its range is refused before anything is read, by both consumers."""
    options = {"name": NAME, **options}
    for consumer in (Consumer, AsyncConsumer):
        with pytest.raises(ConfigurationError, match=complaint):
            consumer(None, CursorStore(sqlite), **options)


def test_database_in_memory_is_refused_by_a_run():
    """A connection that all threads would share is refused."""
    memory = Consumer(None, CursorStore(create_engine("sqlite://")), NAME)
    with pytest.raises(ConfigurationError, match="in memory"):
        memory.run(write_page)
