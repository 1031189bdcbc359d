"""Read the partitions of a feed in parallel, and apply their pages.

The runner carries out what the coordinator decides, and starts a reader for each partition. The
reader carries out what a PartitionFollower decides. Both are coroutines, for threads and for tasks.
"""

import asyncio
import math
import os
import secrets
import socket
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import SingletonThreadPool, StaticPool

from zeroeventhub.consumer.apply import PageTransactions
from zeroeventhub.consumer.concurrency import Concurrency, Limiter
from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.coordinator import Coordinator
from zeroeventhub.consumer.follower import PartitionFollower
from zeroeventhub.consumer.steps import (
    Advance,
    Await,
    Claim,
    Deliver,
    Discover,
    Fetch,
    Load,
    Outcome,
    Pause,
    RecordFailure,
    Redeliver,
    Start,
    Step,
    Stop,
    Stopped,
)
from zeroeventhub.consumer.store_session import carry_out, expect_transactions, in_store
from zeroeventhub.coroutines import drive, drop_traceback, maybe_await
from zeroeventhub.databases import database_of
from zeroeventhub.databases.transactions import COMMITS_EACH, commits_each
from zeroeventhub.errors import ConfigurationError, Fenced, StoreUnavailable
from zeroeventhub.extensions import COMPACTED

LEAVING_TRIES = 3

PRUNING_INTERVAL = 3600.0
"""Seconds between two deletions of rows of the inbox that are too old."""

LONG = 1.0
"""Seconds after which a reader gives its slot to one that waits for it."""


