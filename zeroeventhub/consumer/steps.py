"""The steps of a consumer, and the rules that every reader of a feed follows.

Generators decide and yield steps; their driver carries each step out, and sends its result back or
throws its error.
"""

import math
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from zeroeventhub.client.requests import SHORTEST_BACKOFF, backoff
from zeroeventhub.errors import ConfigurationError, ProtocolError, TransientError
from zeroeventhub.protocol import LAST, FeedInfo, Page, Partition


@dataclass(frozen=True)
class Place:
    """A consumer's cursor in a partition, with the epoch that fences its commits.

    The epoch grows whenever another process takes the lease, and whenever an operator sets the
    cursor. A commit from an older epoch is fenced.
    """

    cursor: str
    epoch: int = 0


class Step:
    """What a generator asks its driver to do."""


@dataclass(frozen=True)
class Discover(Step):
    """Ask the feed for its partitions; the result is a FeedInfo."""


@dataclass(frozen=True)
class Inherit(Step):
    """Copy the cursors of removed partitions to the partitions that replace them.

    Attributes:
        heirs: by partition, the partitions whose cursors are valid in it, nearest first.
        remaining: all partitions of the feed.
    """

    heirs: Mapping[int, tuple[int, ...]]
    remaining: tuple[int, ...]


@dataclass(frozen=True)
class Load(Step):
    """Load a partition's place from the store; the result is a Place.

    Attributes:
        among: the partitions in which a new consumer sets its first cursor at once.
        after: the parent, which has to be read to its end before; None without one.
    """

    partition: int
    among: tuple[int, ...]
    after: int | None = None


@dataclass(frozen=True)
class Fetch(Step):
    """Fetch the page that follows a cursor; the result is a Page.

    Attributes:
        wait: seconds that the feed may wait at the head for an event.
        goes_on: whether to request the next page as soon as its cursor has arrived with this one.
    """

    partition: int
    cursor: str
    wait: float = 0.0
    goes_on: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Advance(Step):
    """Commit a cursor that moved past no events, in a transaction of its own."""

    partition: int
    place: Place
    new: str


@dataclass(frozen=True)
class Deliver(Step):
    """Hand the page that follows a place to the consumer.

    Attributes:
        ahead: the page to fetch while this one is applied; None for none.
        set_aside: whether to apply each event separately, and set aside those that fail.
    """

    partition: int
    place: Place
    page: Page
    ahead: Fetch | None = None
    set_aside: bool = False


@dataclass(frozen=True)
class End(Step):
    """Store that a closed partition was read to its end, so that its children may start."""

    partition: int
    place: Place


@dataclass(frozen=True)
class Redeliver(Step):
    """Apply the next of the partition's dead letters that were marked for it."""

    partition: int
    place: Place


@dataclass(frozen=True)
class RecordFailure(Step):
    """Store the error of a failed try; the consumer goes on even if the store cannot be written.

    Attributes:
        tries: how often the page after the place was tried.
        pause: seconds until the next try; None if the partition halts.
    """

    partition: int
    place: Place
    error: Exception
    tries: int
    pause: float | None = None


@dataclass(frozen=True)
class Pause(Step):
    """Wait, in seconds, or until the consumer is stopped.

    `reason`: the error before the retry; None at the head of the feed.
    """

    seconds: float
    reason: Exception | None = None

    def begin(self) -> float:
        """Return how long to wait from now on; `zeroeventhub.testing.no_pauses` makes it short."""
        return self.seconds


@dataclass(frozen=True)
class Claim(Step):
    """Renew this process's leases and take a fair share of the free ones; the result is Claimed.

    `wanted`: the partitions that may be read now.
    """

    wanted: tuple[int, ...]


@dataclass(frozen=True)
class Claimed:
    """The result of a claim.

    Attributes:
        held: the partitions that this process holds leases of.
        surplus: held partitions that other processes should have by fair share: stop, then release.
        elsewhere: by partition that another process holds, when its lease ends, in seconds by the
            database's clock.
        ended: closed partitions that have been read to their end.
        letters: partitions with dead letters marked for retry.
        epochs: by partition that is held, the epoch of its cursor; see Place.
    """

    held: frozenset[int]
    surplus: frozenset[int] = frozenset()
    elsewhere: Mapping[int, float] = field(default_factory=dict)
    ended: frozenset[int] = frozenset()
    letters: frozenset[int] = frozenset()
    epochs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Start(Step):
    """Start to read a partition, in parallel to those running; `among` and `after` as in Load."""

    partition: Partition
    among: tuple[int, ...]
    after: int | None


@dataclass(frozen=True)
class Stop(Step):
    """Let the reading of partitions end after the page in work; Await reports the end."""

    partitions: frozenset[int]


@dataclass(frozen=True)
class Release(Step):
    """Release leases that are no longer needed."""

    partitions: frozenset[int]


@dataclass(frozen=True)
class Await(Step):
    """Wait until the reading of partitions ends, or for some seconds; the result: Outcomes."""

    seconds: float


@dataclass(frozen=True)
class Outcome:
    """How the reading of a partition ended.

    Attributes:
        error: the error; None if the partition was drained or stopped.
        drained: whether it was read to its end.
        read: whether the feed has sent a page of it, and so has accepted its token until then.
    """

    partition: int
    error: Exception | None = None
    drained: bool = False
    read: bool = False


