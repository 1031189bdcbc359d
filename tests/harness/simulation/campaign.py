"""Many worlds: what happened in all of them, and which of them failed."""

import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from harness.simulation.world import World

CHUNK = 500


@dataclass
class Tally:
    """Hold what happened in many worlds.

    Attributes:
        seeds: how many worlds there were.
        events: how many events were applied.
        hours: how long it all took, in virtual time.
        faults: how many of each kind were injected.
        failures: what was violated, by seed.
    """

    seeds: int = 0
    events: int = 0
    hours: float = 0.0
    faults: Counter = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)

    def add(self, other):
        """Take in another tally."""
        self.seeds += other.seeds
        self.events += other.events
        self.hours += other.hours
        self.faults += other.faults
        self.failures |= other.failures


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
        tally.hours += world.clock.now / 3600
        tally.faults += world.chaos.injected
    return tally


def simulate_in_processes(seeds, processes):
    """Let them happen in several processes of this machine."""
    tally = Tally()
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(processes) as pool:
        for part in pool.map(simulate, chunks):
            tally.add(part)
    return tally


def retrace(seed):
    """Tell what happened in the world of a seed, line by line."""
    lines = []
    try:
        World(seed, lines.append).run()
    except Exception:  # noqa: BLE001 - it is what there is to tell
        lines.append(traceback.format_exc())
    return lines
