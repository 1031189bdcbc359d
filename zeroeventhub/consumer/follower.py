"""Decide how a consumer reads: what to fetch next, when to wait, what to retry or give up.

`Follower` reads all partitions in turn, for the plain loop; `PartitionFollower` reads one, under a
lease. Both are generators without I/O that yield steps.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Generator, Mapping, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from zeroeventhub.client.requests import backoff
from zeroeventhub.consumer.config import Config
from zeroeventhub.consumer.observer import at_place
from zeroeventhub.consumer.steps import (
    LONGEST_WAIT,
    Advance,
    Deliver,
    Discover,
    EmptyPages,
    End,
    Fetch,
    Load,
    Pause,
    Place,
    RecordFailure,
    Redeliver,
    RetryBudget,
    Step,
    Stopped,
    begun_together,
    choose,
    inheritance,
    pause_at_head,
    persist,
    ready,
)
from zeroeventhub.errors import (
    ConfigurationError,
    Fenced,
    Halted,
    LeaseLost,
    StoreUnavailable,
    TokenChanged,
    TooManyDeadLetters,
    TransientError,
)
from zeroeventhub.extensions import WAIT
from zeroeventhub.protocol import FeedInfo, Page, Partition

_Steps = Generator[Step, Any, Any]


class _CursorSet(Exception):
    """Raised when an operator has moved a cursor while this layout was read."""


@dataclass(frozen=True)
class Follower:
    """Decide how a feed is read, page by page, over all partitions in turn, until `stopped`."""

    config: Config
    stopped: Callable[[], bool]

    def steps(self) -> Generator[Step, Any, None]:
        """Yield the steps, until the head is reached (unless forever) or until stopped."""
        with suppress(Stopped):
            yield from self._read_layouts()

    def _read_layouts(self) -> _Steps:
        conflicts = RetryBudget(self.config.attempts, self.stopped)
        while not self.stopped():
            info = yield from self._persist(Discover())
            try:
                caught_up = yield from self._read(info)
            except TokenChanged as conflict:
                # The layout changed before every partition had answered once. A feed that reports
                # one change after the other contradicts itself: do not retry at once.
                yield from conflicts.wait_out(conflict)
                continue
            conflicts.failed = 0
            if caught_up:
                if not self.config.follow:
                    return
                yield Pause(self.config.poll_interval)

    def _read(self, info: FeedInfo) -> _Steps:
        """Read one layout of partitions; return whether its end was reached."""
        chosen = choose(info, self.config.partitions)
        if inherit := inheritance(info):
            yield from self._persist(inherit)
        among = begun_together(info, chosen, self.config.start)
        drained: set[int] = set()
        known = defaultdict[int, _PartitionState](
            lambda: _PartitionState(RetryBudget(None, self.stopped))
        )
        epochs: dict[int, int] = {}
        confirmed = False
        while in_turn := ready(chosen, drained):
            moved = False
            # The feed waits instead of the consumer, unless that would delay other partitions.
            waits = self.config.follow and WAIT in info.extensions and len(in_turn) == 1
            for partition, following in zip(in_turn, in_turn[1:] + in_turn[:1], strict=True):
                if self.stopped():
                    return False
                try:
                    place = yield from self._load(partition, among, epochs)
                    found, at_head = yield from self._read_page(
                        partition, place, known, waits=waits, following=following
                    )
                except _CursorSet:
                    # A parent that was read to its end may have to be read again, and first.
                    return False
                except TokenChanged:
                    if confirmed:
                        return False
                    raise
                confirmed = confirmed or found
                ends = partition.closed or not self.config.follow
                if ends and not found:
                    drained.add(partition.id)
                moved = moved or ends or not at_head or (waits and found)
            confirmed = True
            if not moved:
                yield pause_at_head(self.config.poll_interval, waits=waits)
        return True

    def _load(self, partition: Partition, among: tuple[int, ...], epochs: dict[int, int]) -> _Steps:
        """Load a partition's place; `epochs` has the epoch of each cursor when first loaded."""
        known = partition.id in epochs
        place: Place = yield from self._persist(Load(partition.id, among))
        if epochs.setdefault(partition.id, place.epoch) != place.epoch:
            raise _CursorSet
        parent = partition.starts_after
        if not known and parent in epochs:
            before: Place = yield from self._persist(Load(parent, among))
            if before.epoch != epochs[parent]:
                raise _CursorSet
        return place

    def _read_page(
        self,
        partition: Partition,
        place: Place,
        known: dict[int, "_PartitionState"],
        *,
        waits: bool,
        following: Partition,
    ) -> _Steps:
        """Read one page of a partition; return whether it moved the cursor and reached the head."""
        cursor, mine, other = place.cursor, known[partition.id], known[following.id]
        if mine.delivered == cursor:
            yield from mine.repeats.wait_out(_uncommitted(partition.id, cursor))
        elif mine.repeats.failed:
            mine.repeats.failed = 0
        at_head = mine.head == cursor
        if at_head and (partition.closed or not self.config.follow):
            return False, True
        wait = LONGEST_WAIT if waits and at_head else 0.0
        alone = following.id == partition.id
        page: Page = yield from self._persist(Fetch(partition.id, cursor, wait, goes_on=alone))
        found = mine.empty_pages.moves(page, partition.id, cursor)
        # Without the feed's own mark, a page that does not move the cursor counts as the head.
        at_head = page.caught_up or not found
        mine.cursor = page.cursor
        if at_head:
            mine.head = page.cursor
        if page.events:
            ahead = None
            if other.cursor is not None and other.cursor != other.head:
                ahead = Fetch(following.id, other.cursor)
            yield Deliver(partition.id, place, page, ahead)
            mine.delivered = cursor if page.cursor != cursor else None
        elif found:
            # Fenced: another process of this consumer has moved the cursor; Load reads it next.
            with suppress(Fenced):
                yield from self._persist(Advance(partition.id, place, page.cursor))
        return found, at_head

    def _persist(self, step: Step) -> _Steps:
        return persist(step, RetryBudget(self.config.attempts, self.stopped))


