"""One reader of all partitions in turn, and one of a single partition that it has a lease of."""

import pytest
from harness.followed import (
    AWAY,
    BROKEN,
    CHANGED,
    ONE,
    POLL,
    SAYS,
    TWO,
    WAITS,
    Lost,
    World,
    delivered,
    follow,
    kinds,
    leased,
    of_kind,
    read,
    world_of,
)

from zeroeventhub import FIRST, Partition
from zeroeventhub.consumer.config import Failures
from zeroeventhub.consumer.steps import (
    Advance,
    Deliver,
    Discover,
    End,
    Fetch,
    Inherit,
    Load,
    Pause,
    Place,
    RecordFailure,
    Redeliver,
)
from zeroeventhub.errors import (
    CutPage,
    Fenced,
    Halted,
    ProtocolError,
    StoreUnavailable,
    TokenChanged,
    Trimmed,
    Unavailable,
    Unreachable,
)

EITHER = pytest.mark.parametrize("reader", [follow, read], ids=["in turn", "by a lease"])
"""What both readers do alike; a page is a text of its events."""


# The head.


@EITHER
def test_feed_waits_once_its_head_was_seen(reader):
    """A feed that can wait is asked to from its head on, with a pause after a wait without news."""
    world = world_of("a", extensions=WAITS, leased=reader is read)
    reader(world, forever=True, most=12)
    steps = [step for step in world.taken if isinstance(step, Fetch | Pause)]
    assert steps[0].wait == 0.0
    assert steps[1:5] == [Fetch(0, "1", 5.0), Pause(0.1)] * 2
    world = world_of("a", extensions=WAITS, writers=True, leased=reader is read)
    reader(world, forever=True, most=12)
    assert [step.wait for step in of_kind(world.taken, Fetch)][:3] == [0.0, 5.0, 5.0]
    assert Pause not in kinds(world.taken)


@EITHER
@pytest.mark.parametrize(
    ("options", "forever"), [({"extensions": SAYS}, True), ({}, False), ({"closed": True}, True)]
)
def test_feed_is_not_asked_to_wait(reader, options, forever):
    """A feed waits only if it can, for those who follow an open partition."""
    world = world_of("a", **{"extensions": WAITS, **options}, leased=reader is read)
    reader(world, most=20, forever=forever)
    assert {step.wait for step in of_kind(world.taken, Fetch)} == {0.0}


@pytest.mark.parametrize(
    ("partitions", "pauses"),
    [(100, [0.5, 1, 2, 4, 5, 5, 0.5, 1]), (24, [0.5, 1, 1.5]), (8, [0.1, 0.1])],
)
def test_partitions_that_take_turns_are_asked_less_often_while_nothing_comes(partitions, pauses):
    """A reader pauses twice as long behind each page without news, for as long as a feed waits."""
    news = [None] * 5 + [lambda world: world.pages[0].append("b")]
    world = leased("a", extensions=WAITS, answers={Pause: news})
    options = {"running": range(partitions), "concurrency": 8, "poll_interval": 0.5}
    read(world, forever=True, most=24, **options)
    assert [step.seconds for step in of_kind(world.taken, Pause)][: len(pauses)] == pauses


@pytest.mark.parametrize(("partitions", "waited_for"), [(None, set()), ({1}, {1})])
def test_feed_waits_for_one_partition_of_several(partitions, waited_for):
    """A reader of partitions in turn waits only for one that was chosen alone."""
    world = World(TWO, {0: ["a"], 1: ["b"]}, extensions=WAITS)
    steps = follow(world, most=40, forever=True, partitions=partitions)
    assert {step.partition for step in of_kind(steps, Fetch) if step.wait} == waited_for


def test_feed_whose_partitions_have_all_ended_is_discovered_again():
    """After a pause a reader of all partitions looks whether there are new ones."""
    steps = follow(World([Partition(0, closed=True)], {0: ["a"]}), forever=True)
    assert steps[steps.index(Pause(POLL)) + 1] == Discover()


def test_run_looks_for_the_head_where_a_rival_has_gone_on():
    """Where another process has moved on after the head that was seen, it is read from there."""

    def go_on(world):
        world.pages[0].extend("bc")
        world.cursors[0] = "2"

    world = World(ONE, {0: ["a"]}, extensions=SAYS, answers={Deliver: [go_on]})
    assert delivered(follow(world)) == [(0, "a"), (0, "c")]
    assert [step.cursor for step in of_kind(world.taken, Fetch)] == [FIRST, "2"]


@EITHER
def test_cursor_set_back_among_empty_pages_makes_no_circle(reader):
    """An operator may set a cursor back to before empty pages, which then come again."""

    def reset(world):
        world.cursors[0], world.epochs[0] = FIRST, world.epochs[0] + 1

    world = world_of("", "", "", "a", answers={Fetch: [None, None, reset]}, leased=reader is read)
    reader(world)
    assert world.applied == [(0, "a")]


