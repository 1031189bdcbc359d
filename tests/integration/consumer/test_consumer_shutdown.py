"""However a run ends, nothing of it is left: no thread, no lease, no half of a page."""

import logging
import os
import signal
import threading
import time
from dataclasses import replace

import httpx
import pytest
from harness.billing import PATIENCE, Runner, landed, make_tables, shop, wait_until, write
from harness.shop import metadata, place
from harness.web import serving
from sqlalchemy import create_engine, text

from zeroeventhub import FIRST, Client, Consumer, CursorStore, Failures, Observer
from zeroeventhub.errors import Forbidden, StoreUnavailable, Unreachable

PARTITIONS = 3


@pytest.fixture
def feed(tmp_path):
    """The URL of a feed of 30 orders."""
    engine = create_engine(f"sqlite:///{tmp_path / 'publisher.db'}", connect_args={"timeout": 60})
    metadata.create_all(engine)
    with engine.begin() as connection:
        place(connection, 30, partitions=PARTITIONS)
    with serving(shop(engine, PARTITIONS)) as url:
        yield f"{url}/orders"
    engine.dispose()


@pytest.fixture
def http():
    """An HTTP client."""
    with httpx.Client() as http:
        yield http


@pytest.fixture
def store(engine):
    """A store on each database, beside a table of effects."""
    store = CursorStore(engine)
    with engine.begin() as connection:
        make_tables(store, connection)
    return store


@pytest.fixture(autouse=True)
def no_threads_left():
    """Nothing that a run has started outlives it."""
    before = set(threading.enumerate())
    yield
    # The server's threads take a moment.
    assert [one for one in threading.enumerate() if one.name.startswith("billing")] == []
    wait_until(lambda: set(threading.enumerate()) <= before)


class Polling(Client):
    """A client of a feed that does not wait at its head."""

    def discover(self):
        info = super().discover()
        return replace(info, extensions=info.extensions - {"wait"})


def consumer(client, store, **options):
    """A consumer that follows."""
    return Consumer(client, store, "billing", **{"limit": 2, "poll_interval": 0.02, **options})


def leases(store):
    """Count the leases that are held."""
    held = text("SELECT count(*) FROM zeroeventhub_leases WHERE owner IS NOT NULL")
    with store.engine.connect() as connection:
        return connection.scalar(held)


def test_pages_at_hand_are_applied_to_their_ends(store, feed, http):
    """A run that is stopped commits what is being applied, and nothing behind it."""
    begun, done, going_on = [], [], threading.Event()

    def slow(connection, page):
        begun.append(page.partition)
        write(connection, page)
        going_on.wait(PATIENCE)
        done.append(page.partition)

    run = Runner(consumer(Polling(feed, http), store), slow)
    wait_until(lambda: begun)
    run.consumer.stop()
    time.sleep(0.1)
    assert run.is_running
    going_on.set()
    run.end()
    assert sorted(begun) == sorted(done)
    assert len(landed(store)) == 2 * len(done)
    assert leases(store) == 0


def test_page_that_is_on_its_way_is_waited_for(store, feed, http):
    """A run that ends leaves no request behind, and does nothing with its answer."""
    asked, fetched = threading.Event(), []

    class Slow(Polling):
        def fetch(self, partition, cursor, **options):
            if cursor != FIRST:
                asked.set()
                time.sleep(0.5)
            fetched.append(cursor)
            return super().fetch(partition, cursor, **options)

    def stop(connection, page):
        write(connection, page)
        assert asked.wait(PATIENCE)
        stopping.stop()

    stopping = consumer(Slow(feed, http), store, partitions=[0])
    stopping.run(stop)
    assert (len(fetched), len(landed(store))) == (2, 2)


def test_reading_ends_though_nobody_tells_it(store, feed, http):
    """A partition is not read on after a stop, even while the thread that leads the run sleeps."""

    def stop(connection, page):
        write(connection, page)
        stopping._was_stopped = True  # noqa: SLF001 - what a stop does before it wakes anybody

    stopping = consumer(Polling(feed, http), store, partitions=[0], lease=6.0)
    stopping.run(stop)
    assert len(landed(store)) == 2


def test_stop_wakes_whoever_pauses(store, feed, http):
    """A run that waits for its next look at the head ends at once."""
    run = Runner(consumer(Polling(feed, http), store, poll_interval=60))
    wait_until(lambda: len(landed(store)) == 30)
    time.sleep(0.2)
    started = time.monotonic()
    run.stop()
    assert time.monotonic() - started < 2


def test_stop_wakes_a_run_that_cannot_reach_the_feed(store, http):
    """A run that backs off before it has any partition ends at once."""
    waiting = threading.Event()

    class Waits(Observer):
        """Tells of a pause."""

        def waited(self, consumer, partition, error, seconds):
            assert (partition, type(error)) == (None, Unreachable)
            if seconds > 0.5:
                waiting.set()

    away = Client("http://127.0.0.1:1/orders", http)
    run = Runner(consumer(away, store, observer=Waits()))
    assert waiting.wait(PATIENCE)
    started = time.monotonic()
    run.stop()
    assert time.monotonic() - started < 0.5


