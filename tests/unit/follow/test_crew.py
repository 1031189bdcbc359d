import pytest
from harness.crew_world import LEASE, POLL, CrewWorld, crew, drained
from harness.follow_world import kinds, of_kind

from zeroeventhub import Partition
from zeroeventhub._follow import (
    Await,
    Claim,
    Discover,
    Inherit,
    Outcome,
    Pause,
    Release,
    Start,
    Stop,
)
from zeroeventhub.errors import ConfigurationError, LeaseLost, ProtocolError

TWO = [Partition(0), Partition(1)]
FAMILY = [Partition(1, starts_after=0), Partition(0, closed=True)]


def test_partitions_are_claimed_started_and_awaited():
    """What was drained is given back, and the run ends when all was."""
    world = CrewWorld(TWO, [drained(0), drained(1)])
    assert crew(world) == [
        *[Discover(), Claim((0, 1))],
        *[Start(TWO[0], (0, 1)), Start(TWO[1], (0, 1)), Await(LEASE / 3)],
        *[Release(frozenset({0})), Claim((1,)), Await(LEASE / 3)],
        *[Release(frozenset({1})), Claim(())],
    ]


def test_leases_are_renewed_three_times_as_often_as_they_run_out():
    """Between two claims there is a wait of a third of a lease at most."""
    world = CrewWorld(TWO)
    steps = crew(world, most=40, forever=True)
    assert kinds(steps)[4:] == [Await, Claim] * 18
    assert {step.seconds for step in of_kind(steps, Await)} == {LEASE / 3}


def test_only_chosen_partitions_are_claimed():
    """Others are nobody's business; one that does not exist is named."""
    world = CrewWorld(TWO, [drained(1)])
    assert [step.wanted for step in of_kind(crew(world, partitions={1}), Claim)] == [(1,), ()]
    with pytest.raises(ConfigurationError, match="no partition 3; it has 0, 1"):
        crew(CrewWorld(TWO), partitions={3})


def test_layout_that_cannot_be_read_is_refused():
    """A partition whose parent never ends is not of the protocol."""
    with pytest.raises(ProtocolError, match="never ends"):
        crew(CrewWorld([Partition(0), Partition(1, starts_after=0)]))


def test_cursors_are_inherited_before_any_is_claimed():
    """Partitions that go on from others get their cursors first."""
    world = CrewWorld([Partition(4, cursor_from=(2, 1)), Partition(5)])
    assert crew(world)[:3] == [Discover(), Inherit({4: (2, 1)}, (4, 5)), Claim((4, 5))]


def test_child_is_claimed_when_its_parent_was_drained_here():
    """A child is not wanted before its parent's end was written down."""
    world = CrewWorld(FAMILY, [[], drained(0), drained(1)])
    steps = crew(world, forever=True, most=11)
    assert [step.wanted for step in of_kind(steps, Claim)] == [(0,), (0,), (1,)]
    assert steps.index(Release(frozenset({0}))) < steps.index(Start(FAMILY[0], (1, 0)))


def test_parent_that_was_put_back_is_read_again_before_its_child():
    """The store says what was read to its end, and an operator may have it say otherwise."""
    world = CrewWorld(FAMILY, [drained(0)], changes={9: lambda world: world.ended.clear()})
    steps = crew(world, forever=True, most=16)
    assert [step.partition.id for step in of_kind(steps, Start)] == [0, 1, 0]
    again = len(steps) - 1 - steps[::-1].index(Start(FAMILY[1], (1, 0)))
    assert Stop(frozenset({1})) in steps[:again]


def test_child_is_claimed_when_its_parent_was_drained_elsewhere():
    """What a claim tells is acted upon at once: the parent given back, and the child claimed."""
    world = CrewWorld(FAMILY, ended={0})
    assert crew(world, most=6)[1:5] == [
        *[Claim((0,)), Release(frozenset({0})), Claim((1,)), Start(FAMILY[0], (1, 0))]
    ]


def test_child_stops_when_its_parent_is_to_be_read_again():
    """An operator who sets the parent's cursor back has the child wait for it."""

    def set_back(world):
        world.ended.clear()

    world = CrewWorld(FAMILY, ended={0}, changes={7: set_back})
    steps = crew(world, forever=True, most=12)
    assert steps[5:12] == [
        *[Await(LEASE / 3), Claim((1,)), Claim((0,)), Stop(frozenset({1}))],
        *[Start(FAMILY[1], (1, 0)), Await(LEASE / 3), Release(frozenset({1}))],
    ]


def test_parent_that_is_not_read_holds_nobody_up():
    """A child whose parent is not among the chosen is claimed at once."""
    assert Claim((1,)) in crew(CrewWorld(FAMILY), partitions={1}, most=3)


