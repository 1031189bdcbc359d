"""Whoever is killed, wherever it is: the next one goes on, and every event takes effect once."""

import random
from dataclasses import replace

import pytest
from harness.kills.lives import KINDS
from harness.kills.pursuit import REST, by_dice, each_point, pursue
from harness.kills.scene import scene
from harness.kills.zygote import zygote

POINTS = 24
"""Points of a page at which consumers of a kind are killed, at most."""

START = {False: range(1, 150, 12), True: range(1, 350, 28)}
"""Points of the start, before a page is there."""


@pytest.fixture(scope="module")
def mother():
    """The process that forks consumers."""
    with zygote() as found:
        yield found


@pytest.mark.parametrize("name", KINDS)
def test_killed_at_every_point_of_a_page(mother, database_url, name):
    """At every statement, commit, request and step of a task: nothing is lost, nothing twice."""
    kind = KINDS[name]
    # In one partition the points of a page come in a row.
    with scene(mother, database_url, replace(kind.script, partitions=1)) as here:
        points = kind.points(POINTS)
        found = pursue(here, kind.life(here), each_point(points, fetched=True))
    assert not found.complaints
    assert found.deeds["kill"] == len(points)
    assert here.feed.end > REST, "some of those who were killed have to have committed"


@pytest.mark.parametrize("name", ["run", "async run"])
def test_killed_at_the_start(mother, database_url, name):
    """While leases are taken and cursors are loaded: the next one can take and load them."""
    kind = KINDS[name]
    with scene(mother, database_url, kind.script) as here:
        points = START["async" in name]
        found = pursue(here, kind.life(here), each_point(points, fetched=False))
    assert not found.complaints
    assert found.deeds["kill"] == len(points)


@pytest.mark.parametrize("name", ["run", "async run, lanes"])
def test_killed_at_any_moment(mother, database_url, name):
    """In the middle of whatever a process or a database driver does."""
    kind, seed = KINDS[name], 1
    with scene(mother, database_url, kind.script) as here:
        strikes = by_dice(random.Random(seed), 12, last=60, seconds=0.2)
        found = pursue(here, kind.life(here), strikes)
    assert not found.complaints, f"seed {seed}"
