"""Report to the publisher how far a consumer has committed, outside of its transactions."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from time import monotonic
from typing import Any

from sqlalchemy import Connection

from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.log import Log
from zeroeventhub.consumer.store_session import in_store, in_store_async
from zeroeventhub.errors import ConfigurationError, ZeroEventHubError
from zeroeventhub.protocol import FIRST, LAST

__all__ = ["AsyncProgressReporter", "ProgressReporter"]

INTERVAL = 10.0
"""Seconds between two reports."""

UNCHANGED = 3600.0
"""Seconds after which a cursor is reported again that has not changed."""

LAST_REPORT = 5.0
"""Seconds for which a consumer that ends waits for its last report."""


class _Reporter:
    """Decide what is reported, and when.

    Args:
        client: reaches the publisher.
        config: the consumer's.
        log: hears of what could not be reported.
    """

    def __init__(self, client: Any, config: Config, log: Log) -> None:
        self._client = client
        self._store = config.store
        self._name = config.name
        self._log = log
        self._is_on = config.register_progress
        self._is_synchronous = config.synchronous_commit
        self._last = -math.inf
        self._reported: dict[int, tuple[str, float]] = {}

    @property
    def is_due(self) -> bool:
        """Tell whether it is time to look."""
        return self._is_on and monotonic() - self._last >= INTERVAL

    def _news(self, cursors: Mapping[int, str]) -> list[tuple[int, str]]:
        """Choose among committed cursors those that the publisher does not know of."""
        now = self._last = monotonic()
        return [
            (partition, cursor)
            for partition, cursor in sorted(cursors.items())
            if cursor not in {FIRST, LAST} and not self._is_known(partition, cursor, now)
        ]

    def _is_known(self, partition: int, cursor: str, now: float) -> bool:
        known, at = self._reported.get(partition, ("", -math.inf))
        return known == cursor and now - at < UNCHANGED

    def _cursors(self, connection: Connection) -> dict[int, str]:
        """Return the cursors that no crash of the database will take back, once this commits."""
        cursors = self._store.cursors(connection, self._name)
        if not self._is_synchronous:
            # A commit that waits for the disk waits for all before it, if it has a number at all.
            connection.exec_driver_sql("SET LOCAL synchronous_commit TO on")
            connection.exec_driver_sql("SELECT txid_current()")
        return cursors

    def _note(self, partition: int, cursor: str) -> None:
        self._reported[partition] = cursor, monotonic()

    def _failed(self, error: ZeroEventHubError) -> None:
        """Say what happened; where the feed does not want to hear, once."""
        self._last = monotonic()
        if isinstance(error, ConfigurationError):
            self._is_on = False
        self._log.could_not_tell(error)


class ProgressReporter(_Reporter):
    """Report to the publisher, from threads."""

    def report(self) -> None:
        """Report what has been committed; what fails is reported the next time."""
        if not self._is_on:
            return
        try:
            cursors = in_store(self._store, self._cursors)
            for partition, cursor in self._news(cursors):
                self._client.register_progress(self._name, partition, cursor)
                self._note(partition, cursor)
        except ZeroEventHubError as error:
            self._failed(error)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Report every now and then for the length of a block, and at its end."""
        if not self._is_on:
            yield
            return
        ended = threading.Event()
        thread = threading.Thread(target=self._go_on, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(LAST_REPORT)

    def _go_on(self, ended: threading.Event) -> None:
        while not ended.wait(INTERVAL):
            self.report()
        self.report()


class AsyncProgressReporter(_Reporter):
    """Report to the publisher, from tasks; see ProgressReporter."""

    async def report(self) -> None:
        """Report what has been committed; see `ProgressReporter.report`."""
        if not self._is_on:
            return
        try:
            cursors = await in_store_async(self._store, self._cursors)
            for partition, cursor in self._news(cursors):
                await self._client.register_progress(self._name, partition, cursor)
                self._note(partition, cursor)
        except ZeroEventHubError as error:
            self._failed(error)

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Report every now and then; see `ProgressReporter.beside`."""
        if not self._is_on:
            yield
            return
        task = asyncio.create_task(self._go_on())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_REPORT):
                    await self.report()

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            await self.report()
