"""Partition beside partition, and the next page fetched while this one is applied."""

import threading
import time
import weakref
from collections import Counter
from itertools import pairwise

import httpx
import pytest
from harness.billing import (
    PATIENCE,
    Runner,
    landed,
    make_tables,
    shop,
    wait_until,
    write,
)
from harness.shop import metadata, place
from harness.web import serving
from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

from zeroeventhub import Client, Consumer, CursorStore, Failures, Observer
from zeroeventhub.errors import ConfigurationError, Halted, Unreachable

PARTITIONS = 4


@pytest.fixture
def publisher(tmp_path):
    """The publisher's engine, with 40 orders in its table."""
    engine = create_engine(f"sqlite:///{tmp_path / 'publisher.db'}", connect_args={"timeout": 60})
    metadata.create_all(engine)
    with engine.begin() as connection:
        place(connection, 40, partitions=PARTITIONS)
    yield engine
    engine.dispose()


@pytest.fixture
def feed(publisher):
    """The URL of the publisher's feed."""
    with serving(shop(publisher, PARTITIONS)) as url:
        yield f"{url}/orders"


@pytest.fixture
def http():
    """An HTTP client."""
    with httpx.Client() as http:
        yield http


@pytest.fixture
def store(engine):
    """A store on each database, beside a table of effects."""
    return prepared(engine)


@pytest.fixture
def parallel_store(postgresql):
    """A store on a database with several writers."""
    return prepared(postgresql)


def prepared(engine):
    """Make a store, and its tables beside a table of effects."""
    store = CursorStore(engine)
    with engine.begin() as connection:
        make_tables(store, connection)
    return store


@pytest.fixture(autouse=True)
def no_threads_left():
    """Nothing that a run has started outlives it."""
    before = set(threading.enumerate())
    yield
    wait_until(lambda: set(threading.enumerate()) <= before)


def consumer(client, store, **options):
    """A consumer that ends at the head."""
    return Consumer(client, store, "billing", **{"follow": False, "limit": 3, **options})


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_partitions_are_applied_side_by_side(request, database, feed, http):
    """As many partitions as concurrency says are in apply at the same moment."""
    store = prepared(request.getfixturevalue(database))
    meeting = threading.Barrier(PARTITIONS)
    met = set()

    def meet(connection, page):
        write(connection, page)
        if page.partition not in met:
            met.add(page.partition)
            meeting.wait(PATIENCE)

    consumer(Client(feed, http), store, concurrency=PARTITIONS).run(meet)
    assert met == set(range(PARTITIONS))
    assert sorted(landed(store)) == list(range(40))


def test_sqlite_is_written_by_one_at_a_time(sqlite, feed, http):
    """No partition waits for SQLite's lock while another one's transaction is open."""
    store, inside, most = prepared(sqlite), Counter(), Counter()

    def watch(connection, page):
        inside["now"] += 1
        most["ever"] = max(most["ever"], inside["now"])
        time.sleep(0.01)
        write(connection, page)
        inside["now"] -= 1

    class Entering(Observer):
        """Counts who is about to open a transaction."""

        def applying(self, consumer, partition, events):
            assert inside["now"] == 0
            return super().applying(consumer, partition, events)

    consumer(Client(feed, http), store, observer=Entering()).run(watch)
    assert (most["ever"], sorted(landed(store))) == (1, list(range(40)))


class Fetches(Client):
    """A client that knows what was asked for."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.cursors = []

    def fetch(self, partition, cursor, **options):
        self.cursors.append((partition, cursor))
        return super().fetch(partition, cursor, **options)


def test_next_page_is_fetched_while_this_one_is_applied(store, feed, http):
    """The feed is asked for the next page before the first one's transaction ends, and once."""
    client = Fetches(feed, http)

    def hold(connection, page):
        write(connection, page)
        if len(page.events) == 3:
            wait_until(lambda: (page.partition, page.cursor) in client.cursors)

    consumer(client, store, partitions=[0]).run(hold)
    assert landed(store) == list(range(0, 40, 4))
    assert len(client.cursors) == len(set(client.cursors))


def test_page_that_was_fetched_ahead_is_dropped_where_the_cursor_moved(store, feed, http):
    """What was fetched behind a page that was fenced is not taken for what follows."""
    client, moved = Fetches(feed, http), []

    class Operator(Observer):
        """Sets the cursor back by a page, once, while a page is at hand."""

        def applying(self, consumer, partition, events):
            if events[0].data["n"] == 24 and not moved:
                moved.append(True)
                with store.engine.begin() as connection:
                    store.set(connection, "billing", 0, client.cursors[1][1])
            return super().applying(consumer, partition, events)

    consumer(client, store, partitions=[0], observer=Operator()).run(write)
    assert landed(store) == [*range(0, 24, 4), *range(12, 40, 4)]
    # The page behind the one that was fenced came ahead, and once more in its turn.
    assert [Counter(client.cursors)[0, cursor] for _, cursor in client.cursors[:4]] == [1, 2, 2, 2]


