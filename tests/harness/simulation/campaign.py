"""Many worlds: what happened in all of them, which of them failed, and rules to take away."""

import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from harness.simulation.feed import Feed
from harness.simulation.processes import Worker
from harness.simulation.store import Store
from harness.simulation.world import World

CHUNK = 500


@dataclass
class Tally:
    """Hold what happened in many worlds."""

    seeds: int = 0
    events: int = 0
    faults: Counter = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)


def simulate(seeds):
    """Let the worlds of some seeds happen, one after the other."""
    tally = Tally()
    for seed in seeds:
        world = World(seed)
        try:
            world.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed finds it again
            tally.failures[seed] = f"{type(error).__name__}: {error}"
        tally.seeds += 1
        tally.events += world.ledger.total
        tally.faults += world.chaos.injected
    return tally


def simulate_in_processes(seeds, processes):
    """Let them happen in several processes of this machine."""
    tally = Tally()
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(processes) as pool:
        for part in pool.map(simulate, chunks):
            tally.seeds += part.seeds
            tally.events += part.events
            tally.faults += part.faults
            tally.failures |= part.failures
    return tally


def retrace(seed):
    """Tell what happened in the world of a seed, line by line."""
    lines = []
    try:
        World(seed, lines.append).run()
    except Exception:  # noqa: BLE001 - it is what there is to tell
        lines.append(traceback.format_exc())
    return lines


def _nothing(*_):
    pass


def _hand_and_leave_the_end(_, row, cursor):
    row.cursor = cursor
    row.epoch += 1


RULES = {
    "compare of epochs": (Store, "stands_at", lambda _, row, place: row.cursor == place.cursor),
    "compare of cursors": (Store, "stands_at", lambda _, row, place: row.epoch == place.epoch),
    "epoch for a process that enters": (Store, "raise_epoch", _nothing),
    "check of the lease": (Store, "check_lease", _nothing),
    "look at the parent when a child is entered": (Store, "check_parent", _nothing),
    "new end behind a cursor that was put back": (Store, "hand", _hand_and_leave_the_end),
    "inheritance": (Store, "inherit", lambda *_: iter(())),
    "check of the token": (Feed, "check", _nothing),
    "look at the head for a cursor put elsewhere": (Worker, "is_overtaken", lambda *_: False),
}
"""Rules that the simulation has to miss when they are taken away, one at a time."""


@contextmanager
def without(rule):
    """Take a rule away, for the time of the block."""
    with patch.object(*RULES[rule]):
        yield
