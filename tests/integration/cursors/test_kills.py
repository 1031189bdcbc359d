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
    by_dice,
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

SERVERS = ("postgresql", "mariadb")
DATABASES = ("sqlite", *SERVERS)

ALL, SOME = 24, 5
"""Points of a page at which consumers of a kind are killed, at most."""

DAY = 86_400.0
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


def each(quick, rare=(), names="name_of_database, way"):
    """Take cases for `make test`, and others that are left to the long tests."""
    long = [pytest.param(*case, marks=pytest.mark.test_all) for case in rare if case not in quick]
    return pytest.mark.parametrize(names, [*quick, *long])


@each(
    [
        ("sqlite", "run", ALL),
        ("postgresql", "run", SOME),
        ("mariadb", "run", SOME),
        ("postgresql", "async run", SOME),
        *(("sqlite", way, SOME) for way in KINDS if way != "run"),
    ],
    [(database, way, ALL) for database in DATABASES for way in KINDS],
    "name_of_database, way, most",
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


@each([("sqlite", "run")], [(database, "async run") for database in DATABASES])
def test_killed_at_the_start(mother, url, way):
    """While leases are taken and cursors are loaded: the next one can take and load them."""
    with scene(mother, url, Script()) as here:
        points = range(1, 150, 24)
        found = pursue(here, KINDS[way].life(here), each_point(points, fetched=False))
    assert not found.complaints
    assert found.counts["kill"] == len(points)


@each([], [(database, "async run, lanes") for database in DATABASES])
def test_killed_at_any_moment(mother, url, way):
    """In the middle of whatever a process or a database driver does."""
    with scene(mother, url, Script()) as here:
        strikes = by_dice(random.Random(SEED), 12, last=60, seconds=0.2)
        found = pursue(here, KINDS[way].life(here), strikes)
    assert not found.complaints


@each(
    [("postgresql", "run", 12)],
    [
        (*case, point)
        for case in [("postgresql", "async run"), ("sqlite", "run")]
        for point in (1, 20)
    ],
    "name_of_database, way, point",
)
def test_zombie_leaves_nothing(mother, url, way, point):
    """A process frozen past its lease, while it fetches, applies or commits, is fenced after it."""
    with scene(mother, url, Script(partitions=1)) as here:
        life = here.life(way, strike_at=point, fetched=True, options={"lease": 0.3})
        found = zombie(here, life, events=9)
    assert not found.complaints


@each([("sqlite", 1)], [(name, 4) for name in DATABASES], "name_of_database, seconds")
def test_chaos(mother, url, seconds):
    """Four workers are frozen, killed, asked to leave and replaced by a seed's dice."""
    with scene(mother, url, Script(partitions=5)) as here:
        options = {"lease": 0.6, "follow": True}
        # The database's clock decides, so that a process's own clock does not matter.
        clocks = (0, DAY, -DAY, 0)
        lives = [here.life("run", options=options, rest=0.005, clock=clock) for clock in clocks]
        found = Chaos(here, lives, seed=SEED).run(seconds)
    assert not found.complaints
    assert found.counts["freeze"] + found.counts["kill"] + found.counts["leave"]


@each([("postgresql", "run"), ("mariadb", "async run")])
def test_terminated_at_every_point(mother, url, way):
    """The server ends connections at every statement and phase: the consumer goes on by itself."""
    with scene(mother, url, Script()) as here:
        life = here.life(way, strike_at=1, gap=100, most=8, seed=str(SEED))
        found = terminations(here, life, events=30)
    assert not found.complaints
    assert found.counts["termination"] > 2


@each([("postgresql", "run")], [(name, "async run") for name in SERVERS])
def test_commit_whose_reply_is_lost(mother, url, way):
    """The cursor says whether a COMMIT took place: the page is not applied again, nor left out."""
    with scene(mother, url, Script()) as here:
        found = lost_commits(here, here.life(way), events=30, seed=str(SEED))
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


@each(
    [("postgresql", "run"), ("sqlite", "loop")],
    [(name, way) for name in DATABASES for way in ("loop", "async run")],
)
def test_all_that_start_at_once(mother, url, way):
    """Processes that start in the same moment agree on where they start."""
    with scene(mother, url, Script(start=5)) as here:
        life = here.life(way, options={"start": "c5", "lease": 0.3})
        found = starts(here, [life] * 3, events=11, dice=random.Random(SEED))
    assert not found.complaints