def test_surplus_is_given_back_when_its_reading_has_ended():
    """What belongs to others is stopped first, asked once, and given back after its last page."""

    def come(world):
        world.surplus = {1}

    endings = [[], [], [Outcome(1)]]
    world = CrewWorld(TWO, endings, changes={6: come, 12: lambda w: w.elsewhere.update({1: 9})})
    steps = crew(world, forever=True, most=13)
    assert steps[5:] == [
        *[Claim((0, 1)), Stop(frozenset({1})), Await(LEASE / 3)],
        *[Claim((0, 1)), Await(LEASE / 3)],
        *[Release(frozenset({1})), Claim((0, 1)), Await(LEASE / 3)],
    ]


def test_reading_that_lost_its_lease_is_stopped_and_started_again_with_another():
    """It is not started beside what is left of it."""

    def lose(world):
        world.held.remove(0)
        world.elsewhere[0] = 5

    def free(world):
        world.elsewhere.clear()

    world = CrewWorld(TWO, [[], [], [Outcome(0)]], changes={6: lose, 9: free})
    steps = crew(world, forever=True, most=12)
    assert steps[5:] == [
        *[Claim((0, 1)), Stop(frozenset({0})), Await(LEASE / 3), Claim((0, 1)), Await(LEASE / 3)],
        *[Claim((0, 1)), Start(TWO[0], (0, 1))],
    ]


def test_reader_that_was_fenced_is_started_again_if_the_lease_can_be_had():
    """A lost lease ends nothing but the reading that lost it."""
    world = CrewWorld(TWO, [[Outcome(0, LeaseLost("gone"))]])
    assert crew(world, forever=True, most=7)[5:] == [Claim((0, 1)), Start(TWO[0], (0, 1))]


def test_letters_of_a_partition_that_has_ended_are_applied():
    """It is read once more, to its end; then its lease is given back."""

    def settle(world):
        world.letters.clear()

    world = CrewWorld(
        [Partition(0, closed=True)], [drained(0)], ended={0}, letters={0}, changes={5: settle}
    )
    assert kinds(crew(world)) == [*[Discover, Claim, Start, Await, Claim, Release, Claim]]


@pytest.mark.parametrize("moved", [True, False])
def test_run_to_the_head_ends_beside_others_that_are_alive(moved):
    """What another process reads is waited for only while that process may be dead."""

    def renew(world):
        world.elsewhere[1] += moved

    world = CrewWorld(
        TWO, [drained(0)], elsewhere={1: 100.0}, changes=dict.fromkeys(range(8, 61), renew)
    )
    steps = crew(world)
    assert kinds(steps)[:8] == [*[Discover, Claim, Start, Await, Release, Claim, Pause, Discover]]
    assert (len(steps) < 60) is moved


def test_lease_of_the_dead_is_waited_for():
    """When it has run out, its partition is read."""

    def run_out(world):
        world.elsewhere.clear()

    world = CrewWorld(TWO, [drained(0), drained(1)], elsewhere={1: 100.0}, changes={20: run_out})
    assert kinds(crew(world))[-4:] == [Start, Await, Release, Claim]
    assert Pause(LEASE / 3) in world.taken


def test_run_to_the_head_waits_for_children_of_what_others_read():
    """A child that nobody reads yet is not done, though its parent's reader is alive."""

    def renew(world):
        world.elsewhere[0] += 1

    world = CrewWorld(FAMILY, elsewhere={0: 1.0}, changes=dict.fromkeys(range(60), renew))
    assert len(crew(world)) == 60


def test_who_has_nothing_to_read_looks_at_the_feed_again():
    """Others may have learned of partitions that are unknown here."""

    def grow(world):
        world.layout = [*TWO, Partition(2)]

    world = CrewWorld(TWO, elsewhere={0: 9, 1: 9}, changes={6: grow})
    steps = crew(world, forever=True, most=9)
    assert steps == [
        *[Discover(), Claim((0, 1)), Pause(LEASE / 3)] * 2,
        *[Discover(), Claim((0, 1, 2)), Start(Partition(2), (0, 1, 2))],
    ]


def test_feed_that_was_read_to_its_end_is_looked_at_as_often_as_its_head():
    """When all partitions have ended, those who follow wait for new ones."""
    world = CrewWorld([Partition(0, closed=True)], ended={0})
    steps = crew(world, forever=True, most=7)
    assert steps[3:] == [Claim(()), Pause(POLL), Discover(), Claim(())]


def test_partition_that_was_drained_is_read_again_in_another_layout():
    """It may have been closed since, behind more events."""

    def split(world):
        world.layout = [Partition(2, starts_after=0), Partition(0, closed=True), Partition(1)]

    world = CrewWorld(TWO, [drained(0)], elsewhere={1: 9}, changes={7: split})
    steps = crew(world, most=10)
    assert kinds(steps)[4:] == [Release, Claim, Pause, Discover, Claim, Start]
    assert steps[-1].partition.id == 0
