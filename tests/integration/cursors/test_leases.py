"""Leases on every database: one holder at a time, fair shares, and no waiting for pages."""

import random
import threading
from dataclasses import replace

import httpx
import pytest
from harness.stores import (
    NAME,
    at,
    beside,
    call,
    claim,
    enter,
    expire,
    load,
    move,
    new_store,
    outcome,
)
from harness.web import serving
from sqlalchemy import create_engine, event, select, text
from sqlalchemy.exc import DBAPIError
from starlette.applications import Starlette

from zeroeventhub import (
    FIRST,
    Client,
    Consumer,
    CursorStore,
    Event,
    FeedInfo,
    Page,
    Partition,
    feed_routes,
)
from zeroeventhub.cursors import leases
from zeroeventhub.cursors.transience import is_transient
from zeroeventhub.errors import ConfigurationError, LeaseLost, StoreUnavailable

ALL = (0, 1, 2, 3, 4)
LOCK_WAIT = {
    "postgresql": "SET lock_timeout = '2s'",
    "mariadb": "SET innodb_lock_wait_timeout = 2",
}


def release(store, owner, partitions):
    """Give leases back."""
    call(store, store.leases.release, owner, partitions)


def leave(store, owner):
    """Give all leases back, and share no longer."""
    call(store, store.leases.leave, owner)


def test_partitions_are_divided_when_processes_come_and_go(store):
    """A surplus is named; what is given back, or has run out, goes to the other processes."""
    claim(store, "one", ALL)
    second = claim(store, "two", ALL)
    assert (second.held, second.surplus) == (frozenset(), frozenset())
    assert second.elsewhere.keys() == set(ALL)
    first = claim(store, "one", ALL)
    assert (first.held, first.surplus) == (set(ALL), {3, 4})
    assert claim(store, "one", ALL).surplus == {3, 4}
    release(store, "one", {3, 4})
    second = claim(store, "two", ALL)
    assert (second.held, second.surplus, set(second.elsewhere)) == ({3, 4}, set(), {0, 1, 2})
    expire(store, "one")
    assert claim(store, "two", ALL).held == set(ALL)
    leave(store, "two")
    assert claim(store, "one", ALL).held == set(ALL)


def test_lease_is_renewed_by_claiming(store):
    """A claim moves the end of a lease, as the others see it, and renews one that has run out."""
    claim(store, "one", ALL, seconds=10)
    before = claim(store, "two", ALL).elsewhere
    claim(store, "one", ALL, seconds=20)
    after = claim(store, "two", ALL).elsewhere
    assert all(9 < after[number] - before[number] < 20 for number in ALL)
    leave(store, "two")
    expire(store, "one")
    renewed = claim(store, "one", ALL)
    assert (renewed.held, renewed.surplus) == (set(ALL), set())


def test_claim_tells_the_epochs_of_what_it_holds(store):
    """By them a process sees at the head that an operator has put a cursor elsewhere."""
    assert claim(store, "one", (0, 1)).epochs == {}
    enter(store, 0, "one")
    load(store, 7)
    assert claim(store, "one", (0, 1)).epochs == {0: 1}
    call(store, store.reset)
    assert claim(store, "one", (0, 1)).epochs == {0: 2}


def test_lease_that_has_run_out_lets_no_process_in(store):
    """Only a holder of a lease by the database's clock enters, and a refusal fences no process."""
    with pytest.raises(LeaseLost):
        enter(store, 0, "one")
    claim(store, "one", [0, 1])
    first = enter(store, 0, "one")
    for owner, partition in [("two", 0), ("ONE", 0), ("one", 2)]:
        with pytest.raises(LeaseLost):
            enter(store, partition, owner)
    expire(store, "one")
    with pytest.raises(LeaseLost):
        enter(store, 0, "one")
    assert load(store, 0) == first
    claim(store, "one", [0, 1])
    assert enter(store, 0, "one") == replace(first, epoch=first.epoch + 1)


