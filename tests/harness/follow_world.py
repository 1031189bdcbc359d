"""A feed and a store of cursors, and a driver that takes a follower's steps in them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from zeroeventhub import FIRST, Event, FeedInfo, Page, Partition
from zeroeventhub._follow import (
    Advance,
    Deliver,
    Discover,
    Fetch,
    Follower,
    Load,
    Pause,
    Place,
    Step,
)
from zeroeventhub.errors import Fenced, TokenChanged, ZeroEventHubError
from zeroeventhub.protocol import CAUGHT_UP

POLL = 7.0
CHANGED = TokenChanged("The partitions have changed.")


@dataclass
class Lost:
    """Have something done, and lose the reply.

    Attributes:
        error: what is raised in its place.
    """

    error: Exception


@dataclass
class World:
    """A feed and a store of cursors: what the steps act on.

    Attributes:
        layout: the feed's partitions.
        pages: the pages of each partition, each a text of its events, a letter each.
        trouble: what the next requests to the feed end in: errors, or None for an answer.
        fences: how many moves of a cursor are refused.
        arriving: pages that come to partition 0, one at each pause.
        cursors: the cursors in the store.
        epochs: their epochs; 0 where there is none.
        taken: the steps that were taken.
        extensions: what the feed announces; with CAUGHT_UP its pages say where its head is.
        writers: whether every partition gets another page after each that is read.
        uncommitted: how many of the pages that are delivered are not committed.
        rival: cursors that another process of this consumer moves to when a page is delivered, in
            the place of its commit.
        rebuild: what changes the feed before the next discovery.
        answers: by kind of step, what the next ones end in: an error that keeps them from being
            done, a reply that is Lost, or None.
    """

    layout: list[Partition]
    pages: dict[int, list[str]] = field(default_factory=dict)
    trouble: list[Exception | None] = field(default_factory=list)
    fences: int = 0
    arriving: list[str] = field(default_factory=list)
    cursors: dict[int, str] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    taken: list[Step] = field(default_factory=list)
    extensions: frozenset[str] = frozenset()
    writers: bool = False
    uncommitted: int = 0
    rival: list[str] = field(default_factory=list)
    rebuild: Callable[[], object] | None = None
    answers: dict[type, list] = field(default_factory=dict)

    def carry_out(self, step):
        """Carry out a step; return its result or raise its error."""
        self.taken.append(step)
        answers = self.answers.get(type(step))
        answer = answers.pop(0) if answers else None
        if isinstance(answer, Exception):
            raise answer
        result = self.do(step)
        if isinstance(answer, Lost):
            raise answer.error
        return result

    def do(self, step):
        """Be the feed, the store and the consumer."""
        match step:
            case Discover() | Fetch() if self.trouble and (error := self.trouble.pop(0)):
                raise error
            case Discover():
                return self.info()
            case Load():
                epoch = self.epochs.get(step.partition, 0)
                return Place(self.cursors.setdefault(step.partition, FIRST), epoch)
            case Fetch():
                return self.read(step)
            case Advance() if self.fences:
                self.fences -= 1
                raise Fenced("Another process has moved it.")
            case Advance():
                self.cursors[step.partition] = step.new
            case Deliver():
                self.commit(step)
            case Pause() if self.arriving:
                self.pages[0].append(self.arriving.pop(0))
        return None

    def info(self):
        """What the feed says of itself."""
        if self.rebuild and len(self.taken) > 1:
            self.rebuild()
        return FeedInfo(tuple(self.layout), "token", extensions=self.extensions)

    def read(self, step):
        """The page that was asked for."""
        page = self.page(self.pages.setdefault(step.partition, []), step.cursor)
        if self.writers:
            self.pages[step.partition].append("w")
        return page

    def commit(self, step):
        """Move the cursor behind a page, unless the consumer or a rival has other plans."""
        if self.uncommitted:
            self.uncommitted -= 1
        else:
            self.cursors[step.partition] = self.rival.pop(0) if self.rival else step.page.cursor

    def page(self, pages, cursor):
        """The page behind a cursor, which is the number of pages in front of it."""
        number = 0 if cursor == FIRST else int(cursor)
        found = pages[number : number + 1]
        end = number + len(found)
        return Page(
            [Event.of(letter) for letter in "".join(found)],
            str(end),
            caught_up=CAUGHT_UP in self.extensions and end == len(pages),
        )


def follower(
    *, forever=False, attempts=5, partitions=None, stopped=lambda: False, poll_interval=POLL
):
    """A follower that ends at the head and never is stopped, but for what is said here."""
    return Follower(partitions, forever, poll_interval, attempts, stopped)


def follow(world, most=200, **options):
    """Drive a follower through a world until it ends; return the steps."""
    drive(follower(**options).steps(), world, most)
    return world.taken


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
