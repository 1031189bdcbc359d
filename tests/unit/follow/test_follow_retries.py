import random

import pytest
from harness.follow_world import CHANGED, Lost, World, delivered, follow, kinds, of_kind

from zeroeventhub import Partition
from zeroeventhub._follow import Advance, Discover, Fetch, Inherit, Load, Pause
from zeroeventhub.errors import (
    BadCursor,
    CutPage,
    Fenced,
    ProtocolError,
    StoreUnavailable,
    TokenChanged,
    Trimmed,
    Unavailable,
    Unreachable,
)


def test_changed_token_leads_to_discovery():
    """When the partitions have changed after a page of them was read, they are discovered again."""
    world = World([Partition(0)], {0: ["a", "b"]}, trouble=[None, None, CHANGED])
    steps = follow(world)
    assert kinds(steps)[4:8] == [Load, Fetch, Discover, Load]
    assert delivered(steps) == [(0, "a"), (0, "b")]


def test_conflicts_directly_after_discovery_are_final_in_the_end():
    """A feed that contradicts its discovery is given pauses, and so many attempts."""
    world = World([Partition(0)], trouble=[None, CHANGED] * 3)
    with pytest.raises(TokenChanged):
        follow(world, attempts=3)
    attempt = [Discover, Load, Fetch]
    assert kinds(world.taken) == [*attempt, Pause, *attempt, Pause, *attempt]
    assert all(pause.reason is CHANGED for pause in of_kind(world.taken, Pause))


def test_conflict_of_one_partition_is_final_though_others_answer():
    """A feed that always refuses one of its partitions is not asked again without end."""
    world = World([Partition(0), Partition(1)], trouble=[None, None, CHANGED] * 5)
    with pytest.raises(TokenChanged):
        follow(world, attempts=3)
    assert len(of_kind(world.taken, Pause)) == 2


def test_page_between_two_conflicts_starts_their_count_again():
    """Layouts that change often are no contradiction, as long as pages of them are read."""
    trouble = [None, CHANGED, None, None, CHANGED, None, CHANGED]
    world = World([Partition(0)], {0: ["a", "b"]}, trouble)
    assert delivered(follow(world, attempts=2)) == [(0, "a"), (0, "b")]


@pytest.mark.parametrize("error", [Unavailable("busy"), Unreachable("away"), CutPage("cut")])
@pytest.mark.parametrize(("before", "request_kind"), [([], Discover), ([None], Fetch)])
def test_transient_errors_are_waited_out(before, request_kind, error):
    """A request that failed is made again after a pause that says why."""
    world = World([Partition(0)], {0: ["a"]}, trouble=[*before, *[error] * 4])
    steps = follow(world, attempts=5)
    first = kinds(steps).index(request_kind)
    assert kinds(steps)[first : first + 9] == [*[request_kind, Pause] * 4, request_kind]
    assert [pause.reason for pause in of_kind(steps, Pause)] == [error] * 4
    assert delivered(steps) == [(0, "a")]


@pytest.mark.parametrize("before", [[], [None]], ids=["discovery", "page"])
def test_transient_error_is_final_after_all_attempts(before):
    """The error of the last attempt is raised, and there is no pause after it."""
    last = Unreachable("the last")
    world = World([Partition(0)], trouble=[*before, Unreachable("a"), Unreachable("b"), last])
    with pytest.raises(Unreachable) as raised:
        follow(world, attempts=3)
    assert raised.value is last
    assert kinds(world.taken).count(Pause) == 2


STORE_STEPS = [Load, Advance, Inherit]


def storing(kind, errors):
    """A world in which all steps to the store are taken, and those of a kind fail at first."""
    layout = [Partition(0, cursor_from=(9,))]
    return World(layout, {0: ["", "a"]}, answers={kind: errors})


@pytest.mark.parametrize("kind", STORE_STEPS)
def test_store_that_is_away_for_a_moment_is_waited_for(kind):
    """What the store could not do is tried again after a pause that says why."""
    error = StoreUnavailable("away")
    world = storing(kind, [error] * 4)
    steps = follow(world)
    first = kinds(steps).index(kind)
    assert kinds(steps)[first : first + 9] == [*[kind, Pause] * 4, kind]
    assert [pause.reason for pause in of_kind(steps, Pause)] == [error] * 4
    assert delivered(steps) == [(0, "a")]


@pytest.mark.parametrize("kind", STORE_STEPS)
def test_store_that_stays_away_is_given_up(kind):
    """The error of the last attempt is raised."""
    world = storing(kind, [StoreUnavailable("away")] * 9)
    with pytest.raises(StoreUnavailable):
        follow(world, attempts=3)
    assert kinds(world.taken).count(Pause) == 2


def test_advance_that_was_done_is_found_where_it_led():
    """Where only the reply was lost, trying again is fenced, and the cursor is loaded."""
    world = World([Partition(0)], {0: ["", "a"]}, fences=0)
    away = StoreUnavailable("away")
    world.answers = {Advance: [Lost(away), Fenced("moved")]}
    steps = follow(world)
    assert kinds(steps)[2:7] == [Fetch, Advance, Pause, Advance, Load]
    assert delivered(steps) == [(0, "a")]


def test_attempts_are_those_of_one_request():
    """A request that succeeds leaves the next one all its attempts."""
    failure = Unavailable("busy")
    world = World([Partition(0)], {0: ["a", "b"]}, [failure, None] * 4)
    assert delivered(follow(world, attempts=2)) == [(0, "a"), (0, "b")]


def test_without_a_limit_it_never_gives_up():
    """With attempts=None, a request is made until it succeeds."""
    trouble = [Unavailable("busy")] * 40 + [None] + [Unreachable("away")] * 40
    world = World([Partition(0)], {0: ["a"]}, trouble)
    assert delivered(follow(world, attempts=None)) == [(0, "a")]


@pytest.mark.parametrize(
    "error", [BadCursor("unknown"), Trimmed("too old"), ProtocolError("not a page")]
)
def test_other_errors_are_final_at_once(error):
    """What trying again does not change is raised as it is."""
    world = World([Partition(0)], trouble=[None, error])
    with pytest.raises(type(error)):
        follow(world)
    assert kinds(world.taken) == [Discover, Load, Fetch]


def pauses(count, error):
    """The seconds of the pauses between a row of equal failures."""
    world = World([Partition(0)], trouble=[error] * count)
    return [pause.seconds for pause in of_kind(follow(world, attempts=None), Pause)]


def test_pauses_grow_up_to_a_ceiling():
    """Pauses are random below a ceiling that doubles with each attempt, up to half a minute."""
    random.seed(1)
    rows = zip(*(pauses(12, Unreachable("away")) for _ in range(100)), strict=True)
    longest = [max(seconds) for seconds in rows]
    ceilings = [min(30, 0.1 * 2**attempt) for attempt in range(1, 13)]
    for seconds, ceiling in zip(longest, ceilings, strict=True):
        assert ceiling / 2 < seconds <= ceiling


def test_feed_is_left_alone_for_as_long_as_it_asks():
    """A pause is at least as long as the feed asked for."""
    assert all(seconds >= 20 for seconds in pauses(20, Unavailable("busy", retry_after=20)))


def test_feed_cannot_ask_for_more_than_half_a_minute():
    """What a feed may ask for is capped."""
    assert pauses(20, Unavailable("busy", retry_after=1e9)) == [30] * 20
