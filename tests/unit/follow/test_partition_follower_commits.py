from functools import partial

import pytest
from harness.follow_world import CHANGED, Lost, kinds, of_kind
from harness.leased_world import leased, read

from zeroeventhub._follow import (
    Advance,
    Deliver,
    End,
    Failures,
    Fetch,
    Load,
    Pause,
    Place,
    Redeliver,
)
from zeroeventhub.errors import (
    ConfigurationError,
    Fenced,
    Halted,
    LeaseLost,
    StoreUnavailable,
    TokenChanged,
    Unreachable,
)

AWAY = StoreUnavailable("away")
BROKEN = ValueError("no such customer\n[SQL: INSERT INTO secrets]")
FAILED = [Deliver, Pause]


def set_cursor(cursor, world):
    """Be an operator."""
    world.cursors[0] = cursor
    world.epoch += 1


@pytest.mark.parametrize(("moved", "pages"), [("2", ["c"]), ("0", ["a", "b", "c"])])
def test_fenced_page_is_dropped_where_the_cursor_has_moved(moved, pages):
    """What follows is read from where the cursor is now."""
    world = leased("a", "b", "c", between=[partial(set_cursor, moved)])
    assert read(world)
    assert kinds(world.taken)[:5] == [Load, Fetch, Deliver, Load, Fetch]
    assert world.taken[4].cursor == moved
    assert world.applied == pages


def test_fenced_page_is_delivered_again_where_the_cursor_stands_as_before():
    """Only its right was taken; with a new one the same page is delivered."""
    world = leased("a", cursors={0: "0"}, between=[partial(set_cursor, "0")])
    assert read(world)
    assert kinds(world.taken)[:5] == [Load, Fetch, Deliver, Load, Deliver]
    assert [step.place for step in of_kind(world.taken, Deliver)] == [Place("0", 1), Place("0", 3)]
    assert world.applied == ["a"]


def test_commit_that_was_not_done_is_tried_again_with_a_new_right():
    """Where the outcome is unknown, the cursor is read; the page at hand is not fetched again."""
    world = leased("a", answers={Deliver: [AWAY, AWAY]})
    assert read(world)
    assert kinds(world.taken)[:9] == [Load, Fetch, *[Deliver, Pause, Load] * 2, Deliver]
    assert [step.place.epoch for step in of_kind(world.taken, Deliver)] == [1, 2, 3]
    assert all(pause.reason is AWAY for pause in of_kind(world.taken, Pause))
    assert world.applied == ["a"]


def test_commit_that_was_done_is_not_tried_again():
    """Where only the reply was lost, the next page is read."""
    world = leased("a", "b", answers={Deliver: [Lost(AWAY)]})
    assert read(world)
    assert kinds(world.taken)[:7] == [Load, Fetch, Deliver, Pause, Load, Fetch, Deliver]
    assert world.applied == ["a", "b"]


@pytest.mark.parametrize("answer", [AWAY, Lost(AWAY), Fenced("moved")])
def test_cursor_that_moves_over_nothing_is_found_out_about_in_the_same_way(answer):
    """An advance is tried again where it was not done, and only there."""
    world = leased("", "a", answers={Advance: [answer]})
    assert read(world)
    advances = of_kind(world.taken, Advance)
    assert len(advances) == (1 if isinstance(answer, Lost) else 2)
    assert kinds(world.taken).count(Load) == 2
    assert world.applied == ["a"]


@pytest.mark.parametrize("kind", [Deliver, Advance, End, Redeliver])
def test_commits_that_always_fail_are_final_after_all_attempts(kind):
    """A store that loads and never commits is not tried for ever, unless that was asked for."""
    world = leased("" if kind is Advance else "a", closed=True, answers={kind: [AWAY] * 3})
    with pytest.raises(StoreUnavailable):
        read(world, attempts=3, letters=lambda: True)
    assert kinds(world.taken).count(Pause) == 2
    world = leased("" if kind is Advance else "a", closed=True, answers={kind: [AWAY] * 30})
    assert read(world, attempts=None, letters=lambda: True, most=400)


@pytest.mark.parametrize(("kind", "text"), [(Deliver, "a"), (Advance, "")])
def test_attempts_are_those_of_one_commit(kind, text):
    """A commit that succeeds leaves the next one all its attempts."""
    answers = {kind: [AWAY, AWAY, None, AWAY, AWAY, None]}
    world = leased(text, text, answers=answers)
    assert read(world, attempts=3)
    assert world.cursors == {0: "2"}


