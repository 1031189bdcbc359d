"""A consumer's lag, and how many events it repeats or leaves out when its cursors are set."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.client import AsyncClient, Client
from zeroeventhub.consumer.steps import EmptyPages
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.consumer.store_session import in_store
from zeroeventhub.coroutines import blocking, maybe_await
from zeroeventhub.errors import BadCursor, ConfigurationError, Gone, printable
from zeroeventhub.extensions import LAG
from zeroeventhub.protocol import FIRST, Event, FeedInfo, Lag, Page, Partition
from zeroeventhub.wire.cloud_event import event_time

MOST = 10_000
"""How many events `lag` counts at most in each partition of a feed without the extension "lag"."""

LARGEST_PAGE = 1_000
"""How many events `lag` requests at once."""


def lag(client: Client, store: CursorStore, name: str, *, most: int = MOST) -> dict[int, Lag]:
    """Return a consumer's lag in each partition of a feed.

    A feed with the extension "lag" counts the events itself; for any other feed, this function
    reads and counts them from the consumer's cursor on. The age of the first one is known if the
    feed has times, or if it is a CloudEvent with a time. Events of all types count. A partition
    without a cursor counts from where the consumer would start by default.

    Args:
        client: reads the feed.
        store: has the consumer's cursors; made with a sync engine.
        name: the consumer's name.
        most: how many events to read in each partition, at most, if the feed does not count; 1 or
            more.

    Raises:
        ConfigurationError: the store's engine is async, or `most` is less than 1.
        StoreUnavailable: the store did not answer.
        ZeroEventHubError: as `Client.fetch`.
    """
    if not isinstance(store.engine, Engine):
        raise ConfigurationError("lag needs a store with a sync Engine; or use async_lag.")
    return blocking(_lags(client, store, name, most))


async def async_lag(
    client: AsyncClient, store: CursorStore, name: str, *, most: int = MOST
) -> dict[int, Lag]:
    """Return a consumer's lag in each partition of a feed; see `lag`."""
    if not isinstance(store.engine, AsyncEngine):
        raise ConfigurationError("async_lag needs a store with an AsyncEngine; or use lag.")
    return await _lags(client, store, name, most)


async def _lags(
    shared: Client | AsyncClient, store: CursorStore, name: str, most: int
) -> dict[int, Lag]:
    """Return the lag of each partition; with a sync client this coroutine never suspends."""
    if most < 1:
        raise ConfigurationError("lag counts at least one event: most is 1 or more.")
    # A copy: a running consumer may share the client, and must notice a new layout itself.
    client = copy(shared)
    info = await maybe_await(client.discover())
    cursors = await in_store(store, store.cursors, name)
    lags = {}
    for partition in info.partitions:
        start = cursor_in(partition, cursors) or FIRST
        lags[partition.id] = await lag_at(client, info, partition.id, start, most)
    return lags


async def lag_at(
    client: Client | AsyncClient, info: FeedInfo, partition: int, cursor: str, most: int
) -> Lag:
    """Return how many events follow a cursor; with a sync client it never suspends.

    `most` is how many events to read, at most, if the feed does not count.
    """
    if LAG not in info.extensions:
        return await _count(client, partition, cursor, most)
    counted: Lag = await maybe_await(client.lag(partition, cursor))
    if counted.events and counted.seconds is None:  # the feed does not know the first event's time
        page: Page = await maybe_await(client.fetch(partition, cursor, limit=1))
        if page.events:
            return replace(counted, seconds=_age(page.events[0]))
    return counted


async def _count(client: Client | AsyncClient, partition: int, cursor: str, most: int) -> Lag:
    """Read from a cursor to the head, or until `most` events are counted."""
    events, first, empty_pages = 0, None, EmptyPages()
    while events <= most:
        limit = min(most - events + 1, LARGEST_PAGE)
        page: Page = await maybe_await(client.fetch(partition, cursor, limit=limit))
        if first is None and page.events:
            first = page.events[0]
        events += len(page.events)
        if page.caught_up or not empty_pages.moves(page, partition, cursor):
            break
        cursor = page.cursor
    return Lag(min(events, most), 0.0 if first is None else _age(first), exact=events <= most)


def cursor_in(partition: Partition, cursors: Mapping[int, str]) -> str | None:
    """Return a consumer's cursor in a partition, or the one that it inherits there; None without.

    FeedAPI v2, Method 2 to change partition count.
    """
    line = (partition.id, *partition.cursor_from)
    return next((cursors[number] for number in line if number in cursors), None)


