"""What a follower does at the head of a feed that says where it is, or waits there."""

from itertools import pairwise

import pytest
from harness.follow_world import CHANGED, POLL, World, delivered, follow, follower, kinds, of_kind

from zeroeventhub import FIRST, Event, Page, Partition
from zeroeventhub._follow import Deliver, Discover, Fetch, Load, Pause
from zeroeventhub._follow.page_reading import LONGEST_WAIT
from zeroeventhub.errors import ProtocolError
from zeroeventhub.protocol import CAUGHT_UP, WAIT

SAYS = frozenset({CAUGHT_UP})
WAITS = frozenset({CAUGHT_UP, WAIT})


def waited(steps):
    """The requests that the feed was asked to wait with."""
    return [step for step in of_kind(steps, Fetch) if step.wait]


def test_run_ends_with_the_page_that_reached_the_head():
    """Behind a page that held everything there is no further request."""
    steps = follow(World([Partition(0)], {0: ["a", "b"]}, extensions=SAYS))
    assert kinds(steps) == [Discover, *[Load, Fetch, Deliver] * 2, Load]


def test_page_at_the_head_that_was_not_committed_is_delivered_again():
    """The head is reached by a commit: what was only delivered comes again and again."""
    world = World([Partition(0)], {0: ["a"]}, extensions=SAYS, uncommitted=2)
    assert kinds(follow(world)) == [Discover, *[Load, Fetch, Deliver] * 3, Load]
    assert delivered(world.taken) == [(0, "a")] * 3
    assert world.cursors == {0: "1"}


def test_run_ends_where_a_rival_has_committed_the_last_page():
    """It does not matter which process committed the page that reached the head."""
    world = World([Partition(0)], {0: ["a"]}, extensions=SAYS, rival=["1"])
    assert kinds(follow(world)) == [Discover, Load, Fetch, Deliver, Load]


def test_head_that_a_rival_has_left_is_looked_for_again():
    """Where a rival has gone on behind the head that was seen, what follows is read from there."""
    world = World([Partition(0)], {0: ["a", "b"]}, extensions=SAYS, rival=["1", "3"])
    world.carry_out = pacing(world, every=2)
    steps = follow(world)
    assert delivered(steps)[:2] == [(0, "a"), (0, "b")]
    assert [step.cursor for step in of_kind(steps, Fetch)] == ["_first", "1", "3"]


def test_closed_partition_is_drained_by_the_page_at_its_head():
    """A child starts as soon as the page that reached its closed parent's head is committed."""
    layout = [Partition(1, starts_after=0), Partition(0, closed=True)]
    world = World(layout, {0: ["a"], 1: ["b"]}, extensions=SAYS)
    steps = follow(world, most=10, forever=True)
    # Before the child is begun, the parent is seen to be still where it was left.
    loads = [Load, Load, Load]
    assert kinds(steps) == [Discover, Load, Fetch, Deliver, *loads, Fetch, Deliver, Pause]
    assert [step.partition for step in of_kind(steps, Load)] == [0, 0, 1, 0]


def test_parent_that_is_put_back_while_its_child_is_read_comes_first_again():
    """An operator who lets the consumer start again does not have to stop it."""
    layout = [Partition(1, starts_after=0), Partition(0, closed=True)]
    world = World(layout, {0: ["a"], 1: ["b", "c"]}, extensions=SAYS)

    def commit(step):
        World.commit(world, step)
        if step.partition == 1 and not world.epochs:
            put_back(world)

    world.commit = commit
    assert delivered(follow(world)) == [(0, "a"), (1, "b"), (0, "a"), (1, "b"), (1, "c")]


def test_parent_that_is_put_back_before_its_child_is_begun_comes_first_again():
    """The child was never read, so that only the parent's cursor can tell."""
    layout = [Partition(1, starts_after=0), Partition(0, closed=True)]
    world = World(layout, {0: ["a"], 1: ["b"]}, extensions=SAYS)
    carry_out = world.carry_out

    def operated(step):
        if isinstance(step, Load) and step.partition == 1 and not world.epochs:
            put_back(world)
        return carry_out(step)

    world.carry_out = operated
    assert delivered(follow(world)) == [(0, "a"), (0, "a"), (1, "b")]


def put_back(world):
    """Let the consumer start again, as an operator does."""
    world.epochs = dict.fromkeys(world.cursors, 1)
    world.cursors = dict.fromkeys(world.cursors, FIRST)


