from random import Random
from types import SimpleNamespace

import pytest
from harness.simulation.clock import Clock
from harness.simulation.store import Store, Transaction
from sqlalchemy import create_engine

from zeroeventhub import CursorStore
from zeroeventhub.errors import ZeroEventHubError

NAME = "billing"
OWNERS = ["ada", "bob", "cleo"]
PARTITIONS = range(4)
LONG = 1_000.0


def nothing(*_):
    """Check nothing: what the ledger checks is tested elsewhere."""


class Simulated:
    """The store of the simulation."""

    def __init__(self):
        ledger = SimpleNamespace(
            committed=nothing, entered=nothing, ended=nothing, started_over=nothing
        )
        self.store = Store(Clock(), ledger)

    def move(self, partition, place, new):
        transaction = Transaction(partition, place, new)
        finish(self.store.move(transaction))
        self.store.commit(transaction)

    def end(self, partition, place):
        finish(self.store.end(partition, place))

    def load(self, partition):
        return self.store.load(partition)

    def enter(self, partition, owner, after=None):
        return finish(self.store.enter(partition, owner, after))

    def set(self, partition, cursor):
        finish(self.store.set({partition: cursor}))

    def reset(self, cursor):
        finish(self.store.reset(cursor))

    def inherit(self, heirs, remaining):
        finish(self.store.inherit(heirs, remaining))

    def claim(self, owner, wanted):
        return said(self.store.claim(owner, wanted, LONG))

    def release(self, owner, partitions):
        self.store.release(owner, partitions)

    def leave(self, owner):
        self.store.leave(owner)

    def expire(self, owner):
        leases = self.store.leases
        leases.update({n: (owner, 0.0) for n, lease in leases.items() if lease[0] == owner})
        if owner in self.store.members:
            self.store.members[owner] = 0.0

    def standings(self):
        rows = self.store.rows.items()
        return {number: (row.cursor, row.epoch, row.ended) for number, row in rows}


class Real:
    """The store that the simulation simulates."""

    def __init__(self):
        self.engine = create_engine("sqlite://")
        self.store = CursorStore(self.engine)
        with self.engine.begin() as connection:
            self.store.create_tables(connection)

    def move(self, partition, place, new):
        with self.engine.begin() as connection:
            self.store.advance(connection, NAME, partition, place, new)

    def end(self, partition, place):
        self.write(self.store.end(NAME, partition, place), partition)

    def write(self, statement, partition):
        with self.engine.begin() as connection:
            self.store.confirm(connection.execute(statement), NAME, partition)

    def load(self, partition):
        with self.engine.begin() as connection:
            return self.store.load(connection, NAME, partition)

    def enter(self, partition, owner, after=None):
        with self.engine.begin() as connection:
            return self.store.enter(connection, NAME, partition, owner, after=after)

    def set(self, partition, cursor):
        with self.engine.begin() as connection:
            self.store.set(connection, NAME, partition, cursor)

    def reset(self, cursor):
        with self.engine.begin() as connection:
            self.store.reset(connection, NAME, cursor=cursor)

    def inherit(self, heirs, remaining):
        with self.engine.begin() as connection:
            self.store.inherit(connection, NAME, heirs, remaining)

    def claim(self, owner, wanted):
        with self.engine.begin() as connection:
            leases = self.store.leases
            return said(leases.claim(connection, NAME, owner, wanted, seconds=LONG, share=True))

    def release(self, owner, partitions):
        with self.engine.begin() as connection:
            self.store.leases.release(connection, NAME, owner, partitions)

    def leave(self, owner):
        with self.engine.begin() as connection:
            self.store.leases.leave(connection, NAME, owner)

    def expire(self, owner):
        with self.engine.begin() as connection:
            for table in (self.store.tables.leases, self.store.tables.members):
                of_owner = table.update().where(table.c.owner == owner)
                connection.execute(of_owner.values(expires_at=0))

    def standings(self):
        with self.engine.begin() as connection:
            rows = connection.execute(self.store.tables.cursors.select())
            return {row.partition: (row.cursor, row.epoch, row.ended) for row in rows}


def finish(generator):
    """Run what need not wait, since nobody else is there."""
    try:
        next(generator)
    except StopIteration as end:
        return end.value
    raise AssertionError("It waits for somebody.")


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
    operated = [("set", (partition, "1")), ("reset", ("2",))]
    actions += operated if chance.random() < 0.2 else []
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


@pytest.mark.parametrize("seed", range(40))
def test_simulated_store_does_what_the_real_one_does(seed):
    """Whatever is done, both give the same answers and hold the same cursors."""
    chance = Random(seed)
    simulated, real = Simulated(), Real()
    places = []
    for number in range(60):
        name, arguments = some_action(chance, places)
        expected = outcome(real, name, arguments)
        found = outcome(simulated, name, arguments)
        assert found == expected, f"seed {seed}, action {number}: {name}{arguments}"
        assert simulated.standings() == real.standings(), f"seed {seed}: {name}{arguments}"
        if name in {"load", "enter"} and not isinstance(expected, type):
            places.append((arguments[0], expected))
    real.engine.dispose()
