"""What a consumer decides: which partition next, when to discover again, when to wait.

One generator without I/O. It yields steps; whoever drives it carries them out, sends the
result back, or throws the error that happened. The sync and the async consumer are two
such drivers and share every decision made here.
"""

import math
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from random import random
from typing import Any

from zeroeventhub._follow.steps import (
    Advance,
    Deliver,
    Discover,
    Fetch,
    Inherit,
    Load,
    Pause,
    Step,
)
from zeroeventhub.errors import (
    ConfigurationError,
    Fenced,
    ProtocolError,
    TokenChanged,
    TransientError,
)
from zeroeventhub.protocol import WAIT, FeedInfo, Partition

__all__ = ["Follower"]

SHORTEST_BACKOFF = 0.1
LONGEST_BACKOFF = 30.0

LONGEST_WAIT = 5.0
"""Seconds that the feed is asked to wait at its head; a consumer that is stopped waits as long."""


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
        among = tuple(partition.id for partition in chosen)
        drained: set[int] = set()
        heads: dict[int, str] = {}
        confirmed = False
        while ready := _ready(chosen, drained):
            moved = False
            # The feed waits in place of the consumer, unless that would keep others from it.
            waits = self.forever and WAIT in info.extensions and len(ready) == 1
            for partition in ready:
                if self.stopped():
                    return False
                try:
                    load = Load(partition.id, among)
                    found, at_head = yield from self._read_page(partition, load, heads, waits=waits)
                except TokenChanged:
                    if confirmed:
                        return False
                    raise
                confirmed = confirmed or found
                ends = partition.closed or not self.forever
                if ends and not found:
                    drained.add(partition.id)
                moved = moved or ends or not at_head or (waits and found)
            confirmed = True
            if not moved:
                # Short where the feed has waited; it may not do so every time.
                yield Pause(min(self.poll_interval, SHORTEST_BACKOFF if waits else math.inf))
        return True

    def _read_page(
        self, partition: Partition, load: Load, heads: dict[int, str], *, waits: bool
    ) -> _Steps:
        """Read one page of a partition; return whether it brought anything, and reached the head.

        Args:
            partition: the one to read.
            load: the step that loads its cursor.
            heads: where the head of each partition was seen; a feed that does not say so has
                reached it when it brings nothing new.
            waits: whether the feed may wait at its head.
        """
        place = yield load
        cursor = place.cursor
        at_head = heads.get(partition.id) == cursor
        if at_head and (partition.closed or not self.forever):
            return False, True
        wait = LONGEST_WAIT if waits and at_head else 0.0
        page = yield from self._persist(Fetch(partition.id, cursor, wait))
        if page is None:
            return False, False
        found = bool(page.events) or page.cursor != cursor
        if page.events and page.cursor == cursor:
            raise ProtocolError(
                f"The feed sent events of partition {partition.id} without moving the cursor: they "
                "would come again for ever."
            )
        if page.events:
            yield Deliver(partition.id, place, page)
        elif found:
            # Fenced: another process of this consumer moved it, and Load will say where to.
            with suppress(Fenced):
                yield Advance(partition.id, place, page.cursor)
        at_head = page.caught_up or not found
        if at_head:
            heads[partition.id] = page.cursor
        return found, at_head

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
