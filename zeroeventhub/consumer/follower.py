"""What a consumer decides that reads all partitions in turn: which next, and when to wait.

One generator without I/O. It yields steps; whoever drives it carries them out, sends the
result back, or throws the error that happened. The sync and the async consumer are two
such drivers and share every decision made here.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from zeroeventhub.consumer.assignment import choose, inheritance, ready
from zeroeventhub.consumer.reading import (
    LONGEST_WAIT,
    Passed,
    Patience,
    Stopped,
    pause_at_head,
    persist,
    reaches_head,
)
from zeroeventhub.consumer.steps import Advance, Deliver, Discover, Fetch, Load, Pause, Place, Step
from zeroeventhub.errors import Fenced, TokenChanged
from zeroeventhub.protocol import WAIT, FeedInfo, Page, Partition

__all__ = ["Follower"]

_Steps = Generator[Step, Any, Any]


class _PutElsewhere(Exception):  # noqa: N818 - named for what happened
    """Say that somebody has put a cursor elsewhere while this layout was read."""


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
        with suppress(Stopped):
            yield from self._read_layouts()

    def _read_layouts(self) -> _Steps:
        conflicts = Patience(self.attempts, self.stopped)
        while not self.stopped():
            info = yield from self._persist(Discover())
            try:
                caught_up = yield from self._read(info)
            except TokenChanged as conflict:
                # The layout changed before every partition had answered once. A row of these is
                # a feed that contradicts itself, and asking faster would not help.
                yield from conflicts.wait_out(conflict)
                continue
            conflicts.failed = 0
            if caught_up:
                if not self.forever:
                    return
                yield Pause(self.poll_interval)

    def _read(self, info: FeedInfo) -> _Steps:
        """Read one layout of partitions; return whether its end was reached."""
        chosen = choose(info, self.partitions)
        if inherit := inheritance(info):
            yield from self._persist(inherit)
        among = tuple(partition.id for partition in chosen)
        drained: set[int] = set()
        known: dict[int, _Known] = defaultdict(_Known)
        epochs: dict[int, int] = {}
        confirmed = False
        while in_turn := ready(chosen, drained):
            moved = False
            # The feed waits in place of the consumer, unless that would keep others from it.
            waits = self.forever and WAIT in info.extensions and len(in_turn) == 1
            for partition, following in zip(in_turn, in_turn[1:] + in_turn[:1], strict=True):
                if self.stopped():
                    return False
                try:
                    place = yield from self._load(partition, among, epochs)
                    found, at_head = yield from self._read_page(
                        partition, place, known, waits=waits, following=following
                    )
                except _PutElsewhere:
                    # What was read to its end may have to be read again, and first.
                    return False
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
                yield pause_at_head(self.poll_interval, waits=waits)
        return True

    def _load(self, partition: Partition, among: tuple[int, ...], epochs: dict[int, int]) -> _Steps:
        """Load a partition's place, and look whether cursors are still where they were put.

        Args:
            partition: the one to read.
            among: all that are read.
            epochs: of the cursors, as they were when each was loaded first.

        Raises:
            _PutElsewhere: its own is not, or the one of the partition that it follows.
        """
        known = partition.id in epochs
        place: Place = yield from self._persist(Load(partition.id, among))
        if epochs.setdefault(partition.id, place.epoch) != place.epoch:
            raise _PutElsewhere
        parent = partition.starts_after
        if not known and parent in epochs:
            before: Place = yield from self._persist(Load(parent, among))
            if before.epoch != epochs[parent]:
                raise _PutElsewhere
        return place

    def _read_page(
        self,
        partition: Partition,
        place: Place,
        known: dict[int, "_Known"],
        *,
        waits: bool,
        following: Partition,
    ) -> _Steps:
        """Read one page of a partition; return whether it brought anything, and reached the head.

        Args:
            partition: the one to read.
            place: where it is read from.
            known: what is known of each partition.
            waits: whether the feed may wait at its head.
            following: the one that is read next.
        """
        cursor, mine, other = place.cursor, known[partition.id], known[following.id]
        at_head = mine.head == cursor
        if at_head and (partition.closed or not self.forever):
            return False, True
        wait = LONGEST_WAIT if waits and at_head else 0.0
        page: Page = yield from self._persist(Fetch(partition.id, cursor, wait))
        found = mine.passed.brings_news(page, partition.id, cursor)
        at_head = reaches_head(page, cursor)
        mine.cursor = page.cursor
        if at_head:
            mine.head = page.cursor
        if page.events:
            ahead = None
            if other.cursor is not None and other.cursor != other.head:
                ahead = Fetch(following.id, other.cursor)
            yield Deliver(partition.id, place, page, ahead)
        elif found:
            # Fenced: another process of this consumer moved it, and Load will say where to.
            with suppress(Fenced):
                yield from self._persist(Advance(partition.id, place, page.cursor))
        return found, at_head

    def _persist(self, step: Step) -> _Steps:
        return persist(step, Patience(self.attempts, self.stopped))


@dataclass
class _Known:
    """Know what was seen of a partition.

    Attributes:
        cursor: where it is read from next, unless its last page is not committed.
        head: where its head was seen.
        passed: where pages without events led.
    """

    cursor: str | None = None
    head: str | None = None
    passed: Passed = field(default_factory=Passed)
