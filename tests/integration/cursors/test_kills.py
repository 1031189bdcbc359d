"""Consumers that are killed, frozen and cut off: another goes on, and all takes effect once."""

import os
import random
import signal
from dataclasses import replace

import pytest
from harness.clusters import cluster
from harness.faults.layouts import CHANGES
from harness.kills.chaos import Chaos
from harness.kills.reshaping import reshaping
from harness.kills.rounds import (
    REST,
    await_progress,
    by_dice,
    each_point,
    lost_commits,
    pursue,
    reset_at_head,
    restarts,
    starts,
    terminations,
    zombie,
)
from harness.kills.scene import KINDS, scene
from harness.kills.script import Script
from harness.kills.zygote import zygote

CHANGES_BY_NAME = {change.name: change for change in CHANGES}
LOOP = "loop, commit first"

ALL, SOME = 24, 5
"""Points of a page at which consumers of a kind are killed, at most."""

LEASE = 0.6
DAY = 86_400.0


def rarely(*values):
    """Leave a case to the long tests."""
    return pytest.param(*values, marks=pytest.mark.test_all)


@pytest.fixture(scope="module")
def mother():
    """The process that forks consumers."""
    with zygote() as found:
        yield found


@pytest.fixture
def url(request, name_of_database):
    """The URL of an empty database of this name."""
    return request.getfixturevalue(f"{name_of_database}_url")


def each_database(quick, rare=("sqlite", "postgresql", "mariadb"), ways=("run", "async run")):
    """Pair databases and ways; all but the quick ones are left to the long tests."""
    pairs = [(database, way) for database in rare for way in ways]
    return pytest.mark.parametrize(
        ("name_of_database", "way"),
        [pair if pair in quick else rarely(*pair) for pair in pairs],
    )


@pytest.mark.parametrize(
    ("name_of_database", "way", "most"),
    [
        ("sqlite", "run", ALL),
        ("postgresql", "run", SOME),
        ("mariadb", "run", SOME),
        *(("sqlite", way, SOME) for way in KINDS if way != "run"),
        ("postgresql", "async run", SOME),
        *(
            rarely(database, way, ALL)
            for database in ("sqlite", "postgresql", "mariadb")
            for way in KINDS
            if (database, way) != ("sqlite", "run")
        ),
    ],
)
def test_killed_at_points_of_a_page(mother, url, way, most):
    """At every statement, commit, request and step of a task: nothing is lost, nothing twice."""
    kind = KINDS[way]
    # In one partition the points of a page come in a row.
    with scene(mother, url, replace(kind.script, partitions=1)) as here:
        points = kind.points(most)
        found = pursue(here, kind.life(here), each_point(points, fetched=True))
    assert not found.complaints
    assert found.counts["kill"] == len(points)
    assert here.feed.end > REST, "some of those who were killed have to have committed"


@each_database({("sqlite", "run")})
def test_killed_at_the_start(mother, url, way):
    """While leases are taken and cursors are loaded: the next one can take and load them."""
    kind = KINDS[way]
    with scene(mother, url, kind.script) as here:
        points = range(1, 350, 28) if "async" in way else range(1, 150, 24)
        found = pursue(here, kind.life(here), each_point(points, fetched=False))
    assert not found.complaints
    assert found.counts["kill"] == len(points)


@each_database({}, ways=("run", "async run, lanes"))
def test_killed_at_any_moment(mother, url, way):
    """In the middle of whatever a process or a database driver does."""
    kind, seed = KINDS[way], 1
    with scene(mother, url, kind.script) as here:
        strikes = by_dice(random.Random(seed), 12, last=60, seconds=0.2)
        found = pursue(here, kind.life(here), strikes)
    assert not found.complaints, f"seed {seed}"


@pytest.mark.parametrize(
    ("name_of_database", "case"),
    [
        ("sqlite", (LOOP, "redistributed", 31)),
        rarely("sqlite", (LOOP, "redistributed", 11)),
        rarely("postgresql", (LOOP, "redistributed", 11)),
        rarely("mariadb", (LOOP, "redistributed", 11)),
        rarely("sqlite", (LOOP, "split twice", 41)),
        rarely("sqlite", (LOOP, "split, then redistributed", 41)),
        rarely("sqlite", ("run", "split", 61)),
        rarely("sqlite", ("run", "redistributed", 61)),
        rarely("sqlite", ("async run", "split, then redistributed", 149)),
    ],
)
def test_killed_while_partitions_change(mother, url, tmp_path, case):
    """Before, in and behind the hand-over of cursors, and as long behind the start of the next."""
    way, change, every = case
    with reshaping(mother, url, tmp_path) as here:
        found = here.at_every_point(CHANGES_BY_NAME[change], way, every=every)
    assert not found.complaints
    assert found.counts["kill"] > 1


