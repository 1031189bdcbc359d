"""Leases on every database: one holder at a time, fair shares, and no waiting for pages."""

import random
import threading
from dataclasses import replace

import pytest
from harness.stores import (
    NAME,
    at,
    beside,
    call,
    claim,
    enter,
    expire,
    leave,
    load,
    move,
    new_store,
    outcome,
    release,
)
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from zeroeventhub import Event
from zeroeventhub.consumer.store import leases
from zeroeventhub.databases.error_codes import is_transient
from zeroeventhub.errors import ConfigurationError, LeaseLost, StoreUnavailable

ALL = (0, 1, 2, 3, 4)
LOCK_WAIT = {"postgresql": "SET lock_timeout = '2s'", "mariadb": "SET innodb_lock_wait_timeout = 2"}


def test_lease_is_renewed_by_claiming(store):
    """A claim moves the end of a lease, as the others see it."""
    claim(store, "one", ALL, seconds=10)
    before = claim(store, "two", ALL).elsewhere
    claim(store, "one", ALL, seconds=20)
    after = claim(store, "two", ALL).elsewhere
    assert all(9 < after[number] - before[number] < 20 for number in ALL)


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


def test_leases_of_others_cannot_be_given_back(store):
    """Neither a zombie nor another consumer touches what a process has taken over."""
    claim(store, "one", ALL)
    expire(store, "one")
    claim(store, "two", ALL)
    release(store, "one", ALL)
    leave(store, "one")
    found = call(store, store.leases.claim, "two", ALL, seconds=30, share=True, name="audit")
    assert (found.held, found.elsewhere) == (set(ALL), {})
    call(store, store.leases.leave, "two", name="audit")
    place = enter(store, 0, "two")
    assert place.epoch == 1
    assert claim(store, "two", ALL).surplus == set()


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
def test_name_of_a_process_fits_its_column(any_store, owner):
    """A name that is empty, or would be cut, is refused."""
    with pytest.raises(ConfigurationError):
        claim(any_store, owner, ALL)


def test_claim_does_not_wait_for_a_page(leveled_store):
    """While pages are applied, and events set aside, leases are renewed and taken."""
    store = leveled_store
    limit = text(LOCK_WAIT[store.engine.dialect.name])
    place, other, letter = load(store, 0), load(store, 1), Event.of({})
    claim(store, "one", (0, 1))
    with store.engine.connect() as page, store.engine.connect() as lane:
        store.advance(page, NAME, 0, place, "a")
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
    monkeypatch.setattr(leases, "LONGEST_CLAIM", 0.2)
    with store.engine.connect() as frozen:
        store.leases.claim(frozen, NAME, "one", ALL, seconds=30, share=True)
        assert claim(store, "two", ALL).held == set(ALL)
        with pytest.raises(DBAPIError) as ended:
            frozen.execute(text("SELECT 1"))
        assert is_transient(ended.value)


@pytest.mark.parametrize("count", range(1, 7))
def test_shares_are_all_partitions_and_differ_by_one(count):
    """Each member's share is the others' or one more, and no partition is left or shared twice."""
    members = list("abcdef")[:count]
    for partitions in range(12):
        shares = [leases.fair_share(members, owner, partitions) for owner in members]
        assert (sum(shares), max(shares) - min(shares) <= 1) == (partitions, True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_claims_come_to_rest_in_fair_shares(any_store, seed):
    """From whatever processes have held, claims in any order end in shares that differ by one."""
    store, chance = any_store, random.Random(seed)
    partitions, owners = range(chance.randint(1, 9)), list("abcdef"[: chance.randint(2, 6)])
    for owner in owners:
        wanted = [number for number in partitions if chance.random() < 0.5]
        claim(store, owner, wanted, share=False)
    held, before = {}, None
    for _ in range(4):
        before = dict(held)
        chance.shuffle(owners)
        for owner in owners:
            found = claim(store, owner, partitions)
            assert claim(store, owner, partitions).surplus == found.surplus
            release(store, owner, found.surplus)
            held[owner] = found.held - found.surplus
    assert held == before
    assert sorted(number for mine in held.values() for number in mine) == [*partitions]
    shares = [len(mine) for mine in held.values()]
    assert max(shares) - min(shares) <= 1
    last, *gone = owners
    assert claim(store, last, partitions).elsewhere.keys() == set(partitions) - held[last]
    for owner in gone:
        leave(store, owner)
    assert claim(store, last, partitions).held == set(partitions)


def race(store, owner, holders, guard):
    """Take partitions and give them back, as the only one that holds them; raise what stays."""
    chance = random.Random(owner)
    for _ in range(8):
        try:
            found = claim(store, owner, ALL)
            with guard:
                assert {holders.setdefault(one, owner) for one in found.held} <= {owner}
            given = set(found.surplus) | {one for one in found.held if chance.random() < 0.2}
            for partition in found.held - given:
                move(store, partition, enter(store, partition, owner), owner)
            with guard:
                for partition in given:
                    holders.pop(partition, None)
            release(store, owner, given)
        except Exception as error:
            if not is_transient(error):
                raise


def test_no_two_processes_hold_a_partition(store):
    """Processes that take partitions and give them back at the same moments never overlap."""
    holders, guard = {}, threading.Lock()
    racers = [beside(race, store, f"p{number}", holders, guard) for number in range(4)]
    assert [outcome(racer) for racer in racers] == [None] * 4
