"""The read operations of a feed, each on a connection that its caller passes.

Their other parameters are those of a bound feed's methods, which call them with a connection.
"""

from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from sqlalchemy import Connection

from zeroeventhub.errors import BadCursor, ConfigurationError, FeedFailure, NotFound, Unavailable
from zeroeventhub.protocol import FIRST, LAST, CountedCursor, KeyPage, Lag, Page, TypeFilter
from zeroeventhub.publisher.archive_reader import ArchiveReader, SegmentPlace
from zeroeventhub.publisher.checks import Checkup
from zeroeventhub.publisher.cursor import Place
from zeroeventhub.publisher.history import History
from zeroeventhub.publisher.horizon_monitor import HorizonAge, HorizonMonitor, HorizonReport
from zeroeventhub.publisher.key_query import KeyQuery
from zeroeventhub.publisher.lookups import Lookups
from zeroeventhub.publisher.ordering import Horizon, Ordering
from zeroeventhub.publisher.page_query import PageQuery
from zeroeventhub.publisher.progress import Registry
from zeroeventhub.publisher.rows import ReadRequest, Stretch
from zeroeventhub.publisher.splits import SplitQuery
from zeroeventhub.times import ago
from zeroeventhub.wire.ndjson import chain_parts

QUIET = 1_000
"""How many positions of other partitions pass before a partition without events of its own gets a
new checkpoint: seldom enough that idle consumers hardly write."""


