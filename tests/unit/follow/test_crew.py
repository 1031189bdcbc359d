"""A process that shares a feed's partitions with others: which it reads, and how that ends."""

import pytest
from harness.follow_world import CHANGED, LEASE, POLL, World, crew, kinds, of_kind

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
from zeroeventhub.errors import (
    Forbidden,
    Halted,
    LeaseLost,
    StoreUnavailable,
    TokenChanged,
    Unavailable,
)

TWO = [Partition(0), Partition(1)]
FAMILY = [Partition(1, starts_after=0), Partition(0, closed=True)]
STANDS = Halted("stands still", partition=0)
HALTED = Outcome(0, STANDS, read=True)
CONFLICT = Outcome(0, CHANGED)
BOTH = frozenset({0, 1})


def shared(layout, endings=(), answers=None, **options):
    """A world in which readers end in these outcomes, one after the other."""
    return World(layout, endings=list(endings), answers=answers or {}, **options)


def drained(*partitions):
    """Outcomes of partitions that were read to their ends."""
    return [Outcome(number, drained=True, read=True) for number in partitions]


def test_partitions_are_claimed_started_and_awaited():
    """What was drained is given back, and the run ends when all was."""
    world = shared(TWO, [drained(0), drained(1)])
    assert crew(world) == [
        *[Discover(), Claim((0, 1))],
        *[Start(TWO[0], (0, 1)), Start(TWO[1], (0, 1)), Await(LEASE / 3)],
        *[Release(frozenset({0})), Claim((1,)), Await(LEASE / 3)],
        *[Release(frozenset({1})), Claim(())],
    ]


def test_leases_are_renewed_three_times_as_often_as_they_run_out():
    """Between two claims there is a wait of a third of a lease at most."""
    world = shared(TWO)
    steps = crew(world, most=40, forever=True)
    assert kinds(steps)[4:] == [Await, Claim] * 18
    assert {step.seconds for step in of_kind(steps, Await)} == {LEASE / 3}


def test_only_chosen_partitions_are_claimed():
    """Others are left alone."""
    world = shared(TWO, [drained(1)])
    assert [step.wanted for step in of_kind(crew(world, partitions={1}), Claim)] == [(1,), ()]


def test_parent_that_was_put_back_is_read_again_before_its_child():
    """The store says what was read to its end, and an operator may have it say otherwise."""
    world = shared(FAMILY, [drained(0)], changes={9: lambda world: world.ended.clear()})
    steps = crew(world, forever=True, most=16)
    assert steps.index(Release(frozenset({0}))) < steps.index(Start(FAMILY[0], (1, 0)))
    assert [step.partition.id for step in of_kind(steps, Start)] == [0, 1, 0]
    again = len(steps) - 1 - steps[::-1].index(Start(FAMILY[1], (1, 0)))
    assert Stop(frozenset({1})) in steps[:again]


def test_child_is_claimed_when_its_parent_was_drained_elsewhere():
    """What a claim tells is acted upon at once, and the child stops when its parent is set back."""

    def set_back(world):
        world.ended.clear()

    world = shared(FAMILY, ended={0}, changes={7: set_back})
    steps = crew(world, forever=True, most=12)
    assert steps[1:12] == [
        *[Claim((0,)), Release(frozenset({0})), Claim((1,)), Start(FAMILY[0], (1, 0))],
        *[Await(LEASE / 3), Claim((1,)), Claim((0,)), Stop(frozenset({1}))],
        *[Start(FAMILY[1], (1, 0)), Await(LEASE / 3), Release(frozenset({1}))],
    ]


def test_surplus_is_given_back_when_its_reading_has_ended():
    """What belongs to others is stopped first, asked once, and given back after its last page."""

    def come(world):
        world.surplus = {1}

    endings = [[], [], [Outcome(1)]]
    world = shared(TWO, endings, changes={6: come, 12: lambda w: w.elsewhere.update({1: 9})})
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

    world = shared(TWO, [[], [], [Outcome(0)]], changes={6: lose, 9: free})
    steps = crew(world, forever=True, most=12)
    assert steps[5:] == [
        *[Claim((0, 1)), Stop(frozenset({0})), Await(LEASE / 3), Claim((0, 1)), Await(LEASE / 3)],
        *[Claim((0, 1)), Start(TWO[0], (0, 1))],
    ]


