"""Which partitions are read, in which order, and which layouts cannot be."""

import pytest
from harness.followed import FAMILY, TWO, World, delivered, follow

from zeroeventhub import Partition
from zeroeventhub.consumer.steps import Fetch, Load
from zeroeventhub.errors import ConfigurationError, ProtocolError


def test_child_waits_until_its_parent_is_drained():
    """A partition that starts after another is not even loaded before that one's end."""
    parents = [
        Partition(2, starts_after=1),
        Partition(1, closed=True, starts_after=0),
        Partition(0, closed=True),
    ]
    pages = {0: ["a", "b"], 1: ["c"], 2: ["d"], 3: ["e"]}
    steps = follow(World([*parents, Partition(3)], pages))
    assert delivered(steps) == [(0, "a"), (3, "e"), (0, "b"), (1, "c"), (2, "d")]
    assert steps.index(Fetch(0, "2")) < steps.index(Load(1, (2, 1, 0, 3)))


@pytest.mark.parametrize(
    "layout",
    [
        [Partition(0), Partition(1, starts_after=0)],
        [Partition(0, closed=True, starts_after=0)],
        [Partition(0, closed=True, starts_after=1), Partition(1, closed=True, starts_after=0)],
        [Partition(2, starts_after=1), Partition(1, closed=True, starts_after=0), Partition(0)],
        [Partition(n, closed=True, starts_after=(n + 1) % 32_768) for n in range(32_768)],
    ],
)
def test_layout_that_cannot_be_read_is_refused(layout):
    """Partitions that would wait for ever are not of the protocol, whichever are chosen."""
    for partitions in (None, {layout[0].id}):
        with pytest.raises(ProtocolError, match="never ends"):
            follow(World(layout), partitions=partitions)


def test_parent_that_is_not_read_holds_no_child_up():
    """A chosen child starts at once where its parent was not chosen, or is gone."""
    layout = [*FAMILY, Partition(2, starts_after=9)]
    steps = follow(World(layout, {0: ["a"], 1: ["b"], 2: ["c"]}), partitions={1, 2})
    assert delivered(steps) == [(1, "b"), (2, "c")]


def test_partition_that_does_not_exist_is_refused():
    """A chosen partition that the feed does not have is named in the error."""
    with pytest.raises(ConfigurationError, match="no partition 3; it has 0, 1"):
        follow(World(TWO[::-1]), partitions={0, 3})
