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
from zeroeventhub.consumer.observer import RunLog
from zeroeventhub.consumer.store_session import in_store
from zeroeventhub.driving import blocking, settled
from zeroeventhub.errors import ConfigurationError, ZeroEventHubError
from zeroeventhub.protocol import FIRST, LAST

__all__ = ["ProgressReporter"]

INTERVAL = 10.0
"""Seconds between two reports."""

UNCHANGED = 3600.0
"""Seconds after which a cursor is reported again that has not changed."""

LAST_REPORT = 5.0
"""Seconds for which a consumer that ends waits for its last report."""


class ProgressReporter:
    """Report to the publisher how far a consumer has committed, now and then and at its end.

    Args:
        client: reaches the publisher.
        config: the consumer's.
        log: hears of what could not be reported.
    """

    def __init__(self, client: Any, config: Config, log: RunLog) -> None:
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
        """Return whether it is time to look."""
        return self._is_on and monotonic() - self._last >= INTERVAL

    async def report(self) -> None:
        """Report what has been committed; what fails is reported the next time."""
        if not self._is_on:
            return
        try:
            cursors = await in_store(self._store, self._cursors)
            for partition, cursor in self._news(cursors):
                await settled(self._client.register_progress(self._name, partition, cursor))
                self._reported[partition] = cursor, monotonic()
        except ZeroEventHubError as error:
            self._last = monotonic()
            # A feed that does not accept reports gets no second one.
            self._is_on = not isinstance(error, ConfigurationError)
            self._log.could_not_report(error)

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """Report from a thread for the length of a block, and at its end."""
        if not self._is_on:
            yield
            return
        ended = threading.Event()

        def go_on() -> None:
            while not ended.wait(INTERVAL):
                blocking(self.report())
            blocking(self.report())

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(LAST_REPORT)

    @asynccontextmanager
    async def in_task(self) -> AsyncIterator[None]:
        """Report from a task for the length of a block, and at its end."""
        if not self._is_on:
            yield
            return

        async def go_on() -> None:
            while True:
                await asyncio.sleep(INTERVAL)
                await self.report()

        task = asyncio.create_task(go_on())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_REPORT):
                    await self.report()

    def _news(self, cursors: Mapping[int, str]) -> list[tuple[int, str]]:
        """Choose the committed cursors that the publisher does not know yet."""
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
