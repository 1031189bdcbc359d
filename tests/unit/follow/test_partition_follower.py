"""A partition that is read under a lease: what to read, apply, try again and give up."""

import pytest
from harness.follow_world import (
    CHANGED,
    POLL,
    Lost,
    kinds,
    leased,
    of_kind,
    read,
)

from zeroeventhub import Event, Page
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
    CutPage,
    Fenced,
    Halted,
    LeaseLost,
    ProtocolError,
    StoreUnavailable,
    TokenChanged,
    Trimmed,
    Unavailable,
    Unreachable,
)
from zeroeventhub.protocol import CAUGHT_UP, WAIT

SAYS = frozenset({CAUGHT_UP})
WAITS = frozenset({CAUGHT_UP, WAIT})
AWAY = StoreUnavailable("away")
BROKEN = ValueError("no such customer\n[SQL: INSERT INTO secrets]")


def test_follower_pauses_at_the_head():
    """A follower looks again after a while, without loading the place."""
    world = leased("a", arriving=["b"], extensions=SAYS)
    assert read(world, forever=True, most=7) is None
    assert kinds(world.taken) == [Load, Fetch, Deliver, Pause, Fetch, Deliver, Pause]
    assert world.taken[3] == Pause(POLL, reason=None)


def test_feed_waits_at_the_head_where_there_is_room():
    """The feed is asked to wait from where its head was seen; behind news there is no pause."""
    world = leased("a", extensions=WAITS, writers=True)
    read(world, forever=True, most=8)
    assert Pause not in kinds(world.taken)
    world = leased("a", extensions=WAITS)
    read(world, forever=True, most=7)
    assert world.taken[1].wait == 0.0
    assert world.taken[3:7] == [*[Fetch(0, "1", 5.0), Pause(0.1)] * 2]


@pytest.mark.parametrize(
    ("options", "wishes"),
    [
        ({"extensions": WAITS}, {"roomy": lambda: False}),
        ({"extensions": SAYS}, {}),
        ({"extensions": WAITS}, {"forever": False}),
        ({"extensions": WAITS, "closed": True}, {}),
    ],
    ids=["no room", "not announced", "does not follow", "closed"],
)
def test_feed_is_not_asked_to_wait(options, wishes):
    """It waits only if it can, for those who follow an open partition and have room for it."""
    world = leased("a", **options)
    read(world, most=20, **({"forever": True} | wishes))
    assert {step.wait for step in of_kind(world.taken, Fetch)} == {0.0}


@pytest.mark.parametrize("forever", [True, False])
def test_stop_between_any_two_steps_ends(forever):
    """Wherever it is stopped, it finishes the page at hand at most, and was not drained."""
    for after in range(20):
        answers = {Fetch: [Unavailable("busy"), None, CutPage("cut")], Deliver: [BROKEN, AWAY]}
        world = leased(*"ab", "", *"cdefghi", answers=answers)
        drained = read(world, forever=forever, stopped=lambda w=world, n=after: len(w.taken) >= n)
        assert drained is False
        assert not {Load, Fetch} & set(kinds(world.taken)[after + 1 :])
        assert len(world.taken) <= after + 2


@pytest.mark.parametrize("kind", [Load, Fetch])
def test_requests_that_fail_have_so_many_attempts(kind):
    """What failed for a moment is done after a pause; the error of the last attempt is raised."""
    world = leased("a", answers={kind: [Unavailable("busy")] * 5})
    with pytest.raises(Unavailable):
        read(world, attempts=5)
    assert kinds(world.taken).count(Pause) == 4


@pytest.mark.parametrize(
    ("kind", "error"),
    [(Fetch, CHANGED), (Fetch, Trimmed("old")), (Fetch, ProtocolError("bad")), (Load, CHANGED)],
)
def test_other_errors_of_the_feed_are_final(kind, error):
    """What trying again does not change is raised as it is."""
    world = leased("a", answers={kind: [error]})
    with pytest.raises(type(error)):
        read(world)


