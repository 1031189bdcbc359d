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
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import create_engine, delete, event, select, text
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
from zeroeventhub.errors import ConfigurationError, Fenced, LeaseLost, StoreUnavailable

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


def test_process_that_is_alone_reads_everything(store):
    """One process takes all partitions, and none that it did not ask for."""
    assert claim(store, "one", ALL).held == set(ALL)
    assert claim(store, "one", (0, 1)).held == set(ALL)
    assert claim(store, "one", (0, 9)).held == {*ALL, 9}


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
    """Processes that claim, enter, commit, release and leave at the same moments.

    Args:
        store: what they share.
        seed: decides what each does.

    Attributes:
        defects: what should not have happened.
        transient: errors that had to be tried again.
    """

    def __init__(self, store, seed):
        self.store = store
        self.seed = seed
        self.defects = []
        self.transient = []
        self._holders = {}
        self._guard = threading.Lock()

    def run(self, count, rounds):
        """Let so many of them work for so many rounds each."""
        racers = [beside(self._work, f"p{number}", rounds) for number in range(count)]
        assert [outcome(racer) for racer in racers] == [None] * count

    def _work(self, owner, rounds):
        chance = random.Random(f"{self.seed} {owner}")
        for _ in range(rounds):
            try:
                self._round(owner, chance)
            except Fenced as error:
                self.defects.append(error)
            except Exception as error:  # noqa: BLE001 - looked at behind the threads
                (self.transient if is_transient(error) else self.defects).append(error)

    def _round(self, owner, chance):
        found = claim(self.store, owner, ALL)
        self._note(owner, found.held)
        given = set(found.surplus) | {one for one in found.held if chance.random() < 0.1}
        for partition in found.held - given:
            place = enter(self.store, partition, owner)
            move(self.store, partition, place, f"{owner} {chance.random()}")
        self._forget(owner, given)
        release(self.store, owner, given)
        if chance.random() < 0.1:
            self._forget(owner, ALL)
            leave(self.store, owner)

    def _note(self, owner, held):
        with self._guard:
            for partition in held:
                holder = self._holders.setdefault(partition, owner)
                if holder != owner:
                    self.defects.append(f"{owner} and {holder} hold partition {partition}")

    def _forget(self, owner, partitions):
        with self._guard:
            for partition in partitions:
                if self._holders.get(partition) == owner:
                    del self._holders[partition]


def race(store, seed, rounds):
    """Let processes race; return the errors that had to be tried again."""
    racers = Racers(store, seed)
    racers.run(4, rounds)
    assert not racers.defects, f"seed {seed}"
    return racers.transient


def test_no_two_processes_hold_a_partition(store):
    """Processes that come and go at the same moments never overlap."""
    race(store, seed=1, rounds=8)


@pytest.mark.test_all
def test_no_two_processes_hold_a_partition_at_any_level(leveled_store):
    """They never overlap at any level, and where statements see what is new they take turns."""
    transient = race(leveled_store, seed=random.randrange(2**32), rounds=40)
    with leveled_store.engine.connect() as connection:
        assert not transient or connection.get_isolation_level() != "READ COMMITTED"


class Sharing(RuleBasedStateMachine):
    """Processes that come, go, crash and come back, and what each may believe."""

    def __init__(self, store):
        super().__init__()
        self.store = store
        self.alive = set()
        self.held = {}
        with store.engine.begin() as connection:
            for table in (store.tables.leases, store.tables.members):
                connection.execute(delete(table))

    @rule(owner=st.sampled_from("abcd"))
    def claims(self, owner):
        """A process comes, or renews what it has."""
        found = claim(self.store, owner, ALL)
        self.alive.add(owner)
        self.held[owner] = set(found.held)
        assert found.surplus <= found.held
        elsewhere = {one for name in self.alive - {owner} for one in self.held[name]}
        assert set(found.elsewhere) == elsewhere
        assert not found.held & elsewhere

    @rule(owner=st.sampled_from("abcd"))
    def gives_the_surplus_back(self, owner):
        """A process claims and gives back what belongs to others."""
        self.claims(owner)
        surplus = claim(self.store, owner, ALL).surplus
        release(self.store, owner, surplus)
        self.held[owner] -= surplus

    @rule(owner=st.sampled_from("abcd"), partition=st.sampled_from(ALL))
    def gives_one_back(self, owner, partition):
        """A process gives a partition back, and it does not matter whether it has it."""
        release(self.store, owner, [partition])
        if owner in self.alive:
            self.held[owner].discard(partition)

    @rule(owner=st.sampled_from("abcd"))
    def leaves(self, owner):
        """A process ends as it should."""
        leave(self.store, owner)
        self.alive.discard(owner)

    @rule(owner=st.sampled_from("abcd"))
    def is_gone_for_long(self, owner):
        """A process is killed or frozen until its leases have run out."""
        expire(self.store, owner)
        self.alive.discard(owner)

    @rule()
    def come_to_rest(self):
        """When no process comes or goes, everything is divided fairly after three rounds."""
        for _ in range(3):
            for owner in sorted(self.alive):
                self.gives_the_surplus_back(owner)
        if self.alive:
            counts = [len(self.held[owner]) for owner in self.alive]
            assert sum(counts) == len(ALL)
            assert max(counts) - min(counts) <= 1

    @invariant()
    def has_one_live_holder(self):
        """What the table says is what each living process believes."""
        columns = self.store.tables.leases.c
        query = select(columns.partition, columns.owner).where(columns.expires_at > 2)
        with self.store.engine.connect() as connection:
            found = {(row.owner, row.partition) for row in connection.execute(query)}
        assert found == {(name, one) for name in self.alive for one in self.held[name]}


@pytest.mark.parametrize("histories", [10, pytest.param(100, marks=pytest.mark.test_all)])
def test_sharing_of_any_history(histories):
    """Whatever processes do in whatever order, one holds a partition, and all comes to rest."""
    engine = create_engine("sqlite://")
    store = new_store(engine)
    run_state_machine_as_test(
        lambda: Sharing(store), settings=settings(max_examples=histories, stateful_step_count=15)
    )
    engine.dispose()
