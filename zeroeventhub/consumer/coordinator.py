"""Decide which partitions of a feed this process reads."""

import math
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from zeroeventhub.consumer.assignment import Assignments, inheritance
from zeroeventhub.consumer.steps import (
    Await,
    Claim,
    Discover,
    Outcome,
    Pause,
    Release,
    RetryBudget,
    Start,
    Step,
    Stop,
    Stopped,
    persist,
)
from zeroeventhub.errors import TransientError

__all__ = ["Coordinator"]


@dataclass(frozen=True)
class Coordinator:
    """Decide which partitions a process reads, and share them with processes of the same consumer.

    The attributes are those of Follower, and `lease`: seconds that a lease lasts. It is renewed
    three times in that time.
    """

    partitions: Collection[int] | None
    forever: bool
    poll_interval: float
    attempts: int | None
    lease: float
    stopped: Callable[[], bool]

    def steps(self) -> Generator[Step, Any, None]:
        """Yield the steps, until all has been read (unless forever) or until stopped.

        When they end, by return or error, this process no longer reads any partition.

        Raises:
            Halted: a partition has halted, and all other partitions have ended.
        """
        assignments = Assignments()
        try:
            with suppress(Stopped):
                yield from self._work(assignments)
        except Exception:
            yield from self._stop_all(assignments)
            raise
        yield from self._stop_all(assignments)
        if errors := [*assignments.errors, *assignments.halted.values()]:
            raise errors[0]

    def _work(self, assignments: Assignments) -> Generator[Step, Any, None]:
        """Read layout after layout."""
        conflicts = RetryBudget(self.attempts, self.stopped)
        while not self.stopped():
            info = yield from persist(Discover(), self._budget())
            assignments.start_layout(info, self.partitions)
            if inherit := inheritance(info):
                yield from persist(inherit, self._budget())
            if (yield from self._share(assignments, conflicts)):
                return
            yield from self._stop_all(assignments)
            if assignments.errors:
                return
            if assignments.conflicts and not self.stopped():
                yield from self._back_off(assignments.conflicts, conflicts)

    def _share(
        self, assignments: Assignments, conflicts: RetryBudget
    ) -> Generator[Step, Any, bool]:
        """Share one layout; return whether to end, rather than discover the feed again."""
        among = tuple(partition.id for partition in assignments.chosen)
        while not self.stopped():
            yield from self._claim(assignments)
            due = assignments.due
            if stop := frozenset(assignments.running - due - assignments.stopping):
                assignments.stopping |= stop
                yield Stop(stop)
            for partition in assignments.chosen:
                if partition.id in due - assignments.running:
                    assignments.running.add(partition.id)
                    yield Start(partition, among)
            if not assignments.running:
                return (yield from self._stand_by(assignments))
            outcomes: tuple[Outcome, ...] = yield Await(self.lease / 3)
            for outcome in outcomes:
                assignments.record_outcome(outcome)
            if assignments.errors or assignments.conflicts:
                return bool(assignments.errors)
            if not outcomes:
                conflicts.failed = 0
        return True

    def _claim(self, assignments: Assignments) -> Generator[Step, Any, None]:
        """Release the leases that are not needed, and claim the partitions that may be read now.

        A claim may report that parents were read to their end; claim their children then.
        """
        wanted: tuple[int, ...] | None = None
        while wanted != assignments.wanted:
            if needless := assignments.needless:
                yield from persist(Release(needless), self._budget(self.lease / 3))
            wanted = assignments.wanted
            assignments.record_claim(
                (yield from persist(Claim(wanted), self._budget(self.lease / 3)))
            )

    def _stand_by(self, assignments: Assignments) -> Generator[Step, Any, bool]:
        """Wait while this process has nothing to read; return whether the run ends instead.

        Discover the feed again afterwards: other processes may already read a newer layout.
        """
        if assignments.halted or (assignments.finished and not self.forever):
            return True
        seconds = self.lease / 3
        yield Pause(seconds if assignments.wanted else min(seconds, self.poll_interval))
        return False

    def _back_off(
        self, outcomes: list[Outcome], conflicts: RetryBudget
    ) -> Generator[Step, Any, None]:
        """Wait before the next discovery, if the feed's partitions changed before a page was read.

        A feed that reports one change after the other contradicts itself: do not retry at once.
        """
        if any(outcome.read for outcome in outcomes):
            conflicts.failed = 0
        elif error := outcomes[0].error:
            yield from conflicts.wait_out(error)

    def _stop_all(self, assignments: Assignments) -> Generator[Step, Any, None]:
        """Stop all readers of this process; keep the leases until they have ended."""
        if stop := frozenset(assignments.running - assignments.stopping):
            assignments.stopping |= stop
            yield Stop(stop)
        while assignments.running:
            outcomes: tuple[Outcome, ...] = yield Await(self.lease / 3)
            for outcome in outcomes:
                assignments.record_outcome(outcome)
            if not outcomes:
                # If renewing fails and a lease runs out, a page's commit is fenced, and no more.
                with suppress(TransientError):
                    yield Claim(tuple(sorted(assignments.running)))

    def _budget(self, longest: float = math.inf) -> RetryBudget:
        return RetryBudget(self.attempts, self.stopped, longest)
