"""What the partitions of one run have in common, in threads and in tasks: who may work when."""

import asyncio
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, SingletonThreadPool, StaticPool

from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.coordinator import Crew
from zeroeventhub.consumer.log import Log
from zeroeventhub.consumer.partition_follower import PartitionFollower, Transactions
from zeroeventhub.consumer.steps import Claimed, Start
from zeroeventhub.consumer.store_session import StoreSteps
from zeroeventhub.databases import database_of
from zeroeventhub.errors import ConfigurationError, StoreUnavailable
from zeroeventhub.protocol import FeedInfo

__all__ = ["Leave", "Limiter", "Run", "Turn"]

LEAVING_TRIES = 3


@dataclass(frozen=True)
class Leave:
    """Give all leases back."""


class Run:
    """Hold who runs, what that has found out, and who may work.

    Args:
        config: the consumer's.
        engine: the store's engine, or what lies behind it if it is asynchronous.
        log: hears of what happens.
        stopped: tells whether the consumer was told to stop.

    Attributes:
        config: the consumer's.
        log: hears of what happens.
        store_steps: carries out steps in the store, under the leases of this run.
        workers: who may fetch and apply.
        writers: who may use the store. In SQLite that is one at a time: who waits here waits in
            order, and does not run out of patience.
        running: the partitions that are read just now.
        letters: the partitions that have dead letters which were marked to be applied again.
        stopped: tells whether the consumer was told to stop.
    """

    def __init__(
        self, config: Config, engine: Engine, log: Log, stopped: Callable[[], bool]
    ) -> None:
        _refuse_shared_connection(engine)
        self.config = config
        owner = f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(6)}"
        self.log = log
        self.store_steps = StoreSteps(config, owner)
        self.workers = Limiter(config.concurrency)
        alone = database_of(engine).single_writer
        self.writers = Limiter(1 if alone else config.concurrency + 1)
        self.running: set[int] = set()
        self.stopped = stopped
        self._extensions: frozenset[str] = frozenset()
        # Both are changed in place: the readers of partitions look at them all the time.
        self.letters: set[int] = set()
        self._epochs: dict[int, int] = {}

    def crew(self) -> Crew:
        """Decide which partitions to read."""
        return Crew(
            partitions=self.config.partitions,
            forever=self.config.follow,
            poll_interval=self.config.poll_interval,
            attempts=self.config.attempts,
            lease=self.config.lease,
            stopped=self.stopped,
        )

    def follower(
        self, start: Start, transactions: Transactions, stopped: Callable[[], bool]
    ) -> PartitionFollower:
        """Decide how to read one partition.

        Args:
            start: what to read.
            transactions: decide which transactions a step takes.
            stopped: tells whether this reading is to end.
        """
        return PartitionFollower(
            partition=start.partition,
            among=start.among,
            extensions=self._extensions,
            forever=self.config.follow,
            poll_interval=self.config.poll_interval,
            attempts=self.config.attempts,
            failures=self.config.failures,
            transactions=transactions,
            stopped=stopped,
            has_capacity=self._has_capacity,
            letters=self.letters,
            epochs=self._epochs,
        )

    def discovered(self, info: FeedInfo) -> bool:
        """Take note of what the feed can do; tell whether its events go through the inbox."""
        self._extensions = info.extensions
        if self.config.inbox is not None:
            return self.config.inbox
        # A v1 feed makes no promise either way.
        return info.token is not None and not info.exactly_once

    def claimed(self, claimed: Claimed) -> None:
        """Take note of what a claim brought."""
        self.letters.clear()
        self.letters.update(claimed.letters)
        self._epochs.clear()
        self._epochs.update(claimed.epochs)
        self.log.holds(claimed.held)

    def leaving(self) -> Generator[Leave, Any, None]:
        """Give all leases back, in a few tries; what fails is told, and the leases run out.

        It never hides what the run has ended in.
        """
        for tries_left in reversed(range(LEAVING_TRIES)):
            try:
                yield Leave()
            except Exception as error:  # noqa: BLE001 - told
                if not (tries_left and isinstance(error, StoreUnavailable)):
                    self.log.keeps_leases(error)
                    return
            else:
                self.log.holds(frozenset())
                return

    def _has_capacity(self) -> bool:
        """Whether every partition that is read may work all the time."""
        return len(self.running) <= self.config.concurrency


LONG = 1.0
"""Seconds after which a slot goes to who waits for one."""


class Limiter:
    """Let so many work at a time, first come, first served; threads and tasks queue alike.

    Args:
        number: how many.

    Attributes:
        queue: who waits.
    """

    def __init__(self, number: int) -> None:
        self._lock = threading.Lock()
        self._free = number
        self.queue: deque[Future[None]] = deque()

    def acquire(self, *, first: bool = False) -> Future[None] | None:
        """Take a slot, or queue for one.

        Args:
            first: queue before all others.

        Returns:
            A future that is done when the slot is there; None if it is there already.
        """
        with self._lock:
            if self._free:
                self._free -= 1
                return None
            waiting: Future[None] = Future()
            if first:
                self.queue.appendleft(waiting)
            else:
                self.queue.append(waiting)
        return waiting

    def release(self) -> None:
        """Give a slot back: the next one works."""
        with self._lock:
            while self.queue:
                waiting = self.queue.popleft()
                # Who was cancelled while waiting does not work any more.
                if waiting.set_running_or_notify_cancel():
                    break
            else:
                self._free += 1
                return
        waiting.set_result(None)

    async def wait(self, waiting: Future[None]) -> None:
        """Wait in a task for a slot, and give it back if the task ends meanwhile."""
        try:
            await asyncio.wrap_future(waiting)
        except asyncio.CancelledError:
            # It may have come in the same moment.
            if not waiting.cancel():
                self.release()
            raise

    @contextmanager
    def slot(self, *, first: bool = False) -> Iterator[None]:
        """Work for the length of a block, in a thread."""
        if waiting := self.acquire(first=first):
            waiting.result()
        try:
            yield
        finally:
            self.release()

    @asynccontextmanager
    async def slot_async(self, *, first: bool = False) -> AsyncIterator[None]:
        """Work for the length of a block, in a task."""
        if waiting := self.acquire(first=first):
            await self.wait(waiting)
        try:
            yield
        finally:
            self.release()


class Turn:
    """Be one of those who take turns: hold a slot for a while, then let others.

    Args:
        limiter: has the slots.

    Attributes:
        since: when the slot was taken; None while others have it.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self.since: float | None = None

    @property
    def is_long(self) -> bool:
        """Whether it is time to let somebody else work who waits for it."""
        since = self.since
        return since is not None and bool(self._limiter.queue) and time.monotonic() - since > LONG

    def end(self) -> None:
        """Give the slot back, if it is held."""
        if self.since is not None:
            self.since = None
            self._limiter.release()

    def take(self) -> None:
        """Wait in a thread for a slot."""
        if waiting := self._limiter.acquire():
            waiting.result()
        self.since = time.monotonic()

    async def take_async(self) -> None:
        """Wait in a task for a slot."""
        if waiting := self._limiter.acquire():
            await self._limiter.wait(waiting)
        self.since = time.monotonic()


def _refuse_shared_connection(engine: Engine) -> None:
    if isinstance(engine.pool, SingletonThreadPool | StaticPool):
        raise ConfigurationError(
            "A consumer that runs reads partitions side by side, each with a connection of its "
            "own, which an SQLite database in memory cannot give: use a file, or iterate over the "
            "consumer's pages."
        )
