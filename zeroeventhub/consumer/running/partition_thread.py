"""The reading of one partition, in a thread of its own."""

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from zeroeventhub._follow import (
    Advance,
    Deliver,
    Fetch,
    Load,
    Outcome,
    Pause,
    Redeliver,
    Start,
    Step,
)
from zeroeventhub.consumer.access import Access
from zeroeventhub.consumer.applying.delivery import Deliveries
from zeroeventhub.consumer.driving import drive, let_go
from zeroeventhub.consumer.running.ahead import Ahead
from zeroeventhub.consumer.running.run import Run
from zeroeventhub.consumer.running.turns import Turn
from zeroeventhub.errors import Fenced
from zeroeventhub.protocol import Page

__all__ = ["PartitionThread"]


class PartitionThread:
    """Read one partition until it is drained, or until stopped.

    Args:
        start: what to read.
        run: what it has in common with other partitions.
        access: reaches the feed and the store.
        deliveries: apply pages.
        report: is told, in this thread, how the reading ended.
    """

    def __init__(
        self,
        start: Start,
        run: Run,
        access: Access,
        deliveries: Deliveries,
        report: Callable[[Outcome | BaseException], object],
    ) -> None:
        self._partition = start.partition.id
        self._run = run
        self._access = access
        self._deliveries = deliveries
        self._report = report
        self._stopping = threading.Event()
        self._decisions = run.follower(start, self._stopping.is_set)
        self._turn = Turn(run.turns)
        self._ahead = Ahead(access.fetch)
        self._has_page = False
        self._has_read = False
        # A daemon, so that a second signal ends the process as always: nothing of it stays.
        self._thread = threading.Thread(
            target=copy_context().run,
            args=(self._read,),
            name=f"{run.options.name}, partition {self._partition}",
            daemon=True,
        )

    def start(self) -> None:
        """Begin to read."""
        self._run.running.add(self._partition)
        self._thread.start()

    def stop(self) -> None:
        """End after the page at hand."""
        self._stopping.set()

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    def _read(self) -> None:
        ending: Outcome | BaseException
        try:
            ending = self._outcome()
        except Exception as error:  # noqa: BLE001 - an observer must not raise, but nobody may wait
            ending = Outcome(self._partition, error)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that runs
            ending = error
        self._rest()
        self._run.running.discard(self._partition)
        self._report(ending)

    def _outcome(self) -> Outcome:
        try:
            drained = drive(self._decisions.steps(), self._carry_out)
        except Exception as error:  # noqa: BLE001 - the crew judges it
            self._run.log.ended(self._partition, error)
            return Outcome(self._partition, error, read=self._has_read)
        return Outcome(self._partition, drained=drained, read=self._has_read)

    def _carry_out(self, step: Step) -> Any:
        if isinstance(step, Pause):
            # Who has a page keeps the turn, so that pages are never more than turns.
            if not self._has_page:
                self._rest()
            self._run.log.waits(step, self._partition)
            let_go(step.reason)
            self._stopping.wait(step.seconds)
            return None
        if isinstance(step, Fetch):
            return self._fetch(step)
        self._turn.take()
        try:
            with self._run.writers.one():
                return self._write(step)
        except Fenced as error:
            if not isinstance(step, Load):
                self._run.log.fenced(self._partition, error)
            raise

    def _fetch(self, step: Fetch) -> Page:
        if self._turn.is_long and not self._ahead.has(step):
            self._rest()
        self._turn.take()
        page = self._ahead.fetch(step)
        self._has_page = bool(page.events)
        self._has_read = True
        return page

    def _write(self, step: Step) -> Any:
        match step:
            case Deliver():
                if step.ahead is not None:
                    self._ahead.start(step.ahead)
                self._deliveries.deliver(step)
                self._has_page = False
            case Advance():
                self._deliveries.advance(step)
            case Redeliver():
                self._deliveries.redeliver(step)
                self._run.redelivered(self._partition)
            case _:
                return self._access.keep(self._run.book.carry_out, step)
        return None

    def _rest(self) -> None:
        """Let others work."""
        self._ahead.drop()
        self._turn.give_back()