def _age(event: Event) -> float | None:
    """Return how many seconds ago an event happened; 0 if the writer's clock was ahead."""
    moment = event_time(event)
    return None if moment is None else max(0.0, (datetime.now(UTC) - moment).total_seconds())


TWICE = "effects that are there are applied a second time, unless `apply` replaces them."
"""What happens when events are read again, as the end of a sentence."""


@dataclass(frozen=True)
class Move:
    """A cursor that is to be set, and how many events are then read again or left out.

    The numbers are None if they are unknown, and lower bounds if they are not `exact`.
    """

    partition: int
    before: str | None
    cursor: str
    again: int | None
    left_out: int | None
    exact: bool

    def __str__(self) -> str:
        """Show the two cursors, and how many events are between them."""
        before = "none" if self.before is None else self.before
        line = f"partition {self.partition}: {printable(before)} -> {printable(self.cursor)}"
        most = "" if self.exact else "+"
        if self.again:
            line += f"; read again: {self.again:,}{most}"
        if self.left_out:
            line += f"; left out: {self.left_out:,}{most}"
        return line


async def find_moves(
    client: Client | AsyncClient | None, before: Mapping[int, str], after: Mapping[int, str]
) -> list[Move]:
    """Count the events between a consumer's cursors and the cursors that are to be set.

    With a Client this coroutine never suspends; without a client it counts nothing.
    """
    listed: dict[int, Partition] = {}
    if client is not None:
        # A copy: a running consumer may share the client, and must notice a new layout itself.
        client = copy(client)
        info = await maybe_await(client.discover())
        listed = {one.id: one for one in info.partitions}
    moves = []
    for number, cursor in sorted(after.items()):
        old, lags = before.get(number), None
        # The feed may have replaced or dropped the partition.
        if client is not None and number in listed:
            old = cursor_in(listed[number], before)
            lags = await _two_lags(client, info, number, old or FIRST, cursor)
        again = left_out = None
        exact = lags is not None and lags[0].exact and lags[1].exact
        if lags is not None:
            further = lags[1].events - lags[0].events
            # The difference of two lower bounds says nothing.
            if lags[0].exact or further < 0:
                again = max(0, further)
            if lags[1].exact or further > 0:
                left_out = max(0, -further)
        moves.append(Move(number, old, cursor, again, left_out, exact))
    return moves


async def _two_lags(
    client: Client | AsyncClient, info: FeedInfo, number: int, old: str, cursor: str
) -> tuple[Lag, Lag] | None:
    """Return how many events follow two cursors; None if the feed no longer knows the first."""
    if old == cursor:
        return Lag(0, 0.0), Lag(0, 0.0)
    try:
        before = await lag_at(client, info, number, old, MOST)
    except (Gone, BadCursor):
        return None
    return before, await lag_at(client, info, number, cursor, MOST)


def about_moves(moves: list[Move], holdings: Mapping[str, int], unknown: str) -> str:
    """Return sentences that say what moves do to a consumer of which a store has some rows.

    `holdings` are those of `CursorStore.holdings`, and `unknown` is as for `consequence`.
    """
    inbox, text = holdings["inbox"], ""
    skipped = f"its inbox skips those that it knows ({inbox:,} events); other " if inbox else ""
    if holdings["lanes"]:
        text = (
            "Lanes have applied a part of a page: what follows a new cursor in such a page is read "
            "again as well. "
        )
    return text + consequence(moves, skipped + TWICE, unknown)


def consequence(moves: list[Move], repeated: str, unknown: str) -> str:
    """Return sentences that say how many events moves repeat or leave out.

    `repeated` ends a sentence about events that are read again, `unknown` one that says that their
    number is unknown.
    """
    if any(move.again is None or move.left_out is None for move in moves):
        return (
            f"It is unknown how many events are read again or left out{unknown}. Where events are "
            f"read again, {repeated}"
        )
    again, left_out = (sum(getattr(one, name) for one in moves) for name in ("again", "left_out"))
    exact = all(move.exact for move in moves)
    about = "About" if exact else "At least"
    sentences = []
    if again:
        sentences.append(f"{about} {again:,} events are read again: {repeated}")
    if left_out:
        sentences.append(f"{about} {left_out:,} events are left out, and never take effect.")
    return " ".join(sentences) or "No event is read again or left out."
