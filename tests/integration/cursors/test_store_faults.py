"""A consumer's database that ends its connections, restarts, or loses the reply to a COMMIT."""

import random

import pytest
from harness.clusters import cluster
from harness.kills.rounds import lost_commits, restarts, starts, terminations
from harness.kills.scene import scene
from harness.kills.script import Script
from harness.kills.zygote import zygote

SERVERS = ("postgresql", "mariadb")
STARTS = 3


@pytest.fixture(scope="module")
def mother():
    """The process that forks consumers."""
    with zygote() as found:
        yield found


@pytest.fixture(params=SERVERS)
def server_url(request):
    """The URL of an empty database on a server, of each kind in turn."""
    return request.getfixturevalue(f"{request.param}_url")


@pytest.mark.parametrize("way", ["run", "async run"])
def test_terminated_at_every_point(mother, server_url, way):
    """The server ends connections at every statement and phase: the consumer goes on by itself."""
    seed = "1"
    with scene(mother, server_url, Script()) as here:
        life = here.life(way, strike_at=1, gap=100, most=12, seed=seed)
        found = terminations(here, life, events=45)
    assert not found.complaints, f"seed {seed}"
    assert found.deeds["termination"] > 5


@pytest.mark.parametrize("way", ["run", "async run"])
def test_commit_whose_reply_is_lost(mother, server_url, way):
    """The cursor says whether a COMMIT took place: the page is not applied again, nor left out."""
    seed = "1"
    with scene(mother, server_url, Script()) as here:
        found = lost_commits(here, here.life(way), events=45, seed=seed)
    assert not found.complaints, f"seed {seed}"
    assert found.deeds["reply lost"]
    assert found.deeds["request lost"]


def test_restarted_server(mother):
    """The server is shut down, or crashes, and comes back: the consumer goes on by itself."""
    seed = 1
    with cluster() as server, scene(mother, server.new_database(), Script()) as here:
        life = here.life("run", options={"follow": True}, rest=0.005)
        found = restarts(here, life, server, times=4, dice=random.Random(seed))
    assert not found.complaints, f"seed {seed}"


@pytest.mark.parametrize("way", ["loop, commit first", "run", "async run"])
def test_all_that_start_at_once(mother, database_url, way):
    """Processes that start in the same moment agree on where they start."""
    with scene(mother, database_url, Script(start=5)) as here:
        life = here.life(way, options={"start": "c5", "lease": 0.3})
        for seed in range(STARTS):
            found = starts(here, [life] * 3, events=11, dice=random.Random(seed))
            assert not found.complaints, f"seed {seed}"
