import pytest
from harness.simulation.campaign import retrace, simulate
from harness.simulation.mutants import MUTANTS

SEEDS, SLICE = 50_000, 10_000
"""As many as run in about a minute; for more, see `harness.simulation`."""

SOON = 2_000
"""The seeds within which a bug that is planted has to be found."""


def first_failure(seeds):
    """The first seed that fails, and what failed."""
    for seed in seeds:
        if failures := simulate([seed]).failures:
            return seed, failures[seed]
    return None


@pytest.mark.parametrize("first", range(0, SEEDS, SLICE))
def test_nothing_is_lost_repeated_or_out_of_order_whatever_happens(first):
    """In every world, each event is applied once, in the order of its key, and in bounded time."""
    tally = simulate(range(first, first + SLICE))
    if tally.failures:
        seed, failure = next(iter(tally.failures.items()))
        trace = "\n".join(retrace(seed))
        pytest.fail(f"{trace}\n{len(tally.failures)} seeds fail; seed {seed}: {failure}")
    assert tally.events > SLICE
    assert min(tally.faults.values()) > SLICE / 100


@pytest.mark.parametrize("bug", MUTANTS)
def test_planted_bug_is_found(bug):
    """The simulation notices when any one rule is taken away."""
    with MUTANTS[bug]():
        assert first_failure(range(SOON))


def test_world_is_what_its_seed_says():
    """The same seed tells the same story."""
    assert retrace(7) == retrace(7)
    assert retrace(7) != retrace(8)
