"""A consumer that reads all partitions in turn: which next, when to try again, when to wait."""

import random

import pytest
from harness.follow_world import (
    CHANGED,
    POLL,
    World,
    delivered,
    follow,
    kinds,
    of_kind,
)

from zeroeventhub import FIRST, Partition
from zeroeventhub._follow import Advance, Deliver, Discover, Fetch, Inherit, Load, Pause
from zeroeventhub.errors import (
    ConfigurationError,
    CutPage,
    ProtocolError,
    StoreUnavailable,
    TokenChanged,
    Unavailable,
    Unreachable,
)
from zeroeventhub.protocol import CAUGHT_UP, WAIT

ONE = [Partition(0)]
TWO = [Partition(0), Partition(1)]
FAMILY = [Partition(1, starts_after=0), Partition(0, closed=True)]
SAYS = frozenset({CAUGHT_UP})
WAITS = frozenset({CAUGHT_UP, WAIT})


def test_partitions_take_turns():
    """A page of each partition is read in turn, in the order in which the feed names them."""
    world = World([Partition(2), Partition(0)], {0: ["ab", "c"], 2: ["d", "e", "f"]})
    assert delivered(follow(world)) == [(2, "d"), (0, "ab"), (2, "e"), (0, "c"), (2, "f")]
    assert Pause not in kinds(world.taken)


@pytest.mark.parametrize("closed", [False, True])
def test_follower_that_waits_pauses_at_the_head(closed):
    """With `forever` it pauses at the head, and where all partitions have been read to the end."""
    steps = follow(World([Partition(0, closed=closed)], {0: ["a"]}), forever=True)
    again = [Pause(POLL), Discover() if closed else Load(0, (0,))]
    assert steps[steps.index(again[0]) :][:2] == again


# Which partitions are read, and in which order.


def test_child_waits_until_its_parent_is_drained():
    """A partition that starts after another is not even loaded before that one's end."""
    parents = [
        Partition(2, starts_after=1),
        Partition(1, closed=True, starts_after=0),
        Partition(0, closed=True),
    ]
    pages = {0: ["a", "b"], 1: ["c"], 2: ["d"], 3: ["e"]}
    steps = follow(World([*parents, Partition(3)], pages))
    assert delivered(steps) == [(0, "a"), (3, "e"), (0, "b"), (1, "c"), (2, "d")]
    assert steps.index(Fetch(0, "2")) < steps.index(Load(1, (2, 1, 0, 3)))


@pytest.mark.parametrize(
    "layout",
    [
        [Partition(0), Partition(1, starts_after=0)],
        [Partition(0, closed=True, starts_after=0)],
        [Partition(0, closed=True, starts_after=1), Partition(1, closed=True, starts_after=0)],
        [Partition(2, starts_after=1), Partition(1, closed=True, starts_after=0), Partition(0)],
    ],
)
def test_layout_that_cannot_be_read_is_refused(layout):
    """Partitions that would wait for ever are not of the protocol, whoever is chosen."""
    for partitions in (None, {layout[0].id}):
        with pytest.raises(ProtocolError, match="never ends"):
            follow(World(layout), partitions=partitions)


def test_parent_that_is_not_read_holds_no_child_up():
    """A chosen child starts at once where its parent was not chosen, or is gone."""
    layout = [*FAMILY, Partition(2, starts_after=9)]
    steps = follow(World(layout, {0: ["a"], 1: ["b"], 2: ["c"]}), partitions={1, 2})
    assert delivered(steps) == [(1, "b"), (2, "c")]


def test_partition_that_does_not_exist_is_refused():
    """A chosen partition that the feed does not have is named in the error."""
    with pytest.raises(ConfigurationError, match="no partition 3; it has 0, 1"):
        follow(World(TWO[::-1]), partitions={0, 3})


