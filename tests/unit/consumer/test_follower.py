"""One reader of all partitions in turn, and one of a single partition that it has a lease of."""

import random
from dataclasses import dataclass, field
from functools import partial

import pytest
from harness.simulation.processes import Whole

from zeroeventhub import FIRST, Event, FeedInfo, Page, Partition
from zeroeventhub.consumer.config import Failures
from zeroeventhub.consumer.follower import Follower, PartitionFollower
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
    Redeliver,
    Step,
)
from zeroeventhub.errors import (
    ConfigurationError,
    CutPage,
    Fenced,
    Halted,
    ProtocolError,
    StoreUnavailable,
    TokenChanged,
    Trimmed,
    Unavailable,
    Unreachable,
    ZeroEventHubError,
)
from zeroeventhub.protocol import CAUGHT_UP, WAIT

POLL = 7.0
CHANGED = TokenChanged("The partitions have changed.")
ONE = [Partition(0)]
TWO = [Partition(0), Partition(1)]
FAMILY = [Partition(1, starts_after=0), Partition(0, closed=True)]
SAYS = frozenset({CAUGHT_UP})
WAITS = frozenset({CAUGHT_UP, WAIT})
AWAY = StoreUnavailable("away")
BROKEN = ValueError("no such customer\n[SQL: INSERT INTO secrets]")


@dataclass
class Lost:
    """Have something done, and lose the reply to an error."""

    error: Exception


@dataclass
class World:
    """A feed, a store of cursors and leases, and the handler of a consumer.

    A page is a text of its events, a letter each. Where loading a place is a new right to it, as
    under a lease, `leased` is set. Some pages arrive at partition 0, one at each pause, and where
    there are `writers` each partition has another page after each that is read. The next steps of
    a kind end in its `answers`: errors that keep them from being done, replies that are Lost, what
    others do to the world before, or None.
    """

    layout: list[Partition]
    pages: dict[int, list[str]] = field(default_factory=dict)
    extensions: frozenset[str] = frozenset()
    arriving: list[str] = field(default_factory=list)
    writers: bool = False
    leased: bool = False
    cursors: dict[int, str] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    applied: list[tuple[int, str]] = field(default_factory=list)
    answers: dict[type, list] = field(default_factory=dict)
    taken: list[Step] = field(default_factory=list)

    def carry_out(self, step):
        self.taken.append(step)
        answers = self.answers.get(type(step))
        answer = answers.pop(0) if answers else None
        if isinstance(answer, Exception):
            raise answer
        if callable(answer):
            answer(self)
        result = self.do(step)
        if isinstance(answer, Lost):
            raise answer.error
        return result

    def do(self, step):
        """Be the feed, the store, the handler and the other processes."""
        match step:
            case Discover():
                return FeedInfo(tuple(self.layout), "token", extensions=self.extensions)
            case Load():
                return self.load(step.partition)
            case Fetch():
                return self.page(step)
            case Advance():
                self.compare(step)
                self.cursors[step.partition] = step.new
            case Deliver() if self.is_stale(step) and not self.leased:
                pass
            case Deliver():
                self.compare(step)
                self.cursors[step.partition] = step.page.cursor
                text = "".join(event.data for event in step.page.events)
                self.applied.append((step.partition, text))
            case End() | Redeliver():
                self.compare(step)
            case Pause() if self.arriving:
                self.pages[0].append(self.arriving.pop(0))
        return None

    def load(self, partition):
        """Where the consumer stands, by a new right if it has a lease."""
        self.epochs[partition] = self.epochs.get(partition, 0) + self.leased
        return self.place(partition)

    def place(self, partition):
        cursor = self.cursors.setdefault(partition, FIRST)
        return Place(cursor, self.epochs.setdefault(partition, 0))

    def is_stale(self, step):
        return step.place != self.place(step.partition)

    def compare(self, step):
        if self.is_stale(step):
            raise Fenced("Another process has moved it.")

    def page(self, step):
        """The page after a cursor, which is the number of pages before it."""
        pages = self.pages.setdefault(step.partition, [])
        number = 0 if step.cursor == FIRST else int(step.cursor)
        found = pages[number : number + 1]
        end = number + len(found)
        events = [Event.of(letter) for letter in "".join(found)]
        caught_up = CAUGHT_UP in self.extensions and end == len(pages)
        if self.writers:
            pages.append("w")
        return Page(events, str(end), caught_up=caught_up)


