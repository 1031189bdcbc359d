"""Drive the decisions of `_follow`: the sync and the async consumer."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Generic, TypedDict, TypeVar

from sqlalchemy import Connection, Engine, Update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from zeroeventhub._follow import (
    Advance,
    Deliver,
    Discover,
    Fetch,
    Follower,
    Inherit,
    Load,
    Pause,
    Place,
    Step,
)
from zeroeventhub.client import AsyncClient, Client
from zeroeventhub.consumer.pending_page import AsyncPendingPage, PendingPage
from zeroeventhub.consumer.stopping import stop_on_signals
from zeroeventhub.cursors import CursorStore
from zeroeventhub.cursors.store import check_consumer_name
from zeroeventhub.errors import ConfigurationError, Fenced, ZeroEventHubError
from zeroeventhub.protocol import FIRST, TypeFilter

__all__ = ["AsyncConsumer", "Consumer"]

_log = logging.getLogger("zeroeventhub.consumer")

_AnyClient = TypeVar("_AnyClient", Client, AsyncClient)


class _FetchOptions(TypedDict):
    limit: int | None
    types: TypeFilter | None
    wait: float


class _Following(Generic[_AnyClient]):
    """What the sync and the async consumer are made from."""

    def __init__(
        self,
        client: _AnyClient,
        store: CursorStore,
        name: str,
        *,
        start: str = FIRST,
        partitions: Collection[int] | None = None,
        follow: bool = True,
        limit: int | None = None,
        types: TypeFilter | None = None,
        poll_interval: float = 0.5,
        attempts: int | None = None,
    ) -> None:
        check_consumer_name(name)
        if attempts is not None and attempts < 1:
            raise ConfigurationError("A consumer tries at least once: attempts is 1 or more.")
        self.client: _AnyClient = client
        self.store = store
        self.name = name
        self.start = start
        self.limit = limit
        self.types = types
        self._stopping = threading.Event()
        self._decisions = Follower(
            partitions=partitions,
            forever=follow,
            poll_interval=poll_interval,
            attempts=attempts,
            stopped=self._stopping.is_set,
        )

    def stop(self) -> None:
        """End the iteration before its next page; a consumer that was stopped stays stopped."""
        self._stopping.set()

    def _options(self, step: Fetch) -> _FetchOptions:
        return {"limit": self.limit, "types": self.types, "wait": step.wait}

    def _load(self, connection: Connection, step: Load) -> Place:
        if self.start != FIRST:
            self.store.begin(connection, self.name, step.among, self.start)
        return Place(self.store.load(connection, self.name, step.partition))

    def _inherit(self, connection: Connection, step: Inherit) -> None:
        self.store.inherit(connection, self.name, step.heirs, step.remaining)

    def _move(self, step: Advance) -> Update:
        return self.store.move(self.name, step.partition, step.place.cursor, step.new)


class Consumer(_Following[Client]):
    """Follow a feed and keep the cursors in a database.

    Iterate to get pages, and commit each in the transaction of its effects. A page that is
    not committed is read again.

    Args:
        client: reads the feed.
        store: keeps the cursors; made with a sync engine.
        name: the consumer's name: its key in the store.
        start: where a consumer that has no cursors yet starts: FIRST, LAST, or a cursor. In
            partitions that come later it starts at the first event.
        partitions: the partitions to read; None for all.
        follow: wait for more events at the head; otherwise end there.
        limit: how many events to ask for in a page.
        types: the types of events to ask for; None for all.
        poll_interval: seconds between two looks at the head.
        attempts: how often a request is tried, with growing pauses, before its error is raised;
            None for no limit.
    """

    def __iter__(self) -> Iterator[PendingPage]:
        """Yield pages that have events, one partition after the other."""
        steps = self._decisions.steps()
        go_on: Callable[[], Step] = partial(next, steps)
        while (step := _next(go_on)) is not None:
            if isinstance(step, Deliver):
                page = step.page
                yield PendingPage(
                    step.partition,
                    page.events,
                    step.place.cursor,
                    page.cursor,
                    self.name,
                    self.store,
                )
                go_on = partial(steps.send, None)
                continue
            try:
                go_on = partial(steps.send, self._carry_out(step))
            except ZeroEventHubError as error:
                go_on = partial(steps.throw, error)

    def run(self, apply: Callable[[Connection, PendingPage], object]) -> None:
        """Apply every page in a transaction of its own, with its cursor, until stopped.

        SIGTERM and SIGINT stop after the page at hand, if this is the main thread.

        Args:
            apply: writes a page's effects through the connection it is given, which is to the
                store's database. The cursor has been moved on it already, so that a second
                process of the same name waits there and then gives way.
        """
        with stop_on_signals(self.stop):
            for page in self:
                try:
                    with self._engine.begin() as connection:
                        page.commit(connection)
                        apply(connection, page)
                except Fenced as error:
                    _log.info("%s", error)

    @property
    def _engine(self) -> Engine:
        if not isinstance(self.store.engine, Engine):
            raise ConfigurationError("A Consumer's store has a sync Engine; or use AsyncConsumer.")
        return self.store.engine

    def _carry_out(self, step: Step) -> Any:
        match step:
            case Discover():
                return self.client.discover()
            case Fetch():
                return self.client.fetch(step.partition, step.cursor, **self._options(step))
            case Inherit():
                with self._engine.begin() as connection:
                    self._inherit(connection, step)
            case Load():
                with self._engine.begin() as connection:
                    return self._load(connection, step)
            case Advance():
                with self._engine.begin() as connection:
                    result = connection.execute(self._move(step))
                    self.store.confirm(result, self.name, step.partition)
            case Pause():
                _tell(step)
                self._stopping.wait(step.seconds)
        return None


class AsyncConsumer(_Following[AsyncClient]):
    """Follow a feed and keep the cursors in a database, asynchronously.

    The arguments are those of Consumer, with an AsyncClient and a store made with an AsyncEngine.
    """

    @cached_property
    def _wake(self) -> asyncio.Event:
        return asyncio.Event()

    def stop(self) -> None:
        """End the iteration before its next page; call it in the event loop."""
        super().stop()
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[AsyncPendingPage]:
        """Yield pages that have events, one partition after the other."""
        steps = self._decisions.steps()
        go_on: Callable[[], Step] = partial(next, steps)
        while (step := _next(go_on)) is not None:
            if isinstance(step, Deliver):
                page = step.page
                yield AsyncPendingPage(
                    step.partition,
                    page.events,
                    step.place.cursor,
                    page.cursor,
                    self.name,
                    self.store,
                )
                go_on = partial(steps.send, None)
                continue
            try:
                go_on = partial(steps.send, await self._carry_out(step))
            except ZeroEventHubError as error:
                go_on = partial(steps.throw, error)

    async def run(
        self, apply: Callable[[AsyncConnection, AsyncPendingPage], Awaitable[object]]
    ) -> None:
        """Apply every page in a transaction of its own; see `Consumer.run`."""
        loop = asyncio.get_running_loop()
        with stop_on_signals(lambda: loop.call_soon_threadsafe(self.stop)):
            async for page in self:
                try:
                    async with self._engine.begin() as connection:
                        await page.commit(connection)
                        await apply(connection, page)
                except Fenced as error:
                    _log.info("%s", error)

    @property
    def _engine(self) -> AsyncEngine:
        if not isinstance(self.store.engine, AsyncEngine):
            raise ConfigurationError(
                "An AsyncConsumer's store has an AsyncEngine; or use Consumer."
            )
        return self.store.engine

    async def _carry_out(self, step: Step) -> Any:
        match step:
            case Discover():
                return await self.client.discover()
            case Fetch():
                return await self.client.fetch(step.partition, step.cursor, **self._options(step))
            case Inherit():
                async with self._engine.begin() as connection:
                    await connection.run_sync(self._inherit, step)
            case Load():
                async with self._engine.begin() as connection:
                    return await connection.run_sync(self._load, step)
            case Advance():
                async with self._engine.begin() as connection:
                    result = await connection.execute(self._move(step))
                    self.store.confirm(result, self.name, step.partition)
            case Pause():
                _tell(step)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), step.seconds)
        return None


def _next(go_on: Callable[[], Step]) -> Step | None:
    try:
        return go_on()
    except StopIteration:
        return None


def _tell(pause: Pause) -> None:
    if pause.reason is not None:
        _log.warning("%s Trying again in %.1f s.", pause.reason, pause.seconds)
