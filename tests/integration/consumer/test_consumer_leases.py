"""Processes of one name share a feed's partitions: by leases that the store's clock keeps."""

import multiprocessing
import os
import signal
import threading
import time

import httpx
import pytest
from harness.billing import (
    PATIENCE,
    Impatient,
    Runner,
    Watch,
    kill,
    landed,
    make_tables,
    shop,
    wait_until,
    work,
    workers,
)
from harness.shop import metadata, place
from harness.web import serving
from sqlalchemy import create_engine

from zeroeventhub import Consumer, CursorStore, Observer

PARTITIONS = 4
LEASE = 0.9
LONG = 300.0
"""Seconds of a lease that nobody waits for."""


@pytest.fixture
def publisher(tmp_path):
    """The publisher's engine, with 20 orders in its table."""
    engine = create_engine(f"sqlite:///{tmp_path / 'publisher.db'}", connect_args={"timeout": 60})
    metadata.create_all(engine)
    with engine.begin() as connection:
        place(connection, 20, partitions=PARTITIONS)
    yield engine
    engine.dispose()


@pytest.fixture
def feed(publisher):
    """The URL of the publisher's feed."""
    with serving(shop(publisher, PARTITIONS)) as url:
        yield f"{url}/orders"


@pytest.fixture
def client(feed):
    """A client of the publisher's feed."""
    with httpx.Client() as http:
        yield Impatient(feed, http)


@pytest.fixture
def store(engine):
    """A store on each database, beside a table of effects."""
    store = CursorStore(engine)
    with engine.begin() as connection:
        make_tables(store, connection)
    return store


def consumer(client, store, **options):
    """A consumer that follows, and renews its leases often."""
    chosen = {"lease": LEASE, "poll_interval": 0.02, "limit": 2, **options}
    return Consumer(client, store, "billing", **chosen)


def follower(client, store, **options):
    """Run a consumer that follows, and watch it."""
    watch = Watch()
    return Runner(consumer(client, store, observer=watch, **options)), watch


def test_consumers_share_partitions_and_share_again(client, store, publisher):
    """Who comes is given a share, and what somebody leaves behind is shared by those who stay."""
    first, held_by_first = follower(client, store)
    wait_until(lambda: len(held_by_first.leases) == 4)
    second, held_by_second = follower(client, store)
    wait_until(lambda: len(held_by_first.leases) == len(held_by_second.leases) == 2)
    assert held_by_first.leases.isdisjoint(held_by_second.leases)
    with publisher.begin() as connection:
        place(connection, 8, first=20, partitions=PARTITIONS)
    wait_until(lambda: len(landed(store)) == 28)
    first.stop()
    assert held_by_first.leases == set()
    wait_until(lambda: len(held_by_second.leases) == 4)
    with publisher.begin() as connection:
        place(connection, 8, first=28, partitions=PARTITIONS)
    wait_until(lambda: len(landed(store)) == 36)
    second.stop()
    assert sorted(landed(store)) == list(range(36))


def test_lease_is_given_back_at_the_end(client, store, publisher):
    """The next process reads on at once, however long the leases of the last one were."""
    first, watch = follower(client, store, lease=LONG)
    wait_until(lambda: len(landed(store)) == 20)
    first.stop()
    with publisher.begin() as connection:
        place(connection, 4, first=20, partitions=PARTITIONS)
    Runner(consumer(client, store, lease=LONG, follow=False)).end()
    assert sorted(landed(store)) == list(range(24))
    assert watch.fences == 0


def test_lease_is_given_back_by_a_run_that_fails(client, store):
    """What a run ends in does not keep others waiting."""

    def explode(connection, page):
        raise SystemExit

    run = Runner(consumer(client, store, lease=LONG), explode)
    with pytest.raises(SystemExit):
        run.end()
    Runner(consumer(client, store, lease=LONG, follow=False)).end()
    assert sorted(landed(store)) == list(range(20))


def test_run_to_the_head_leaves_alone_what_a_living_process_reads(client, store, publisher):
    """A run that does not follow ends when what is left is read by somebody who is alive."""
    living, watch = follower(client, store, lease=1.5, partitions=range(PARTITIONS))
    wait_until(lambda: len(watch.leases) == 4 and len(landed(store)) == 20)
    Runner(consumer(client, store, follow=False)).end()
    assert living.is_running
    assert len(watch.leases) == 4
    living.stop()


