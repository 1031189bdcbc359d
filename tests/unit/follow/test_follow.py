import pytest
from harness.follow_world import CHANGED, POLL, World, delivered, follow, kinds, of_kind

from zeroeventhub import FIRST, Event, Page, Partition
from zeroeventhub._follow import Advance, Deliver, Discover, Fetch, Inherit, Load, Pause, Place
from zeroeventhub.errors import ConfigurationError, ProtocolError, Unreachable


def test_partitions_take_turns():
    """A page of each partition is read in turn, in the order in which the feed names them."""
    world = World([Partition(2), Partition(0)], {0: ["ab", "c"], 2: ["d", "e", "f"]})
    assert delivered(follow(world)) == [(2, "d"), (0, "ab"), (2, "e"), (0, "c"), (2, "f")]


def test_page_goes_through_its_steps():
    """A page is loaded for, fetched and delivered with the cursor that it was read from."""
    world = World([Partition(0)], {0: ["a"]}, cursors={0: "0"})
    page = Page([Event.of("a")], "1")
    assert follow(world) == [
        *[Discover(), Load(0, (0,)), Fetch(0, "0"), Deliver(0, Place("0"), page)],
        *[Load(0, (0,)), Fetch(0, "1")],
    ]


def test_follower_that_is_not_to_wait_ends_when_caught_up():
    """Without `forever` it ends at the head, and does not pause there."""
    steps = follow(World([Partition(0), Partition(1)], {0: ["a"]}, cursors={1: "0"}))
    assert Pause not in kinds(steps)
    assert len(steps) < 200


def test_follower_that_waits_pauses_at_the_head():
    """With `forever` it pauses at the head, and then reads what has come."""
    world = World([Partition(0)], {0: []}, arriving=["a"], cursors={0: "0"})
    steps = follow(world, most=8, forever=True)
    assert kinds(steps) == [Discover, Load, Fetch, Pause, Load, Fetch, Deliver, Load]
    assert steps[3] == Pause(POLL, reason=None)


def test_cursor_that_moves_over_nothing_is_advanced():
    """A page without events whose cursor has moved is committed by itself."""
    world = World([Partition(0)], {0: ["", "a"]})
    steps = follow(world)
    assert of_kind(steps, Advance) == [Advance(0, Place(FIRST), "1")]
    assert delivered(steps) == [(0, "a")]


def test_fence_at_an_advance_is_survived():
    """When another process has moved the cursor, it is loaded again."""
    world = World([Partition(0)], {0: ["", "a"]}, fences=2)
    steps = follow(world)
    assert kinds(steps)[:7] == [Discover, Load, Fetch, Advance, Load, Fetch, Advance]
    assert delivered(steps) == [(0, "a")]


def test_child_waits_until_its_parent_is_drained():
    """A partition that starts after another is not even loaded before that one's end."""
    parents = [
        Partition(2, starts_after=1),
        Partition(1, closed=True, starts_after=0),
        Partition(0, closed=True),
    ]
    steps = follow(World([*parents, Partition(3)], {0: ["a", "b"], 1: ["c"], 2: ["d"], 3: ["e"]}))
    assert delivered(steps) == [(0, "a"), (3, "e"), (0, "b"), (1, "c"), (2, "d")]
    first_load = next(
        place for place, step in enumerate(steps) if isinstance(step, Load) and step.partition == 1
    )
    assert Fetch(0, "2") in steps[:first_load]


@pytest.mark.parametrize(
    "layout",
    [
        [Partition(0), Partition(1, starts_after=0)],
        [Partition(0, closed=True, starts_after=0)],
        [Partition(0, closed=True, starts_after=1), Partition(1, closed=True, starts_after=0)],
    ],
    ids=["open parent", "itself", "circle"],
)
def test_partition_that_waits_forever_is_refused(layout):
    """A layout in which a partition could never be read is not of the protocol."""
    with pytest.raises(ProtocolError, match="waits for partition 0, which never ends"):
        follow(World(layout, {0: ["a"], 1: ["b"]}))


def test_parent_that_is_not_read_holds_nobody_up():
    """A child is read at once if its parent is not among the chosen, or no longer there."""
    layout = [
        *[Partition(0, closed=True), Partition(1, starts_after=0), Partition(2, starts_after=9)],
    ]
    steps = follow(World(layout, {0: ["a"], 1: ["b"], 2: ["c"]}), partitions={1, 2})
    assert delivered(steps) == [(1, "b"), (2, "c")]


def test_partition_that_does_not_exist_is_refused():
    """A chosen partition that the feed does not have is named in the error."""
    with pytest.raises(ConfigurationError, match="no partition 3; it has 0, 1"):
        follow(World([Partition(1), Partition(0)]), partitions={0, 3})


def test_cursors_are_inherited_before_any_is_loaded():
    """The cursors of partitions that are gone are handed on, for every layout and all heirs."""
    layout = [Partition(4, cursor_from=(2, 1)), Partition(5), Partition(6, cursor_from=(2,))]
    world = World(layout, {5: ["a"]}, trouble=[None, None, CHANGED])
    steps = follow(world, partitions={5})
    handed_on = Inherit({4: (2, 1), 6: (2,)}, (4, 5, 6))
    assert kinds(steps[:3]) == [Discover, Inherit, Load]
    assert of_kind(steps, Inherit) == [handed_on, handed_on]


def test_nothing_is_inherited_where_nothing_is_gone():
    """In a layout whose partitions have no cursors from others, none are handed on."""
    assert Inherit not in kinds(follow(World([Partition(0), Partition(1)])))


def test_drained_feed_is_discovered_again():
    """When all partitions have been read to their end, the follower waits for new ones."""
    world = World([Partition(0, closed=True)], {0: ["a"]}, cursors={0: "0"})
    assert kinds(follow(world, forever=True))[:8] == [
        *[Discover, Load, Fetch, Deliver, Load, Fetch, Pause, Discover]
    ]


@pytest.mark.parametrize("forever", [True, False])
@pytest.mark.parametrize("after", range(25))
def test_stop_between_any_two_steps_ends(after, forever):
    """Wherever it is stopped, it finishes the page at hand at most, and asks for no other."""
    trouble = [Unreachable("away"), None, Unreachable("away"), None, CHANGED]
    world = World([Partition(0), Partition(1)], {0: ["a", ""], 1: ["b"]}, trouble, arriving=["c"])
    steps = follow(world, forever=forever, stopped=lambda: len(world.taken) >= after)
    rest = kinds(steps)[after:]
    assert len(rest) <= 2
    assert Discover not in rest
    assert Load not in rest


def test_stop_ends_a_row_of_failures():
    """A follower that is stopped does not try again."""
    world = World([Partition(0)], trouble=[Unreachable("away")] * 100)
    steps = follow(world, attempts=None, stopped=lambda: len(world.taken) >= 9)
    assert len(steps) <= 10
