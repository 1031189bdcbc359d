"""Many worlds: what happened in all of them, and which of them failed."""

import traceback
from collections import Counter
from dataclasses import dataclass, field

from harness.simulation.world import World


@dataclass
class Tally:
    """Hold what happened in many worlds."""

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
        tally.events += world.ledger.total
        tally.faults += world.chaos.injected
    return tally


def retrace(seed):
    """Tell what happened in the world of a seed, line by line."""
    lines = []
    try:
        World(seed, lines.append).run()
    except Exception:  # noqa: BLE001 - it is what there is to tell
        lines.append(traceback.format_exc())
    return lines