@dataclass(eq=False, repr=False, kw_only=True)
class Reader:
    """Read a table's feed through connections on which each statement sees the last commits."""

    ordering: Ordering
    history: History
    checks: Checkup
    page_query: PageQuery
    lookups: Lookups
    split_query: SplitQuery
    key_query: KeyQuery | None  # None for a feed without versions
    registry: Registry | None  # None for a feed without `progress`

    def __post_init__(self) -> None:
        """Begin without a reading of the horizon."""
        self._watch = HorizonMonitor(self.ordering)
        self._unsealed = HorizonAge()
        self._ends_settled = False

    @property
    def shared_archive(self) -> ArchiveReader:
        """Return the feed's archive, if its files are shared."""
        archive = self.history.archive
        if archive is None or not archive.archive.is_shared:
            raise NotFound("This feed does not share files of its events.")
        return archive

    def read(
        self,
        connection: Connection,
        partition: int,
        cursor: str,
        limit: int,
        *,
        types: TypeFilter | None = None,
        stop: str | None = None,
        each: bool = False,
    ) -> Page:
        """Read the events that follow a cursor, up to the horizon; see `ExtendedFeed.read`."""
        (page,) = self.read_pages(
            connection, partition, cursor, limit, 1, types=types, stop=stop, each=each
        )
        return page

    def read_pages(
        self,
        connection: Connection,
        partition: int,
        cursor: str,
        limit: int,
        count: int,
        *,
        types: TypeFilter | None = None,
        stop: str | None = None,
        each: bool = False,
        on_page: Callable[[Page], object] | None = None,
    ) -> list[Page]:
        """Read pages, each from where the one before ends; see `ExtendedFeed.read_pages`."""
        if cursor == FIRST:
            more: dict[str, Any] = {"types": types, "stop": stop, "each": each}
            return self.history.from_first(
                connection,
                lambda start: self.read_pages(connection, partition, start, limit, count, **more),
            )
        if cursor == LAST:
            end = None if stop is None else Place.of(stop)
            horizon = self._horizon(connection, end)
            here = self.history.cursor_below(connection, horizon.settled)
            return [Page([], here, caught_up=True)]
        place, end, horizon, until = self._range(connection, cursor, stop)
        has_check = bool(place.check)
        request = ReadRequest(
            partition, place.position, until, limit, count, types, each, sees_start=has_check
        )
        pages: list[Page] = []
        here, after, start = cursor, place.position, None
        with closing(self.page_query.read(connection, request)) as stretches:
            for stretch in stretches:
                page = self._page(
                    connection, request, here, after, stretch, horizon=horizon, stop=end
                )
                pages.append(page)
                here, after = page.cursor, stretch.last[0] if stretch.last else after
                begun = stretch.start
                if on_page and begun is not None and not self.history.fits(place, begun):
                    on_page = None  # until `verify` has found out why
                start = begun or start
                # A snapshot that has an event has all that follow it: a trim deletes in order. But
                # below the mark, a table that is being restored has only some of its events.
                is_known = start is not None and stretch.follows
                if not (is_known and page.full and place.position >= self.history.whole_after):
                    on_page = None  # nor for later pages: it is for the first ones
                if on_page:
                    on_page(page)
        # After the pages and their checkpoints: a failover between the check and the pages would
        # go unnoticed. The row that came with the pages is good if they follow it, unless a
        # checkpoint was read later.
        is_alone = stretch.full or not self.page_query.shares_positions
        known = start if is_alone and stretch.follows else None
        mark = self.history.verify(connection, place, end, partition=partition, known=known)
        if place.position <= (gone := max(mark.trimmed, mark.moved)):
            self._refuse_new_numbers(connection, gone, until)
        if pages[0].cursor == cursor and place.position < mark.trimmed <= until:
            # No event follows, but the place was trimmed: move the reader to the mark.
            pages[0] = replace(pages[0], cursor=mark.earliest)
        if place.position < mark.compacted:
            # Compaction has deleted events here and may delete more: no page is final.
            pages = [replace(page, full=False) for page in pages]
        return pages

    def _page(
        self,
        connection: Connection,
        request: ReadRequest,
        here: str,
        after: int,
        stretch: Stretch,
        *,
        horizon: Horizon,
        stop: Place | None,
    ) -> Page:
        """Make a page of rows; `here` and `after` are the cursor and the position before them."""
        history, until = self.history, stretch.until
        reached = False
        at = after if stretch.last is None else stretch.last[0]
        if stretch.last is not None:
            here = history.cursor(*stretch.last)
        if not stretch.full:
            if stop is not None:
                reached = max(until, after) >= stop.position
            if reached and stop is not None and after < stop.position:
                here = str(stop)
            elif until > at and (
                request.types is not None
                or until < request.until
                or (self.page_query.shares_positions and until - at >= QUIET)
            ):
                # A checkpoint after an event of another type or partition.
                below = history.cursor_below(connection, until)
                here = below if Place.of(below).position > at else here
        events = stretch.parts[0] if len(stretch.parts) == 1 else chain_parts(stretch.parts)
        return Page(
            events,
            here,
            caught_up=not stretch.full and until >= horizon.settled,
            stop_reached=reached,
            full=stretch.full and stretch.size > 0 and not history.may_differ,
            cursors=[*map(history.cursor, stretch.positions, events)] if request.each else (),
        )

    def vouch(self, connection: Connection, cursors: Collection[str]) -> None:
        """Refuse cursors of another history; see `ExtendedFeed.vouch`."""
        places = sorted(map(Place.of, cursors), key=lambda place: place.position)
        if not places:
            return
        self._horizon(connection, places[-1])
        # If the last one is valid, so are all before it, unless those were trimmed.
        last = next((one for one in reversed(places) if one.check), None)
        self.history.verify(connection, Place(places[0].position), last)

    def vouch_in_table(self, connection: Connection, cursor: str) -> None:
        """Refuse a cursor that is not of the table's history, without regard to the archive."""
        self._horizon(connection, Place.of(cursor))
        self.history.vouch_in_table(connection, cursor)

    def head(self, connection: Connection) -> int:
        """Return the horizon; see `ExtendedFeed.head`."""
        return self._horizon(connection).settled

    @property
    def has_fast_head(self) -> bool:
        """Return whether `fast_head` may be used."""
        return self.ordering.fast_horizon is not None and self._ends_settled

    def fast_head(self, connection: Connection, seconds: float) -> int:
        """Return the horizon without a transaction; see `Ordering.fast_horizon`."""
        return self._watch.read(connection, seconds).settled

    def horizon(
        self, connection: Connection, elsewhere: Collection[HorizonReport] = ()
    ) -> HorizonReport:
        """Return the horizon, its age, and the writers that hold it back.

        Args:
            connection: to the feed's database.
            elsewhere: reports of other processes of this machine, which the age takes into account.
        """
        report = self._watch.report(connection, elsewhere)
        registered = 0 if self.registry is None else self.registry.count(connection)
        archive, archive_lag = self.history.archive, None
        if archive is not None and report.settled is not None:
            for one in elsewhere:
                if one.unsealed is not None:
                    self._unsealed.learn(*one.unsealed)
            last = self.lookups.last(connection, report.settled)
            archive_lag = self._unsealed.read(archive.sealed(), last, monotonic())
        return replace(
            report,
            archive_lag=archive_lag,
            unsealed=self._unsealed.oldest,
            unpublished=self.checks.unpublished,
            longest_event=self.page_query.longest,
            registered=registered,
        )

    def removable(self, connection: Connection, older_than: timedelta | None) -> tuple[int, int]:
        """Return the horizon, and the position up to which events may be deleted or sealed."""
        # Such an event must not be deleted or sealed before a reader can see it.
        self.checks.refuse_unpublished(connection)
        settled = self._horizon(connection).settled
        if older_than is None:
            return settled, settled
        return settled, min(settled, self.last_older_than(connection, older_than, settled))

    def has_ends(self, connection: Connection, until: int) -> bool:
        """Return whether the last events of closed partitions are at or below a position."""
        try:
            self.page_query.await_ends(connection, settled=until)
        except Unavailable:
            return False
        return True

    def last_older_than(self, connection: Connection, age: timedelta, settled: int) -> int:
        """Return the position at and below which the table's events of all partitions are older."""
        moment, lookups = ago(age), self.lookups
        return min(
            lookups.of_time_in_table(connection, partition, moment, settled=settled)
            for partition in self.page_query.ids
        )

    def cursor_after(self, connection: Connection, position: int) -> str:
        """Return the cursor after a position.

        Args:
            connection: to the feed's database.
            position: from 0 up to the horizon, with or without an event.

        Raises:
            BadCursor: the position is above the horizon: events may still appear below it.
        """
        settled = self._horizon(connection).settled
        if not 0 <= position <= settled:
            raise BadCursor(
                f"Position {position} is not one that the feed may be read up to now: those are 0 "
                f"to {settled}."
            )
        return self.history.cursor_below(connection, position)

    def cursor_at(self, connection: Connection, moment: datetime, partition: int = 0) -> str:
        """Return the cursor before all events of a moment or later.

        Args:
            connection: to the feed's database.
            moment: with a time zone; compared with the feed's `time`. With the ordering sequenced
                and no `time`, compared with the time at which an event got its position.
            partition: one of the feed's.

        Returns:
            The horizon's cursor while no settled event is of the moment or later; after that
            always the same cursor.

        Raises:
            ConfigurationError: the moment has no zone, or the feed does not know times.
        """
        settled = self._horizon(connection).settled
        position = self.lookups.of_time(connection, partition, moment, settled=settled)
        # After the query: if the archive has some of the events, it is searched as well.
        self.history.lost(connection, 0)
        return self.history.cursor_below(connection, position)

    def cursor_of(
        self,
        connection: Connection,
        event_id: str,
        partition: int = 0,
        *,
        types: TypeFilter | None = None,
    ) -> str:
        """Return the cursor after the event of an id; see `ExtendedFeed.cursor_of`."""
        settled = self._horizon(connection).settled
        lookups = self.lookups
        try:
            position = lookups.of_id(connection, event_id, partition, until=settled, types=types)
        except BadCursor:
            if lookups.ids is not None:
                self.history.refuse_forgotten(connection)
            raise
        self.history.refuse_trimmed(connection, position)
        return self.history.cursor_below(connection, position)

    def splits(
        self,
        connection: Connection,
        partition: int,
        count: int,
        *,
        start: str = FIRST,
        stop: str | None = None,
    ) -> list[str]:
        """Return the cursors between pieces of a partition; see `ExtendedFeed.splits`.

        The largest piece holds at most about one and a half times the events of the average one,
        as long as pieces have a thousand events or more.
        """
        if start == FIRST:
            return self.history.from_first(
                connection,
                lambda start: self.splits(connection, partition, count, start=start, stop=stop),
            )
        first, end, horizon, _ = self._range(connection, start, stop)
        until = max(horizon.settled if end is None else end.position, first.position)
        positions = self.split_query.positions(
            connection, partition, count=count, after=first.position, until=until
        )
        inner = [self.history.cursor_below(connection, at) for at in positions[1:-1]]
        last = stop if end and end.position > first.position else None
        if last is None:
            last = self.history.cursor_below(connection, positions[-1])
            if Place.of(last).position <= first.position:
                last = start
        # After the query, as with a page.
        self.history.verify(connection, first, end, partition=partition)
        return [*dict.fromkeys([start, *inner]), last]

    def lag(self, connection: Connection, partition: int, cursor: str) -> Lag:
        """Count the settled events that follow a cursor; see `ExtendedFeed.lag`.

        Counting stops at a million, with the ordering sequenced at a hundred thousand. The age of
        the first event is by the feed's `time`, or, with that ordering and no `time`, by the time
        at which the event got its position.
        """
        if cursor == LAST:
            self._horizon(connection)
            return Lag(0, 0.0, held_back=self._watch.age)
        if cursor == FIRST:
            return self.history.from_first(
                connection, lambda start: self.lag(connection, partition, start)
            )
        place, _, _, until = self._range(connection, cursor, None)
        lag = self.lookups.lag(connection, partition, after=place.position, until=until)
        # After the query, as with a page.
        self.history.verify(connection, place, partition=partition)
        return replace(lag, held_back=self._watch.age)

    def cursor_of_count(
        self,
        connection: Connection,
        partition: int,
        cursor: str,
        events: int,
        *,
        stop: str | None = None,
    ) -> CountedCursor:
        """Return the cursor after a number of events; see `ExtendedFeed.cursor_of_count`."""
        if cursor == FIRST:
            return self.history.from_first(
                connection,
                lambda start: self.cursor_of_count(connection, partition, start, events, stop=stop),
            )
        place, end, _, until = self._range(connection, cursor, stop)
        position, found = self.lookups.of_count(
            connection, partition, events, after=place.position, until=until
        )
        ends = found < events or position == until
        if not found:
            last = cursor
        elif end is not None and ends and until == end.position:
            last = str(end)
        else:
            last = self.history.cursor_below(connection, position)
        # After the query, as with a page.
        mark = self.history.verify(connection, place, end, partition=partition)
        if place.position <= (gone := max(mark.trimmed, mark.moved)):
            self._refuse_new_numbers(connection, gone, until)
        return CountedCursor(last, found)

    def segments(
        self, connection: Connection, partition: int, cursor: str, stop: str | None
    ) -> tuple[str, list[SegmentPlace]]:
        """Return the cursor at the start of a range, and the archive's files that cover it."""
        archive = self.shared_archive
        if cursor == FIRST:
            return self.history.from_first(
                connection, lambda start: self.segments(connection, partition, start, stop)
            )
        place, end, _, until = self._range(connection, cursor, stop)
        files = archive.files(place.position, until, end)
        # If the end of the last segment is in the table's history, so is all before it.
        last = Place.of(files[-1].segment.last) if files else None
        self.history.verify(connection, place, end, last, partition=partition)
        return cursor, files

    def read_key(
        self,
        connection: Connection,
        key: str,
        after_version: int,
        limit: int,
        *,
        partitions: Collection[int] | None = None,
    ) -> KeyPage:
        """Read events of a key, also those above the horizon; see `ExtendedFeed.read_key`."""
        if self.key_query is None:
            raise ConfigurationError("This feed has no versions: give its TableFeed a `version`.")
        return self.key_query.read(connection, key, after_version, limit, partitions)

    def _horizon(self, connection: Connection, *places: Place | None) -> Horizon:
        """Return the horizon.

        Raises:
            Diverged: a place is above the highest position drawn.
            Unavailable: a place is above what an archive has so far.
        """
        horizon = self._watch.read(connection)
        if not self._ends_settled:
            # Until this succeeds once: closed partitions get no further events.
            self.page_query.await_ends(connection, settled=horizon.settled)
            self._ends_settled = True
        for place in places:
            if place is not None and place.position > horizon.highest:
                raise self.ordering.beyond()
        return horizon

    def _range(
        self, connection: Connection, cursor: str, stop: str | None
    ) -> tuple[Place, Place | None, Horizon, int]:
        """Return the places of two cursors, the horizon, and the last position to read."""
        place, end = Place.of(cursor), None if stop is None else Place.of(stop)
        horizon = self._horizon(connection, place, end)
        until = horizon.settled if end is None else min(horizon.settled, end.position)
        return place, end, horizon, until

    def _refuse_new_numbers(self, connection: Connection, gone: int, until: int) -> None:
        """Refuse what was read if the table was emptied and its numbers have started again.

        The table has no row at a place up to `gone` to compare: other events may have the numbers
        that were read.
        """
        highest = self.ordering.horizon(connection).highest
        if highest < gone:
            raise FeedFailure(
                f"The table's numbers start again below {gone}, up to which it was trimmed."
            )
        if highest < until:
            raise Unavailable("The table was emptied while it was read.", retry_after=1)