def test_lease_is_taken_over_when_it_has_run_out_and_not_before(store):
    """A lease of any length is another's until its end, and free from then on."""
    claim(store, "one", ALL, seconds=20)
    assert claim(store, "two", ALL, seconds=0.001).elsewhere.keys() == set(ALL)
    assert claim(store, "three", ALL, seconds=1000).held == set()
    expire(store, "one", "two")
    assert claim(store, "three", ALL).held == set(ALL)


class Family:
    """Publish two events of a parent that is closed, and two of its child."""

    def info(self):
        """Describe the feed."""
        return FeedInfo((Partition(0, closed=True), Partition(1, starts_after=0)), "1")

    def read(self, partition, cursor, limit):
        """Read what follows a cursor."""
        if cursor == FIRST:
            return Page([Event.of(10 * partition + n) for n in (1, 2)], "end")
        return Page([], cursor)


def test_child_waits_for_its_parent_where_a_reset_comes_in_between(sqlite, sqlite_url):
    """A reset between the child's lease and its first page has the parent read again first."""
    store, operator = new_store(sqlite), CursorStore(create_engine(sqlite_url))
    applied, resets = [], []

    @event.listens_for(sqlite, "begin")
    def reset_once(_):
        standings = call(operator, operator.standings)
        columns = store.tables.leases.c
        with operator.engine.connect() as connection:
            owner = connection.scalar(select(columns.owner).where(columns.partition == 1))
        if not resets and owner is not None and any(one.ended for one in standings):
            resets.append(call(operator, operator.reset))

    application = Starlette(routes=feed_routes("/family", Family()))
    with serving(application) as url, httpx.Client() as http:
        consumer = Consumer(Client(f"{url}/family", http), store, NAME, follow=False, lease=1)
        consumer.run(lambda _, page: applied.extend(one.data for one in page.events))
    operator.engine.dispose()
    assert len(resets) == 1
    assert applied == [1, 2, 1, 2, 11, 12]


def test_leases_of_others_cannot_be_given_back(store):
    """Neither a zombie's release nor its leaving touches what another process has taken over."""
    claim(store, "one", ALL)
    expire(store, "one")
    claim(store, "two", ALL)
    release(store, "one", ALL)
    leave(store, "one")
    call(store, store.leases.leave, "two", name="audit")
    place = enter(store, 0, "two")
    assert place.epoch == 1
    assert claim(store, "two", ALL).surplus == set()


def test_consumers_do_not_share_with_each_other(store):
    """Leases of one consumer are nothing to another, of the same processes or not."""
    claim(store, "one", ALL)
    found = call(store, store.leases.claim, "two", ALL, seconds=30, share=True, name="audit")
    assert (found.held, found.elsewhere) == (set(ALL), {})


def test_pinned_process_takes_what_is_free_of_its_own(store):
    """A process pinned to partitions is no member, and the others divide the rest."""
    pinned = claim(store, "pinned", (0, 1, 2), share=False)
    assert (pinned.held, pinned.surplus) == ({0, 1, 2}, set())
    assert claim(store, "one", ALL).held == {3, 4}
    claim(store, "two", ALL)
    assert claim(store, "one", ALL).surplus == {4}
    release(store, "one", {4})
    assert claim(store, "two", ALL).held == {4}
    assert claim(store, "other", ALL, share=False).held == set()
    assert claim(store, "one", ALL).surplus == set()


@pytest.mark.parametrize("owner", ["", "x" * 201])
def test_name_of_a_process_fits_its_column(store, owner):
    """A name that is empty, or would be cut, is refused."""
    with pytest.raises(ConfigurationError):
        claim(store, owner, ALL)


