"""Workers of one consumer that are frozen, killed and replaced: nothing is lost, nothing twice."""

import os
import signal

import pytest
from harness.kills.chaos import Chaos
from harness.kills.rounds import await_progress, zombie
from harness.kills.scene import scene
from harness.kills.script import Script
from harness.kills.zygote import zygote

LEASE = 0.6
FREEZES = {"run": (1, 6, 12, 16, 20), "async run": (1, 20, 40, 60, 80)}
"""Points of a page, from its arrival until the next one is fetched."""

SECONDS = {"postgresql": 8, "mariadb": 4, "sqlite": 4}
DAY = 86_400.0


@pytest.fixture(scope="module")
def mother():
    """The process that forks consumers."""
    with zygote() as found:
        yield found


@pytest.mark.parametrize("way", FREEZES)
def test_zombie_leaves_nothing(mother, postgresql_url, way):
    """Who was frozen past its lease, while fetching, applying or committing, is fenced after it."""
    with scene(mother, postgresql_url, Script(partitions=1)) as here:
        for point in FREEZES[way]:
            life = here.life(way, strike_at=point, fetched=True, options={"lease": 0.3})
            found = zombie(here, life, events=9)
            assert not found.complaints, f"frozen at point {point}"


@pytest.mark.parametrize("way", FREEZES)
def test_zombie_in_sqlite_is_fenced(mother, sqlite_url, way):
    """Who is frozen with a page, and without the lock, is replaced, and its commit is refused."""
    fenced = 0
    with scene(mother, sqlite_url, Script(partitions=1)) as here:
        for point in FREEZES[way]:
            life = here.life(way, strike_at=point, fetched=True, options={"lease": 0.3})
            for _ in range(3):
                found = zombie(here, life, events=9)
                assert not found.complaints, f"frozen at point {point}"
                if found.deeds["taken over"]:
                    break
                # It was frozen while a thread of its renewed the lease, with the lock.
            assert found.deeds["taken over"]
            fenced += found.deeds["fenced"]
    # Who sees first that the lease is lost does not try to commit.
    assert fenced > len(FREEZES[way]) / 2


@pytest.mark.parametrize("database", SECONDS)
def test_chaos(mother, request, database):
    """Four workers are frozen, killed, told to leave and replaced by a seed's dice."""
    seed = 1
    url = request.getfixturevalue(f"{database}_url")
    with scene(mother, url, Script(partitions=5)) as here:
        options = {"lease": LEASE, "follow": True}
        # The database's clock decides, so that nobody's own clock matters.
        clocks = (0, DAY, -DAY, 0)
        lives = [here.life("run", options=options, rest=0.005, clock=clock) for clock in clocks]
        found = Chaos(here, lives, seed=seed).run(SECONDS[database])
    assert not found.complaints, f"seed {seed}"
    assert found.deeds["freeze"]
    assert found.deeds["kill"]


@pytest.mark.parametrize("clock", [DAY, -DAY])
def test_clock_of_a_process_does_not_matter(mother, database_url, clock):
    """A process whose clock is a day off takes nothing from another, which keeps its lease."""
    with scene(mother, database_url, Script(partitions=1)) as here:
        here.begin(300)
        # Pinned to the partition, so that neither hands it over to the other.
        options = {"lease": LEASE, "partitions": [0]}
        one = here.life("run", worker=1, rest=0.01, options={**options, "follow": True})
        first = mother.start(one)
        await_progress(here, 0)
        here.hear(mother.run(here.life("run", worker=2, clock=clock, options=options)))
        os.kill(first, signal.SIGTERM)
        here.hear(mother.wait(first))
        here.look(one)
        assert here.ledger.workers() == {1}
    assert not here.found.complaints
