"""Consumers that are killed while partitions change: nothing lost, nothing twice, keys in order."""

import pytest
from harness.faults.layouts import CHANGES
from harness.kills.reshaping import reshaping
from harness.kills.zygote import zygote

BY_NAME = {change.name: change for change in CHANGES}
LOOP = "loop, commit first"
SHOWN = [
    (LOOP, "split twice", 41),
    (LOOP, "split, then redistributed", 41),
    ("run", "split", 61),
    ("run", "redistributed", 61),
    ("async run", "split, then redistributed", 149),
]
"""What is shown, and of how many points one; the long tests show all."""


@pytest.fixture(scope="module")
def mother():
    """The process that forks consumers."""
    with zygote() as found:
        yield found


@pytest.mark.parametrize(("way", "change", "every"), SHOWN)
def test_killed_while_partitions_change(mother, tmp_path, way, change, every):
    """Before, in and behind the hand-over of cursors, and as long behind the start of the next."""
    url = f"sqlite:///{tmp_path}/consumer.db"
    with reshaping(mother, url, tmp_path) as here:
        found = here.at_every_point(BY_NAME[change], way, every=every)
    assert not found.complaints
    assert found.deeds["kill"] > 3


def test_killed_in_a_hand_over(mother, database_url, tmp_path):
    """The databases differ in what the dead leave: locks, and transactions that end late."""
    with reshaping(mother, database_url, tmp_path) as here:
        found = here.at_every_point(BY_NAME["redistributed"], LOOP, every=11)
    assert not found.complaints
    assert found.deeds["kill"] > 3
