"""Which partitions are read and when, how often a step is tried, and what moves the cursor."""

import pickle
import random
from itertools import chain, cycle, islice, pairwise, product

import pytest
from harness.followed import FAMILY, ONE, TWO, World, delivered, follow, leased, of_kind, read

from zeroeventhub import Event, Page, Partition
from zeroeventhub.consumer.steps import Discover, EmptyPages, Fetch, Load, Pause
from zeroeventhub.errors import ConfigurationError, ProtocolError, Unavailable, Unreachable


def pauses(count, error):
    """The seconds of the pauses between a row of equal failures."""
    world = World(ONE, answers={Discover: [error] * count})
    return [pause.seconds for pause in of_kind(follow(world, attempts=None), Pause)]


def test_pauses_grow_up_to_a_ceiling_and_start_anew_after_a_success():
    """Pauses are random below a ceiling that doubles with each attempt, up to half a minute."""
    random.seed(1)
    rows = zip(*(pauses(12, Unreachable("away")) for _ in range(100)), strict=True)
    ceilings = [min(30, 0.1 * 2**attempt) for attempt in range(1, 13)]
    for seconds, ceiling in zip(map(max, rows), ceilings, strict=True):
        assert ceiling / 2 < seconds <= ceiling
    failures = [Unreachable("away")] * 10
    world = World(ONE, {0: ["a", "b"]}, answers={Fetch: [*failures, None, failures[0]]})
    follow(world, attempts=None)
    assert of_kind(world.taken, Pause)[-1].seconds <= 0.2


def test_feed_is_left_alone_for_as_long_as_it_asks():
    """A pause is at least as long as the feed asked for, up to half a minute."""
    assert all(seconds >= 20 for seconds in pauses(20, Unavailable("busy", retry_after=20)))
    assert pauses(20, Unavailable("busy", retry_after=1e9)) == [30] * 20


def test_circle_of_empty_pages_is_found_within_bounded_memory():
    """Empty pages may move the cursor for ever, and are refused once they come around again."""
    pages, size = EmptyPages(), len(pickle.dumps(EmptyPages()))
    for number in range(10_000):
        assert pages.moves(Page([], f"{number + 1}"), 0, f"{number}")
    assert len(pickle.dumps(pages)) < size + 100
    for before, length in product((0, 1, 2, 7, 100), (2, 3, 8, 99)):
        pages, cursors = EmptyPages(), chain(range(before), cycle(range(before, before + length)))
        shown = pairwise(islice(map(str, cursors), 4 * (before + length) + 4))
        with pytest.raises(ProtocolError, match="circle"):
            for start, end in shown:
                pages.moves(Page([], end), 0, start)


def test_events_that_do_not_move_the_cursor_are_refused():
    """They would come again for ever."""
    world = leased("a")
    world.page = lambda step: Page([Event.of("a")], step.cursor)
    with pytest.raises(ProtocolError, match="without moving the cursor"):
        read(world)


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
