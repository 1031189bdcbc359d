"""Report to the publisher how far a consumer has committed, outside of its transactions."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from sqlalchemy import Connection

from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.store_session import in_store
from zeroeventhub.coroutines import maybe_await
from zeroeventhub.errors import ConfigurationError, ZeroEventHubError
from zeroeventhub.protocol import FIRST, LAST

INTERVAL = 10.0
"""Seconds between two reports."""

UNCHANGED = 3600.0
"""Seconds after which a cursor is reported again that has not changed."""

LAST_REPORT = 5.0
"""Seconds for which a consumer that ends waits for its last report."""


class ProgressReporter:
    """Report to the publisher how far a consumer has committed, every ten seconds and at the end.

    `config` has the consumer's options.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._is_on = config.register_progress
        self._last = -math.inf
        self._reported: dict[int, tuple[str, float]] = {}

    @property
    def is_due(self) -> bool:
        """Return whether it is time for a report."""
        return self._is_on and monotonic() - self._last >= INTERVAL

    async def report(self) -> None:
        """Report what has been committed; a failed report is sent again the next time."""
        if not self._is_on:
            return
        config = self._config
        try:
            cursors = await in_store(config.store, self._cursors)
            now = self._last = monotonic()
            for partition, cursor in sorted(cursors.items()):
                known, at = self._reported.get(partition, ("", -math.inf))
                is_known = known == cursor and now - at < UNCHANGED
                if is_known or cursor in {FIRST, LAST}:
                    continue
                await maybe_await(config.client.register_progress(config.name, partition, cursor))
                self._reported[partition] = cursor, monotonic()
        except ZeroEventHubError as error:
            self._last = monotonic()
            # A feed without the extension gets no second report.
            self._is_on = not isinstance(error, ConfigurationError)
            config.log.could_not_report(error)

    @asynccontextmanager
    async def running(self, concurrency: Any) -> AsyncIterator[None]:
        """Report from a thread or task for the length of a block, and at its end."""
        if not self._is_on:
            yield
            return
        ended = concurrency.event()

        async def go_on() -> None:
            while not ended.is_set():
                await concurrency.wait(ended, INTERVAL)
                await self.report()

        job = concurrency.start(go_on(), f"{self._config.name}, progress")
        try:
            yield
        finally:
            ended.set()
            await concurrency.join(job, LAST_REPORT)

    def _cursors(self, connection: Connection) -> dict[int, str]:
        """Return cursors that no crash of the database can undo once this transaction commits."""
        cursors = self._config.store.cursors(connection, self._config.name)
        if not self._config.synchronous_commit:
            # A commit that waits for the disk waits for all earlier ones, if it has an id at all.
            connection.exec_driver_sql("SET LOCAL synchronous_commit TO on")
            connection.exec_driver_sql("SELECT txid_current()")
        return cursors
