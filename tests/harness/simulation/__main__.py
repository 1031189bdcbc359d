"""Run many seeds, or tell what happens in one.

In the folder of the tests, `python -m harness.simulation --seeds 1000000 --processes 2` prints one
line of JSON, and `python -m harness.simulation 4711` prints what happens in that one world.
"""

import json
import sys
from argparse import ArgumentParser
from time import monotonic

from harness.simulation.campaign import retrace, simulate_in_processes


def main():
    """Do what the command line says; fail if a seed does."""
    parser = ArgumentParser(prog="python -m harness.simulation", description=__doc__)
    parser.add_argument("seed", nargs="?", type=int, help="the one seed to tell about")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=1, help="how many run side by side")
    options = parser.parse_args()
    if options.seed is not None:
        sys.stdout.writelines(f"{line}\n" for line in retrace(options.seed))
        return
    started = monotonic()
    seeds = range(options.first, options.first + options.seeds)
    tally = simulate_in_processes(seeds, options.processes)
    report = {
        "seeds": tally.seeds,
        "first": options.first,
        "seconds": round(monotonic() - started, 1),
        "events": tally.events,
        "virtual_hours": round(tally.hours, 1),
        "faults": dict(sorted(tally.faults.items())),
        "failures": tally.failures,
    }
    sys.stdout.write(f"{json.dumps(report)}\n")
    if tally.failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