def drive(steps, world, most=200):
    """Take decisions' steps in a world; return what they return, or None if there are more."""
    go_on = partial(next, steps)
    for _ in range(most):
        try:
            step = go_on()
        except StopIteration as end:
            return end.value
        try:
            go_on = partial(steps.send, world.carry_out(step))
        except (ZeroEventHubError, ValueError) as error:
            go_on = partial(steps.throw, error)
    return None


def follow(world, most=200, **options):
    """Drive a follower of all partitions in turn until it ends; return the steps."""
    wishes = {
        "partitions": None,
        "forever": False,
        "poll_interval": POLL,
        "attempts": 5,
        "stopped": lambda: False,
    }
    drive(Follower(**(wishes | options)).steps(), world, most)
    return world.taken


def read(world, most=200, **options):
    """Read the first partition of a world under a lease; return what the reading returned."""
    wishes = {
        "partition": world.layout[0],
        "among": (0,),
        "extensions": world.extensions,
        "forever": False,
        "poll_interval": POLL,
        "attempts": 5,
        "failures": Failures(),
        "stopped": lambda: False,
        "transactions": Whole(),
        "has_capacity": lambda: True,
        "letters": set(),
        "epochs": world.epochs,
    }
    return drive(PartitionFollower(**(wishes | options)).steps(), world, most)


def world_of(*pages, closed=False, **options):
    """A world with one partition of these pages."""
    return World([Partition(0, closed=closed)], {0: list(pages)}, **options)


def delivered(steps):
    """The pages delivered: partition and events."""
    return [
        (step.partition, "".join(event.data for event in step.page.events))
        for step in steps
        if isinstance(step, Deliver)
    ]


def kinds(steps):
    """The kinds of steps, without what they are about."""
    return [type(step) for step in steps]


def of_kind(steps, kind):
    """The steps of one kind."""
    return [step for step in steps if isinstance(step, kind)]


EITHER = pytest.mark.parametrize("reader", [follow, read], ids=["in turn", "by a lease"])
"""What both readers do alike; a page is a text of its events."""


def leased(*pages, **options):
    """A world with one partition of these pages, and a lease of it."""
    return world_of(*pages, leased=True, **options)


# The head.


@EITHER
def test_feed_waits_once_its_head_was_seen(reader):
    """A feed that can wait is asked to from its head on, and between two waits is a short pause."""
    world = world_of("a", extensions=WAITS, leased=reader is read)
    reader(world, forever=True, most=12)
    steps = [step for step in world.taken if isinstance(step, Fetch | Pause)]
    assert steps[0].wait == 0.0
    assert steps[1:5] == [Fetch(0, "1", 5.0), Pause(0.1)] * 2


@EITHER
def test_news_that_end_a_wait_are_followed_by_the_next_wait(reader):
    """Behind a page that came while the feed waited there is no pause."""
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


def test_run_ends_beside_writers_that_never_pause():
    """A run that does not follow ends though something new is there after every page."""
    world = World(ONE, {0: ["a"]}, extensions=SAYS, writers=True)
    assert delivered(follow(world)) == [(0, "a")]
    world = World(TWO, {0: ["a"], 1: ["b"]}, extensions=SAYS, writers=True)
    assert delivered(follow(world)) == [(0, "a"), (1, "b")]


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
    """Partitions that would wait for ever are not of the protocol, whichever are chosen."""
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


def pauses(count, error):
    """The seconds of the pauses between a row of equal failures."""
    world = World(ONE, answers={Discover: [error] * count})
    return [pause.seconds for pause in of_kind(follow(world, attempts=None), Pause)]


def test_pauses_grow_up_to_a_ceiling_and_start_anew_after_a_success():
    """Pauses are random below a ceiling that doubles with each attempt, up to half a minute."""
    random.seed(1)
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
        read(world, attempts=3, letters={0})
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
    assert kinds(world.taken)[:7] == [Load, Fetch, *[Deliver, Pause] * 2, Deliver]
    assert [pause.reason for pause in of_kind(world.taken, Pause)] == [error] * 4
    assert world.applied == [(0, "a"), (0, "b")]


def test_commits_of_unknown_outcome_are_no_tries():
    """What the store could not do says nothing about the page; what was decided of it stays."""
    world = leased("a", answers={Deliver: [BROKEN, AWAY, Fenced("moved"), BROKEN, AWAY, None]})
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
