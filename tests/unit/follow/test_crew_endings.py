import pytest
from harness.crew_world import LEASE, CrewWorld, crew, drained
from harness.follow_world import CHANGED, kinds, of_kind

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
    StoreUnavailable,
    TokenChanged,
    Unavailable,
    Unreachable,
)

TWO = [Partition(0), Partition(1)]
STANDS = Halted("stands still", partition=0)
HALTED = Outcome(0, STANDS, read=True)
CONFLICT = Outcome(0, CHANGED)
BOTH = frozenset({0, 1})


def test_partition_that_halted_keeps_its_lease_while_others_are_read():
    """It is neither started again nor given to a process that would halt as well."""
    world = CrewWorld(TWO, [[HALTED]])
    steps = crew(world, forever=True, most=30)
    assert kinds(steps)[5:] == [*[Claim, Await] * 12, Claim]
    assert {step.wanted for step in of_kind(steps, Claim)} == {(0, 1)}
    assert world.held == {0, 1}


def test_partition_that_halted_is_not_given_away_as_surplus():
    """Another process would come no further with it."""
    world = CrewWorld(TWO, [[HALTED]], changes={6: lambda world: world.surplus.add(0)})
    assert Release not in kinds(crew(world, forever=True, most=20))


def test_halt_is_raised_when_nothing_else_is_left():
    """The first partition that halted is told about when the last has."""
    second = Halted("as well", partition=1)
    world = CrewWorld(TWO, [[HALTED], [Outcome(1, second)]])
    with pytest.raises(Halted) as raised:
        crew(world, forever=True)
    assert raised.value is STANDS
    assert world.running == set()


def test_halt_is_raised_at_the_end_of_a_run():
    """A run to the head reads the others to their heads before."""
    world = CrewWorld(TWO, [[HALTED], drained(1)])
    with pytest.raises(Halted):
        crew(world)
    assert world.endings == []


def test_halt_is_raised_when_stopped():
    """Who stops it learns of it."""
    world = CrewWorld(TWO, [[HALTED]])
    with pytest.raises(Halted):
        crew(world, forever=True, stopped=lambda: len(world.taken) > 9)


def test_halt_is_not_forgotten_when_the_partitions_change():
    """The partition stands still in the next layout as well."""
    world = CrewWorld(TWO, [[HALTED], [Outcome(1, CHANGED, read=True)]])
    steps = crew(world, forever=True, most=20)
    again = steps[steps.index(Discover(), 1) :]
    assert [step.partition.id for step in of_kind(again, Start)] == [1]


def test_lease_of_a_halted_partition_that_is_gone_is_given_back():
    """What nobody can read needs no lease; that it halted is told all the same."""

    def replace(world):
        world.layout = [Partition(1)]

    world = CrewWorld(
        TWO, [[HALTED], [Outcome(1, CHANGED, read=True)], drained(1)], changes={8: replace}
    )
    with pytest.raises(Halted):
        crew(world)
    assert world.taken[8:10] == [Release(frozenset({0})), Claim((1,))]


def test_final_error_ends_all_reading():
    """The others finish their pages before it is raised."""
    error = Forbidden("not yours")
    world = CrewWorld(TWO, [[Outcome(0, error)], [], [Outcome(1)]])
    with pytest.raises(Forbidden) as raised:
        crew(world, forever=True)
    assert raised.value is error
    assert world.taken[4:] == [
        *[Await(LEASE / 3), Stop(frozenset({1})), Await(LEASE / 3)],
        *[Claim((1,)), Await(LEASE / 3)],
    ]


def test_first_of_several_errors_is_raised():
    """What the others end in meanwhile does not hide it."""
    error = Forbidden("not yours")
    others = [[Outcome(1, Unreachable("away"))], [Outcome(2, STANDS)]]
    world = CrewWorld([*TWO, Partition(2)], [[Outcome(0, error)], *others])
    with pytest.raises(Forbidden):
        crew(world)
    assert world.running == set()


def test_who_was_asked_to_stop_before_is_not_asked_again():
    """Only those are asked that still read."""

    def lose(world):
        world.held.remove(0)
        world.elsewhere[0] = 5

    world = CrewWorld(TWO, [[], []], changes={6: lose})
    steps = crew(world, forever=True, stopped=lambda: len(world.taken) > 7)
    assert of_kind(steps, Stop) == [Stop(frozenset({0})), Stop(frozenset({1}))]


def test_leases_are_renewed_while_the_last_pages_are_finished():
    """A page that takes long is not taken over just because its process is to end."""

    class Slow(CrewWorld):
        def end(self):
            return super().end() if len(self.taken) > 12 else ()

    world = Slow(TWO)
    steps = crew(world, forever=True, stopped=lambda: len(world.taken) > 4)
    assert steps[5:] == [
        *[Stop(BOTH), *[Await(LEASE / 3), Claim((0, 1))] * 3, Await(LEASE / 3)],
    ]