def test_child_waits_while_its_parents_last_page_is_not_committed():
    """A parent is not drained by pages that were only delivered."""
    layout = [Partition(1, starts_after=0), Partition(0, closed=True)]
    world = World(layout, {0: ["a"], 1: ["b"]}, extensions=SAYS, uncommitted=3)
    steps = follow(world, most=30, forever=True)
    assert delivered(steps)[:5] == [*[(0, "a")] * 4, (1, "b")]


@pytest.mark.parametrize("forever", [True, False])
def test_feed_without_the_flag_is_asked_until_nothing_follows(forever):
    """Where pages do not say that they reached the head, an empty one shows it."""
    steps = follow(World([Partition(0)], {0: ["a"]}), most=8, forever=forever)
    assert kinds(steps)[:6] == [Discover, Load, Fetch, Deliver, Load, Fetch]
    assert kinds(steps)[6:] == ([Pause, Load] if forever else [])


@pytest.mark.parametrize("partitions", [1, 2, 5])
def test_run_ends_beside_writers_that_never_pause(partitions):
    """A run that does not follow ends though something new is there behind every page."""
    layout = [Partition(number) for number in range(partitions)]
    pages = {number: ["a", "b"] for number in range(partitions)}
    world = World(layout, pages, extensions=SAYS)
    world.carry_out = pacing(world, every=2 * partitions)
    steps = follow(world, most=500)
    assert len(steps) < 500
    assert {(number, letter) for number in range(partitions) for letter in "ab"} <= set(
        delivered(steps)
    )


def pacing(world, every):
    """Carry out steps beside writers that add a page behind every so many that are read."""
    carry_out, fetched = world.carry_out, []

    def carry_out_more(step):
        result = carry_out(step)
        if isinstance(step, Fetch):
            fetched.append(step)
            if len(fetched) % every == 0:
                for pages in world.pages.values():
                    pages.append("w")
        return result

    return carry_out_more


def test_only_the_page_at_the_head_ends_a_run():
    """The page that held everything is the last one, though more has come behind it."""
    world = World([Partition(0)], {0: ["a"]}, extensions=SAYS, writers=True)
    assert delivered(follow(world)) == [(0, "a")]
    assert world.pages[0] == ["a", "w"]


def test_feed_waits_once_its_head_was_seen_and_committed():
    """A feed that can wait is asked to, from the cursor of its head on and not before."""
    world = World([Partition(0)], {0: ["a"]}, extensions=WAITS)
    steps = follow(world, most=7, forever=True)
    assert steps[-2:] == [Fetch(0, "1", LONGEST_WAIT), Pause(0.1)]
    assert waited(steps[:-2]) == []
    assert Pause not in kinds(steps[:-1])


def test_news_that_end_a_wait_are_followed_by_the_next_wait():
    """Behind a page that came while the feed waited there is no pause."""
    world = World([Partition(0)], {0: []}, extensions=WAITS, writers=True, cursors={0: "0"})
    steps = follow(world, most=9, forever=True)
    assert [(step.cursor, step.wait) for step in of_kind(steps, Fetch)][:2] == [
        ("0", 0.0),
        ("0", LONGEST_WAIT),
    ]
    assert kinds(steps)[3:8] == [Pause, Load, Fetch, Deliver, Load]


def test_feed_does_not_wait_while_its_last_page_is_not_committed():
    """A page that was only delivered is asked for at once."""
    world = World([Partition(0)], {0: ["a"]}, extensions=WAITS, uncommitted=5)
    steps = follow(world, most=16, forever=True)
    assert waited(steps) == []
    assert delivered(steps) == [(0, "a")] * 5


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ([Partition(0)], {"extensions": SAYS}),
        ([Partition(0)], {"extensions": WAITS, "forever": False}),
        ([Partition(0), Partition(1)], {"extensions": WAITS}),
        ([Partition(0, closed=True)], {"extensions": WAITS}),
    ],
    ids=["not announced", "does not follow", "two partitions", "closed"],
)
def test_feed_is_not_asked_to_wait(layout, options):
    """It is asked to wait only if it can, by one who follows a single partition that is open."""
    options = {"forever": True, **options}
    world = World(layout, {0: ["a"], 1: ["b"]}, extensions=options.pop("extensions"))
    assert waited(follow(world, most=60, **options)) == []