def test_reader_that_was_fenced_is_started_again_if_the_lease_can_be_had():
    """A lost lease ends nothing but the reading that lost it."""
    world = shared(TWO, [[Outcome(0, LeaseLost("gone"))]])
    assert crew(world, forever=True, most=7)[5:] == [Claim((0, 1)), Start(TWO[0], (0, 1))]


def test_letters_of_a_partition_that_has_ended_are_applied():
    """It is read once more, to its end; then its lease is given back."""

    def settle(world):
        world.letters.clear()

    world = shared(
        [Partition(0, closed=True)], [drained(0)], ended={0}, letters={0}, changes={5: settle}
    )
    assert kinds(crew(world)) == [*[Discover, Claim, Start, Await, Claim, Release, Claim]]


@pytest.mark.parametrize("moved", [True, False])
def test_run_to_the_head_ends_beside_others_that_are_alive(moved):
    """What another process reads is waited for only while that process may be dead."""

    def renew(world):
        world.elsewhere[1] += moved

    world = shared(
        TWO, [drained(0)], elsewhere={1: 100.0}, changes=dict.fromkeys(range(8, 61), renew)
    )
    steps = crew(world)
    assert kinds(steps)[:8] == [*[Discover, Claim, Start, Await, Release, Claim, Pause, Discover]]
    assert (len(steps) < 60) is moved


def test_lease_of_the_dead_is_waited_for():
    """When it has run out, its partition is read."""

    def run_out(world):
        world.elsewhere.clear()

    world = shared(TWO, [drained(0), drained(1)], elsewhere={1: 100.0}, changes={20: run_out})
    assert kinds(crew(world))[-4:] == [Start, Await, Release, Claim]
    assert Pause(LEASE / 3) in world.taken


def test_run_to_the_head_waits_for_children_of_what_others_read():
    """A child that is not read yet is not done, though its parent's reader is alive."""

    def renew(world):
        world.elsewhere[0] += 1

    world = shared(FAMILY, elsewhere={0: 1.0}, changes=dict.fromkeys(range(60), renew))
    assert len(crew(world)) == 60


def test_crew_with_nothing_to_read_looks_at_the_feed_again():
    """Others may have learned of partitions that are unknown here."""

    def grow(world):
        world.layout = [*TWO, Partition(2)]

    world = shared(TWO, elsewhere={0: 9, 1: 9}, changes={6: grow})
    steps = crew(world, forever=True, most=9)
    assert steps == [
        *[Discover(), Claim((0, 1)), Pause(LEASE / 3)] * 2,
        *[Discover(), Claim((0, 1, 2)), Start(Partition(2), (0, 1, 2))],
    ]


def test_feed_that_was_read_to_its_end_is_looked_at_as_often_as_its_head():
    """When all partitions have ended, those who follow wait for new ones."""
    world = shared([Partition(0, closed=True)], ended={0})
    steps = crew(world, forever=True, most=7)
    assert steps[3:] == [Claim(()), Pause(POLL), Discover(), Claim(())]


def test_partition_that_was_drained_is_read_again_in_another_layout():
    """It may have been closed since, behind more events."""

    def split(world):
        world.layout = [Partition(2, starts_after=0), Partition(0, closed=True), Partition(1)]

    world = shared(TWO, [drained(0)], elsewhere={1: 9}, changes={7: split})
    steps = crew(world, most=10)
    assert kinds(steps)[4:] == [Release, Claim, Pause, Discover, Claim, Start]
    assert steps[-1].partition.id == 0


