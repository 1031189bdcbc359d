"""Decide about all partitions of a feed: which of them this process reads."""

import math
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from zeroeventhub.consumer.assignment import Roster, inheritance
from zeroeventhub.consumer.reading import Patience, Stopped, persist
from zeroeventhub.consumer.steps import (
    Await,
    Claim,
    Discover,
    Outcome,
    Pause,
    Release,
    Start,
    Step,
    Stop,
)
from zeroeventhub.errors import TransientError

__all__ = ["Crew"]


@dataclass(frozen=True)
class Crew:
    """Decide which partitions a process reads, beside others with the same consumer name.

    Attributes:
        partitions: the ones to read; None for all.
        forever: whether to wait at the head for more events; else end there.
        poll_interval: seconds between two looks at a feed that has been read to its end.
        attempts: how often a step is tried before its error is final; None for no limit.
        lease: seconds that a lease lasts; it is renewed three times as often.
        stopped: tells whether to end before the next step.
    """

    partitions: Collection[int] | None
    forever: bool
    poll_interval: float
    attempts: int | None
    lease: float
    stopped: Callable[[], bool]

    def steps(self) -> Generator[Step, Any, None]:
        """Yield the steps, until all has been read (unless forever) or until stopped.

        Nothing is read here any more when they end, whatever they end in.

        Raises:
            Halted: a partition stands still, and the others have ended.
        """
        roster = Roster()
        try:
            with suppress(Stopped):
                yield from self._work(roster)
        except Exception:
            yield from self._dismiss(roster)
            raise
        yield from self._dismiss(roster)
        if errors := [*roster.errors, *roster.halted.values()]:
            raise errors[0]

    def _work(self, roster: Roster) -> Generator[Step, Any, None]:
        """Read layout after layout."""
        conflicts = Patience(self.attempts, self.stopped)
        while not self.stopped():
            info = yield from persist(Discover(), self._patience())
            roster.lay_out(info, self.partitions)
            if inherit := inheritance(info):
                yield from persist(inherit, self._patience())
            if (yield from self._share(roster, conflicts)):
                return
            yield from self._dismiss(roster)
            if roster.errors:
                return
            if roster.conflicts and not self.stopped():
                yield from self._weigh(roster.conflicts, conflicts)

    def _share(self, roster: Roster, conflicts: Patience) -> Generator[Step, Any, bool]:
        """Share one layout; tell whether all is over, or the feed is to be discovered again."""
        among = tuple(partition.id for partition in roster.chosen)
        while not self.stopped():
            yield from self._claim(roster)
            due = roster.due
            if stop := frozenset(roster.running - due - roster.stopping):
                roster.stopping |= stop
                yield Stop(stop)
            for partition in roster.chosen:
                if partition.id in due - roster.running:
                    roster.running.add(partition.id)
                    yield Start(partition, among)
            if not roster.running:
                return (yield from self._stand_by(roster))
            outcomes: tuple[Outcome, ...] = yield Await(self.lease / 3)
            for outcome in outcomes:
                roster.sign_off(outcome)
            if roster.errors or roster.conflicts:
                return bool(roster.errors)
            if not outcomes:
                conflicts.failed = 0
        return True

    def _claim(self, roster: Roster) -> Generator[Step, Any, None]:
        """Give back what is of no use here, and claim what may be read now.

        What a claim brings may show that other partitions may be read.
        """
        wanted: tuple[int, ...] | None = None
        while wanted != roster.wanted:
            if needless := roster.needless:
                yield from persist(Release(needless), self._patience(self.lease / 3))
            wanted = roster.wanted
            roster.take_note((yield from persist(Claim(wanted), self._patience(self.lease / 3))))

    def _stand_by(self, roster: Roster) -> Generator[Step, Any, bool]:
        """Wait where there is nothing to read here; tell whether there is nothing to wait for.

        Others may read partitions of a layout that is unknown here, so look at the feed again.
        """
        if roster.halted or (roster.finished and not self.forever):
            return True
        seconds = self.lease / 3
        yield Pause(seconds if roster.wanted else min(seconds, self.poll_interval))
        return False

    def _weigh(self, outcomes: list[Outcome], conflicts: Patience) -> Generator[Step, Any, None]:
        """Wait before the next discovery, if the feed's partitions changed before a page was read.

        A row of these is a feed that contradicts itself, and asking faster would not help.
        """
        if any(outcome.read for outcome in outcomes):
            conflicts.failed = 0
        elif error := outcomes[0].error:
            yield from conflicts.wait_out(error)

    def _dismiss(self, roster: Roster) -> Generator[Step, Any, None]:
        """Let all reading here end; keep the leases until it has."""
        if stop := frozenset(roster.running - roster.stopping):
            roster.stopping |= stop
            yield Stop(stop)
        while roster.running:
            outcomes: tuple[Outcome, ...] = yield Await(self.lease / 3)
            for outcome in outcomes:
                roster.sign_off(outcome)
            if not outcomes:
                # A lease that runs out nevertheless costs a page its commit, and no more.
                with suppress(TransientError):
                    yield Claim(tuple(sorted(roster.running)))

    def _patience(self, longest: float = math.inf) -> Patience:
        return Patience(self.attempts, self.stopped, longest)
