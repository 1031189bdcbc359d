"""Partitions that are read side by side, each in a thread of its own."""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from zeroeventhub._follow import (
    Await,
    Claim,
    Discover,
    Outcome,
    Pause,
    Start,
    Step,
    Stop,
)
from zeroeventhub.consumer.access import Access
from zeroeventhub.consumer.applying.delivery import Deliveries
from zeroeventhub.consumer.driving import drive
from zeroeventhub.consumer.running.partition_thread import PartitionThread
from zeroeventhub.consumer.running.run import Leave, Run

__all__ = ["Threads"]


class Threads:
    """Decide in the calling thread which partitions to read, and read each in one of its own.

    Args:
        run: what they have in common.
        access: reaches the feed and the store.
        apply: applies what was read.
        sessions: makes ORM sessions, where `apply` asks for one.
    """

    def __init__(
        self,
        run: Run,
        access: Access,
        apply: Callable[..., object],
        sessions: Callable[[], Any] | None,
    ) -> None:
        self._run = run
        self._access = access
        self._deliveries = Deliveries(run.options, apply, sessions)
        self._news: SimpleQueue[Outcome | BaseException | None] = SimpleQueue()
        self._threads: dict[int, PartitionThread] = {}
        self._outcomes: list[Outcome] = []

    def wake(self) -> None:
        """Let it be looked up whether to end."""
        self._news.put(None)

    def drive(self) -> None:
        """Read until everything is read, or until stopped; give all leases back at the end."""
        try:
            drive(self._run.crew().steps(), self._carry_out)
        finally:
            self._end()

    def _carry_out(self, step: Step) -> Any:
        match step:
            case Discover():
                info = self._access.discover()
                self._deliveries.inbox = self._run.discovered(info)
                return info
            case Start():
                thread = PartitionThread(
                    step, self._run, self._access, self._deliveries, self._news.put
                )
                thread.start()
                self._threads[step.partition.id] = thread
            case Stop():
                for partition in step.partitions & self._threads.keys():
                    self._threads[partition].stop()
            case Await():
                return self._await(step.seconds)
            case Pause():
                self._run.log.waits(step)
                end = time.monotonic() + step.seconds
                while not self._run.stopped() and (left := end - time.monotonic()) > 0:
                    self._listen(left)
            case _:
                return self._keep(step)
        return None

    def _keep(self, step: Step) -> Any:
        # Before all others: the renewal of a lease must not wait long for what it protects.
        with self._run.writers.one(first=True):
            result = self._access.keep(self._run.book.carry_out, step)
        if isinstance(step, Claim):
            self._run.claimed(result)
            if self._run.book.is_pruning_due():
                with self._run.writers.one():
                    self._access.keep(self._run.book.prune)
        return result

    def _await(self, seconds: float) -> tuple[Outcome, ...]:
        if not self._outcomes:
            self._listen(seconds)
        outcomes, self._outcomes = tuple(self._outcomes), []
        for outcome in outcomes:
            self._threads.pop(outcome.partition).join()
        return outcomes

    def _listen(self, seconds: float) -> None:
        """Collect how readings ended; return when one has, or there is something to look up."""
        try:
            self._note(self._news.get(timeout=seconds))
            while True:
                self._note(self._news.get_nowait())
        except Empty:
            return

    def _note(self, news: Outcome | BaseException | None) -> None:
        if isinstance(news, BaseException):
            raise news
        if news is not None:
            self._outcomes.append(news)

    def _end(self) -> None:
        for thread in self._threads.values():
            thread.stop()
        for thread in self._threads.values():
            thread.join()
        drive(self._run.leaving(), self._leave)

    def _leave(self, _: Leave) -> None:
        with self._run.writers.one(first=True):
            self._access.keep(self._run.book.leave)