def test_partition_that_halted_keeps_its_lease_while_others_are_read():
    """It is neither started again nor given to a process that would halt as well, as surplus."""
    world = shared(TWO, [[HALTED]], changes={6: lambda world: world.surplus.add(0)})
    steps = crew(world, forever=True, most=30)
    assert kinds(steps)[5:] == [*[Claim, Await] * 12, Claim]
    assert {step.wanted for step in of_kind(steps, Claim)} == {(0, 1)}
    assert world.held == {0, 1}


@pytest.mark.parametrize(
    ("second", "forever", "steps"),
    [
        ([Outcome(1, Halted("as well", partition=1))], True, 60),
        (drained(1), False, 60),
        ([], True, 9),
    ],
    ids=["nothing is left", "the run ends", "it is stopped"],
)
def test_halt_is_raised_when_all_other_reading_has_ended(second, forever, steps):
    """The error of the first partition that halted is raised behind the last page of the others."""
    world = shared(TWO, [[HALTED], second])
    with pytest.raises(Halted) as raised:
        crew(world, forever=forever, stopped=lambda: len(world.taken) > steps)
    assert raised.value is STANDS
    assert (world.running, world.endings) == (set(), [])


def test_halt_is_not_forgotten_when_the_partitions_change():
    """The partition stands still in the next layout as well."""
    world = shared(TWO, [[HALTED], [Outcome(1, CHANGED, read=True)]])
    steps = crew(world, forever=True, most=20)
    again = steps[steps.index(Discover(), 1) :]
    assert [step.partition.id for step in of_kind(again, Start)] == [1]


def test_lease_of_a_halted_partition_that_is_gone_is_given_back():
    """What cannot be read needs no lease; that it halted is raised all the same."""

    def replace(world):
        world.layout = [Partition(1)]

    world = shared(
        TWO, [[HALTED], [Outcome(1, CHANGED, read=True)], drained(1)], changes={8: replace}
    )
    with pytest.raises(Halted):
        crew(world)
    assert world.taken[8:10] == [Release(frozenset({0})), Claim((1,))]


def test_final_error_ends_all_reading():
    """The others finish their pages before it is raised."""
    error = Forbidden("not yours")
    world = shared(TWO, [[Outcome(0, error)], [], [Outcome(1)]])
    with pytest.raises(Forbidden) as raised:
        crew(world, forever=True)
    assert raised.value is error
    assert world.taken[4:] == [
        *[Await(LEASE / 3), Stop(frozenset({1})), Await(LEASE / 3)],
        *[Claim((1,)), Await(LEASE / 3)],
    ]


def test_reader_that_was_asked_to_stop_is_not_asked_again():
    """Only those are asked that still read."""

    def lose(world):
        world.held.remove(0)
        world.elsewhere[0] = 5

    world = shared(TWO, [[], []], changes={6: lose})
    steps = crew(world, forever=True, stopped=lambda: len(world.taken) > 7)
    assert of_kind(steps, Stop) == [Stop(frozenset({0})), Stop(frozenset({1}))]


@pytest.mark.parametrize("renewals", [[], [StoreUnavailable("away")] * 9])
def test_leases_are_renewed_while_the_last_pages_are_finished(renewals):
    """A page that takes long is not taken over meanwhile; a renewal that fails then is let be."""

    class Slow(World):
        def end(self):
            return super().end() if len(self.taken) > 12 else ()

    world = Slow(TWO, answers={Claim: [None, *renewals]})
    steps = crew(world, forever=True, stopped=lambda: len(world.taken) > 4)
    assert steps[5:] == [
        *[Stop(BOTH), *[Await(LEASE / 3), Claim((0, 1))] * 3, Await(LEASE / 3)],
    ]
    assert world.running == set()


@pytest.mark.parametrize("forever", [True, False])
def test_stop_between_any_two_steps_ends_all_reading(forever):
    """Wherever it is stopped, readers are asked to stop and waited for, and nothing is started."""
    failure = Unavailable("busy")
    layout = [Partition(2, starts_after=0), Partition(0, closed=True), Partition(1)]
    for after in range(30):
        world = shared(
            layout,
            [[], drained(0), [Outcome(1, CHANGED)]],
            {Discover: [failure], Claim: [failure, None, failure], Release: [failure]},
        )
        crew(world, forever=forever, stopped=lambda w=world, n=after: len(w.taken) >= n)
        assert world.running == set()
        rest = kinds(world.taken)[after + 1 :]
        assert {Discover, Pause}.isdisjoint(rest)
        assert rest.count(Stop) <= 1
        assert len(rest) <= 6