@pytest.mark.parametrize("only", [0, 1])
def test_feed_waits_for_one_partition_of_several(only):
    """One who has chosen a single partition of several has it waited for."""
    world = World([Partition(0), Partition(1)], {0: ["a"], 1: ["b"]}, extensions=WAITS)
    steps = follow(world, most=30, forever=True, partitions={only})
    assert waited(steps)[0] == Fetch(only, "1", LONGEST_WAIT)


def test_feed_waits_for_the_child_of_drained_parents():
    """When all but one partition are closed and drained, the one is waited for."""
    layout = [Partition(1, starts_after=0), Partition(0, closed=True), Partition(2, closed=True)]
    world = World(layout, {0: ["a"], 1: ["b"], 2: ["c"]}, extensions=WAITS)
    steps = follow(world, most=40, forever=True)
    assert {step.partition for step in waited(steps)} == {1}


def test_pause_between_waits_is_short():
    """Behind a wait that brought nothing the pause is a tenth of a second at most."""
    world = World([Partition(0)], {0: []}, extensions=WAITS)
    assert {pause.seconds for pause in of_kind(follow(world, forever=True), Pause)} == {0.1}


def test_pause_between_waits_is_not_longer_than_that_between_looks():
    """One who asked for shorter pauses has them behind a wait as well."""
    world = World([Partition(0)], {0: []}, extensions=WAITS)
    steps = follow(world, forever=True, poll_interval=0.01)
    assert {pause.seconds for pause in of_kind(steps, Pause)} == {0.01}


def test_feed_that_does_not_wait_though_it_says_so_is_not_asked_in_a_row():
    """Between two requests that brought nothing new there is always a pause."""
    world = World([Partition(0)], {0: ["a"]}, extensions=WAITS)
    steps = follow(world, most=300, forever=True)
    requests = [step for step in steps if isinstance(step, Fetch | Pause | Deliver)]
    assert not any(
        isinstance(first, Fetch) and isinstance(second, Fetch)
        for first, second in pairwise(requests)
    )
    assert len(of_kind(steps, Pause)) > 90


def test_pause_of_one_who_does_not_have_the_feed_wait_is_as_it_was():
    """At the heads of several partitions it pauses for as long as it was told."""
    world = World([Partition(0), Partition(1)], {0: ["a"], 1: ["b"]}, extensions=WAITS)
    steps = follow(world, forever=True)
    assert {pause.seconds for pause in of_kind(steps, Pause)} == {POLL}
    assert steps.index(Pause(POLL)) == 7


def test_head_is_forgotten_with_the_layout_that_it_was_seen_in():
    """What came to a partition between its head was seen and it was closed is not lost."""
    layout = [Partition(0), Partition(1, starts_after=0)]

    def close():
        world.layout = [Partition(0, closed=True), Partition(1, starts_after=0)]
        world.pages[0].append("b")

    trouble = [None, None, CHANGED]
    world = World(layout[:1], {0: ["a"], 1: ["c"]}, trouble, extensions=SAYS, rebuild=close)
    steps = follow(world, most=30, forever=True)
    assert delivered(steps) == [(0, "a"), (0, "b"), (1, "c")]


def test_stop_while_the_feed_waits_ends():
    """One who is stopped while the feed waits asks for nothing more."""
    world = World([Partition(0)], {0: []}, extensions=WAITS)
    follow(world, forever=True, most=50, stopped=lambda: bool(waited(world.taken)))
    assert kinds(world.taken)[-1] in {Fetch, Pause}
    assert len(waited(world.taken)) == 1


def test_events_that_do_not_move_the_cursor_are_refused():
    """A page that would come again for ever is not of the protocol, and not delivered."""
    world = World([Partition(0)], cursors={0: "1"})
    world.page = lambda pages, cursor: Page([Event.of("a")], cursor)
    with pytest.raises(ProtocolError, match="without moving the cursor"):
        follow(world)
    assert delivered(world.taken) == []


def test_follower_has_no_memory_between_two_runs():
    """What one run has seen of a head means nothing to the next."""
    world = World([Partition(0)], {0: ["a"]}, extensions=SAYS)
    follow(world)
    world.pages[0].append("b")
    assert follower() == follower()
    follow(world)
    assert delivered(world.taken) == [(0, "a"), (0, "b")]
