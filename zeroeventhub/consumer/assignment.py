"""Choose the partitions that this process reads, and track the state of each."""

from collections.abc import Collection
from dataclasses import dataclass, field

from zeroeventhub.consumer.steps import Claimed, Inherit, Outcome
from zeroeventhub.errors import ConfigurationError, Halted, LeaseLost, ProtocolError, TokenChanged
from zeroeventhub.protocol import FeedInfo, Partition

__all__ = ["Assignments", "choose", "inheritance", "ready"]


def choose(info: FeedInfo, partitions: Collection[int] | None) -> tuple[Partition, ...]:
    """Return the partitions of a feed to read: those that the caller configured, or all.

    Raises:
        ConfigurationError: the feed does not have a configured partition.
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
    """Refuse a partition whose parent never ends, because it is open or waits for its own child.

    FeedAPI v2, Method 1 to change partition count: a parent is closed. Each partition is checked
    only once, however many children it has: a publisher can list 32,768 in a chain.
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
    """Return the step that copies cursors to the partitions that inherit them; None without any."""
    heirs = {partition.id: partition.cursor_from for partition in info.partitions}
    heirs = {heir: parents for heir, parents in heirs.items() if parents}
    if not heirs:
        return None
    return Inherit(heirs, tuple(partition.id for partition in info.partitions))


def ready(chosen: Collection[Partition], drained: Collection[int]) -> list[Partition]:
    """Return the partitions that may be read now.

    A child starts when its parent has been read to the end (FeedAPI v2, Method 1 to change
    partition count); a parent that was not chosen delays no child.
    """
    waited_for = {partition.id for partition in chosen} - set(drained)
    return [
        partition
        for partition in chosen
        if partition.id not in drained and partition.starts_after not in waited_for
    ]


@dataclass
class Assignments:
    """One process's view of the partitions that it shares with other processes.

    Attributes:
        info: the feed's last description.
        chosen: the partitions to read, by this process or another.
        claimed: the result of the last claim.
        running: the partitions that this process reads.
        stopping: running partitions that have to stop.
        drained: the partitions of this layout that this process has read to their heads.
        conflicts: outcomes that report a change of the feed's partitions.
        halted: the error of each halted partition.
        errors: the other errors that readers ended with.
        first_seen: by partition that another process holds, the end of its lease when this process
            first saw it.
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
        """Store the feed's partitions, and choose those to read."""
        self.chosen = choose(info, partitions)
        if info != self.info:
            # The publisher may have added events to a drained partition before closing it.
            self.drained.clear()
        self.info = info
        self.conflicts.clear()

    def record_claim(self, claimed: Claimed) -> None:
        """Store the result of a claim."""
        self.claimed = claimed
        # An operator may have moved back the cursor of a partition that was read to its end.
        closed = {partition.id for partition in self.chosen if partition.closed}
        self.drained -= closed - claimed.ended
        for partition, runs_out in claimed.elsewhere.items():
            self.first_seen.setdefault(partition, runs_out)

    def record_outcome(self, outcome: Outcome) -> None:
        """Store how the reading of a partition ended."""
        self.running.discard(outcome.partition)
        self.stopping.discard(outcome.partition)
        if outcome.drained:
            self.drained.add(outcome.partition)
        match outcome.error:
            case None | LeaseLost():
                pass  # If the lease is free again, the next claim takes it.
            case Halted() as error:
                self.halted[outcome.partition] = error
            case TokenChanged():
                self.conflicts.append(outcome)
            case error:
                self.errors.append(error)

    @property
    def done(self) -> set[int]:
        """The partitions that have been read to their ends, by this process or another."""
        return self.drained | self.claimed.ended

    @property
    def wanted(self) -> tuple[int, ...]:
        """The partitions that may be read now, if only for their dead letters."""
        readable = {partition.id for partition in ready(self.chosen, self.done)}
        readable |= self.claimed.letters & self.done
        return tuple(partition.id for partition in self.chosen if partition.id in readable)

    @property
    def due(self) -> frozenset[int]:
        """The partitions that this process has to read."""
        return (self.claimed.held - self.claimed.surplus - self.halted.keys()) & set(self.wanted)

    @property
    def needless(self) -> frozenset[int]:
        """The partitions whose leases this process does not need.

        It keeps those of halted partitions: another process would fail at the same event.
        """
        return self.claimed.held - self.due - self.running - (self.halted.keys() & set(self.wanted))

    @property
    def finished(self) -> bool:
        """Whether a run without `follow` has nothing left to wait for.

        A partition that another process reads needs no waiting, unless that process may have died:
        its lease has not been renewed, and not run out yet.
        """
        elsewhere = self.claimed.elsewhere.items()
        alive = {number for number, runs_out in elsewhere if runs_out > self.first_seen[number]}
        return {partition.id for partition in self.chosen} <= self.done | alive
