import pytest
from harness.follow_world import CHANGED, POLL, kinds, of_kind
from harness.leased_world import LeasedWorld, leased, read

from zeroeventhub import FIRST, Event, Page, Partition
from zeroeventhub._follow import (
    Advance,
    Deliver,
    End,
    Fetch,
    Load,
    Pause,
    Place,
    Redeliver,
)
from zeroeventhub._follow.page_reading import LONGEST_WAIT
from zeroeventhub.errors import CutPage, ProtocolError, TokenChanged, Trimmed, Unavailable
from zeroeventhub.protocol import CAUGHT_UP, WAIT

SAYS = frozenset({CAUGHT_UP})
WAITS = frozenset({CAUGHT_UP, WAIT})


def test_place_is_loaded_once_and_kept():
    """Behind each commit the place is that of the page, with the epoch that was entered."""
    world = leased("a", "b", extensions=SAYS)
    assert read(world)
    pages = [Page([Event.of("a")], "1"), Page([Event.of("b")], "2", caught_up=True)]
    assert world.taken == [
        *[Load(0, (0,)), Fetch(0, FIRST), Deliver(0, Place(FIRST, 1), pages[0], Fetch(0, "1"))],
        *[Fetch(0, "1"), Deliver(0, Place("1", 1), pages[1])],
    ]


def test_next_page_is_not_fetched_ahead_where_there_is_no_room():
    """Where many partitions are read, or nothing follows, a page is delivered by itself."""
    world = leased("a", "b", "c")
    read(world, roomy=lambda: False)
    assert [step.ahead for step in of_kind(world.taken, Deliver)] == [None] * 3


def test_cursor_that_moves_over_nothing_is_advanced():
    """A page without events whose cursor has moved is committed by itself, and the place kept."""
    world = leased("", "a")
    assert read(world)
    assert kinds(world.taken) == [Load, Fetch, Advance, Fetch, Deliver, Fetch]
    assert world.taken[2] == Advance(0, Place(FIRST, 1), "1")
    assert world.applied == ["a"]


def test_open_partition_is_drained_at_its_head_by_who_does_not_follow():
    """A run to the head ends where nothing new is found, and does not write that it ended."""
    world = leased("a")
    assert read(world) is True
    assert kinds(world.taken) == [Load, Fetch, Deliver, Fetch]


@pytest.mark.parametrize("forever", [True, False])
@pytest.mark.parametrize(("extensions", "looks"), [(SAYS, 1), (frozenset(), 2)])
def test_closed_partition_ends_once(forever, extensions, looks):
    """At its end a closed partition is written down as ended, by those who follow as well."""
    world = leased("a", closed=True, extensions=extensions)
    assert read(world, forever=forever) is True
    assert of_kind(world.taken, End) == [End(0, Place("1", 1))]
    assert kinds(world.taken)[-1] == End
    assert kinds(world.taken).count(Fetch) == looks


def test_end_that_was_fenced_is_written_from_where_the_cursor_is():
    """An operator who sets the cursor back has what follows read again."""
    world = leased("a", closed=True, extensions=SAYS, cursors={0: "1"})
    end = world.carry_out

    def set_back(step):
        if isinstance(step, End) and world.epoch == 1:
            world.cursors[0], world.epoch = "0", 7
        return end(step)

    world.carry_out = set_back
    assert read(world)
    assert kinds(world.taken) == [Load, Fetch, End, Load, Fetch, Deliver, End]
    assert world.applied == ["a"]


def test_follower_pauses_at_the_head():
    """Who follows looks again after a while, without loading the place."""
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
    assert world.taken[3:7] == [*[Fetch(0, "1", LONGEST_WAIT), Pause(0.1)] * 2]


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
@pytest.mark.parametrize("after", range(20))
def test_stop_between_any_two_steps_ends(after, forever):
    """Wherever it is stopped, it finishes the page at hand at most, and was not drained."""
    trouble = [Unavailable("busy"), None, CutPage("cut")]
    world = leased(*"ab", "", *"cdefghi", trouble=trouble)
    drained = read(world, forever=forever, stopped=lambda: len(world.taken) >= after)
    assert drained is False
    assert not {Load, Fetch} & set(kinds(world.taken)[after + 1 :])
    assert len(world.taken) <= after + 2


@pytest.mark.parametrize("kind", [Load, Fetch, End])
def test_transient_errors_are_waited_out(kind):
    """What failed for a moment is done after a pause that says why."""
    error = Unavailable("busy", retry_after=3)
    world = leased("a", closed=True, answers={kind: [error] * 4})
    assert read(world)
    pauses = of_kind(world.taken, Pause)
    assert [pause.reason for pause in pauses] == [error] * 4
    assert all(pause.seconds >= 3 for pause in pauses)
    assert world.applied == ["a"]


@pytest.mark.parametrize("kind", [Load, Fetch, End])
def test_transient_error_is_final_after_all_attempts(kind):
    """The error of the last attempt is raised."""
    world = leased("a", closed=True, answers={kind: [Unavailable("busy")] * 5})
    with pytest.raises(Unavailable):
        read(world, attempts=5)
    assert kinds(world.taken).count(Pause) == 4


@pytest.mark.parametrize("error", [CHANGED, Trimmed("too old"), ProtocolError("not a page")])
def test_other_errors_of_the_feed_are_final(error):
    """What trying again does not change is raised as it is."""
    world = leased("a", trouble=[error])
    with pytest.raises(type(error)):
        read(world)


def test_cursor_that_was_taken_over_is_told():
    """A partition that others have taken over has changed."""
    with pytest.raises(TokenChanged):
        read(leased("a", answers={Load: [CHANGED]}))


def test_events_that_do_not_move_the_cursor_are_refused():
    """They would come again for ever."""
    world = leased("a")
    world.read = lambda step: Page([Event.of("a")], step.cursor)
    with pytest.raises(ProtocolError, match="without moving the cursor"):
        read(world)


def test_cursor_that_was_put_elsewhere_is_seen_at_the_head():
    """Who waits at the head reads again what an operator wants again, without any news."""
    world = leased("a", extensions=SAYS)

    def overtaken(epoch):
        if world.applied == ["a"]:
            world.cursors[0], world.epoch = FIRST, epoch + 1
        return world.epoch > epoch

    read(world, forever=True, overtaken=overtaken, most=12)
    assert world.applied == ["a", "a"]


@pytest.mark.parametrize(("among", "after"), [((0, 1), 0), ((1,), None)])
def test_loading_says_what_has_to_be_read_before(among, after):
    """A child is entered behind its parent, if somebody reads that."""
    world = LeasedWorld([Partition(1, starts_after=0)], {1: []}, cursors={0: FIRST, 1: FIRST})
    read(world, partition=world.layout[0], among=among)
    assert world.taken[0] == Load(1, among, after)


def test_dead_letters_are_applied_before_the_next_page():
    """Those that were marked come before each page that is fetched meanwhile."""
    world = leased("a", "b")
    read(world, letters=lambda: len(world.taken) < 5)
    assert kinds(world.taken)[:6] == [Load, Redeliver, Fetch, Deliver, Redeliver, Fetch]
    assert of_kind(world.taken, Redeliver)[1] == Redeliver(0, Place("1", 1))
    assert world.applied == ["a", "b"]


def test_dead_letters_are_found_at_the_head():
    """Who waits at the head sees letters that were marked since."""
    world = leased(extensions=SAYS)
    read(world, forever=True, letters=lambda: len(world.taken) > 5, most=12)
    assert Redeliver not in kinds(world.taken)[:6]
    assert Redeliver in kinds(world.taken)[6:]