def test_events_that_do_not_move_the_cursor_are_refused():
    """They would come again for ever."""
    world = leased("a")
    world.page = lambda step: Page([Event.of("a")], step.cursor)
    with pytest.raises(ProtocolError, match="without moving the cursor"):
        read(world)


def test_dead_letters_are_applied_before_the_next_page():
    """Those that were marked come before each page that is fetched meanwhile, and at the head."""
    world = leased("a", "b", extensions=SAYS)
    marked = {1, 4, 8}
    read(world, forever=True, letters=lambda: len(world.taken) in marked, most=10)
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
    """A store that loads and never commits is not tried for ever, unless that was asked for."""
    text = "" if kind is Advance else "a"
    world = leased(text, closed=True, answers={kind: [AWAY] * 3})
    with pytest.raises(StoreUnavailable):
        read(world, attempts=3, letters=lambda: True)
    assert kinds(world.taken).count(Pause) == 2
    world = leased(text, closed=True, answers={kind: [AWAY] * 30})
    assert read(world, attempts=None, letters=lambda: True, most=400)


@pytest.mark.parametrize(("kind", "text"), [(Deliver, "a"), (Advance, "")])
def test_commit_that_succeeds_leaves_the_next_all_attempts_and_short_pauses(kind, text):
    """A row of failures ends with a success: neither their count nor the back-off goes on."""
    world = leased(text, text, answers={kind: [*[AWAY] * 9, None, AWAY, None]})
    assert read(world, attempts=10)
    assert world.cursors == {0: "2"}
    assert of_kind(world.taken, Pause)[-1].seconds <= 0.2


@pytest.mark.parametrize("kind", [Load, Deliver, Advance, End, Redeliver])
def test_lost_lease_is_told(kind):
    """A reader that has lost the lease reads no further."""
    text = "" if kind is Advance else "a"
    world = leased(text, closed=True, answers={kind: [LeaseLost("gone")]})
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


# Handlers that fail.


@pytest.mark.parametrize("error", [BROKEN, Unreachable("mail server"), TokenChanged("of another")])
def test_page_that_fails_is_tried_again_after_pauses(error):
    """Whatever a handler raises is waited out, so many times, without fetching the page again."""
    world = leased("a", "b", answers={Deliver: [error, error, None] * 2})
    assert read(world, failures=Failures(tries=3))
    assert kinds(world.taken)[:7] == [Load, Fetch, *[Deliver, Pause] * 2, Deliver]
    assert [pause.reason for pause in of_kind(world.taken, Pause)] == [error] * 4
    assert world.applied == [(0, "a"), (0, "b")]


@pytest.mark.parametrize("tries", [1, 4])
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
    assert kinds(world.taken) == [Load, Fetch, *[Deliver, Pause] * (tries - 1), Deliver]


def test_commits_of_unknown_outcome_are_no_tries():
    """What the store could not do says nothing about the page; what was decided of it stays."""
    answers = {Deliver: [BROKEN, AWAY, Fenced("moved"), BROKEN, AWAY, None]}
    world = leased("a", answers=answers)
    assert read(world, failures=Failures(tries=2, then="set-aside"))
    assert [step.set_aside for step in of_kind(world.taken, Deliver)] == [*[False] * 4, *[True] * 2]
    assert world.applied == [(0, "a")]


def test_partition_halts_where_nothing_can_be_set_aside():
    """An error of the delivery that sets failing events aside is final."""
    world = leased("a", answers={Deliver: [BROKEN] * 3})
    with pytest.raises(Halted) as raised:
        read(world, failures=Failures(tries=2, then="set-aside"))
    assert raised.value.__cause__ is BROKEN


@pytest.mark.parametrize("options", [{"tries": 0}, {"then": "ignore"}, {"hold_back": True}])
def test_failures_that_cannot_be_are_refused(options):
    """There is at least one try, two ways to go on, and nothing to hold back where all halts."""
    with pytest.raises(ConfigurationError):
        Failures(**options)
