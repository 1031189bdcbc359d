"""A simulated world of consumers, in which everything goes wrong and nothing may be lost."""

import time

import pytest
from harness.simulation.world import retrace, simulate
from sqlalchemy import create_engine

from zeroeventhub import CursorStore
from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.coordinator import Coordinator
from zeroeventhub.consumer.steps import Await, Claim, Claimed, Discover, Start
from zeroeventhub.protocol import HIGHEST_PARTITION, FeedInfo

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


def test_as_many_partitions_as_there_can_be_are_started_at_once():
    """A process that takes all partitions renews their leases in time."""
    config = Config(None, CursorStore(create_engine("sqlite://")), "billing")
    coordinator = Coordinator(config, lambda: False)
    steps, began = coordinator.steps(), time.monotonic()
    step, started = next(steps), 0
    while not isinstance(step, Await):
        started += isinstance(step, Start)
        match step:
            case Discover():
                step = steps.send(FeedInfo.of(HIGHEST_PARTITION + 1))
            case Claim():
                step = steps.send(Claimed(frozenset(step.wanted)))
            case _:
                step = next(steps)
    assert started == HIGHEST_PARTITION + 1
    assert time.monotonic() - began < 5
