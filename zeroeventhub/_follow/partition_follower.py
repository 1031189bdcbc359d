"""What a consumer decides about one partition: what to read, apply, try again and give up."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from zeroeventhub._follow.backoff import Patience, Stopped, backoff, persist
from zeroeventhub._follow.failures import Failures
from zeroeventhub._follow.page_reading import (
    LONGEST_WAIT,
    Passed,
    pause_at_head,
    reaches_head,
)
from zeroeventhub._follow.steps import (
    Advance,
    Deliver,
    End,
    Fetch,
    Load,
    Pause,
    Place,
    Redeliver,
    Step,
)
from zeroeventhub.errors import (
    Fenced,
    Halted,
    LeaseLost,
    StoreUnavailable,
    TooManyDeadLetters,
    TransientError,
)
from zeroeventhub.protocol import WAIT, Page, Partition

__all__ = ["PartitionFollower"]


@dataclass(frozen=True)
class PartitionFollower:
    """Decide how one partition is read, page by page, by a process that holds its lease.

    Attributes:
        partition: the partition.
        among: all partitions that are read; a consumer that is new starts in all at once.
        extensions: what the feed can do beyond the protocol's core.
        forever: whether to wait at the head for more events; else end there.
        poll_interval: seconds between two looks at the head.
        attempts: how often a step is tried before its error is final; None for no limit.
        failures: what becomes of a page whose handler raises.
        stopped: tells whether to end before the next step.
        roomy: tells whether few enough partitions are read for the feed to wait at its head, and
            for the next page to be fetched ahead.
        letters: tells whether dead letters of the partition were marked to be applied again.
        overtaken: tells whether the right to move the cursor has passed on from an epoch, as when
            an operator has put the cursor elsewhere.
    """

    partition: Partition
    among: tuple[int, ...]
    extensions: frozenset[str]
    forever: bool
    poll_interval: float
    attempts: int | None
    failures: Failures
    stopped: Callable[[], bool]
    roomy: Callable[[], bool]
    letters: Callable[[], bool]
    overtaken: Callable[[int], bool]

    def steps(self) -> Generator[Step, Any, bool]:
        """Yield the steps; return whether the partition was drained, and not stopped.

        Raises:
            TokenChanged: the feed's partitions have changed: discover again.
            LeaseLost: another process reads the partition now.
            Halted: a page could not be applied.
        """
        try:
            yield from _Reading(self, Patience(self.attempts, self.stopped)).to_the_end()
        except Stopped:
            return False
        return True


@dataclass
class _Reading:
    """Keep where the reading of a partition stands.

    Attributes:
        wish: how it is to be read.
        patience: what is left of it for commits in a row that failed.
        place: where the consumer stands, and by what right.
        head: where the head of the partition was seen.
        passed: where pages without events led.
    """

    wish: PartitionFollower
    patience: Patience
    place: Place = field(init=False)
    head: str | None = None
    passed: Passed = field(default_factory=Passed)

    @property
    def at_head(self) -> bool:
        """Whether the partition was read, and committed, to where its head was seen."""
        return self.head == self.place.cursor

    @property
    def lingers(self) -> bool:
        """Whether there may be more behind the head, and somebody waits for it."""
        return self.wish.forever and not self.wish.partition.closed

    @property
    def waits(self) -> bool:
        """Whether the feed may wait at its head in place of a consumer that lingers there."""
        return WAIT in self.wish.extensions and self.wish.roomy()

    def to_the_end(self) -> Generator[Step, Any, None]:
        """Read until the partition is drained."""
        yield from self.load()
        while not (yield from self.end()):
            if self.wish.stopped():
                raise Stopped
            if self.wish.overtaken(self.place.epoch):
                yield from self.load()
            yield from self.redeliver()
            waits = self.waits
            news = yield from self.read_page(LONGEST_WAIT if waits and self.at_head else 0.0)
            if self.at_head and self.lingers and not (waits and news):
                yield pause_at_head(self.wish.poll_interval, waits=waits)

    def end(self) -> Generator[Step, Any, bool]:
        """End at the head where nothing follows, or nobody waits for it; tell whether."""
        while self.at_head and not self.lingers:
            if not self.wish.partition.closed:
                return True
            if (yield from self.commit(End(self.wish.partition.id, self.place))):
                return True
        return False

    def redeliver(self) -> Generator[Step, Any, None]:
        """Have dead letters applied again, if any were marked for it."""
        done = False
        while not done and self.wish.letters():
            done = yield from self.commit(Redeliver(self.wish.partition.id, self.place))

    def read_page(self, wait: float) -> Generator[Step, Any, bool]:
        """Fetch a page and commit it; tell whether it brought anything."""
        partition, cursor = self.wish.partition.id, self.place.cursor
        patience = Patience(self.wish.attempts, self.wish.stopped)
        page: Page = yield from persist(Fetch(partition, cursor, wait), patience)
        news = self.passed.brings_news(page, partition, cursor)
        if page.events:
            yield from self.deliver(page)
        elif news:
            yield from self.advance(page.cursor)
        if reaches_head(page, cursor):
            self.head = page.cursor
        return news

    def advance(self, cursor: str) -> Generator[Step, Any, None]:
        """Move the cursor over no events, unless it turns out to be elsewhere."""
        start = self.place.cursor
        while self.place.cursor == start:
            step = Advance(self.wish.partition.id, self.place, cursor)
            if (yield from self.commit(step)):
                self.place = Place(cursor, self.place.epoch)

    def deliver(self, page: Page) -> Generator[Step, Any, None]:
        """Have a page applied, unless the cursor turns out to be elsewhere.

        Raises:
            Halted: it cannot be applied.
        """
        start = self.place.cursor
        tries, set_aside = 0, False
        while self.place.cursor == start:
            try:
                yield self.delivery(page, set_aside=set_aside)
            except (Fenced, StoreUnavailable) as error:
                yield from self.find_out(error)
            except Exception as error:
                tries += 1
                if set_aside:
                    raise self.halted(tries, error) from error
                set_aside = yield from self.bear(tries, error)
            else:
                self.patience.failed = 0
                self.place = Place(page.cursor, self.place.epoch)

    def bear(self, tries: int, error: Exception) -> Generator[Step, Any, bool]:
        """Wait before a page is applied again; tell whether to set aside then what fails.

        Raises:
            Halted: that was its last try.
        """
        failures = self.wish.failures
        if tries < failures.tries:
            yield Pause(backoff(tries, error), error)
        elif failures.then == "halt":
            raise self.halted(tries, error) from error
        if self.wish.stopped():
            raise Stopped
        return tries >= failures.tries

    def delivery(self, page: Page, *, set_aside: bool) -> Deliver:
        """Make the step that hands a page to the consumer."""
        partition = self.wish.partition.id
        looks_ahead = not page.caught_up and self.wish.roomy()
        ahead = Fetch(partition, page.cursor) if looks_ahead else None
        return Deliver(partition, self.place, page, ahead, set_aside)

    def commit(self, step: Advance | End | Redeliver) -> Generator[Step, Any, bool]:
        """Yield a step that writes by the right of a place; tell whether it succeeded."""
        try:
            yield step
        except (Fenced, TransientError) as error:
            yield from self.find_out(error)
            return False
        self.patience.failed = 0
        return True

    def find_out(self, error: Fenced | TransientError) -> Generator[Step, Any, None]:
        """Load the place again where a write was refused, or nobody knows whether it was done.

        That ends what may still be under way in the store, and then shows what came of it.

        Raises:
            LeaseLost: another process reads the partition now.
        """
        if isinstance(error, LeaseLost):
            raise error
        if isinstance(error, TransientError):
            yield from self.patience.wait_out(error)
        yield from self.load()

    def load(self) -> Generator[Step, Any, None]:
        """Enter the partition: from here on, nobody commits by an older right."""
        patience = Patience(self.wish.attempts, self.wish.stopped)
        partition, among = self.wish.partition, self.wish.among
        after = partition.starts_after if partition.starts_after in among else None
        step = Load(partition.id, among, after)
        self.place = yield from persist(step, patience)

    def halted(self, tries: int, error: Exception) -> Halted:
        """Say why the partition stands still, without the error's text: it may hold data."""
        partition = self.wish.partition.id
        reason = f" {error}" if isinstance(error, TooManyDeadLetters) else ""
        return Halted(
            f"Partition {partition} stands still at cursor {self.place.cursor!r}: what follows "
            f"could not be applied in {tries} tries. The last one raised "
            f"{type(error).__name__}.{reason}",
            partition=partition,
        )