@pytest.mark.parametrize("kind", [Load, Deliver, Advance, End, Redeliver])
def test_lost_lease_is_told(kind):
    """Who has lost the lease reads no further."""
    world = leased("" if kind is Advance else "a", closed=True, answers={kind: [LeaseLost("gone")]})
    with pytest.raises(LeaseLost):
        read(world, letters=lambda: True)
    assert kinds(world.taken)[-1] is kind


@pytest.mark.parametrize("error", [LeaseLost("gone"), CHANGED])
@pytest.mark.parametrize("answer", [Fenced("moved"), AWAY])
def test_what_loading_says_behind_a_commit_is_no_fault_of_the_handler(answer, error):
    """An error of the place itself is raised as it is."""
    world = leased("a", answers={Deliver: [answer], Load: [None, error]})
    with pytest.raises(type(error)):
        read(world)
    assert kinds(world.taken).count(Deliver) == 1


@pytest.mark.parametrize("error", [BROKEN, Unreachable("mail server"), TokenChanged("of another")])
def test_page_that_fails_is_tried_again_after_pauses(error):
    """Whatever a handler raises is waited out, so many times, without fetching the page again."""
    world = leased("a", answers={Deliver: [error, error]})
    assert read(world, failures=Failures(tries=3))
    assert kinds(world.taken)[:7] == [Load, Fetch, *FAILED * 2, Deliver]
    assert [pause.reason for pause in of_kind(world.taken, Pause)] == [error] * 2
    assert world.applied == ["a"]


@pytest.mark.parametrize("tries", [1, 2, 4])
def test_partition_halts_at_a_page_that_always_fails(tries):
    """The error names partition, cursor and cause, and none of the statement that failed."""
    world = leased("a", "b", cursors={0: "1"}, answers={Deliver: [BROKEN] * 4})
    with pytest.raises(Halted) as raised:
        read(world, failures=Failures(tries=tries))
    assert str(raised.value) == (
        "Partition 0 stands still at cursor '1': what follows could not be applied in "
        f"{tries} tries. ValueError: no such customer"
    )
    assert raised.value.partition == 0
    assert raised.value.__cause__ is BROKEN
    assert kinds(world.taken) == [Load, Fetch, *FAILED * (tries - 1), Deliver]


def test_failing_events_are_set_aside_by_choice():
    """Behind the last try the page is delivered once more, event for event, and then the next."""
    world = leased("ab", "c", answers={Deliver: [BROKEN] * 2})
    assert read(world, failures=Failures(tries=2, then="set-aside"))
    assert [step.set_aside for step in of_kind(world.taken, Deliver)] == [False, False, True, False]
    assert kinds(world.taken)[:6] == [Load, Fetch, *FAILED, Deliver, Deliver]
    assert world.applied == ["ab", "c"]


def test_partition_halts_where_nothing_can_be_set_aside():
    """An error that is not one event's stays one."""
    world = leased("a", answers={Deliver: [BROKEN] * 3})
    with pytest.raises(Halted) as raised:
        read(world, failures=Failures(tries=2, then="set-aside"))
    assert raised.value.__cause__ is BROKEN


def test_commits_of_unknown_outcome_are_no_tries():
    """What the store could not do says nothing about the page; what was decided of it stays."""
    answers = {Deliver: [BROKEN, AWAY, Fenced("moved"), BROKEN, AWAY, None]}
    world = leased("a", answers=answers)
    assert read(world, failures=Failures(tries=2, then="set-aside"))
    assert [step.set_aside for step in of_kind(world.taken, Deliver)] == [*[False] * 4, *[True] * 2]
    assert world.applied == ["a"]


def test_every_page_has_all_its_tries():
    """A page that was applied at last leaves the next one all tries."""
    world = leased("a", "b", answers={Deliver: [BROKEN, BROKEN, None] * 2})
    assert read(world, failures=Failures(tries=3))
    assert world.applied == ["a", "b"]


@pytest.mark.parametrize("error", [AWAY, BROKEN])
@pytest.mark.parametrize("then", ["halt", "set-aside"])
def test_stop_ends_a_row_of_failures(error, then):
    """A follower that is stopped does not try again."""
    world = leased("a", answers={Deliver: [error] * 50})
    failures = Failures(tries=50, then=then)
    drained = read(world, failures=failures, attempts=None, stopped=lambda: len(world.taken) >= 8)
    assert drained is False
    assert len(world.taken) <= 10


@pytest.mark.parametrize("options", [{"tries": 0}, {"then": "ignore"}, {"hold_back": True}])
def test_failures_that_cannot_be_are_refused(options):
    """There is at least one try, two ways to go on, and nothing to hold back where all halts."""
    with pytest.raises(ConfigurationError):
        Failures(**options)


def test_events_may_be_held_back_behind_those_set_aside():
    """That keeps the order of each key."""
    assert Failures(then="set-aside", hold_back=True).hold_back
