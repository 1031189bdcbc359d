"""Tell the publisher how far a consumer has committed: seldom, and never in its transactions."""

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from time import monotonic

from zeroeventhub.client import AsyncClient, Client
from zeroeventhub.consumer.access import Access, AsyncAccess
from zeroeventhub.consumer.log import Log
from zeroeventhub.consumer.options import Options
from zeroeventhub.errors import ConfigurationError, ZeroEventHubError
from zeroeventhub.protocol import FIRST, LAST

__all__ = ["AsyncTeller", "Teller"]

INTERVAL = 10.0
"""Seconds between two looks at what there is to tell."""

UNCHANGED = 3600.0
"""Seconds after which a place is told again that has not changed, so that it is heard of."""

PATIENCE = 5.0
"""Seconds for which a consumer that ends waits for what is still to be told."""


class _Telling:
    """Decide what is told, and when."""

    def __init__(self, options: Options, log: Log) -> None:
        self._store = options.store
        self._name = options.name
        self._log = log
        self._is_on = options.register_progress
        self._last = -math.inf
        self._told: dict[int, tuple[str, float]] = {}

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
        known, at = self._told.get(partition, ("", -math.inf))
        return known == cursor and now - at < UNCHANGED

    def _note(self, partition: int, cursor: str) -> None:
        self._told[partition] = cursor, monotonic()

    def _failed(self, error: ZeroEventHubError) -> None:
        """Say what happened; where the feed does not want to hear, once."""
        self._last = monotonic()
        if isinstance(error, ConfigurationError):
            self._is_on = False
        self._log.could_not_tell(error)


class Teller(_Telling):
    """Tell the publisher, from threads.

    Args:
        client: reaches it.
        access: reaches the store.
        options: name the consumer.
        log: hears of what could not be told.
    """

    def __init__(self, client: Client, access: Access, options: Options, log: Log) -> None:
        super().__init__(options, log)
        self._client = client
        self._access = access

    def tell(self) -> None:
        """Tell what has been committed; what fails is told the next time."""
        if not self._is_on:
            return
        try:
            cursors = self._access.keep(self._store.cursors, self._name)
            for partition, cursor in self._news(cursors):
                self._client.register_progress(self._name, partition, cursor)
                self._note(partition, cursor)
        except ZeroEventHubError as error:
            self._failed(error)

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Tell every now and then for the length of a block, and at its end."""
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
            thread.join(PATIENCE)

    def _go_on(self, ended: threading.Event) -> None:
        while not ended.wait(INTERVAL):
            self.tell()
        self.tell()


class AsyncTeller(_Telling):
    """Tell the publisher, from tasks; see Teller."""

    def __init__(
        self, client: AsyncClient, access: AsyncAccess, options: Options, log: Log
    ) -> None:
        super().__init__(options, log)
        self._client = client
        self._access = access

    async def tell(self) -> None:
        """Tell what has been committed; see `Teller.tell`."""
        if not self._is_on:
            return
        try:
            cursors = await self._access.keep(self._store.cursors, self._name)
            for partition, cursor in self._news(cursors):
                await self._client.register_progress(self._name, partition, cursor)
                self._note(partition, cursor)
        except ZeroEventHubError as error:
            self._failed(error)

    @asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Tell every now and then; see `Teller.beside`."""
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
                async with asyncio.timeout(PATIENCE):
                    await self.tell()

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            await self.tell()
