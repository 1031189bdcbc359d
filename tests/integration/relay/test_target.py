"""What every target of a relay has: no event is missing, and repeats only as said."""

import time

import pytest
from harness.engines import connected
from harness.stores import NAME, call, new_store
from sqlalchemy.exc import IntegrityError

from zeroeventhub import FIRST, Client, Consumer, Failures
from zeroeventhub.errors import Halted
from zeroeventhub.relay.target import EventRefused, Target, TargetUnavailable


class Listing(Target):
    """A target that lists what it takes, and raises errors at some numbers: once, or always."""

    def __init__(self, once=(), always=()):
        super().__init__()
        self.taken = []
        self.once = dict(once)
        self.always = dict(always)

    def deliver(self, partition, events, delivered):
        for event in events:
            number = event.data["data"]["n"]
            if error := self.always.get(number) or self.once.pop(number, None):
                raise error
            self.taken.append(number)
            delivered(event)


@pytest.fixture
def consume(feed, any_engine):
    """A function that delivers one partition to a target, from a store on each database in turn."""
    store = new_store(any_engine)

    def consume(apply, **options):
        chosen = {"follow": False, "partitions": [0], "limit": 25, **options}
        Consumer(Client(feed), store, NAME, **chosen).run(apply)

    consume.store = store
    return consume


ALL = [*range(0, 100, 2)]


@pytest.mark.parametrize("error", [TargetUnavailable("away"), EventRefused("no")])
def test_page_that_failed_goes_on_where_it_was(consume, error):
    """After an outage, or a refusal that passes, what the target has taken does not come again."""
    with Listing(once={20: error, 70: error}) as target:
        consume(target.apply)
    assert target.taken == ALL


@pytest.mark.parametrize("refused", [0, 20])
def test_event_that_is_refused_for_good_is_set_aside_alone(consume, refused):
    """Though events are then delivered one by one, and with an outage between, each comes once."""
    target = Listing(once={30: TargetUnavailable("away")}, always={refused: EventRefused("never")})
    consume(target.apply, failures=Failures(2, "set-aside"))
    assert target.taken == [n for n in ALL if n != refused]
    assert call(consume.store, consume.store.dead_letters.count) == {0: 1}


def listed(self, partition, events, delivered):
    """Say that nothing was delivered, where an error has to be raised."""
    return False


async def listed_later(self, partition, events, delivered):
    """Deliver once this is awaited."""


def listed_one_by_one(self, partition, events, delivered):
    """Deliver where something iterates."""
    yield from events


@pytest.mark.parametrize("deliver", [listed, listed_later, listed_one_by_one])
def test_target_that_returns_something_is_refused(consume, monkeypatch, deliver):
    """Events count as delivered if `deliver` returns nothing, and not if it has not even begun."""
    monkeypatch.setattr(Listing, "deliver", deliver)
    with pytest.raises(Halted) as halted:
        consume(Listing().apply, failures=Failures(1))
    assert "has returned" in str(halted.value.__cause__)
    assert call(consume.store, consume.store.cursors) == {0: FIRST}


def test_page_whose_commit_fails_is_not_delivered_again(consume):
    """What was taken before a rollback comes no more, as long as the process lives."""
    target, failures = Listing(), [IntegrityError("", {}, Exception())]

    def apply(connection, page):
        target.apply(connection, page)
        if failures:
            raise failures.pop()

    consume(apply)
    assert target.taken == ALL


def test_next_process_delivers_what_was_not_committed(consume):
    """A page that was delivered by a process that has ended before its commit comes again."""

    def apply(connection, page):
        first.apply(connection, page)
        raise KeyboardInterrupt

    first, second = Listing(), Listing()
    with pytest.raises(KeyboardInterrupt):
        consume(apply)
    consume(second.apply)
    assert (first.taken, second.taken) == (ALL[:25], ALL)


def test_database_that_ends_idle_transactions_does_not_repeat_a_page(feed, postgresql_url):
    """A page that takes longer than a transaction may be idle is committed at the next try."""

    class Slow(Listing):
        def deliver(self, *given):
            super().deliver(*given)
            time.sleep(0.3)

    target, idle = Slow(), "-c idle_in_transaction_session_timeout=100"
    with connected(postgresql_url, options=idle) as engine:
        options = {"follow": False, "partitions": [0], "limit": 25}
        Consumer(Client(feed), new_store(engine), NAME, **options).run(target.apply)
    assert target.taken == ALL


def test_cursor_that_is_set_back_delivers_again(consume):
    """An operator who sets a cursor back gets the events once more, by the same target as well."""
    target = Listing(once={20: TargetUnavailable("away")})
    consume(target.apply)
    call(consume.store, consume.store.reset)
    consume(target.apply)
    assert target.taken == [*ALL, *ALL]


def test_lanes_that_fail_together_go_on_where_they_were(feed, postgresql):
    """Where an outage hits lanes of a page at a time, nothing that was taken comes again."""

    class Slow(Listing):
        def deliver(self, *given):
            time.sleep(0.1)  # so that lanes run at a time
            super().deliver(*given)

    target = Slow(once={70: TargetUnavailable("away"), 72: TargetUnavailable("away")})
    lanes = {"lanes": 2, "key": lambda event: "ad"[event.data["data"]["n"] // 2 % 2]}
    options = {"follow": False, "partitions": [0], "limit": 25, **lanes}
    Consumer(Client(feed), new_store(postgresql), NAME, **options).run(target.apply)
    assert sorted(target.taken) == ALL
