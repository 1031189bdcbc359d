"""A feed and a store with epochs, for those who read one partition under a lease."""

from dataclasses import dataclass, field

from harness.follow_world import POLL, World, drive
from zeroeventhub import FIRST, Partition
from zeroeventhub._follow import (
    End,
    Failures,
    Load,
    PartitionFollower,
    Place,
    Redeliver,
)
from zeroeventhub.errors import Fenced


@dataclass
class LeasedWorld(World):
    """A store that compares cursors and epochs; see `World`.

    Attributes:
        epoch: the epoch of partition 0.
        applied: the texts of the pages that were committed.
        between: what happens to the store before the next page is delivered.
    """

    epoch: int = 0
    applied: list[str] = field(default_factory=list)
    between: list = field(default_factory=list)

    def do(self, step):
        """Be the feed, the store and the consumer."""
        result = super().do(step)
        match step:
            case Load():
                self.epoch += 1
                return Place(self.cursors[0], self.epoch)
            case End() | Redeliver():
                self.compare(step.place)
        return result

    def commit(self, step):
        """Apply a page and move the cursor behind it."""
        if self.between:
            self.between.pop(0)(self)
        self.compare(step.place)
        self.cursors[0] = step.page.cursor
        self.applied.append("".join(event.data for event in step.page.events))

    def compare(self, place):
        """Refuse who does not stand where the store says."""
        if place != Place(self.cursors.get(0, FIRST), self.epoch):
            raise Fenced("Another process has moved it.")


def read(world, *, most=200, **options):
    """Read partition 0 of a world; return what the reading returned."""
    wishes = {
        "partition": world.layout[0],
        "among": (0,),
        "extensions": world.extensions,
        "forever": False,
        "poll_interval": POLL,
        "attempts": 5,
        "failures": Failures(),
        "stopped": lambda: False,
        "roomy": lambda: True,
        "letters": lambda: False,
        "overtaken": lambda epoch: False,
    }
    return drive(PartitionFollower(**(wishes | options)).steps(), world, most)


def leased(*pages, closed=False, **options):
    """A world with one partition of these pages."""
    return LeasedWorld([Partition(0, closed=closed)], {0: list(pages)}, **options)
