"""Decide which partitions of a feed this process reads."""

import math
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.steps import (
    Await,
    Claim,
    Claimed,
    Discover,
    Outcome,
    Pause,
    Release,
    RetryBudget,
    Start,
    Step,
    Stop,
    Stopped,
    begun_together,
    choose,
    inheritance,
    persist,
    ready,
)
from zeroeventhub.errors import Halted, LeaseLost, TokenChanged, TransientError
from zeroeventhub.protocol import FeedInfo, Partition

_Steps = Generator[Step, Any, None]


@dataclass
class Coordinator:
    """Decide which partitions a process reads, and share them with processes of the same consumer.

    A lease is renewed three times in the seconds that it lasts.
    """

    config: Config
    stopped: Callable[[], bool]
    now: Callable[[], float] = monotonic
    _info: FeedInfo | None = field(default=None, init=False)
    _claimed: Claimed = field(default=Claimed(frozenset()), init=False)
    # The partitions to read, by this process or another.
    _chosen: tuple[Partition, ...] = field(default=(), init=False)
    # The partitions that this process reads, and those that it has told to stop.
    _running: set[int] = field(default_factory=set, init=False)
    _stopping: set[int] = field(default_factory=set, init=False)
    # The partitions of this layout that this process has read to their heads.
    _drained: set[int] = field(default_factory=set, init=False)
    # Outcomes that report a change of the feed's partitions, and the other errors of readers.
    _conflicts: list[Outcome] = field(default_factory=list, init=False)
    _halted: dict[int, Halted] = field(default_factory=dict, init=False)
    _errors: list[Exception] = field(default_factory=list, init=False)
    # The end of the lease of each partition when it was first found with another process.
    _first_seen: dict[int, float] = field(default_factory=dict, init=False)

    def steps(self) -> _Steps:
        """Yield the steps, until all has been read (unless forever) or until stopped.

        When they end, by return or error, this process no longer reads any partition.

        Raises:
            Halted: a partition has halted, and all other partitions have ended.
        """
        try:
            with suppress(Stopped):
                yield from self._work()
        except Exception:
            yield from self._stop_all()
            raise
        yield from self._stop_all()
        if errors := [*self._errors, *self._halted.values()]:
            raise errors[0]

    def _work(self) -> _Steps:
        """Read layout after layout."""
        conflicts = RetryBudget(self.config.attempts, self.stopped)
        while not self.stopped():
            info = yield from persist(Discover(), self._budget())
            self._chosen = choose(info, self.config.partitions)
            if info != self._info:
                # The publisher may have added events to a drained partition before closing it.
                self._drained.clear()
            self._info = info
            self._conflicts.clear()
            if inherit := inheritance(info):
                yield from persist(inherit, self._budget())
            if (yield from self._share(info, conflicts)):
                return
            yield from self._stop_all()
            if self._errors:
                return
            if self._conflicts and not self.stopped():
                yield from self._back_off(conflicts)

    def _share(self, info: FeedInfo, conflicts: RetryBudget) -> Generator[Step, Any, bool]:
        """Share one layout; return whether to end, rather than discover the feed again."""
        among = begun_together(info, self._chosen, self.config.start)
        chosen = {partition.id for partition in self._chosen}
        parents = {partition.starts_after for partition in self._chosen}
        while not self.stopped():
            yield from self._claim()
            due = self._due
            if stop := frozenset(self._running - due - self._stopping):
                self._stopping |= stop
                yield Stop(stop)
            new = due - self._running
            for partition in self._chosen:
                if partition.id in new:
                    waits = partition.starts_after in chosen
                    yield Start(partition, among, partition.starts_after if waits else None)
                    self._running.add(partition.id)
            if not self._running:
                return (yield from self._stand_by())
            began, left = self.now(), self.config.lease / 3
            while self._running and left > 0:
                outcomes: tuple[Outcome, ...] = yield Await(left)
                self._record(outcomes)
                if self._errors or self._conflicts:
                    return bool(self._errors)
                if not outcomes:
                    conflicts.failed = 0
                left = self.config.lease / 3 - (self.now() - began)
                # As a claim renews all leases, none is made for a partition that is merely drained.
                if not outcomes or any(
                    not one.drained or one.partition in parents for one in outcomes
                ):
                    break
        return True

    def _claim(self) -> _Steps:
        """Release the leases that are not needed, and claim the partitions that may be read now.

        A claim may report that parents were read to their end; claim their children then.
        """
        wanted: tuple[int, ...] | None = None
        while wanted != self._wanted:
            if needless := self._needless:
                yield from persist(Release(needless), self._budget(self.config.lease / 3))
            wanted = self._wanted
            claimed = yield from persist(Claim(wanted), self._budget(self.config.lease / 3))
            self._claimed = claimed
            # An operator may have moved back the cursor of a partition that was read to its end.
            self._drained -= self._closed - claimed.ended
            # Or that of one that has halted.
            self._halted = {
                partition: error
                for partition, error in self._halted.items()
                if claimed.epochs.get(partition, 0) <= error.epoch
            }
            for partition, ends in claimed.elsewhere.items():
                self._first_seen.setdefault(partition, ends)

    def _record(self, outcomes: Collection[Outcome]) -> None:
        """Store how the reading of partitions ended."""
        for outcome in outcomes:
            self._running.discard(outcome.partition)
            self._stopping.discard(outcome.partition)
            if outcome.drained:
                self._drained.add(outcome.partition)
            match outcome.error:
                case None | LeaseLost():
                    pass  # If the lease is free again, the next claim takes it.
                case Halted() as error:
                    self._halted[outcome.partition] = error
                case TokenChanged():
                    self._conflicts.append(outcome)
                case error:
                    self._errors.append(error)

    def _stand_by(self) -> Generator[Step, Any, bool]:
        """Wait while this process has nothing to read; return whether the run ends instead.

        Discover the feed again afterwards: other processes may already read a newer layout.
        """
        if self._halted or (self._finished and not self.config.follow):
            return True
        seconds = self.config.lease / 3
        yield Pause(seconds if self._wanted else min(seconds, self.config.poll_interval))
        return False

    def _back_off(self, conflicts: RetryBudget) -> _Steps:
        """Wait before the next discovery, if the feed's partitions changed before a page was read.

        A feed that reports one change after the other contradicts itself: do not retry at once.
        """
        if any(outcome.read for outcome in self._conflicts):
            conflicts.failed = 0
        elif error := self._conflicts[0].error:
            yield from conflicts.wait_out(error)

    def _stop_all(self) -> _Steps:
        """Stop all readers of this process; keep the leases until they have ended."""
        if stop := frozenset(self._running - self._stopping):
            self._stopping |= stop
            yield Stop(stop)
        while self._running:
            outcomes: tuple[Outcome, ...] = yield Await(self.config.lease / 3)
            self._record(outcomes)
            if not outcomes:
                # If renewing fails and a lease runs out, a page's commit is fenced, and no more.
                with suppress(TransientError):
                    yield Claim(tuple(sorted(self._running)))

    def _budget(self, longest: float = math.inf) -> RetryBudget:
        return RetryBudget(self.config.attempts, self.stopped, longest)

    @property
    def _closed(self) -> set[int]:
        """The partitions that get no more events."""
        return {partition.id for partition in self._chosen if partition.closed}

    @property
    def _done(self) -> set[int]:
        """The partitions that have been read to their ends, by this process or another."""
        # A feed may show a partition as open again that it has closed.
        return self._drained | (self._claimed.ended & self._closed)

    @property
    def _wanted(self) -> tuple[int, ...]:
        """The partitions that may be read now, if only for their dead letters."""
        readable = {partition.id for partition in ready(self._chosen, self._done)}
        readable |= self._claimed.letters & self._done
        return tuple(partition.id for partition in self._chosen if partition.id in readable)

    @property
    def _due(self) -> frozenset[int]:
        """The partitions that this process has to read."""
        claimed = self._claimed
        return (claimed.held - claimed.surplus - self._halted.keys()) & set(self._wanted)

    @property
    def _needless(self) -> frozenset[int]:
        """The partitions whose leases this process does not need.

        It keeps those of halted partitions: another process would fail at the same event.
        """
        kept = self._due | self._running
        return self._claimed.held - kept - (self._halted.keys() & set(self._wanted))

    @property
    def _finished(self) -> bool:
        """Whether a run without `follow` has nothing left to wait for.

        A partition that another process reads needs no waiting, unless that process may have died:
        its lease has not been renewed, and not run out yet.
        """
        elsewhere = self._claimed.elsewhere.items()
        # Also to an earlier end, where the clock of the database was set back.
        alive = {number for number, ends in elsewhere if ends != self._first_seen[number]}
        return {partition.id for partition in self._chosen} <= self._done | alive