def test_renewal_that_fails_while_all_ends_is_let_be():
    """The page that needs the lease is fenced in the worst case."""

    class Slow(CrewWorld):
        def end(self):
            return super().end() if len(self.taken) > 12 else ()

    world = Slow(TWO, answers={Claim: [None, *[StoreUnavailable("away")] * 9]})
    crew(world, forever=True, stopped=lambda: len(world.taken) > 4)
    assert Pause not in kinds(world.taken)
    assert world.running == set()


@pytest.mark.parametrize("forever", [True, False])
@pytest.mark.parametrize("after", range(30))
def test_stop_between_any_two_steps_ends_all_reading(after, forever):
    """Wherever it is stopped, readers are asked to stop and waited for, and nothing is started."""
    failure = Unavailable("busy")
    layout = [Partition(2, starts_after=0), Partition(0, closed=True), Partition(1)]
    world = CrewWorld(
        layout,
        [[], drained(0), [Outcome(1, CHANGED)]],
        {Discover: [failure], Claim: [failure, None, failure], Release: [failure]},
    )
    crew(world, forever=forever, stopped=lambda: len(world.taken) >= after)
    assert world.running == set()
    rest = kinds(world.taken)[after + 1 :]
    assert {Discover, Pause}.isdisjoint(rest)
    assert rest.count(Stop) <= 1
    assert len(rest) <= 6


@pytest.mark.parametrize("kind", [Discover, Inherit, Claim, Release])
def test_transient_errors_are_waited_out(kind):
    """What failed for a moment is done after a pause that says why."""
    error = Unavailable("busy")
    layout = [Partition(0, cursor_from=(5,))]
    world = CrewWorld(layout, [drained(0)], {kind: [error] * 4})
    crew(world)
    assert [pause.reason for pause in of_kind(world.taken, Pause)] == [error] * 4
    assert world.endings == []


@pytest.mark.parametrize("kind", [Discover, Inherit, Claim, Release])
def test_transient_error_is_final_after_all_attempts(kind):
    """It is raised when all reading has ended."""
    layout = [Partition(0, cursor_from=(5,)), Partition(1)]
    claimed = [None] if kind is Claim else []
    world = CrewWorld(layout, [drained(0)], {kind: [*claimed, *[Unavailable("busy")] * 9]})
    with pytest.raises(Unavailable):
        crew(world, attempts=3)
    assert kinds(world.taken).count(Pause) == 2
    assert world.running == set()


@pytest.mark.parametrize(("kind", "before"), [(Claim, [None]), (Release, [])])
def test_leases_are_tried_again_before_they_run_out(kind, before):
    """No pause in front of a claim is longer than that between two claims."""
    errors = [StoreUnavailable("away")] * 60
    world = CrewWorld(TWO, [drained(0)], {kind: [*before, *errors]})
    crew(world, forever=True, attempts=None, lease=6.0, most=120)
    assert kinds(world.taken).count(Pause) > 50
    assert max(pause.seconds for pause in of_kind(world.taken, Pause)) <= 2.0


def test_changed_token_ends_all_reading_and_leads_to_discovery():
    """Where pages were read before, the feed is asked for its partitions at once."""
    world = CrewWorld(TWO, [[Outcome(0, CHANGED, read=True)]])
    steps = crew(world, forever=True, most=12)
    assert kinds(steps)[4:] == [*[Await, Stop, Await, Discover, Claim, Start, Start, Await]]


def test_row_of_conflicts_is_final_in_the_end():
    """A feed that contradicts its discovery is given pauses, and so many attempts."""
    world = CrewWorld([Partition(0)], [[CONFLICT]] * 9)
    with pytest.raises(TokenChanged):
        crew(world, forever=True, attempts=3)
    attempt = [Discover, Claim, Start, Await]
    assert kinds(world.taken) == [*attempt, Pause, *attempt, Pause, *attempt]
    assert all(pause.reason is CHANGED for pause in of_kind(world.taken, Pause))


@pytest.mark.parametrize("between", [[Outcome(0, CHANGED, read=True)], []])
def test_progress_between_two_conflicts_starts_their_count_again(between):
    """A page that was read, or a while without a conflict, shows that the layout was right."""
    endings = [[CONFLICT], between, [CONFLICT], between, [CONFLICT]]
    world = CrewWorld([Partition(0)], endings)
    crew(world, forever=True, attempts=2)
    assert world.endings == []


def test_error_beside_a_conflict_is_raised():
    """A reader that ends in an error while all are stopped is not forgotten."""
    world = CrewWorld(TWO, [[CONFLICT], [Outcome(1, Forbidden("not yours"))]])
    with pytest.raises(Forbidden):
        crew(world, forever=True)
    assert kinds(world.taken).count(Discover) == 1


def test_leases_of_partitions_that_are_gone_are_given_back():
    """In another layout they are of no use."""

    def replace(world):
        world.layout = [Partition(2, cursor_from=(0,)), Partition(1)]

    world = CrewWorld(TWO, [[Outcome(0, CHANGED, read=True)]], changes={8: replace})
    steps = crew(world, forever=True, most=12)
    assert steps[7:11] == [
        *[Discover(), Inherit({2: (0,)}, (2, 1)), Release(frozenset({0})), Claim((2, 1))]
    ]