def choose(info: FeedInfo, partitions: Collection[int] | None) -> tuple[Partition, ...]:
    """Return the partitions of a feed to read: those that the caller configured, or all.

    Raises:
        ConfigurationError: the feed does not have a configured partition.
        ProtocolError: a partition would never be read.
    """
    known = {partition.id: partition for partition in info.partitions}
    if unknown := set(partitions or ()) - known.keys():
        raise ConfigurationError(
            f"The feed has no partition {min(unknown)}; "
            f"it has {', '.join(map(str, sorted(known)))}."
        )
    _refuse_endless(info.partitions, known)
    return tuple(
        partition
        for partition in info.partitions
        if partitions is None or partition.id in partitions
    )


def begun_together(info: FeedInfo, chosen: Collection[Partition], start: str) -> tuple[int, ...]:
    """Return the partitions in which the first process of a new consumer sets `start`.

    LAST is set in all partitions of the feed: another process would take one without a cursor for
    new, and read it from its first event. A cursor is set in those chosen, as it may be of one.
    """
    return tuple(partition.id for partition in (info.partitions if start == LAST else chosen))


def _refuse_endless(partitions: Collection[Partition], known: dict[int, Partition]) -> None:
    """Refuse a partition whose parent never ends, because it is open or waits for its own child.

    FeedAPI v2, Method 1 to change partition count: a parent is closed. Each partition is checked
    only once, however many children it has: a publisher can list 32,768 in a chain.
    """
    checked: set[int] = set()
    for partition in partitions:
        line: set[int] = set()
        here = partition
        while here.id not in checked and here.starts_after is not None:
            line.add(here.id)
            parent = known.get(here.starts_after)
            if parent is None:
                break
            if parent.id in line or not parent.closed:
                raise ProtocolError(
                    f"Partition {partition.id} of the feed waits for partition {parent.id}, "
                    "which never ends."
                )
            here = parent
        checked |= line


def inheritance(info: FeedInfo) -> Inherit | None:
    """Return the step that copies cursors to the partitions that inherit them; None without any."""
    heirs = {partition.id: partition.cursor_from for partition in info.partitions}
    heirs = {heir: parents for heir, parents in heirs.items() if parents}
    if not heirs:
        return None
    return Inherit(heirs, tuple(partition.id for partition in info.partitions))


def ready(chosen: Collection[Partition], drained: Collection[int]) -> list[Partition]:
    """Return the partitions that may be read now.

    A child starts when its parent has been read to the end (FeedAPI v2, Method 1 to change
    partition count); a parent that was not chosen delays no child.
    """
    waited_for = {partition.id for partition in chosen} - set(drained)
    return [
        partition
        for partition in chosen
        if partition.id not in drained and partition.starts_after not in waited_for
    ]


LONGEST_WAIT = 5.0
"""Seconds that the feed is asked to wait at its head."""


class Stopped(Exception):
    """Raised when the consumer was stopped; never reaches the caller."""


@dataclass
class RetryBudget:
    """Count consecutive failures, and choose the pause after each.

    Attributes:
        attempts: how often to try before the error is final; None for no limit.
        stopped: returns whether to give up.
        longest: the longest pause in seconds.
        failed: the number of failures in a row.
    """

    attempts: int | None
    stopped: Callable[[], bool]
    longest: float = math.inf
    failed: int = 0

    def wait_out(self, error: Exception) -> Generator[Step, Any, None]:
        """Wait before the next try.

        Raises:
            Exception: the error itself, if it ended the last try.
            Stopped: the consumer was stopped meanwhile.
        """
        self.failed += 1
        if self.attempts is not None and self.failed >= self.attempts:
            raise error
        yield Pause(min(backoff(self.failed, error), self.longest), error)
        if self.stopped():
            raise Stopped


def persist(step: Step, budget: RetryBudget) -> Generator[Step, Any, Any]:
    """Yield a step until it succeeds, and return its result.

    Raises:
        TransientError: the last try ended in it.
        Stopped: the consumer was stopped meanwhile.
    """
    while True:
        try:
            return (yield step)
        except TransientError as error:
            yield from budget.wait_out(error)


@dataclass
class EmptyPages:
    """Notice empty pages that lead in a circle and would keep a reader busy for ever.

    Of their cursors one is kept, until there are twice as many (Brent's algorithm).

    Attributes:
        count: how many there were since the last event.
    """

    count: int = 0
    _kept: str = ""

    def add(self, cursor: str, partition: int) -> None:
        """Add an empty page that has moved the cursor to this one.

        Raises:
            ProtocolError: an earlier one has as well.
        """
        self.count += 1
        if self.count.bit_count() == 1:
            self._kept = cursor
        elif cursor == self._kept:
            raise ProtocolError(
                f"The feed leads in a circle in partition {partition}: pages without events end "
                "where earlier ones began."
            )

    def moves(self, page: Page, partition: int, cursor: str) -> bool:
        """Return whether a page that was read from a cursor moves the cursor.

        Raises:
            ProtocolError: it has events and does not move the cursor, or it has none and leads to
                the cursor of an earlier empty page.
        """
        moved = moves_cursor(len(page.events), partition, cursor, page.cursor)
        if page.events or page.caught_up:
            self.count = 0
        elif moved:
            self.add(page.cursor, partition)
        return moved


def moves_cursor(events: int, partition: int, before: str, after: str) -> bool:
    """Return whether a page of a number of events moves the cursor."""
    if events and after == before:
        raise ProtocolError(
            f"The feed sent events of partition {partition} without moving the cursor: they "
            "would come again for ever."
        )
    return after != before


def pause_at_head(poll_interval: float, *, waits: bool) -> Pause:
    """Choose the pause between two requests at the head.

    Short if the feed waits instead of the consumer; not zero, as a feed may answer at once.
    """
    return Pause(min(poll_interval, SHORTEST_BACKOFF) if waits else poll_interval)
