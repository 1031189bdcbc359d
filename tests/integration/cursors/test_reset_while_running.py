"""An operator lets a consumer start again that is at work: it does not have to be stopped."""

import pytest
from harness.kills.rounds import reset_at_head
from harness.kills.scene import scene
from harness.kills.script import Script
from harness.kills.zygote import zygote

LEASE = 0.6


@pytest.fixture(scope="module")
def mother():
    """The process that forks consumers."""
    with zygote() as found:
        yield found


@pytest.mark.parametrize("way", ["run", "async run"])
def test_reset_is_seen_at_the_head(mother, database_url, way):
    """Everything is applied once more, also where no new event would show that a cursor moved."""
    with scene(mother, database_url, Script()) as here:
        life = here.life(way, options={"lease": LEASE, "follow": True})
        found = reset_at_head(here, life, events=9)
    assert not found.complaints
