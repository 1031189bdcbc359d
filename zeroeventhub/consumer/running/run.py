"""What the partitions of one run have in common, in threads and in tasks."""

import os
import secrets
import socket
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, SingletonThreadPool, StaticPool

from zeroeventhub._follow import Claimed, Crew, PartitionFollower, Start
from zeroeventhub.consumer.bookkeeping import Bookkeeping
from zeroeventhub.consumer.log import Log
from zeroeventhub.consumer.options import Options
from zeroeventhub.consumer.reading import Reading
from zeroeventhub.consumer.running.turns import Turns
from zeroeventhub.errors import ConfigurationError, StoreUnavailable
from zeroeventhub.protocol import FeedInfo

__all__ = ["Leave", "Run"]

LEAVING_TRIES = 3


@dataclass(frozen=True)
class Leave:
    """Give all leases back."""


class Run:
    """Hold who runs, what that has found out, and who may work.

    Args:
        options: how the consumer applies.
        reading: what it reads.
        engine: the store's engine, or what lies behind it if it is asynchronous.
        stopped: tells whether the consumer was told to stop.

    Attributes:
        options: how the consumer applies.
        log: is told what happens.
        book: carries out steps in the store, under the leases of this run.
        turns: who may fetch and apply.
        writers: who may use the store. In SQLite that is one at a time: who waits here waits in
            order, and does not run out of patience.
        running: the partitions that are read just now.
        stopped: tells whether the consumer was told to stop.
    """

    def __init__(
        self, options: Options, reading: Reading, engine: Engine, stopped: Callable[[], bool]
    ) -> None:
        _refuse_shared_connection(engine)
        self.options = options
        self._reading = reading
        owner = f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(6)}"
        self.log = Log(options)
        self.book = Bookkeeping(options, reading, owner)
        self.turns = Turns(options.concurrency)
        alone = engine.dialect.name == "sqlite"
        self.writers = Turns(1 if alone else options.concurrency + 1)
        self.running: set[int] = set()
        self.stopped = stopped
        self._extensions: frozenset[str] = frozenset()
        self._letters: set[int] = set()
        self._epochs: Mapping[int, int] = {}

    def crew(self) -> Crew:
        """Decide which partitions to read."""
        return Crew(
            partitions=self._reading.partitions,
            forever=self._reading.follow,
            poll_interval=self._reading.poll_interval,
            attempts=self._reading.attempts,
            lease=self.options.lease,
            stopped=self.stopped,
        )

    def follower(self, start: Start, stopped: Callable[[], bool]) -> PartitionFollower:
        """Decide how to read one partition.

        Args:
            start: what to read.
            stopped: tells whether the crew wants this reading to end. A consumer that was told to
                stop does not wait for the crew to say so.
        """
        return PartitionFollower(
            partition=start.partition,
            among=start.among,
            extensions=self._extensions,
            forever=self._reading.follow,
            poll_interval=self._reading.poll_interval,
            attempts=self._reading.attempts,
            failures=self.options.failures,
            stopped=lambda: self.stopped() or stopped(),
            roomy=self._is_roomy,
            letters=lambda: start.partition.id in self._letters,
            overtaken=lambda epoch: self._epochs.get(start.partition.id, 0) > epoch,
        )

    def discovered(self, info: FeedInfo) -> bool:
        """Take note of what the feed can do; tell whether its events go through the inbox."""
        self._extensions = info.extensions
        if self.options.inbox is not None:
            return self.options.inbox
        # A v1 feed makes no promise either way.
        return info.token is not None and not info.exactly_once

    def claimed(self, claimed: Claimed) -> None:
        """Take note of what a claim brought."""
        self._letters = set(claimed.letters)
        self._epochs = claimed.epochs
        self.log.holds(claimed.held)

    def redelivered(self, partition: int) -> None:
        """Take note that dead letters were applied; the next claim tells whether there are more."""
        self._letters.discard(partition)

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

    def _is_roomy(self) -> bool:
        """Whether every partition that is read may work all the time."""
        return len(self.running) <= self.options.concurrency


def _refuse_shared_connection(engine: Engine) -> None:
    if isinstance(engine.pool, SingletonThreadPool | StaticPool):
        raise ConfigurationError(
            "A consumer that runs reads partitions side by side, each with a connection of its "
            "own, which an SQLite database in memory cannot give: use a file, or iterate over the "
            "consumer's pages."
        )