def test_consumer_that_was_stopped_stays_stopped(store, feed, http):
    """A run that begins behind its stop reads nothing."""
    stopped = consumer(Client(feed, http), store)
    stopped.stop()
    Runner(stopped).end()
    assert list(stopped) == landed(store) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_a_run_behind_its_pages(sqlite, feed, http, number):
    """The first signal stops gently, and handlers are as they were before."""
    store, before = CursorStore(sqlite), signal.getsignal(number)
    with sqlite.begin() as connection:
        make_tables(store, connection)

    def interrupt(connection, page):
        write(connection, page)
        os.kill(os.getpid(), number)
        time.sleep(0.05)

    consumer(Polling(feed, http), store, concurrency=1).run(interrupt)
    assert len(landed(store)) == 2
    assert signal.getsignal(number) is before
    assert leases(store) == 0


class Refused(BaseException):
    """What nobody catches."""


def test_what_nobody_catches_comes_out_where_run_was_called(store, feed, http):
    """SystemExit and its like in apply end the run, and leave nothing of their page."""

    def refuse(connection, page):
        write(connection, page)
        raise Refused

    with pytest.raises(Refused):
        consumer(Polling(feed, http), store).run(refuse)
    assert (landed(store), leases(store)) == ([], 0)


def test_error_of_the_feed_ends_a_run(store, feed, http):
    """What only a person can mend is raised, behind the pages at hand."""

    class Closing(Polling):
        def fetch(self, partition, cursor, **options):
            if partition == 1:
                raise Forbidden("not for you")
            return super().fetch(partition, cursor, **options)

    with pytest.raises(Forbidden):
        consumer(Closing(feed, http), store).run(write)
    assert leases(store) == 0


def test_lease_that_cannot_be_given_back_is_logged(postgresql, feed, http, caplog):
    """What a run has ended in is raised, and not what went wrong behind it."""
    store = CursorStore(postgresql)
    with postgresql.begin() as connection:
        make_tables(store, connection)

    def destroy(connection, page):
        with postgresql.begin() as other:
            other.execute(text("ALTER TABLE zeroeventhub_leases RENAME TO gone"))
        raise Refused

    with pytest.raises(Refused), caplog.at_level(logging.WARNING, "zeroeventhub.consumer"):
        consumer(Polling(feed, http), store, partitions=[0]).run(destroy)
    (record,) = [one for one in caplog.records if "given back" in one.getMessage()]
    assert (record.consumer, record.partition) == ("billing", None)
    assert "zeroeventhub_leases" not in caplog.text


def test_log_names_the_partition_and_no_data(store, feed, http, caplog):
    """Each line has consumer and partition as fields, and nothing that a handler has said."""
    failed = set()

    def leak(connection, page):
        write(connection, page)
        if page.partition == 1 and not failed:
            failed.add(1)
            raise ValueError(f"secret {page.events}")

    with caplog.at_level(logging.DEBUG, "zeroeventhub.consumer"):
        consumer(Polling(feed, http), store, follow=False).run(leak)
    assert sorted(landed(store)) == list(range(30))
    (record,) = [one for one in caplog.records if "Trying again" in one.getMessage()]
    assert (record.consumer, record.partition) == ("billing", 1)
    assert "ValueError" in record.getMessage()
    assert "secret" not in caplog.text


def test_attempts_end_a_run_whose_store_is_away(postgresql, postgresql_url, feed, http):
    """A store that does not answer is tried as often as the feed, and then its error is raised."""
    with postgresql.begin() as connection:
        make_tables(CursorStore(postgresql), connection)
    options = {"options": "-c lock_timeout=50ms"}
    impatient = create_engine(postgresql_url, connect_args=options)
    with postgresql.connect() as blocking:
        blocking.execute(text("LOCK TABLE zeroeventhub_leases IN ACCESS EXCLUSIVE MODE"))
        with pytest.raises(StoreUnavailable):
            consumer(Polling(feed, http), CursorStore(impatient), attempts=2).run(write)
    impatient.dispose()
    assert landed(CursorStore(postgresql)) == []


def test_observer_that_raises_ends_the_run(store, feed, http):
    """An observer must not raise; one that does keeps nobody waiting."""

    class Broken(Observer):
        """Raises where a partition halts."""

        def halted(self, consumer, partition, error):
            raise ZeroDivisionError

    def refuse(connection, page):
        raise ValueError

    options = {"observer": Broken(), "failures": Failures(tries=1)}
    run = Runner(consumer(Polling(feed, http), store, **options), refuse)
    with pytest.raises(ZeroDivisionError):
        run.end()
    assert leases(store) == 0
