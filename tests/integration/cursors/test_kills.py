"""Consumers that are killed, frozen and cut off: another goes on, and all takes effect once."""

import random
from dataclasses import replace

import pytest
from harness.clusters import cluster
from harness.kills.chaos import Chaos
from harness.kills.lives import zygote
from harness.kills.scene import (
    KINDS,
    REST,
    each_point,
    lost_commits,
    pursue,
    restarts,
    scene,
    starts,
    terminations,
    zombie,
)
from harness.kills.script import Script
from harness.kills.torments import DAY, TORMENTS

SEED = 1


@pytest.fixture(scope="module")
def mother():
    """The process that forks consumers."""
    with zygote() as found:
        yield found


@pytest.fixture
def url(request, name_of_database):
    """The URL of an empty database of this name."""
    return request.getfixturevalue(f"{name_of_database}_url")


@pytest.mark.parametrize(
    ("name_of_database", "way", "most"),
    [
        ("sqlite", "run", 24),
        ("postgresql", "run", 5),
        ("mariadb", "run", 5),
        ("postgresql", "async run", 5),
        *(("sqlite", way, 5) for way in KINDS if way != "run"),
    ],
)
def test_killed_at_points_of_a_page(mother, url, way, most):
    """At every statement, commit and request: nothing is lost, nothing twice."""
    kind = KINDS[way]
    # In one partition the points of a page come in a row.
    with scene(mother, url, replace(kind.script, partitions=1)) as here:
        points = kind.points(most)
        found = pursue(here, kind.life(here), each_point(points, fetched=True))
    assert not found.complaints
    assert found.counts["kill"] == len(points)
    assert here.feed.end > REST, "some of those that were killed have to have committed"


@pytest.mark.parametrize("name_of_database", ["sqlite"])
def test_killed_at_the_start(mother, url):
    """While leases are taken and cursors are loaded: the next one can take and load them."""
    with scene(mother, url, Script()) as here:
        points = range(1, 150, 24)
        found = pursue(here, here.life("run"), each_point(points, fetched=False))
    assert not found.complaints
    assert found.counts["kill"] == len(points)


@pytest.mark.parametrize("name_of_database", ["postgresql"])
def test_zombie_leaves_nothing(mother, url):
    """A process frozen past its lease, while it fetches, applies or commits, is fenced after it."""
    with scene(mother, url, Script(partitions=1)) as here:
        life = here.life("run", strike_at=12, fetched=True, options={"lease": 0.3})
        found = zombie(here, life, events=9)
    assert not found.complaints


@pytest.mark.parametrize("name_of_database", ["sqlite"])
def test_chaos(mother, url):
    """Four workers are frozen, killed, asked to leave and replaced by a seed's dice."""
    with scene(mother, url, Script(partitions=5)) as here:
        options = {"lease": 0.6, "follow": True}
        # The database's clock decides, so that a process's own clock does not matter.
        clocks = (0, DAY, -DAY, 0)
        lives = [here.life("run", options=options, rest=0.005, clock=clock) for clock in clocks]
        found = Chaos(here, lives, seed=SEED).run(1)
    assert not found.complaints
    assert found.counts["freeze"] + found.counts["kill"] + found.counts["leave"]


@pytest.mark.parametrize(
    ("name_of_database", "way"), [("postgresql", "run"), ("mariadb", "async run")]
)
def test_terminated_at_every_point(mother, url, way):
    """The server ends connections at every statement and phase: the consumer goes on by itself."""
    with scene(mother, url, Script()) as here:
        life = here.life(way, strike_at=1, gap=100, most=8, seed=str(SEED))
        found = terminations(here, life, events=30)
    assert not found.complaints
    assert found.counts["termination"] > 2


@pytest.mark.parametrize("name_of_database", ["postgresql"])
def test_commit_whose_reply_is_lost(mother, url):
    """The cursor says whether a COMMIT took place: the page is not applied again, nor left out."""
    with scene(mother, url, Script()) as here:
        found = lost_commits(here, here.life("run"), events=30, seed=str(SEED))
    assert not found.complaints
    assert found.counts["reply lost"]
    assert found.counts["request lost"]


@pytest.mark.test_all
def test_restarted_server(mother):
    """The server is shut down, or crashes, and comes back: the consumer goes on by itself."""
    with cluster() as server, scene(mother, server.new_database(), Script()) as here:
        life = here.life("run", options={"follow": True}, rest=0.005)
        found = restarts(here, life, server, times=4, dice=random.Random(SEED))
    assert not found.complaints


@pytest.mark.parametrize(("name_of_database", "way"), [("postgresql", "run"), ("sqlite", "loop")])
def test_all_that_start_at_once(mother, url, way):
    """Processes that start in the same moment agree on where they start."""
    with scene(mother, url, Script(start=5)) as here:
        life = here.life(way, options={"start": "c5", "lease": 0.3})
        found = starts(here, [life] * 3, events=11, dice=random.Random(SEED))
    assert not found.complaints


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("torment", "name_of_database", "way"),
    [
        pytest.param(torment, database, way, id=f"{torment.name}-{database}-{way}")
        for torment in TORMENTS
        for database in torment.databases
        for way in torment.kinds
        if torment.row == "R3" or way in {"loop", "run", "async run"}
    ],
)
def test_torment(mother, url, torment, way):
    """Each way to consume survives, on each database, whatever the soak does to it."""
    kind = torment.kinds[way]
    with scene(mother, url, kind.script) as here:
        found = torment.round(here, kind, SEED, brief=True)
    assert not found.complaints
    assert any(found.counts[deed] for deed in torment.deeds)
