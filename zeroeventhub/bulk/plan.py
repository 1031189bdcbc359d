"""Plan what tasks read: where a batch ends, how it is divided, and what happens if data is lost."""

import math
from collections.abc import Callable, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, wraps
from itertools import pairwise
from typing import Concatenate, ParamSpec, TypeVar

from zeroeventhub.bulk.boundaries import Boundaries, Scan
from zeroeventhub.bulk.connection import Connection, log
from zeroeventhub.bulk.offsets import Offsets, Range, chains
from zeroeventhub.bulk.options import EARLIEST, LATEST, ReadOptions
from zeroeventhub.consumer.steps import ready
from zeroeventhub.errors import ConfigurationError, Diverged, Gone, TokenChanged, Trimmed
from zeroeventhub.protocol import FIRST, MOST_SPLITS

_Answer = TypeVar("_Answer")


class DataLossPolicy:
    """Fail if unread events are gone, or log it and continue."""

    def __init__(self, options: ReadOptions) -> None:
        self._fails = options.fail_on_data_loss
        self._advice = options.words.on_data_loss

    def request(
        self, partition: int, cursor: str, call: Callable[[str], _Answer]
    ) -> _Answer | None:
        """Send a request that starts at a cursor, or at the earliest one if the cursor is trimmed.

        Returns:
            The answer; None if the cursor is of another history, or if the events up to the end of
            the read are gone as well.
        """
        while True:
            try:
                return call(cursor)
            except (Trimmed, Diverged) as error:
                if self._fails:
                    text = f"Events of partition {partition} cannot be read. {error} {self._advice}"
                    error.args = (text,)
                    raise
                if isinstance(error, Diverged):
                    log.warning(
                        "The cursor %s of partition %d is of a history that the feed no longer "
                        "has. Going on at the feed's head: events before it may not be read.",
                        cursor,
                        partition,
                    )
                    return None
                earliest = error.earliest or FIRST
                if earliest == cursor:
                    return None
                log.warning(
                    "Events of partition %d after the cursor %s were not read: the feed no longer "
                    "has them. Going on at the earliest cursor, %s.",
                    partition,
                    cursor,
                    earliest,
                )
                cursor = earliest

    def skip(self, partition: int) -> None:
        """Skip the planned rest of a partition that is gone; raise Gone if `fails` is set."""
        text = (
            f"Partition {partition} of the feed is gone, and no other partition has the rest of "
            "its planned events."
        )
        if self._fails:
            raise Gone(f"{text} {self._advice}")
        log.warning("%s It was not read.", text)


@dataclass(frozen=True)
class Share:
    """What is read of a partition.

    Attributes:
        start: the cursor before the first event.
        pieces: ranges with all events of it, in order.
        events: about how many these are; None if that is unknown.
    """

    partition: int
    start: str
    pieces: list[Range]
    events: int | None


SCANNED = 100_000
"""The most events of a micro-batch if the driver has to read pages to plan it."""

_Given = ParamSpec("_Given")
_Planned = TypeVar("_Planned")


def _with_layout(
    make: Callable[Concatenate["Plan", Boundaries, _Given], _Planned],
) -> Callable[Concatenate["Plan", _Given], _Planned]:
    """Call a method with the feed's layout, and again if the layout changes meanwhile."""

    @wraps(make)
    def planned(self: "Plan", /, *args: _Given.args, **options: _Given.kwargs) -> _Planned:
        budget = self._connection.retry_budget()
        while True:
            info = self._connection.request(lambda client: client.discover())
            try:
                feed = Boundaries(self._connection, self._options, info)
                return make(self, feed, *args, **options)
            except TokenChanged as error:
                self._connection.back_off(budget, error)

    return planned