@pytest.mark.parametrize(
    ("name_of_database", "way", "point"),
    [
        ("postgresql", "run", 12),
        *(rarely("postgresql", "run", point) for point in (1, 6, 16, 20)),
        *(rarely("postgresql", "async run", point) for point in (1, 20, 40, 60, 80)),
    ],
)
def test_zombie_leaves_nothing(mother, url, way, point):
    """A process frozen past its lease, while it fetches, applies or commits, is fenced after it."""
    with scene(mother, url, Script(partitions=1)) as here:
        life = here.life(way, strike_at=point, fetched=True, options={"lease": 0.3})
        found = zombie(here, life, events=9)
    assert not found.complaints


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("way", "points"), [("run", (1, 6, 12, 16, 20)), ("async run", (1, 20, 40, 60, 80))]
)
def test_zombie_in_sqlite_is_fenced(mother, sqlite_url, way, points):
    """A process frozen with a page, and without the lock, is replaced, and its commit refused."""
    fenced = 0
    with scene(mother, sqlite_url, Script(partitions=1)) as here:
        for point in points:
            life = here.life(way, strike_at=point, fetched=True, options={"lease": 0.3})
            for _ in range(3):
                found = zombie(here, life, events=9)
                assert not found.complaints, f"frozen at point {point}"
                if found.counts["taken over"]:
                    break
                # It was frozen while a thread of its renewed the lease, with the lock.
            assert found.counts["taken over"]
            fenced += found.counts["fenced"]
    # A process that sees first that the lease is lost does not try to commit.
    assert fenced > len(points) / 2


@pytest.mark.parametrize(
    ("name_of_database", "seconds"),
    [("sqlite", 1), rarely("sqlite", 4), rarely("postgresql", 8), rarely("mariadb", 4)],
)
def test_chaos(mother, url, seconds):
    """Four workers are frozen, killed, asked to leave and replaced by a seed's dice."""
    seed = 1
    with scene(mother, url, Script(partitions=5)) as here:
        options = {"lease": LEASE, "follow": True}
        # The database's clock decides, so that a process's own clock does not matter.
        clocks = (0, DAY, -DAY, 0)
        lives = [here.life("run", options=options, rest=0.005, clock=clock) for clock in clocks]
        found = Chaos(here, lives, seed=seed).run(seconds)
    assert not found.complaints, f"seed {seed}"
    assert found.counts["freeze"] + found.counts["kill"] + found.counts["leave"]


@pytest.mark.parametrize(
    ("name_of_database", "clock"),
    [
        ("sqlite", DAY),
        *(rarely(name, DAY) for name in ("postgresql", "mariadb")),
        *(rarely(name, -DAY) for name in ("sqlite", "postgresql", "mariadb")),
    ],
)
def test_clock_of_a_process_does_not_matter(mother, url, clock):
    """A process whose clock is a day off takes nothing from another, which keeps its lease."""
    with scene(mother, url, Script(partitions=1)) as here:
        here.begin(120)
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


@each_database({("sqlite", "run"), ("sqlite", "async run")})
def test_reset_is_seen_at_the_head(mother, url, way):
    """Everything is applied once more, also where no new event would show that a cursor moved."""
    with scene(mother, url, Script()) as here:
        life = here.life(way, options={"lease": LEASE, "follow": True})
        found = reset_at_head(here, life, events=9)
    assert not found.complaints


@each_database({("postgresql", "run"), ("mariadb", "async run")}, ("postgresql", "mariadb"))
def test_terminated_at_every_point(mother, url, way):
    """The server ends connections at every statement and phase: the consumer goes on by itself."""
    seed = "1"
    with scene(mother, url, Script()) as here:
        life = here.life(way, strike_at=1, gap=100, most=8, seed=seed)
        found = terminations(here, life, events=30)
    assert not found.complaints, f"seed {seed}"
    assert found.counts["termination"] > 2


@each_database({("postgresql", "run")}, ("postgresql", "mariadb"))
def test_commit_whose_reply_is_lost(mother, url, way):
    """The cursor says whether a COMMIT took place: the page is not applied again, nor left out."""
    seed = "1"
    with scene(mother, url, Script()) as here:
        found = lost_commits(here, here.life(way), events=30, seed=seed)
    assert not found.complaints, f"seed {seed}"
    assert found.counts["reply lost"]
    assert found.counts["request lost"]


@pytest.mark.test_all
def test_restarted_server(mother):
    """The server is shut down, or crashes, and comes back: the consumer goes on by itself."""
    seed = 1
    with cluster() as server, scene(mother, server.new_database(), Script()) as here:
        life = here.life("run", options={"follow": True}, rest=0.005)
        found = restarts(here, life, server, times=4, dice=random.Random(seed))
    assert not found.complaints, f"seed {seed}"


@each_database(
    {("postgresql", "run"), ("sqlite", LOOP)}, ways=("loop, commit first", "run", "async run")
)
@pytest.mark.parametrize("seed", [0, rarely(1), rarely(2)])
def test_all_that_start_at_once(mother, url, way, seed):
    """Processes that start in the same moment agree on where they start."""
    with scene(mother, url, Script(start=5)) as here:
        life = here.life(way, options={"start": "c5", "lease": 0.3})
        found = starts(here, [life] * 3, events=11, dice=random.Random(seed))
    assert not found.complaints
