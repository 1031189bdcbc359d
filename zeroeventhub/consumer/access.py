"""How a consumer reaches the feed and the store."""

import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypedDict, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DatabaseError
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub._follow import Fetch
from zeroeventhub.client import AsyncClient, Client
from zeroeventhub.consumer.options import Options
from zeroeventhub.consumer.reading import Reading
from zeroeventhub.cursors.transience import reaching_store
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import FeedInfo, Page, TypeFilter

__all__ = ["Access", "AsyncAccess"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class _FetchOptions(TypedDict):
    limit: int | None
    types: TypeFilter | None
    wait: float


class _Access:
    """What the sync and the async access are made from."""

    def __init__(self, options: Options, reading: Reading) -> None:
        self._options = options
        self._reading = reading

    def _fetch_options(self, step: Fetch) -> _FetchOptions:
        return {"limit": self._reading.limit, "types": self._reading.types, "wait": step.wait}

    def _tell(self, step: Fetch, page: Page, started: float) -> None:
        seconds = time.monotonic() - started
        self._options.observer.fetched(
            self._options.name, step.partition, len(page.events), seconds
        )


class Access(_Access):
    """Fetch pages, and keep what is to be kept.

    Args:
        client: reads the feed.
        options: name the store.
        reading: what to ask the feed for.
    """

    def __init__(self, client: Client, options: Options, reading: Reading) -> None:
        super().__init__(options, reading)
        self._client = client

    @property
    def engine(self) -> Engine:
        """The store's engine.

        Raises:
            ConfigurationError: it is not a sync one.
        """
        engine = self._options.store.engine
        if not isinstance(engine, Engine):
            raise ConfigurationError("A Consumer's store has a sync Engine; or use AsyncConsumer.")
        return engine

    def discover(self) -> FeedInfo:
        """Ask the feed for its partitions."""
        return self._client.discover()

    def fetch(self, step: Fetch) -> Page:
        """Fetch a page."""
        started = time.monotonic()
        page = self._client.fetch(step.partition, step.cursor, **self._fetch_options(step))
        self._tell(step, page, started)
        return page

    def keep(
        self,
        write: Callable[Concatenate[Connection, _Arguments], _Result],
        *arguments: _Arguments.args,
        **named: _Arguments.kwargs,
    ) -> _Result:
        """Call a function with a connection to the store, in a transaction of its own.

        Raises:
            StoreUnavailable: the store did not answer, or asked to try again.
            ConfigurationError: its tables are not there.
        """
        try:
            with reaching_store(), self.engine.begin() as connection:
                return write(connection, *arguments, **named)
        except DatabaseError:
            with reaching_store(), self.engine.connect() as connection:
                self._options.store.check_tables(connection)
            raise


class AsyncAccess(_Access):
    """Fetch pages, and keep what is to be kept, asynchronously; see Access."""

    def __init__(self, client: AsyncClient, options: Options, reading: Reading) -> None:
        super().__init__(options, reading)
        self._client = client

    @property
    def engine(self) -> AsyncEngine:
        """The store's engine.

        Raises:
            ConfigurationError: it is not an async one.
        """
        engine = self._options.store.engine
        if not isinstance(engine, AsyncEngine):
            raise ConfigurationError(
                "An AsyncConsumer's store has an AsyncEngine; or use Consumer."
            )
        return engine

    async def discover(self) -> FeedInfo:
        """Ask the feed for its partitions."""
        return await self._client.discover()

    async def fetch(self, step: Fetch) -> Page:
        """Fetch a page."""
        started = time.monotonic()
        page = await self._client.fetch(step.partition, step.cursor, **self._fetch_options(step))
        self._tell(step, page, started)
        return page

    async def keep(
        self,
        write: Callable[Concatenate[Connection, _Arguments], _Result],
        *arguments: _Arguments.args,
        **named: _Arguments.kwargs,
    ) -> _Result:
        """Call a function with a connection to the store; see `Access.keep`."""
        try:
            with reaching_store():
                async with self.engine.begin() as connection:
                    return await connection.run_sync(write, *arguments, **named)
        except DatabaseError:
            with reaching_store():
                async with self.engine.connect() as connection:
                    await connection.run_sync(self._options.store.check_tables)
            raise