class Plan:
    """Plan reads of a feed; a task is a list of ranges that are read one after the other."""

    def __init__(self, connection: Connection, options: ReadOptions) -> None:
        self._connection = connection
        self._options = options
        self._loss = DataLossPolicy(options)

    @_with_layout
    def batch(self, feed: Boundaries) -> list[list[Range]]:
        """Return the tasks of a batch, whose end is fixed now."""
        starts = feed.starts(self._options.starting or EARLIEST)
        if not feed.can_stop:
            return [[one] for one in self._plan_by_count(feed, starts) if one.count]
        if feed.can_split and self._options.ending == LATEST:
            # One request returns the head and the cursors that divide the range before it.
            count = self._pieces_each(starts)
            return [
                [piece]
                for partition, start in starts.items()
                for piece in self._pieces(feed, partition, count, start, None)
            ]
        ends = feed.ends(self._options.ending)
        ranges = [Range(one, starts[one], ends[one]) for one in starts if one in ends]
        return self._divide(feed, [[one] for one in ranges if one.start != one.stop])

    @_with_layout
    def shares(self, feed: Boundaries, size: int, at_once: int) -> list[Share]:
        """Return what a batch reads of each partition, in pieces of about `size` events.

        `at_once` is how many requests are sent side by side.
        """
        starts = feed.starts(self._options.starting or EARLIEST)
        if feed.can_stop:
            ends = feed.ends(self._options.ending)
            ranges = [Range(one, start, ends.get(one, start)) for one, start in starts.items()]
        else:
            ranges = self._plan_by_count(feed, starts)
        with ThreadPoolExecutor(at_once) as pool:
            return [*pool.map(lambda one: self._share(feed, one, size), ranges)]

    def _share(self, feed: Boundaries, one: Range, size: int) -> Share:
        pieces, events, start = [one], one.count, one.start
        if one.start == one.stop:
            events = 0
        elif events is None and feed.can_split and feed.can_count:
            events = self._loss.request(
                one.partition, one.start, lambda cursor: feed.count(replace(one, start=cursor))
            )
            if events is not None and events > size:
                count = min(-(-events // size), MOST_SPLITS)
                pieces = self._pieces(feed, one.partition, count, one.start, one.stop)
            elif events == 0:
                # A trim may pass the event of another partition at which the last read has ended.
                start = feed.past(one)
        return Share(one.partition, start, pieces if events != 0 else [], events)

    @_with_layout
    def begin(self, feed: Boundaries) -> Offsets:
        """Return where a stream starts."""
        starts = feed.starts(self._options.starting or LATEST)
        if self._options.starting == EARLIEST:
            # A partition that starts after another is begun when that one is read.
            starts = {one.id: starts[one.id] for one in ready(feed.partitions, ())}
        return Offsets.within(feed.info, starts, {} if feed.can_stop else dict.fromkeys(starts, 0))

    @_with_layout
    def head(self, feed: Boundaries) -> Offsets | None:
        """Return where every partition ends now; None if the feed cannot stop there."""
        return Offsets.within(feed.info, feed.ends(LATEST)) if feed.can_stop else None

    @_with_layout
    def advance(
        self,
        feed: Boundaries,
        start: Offsets,
        limit: int | None,
        target: Offsets | None,
        *,
        moves_quiet: bool = False,
    ) -> Offsets:
        """Return where a micro-batch ends, at the latest at `target`.

        It has at most `limit` events, or one event of each partition if these are more. If
        `moves_quiet`, the cursors of partitions without events move on as well.
        """
        if limit is None and not feed.can_stop:
            limit = SCANNED
        begins: dict[int, str] = {}
        ends: dict[int, Scan] = {}
        quiet: dict[int, str] = {}
        try:
            self._scan(feed, start, limit, target, begins=begins, ends=ends)
            if moves_quiet and feed.can_stop:
                quiet = self._past_quiet(feed, ends, target)
        except TokenChanged:
            # While its processes change one by one, a feed seldom answers a whole plan alike. What
            # it did answer is read, but a run up to a target or a count does not end because of it.
            found = any(one.events or (target is None and one.at_head) for one in ends.values())
            if not (found and feed.can_stop):
                raise
        cursors = {one: scan.cursor for one, scan in ends.items()} | quiet
        counts = {one: start.counts.get(one, 0) + scan.events for one, scan in ends.items()}
        return Offsets.within(feed.info, cursors, {} if feed.can_stop else counts, begins, start)

    def tasks(self, start: Offsets, end: Offsets) -> list[list[Range]]:
        """Return the tasks of a micro-batch between two offsets."""
        planned = chains(start, end)
        if len(planned) >= self._options.min_partitions:
            return planned
        try:
            return _with_layout(Plan._divide)(self, planned)
        except TokenChanged:
            return planned

    def _scan(
        self,
        feed: Boundaries,
        start: Offsets,
        limit: int | None,
        target: Offsets | None,
        *,
        begins: dict[int, str],
        ends: dict[int, Scan],
    ) -> None:
        """Add where a micro-batch ends in every partition that the stream has begun or begins now.

        If a partition has fewer events than its share, the other partitions share the rest. A
        partition is begun once its parent is read to its end (SPEC 8.3), and added to `begins`.
        """
        replaced = {former for line in start.cursor_from.values() for former in line}
        for one in feed.partitions:
            if (cursor := start.cursor(one.id, one.cursor_from)) is not None:
                ends[one.id] = Scan(cursor, 0, at_head=False)
            elif one.id in replaced:
                # Its events would come again.
                raise TokenChanged(
                    f"Other partitions have replaced partition {one.id}, but the feed still shows "
                    "it: its answer is older than the change."
                )
        # Partitions that are younger than the target are left out.
        unread = {
            one.id: one
            for one in feed.partitions
            if target is None or target.cursor(one.id, one.cursor_from) not in {None, FIRST}
        }
        left = math.inf if limit is None else limit
        is_first = True
        while unread and (is_first or left > 0):
            share = None if limit is None else max(1, int(left) // len(unread))
            for one in [*unread.values()]:
                # A busy partition leaves some events to the partitions after it in this list.
                if one.starts_after in unread or not (is_first or left > 0):
                    continue
                if one.id not in ends:
                    begins[one.id] = feed.first(one.id)
                    ends[one.id] = Scan(begins[one.id], 0, at_head=False)
                before = ends[one.id]
                stop = None if target is None else target.cursor(one.id, one.cursor_from)
                found = self._loss.request(
                    one.id, before.cursor, partial(feed.scan, one.id, events=share, stop=stop)
                )
                if found is None:
                    found = Scan(stop or feed.head(one.id), 0, at_head=True)
                left -= found.events
                ends[one.id] = Scan(found.cursor, before.events + found.events, found.at_head)
                if found.at_head:
                    del unread[one.id]
            is_first = False

    def _past_quiet(
        self, feed: Boundaries, ends: Mapping[int, Scan], target: Offsets | None
    ) -> dict[int, str]:
        """Return where partitions without events end: a trim may pass their cursors otherwise."""
        found = {}
        for one in feed.partitions:
            scan = ends.get(one.id)
            # The end of a closed partition stays valid.
            if scan is None or scan.events or not scan.at_head or one.closed:
                continue
            stop = None if target is None else target.cursor(one.id, one.cursor_from)
            quiet = Range(one.id, scan.cursor, stop or feed.head(one.id))
            found[one.id] = feed.past(quiet)
        return found

    def _plan_by_count(self, feed: Boundaries, starts: dict[int, str]) -> list[Range]:
        """Plan ranges of a feed that cannot stop at a cursor: by their number of events."""
        if self._options.ending != LATEST:
            raise ConfigurationError(
                "This feed cannot be read up to an offset, because it does not have the extension "
                f"stop: leave out {self._options.words.end}, and the batch ends at the head."
            )
        ranges = []
        for one, start in starts.items():
            found = self._loss.request(one, start, partial(feed.scan, one, events=None, stop=None))
            if found is not None:
                ranges.append(Range(one, start, found.cursor, found.events))
        return ranges

    def _pieces_each(self, planned: Sized) -> int:
        """Return into how many pieces each range is divided, so that there are enough tasks."""
        return min(-(-self._options.min_partitions // max(len(planned), 1)), MOST_SPLITS)

    def _pieces(
        self, feed: Boundaries, partition: int, count: int, start: str, stop: str | None
    ) -> list[Range]:
        cursors = self._loss.request(
            partition, start, lambda cursor: feed.pieces(partition, count, cursor, stop)
        )
        pairs = pairwise(cursors or ())
        return [Range(partition, *pair) for pair in pairs if pair[0] != pair[1]]

    def _divide(self, feed: Boundaries, planned: list[list[Range]]) -> list[list[Range]]:
        """Divide the ranges that are alone in their chain."""
        count = self._pieces_each(planned)
        if not feed.can_split or count == 1:
            return planned
        listed = {one.id for one in feed.partitions}
        tasks = []
        for chain in planned:
            one = chain[0]
            if len(chain) == 1 and one.partition in listed:
                pieces = self._pieces(feed, one.partition, count, one.start, one.stop)
                tasks += [[piece] for piece in pieces]
            else:
                tasks.append(chain)
        return tasks