@dataclass
class _PartitionState:
    """The state of a partition in one layout.

    Attributes:
        repeats: how often in a row the host got a page again, as it had not committed it.
        cursor: where to read next, if the last page was committed.
        head: the cursor at which the partition's head was last reached.
        delivered: the cursor of the last page that the host got.
        empty_pages: those since the last event.
    """

    repeats: RetryBudget
    cursor: str | None = None
    head: str | None = None
    delivered: str | None = None
    empty_pages: EmptyPages = field(default_factory=EmptyPages)


def _uncommitted(partition: int, cursor: str) -> ConfigurationError:
    return ConfigurationError(
        f"The page of partition {partition} after cursor {cursor!r} was not committed, and comes "
        "again: call page.commit in the transaction of its effects, and commit that."
    )


@dataclass
class PartitionFollower:
    """Decide how one partition is read, page by page, by a process that holds its lease.

    Attributes:
        among: the partitions in which a new consumer sets its first cursor at once.
        after: the parent, which has to be read to its end before; None without one.
        extensions: the extensions that the feed announces.
        running: the partitions that are being read; updated in place. While they are no more than
            `concurrency`, the feed may wait at its head, and the next page is fetched ahead.
        letters: the partitions with dead letters marked for retry; updated in place.
        epochs: the epochs of cursors; updated in place. An epoch above that of the place means
            that this reader may no longer move the cursor, as after an operator has moved it.
    """

    partition: Partition
    among: tuple[int, ...]
    after: int | None
    extensions: frozenset[str]
    config: Config
    stopped: Callable[[], bool]
    running: Sized
    letters: Container[int]
    epochs: Mapping[int, int]
    _place: Place = field(default=Place(""), init=False)
    _head: str | None = field(default=None, init=False)
    _empty_pages: EmptyPages = field(default_factory=EmptyPages, init=False)
    _commits: RetryBudget = field(init=False)

    def steps(self) -> Generator[Step, Any, None]:
        """Yield the steps until the partition is drained.

        Raises:
            Stopped: it was stopped before.
            TokenChanged: the feed's partitions have changed: discover again.
            LeaseLost: another process reads the partition now.
            Halted: a page could not be applied.
        """
        self._commits = RetryBudget(self.config.attempts, self.stopped)
        fetches = RetryBudget(self.config.attempts, self.stopped)
        number, follows = self.partition.id, self.config.follow and not self.partition.closed
        pause = poll = self.config.poll_interval
        yield from self._load()
        while follows or self._head != self._place.cursor or not (yield from self._end()):
            if self.stopped():
                raise Stopped
            if self.epochs.get(number, 0) > self._place.epoch:
                yield from self._load()
            if number in self.letters:
                yield from self._commit(Redeliver(number, self._place))
                continue
            cursor = self._place.cursor
            is_free = len(self.running) <= self.config.concurrency
            waits = WAIT in self.extensions and is_free
            wait = LONGEST_WAIT if waits and self._head == cursor else 0.0
            try:
                page: Page = yield Fetch(number, cursor, wait, goes_on=is_free)
            except TransientError as error:
                yield from fetches.wait_out(error)
                continue
            fetches.failed = 0
            moved = page.cursor != cursor
            if page.events and moved:
                self._empty_pages.count = 0
                yield from self._deliver(page)
            elif self._empty_pages.moves(page, number, cursor):
                yield from self._advance(page.cursor)
            if page.caught_up or not moved:
                self._head = page.cursor
            if self._head == self._place.cursor and follows and not (waits and moved):
                # Where partitions take turns, those without news are asked less and less often.
                turns = len(self.running) / self.config.concurrency
                longer = poll if moved else min(2 * pause, poll * turns, LONGEST_WAIT)
                pause = max(poll, longer)
                yield pause_at_head(pause, waits=waits)

    def _end(self) -> Generator[Step, Any, bool]:
        """End at the head, unless the consumer follows; return whether it ended."""
        while self._head == self._place.cursor:
            if not self.partition.closed:
                return True
            if (yield from self._commit(End(self.partition.id, self._place))):
                return True
        return False

    def _advance(self, cursor: str) -> Generator[Step, Any, None]:
        """Move the cursor past no events, unless another process has moved it."""
        start = self._place.cursor
        while self._place.cursor == start:
            if (yield from self._commit(Advance(self.partition.id, self._place, cursor))):
                self._place = Place(cursor, self._place.epoch)

    def _deliver(self, page: Page) -> Generator[Step, Any, None]:
        """Apply a page, unless another process has moved the cursor, or raise Halted."""
        number, start = self.partition.id, self._place.cursor
        tries, set_aside = 0, False
        while self._place.cursor == start:
            ahead = None
            if not page.caught_up and len(self.running) <= self.config.concurrency:
                ahead = Fetch(number, page.cursor)
            try:
                yield Deliver(number, self._place, page, ahead, set_aside)
            except (Fenced, StoreUnavailable) as error:
                yield from self._reload(error)
            except Exception as error:
                tries += 1
                if set_aside:
                    raise (yield from self._halted(tries, error)) from error
                set_aside = yield from self._retry_or_halt(tries, error)
            else:
                self._commits.failed = 0
                self._place = Place(page.cursor, self._place.epoch)

    def _retry_or_halt(self, tries: int, error: Exception) -> Generator[Step, Any, bool]:
        """Store the error and wait, or raise Halted; return whether to set aside what fails."""
        failures = self.config.failures
        is_last = tries >= failures.tries
        if is_last and failures.then == "halt":
            raise (yield from self._halted(tries, error)) from error
        if not self.stopped():
            pause = Pause(0.0 if is_last else backoff(tries, error), error)
            yield RecordFailure(self.partition.id, self._place, error, tries, pause.seconds)
            if not is_last:
                yield pause
        if self.stopped():
            raise Stopped
        return is_last

    def _commit(self, step: Step) -> Generator[Step, Any, bool]:
        """Yield a step that writes to the store; return whether it succeeded."""
        try:
            yield step
        except (Fenced, TransientError) as error:
            yield from self._reload(error)
            return False
        self._commits.failed = 0
        return True

    def _reload(self, error: Fenced | TransientError) -> Generator[Step, Any, None]:
        """Load the place again after a write that was refused, or whose outcome is unknown.

        Loading locks the cursor, and so waits for a transaction that may still be running. Raises
        LeaseLost if another process reads the partition now.
        """
        if isinstance(error, LeaseLost):
            raise error
        if isinstance(error, TransientError) or self._commits.failed:
            yield from self._commits.wait_out(error)
        else:
            # Usually another process or an operator has moved the cursor: go on at once, and wait
            # only if the next page is fenced as well.
            self._commits.failed = 1
        yield from self._load()

    def _load(self) -> Generator[Step, Any, None]:
        """Load the place; from here on, commits of an older epoch are fenced."""
        step = Load(self.partition.id, self.among, self.after)
        self._place = yield from persist(step, RetryBudget(self.config.attempts, self.stopped))
        # An operator may have set the cursor back, to before pages that were empty.
        self._empty_pages.count = 0

    def _halted(self, tries: int, error: Exception) -> Generator[Step, Any, Halted]:
        """Store why the partition halts, and return the error to raise.

        The store has the text of the cause, which may hold data; the error that is raised has not.
        """
        yield RecordFailure(self.partition.id, self._place, error, tries)
        reason = f" {error}" if isinstance(error, TooManyDeadLetters) else ""
        return Halted(
            f"Partition {self.partition.id} stands still at cursor {self._place.cursor!r}: what "
            f"follows could not be applied in {tries} tries. The last one raised "
            f"{type(error).__name__}{at_place(error)}.{reason}",
            partition=self.partition.id,
            epoch=self._place.epoch,
        )