def test_run_to_the_head_takes_over_from_a_process_that_died(client, store):
    """A run that does not follow waits for the leases of somebody who shows no sign of life."""
    with store.engine.begin() as connection:
        dead = store.leases.claim(
            connection, "billing", "dead", range(PARTITIONS), seconds=1.0, share=True
        )
    assert dead.held == set(range(PARTITIONS))
    Runner(consumer(client, store, follow=False)).end()
    assert sorted(landed(store)) == list(range(20))


def test_pinned_consumers_read_what_they_name(client, store):
    """Who names partitions reads those, and takes no part in the sharing of others."""
    pinned, held_by_pinned = follower(client, store, partitions=[1, 2])
    wait_until(lambda: held_by_pinned.leases == {1, 2})
    free, held_by_free = follower(client, store)
    wait_until(lambda: held_by_free.leases == {0, 3})
    wait_until(lambda: len(landed(store)) == 20)
    pinned.stop()
    wait_until(lambda: held_by_free.leases == {0, 1, 2, 3})
    free.stop()
    assert sorted(landed(store)) == list(range(20))


@pytest.fixture
def start(feed, database_url, tmp_path):
    """Start a consumer in a process of its own, as often as asked; all are killed in the end."""
    processes = []

    def begin(worker, **options):
        arguments = (feed, database_url, str(tmp_path), worker)
        chosen = {"lease": LEASE, "poll_interval": 0.02, "limit": 2, **options}
        process = multiprocessing.get_context("spawn").Process(
            target=work, args=arguments, kwargs=chosen, daemon=True
        )
        process.start()
        processes.append(process)
        return process

    yield begin
    for process in processes:
        kill(process)


def test_partitions_of_a_killed_process_are_taken_over(client, store, start, tmp_path):
    """What a process was reading when it was killed is read by another when its leases end."""
    process = start("victim", waits=True)
    wait_until((tmp_path / "victim-applies").exists)
    kill(process)
    Runner(consumer(client, store, follow=False)).end()
    assert sorted(landed(store)) == list(range(20))


def test_process_that_was_stopped_past_its_lease_is_fenced(client, store, start, tmp_path):
    """A zombie that goes on leaves nothing behind, and then works again beside the others."""
    zombie = start("zombie", waits=True, concurrency=1)
    wait_until((tmp_path / "zombie-applies").exists)
    os.kill(zombie.pid, signal.SIGSTOP)
    Runner(consumer(client, store, follow=False)).end()
    assert sorted(landed(store)) == list(range(20))
    (tmp_path / "go").touch()
    os.kill(zombie.pid, signal.SIGCONT)
    wait_until((tmp_path / "zombie-fenced").exists)
    kill(zombie, signal.SIGTERM)
    assert zombie.exitcode == 0
    assert sorted(landed(store)) == list(range(20))
    assert "zombie" not in workers(store).values()


def test_epoch_fences_before_the_cursor_has_moved(client, store, start, tmp_path):
    """Who has taken over need not have committed anything for a zombie to be refused."""
    zombie = start("zombie", waits=True, partitions=[0])
    wait_until((tmp_path / "zombie-applies").exists)
    os.kill(zombie.pid, signal.SIGSTOP)
    fenced, entered = tmp_path / "zombie-fenced", threading.Event()

    class Patient(Observer):
        """Applies nothing before the zombie is fenced."""

        def applying(self, consumer, partition, events):
            entered.set()
            wait_until(fenced.exists)
            return super().applying(consumer, partition, events)

    options = {"follow": False, "partitions": [0], "observer": Patient()}
    run = Runner(consumer(client, store, **options))
    assert entered.wait(PATIENCE)
    (tmp_path / "go").touch()
    os.kill(zombie.pid, signal.SIGCONT)
    run.end()
    kill(zombie, signal.SIGTERM)
    assert landed(store) == list(range(0, 20, 4))
    assert "zombie" not in workers(store).values()


def test_process_ends_by_sigterm_and_hands_over(client, store, start, publisher):
    """A process that is asked to end does so with exit code 0, and its leases are free at once."""
    process = start("first", lease=LONG)
    wait_until(lambda: len(landed(store)) == 20)
    started = time.monotonic()
    kill(process, signal.SIGTERM)
    assert (process.exitcode, time.monotonic() - started < 10) == (0, True)
    with publisher.begin() as connection:
        place(connection, 4, first=20, partitions=PARTITIONS)
    Runner(consumer(client, store, lease=LONG, follow=False)).end()
    assert sorted(landed(store)) == list(range(24))
