"""A process that shares a feed's partitions with others: which it reads, and how that ends."""

import pytest
from harness.follow_world import CHANGED, LEASE, POLL, World, crew, kinds, of_kind

from zeroeventhub import Partition
from zeroeventhub._follow import (
    Await,
    Claim,
    Discover,
    Outcome,
    Pause,
    Release,
    Start,
    Stop,
)
from zeroeventhub.errors import (
    Forbidden,
    Halted,
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


def test_leases_are_renewed_three_times_as_often_as_they_run_out():
    """Between two claims there is a wait of a third of a lease at most."""
    world = shared(TWO)
    steps = crew(world, most=40, forever=True)
    assert kinds(steps)[4:] == [Await, Claim] * 18
    assert {step.seconds for step in of_kind(steps, Await)} == {LEASE / 3}


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


@pytest.mark.parametrize(
    ("layout", "options", "pause"),
    [
        (TWO, {"elsewhere": {0: 9, 1: 9}}, LEASE / 3),
        ([Partition(0, closed=True)], {"ended": {0}}, POLL),
    ],
    ids=["others read all", "all has ended"],
)
def test_feed_is_looked_at_again_where_there_is_nothing_to_read(layout, options, pause):
    """It may have partitions by then that are unknown here."""
    steps = crew(shared(layout, **options), forever=True, most=9)
    assert steps[steps.index(Pause(pause)) + 1] == Discover()


def test_run_to_the_head_waits_for_children_of_what_others_read():
    """A child that is not read yet is not done, though its parent's reader is alive."""

    def renew(world):
        world.elsewhere[0] += 1

    world = shared(FAMILY, elsewhere={0: 1.0}, changes=dict.fromkeys(range(60), renew))
    assert len(crew(world)) == 60


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


@pytest.mark.parametrize(("kind", "before"), [(Claim, [None]), (Release, [])])
def test_leases_are_tried_again_before_they_run_out(kind, before):
    """No pause in front of a claim is longer than that between two claims."""
    errors = [StoreUnavailable("away")] * 60
    world = shared(TWO, [drained(0)], {kind: [*before, *errors]})
    crew(world, forever=True, attempts=None, lease=6.0, most=120)
    assert kinds(world.taken).count(Pause) > 50
    assert max(pause.seconds for pause in of_kind(world.taken, Pause)) <= 2.0


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