def test_parent_is_read_again_first_when_an_operator_resets_the_consumer():
    """After a reset no event of a child comes before those of its parent, which had ended."""

    def reset(world):
        for partition in (0, 1):
            world.cursors[partition], world.epochs[partition] = FIRST, 1

    layout = [Partition(0, closed=True), Partition(1, starts_after=0)]
    world = World(layout, {0: ["a"], 1: ["b", "c"]}, answers={Deliver: [None, reset]})
    follow(world)
    assert world.applied == [(0, "a"), (0, "a"), (1, "b"), (1, "c")]


def test_run_ends_beside_writers_that_never_pause():
    """A run that does not follow ends though something new is there after every page."""
    world = World(ONE, {0: ["a"]}, extensions=SAYS, writers=True)
    assert delivered(follow(world)) == [(0, "a")]
    world = World(TWO, {0: ["a"], 1: ["b"]}, extensions=SAYS, writers=True)
    assert delivered(follow(world)) == [(0, "a"), (1, "b")]


# What fails.


@EITHER
@pytest.mark.parametrize("forever", [True, False])
def test_stop_between_any_two_steps_ends(reader, forever):
    """Wherever it is stopped, it finishes the page at hand at most, and asks for no other."""
    busy = Unavailable("busy")
    for after in range(30):
        answers = {Discover: [busy, None], Fetch: [None, busy, None, CutPage("cut")]}
        answers[Deliver] = [BROKEN, AWAY] if reader is read else []
        world = world_of(*"ab", "", *"cdef", arriving=["g"], answers=answers)
        world.leased = reader is read
        reader(world, forever=forever, stopped=lambda w=world, n=after: len(w.taken) >= n)
        assert not {Discover, Load, Fetch} & set(kinds(world.taken)[after + 1 :])
        assert len(world.taken) <= after + 2


@pytest.mark.parametrize(
    ("reader", "kind"),
    [
        *[(follow, kind) for kind in (Discover, Inherit, Load, Fetch, Advance)],
        *[(read, kind) for kind in (Load, Fetch)],
    ],
)
@pytest.mark.parametrize("error", [CutPage("cut"), AWAY])
def test_transient_errors_are_waited_out(reader, kind, error):
    """What failed is done after a pause that says why; every step has all its attempts."""
    layout = [Partition(0, cursor_from=(9,))]
    answers = [*[error] * 4, None, *[error] * 4]
    world = World(layout, {0: ["", "a"]}, leased=reader is read, answers={kind: answers})
    reader(world, attempts=5)
    first = kinds(world.taken).index(kind)
    assert kinds(world.taken)[first : first + 9] == [*[kind, Pause] * 4, kind]
    assert {pause.reason for pause in of_kind(world.taken, Pause)} == {error}
    assert delivered(world.taken) == [(0, "a")]
    world = World(layout, leased=reader is read, answers={kind: [error] * 3})
    world.pages[0] = ["", "a"]
    with pytest.raises(type(error)):
        reader(world, attempts=3)
    assert kinds(world.taken).count(Pause) == 2


@pytest.mark.parametrize("layout", [ONE, TWO])
def test_conflicts_directly_after_discovery_are_final_in_the_end(layout):
    """A feed that contradicts its discovery, in one partition, is given so many attempts."""
    fetches = [*[None] * (len(layout) - 1), CHANGED]
    world = World(layout, answers={Fetch: fetches * 5})
    with pytest.raises(TokenChanged):
        follow(world, attempts=3)
    assert [pause.reason for pause in of_kind(world.taken, Pause)] == [CHANGED] * 2


def test_page_between_two_conflicts_starts_their_count_again():
    """Layouts that change often are no contradiction, as long as pages of them are read."""
    answers = {Fetch: [CHANGED, None, CHANGED, CHANGED]}
    world = World(ONE, {0: ["a", "b"]}, answers=answers)
    assert delivered(follow(world, attempts=2)) == [(0, "a"), (0, "b")]


@pytest.mark.parametrize(
    ("kind", "error"),
    [(Fetch, CHANGED), (Fetch, Trimmed("old")), (Fetch, ProtocolError("bad")), (Load, CHANGED)],
)
def test_other_errors_of_the_feed_are_final(kind, error):
    """What trying again does not change is raised as it is."""
    world = leased("a", answers={kind: [error]})
    with pytest.raises(type(error)):
        read(world)