def test_claim_does_not_wait_for_a_page(leveled_store):
    """While pages are applied, and events set aside, leases are renewed and taken."""
    store = leveled_store
    limit = text(LOCK_WAIT[store.engine.dialect.name])
    place, other, letter = load(store, 0), load(store, 1), Event.of({})
    claim(store, "one", (0, 1))
    with store.engine.connect() as page, store.engine.connect() as lane:
        page.execute(store.move(NAME, 0, place, "a"))
        add = store.dead_letters.add
        add(page, NAME, 0, letter, key="k", error=ValueError(), tries=1)
        add(page, NAME, 0, letter, key="k", error=None, tries=0)
        store.lanes.advance(lane, NAME, 1, other, lane=0, lanes=2, before=0, after=1)
        with store.engine.begin() as connection:
            connection.execute(limit)
            found = store.leases.claim(connection, NAME, "one", (0, 1), seconds=30, share=True)
        assert found.held == {0, 1}
        with store.engine.begin() as connection:
            connection.execute(limit)
            store.leases.release(connection, NAME, "one", {0})
        page.commit()
        lane.commit()


def test_claim_in_an_older_snapshot_takes_nothing_of_others(leveled_store):
    """A transaction that saw leases free which are taken by now does not take them too."""
    store = leveled_store
    claim(store, "one", ALL)
    leave(store, "one")
    with store.engine.connect() as connection:
        connection.execute(select(store.tables.leases.c.partition)).all()
        # Where readers lock, the rival does not even get there.
        locked = store.engine.dialect.name == "mariadb" and (
            connection.get_isolation_level() == "SERIALIZABLE"
        )
        if not locked:
            claim(at(store, "READ COMMITTED"), "two", ALL)
        try:
            found = store.leases.claim(connection, NAME, "one", ALL, seconds=30, share=True)
            connection.commit()
            assert found.held == (set(ALL) if locked else set())
        except (DBAPIError, StoreUnavailable) as error:
            assert is_transient(error)  # noqa: PT017 - or there is none
            connection.rollback()
    if not locked:
        assert claim(store, "two", ALL).held == set(ALL)


def test_claim_that_has_stalled_is_ended_for_the_others(postgresql, monkeypatch):
    """A process that freezes within a claim does not keep the others from their leases."""
    store = new_store(postgresql)
    monkeypatch.setattr(leases, "LONGEST_TURN", 0.2)
    with store.engine.connect() as frozen:
        store.leases.claim(frozen, NAME, "one", ALL, seconds=30, share=True)
        assert claim(store, "two", ALL).held == set(ALL)
        with pytest.raises(DBAPIError) as ended:
            frozen.execute(text("SELECT 1"))
        assert is_transient(ended.value)


class Racers:
    """Processes that claim, enter, commit and release at the same moments.

    Attributes:
        defects: what should not have happened.
    """

    def __init__(self, store):
        self.store = store
        self.defects = []
        self._holders = {}
        self._guard = threading.Lock()

    def work(self, owner, rounds):
        """Do what a process does, so many times."""
        chance = random.Random(owner)
        for _ in range(rounds):
            try:
                self._round(owner, chance)
            except Exception as error:  # noqa: BLE001 - looked at behind the threads
                if not is_transient(error):
                    self.defects.append(error)

    def _round(self, owner, chance):
        found = claim(self.store, owner, ALL)
        with self._guard:
            for partition in found.held:
                holder = self._holders.setdefault(partition, owner)
                if holder != owner:
                    self.defects.append(f"{owner} and {holder} hold partition {partition}")
        given = set(found.surplus) | {one for one in found.held if chance.random() < 0.2}
        for partition in found.held - given:
            move(self.store, partition, enter(self.store, partition, owner), f"{owner}")
        with self._guard:
            for partition in given:
                self._holders.pop(partition, None)
        release(self.store, owner, given)


@pytest.mark.parametrize("rounds", [8, pytest.param(40, marks=pytest.mark.test_all)])
def test_no_two_processes_hold_a_partition(store, rounds):
    """Processes that take partitions and give them back at the same moments never overlap."""
    racers = Racers(store)
    for racer in [beside(racers.work, f"p{number}", rounds) for number in range(4)]:
        assert outcome(racer) is None
    assert not racers.defects