def test_cursors_are_inherited_before_any_is_loaded():
    """The cursors of partitions that are gone are handed on, for every layout and all heirs."""
    layout = [Partition(4, cursor_from=(2, 1)), Partition(5), Partition(6, cursor_from=(2,))]
    world = World(layout, {5: ["a"]}, answers={Fetch: [None, CHANGED]})
    steps = follow(world, partitions={5})
    handed_on = Inherit({4: (2, 1), 6: (2,)}, (4, 5, 6))
    assert kinds(steps[:3]) == [Discover, Inherit, Load]
    assert of_kind(steps, Inherit) == [handed_on, handed_on]
    assert Inherit not in kinds(follow(World(TWO)))


# The head.


@pytest.mark.parametrize("uncommitted", [0, 2])
def test_run_ends_with_the_commit_of_the_page_that_reached_the_head(uncommitted):
    """Behind a page that held everything nothing is asked; it comes until it is committed."""
    world = World(ONE, {0: ["a"]}, extensions=SAYS, uncommitted=uncommitted)
    times = 1 + uncommitted
    assert kinds(follow(world)) == [Discover, *[Load, Fetch, Deliver] * times, Load]
    assert (delivered(world.taken), world.cursors) == ([(0, "a")] * times, {0: "1"})


def test_run_looks_for_the_head_where_a_rival_has_gone_on():
    """Where another process has moved on behind the head that was seen, it is read from there."""

    def go_on(world):
        world.pages[0].extend("bc")
        world.cursors[0] = "2"

    world = World(ONE, {0: ["a"]}, extensions=SAYS, changes={4: go_on})
    assert delivered(follow(world)) == [(0, "a"), (0, "c")]
    assert [step.cursor for step in of_kind(world.taken, Fetch)] == [FIRST, "2"]


def test_run_ends_beside_writers_that_never_pause():
    """A run that does not follow ends though something new is there behind every page."""
    world = World(ONE, {0: ["a"]}, extensions=SAYS, writers=True)
    assert delivered(follow(world)) == [(0, "a")]
    world = World(TWO, {0: ["a"], 1: ["b"]}, extensions=SAYS, writers=True)
    assert delivered(follow(world)) == [(0, "a"), (1, "b")]


def waited(steps):
    """The requests that the feed was asked to wait with."""
    return [step for step in of_kind(steps, Fetch) if step.wait]


@pytest.mark.parametrize(("poll_interval", "pause"), [(POLL, 0.1), (0.01, 0.01)])
def test_feed_waits_once_its_head_was_seen_and_committed(poll_interval, pause):
    """A feed that can wait is asked to from its head on, and between two waits is a short pause."""
    world = World(ONE, {0: ["a"]}, extensions=WAITS, uncommitted=3)
    steps = follow(world, most=40, forever=True, poll_interval=poll_interval)
    first = steps.index(Fetch(0, "1", 5.0))
    assert (waited(steps[:first]), Pause in kinds(steps[:first])) == ([], False)
    assert kinds(steps[first : first + 6]) == [Fetch, Pause, Load] * 2
    assert {each.seconds for each in of_kind(steps, Pause)} == {pause}


def test_news_that_end_a_wait_are_followed_by_the_next_wait():
    """Behind a page that came while the feed waited there is no pause."""
    world = World(ONE, {0: []}, extensions=WAITS, writers=True, cursors={0: "0"})
    steps = follow(world, most=9, forever=True)
    assert [step.wait for step in of_kind(steps, Fetch)][:2] == [0.0, 5.0]
    assert kinds(steps)[3:8] == [Pause, Load, Fetch, Deliver, Load]


@pytest.mark.parametrize(
    ("layout", "extensions", "options"),
    [
        (ONE, SAYS, {}),
        (ONE, WAITS, {"forever": False}),
        (TWO, WAITS, {}),
        ([Partition(0, closed=True)], WAITS, {}),
    ],
    ids=["not announced", "does not follow", "two partitions", "closed"],
)
def test_feed_is_not_asked_to_wait(layout, extensions, options):
    """It is asked to wait only if it can, by one who follows a single partition that is open."""
    world = World(layout, {0: ["a"], 1: ["b"]}, extensions=extensions)
    steps = follow(world, most=60, **{"forever": True, **options})
    assert waited(steps) == []
    assert {pause.seconds for pause in of_kind(steps, Pause)} <= {POLL}


