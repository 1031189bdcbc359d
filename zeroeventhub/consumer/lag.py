"""How far a consumer is behind, partition by partition.

One generator decides what is asked for; the sync and the async function carry it out.
"""

from collections.abc import Generator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.client import AsyncClient, Client
from zeroeventhub.consumer.store.store import CursorStore
from zeroeventhub.databases.errors import reaching_store
from zeroeventhub.driving import drive, drive_async
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import FIRST, LAG, Event, Lag, Partition
from zeroeventhub.wire.cloud_event import event_time

__all__ = ["MOST", "async_lag", "lag"]

MOST = 10_000
"""How many events are read to be counted, for each partition of a feed that does not count them."""

LARGEST_PAGE = 1_000
"""How many of them are asked for at once."""


@dataclass(frozen=True)
class _Discover:
    """Ask the feed for its partitions; the result is a FeedInfo."""


@dataclass(frozen=True)
class _Load:
    """Load the consumer's cursors; the result has them by partition."""


@dataclass(frozen=True)
class _Ask:
    """Ask the feed how many events lie behind a cursor; the result is a Lag."""

    partition: int
    cursor: str


@dataclass(frozen=True)
class _Fetch:
    """Fetch the page that follows a cursor; the result is a Page."""

    partition: int
    cursor: str
    limit: int


_Step = _Discover | _Load | _Ask | _Fetch
_Steps = Generator[_Step, Any, dict[int, Lag]]


def lag(client: Client, store: CursorStore, name: str, *, most: int = MOST) -> dict[int, Lag]:
    """Tell how far a consumer is behind in each partition of a feed.

    A feed with the extension "lag" counts the events itself; of any other they are read from the
    consumer's cursor on. The age of the first one is known if the feed has times, or if it is a
    CloudEvent with a time. Events of all types count, and a partition that the consumer has no
    cursor for counts from where it would start by itself.

    Args:
        client: reads the feed.
        store: has the consumer's cursors; made with a sync engine.
        name: the consumer's name.
        most: how many events are read for each partition, at most, where they have to be read.

    Raises:
        ConfigurationError: the store's engine is async, or `most` is less than 1.
        StoreUnavailable: the store did not answer.
        ZeroEventHubError: as `Client.fetch`.
    """
    engine = store.engine
    if not isinstance(engine, Engine):
        raise ConfigurationError("lag needs a store with a sync Engine; or use async_lag.")
    # A running consumer may have the same client, which must not learn of another layout by this.
    own = copy(client)

    def carry_out(step: _Step) -> Any:
        match step:
            case _Discover():
                return own.discover()
            case _Load():
                with reaching_store(), engine.connect() as connection:
                    return store.cursors(connection, name)
            case _Ask():
                return own.lag(step.partition, step.cursor)
            case _Fetch():
                return own.fetch(step.partition, step.cursor, limit=step.limit)

    return drive(_steps(most), carry_out)


async def async_lag(
    client: AsyncClient, store: CursorStore, name: str, *, most: int = MOST
) -> dict[int, Lag]:
    """Tell how far a consumer is behind in each partition of a feed; see `lag`.

    Args:
        client: reads the feed.
        store: has the consumer's cursors; made with an async engine.
        name: the consumer's name.
        most: how many events are read for each partition, at most, where they have to be read.
    """
    engine = store.engine
    if not isinstance(engine, AsyncEngine):
        raise ConfigurationError("async_lag needs a store with an AsyncEngine; or use lag.")
    own = copy(client)

    async def carry_out(step: _Step) -> Any:
        match step:
            case _Discover():
                return await own.discover()
            case _Load():
                with reaching_store():
                    async with engine.connect() as connection:
                        return await connection.run_sync(store.cursors, name)
            case _Ask():
                return await own.lag(step.partition, step.cursor)
            case _Fetch():
                return await own.fetch(step.partition, step.cursor, limit=step.limit)

    return await drive_async(_steps(most), carry_out)


def _steps(most: int) -> _Steps:
    if most < 1:
        raise ConfigurationError("At least one event is read to be counted: most is 1 or more.")
    info = yield _Discover()
    cursors = yield _Load()
    found = {}
    for partition in info.partitions:
        cursor = _start(partition, cursors)
        if LAG in info.extensions:
            found[partition.id] = yield from _ask(partition.id, cursor)
        else:
            found[partition.id] = yield from _count(partition.id, cursor, most)
    return found


def _start(partition: Partition, cursors: Mapping[int, str]) -> str:
    """Choose where a consumer goes on (FeedAPI v2, Method 2 to change partition count)."""
    known = (
        cursors[number] for number in (partition.id, *partition.cursor_from) if number in cursors
    )
    return next(known, FIRST)


def _ask(partition: int, cursor: str) -> Generator[_Step, Any, Lag]:
    """Let the feed count; what it does not know of the time, its first event may say."""
    counted: Lag = yield _Ask(partition, cursor)
    if counted.events and counted.seconds is None:
        page = yield _Fetch(partition, cursor, 1)
        if page.events:
            return replace(counted, seconds=_age(page.events[0]))
    return counted


def _count(partition: int, cursor: str, most: int) -> Generator[_Step, Any, Lag]:
    """Read on from a cursor, to the head or until there are more than enough."""
    events = 0
    first: Event | None = None
    while events <= most:
        page = yield _Fetch(partition, cursor, min(most - events + 1, LARGEST_PAGE))
        if first is None and page.events:
            first = page.events[0]
        events += len(page.events)
        if page.caught_up or page.cursor == cursor:
            break
        cursor = page.cursor
    return Lag(min(events, most), 0.0 if first is None else _age(first), exact=events <= most)


def _age(event: Event) -> float | None:
    """Return how long ago an event happened, in seconds; clocks differ, so that it may be 0."""
    moment = event_time(event)
    return None if moment is None else max(0.0, (datetime.now(UTC) - moment).total_seconds())
