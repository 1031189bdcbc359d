"""A feed, leases and readers, and a driver that takes a crew's steps in them."""

from dataclasses import dataclass, field

from harness.follow_world import drive
from zeroeventhub import FeedInfo, Partition
from zeroeventhub._follow import (
    Await,
    Claim,
    Claimed,
    Crew,
    Discover,
    Outcome,
    Release,
    Start,
    Step,
    Stop,
)

LEASE = 30.0
POLL = 7.0


@dataclass
class CrewWorld:
    """What a crew's steps act on.

    Attributes:
        layout: the feed's partitions.
        endings: what the readers end in, for each Await; behind these, those end by themselves
            that were asked to stop.
        answers: by kind of step, errors that the next ones end in, or None.
        held: the partitions whose leases this process holds.
        elsewhere: those of others.
        surplus: those that are held and belong to others.
        ended: those that were read to their ends.
        letters: those with dead letters.
        share: how many leases this process takes at most.
        changes: what happens in the world after so many steps.
        running: what is read now.
        stopping: what of it was asked to stop.
        taken: the steps that were taken.
    """

    layout: list[Partition]
    endings: list[list[Outcome]] = field(default_factory=list)
    answers: dict[type, list] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    elsewhere: dict[int, float] = field(default_factory=dict)
    surplus: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    letters: set[int] = field(default_factory=set)
    share: int = 100
    changes: dict[int, object] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    stopping: set[int] = field(default_factory=set)
    taken: list[Step] = field(default_factory=list)

    def carry_out(self, step):
        """Carry out a step; return its result or raise its error."""
        self.taken.append(step)
        if change := self.changes.get(len(self.taken)):
            change(self)
        answers = self.answers.get(type(step))
        if answers and (error := answers.pop(0)):
            raise error
        match step:
            case Discover():
                return FeedInfo(tuple(self.layout), "token")
            case Claim():
                return self.claim(step.wanted)
            case Release():
                assert not step.partitions & self.running
                self.held -= step.partitions
                self.surplus -= step.partitions
            case Start():
                assert step.partition.id in self.held - self.running
                self.running.add(step.partition.id)
            case Stop():
                assert step.partitions <= self.running - self.stopping
                self.stopping |= step.partitions
            case Await():
                return self.end()
        return None

    def claim(self, wanted):
        """Take what is free."""
        free = [number for number in wanted if number not in self.held | self.elsewhere.keys()]
        self.held |= set(free[: self.share - len(self.held)])
        return Claimed(
            frozenset(self.held),
            frozenset(self.surplus),
            dict(self.elsewhere),
            frozenset(self.ended),
            frozenset(self.letters),
        )

    def end(self):
        """Let readers end."""
        stopped = [Outcome(number) for number in sorted(self.stopping)]
        outcomes = self.endings.pop(0) if self.endings else stopped
        for outcome in outcomes:
            self.running.remove(outcome.partition)
            self.stopping.discard(outcome.partition)
            if outcome.drained and self.closed(outcome.partition):
                self.ended.add(outcome.partition)
        return tuple(outcomes)

    def closed(self, number):
        """Whether a partition is closed."""
        return any(partition.id == number and partition.closed for partition in self.layout)


def crew(world, *, most=60, **options):
    """Drive a crew through a world until it ends; return the steps."""
    wishes = {
        "partitions": None,
        "forever": False,
        "poll_interval": POLL,
        "attempts": 5,
        "lease": LEASE,
        "stopped": lambda: False,
    }
    drive(Crew(**(wishes | options)).steps(), world, most)
    return world.taken


def drained(*partitions):
    """Outcomes of partitions that were read to their ends."""
    return [Outcome(number, drained=True, read=True) for number in partitions]
