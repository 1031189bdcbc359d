"""The store of the simulation does what the real one does."""

from functools import partial
from inspect import isgenerator
from random import Random
from types import SimpleNamespace

import pytest
from harness.simulation.clock import Clock
from harness.simulation.store import Store, Transaction
from harness.stores import call, claim, end, expire, new_store
from sqlalchemy import create_engine

from zeroeventhub.errors import ZeroEventHubError

OWNERS = ["ada", "bob", "cleo"]
PARTITIONS = range(4)
LONG = 1_000.0


class Simulated:
    """The store of the simulation, whose ledger checks nothing: that is tested elsewhere."""

    def __init__(self):
        checks = ("committed", "entered", "ended", "started_over")
        ledger = SimpleNamespace(**dict.fromkeys(checks, lambda *_: None))
        self.store = Store(Clock(), ledger)

    def __getattr__(self, name):
        """Carry a method of the store out at once, since no other process is there to wait for."""

        def carry_out(*arguments):
            result = getattr(self.store, name)(*arguments)
            return finish(result) if isgenerator(result) else result

        return carry_out

    def move(self, partition, place, new):
        transaction = Transaction(partition, place, new)
        finish(self.store.move(transaction))
        self.store.commit(transaction)

    def claim(self, owner, wanted):
        return said(self.store.claim(owner, wanted, LONG))

    def expire(self, owner):
        leases, members = self.store.leases, self.store.members
        leases.update({n: (owner, 0.0) for n, lease in leases.items() if lease[0] == owner})
        members.update({owner: 0.0} if owner in members else {})

    def standings(self):
        rows = self.store.rows.items()
        return {number: (row.cursor, row.epoch, row.ended) for number, row in rows}


class Real:
    """The store that the simulation simulates."""

    def __init__(self, engine):
        self.store = store = new_store(engine)
        self.release = partial(call, store, store.leases.release)
        self.leave = partial(call, store, store.leases.leave)
        self.move = partial(call, store, store.advance)
        self.end, self.expire = partial(end, store), partial(expire, store)

    def __getattr__(self, name):
        """Carry a method of the store out in a transaction of its own."""
        return partial(call, self.store, getattr(self.store, name))

    def enter(self, partition, owner, after=None):
        return call(self.store, self.store.enter, partition, owner, after=after)

    def reset(self):
        call(self.store, self.store.reset)

    def claim(self, owner, wanted):
        return said(claim(self.store, owner, wanted, seconds=LONG))

    def standings(self):
        with self.store.engine.begin() as connection:
            rows = connection.execute(self.store.tables.cursors.select())
            return {row.partition: (row.cursor, row.epoch, row.ended) for row in rows}


def finish(generator):
    """Run what need not wait, since no other process is there."""
    try:
        next(generator)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("It waits for another process.")


def said(claimed):
    """What a claim says, but for the time of day."""
    elsewhere = set(claimed.elsewhere)
    return claimed.held, claimed.surplus, elsewhere, claimed.ended, claimed.epochs


def outcome(store, name, arguments):
    """What an action of a store returns or raises."""
    try:
        return getattr(store, name)(*arguments)
    except ZeroEventHubError as error:
        return type(error)


def some_action(chance, places):
    """Choose what to do next: a method's name and its arguments."""
    partition, owner = chance.choice(PARTITIONS), chance.choice(OWNERS)
    some = sorted(chance.sample(PARTITIONS, chance.randint(0, 4)))
    actions = [("load", (partition,)), ("release", (owner, some)), ("leave", (owner,))]
    actions += [("enter", (partition, owner))] * 3
    actions += [("enter", (partition, owner, chance.choice(PARTITIONS)))]
    actions += [("reset", ())] if chance.random() < 0.2 else []
    actions += [("claim", (owner, some)), ("claim", (owner, PARTITIONS)), ("expire", (owner,))] * 2
    if places:
        # The newest is likely to be right, and the others are those of zombies.
        known, place = chance.choice(places[-3:])
        actions += [("move", (known, place, str(chance.randint(1, 3))))] * 4
        actions += [("end", (known, place))]
    heirs = {heir: tuple(p for p in PARTITIONS if p not in some) for heir in some[:2]}
    if heirs and chance.random() < 0.3:
        actions += [("inherit", (heirs, some))]
    return chance.choice(actions)


@pytest.mark.parametrize("seed", range(5))
def test_simulated_store_does_what_the_real_one_does(seed):
    """Whatever is done, both give the same answers and hold the same cursors."""
    chance, engine, places = Random(seed), create_engine("sqlite://"), []
    simulated, real = Simulated(), Real(engine)
    for number in range(100):
        name, arguments = some_action(chance, places)
        expected = outcome(real, name, arguments)
        found = outcome(simulated, name, arguments)
        assert found == expected, f"seed {seed}, action {number}: {name}{arguments}"
        assert simulated.standings() == real.standings(), f"seed {seed}: {name}{arguments}"
        if name in {"load", "enter"} and not isinstance(expected, type):
            places.append((arguments[0], expected))
    engine.dispose()
