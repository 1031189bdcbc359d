"""Decisions about partitions, driven step by step in a small world of pages and cursors."""

from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

from zeroeventhub import FIRST, Event, FeedInfo, Page, Partition
from zeroeventhub.consumer.config import Failures
from zeroeventhub.consumer.follower import Follower, PartitionFollower
from zeroeventhub.consumer.steps import (
    Advance,
    Deliver,
    Discover,
    End,
    Fetch,
    Load,
    Pause,
    Place,
    Redeliver,
    Step,
    Stopped,
)
from zeroeventhub.errors import Fenced, StoreUnavailable, TokenChanged, ZeroEventHubError
from zeroeventhub.extensions import CAUGHT_UP, WAIT

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
    """Take decisions' steps in a world; return whether they ended, rather than have more."""
    go_on = partial(next, steps)
    for _ in range(most):
        try:
            step = go_on()
        except StopIteration:
            return True
        try:
            go_on = partial(steps.send, world.carry_out(step))
        except (ZeroEventHubError, ValueError) as error:
            go_on = partial(steps.throw, error)
    return False


def follow(world, most=200, **options):
    """Drive a follower of all partitions in turn until it ends; return the steps."""
    stopped = options.pop("stopped", lambda: False)
    drive(Follower(config_of(**options), stopped).steps(), world, most)
    return world.taken


def config_of(*, forever=False, **options):
    """The options of a consumer, as far as decisions need them."""
    common = {"partitions": None, "start": FIRST, "poll_interval": POLL}
    common |= {"attempts": 5, "concurrency": 1}
    return SimpleNamespace(**(common | {"follow": forever, "failures": Failures()} | options))


def read(world, most=200, **options):
    """Read the first partition of a world under a lease; return whether it was drained."""
    stopped = options.pop("stopped", lambda: False)
    letters = options.pop("letters", set())
    running = options.pop("running", ())
    follower = PartitionFollower(
        partition=world.layout[0],
        among=(0,),
        after=None,
        extensions=world.extensions,
        config=config_of(**options),
        stopped=stopped,
        running=running,
        letters=letters,
        epochs=world.epochs,
    )
    try:
        return drive(follower.steps(), world, most)
    except Stopped:
        return False


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


def leased(*pages, **options):
    """A world with one partition of these pages, and a lease of it."""
    return world_of(*pages, leased=True, **options)
