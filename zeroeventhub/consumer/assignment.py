"""Which partitions of a feed are read, in which order, and what has become of each."""

from collections.abc import Collection
from dataclasses import dataclass, field

from zeroeventhub.consumer.steps import Claimed, Inherit, Outcome
from zeroeventhub.errors import ConfigurationError, Halted, LeaseLost, ProtocolError, TokenChanged
from zeroeventhub.protocol import FeedInfo, Partition

__all__ = ["Assignments", "choose", "inheritance", "ready"]


def choose(info: FeedInfo, partitions: Collection[int] | None) -> tuple[Partition, ...]:
    """Name the partitions of a feed that are to be read.

    Args:
        info: what the feed says of itself.
        partitions: the ids that were asked for; None for all.

    Raises:
        ConfigurationError: a partition was asked for that the feed does not have.
        ProtocolError: a partition would never be read.
    """
    known = {partition.id: partition for partition in info.partitions}
    if unknown := set(partitions or ()) - known.keys():
        raise ConfigurationError(
            f"The feed has no partition {min(unknown)}; "
            f"it has {', '.join(map(str, sorted(known)))}."
        )
    _refuse_endless(info.partitions, known)
    return tuple(
        partition
        for partition in info.partitions
        if partitions is None or partition.id in partitions
    )


def _refuse_endless(partitions: Collection[Partition], known: dict[int, Partition]) -> None:
    """Refuse a partition that waits for one that never ends: it is open, or waits for the first.

    FeedAPI v2, Method 1 to change partition count: a parent is closed. Each partition is looked at
    once, however many wait for it: a publisher can name 32,768 in a chain.
    """
    checked: set[int] = set()
    for partition in partitions:
        line: set[int] = set()
        here = partition
        while here.id not in checked and here.starts_after is not None:
            line.add(here.id)
            parent = known.get(here.starts_after)
            if parent is None:
                break
            if parent.id in line or not parent.closed:
                raise ProtocolError(
                    f"Partition {partition.id} of the feed waits for partition {parent.id}, "
                    "which never ends."
                )
            here = parent
        checked |= line


def inheritance(info: FeedInfo) -> Inherit | None:
    """Make the step that hands cursors on to the partitions that inherit them; None without any."""
    heirs = {partition.id: partition.cursor_from for partition in info.partitions}
    heirs = {heir: parents for heir, parents in heirs.items() if parents}
    if not heirs:
        return None
    return Inherit(heirs, tuple(partition.id for partition in info.partitions))


def ready(chosen: Collection[Partition], drained: Collection[int]) -> list[Partition]:
    """Name the partitions that may be read now.

    A child starts when its parent has been read to the end (FeedAPI v2, Method 1 to change
    partition count); a parent that is not to be read delays no child.
    """
    waited_for = {partition.id for partition in chosen} - set(drained)
    return [
        partition
        for partition in chosen
        if partition.id not in drained and partition.starts_after not in waited_for
    ]


@dataclass
class Assignments:
    """Keep what a process knows of the partitions that it shares with other processes.

    Attributes:
        info: what the feed last said of itself.
        chosen: the partitions that are to be read, by this process or another.
        claimed: what the last claim brought.
        running: the partitions that are read here.
        stopping: those of them that were asked to stop.
        drained: the partitions of this layout that were read to their heads here.
        conflicts: outcomes that say that the partitions have changed.
        halted: by partition, why it stands still.
        errors: what else the reading of partitions ended in.
        first_seen: by partition that another process holds, when its lease was to run out when
            that was first seen.
    """

    info: FeedInfo | None = None
    chosen: tuple[Partition, ...] = ()
    claimed: Claimed = field(default_factory=lambda: Claimed(frozenset()))
    running: set[int] = field(default_factory=set)
    stopping: set[int] = field(default_factory=set)
    drained: set[int] = field(default_factory=set)
    conflicts: list[Outcome] = field(default_factory=list)
    halted: dict[int, Halted] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)
    first_seen: dict[int, float] = field(default_factory=dict)

    def start_layout(self, info: FeedInfo, partitions: Collection[int] | None) -> None:
        """Take note of the feed's partitions, and of which of them are to be read."""
        self.chosen = choose(info, partitions)
        if info != self.info:
            # One that was drained may have been closed since, after more events.
            self.drained.clear()
        self.info = info
        self.conflicts.clear()

    def record_claim(self, claimed: Claimed) -> None:
        """Take note of what a claim brought."""
        self.claimed = claimed
        # An operator may have put the cursor of one back that was read to its end.
        closed = {partition.id for partition in self.chosen if partition.closed}
        self.drained -= closed - claimed.ended
        for partition, runs_out in claimed.elsewhere.items():
            self.first_seen.setdefault(partition, runs_out)

    def record_outcome(self, outcome: Outcome) -> None:
        """Take note of how the reading of a partition ended."""
        self.running.discard(outcome.partition)
        self.stopping.discard(outcome.partition)
        if outcome.drained:
            self.drained.add(outcome.partition)
        match outcome.error:
            case None | LeaseLost():
                pass  # If the lease can be had again, the next claim brings it.
            case Halted() as error:
                self.halted[outcome.partition] = error
            case TokenChanged():
                self.conflicts.append(outcome)
            case error:
                self.errors.append(error)

    @property
    def done(self) -> set[int]:
        """The partitions that have been read to their ends, here or by another process."""
        return self.drained | self.claimed.ended

    @property
    def wanted(self) -> tuple[int, ...]:
        """The partitions that may be read now, if only for their dead letters."""
        readable = {partition.id for partition in ready(self.chosen, self.done)}
        readable |= self.claimed.letters & self.done
        return tuple(partition.id for partition in self.chosen if partition.id in readable)

    @property
    def due(self) -> frozenset[int]:
        """The partitions that are to be read here."""
        return (self.claimed.held - self.claimed.surplus - self.halted.keys()) & set(self.wanted)

    @property
    def needless(self) -> frozenset[int]:
        """The partitions whose leases are of no use here.

        Those that halted are kept: another process would come no further with them.
        """
        return self.claimed.held - self.due - self.running - (self.halted.keys() & set(self.wanted))

    @property
    def finished(self) -> bool:
        """Whether all that a run which does not follow would wait for has been read.

        What another process reads, it will read on; unless that process died, and its lease just
        has not run out yet.
        """
        elsewhere = self.claimed.elsewhere.items()
        alive = {number for number, runs_out in elsewhere if runs_out > self.first_seen[number]}
        return {partition.id for partition in self.chosen} <= self.done | alive
