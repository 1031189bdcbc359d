"""Leases on every database: one holder at a time, fair shares, and no waiting for pages."""

import random
import threading
import time
from itertools import product

import httpx
import pytest
from harness.stores import (
    NAME,
    at,
    call,
    claim,
    empty_store,
    end,
    enter,
    expire,
    load,
    move,
    new_store,
)
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import delete, select, text
from sqlalchemy.exc import DBAPIError

from zeroeventhub import FIRST, Client, Consumer, Event
from zeroeventhub._follow import Load, Place
from zeroeventhub.consumer.bookkeeping import Bookkeeping
from zeroeventhub.cursors import leases
from zeroeventhub.cursors.clock import unix_time
from zeroeventhub.cursors.transience import is_transient
from zeroeventhub.errors import ConfigurationError, Fenced, LeaseLost, StoreUnavailable

ALL = (0, 1, 2, 3, 4)
SERVERS = list(
    product(["postgresql", "mariadb"], ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
)
LOCK_WAIT = {
    "postgresql": "SET lock_timeout = '2s'",
    "mariadb": "SET innodb_lock_wait_timeout = 2",
}


@pytest.fixture
def store(shop_engine):
    """A store that holds nothing, on each database in turn."""
    return empty_store(shop_engine)


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
    """Who holds too much says so; what is given back, or has run out, goes to the others."""
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
    """A claim moves the end of a lease, as the others see it, and takes back what nobody took."""
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


def test_child_is_not_entered_before_its_parents_end(store):
    """Also behind a reset: what was read to its end has to be read again first."""
    claim(store, "one", (0, 2))
    with pytest.raises(LeaseLost, match="waits for partition 0"):
        enter(store, 2, "one", after=0)
    end(store, 0, enter(store, 0, "one"))
    assert enter(store, 2, "one", after=0) == Place(FIRST, 1)
    call(store, store.reset)
    with pytest.raises(LeaseLost, match="waits for partition 0"):
        enter(store, 2, "one", after=0)
    # Who was refused has fenced nobody.
    assert load(store, 2) == Place(FIRST, 2)


def test_child_is_loaded_behind_its_parent(store):
    """What a reading decides about the order of partitions, the store is told."""
    consumer = Consumer(Client("http://localhost", httpx.Client()), store, NAME)
    book = Bookkeeping(consumer._options, consumer._reading, "one")  # noqa: SLF001 - what it reads
    claim(store, "one", (0, 2))
    with store.engine.connect() as connection, pytest.raises(LeaseLost, match="partition 0"):
        book.carry_out(connection, Load(2, (0, 2), after=0))


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
    """Who was told which partitions to read is no member, and the others divide the rest."""
    pinned = claim(store, "pinned", (0, 1, 2), share=False)
    assert (pinned.held, pinned.surplus) == ({0, 1, 2}, set())
    assert claim(store, "one", ALL).held == {3, 4}
    claim(store, "two", ALL)
    assert claim(store, "one", ALL).surplus == {4}
    release(store, "one", {4})
    assert claim(store, "two", ALL).held == {4}
    assert claim(store, "other", ALL, share=False).held == set()
    assert claim(store, "one", ALL).surplus == set()


def test_leases_run_by_the_clock_of_the_database(store, monkeypatch):
    """A process whose own clock is a day off sees the same."""
    claim(store, "one", (0,))
    with store.engine.connect() as connection:
        now = unix_time(connection)
    real = time.time
    assert abs(now - real()) < 5
    for name in ("time", "monotonic"):
        function = getattr(time, name)
        monkeypatch.setattr(time, name, lambda function=function: function() + 86400)
    elsewhere = claim(store, "two", (0,)).elsewhere
    assert 25 < elsewhere[0] - now <= 31
    assert claim(store, "one", (0,)).held == {0}


def test_clock_of_the_database_takes_no_notice_of_time_zones(engine):
    """The clock is the same in any zone, also while an hour comes twice there."""
    zone = {
        "postgresql": "SET TIME ZONE 'Pacific/Kiritimati'",
        "mysql": "SET time_zone = '+13:00'",
        "mariadb": "SET time_zone = '+13:00'",
    }.get(engine.dialect.name)
    with engine.connect() as connection:
        if zone:
            connection.execute(text(zone))
        assert abs(unix_time(connection) - time.time()) < 5
        first = unix_time(connection)
        time.sleep(0.02)
        assert 0.01 < unix_time(connection) - first < 2


@pytest.mark.parametrize("owner", ["", "x" * 201])
def test_name_of_a_process_fits_its_column(store, owner):
    """A name that stands for nobody, or would be cut, is refused."""
    with pytest.raises(ConfigurationError):
        claim(store, owner, ALL)


@pytest.mark.parametrize(("database", "level"), SERVERS)
def test_claim_does_not_wait_for_a_page(request, database, level):
    """While pages are applied, and events set aside, leases are renewed and taken."""
    engine = request.getfixturevalue(database)
    store = at(new_store(engine), level)
    for partition in (0, 1):
        load(store, partition)
    claim(store, "one", (0, 1))
    event, place = Event.of({}), Place(FIRST)
    with store.engine.connect() as page, store.engine.connect() as lane:
        page.execute(store.move(NAME, 0, place, "a"))
        add = store.dead_letters.add
        add(page, NAME, 0, event, key="k", error=ValueError(), tries=1)
        add(page, NAME, 0, event, key="k", error=None, tries=0)
        store.lanes.advance(lane, NAME, 1, place, lane=0, lanes=2, before=0, after=1)
        with store.engine.begin() as connection:
            connection.execute(text(LOCK_WAIT[database]))
            found = store.leases.claim(connection, NAME, "one", (0, 1), seconds=30, share=True)
        assert found.held == {0, 1}
        with store.engine.begin() as connection:
            connection.execute(text(LOCK_WAIT[database]))
            store.leases.release(connection, NAME, "one", {0})
        page.commit()
        lane.commit()


@pytest.mark.parametrize(("database", "level"), SERVERS)
def test_claim_in_an_older_snapshot_takes_nothing_of_others(request, database, level):
    """A transaction that saw leases free which are taken by now does not take them too."""
    plain = new_store(request.getfixturevalue(database))
    store = at(plain, level)
    claim(store, "one", ALL)
    leave(store, "one")
    with store.engine.connect() as connection:
        connection.execute(select(store.tables.leases.c.partition)).all()
        # Where readers lock, the rival does not even get there.
        taken = level != "SERIALIZABLE" or database != "mariadb"
        if taken:
            claim(at(plain, "READ COMMITTED"), "two", ALL)
        try:
            found = store.leases.claim(connection, NAME, "one", ALL, seconds=30, share=True)
            connection.commit()
            assert found.held == (set() if taken else set(ALL))
        except (DBAPIError, StoreUnavailable) as error:
            assert is_transient(error)  # noqa: PT017 - or there is none
            connection.rollback()
    if taken:
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

    Attributes:
        defects: what should not have happened.
        transient: errors that had to be tried again.
        rounds: how many claims came to their end.
    """

    def __init__(self, store, seed):
        """Make them.

        Args:
            store: what they share.
            seed: decides what each does.
        """
        self.store = store
        self.seed = seed
        self.defects = []
        self.transient = []
        self.rounds = 0
        self._holders = {}
        self._guard = threading.Lock()

    def run(self, count, seconds):
        """Let so many of them work for a time."""
        until = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self._work, args=(f"p{number}", until))
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _work(self, owner, until):
        chance = random.Random(f"{self.seed} {owner}")
        while time.monotonic() < until:
            try:
                self._round(owner, chance)
            except Fenced as error:
                self.defects.append(error)
            except Exception as error:  # noqa: BLE001 - looked at behind the threads
                (self.transient if is_transient(error) else self.defects).append(error)

    def _round(self, owner, chance):
        found = claim(self.store, owner, ALL)
        self._note(owner, found.held)
        self.rounds += 1
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


@pytest.mark.parametrize(("database", "level"), [("sqlite", "SERIALIZABLE"), *SERVERS])
def test_no_two_processes_hold_a_partition(request, database, level):
    """Processes that come and go at the same moments never overlap, and none waits for long."""
    racers = Racers(
        at(new_store(request.getfixturevalue(database)), level), random.randrange(2**32)
    )
    racers.run(4, seconds=1.0)
    assert not racers.defects, f"seed {racers.seed}"
    assert racers.rounds
    if level == "READ COMMITTED":
        # They take turns, rather than get in each other's way and try again.
        assert not racers.transient, f"seed {racers.seed}"


class Sharing(RuleBasedStateMachine):
    """Processes that come, go, crash and come back, and what each may believe."""

    def __init__(self, store):
        """Begin with nobody.

        Args:
            store: what they share.
        """
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
        """When nobody comes or goes, everything is divided fairly after three rounds."""
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


def test_sharing_of_any_history(store):
    """Whatever processes do in whatever order, one holds a partition, and all comes to rest."""
    run_state_machine_as_test(
        lambda: Sharing(store),
        settings=settings(
            max_examples=12,
            stateful_step_count=15,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