class PartitionReader:
    """Read one partition until it is drained, or until stopped; `job` is its thread or task."""

    def __init__(self, start: Start, runner: "Runner") -> None:
        self._partition = start.partition.id
        self._runner = runner
        self._concurrency: Any = runner.concurrency
        self._stopping = self._concurrency.event()
        config = runner.config
        self._follower = PartitionFollower(
            partition=start.partition,
            among=start.among,
            after=start.after,
            extensions=runner.extensions,
            config=config,
            stopped=self._stopping.is_set,
            running=runner.running,
            letters=runner.letters,
            epochs=runner.epochs,
        )
        self._prefetcher = self._concurrency.prefetcher(config, runner.transactions.hint)
        self._slot_since: float | None = None
        self._has_page = False
        self._has_read = False
        self.job: Any = None

    def start(self) -> None:
        """Begin to read."""
        runner = self._runner
        runner.running.add(self._partition)
        name = f"{runner.config.name}, partition {self._partition}"
        self.job = self._concurrency.start(self._read(), name)

    def stop(self) -> None:
        """End after the page in work; a task also cancels the request for a page."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._prefetcher.cancel()

    def abandon(self) -> None:
        """End as soon as possible, as the run has ended."""
        self._stopping.set()
        self._concurrency.abandon(self.job)

    async def _read(self) -> None:
        ending: Outcome | BaseException
        try:
            ending = await self._outcome()
        except Exception as error:  # noqa: BLE001 - an observer's; the runner waits for an outcome
            ending = Outcome(self._partition, error)
        except asyncio.CancelledError as error:
            # `stop` has cancelled the request for a page.
            stopped = self._stopping.is_set()
            ending = Outcome(self._partition, read=self._has_read) if stopped else error
        except BaseException as error:  # noqa: BLE001 - raised where the run was called
            ending = error
        await self._return_slot()
        self._runner.running.discard(self._partition)
        self._runner.endings.put_nowait(ending)

    async def _outcome(self) -> Outcome:
        try:
            await drive(self._follower.steps(), self._carry_out)
        except Stopped:
            return Outcome(self._partition, read=self._has_read)
        except Exception as error:  # noqa: BLE001 - the coordinator judges it
            self._runner.config.log.ended(self._partition, error)
            return Outcome(self._partition, error, read=self._has_read)
        return Outcome(self._partition, drained=True, read=self._has_read)

    async def _carry_out(self, step: Step) -> Any:
        runner = self._runner
        if isinstance(step, Pause):
            await self._pause(step)
            return None
        since = self._slot_since
        if isinstance(step, Fetch):
            self._has_page = False
            is_long = runner.workers.queue and since and time.monotonic() - since > LONG
            if is_long and not self._prefetcher.has(step):
                await self._return_slot()
        if self._slot_since is None:
            await runner.workers.acquire()
            self._slot_since = time.monotonic()
        if isinstance(step, Fetch):
            page = await self._prefetcher.fetch(step)
            self._has_page = bool(page.events)
            self._has_read = True
            return page
        await runner.writers.acquire()
        try:
            if not isinstance(step, Deliver | Advance | Redeliver):
                return await self._write(step)
            self._has_page = isinstance(step, Deliver)
            if isinstance(step, Deliver) and step.ahead is not None:
                await self._prefetcher.start(step.ahead)
            return await runner.transactions.methods[type(step)](step)
        finally:
            runner.writers.release()

    async def _pause(self, step: Pause) -> None:
        # A reader that has a page keeps its slot, so that pages are never more than slots.
        if not self._has_page:
            await self._return_slot()
        self._runner.config.log.waits(step, self._partition)
        drop_traceback(step.reason)
        await self._concurrency.wait(self._stopping, step.begin())

    async def _write(self, step: Step) -> Any:
        runner = self._runner
        try:
            config = runner.config
            return await in_store(config.store, carry_out, config, runner.owner, step)
        except Exception as error:
            if isinstance(step, RecordFailure):
                message = "The error of the last try was not stored: %s"
                runner.config.log.left_undone(message, error, self._partition)
                return None
            if isinstance(error, Fenced) and not isinstance(step, Load):
                runner.config.log.fenced(self._partition, error)
            raise

    async def _return_slot(self) -> None:
        """Give the slot to another partition."""
        await self._prefetcher.drop()
        if self._slot_since is not None:
            self._slot_since = None
            self._runner.workers.release()


class Runner:
    """Decide which partitions to read, read them in parallel, and release all leases at the end.

    Attributes:
        owner: the unique name of this process in leases.
        workers: the slots of readers that fetch and apply.
        writers: the slots of readers that use the store. For SQLite that is one at a time: they
            wait here in order, as waiting for SQLite's lock times out.
        letters: the partitions with dead letters marked for retry.
        epochs: by partition that this process holds, the epoch of its cursor.
        endings: the outcomes and errors of readers; None wakes the runner.
    """

    def __init__(
        self,
        config: Config,
        concurrency: Concurrency,
        apply: Callable[..., object],
        sessions: Callable[[], Any] | None,
        stopped: Callable[[], bool],
    ) -> None:
        engine = config.store.engine
        if isinstance(engine.pool, SingletonThreadPool | StaticPool):
            raise ConfigurationError(
                "A consumer that runs reads partitions in parallel, each with a connection of its "
                "own, and an SQLite database in memory has only one: use a file, or iterate over "
                "the consumer's pages."
            )
        if commits_each(engine):
            raise ConfigurationError(COMMITS_EACH)
        self.config = config
        self.concurrency = concurrency
        self.owner = f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(6)}"
        self._pruned = -math.inf
        # Both are changed in place, as the readers of partitions hold references to them.
        self.letters: set[int] = set()
        self.epochs: dict[int, int] = {}
        self.transactions = PageTransactions(config, concurrency, apply, sessions, self.letters)
        alone = database_of(engine).single_writer
        self.workers = Limiter(config.concurrency, concurrency)
        self.writers = Limiter(1 if alone else config.concurrency + 1, concurrency)
        self.running: set[int] = set()
        self._stopped = stopped
        self.extensions: frozenset[str] = frozenset()
        self.endings: Any = concurrency.queue()
        self._readers: dict[int, PartitionReader] = {}
        self._outcomes: list[Outcome] = []

    def wake(self) -> None:
        """Check whether the consumer was stopped; no partition begins another page then."""
        if self._stopped():
            for reader in tuple(self._readers.values()):
                reader.stop()
        self.endings.put_nowait(None)

    async def run(self) -> None:
        """Read until everything is read, or until stopped; release all leases at the end."""
        try:
            await drive(Coordinator(self.config, self._stopped).steps(), self._carry_out)
        finally:
            with self.concurrency.shield():
                for reader in self._readers.values():
                    reader.abandon()
                for reader in self._readers.values():
                    await self.concurrency.join(reader.job)
                await self._leave()

    async def _carry_out(self, step: Step) -> Any:
        match step:
            case Discover():
                await expect_transactions(self.config.store)
                info = await maybe_await(self.config.client.discover())
                self.extensions = info.extensions
                self.transactions.is_compacted = COMPACTED in info.extensions
                if self.config.inbox is None:
                    # A v1 feed makes no promise either way.
                    self.transactions.inbox = info.token is not None and not info.exactly_once
                return info
            case Start():
                reader = PartitionReader(step, self)
                if self._stopped():
                    reader.stop()
                reader.start()
                self._readers[step.partition.id] = reader
            case Stop():
                for partition in step.partitions & self._readers.keys():
                    self._readers[partition].stop()
            case Await():
                return await self._await(step.seconds)
            case Pause():
                self.config.log.waits(step)
                end = time.monotonic() + step.begin()
                while not self._stopped() and (left := end - time.monotonic()) > 0:
                    await self._listen(left)
            case _:
                return await self._write(step)
        return None

    async def _write(self, step: Step) -> Any:
        config, store = self.config, self.config.store
        # First in the queue: the renewal of a lease must not wait long for what it protects.
        async with self.writers.slot(first=True):
            result = await in_store(store, carry_out, config, self.owner, step)
        if isinstance(step, Claim):
            self.letters.clear()
            self.letters.update(result.letters)
            self.epochs.clear()
            self.epochs.update(result.epochs)
            self.config.log.holds(result.held, result.elsewhere)
            if time.monotonic() - self._pruned >= PRUNING_INTERVAL:
                self._pruned = time.monotonic()
                async with self.writers.slot():
                    await in_store(store, store.inbox.prune, config.name, config.inbox_days)
        return result

    async def _await(self, seconds: float) -> tuple[Outcome, ...]:
        if not self._outcomes:
            await self._listen(seconds)
        outcomes, self._outcomes = tuple(self._outcomes), []
        for outcome in outcomes:
            await self.concurrency.join(self._readers.pop(outcome.partition).job)
        return outcomes

    async def _listen(self, seconds: float) -> None:
        """Collect outcomes of readers; return at the first one, or when woken."""
        concurrency: Any = self.concurrency
        endings = await concurrency.get(self.endings, seconds)
        while not self.endings.empty():
            endings.append(self.endings.get_nowait())
        for ending in endings:
            if isinstance(ending, BaseException):
                raise ending
            if ending is not None:
                self._outcomes.append(ending)

    async def _leave(self) -> None:
        """Release all leases, in a few tries; log an error, as it must not hide that of the run."""
        store = self.config.store
        for tries_left in reversed(range(LEAVING_TRIES)):
            try:
                async with self.writers.slot(first=True):
                    await in_store(store, store.leases.leave, self.config.name, self.owner)
            except ConfigurationError:
                return  # without its tables, which the run has ended with, there are no leases
            except Exception as error:  # noqa: BLE001 - logged
                if not (tries_left and isinstance(error, StoreUnavailable)):
                    message = "The leases could not be released, and will run out: %s"
                    self.config.log.left_undone(message, error)
                    return
            else:
                self.config.log.holds(frozenset())
                return