def test_dead_letters_are_applied_before_the_next_page():
    """Letters that were marked come before each page that is fetched meanwhile, and at the head."""
    world = leased("a", "b", extensions=SAYS)

    class Marked:
        """Letters are marked before some steps."""

        def __contains__(self, partition):
            return len(world.taken) in {1, 4, 8}

    read(world, forever=True, letters=Marked(), most=10)
    assert kinds(world.taken) == [
        *[Load, Redeliver, Fetch, Deliver, Redeliver, Fetch, Deliver],
        *[Pause, Redeliver, Fetch],
    ]
    assert of_kind(world.taken, Redeliver)[1] == Redeliver(0, Place("1", 1))


# Commits.


@pytest.mark.parametrize("kind", [Deliver, Advance])
def test_commit_of_unknown_outcome_is_looked_for_before_it_is_tried_again(kind):
    """The cursor shows whether it was done; the page at hand is not fetched again."""
    text = "a" if kind is Deliver else ""
    world = leased(text, "b", answers={kind: [AWAY, AWAY]})
    assert read(world)
    assert kinds(world.taken)[:9] == [Load, Fetch, *[kind, Pause, Load] * 2, kind]
    assert [step.place.epoch for step in of_kind(world.taken, kind)][:3] == [1, 2, 3]
    assert all(pause.reason is AWAY for pause in of_kind(world.taken, Pause))
    done = leased(text, "b", answers={kind: [Lost(AWAY)]})
    assert read(done)
    assert kinds(done.taken)[:6] == [Load, Fetch, kind, Pause, Load, Fetch]
    for each in (world, done):
        assert each.applied == ([(0, "a")] if text else []) + [(0, "b")]


@pytest.mark.parametrize("kind", [Deliver, Advance, End, Redeliver])
def test_commits_that_always_fail_are_final_after_all_attempts(kind):
    """A store that loads and never commits is given up after so many attempts."""
    text = "" if kind is Advance else "a"
    world = leased(text, closed=True, answers={kind: [AWAY] * 3})
    with pytest.raises(StoreUnavailable):
        read(world, attempts=3, letters={0} if kind is Redeliver else ())
    assert kinds(world.taken).count(Pause) == 2


@pytest.mark.parametrize(("kind", "text"), [(Deliver, "a"), (Advance, "")])
def test_commit_that_succeeds_leaves_the_next_all_attempts_and_short_pauses(kind, text):
    """A row of failures ends with a success: neither their count nor the back-off goes on."""
    world = leased(text, text, answers={kind: [*[AWAY] * 9, None, AWAY, None]})
    assert read(world, attempts=10)
    assert world.cursors == {0: "2"}
    assert of_kind(world.taken, Pause)[-1].seconds <= 0.2


# Handlers that fail.


@pytest.mark.parametrize("error", [BROKEN, Unreachable("mail server"), TokenChanged("of another")])
def test_page_that_fails_is_tried_again_after_pauses(error):
    """Whatever a handler raises is waited out, so many times, without fetching the page again."""
    world = leased("a", "b", answers={Deliver: [error, error, None] * 2})
    assert read(world, failures=Failures(tries=3))
    assert kinds(world.taken)[:9] == [*[Load, Fetch, *[Deliver, RecordFailure, Pause] * 2, Deliver]]
    assert [pause.reason for pause in of_kind(world.taken, Pause)] == [error] * 4
    assert world.applied == [(0, "a"), (0, "b")]


def test_commits_of_unknown_outcome_are_no_tries():
    """What the store could not do says nothing about the page; what was decided of it stays."""
    world = leased("a", answers={Deliver: [BROKEN, AWAY, Fenced("moved"), BROKEN, AWAY, None]})
    assert read(world, failures=Failures(tries=2, then="set-aside"))
    assert [step.set_aside for step in of_kind(world.taken, Deliver)] == [*[False] * 4, *[True] * 2]
    assert world.applied == [(0, "a")]


def test_page_that_is_fenced_over_and_over_is_waited_for():
    """After the first fence, for which someone moved the cursor, each is a failure with a pause."""
    moved = Fenced("moved")
    world = leased("a", answers={Deliver: [*[moved] * 4, None]})
    assert read(world)
    assert [pause.reason for pause in of_kind(world.taken, Pause)] == [moved] * 3
    world = leased("a", answers={Deliver: [moved] * 9})
    with pytest.raises(Fenced):
        read(world, attempts=3)
    assert kinds(world.taken).count(Deliver) == 3


def test_partition_halts_where_nothing_can_be_set_aside():
    """An error of the delivery that sets failing events aside is final."""
    world = leased("a", answers={Deliver: [BROKEN] * 3})
    with pytest.raises(Halted) as raised:
        read(world, failures=Failures(tries=2, then="set-aside"))
    assert raised.value.__cause__ is BROKEN
    assert world.taken[-1] == RecordFailure(0, Place(FIRST, 1), BROKEN, 3)