def test_error_of_a_page_that_was_fetched_ahead_is_tried_again(store, feed, http):
    """What went wrong ahead is waited out as if it had gone wrong in its turn."""

    class Failing(Fetches):
        def fetch(self, partition, cursor, **options):
            page = super().fetch(partition, cursor, **options)
            if len(self.cursors) == 2:
                raise Unreachable("away")
            return page

    client = Failing(feed, http)
    consumer(client, store, partitions=[0]).run(write)
    assert landed(store) == list(range(0, 40, 4))
    assert client.cursors[1] == client.cursors[2]


class Counted(Client):
    """A client that counts requests at the same time, and pages that are held."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.lock = threading.Lock()
        self.now, self.most = Counter(), Counter()

    def count(self, what, number):
        with self.lock:
            self.now[what] += number
            self.most[what] = max(self.most[what], self.now[what])

    def fetch(self, partition, cursor, **options):
        self.count("requests", 1)
        # Room is taken before the page is there.
        self.count("pages", 1)
        try:
            page = super().fetch(partition, cursor, **options)
        finally:
            self.count("requests", -1)
        weakref.finalize(page, self.count, "pages", -1)
        return page


def test_more_partitions_than_concurrency_take_turns(parallel_store, publisher, http):
    """No more than so many are fetched or applied, no more pages are held, and all are read."""
    partitions, concurrency = 10, 2
    with publisher.begin() as connection:
        place(connection, 200, first=40, partitions=partitions)
    with serving(shop(publisher, partitions)) as url:
        client = Counted(f"{url}/orders", http)

        def slow(connection, page):
            client.count("applies", 1)
            time.sleep(0.01)
            write(connection, page)
            client.count("applies", -1)

        consumer(client, parallel_store, concurrency=concurrency).run(slow)
    assert sorted(landed(parallel_store)) == list(range(240))
    assert client.most["applies"] == concurrency
    assert client.most["requests"] <= concurrency
    assert client.most["pages"] <= 2 * concurrency


@pytest.mark.parametrize("concurrency", [1, PARTITIONS])
def test_memory_holds_two_pages_for_each_partition_that_is_worked_on(
    store, feed, http, concurrency
):
    """The page that is applied and the one behind it, and no third, whatever fails."""
    client, failures = Counted(feed, http), Counter()

    def often_fail(connection, page):
        write(connection, page)
        if page.events[0].data["n"] % 3 == 0 and failures[page.cursor] < 2:
            failures[page.cursor] += 1
            raise ZeroDivisionError

    consumer(client, store, concurrency=concurrency, limit=2).run(often_fail)
    assert sorted(landed(store)) == list(range(40))
    assert failures
    # Without room for all, no page is fetched ahead.
    assert client.most["pages"] <= 2 * concurrency
    assert client.most["pages"] > concurrency or concurrency < PARTITIONS


def test_turns_are_fair(parallel_store, feed, http):
    """A partition with much to read lets others read after a second, and holds no page then."""
    client, order, held = Counted(feed, http), [], []

    def slow(connection, page):
        order.append(page.partition)
        held.append(client.now["pages"])
        time.sleep(0.15)

    options = {"concurrency": 1, "limit": 1, "partitions": [0, 1]}
    consumer(client, parallel_store, **options).run(slow)
    changes = sum(one != other for one, other in pairwise(order))
    assert Counter(order) == {0: 10, 1: 10}
    assert 2 <= changes <= 8
    # Later, only one of them is left, and has room to fetch ahead.
    assert held[:10] == [1] * 10


def test_halted_partition_leaves_the_others_running(store, feed, http):
    """The others are read to their ends; then the halted one comes out, with its cause."""

    def refuse(connection, page):
        write(connection, page)
        if page.partition == 2:
            raise ZeroDivisionError

    halting = consumer(Client(feed, http), store, failures=Failures(tries=2))
    with pytest.raises(Halted, match="Partition 2") as halted:
        halting.run(refuse)
    assert isinstance(halted.value.__cause__, ZeroDivisionError)
    assert halted.value.partition == 2
    assert sorted(landed(store)) == [n for n in range(40) if n % 4 != 2]
    consumer(Client(feed, http), store).run(write)
    assert sorted(landed(store)) == list(range(40))


def test_database_in_memory_is_refused(feed, http):
    """A connection that all threads would share is refused; iteration does with one."""
    for options in ({}, {"poolclass": StaticPool}):
        store = prepared(create_engine("sqlite://", **options))
        with pytest.raises(ConfigurationError, match="in memory"):
            consumer(Client(feed, http), store).run(write)
        for page in consumer(Client(feed, http), store):
            with store.engine.begin() as connection:
                page.commit(connection)
                write(connection, page)
        assert sorted(landed(store)) == list(range(40))
        store.engine.dispose()


def test_iteration_is_beside_a_run(store, feed, http):
    """A loop of one's own needs no lease, and fences and is fenced like any other."""
    pages = iter(consumer(Client(feed, http), store, partitions=[0]))
    first = next(pages)
    Runner(consumer(Client(feed, http), store)).end()
    with pytest.raises(Exception, match="roll back"), store.engine.begin() as connection:
        first.commit(connection)
    assert list(pages) == []