@pytest.mark.parametrize(
    ("layout", "partitions"),
    [(TWO, {1}), ([*FAMILY, Partition(2, closed=True)], None)],
    ids=["chosen", "left over"],
)
def test_feed_waits_for_one_partition_of_several(layout, partitions):
    """The one that was chosen is waited for, and the one that is left open."""
    world = World(layout, {0: ["a"], 1: ["b"], 2: ["c"]}, extensions=WAITS)
    steps = follow(world, most=40, forever=True, partitions=partitions)
    assert {step.partition for step in waited(steps)} == {1}


# What fails.


@pytest.mark.parametrize("forever", [True, False])
def test_stop_between_any_two_steps_ends(forever):
    """Wherever it is stopped, it finishes the page at hand at most, and asks for no other."""
    away = Unreachable("away")
    for after in range(30):
        answers = {Discover: [away, None], Fetch: [None, away, None, CHANGED]}
        world = World(TWO, {0: ["a", ""], 1: ["b"]}, WAITS, arriving=["c"], answers=answers)
        follow(world, forever=forever, stopped=lambda w=world, n=after: len(w.taken) >= n)
        rest = kinds(world.taken)[after:]
        assert len(rest) <= 2
        assert {Discover, Load}.isdisjoint(rest)


ERRORS = [Unavailable("busy"), Unreachable("away"), CutPage("cut")]
AWAY = [StoreUnavailable("away")]
FAILING = [*[(kind, error) for kind in (Discover, Fetch) for error in ERRORS]]
FAILING += [(kind, error) for kind in (Load, Advance, Inherit) for error in AWAY]


@pytest.mark.parametrize(("kind", "error"), FAILING)
def test_transient_errors_are_waited_out(kind, error):
    """What failed is done after a pause that says why; every request has all its attempts."""
    layout = [Partition(0, cursor_from=(9,))]
    world = World(layout, {0: ["", "a"]}, answers={kind: [*[error] * 4, None, *[error] * 4]})
    steps = follow(world, attempts=5)
    first = kinds(steps).index(kind)
    assert kinds(steps)[first : first + 9] == [*[kind, Pause] * 4, kind]
    assert {pause.reason for pause in of_kind(steps, Pause)} == {error}
    assert delivered(steps) == [(0, "a")]
    last = type(error)("the last")
    world = World(layout, {0: ["", "a"]}, answers={kind: [error, error, last]})
    with pytest.raises(type(error)) as raised:
        follow(world, attempts=3)
    assert (raised.value, kinds(world.taken).count(Pause)) == (last, 2)


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


def pauses(count, error):
    """The seconds of the pauses between a row of equal failures."""
    world = World(ONE, answers={Discover: [error] * count})
    return [pause.seconds for pause in of_kind(follow(world, attempts=None), Pause)]


@pytest.fixture
def seeded():
    """Random numbers that are the same in each run."""
    state = random.getstate()
    random.seed(1)
    yield
    random.setstate(state)


@pytest.mark.usefixtures("seeded")
def test_pauses_grow_up_to_a_ceiling_and_start_anew_after_a_success():
    """Pauses are random below a ceiling that doubles with each attempt, up to half a minute."""
    rows = zip(*(pauses(12, Unreachable("away")) for _ in range(100)), strict=True)
    ceilings = [min(30, 0.1 * 2**attempt) for attempt in range(1, 13)]
    for seconds, ceiling in zip(map(max, rows), ceilings, strict=True):
        assert ceiling / 2 < seconds <= ceiling
    failures = [Unreachable("away")] * 10
    world = World(ONE, {0: ["a", "b"]}, answers={Fetch: [*failures, None, failures[0]]})
    follow(world, attempts=None)
    assert of_kind(world.taken, Pause)[-1].seconds <= 0.2


def test_feed_is_left_alone_for_as_long_as_it_asks():
    """A pause is at least as long as the feed asked for, up to half a minute."""
    assert all(seconds >= 20 for seconds in pauses(20, Unavailable("busy", retry_after=20)))
    assert pauses(20, Unavailable("busy", retry_after=1e9)) == [30] * 20
