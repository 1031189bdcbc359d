"""A simulated world of consumers, in which everything goes wrong and nothing may be lost."""

import pytest
from harness.simulation.world import retrace, simulate

SEEDS = range(1_000)  # as many as go by in seconds


@pytest.mark.slow
def test_nothing_is_lost_repeated_or_out_of_order_whatever_happens():
    """In every world, each event is applied once, in the order of its key, and in bounded time."""
    events, faults, failures = simulate(SEEDS)
    if failures:
        seed, failure = next(iter(failures.items()))
        trace = "\n".join(retrace(seed))
        pytest.fail(f"{trace}\n{len(failures)} seeds fail; seed {seed}: {failure}")
    assert events > len(SEEDS)
    assert min(faults.values()) > len(SEEDS) / 100


def test_world_is_what_its_seed_says():
    """The same seed tells the same story."""
    assert retrace(7) == retrace(7)
    assert retrace(7) != retrace(8)
