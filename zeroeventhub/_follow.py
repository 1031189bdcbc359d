"""What a consumer decides: which partition next, when to discover again, when to wait.

One generator without I/O. It yields steps; whoever drives it carries them out, sends the
result back, or throws the error that happened. The sync and the async consumer are two
such drivers and share every decision made here.
"""

from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from random import random
from typing import Any

from zeroeventhub.errors import (
    ConfigurationError,
    Fenced,
    ProtocolError,
    TokenChanged,
    TransientError,
)
from zeroeventhub.protocol import FeedInfo, Page, Partition

__all__ = [
    "Advance",
    "Deliver",
    "Discover",
    "Fetch",
    "Follower",
    "Inherit",
    "Load",
    "Pause",
    "Step",
]

SHORTEST_BACKOFF = 0.1
LONGEST_BACKOFF = 30.0


@dataclass(frozen=True)
class Discover:
    """Ask the feed for its partitions; the result is a FeedInfo."""


@dataclass(frozen=True)
class Inherit:
    """Hand the cursors of partitions that are gone to those that go on from there.

    Attributes:
        heirs: by partition, those whose cursors are valid in it, nearest first.
        remaining: all partitions that are there to read, heirs or not.
    """

    heirs: Mapping[int, tuple[int, ...]]
    remaining: tuple[int, ...]


@dataclass(frozen=True)
class Load:
    """Load a partition's cursor from the store; the result is the cursor."""

    partition: int


@dataclass(frozen=True)
class Fetch:
    """Fetch the page that follows a cursor; the result is a Page."""

    partition: int
    cursor: str


@dataclass(frozen=True)
class Advance:
    """Commit a cursor that moved over no events, in a transaction of its own."""

    partition: int
    old: str
    new: str


@dataclass(frozen=True)
class Deliver:
    """Hand a page with events to the consumer."""

    partition: int
    cursor: str
    page: Page


@dataclass(frozen=True)
class Pause:
    """Wait, in seconds, or until the consumer is stopped.

    Attributes:
        seconds: how long.
        reason: the error that is waited out; None at the head of the feed.
    """

    seconds: float
    reason: Exception | None = None


Step = Discover | Inherit | Load | Fetch | Advance | Deliver | Pause
_Steps = Generator[Step, Any, Any]


@dataclass(frozen=True)
class Follower:
    """Decide how a feed is read, page by page, over all partitions in turn.

    Attributes:
        partitions: the ones to read; None for all.
        forever: whether to wait at the head for more events; else end there.
        poll_interval: seconds between two looks at the head.
        attempts: how often a step is tried before its error is final; None for no limit.
        stopped: tells whether to end before the next step.
    """

    partitions: Collection[int] | None
    forever: bool
    poll_interval: float
    attempts: int | None
    stopped: Callable[[], bool]

    def steps(self) -> Generator[Step, Any, None]:
        """Yield the steps, until the head is reached (unless forever) or until stopped."""
        conflicts = 0
        while not self.stopped():
            info = yield from self._persist(Discover())
            if info is None:
                return
            try:
                caught_up = yield from self._read(info)
            except TokenChanged as conflict:
                # The layout changed before every partition had answered once. A row of these is
                # a feed that contradicts itself, and asking faster would not help.
                conflicts += 1
                if self.attempts is not None and conflicts >= self.attempts:
                    raise
                yield Pause(_backoff(conflicts, conflict), conflict)
                continue
            conflicts = 0
            if caught_up:
                if not self.forever:
                    return
                yield Pause(self.poll_interval)

    def _read(self, info: FeedInfo) -> _Steps:
        """Read one layout of partitions; return whether its end was reached."""
        chosen = self._choose(info)
        _check_layout(info)
        heirs = {p.id: p.cursor_from for p in info.partitions if p.cursor_from}
        if heirs:
            yield Inherit(heirs, tuple(partition.id for partition in info.partitions))
        drained: set[int] = set()
        confirmed = False
        while ready := _ready(chosen, drained):
            moved = False
            for partition in ready:
                if self.stopped():
                    return False
                try:
                    found = yield from self._read_page(partition)
                except TokenChanged:
                    if confirmed:
                        return False
                    raise
                confirmed = confirmed or found
                if partition.closed and not found:
                    drained.add(partition.id)
                moved = moved or found or partition.closed
            confirmed = True
            if not moved:
                if not self.forever:
                    return True
                yield Pause(self.poll_interval)
        return True

    def _read_page(self, partition: Partition) -> _Steps:
        """Read one page of a partition; return whether there was anything new."""
        cursor = yield Load(partition.id)
        page = yield from self._persist(Fetch(partition.id, cursor))
        if page is None:
            return False
        if page.events:
            yield Deliver(partition.id, cursor, page)
        elif page.cursor != cursor:
            # Fenced: another process of this consumer moved it, and Load will say where to.
            with suppress(Fenced):
                yield Advance(partition.id, cursor, page.cursor)
        else:
            return False
        return True

    def _choose(self, info: FeedInfo) -> list[Partition]:
        known = {partition.id for partition in info.partitions}
        if self.partitions is None:
            return list(info.partitions)
        if unknown := set(self.partitions) - known:
            raise ConfigurationError(
                f"The feed has no partition {min(unknown)}; "
                f"it has {', '.join(map(str, sorted(known)))}."
            )
        return [partition for partition in info.partitions if partition.id in self.partitions]

    def _persist(self, step: Discover | Fetch) -> _Steps:
        """Yield a step until it succeeds; return its result, or None when stopped meanwhile."""
        for attempt in count(1):
            try:
                return (yield step)
            except TransientError as error:
                if self.attempts is not None and attempt >= self.attempts:
                    raise
                yield Pause(_backoff(attempt, error), error)
            if self.stopped():
                break
        return None


def _check_layout(info: FeedInfo) -> None:
    """Refuse a layout in which a partition would never be read.

    FeedAPI v2, Method 1 to change partition count: a parent is closed.
    """
    known = {partition.id: partition for partition in info.partitions}
    for partition in info.partitions:
        ancestor: Partition | None = partition
        seen: set[int] = set()
        while ancestor is not None and ancestor.starts_after is not None:
            seen.add(ancestor.id)
            ancestor = known.get(ancestor.starts_after)
            if ancestor is not None and (ancestor.id in seen or not ancestor.closed):
                raise ProtocolError(
                    f"Partition {partition.id} of the feed waits for partition {ancestor.id}, "
                    "which never ends."
                )


def _ready(chosen: Collection[Partition], drained: Collection[int]) -> list[Partition]:
    """Name the partitions that may be read now.

    A child starts when its parent has been read to the end (FeedAPI v2, Method 1 to change
    partition count); a parent that nobody asked to read holds nobody up.
    """
    waited_for = {partition.id for partition in chosen} - set(drained)
    return [
        partition
        for partition in chosen
        if partition.id not in drained and partition.starts_after not in waited_for
    ]


def _backoff(attempt: int, error: TransientError | TokenChanged) -> float:
    """Choose a pause in seconds: exponential with full jitter, at least what the feed asked."""
    ceiling = min(LONGEST_BACKOFF, SHORTEST_BACKOFF * 2.0 ** min(attempt, 16))
    asked = error.retry_after if isinstance(error, TransientError) else None
    return max(random() * ceiling, min(asked or 0.0, LONGEST_BACKOFF))  # noqa: S311 - jitter
