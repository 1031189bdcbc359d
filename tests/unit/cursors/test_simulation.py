"""A simulated world of consumers, in which everything goes wrong and nothing may be lost."""

import pytest
from harness.simulation.campaign import RULES, retrace, simulate, without

SEEDS = range(1_000)
"""As many as go by in seconds; a rule that is missing has to be noticed within them."""


def test_nothing_is_lost_repeated_or_out_of_order_whatever_happens():
    """In every world, each event is applied once, in the order of its key, and in bounded time."""
    tally = simulate(SEEDS)
    if tally.failures:
        seed, failure = next(iter(tally.failures.items()))
        trace = "\n".join(retrace(seed))
        pytest.fail(f"{trace}\n{len(tally.failures)} seeds fail; seed {seed}: {failure}")
    assert tally.events > len(SEEDS)
    assert min(tally.faults.values()) > len(SEEDS) / 100


@pytest.mark.parametrize("rule", RULES)
def test_missing_rule_is_noticed(rule):
    """The simulation fails for some seed when any one rule of its world is taken away."""
    with without(rule):
        assert any(simulate([seed]).failures for seed in SEEDS)


def test_world_is_what_its_seed_says():
    """The same seed tells the same story."""
    assert retrace(7) == retrace(7)
    assert retrace(7) != retrace(8)