@pytest.mark.parametrize("kind", [Discover, Inherit, Claim, Release])
def test_transient_errors_are_waited_out(kind):
    """What failed is done after a pause that says why; the error of the last attempt is raised."""
    error = Unavailable("busy")
    layout = [Partition(0, cursor_from=(5,))]
    world = shared(layout, [drained(0)], {kind: [error] * 4})
    crew(world)
    assert [pause.reason for pause in of_kind(world.taken, Pause)] == [error] * 4
    assert world.endings == []
    claimed = [None] if kind is Claim else []
    world = shared([*layout, Partition(1)], [drained(0)], {kind: [*claimed, *[error] * 9]})
    with pytest.raises(Unavailable):
        crew(world, attempts=3)
    assert kinds(world.taken).count(Pause) == 2
    assert world.running == set()


@pytest.mark.parametrize(("kind", "before"), [(Claim, [None]), (Release, [])])
def test_leases_are_tried_again_before_they_run_out(kind, before):
    """No pause in front of a claim is longer than that between two claims."""
    errors = [StoreUnavailable("away")] * 60
    world = shared(TWO, [drained(0)], {kind: [*before, *errors]})
    crew(world, forever=True, attempts=None, lease=6.0, most=120)
    assert kinds(world.taken).count(Pause) > 50
    assert max(pause.seconds for pause in of_kind(world.taken, Pause)) <= 2.0


def test_changed_token_ends_all_reading_and_leads_to_discovery():
    """Where pages were read before, the feed is asked for its partitions at once."""
    world = shared(TWO, [[Outcome(0, CHANGED, read=True)]])
    steps = crew(world, forever=True, most=12)
    assert kinds(steps)[4:] == [*[Await, Stop, Await, Discover, Claim, Start, Start, Await]]


def test_row_of_conflicts_is_final_in_the_end():
    """A feed that contradicts its discovery is given pauses, and so many attempts."""
    world = shared([Partition(0)], [[CONFLICT]] * 9)
    with pytest.raises(TokenChanged):
        crew(world, forever=True, attempts=3)
    attempt = [Discover, Claim, Start, Await]
    assert kinds(world.taken) == [*attempt, Pause, *attempt, Pause, *attempt]
    assert all(pause.reason is CHANGED for pause in of_kind(world.taken, Pause))


@pytest.mark.parametrize("between", [[Outcome(0, CHANGED, read=True)], []])
def test_progress_between_two_conflicts_starts_their_count_again(between):
    """A page that was read, or a while without a conflict, shows that the layout was right."""
    endings = [[CONFLICT], between, [CONFLICT], between, [CONFLICT]]
    world = shared([Partition(0)], endings)
    crew(world, forever=True, attempts=2)
    assert world.endings == []


def test_error_beside_a_conflict_is_raised():
    """A reader that ends in an error while all are stopped is not forgotten."""
    world = shared(TWO, [[CONFLICT], [Outcome(1, Forbidden("not yours"))]])
    with pytest.raises(Forbidden):
        crew(world, forever=True)
    assert kinds(world.taken).count(Discover) == 1


def test_leases_of_partitions_that_are_gone_are_given_back():
    """In another layout they are of no use."""

    def replace(world):
        world.layout = [Partition(2, cursor_from=(0,)), Partition(1)]

    world = shared(TWO, [[Outcome(0, CHANGED, read=True)]], changes={8: replace})
    steps = crew(world, forever=True, most=12)
    assert steps[7:11] == [
        *[Discover(), Inherit({2: (0,)}, (2, 1)), Release(frozenset({0})), Claim((2, 1))]
    ]
