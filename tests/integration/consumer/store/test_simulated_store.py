"""The store of the simulation does what the real one does."""

from inspect import isgenerator
from random import Random
from types import SimpleNamespace

import pytest
from harness import stores
from harness.simulation.clock import Clock
from harness.simulation.store import Store, Transaction
from harness.stores import claim, new_store
from sqlalchemy import create_engine

from zeroeventhub.errors import ZeroEventHubError

OWNERS = ["ada", "bob", "cleo"]
PARTITIONS = range(4)
LONG = 1_000.0


def in_simulation(store, name, arguments):
    """Do something in the store of the simulation, where nobody is there to wait for."""
    match name, arguments:
        case "move", _:
            transaction = Transaction(*arguments)
            finish(store.move(transaction))
            store.commit(transaction)
        case "claim", (owner, wanted):
            return said(store.claim(owner, wanted, LONG))
        case "expire", (owner,):
            held = [number for number, lease in store.leases.items() if lease[0] == owner]
            store.leases.update(dict.fromkeys(held, (owner, 0.0)))
            store.members.update({owner: 0.0} if owner in store.members else {})
        case _:
            result = getattr(store, name)(*arguments)
            return finish(result) if isgenerator(result) else result
    return None


def in_database(store, name, arguments):
    """Do the same in the real store."""
    if name == "claim":
        return said(claim(store, *arguments, seconds=LONG))
    return getattr(stores, name)(store, *arguments)


def finish(generator):
    """Run what need not wait."""
    try:
        next(generator)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("It waits for another process.")


def said(claimed):
    """What a claim says, but for the time of day."""
    return vars(claimed) | {"elsewhere": set(claimed.elsewhere)}


def outcome(act, store, name, arguments):
    """What an action returns or raises."""
    try:
        return act(store, name, arguments)
    except ZeroEventHubError as error:
        return type(error)


def some_action(chance, places):
    """Choose what to do next: a method's name and its arguments."""
    partition, owner = chance.choice(PARTITIONS), chance.choice(OWNERS)
    some = sorted(chance.sample(PARTITIONS, chance.randint(0, 4)))
    actions = [("load", (partition,)), ("release", (owner, some)), ("leave", (owner,))]
    actions += [("enter", (partition, owner, None))] * 3
    actions += [("enter", (partition, owner, chance.choice(PARTITIONS)))]
    actions += [("reset", ())] if chance.random() < 0.2 else []
    actions += [("claim", (owner, some)), ("claim", (owner, PARTITIONS)), ("expire", (owner,))] * 2
    if places:
        # The newest is likely to be right, and the others are those of zombies.
        known, place = chance.choice(places[-3:])
        actions += [("move", (known, place, str(chance.randint(1, 3))))] * 4
        actions += [("end", (known, place))]
    heirs = {heir: tuple(p for p in PARTITIONS if p not in some) for heir in some[:2]}
    actions += [("inherit", (heirs, some))] if heirs and chance.random() < 0.3 else []
    return chance.choice(actions)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_simulated_store_does_what_the_real_one_does(seed):
    """Whatever is done, both give the same answers and hold the same cursors."""
    chance, engine, places = Random(seed), create_engine("sqlite://"), []
    real = new_store(engine)
    told = ("committed", "entered", "ended", "started_over")
    simulated = Store(Clock(), SimpleNamespace(**dict.fromkeys(told, lambda *_: None)))
    for number in range(100):
        name, arguments = some_action(chance, places)
        expected = outcome(in_database, real, name, arguments)
        found = outcome(in_simulation, simulated, name, arguments)
        assert found == expected, f"seed {seed}, action {number}: {name}{arguments}"
        with engine.begin() as connection:
            rows = {row.partition: row for row in connection.execute(real.tables.cursors.select())}
        for each in (*rows, *simulated.rows):
            one, other = rows[each], simulated.rows[each]
            assert (one.cursor, one.epoch, one.ended) == (other.cursor, other.epoch, other.ended)
        if name in {"load", "enter"} and not isinstance(expected, type):
            places.append((arguments[0], expected))
    engine.dispose()
