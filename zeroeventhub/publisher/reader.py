"""The questions that readers ask of a feed, each answered through a connection.

Their signatures are those of a bound feed, which gives each of them its connection.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from sqlalchemy import Connection

from zeroeventhub.errors import (
    BadCursor,
    ConfigurationError,
    Diverged,
    NotFound,
    Unavailable,
)
from zeroeventhub.protocol import (
    FIRST,
    LAST,
    CountedCursor,
    FeedInfo,
    KeyPage,
    Lag,
    Page,
    TypeFilter,
)
from zeroeventhub.publisher.archive_reader import ArchiveReader, SegmentPlace
from zeroeventhub.publisher.checks import Checkup
from zeroeventhub.publisher.cursor import Place
from zeroeventhub.publisher.history import History
from zeroeventhub.publisher.horizon import HorizonMonitor, HorizonReport
from zeroeventhub.publisher.key_query import KeyQuery
from zeroeventhub.publisher.lookups import CountQuery, IdQuery, LagQuery, TimeQuery
from zeroeventhub.publisher.ordering import Horizon, Ordering
from zeroeventhub.publisher.page_query import PageQuery, ReadRequest, Stretch
from zeroeventhub.publisher.progress import Registry
from zeroeventhub.publisher.retention import LowWaterMark, begun_again
from zeroeventhub.publisher.splits import SplitQuery

__all__ = [
    "Queries",
    "Reader",
]


@dataclass(frozen=True)
class Queries:
    """Hold what is asked of a feed's table.

    Attributes:
        pages: reads events.
        times: finds the place of a moment.
        splits: cuts a partition into pieces.
        ids: finds an event.
        lags: counts the events after a place.
        counts: finds the place after so many events.
        keys: reads the events of a key; None where there are no versions.
    """

    pages: PageQuery
    times: TimeQuery
    splits: SplitQuery
    ids: IdQuery
    lags: LagQuery
    counts: CountQuery
    keys: KeyQuery | None = None


QUIET = 1_000
"""How many positions of other partitions pass before a partition without news moves its
checkpoint: often enough to keep up, and seldom enough that consumers hardly write for it."""


class Reader:
    """Read a table's feed through connections on which each statement sees the last commits.

    Args:
        info: what the feed says of itself.
        ordering: knows how far it may be read.
        history: gives cursors and checks them.
        queries: what is asked of the table, and of the archive if there is one.
        checkup: looks at all that the feed relies on.
        registry: counts the consumers that have registered their progress; None where none can.
    """

    def __init__(
        self,
        info: FeedInfo,
        ordering: Ordering,
        history: History,
        queries: Queries,
        checkup: Checkup,
        *,
        registry: Registry | None = None,
    ) -> None:
        self.info = info
        self._ordering = ordering
        self._watch = HorizonMonitor(ordering)
        self._history = history
        self._queries = queries
        self.checks = checkup
        """Look at what the feed relies on, from time to time."""
        self._ends_settled = False
        self._registry = registry

    def described(self, connection: Connection) -> FeedInfo:
        """Describe the feed once the table has been looked at."""
        self.checks.look_if_due(connection)
        return self.info

    @property
    def has_open_digests(self) -> bool:
        """Tell whether everybody can make the digest that a cursor holds of an event."""
        return self._history.has_open_digests

    @property
    def shared_archive(self) -> ArchiveReader:
        """Return the feed's archive, if its files are shared.

        Raises:
            NotFound: they are not.
        """
        archive = self._history.archive
        if archive is None or not archive.is_shared:
            raise NotFound("This feed does not share files of its events.")
        return archive

    def step(self, connection: Connection) -> str | None:
        """Return what has to be committed before the feed is read; see `Ordering.step`."""
        return self._ordering.step(connection)

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
    ) -> list[Page]:
        """Read pages, each from where the one before ends; see `ExtendedFeed.read_pages`."""
        end = _place(stop)
        if cursor == LAST:
            horizon = self._horizon(connection, end)
            here = self._history.cursor_below(connection, horizon.settled)
            return [Page([], here, caught_up=True)]

        def found(start: str) -> list[Page]:
            place = Place.of(start)
            horizon = self._horizon(connection, place, end)
            until = _until(horizon, end)
            request = ReadRequest(partition, place.position, until, limit, count, types, each)
            pages, here = [], start
            for stretch in self._queries.pages.read(connection, request):
                page = self._page(connection, request, here, stretch, horizon=horizon, stop=end)
                pages.append(page)
                here = page.cursor
            # Afterwards, so that no other history can come between the look at it and the pages,
            # or the pages and their checkpoints.
            mark = self._verify(connection, partition, place, end, until)
            if pages[0].cursor == start and place.position < mark.trimmed <= until:
                # Nothing has come here since; a place that has been trimmed is none to stay at.
                pages[0] = replace(pages[0], cursor=mark.earliest)
            if place.position < mark.compacted:
                # What has lost events may lose more.
                pages = [replace(page, full=False) for page in pages]
            return pages

        return self._history.from_first(connection, cursor, found)

    def _page(
        self,
        connection: Connection,
        request: ReadRequest,
        here: str,
        stretch: Stretch,
        *,
        horizon: Horizon,
        stop: Place | None,
    ) -> Page:
        after = Place.of(here).position
        filtered = request.types is not None
        end = self._end(connection, here, after, stretch, filtered=filtered)
        reached = False
        if stop is not None and not stretch.full:
            reached = max(stretch.until, after) >= stop.position
            if reached and after < stop.position:
                end = str(stop)
        events = stretch.events
        return Page(
            events,
            end,
            caught_up=not stretch.full and stretch.until >= horizon.settled,
            stop_reached=reached,
            full=stretch.full and len(events) > 0 and not self._history.is_mutable,
            cursors=self._history.cursors(stretch.positions, events) if request.each else (),
        )

    def vouch(self, connection: Connection, cursors: Collection[str]) -> None:
        """Refuse cursors if history is another one by now; see `ExtendedFeed.vouch`."""
        places = sorted(map(Place.of, cursors), key=lambda place: place.position)
        if not places:
            return
        self._horizon(connection, places[-1])
        # The last of them vouches for all before it, unless those were trimmed.
        last = next((one for one in reversed(places) if one.check), None)
        self._history.verify(connection, Place(places[0].position), last)

    def vouch_in_table(self, connection: Connection, cursor: str) -> None:
        """Refuse a cursor that is not of the table's own history, whatever an archive has.

        Raises:
            Gone: it is of another one.
        """
        self._horizon(connection, Place.of(cursor))
        self._history.vouch_in_table(connection, cursor)

    def head(self, connection: Connection) -> int:
        """Return the horizon; see `ExtendedFeed.head`."""
        return self._horizon(connection).settled

    @property
    def may_glance(self) -> bool:
        """Tell whether the horizon may be asked for in passing, and nothing else need be."""
        return self._watch.may_be_fast and self._ends_settled and not self.checks.are_due

    def glance(self, connection: Connection, seconds: float) -> int:
        """Return the horizon without a transaction; see `FastHorizon`."""
        return self._watch.fast_horizon(connection, seconds).settled

    def horizon(self, connection: Connection) -> HorizonReport:
        """Return how far the feed may be read, since when that is so, and who holds it back."""
        self.checks.look_if_due(connection)
        report = self._watch.report(connection)
        registered = 0 if self._registry is None else self._registry.count(connection)
        return replace(
            report,
            unpublished=self.checks.unpublished,
            longest_event=self._queries.pages.longest,
            registered=registered,
        )

    def cursor_after(self, connection: Connection, position: int) -> str:
        """Return the cursor that stands after a position.

        Args:
            connection: to the feed's database.
            position: 0, or one at or below the horizon; there need not be an event at it.

        Raises:
            BadCursor: it lies above the horizon: events may still appear below it.
        """
        settled = self._horizon(connection).settled
        if not 0 <= position <= settled:
            raise BadCursor(
                f"Position {position} is not one that the feed may be read up to now: those are 0 "
                f"to {settled}."
            )
        return self._history.cursor_below(connection, position)

    def cursor_at(self, connection: Connection, moment: datetime, partition: int = 0) -> str:
        """Return the cursor that stands before all events of a moment or later.

        Args:
            connection: to the feed's database.
            moment: with a time zone, compared with the feed's `time`, or, with the ordering
                sequenced and no `time`, with when an event was given its position.
            partition: one of the feed's.

        Returns:
            The same cursor for the same moment as soon as one event of it or later is settled;
            until then, that of the horizon.

        Raises:
            ConfigurationError: the moment has no zone, or the feed does not know times.
        """
        settled = self._horizon(connection).settled
        position = self._queries.times.position(connection, partition, moment, settled=settled)
        return self._history.cursor_below(connection, position)

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
        ids = self._queries.ids
        try:
            position = ids.position(connection, event_id, partition, until=settled, types=types)
        except BadCursor:
            if not ids.are_positions:
                self._history.refuse_forgotten(connection)
            raise
        self._history.refuse_trimmed(connection, position)
        return self._history.cursor_below(connection, position)

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

        def found(start: str) -> list[str]:
            first, end = Place.of(start), _place(stop)
            settled = self._horizon(connection, first, end).settled
            until = max(settled if end is None else end.position, first.position)
            positions = self._queries.splits.positions(
                connection, partition, count=count, after=first.position, until=until
            )
            inner = [self._history.cursor_below(connection, at) for at in positions[1:-1]]
            last = stop if end and end.position > first.position else None
            if last is None:
                last = self._history.cursor_below(connection, positions[-1])
                if Place.of(last).position <= first.position:
                    last = start
            # Afterwards, as with a page.
            self._history.verify(connection, first, end, partition=partition)
            return [*dict.fromkeys([start, *inner]), last]

        return self._history.from_first(connection, start, found)

    def lag(self, connection: Connection, partition: int, cursor: str) -> Lag:
        """Count the settled events that follow a cursor; see `ExtendedFeed.lag`.

        It stops at a million, with the ordering sequenced at a hundred thousand. How long ago the
        first of them happened is known by the feed's `time`, or, with that ordering and no `time`,
        by when it was given its position.
        """
        if cursor == LAST:
            self._horizon(connection)
            return Lag(0, 0.0)

        def found(cursor: str) -> Lag:
            place = Place.of(cursor)
            until = self._horizon(connection, place).settled
            lag = self._queries.lags.count(connection, partition, after=place.position, until=until)
            # Afterwards, as with a page.
            self._history.verify(connection, place, partition=partition)
            return lag

        return self._history.from_first(connection, cursor, found)

    def cursor_of_count(
        self,
        connection: Connection,
        partition: int,
        cursor: str,
        events: int,
        *,
        stop: str | None = None,
    ) -> CountedCursor:
        """Return the cursor after so many events; see `ExtendedFeed.cursor_of_count`."""

        def counted(cursor: str) -> CountedCursor:
            place, end = Place.of(cursor), _place(stop)
            until = _until(self._horizon(connection, place, end), end)
            position, found = self._queries.counts.find(
                connection, partition, events, after=place.position, until=until
            )
            ends = found < events or position == until
            if not found:
                last = str(place)
            elif end is not None and ends and until == end.position:
                last = str(end)
            else:
                last = self._history.cursor_below(connection, position)
            # Afterwards, as with a page.
            self._verify(connection, partition, place, end, until)
            return CountedCursor(last, found)

        return self._history.from_first(connection, cursor, counted)

    def segments(
        self, connection: Connection, partition: int, cursor: str, stop: str | None
    ) -> tuple[str, list[SegmentPlace]]:
        """Return where the events between two places begin, and the archive's files with them."""
        archive = self.shared_archive

        def found(start: str) -> tuple[str, list[SegmentPlace]]:
            place, end = Place.of(start), _place(stop)
            until = _until(self._horizon(connection, place, end), end)
            files = archive.files(place.position, until, end)
            # Where the last segment ends as the table's history says, all before it is the table's.
            last = Place.of(files[-1].segment.last) if files else None
            self._history.verify(connection, place, end, last, partition=partition)
            return start, files

        return self._history.from_first(connection, cursor, found)

    def read_key(
        self,
        connection: Connection,
        key: str,
        after_version: int,
        limit: int,
        *,
        partitions: Collection[int] | None = None,
    ) -> KeyPage:
        """Read events of a key, settled or not; see `ExtendedFeed.read_key`."""
        if self._queries.keys is None:
            raise ConfigurationError("This feed has no versions: give its TableFeed a `version`.")
        self.checks.look_if_due(connection)
        return self._queries.keys.read(connection, key, after_version, limit, partitions)

    def _horizon(self, connection: Connection, *places: Place | None) -> Horizon:
        """Return the horizon.

        Raises:
            Diverged: a place lies beyond all that there is.
        """
        self.checks.look_if_due(connection)
        horizon = self._watch.read(connection)
        if not self._ends_settled:
            # Once is enough: nothing is added to what is closed.
            self._queries.pages.await_ends(connection, settled=horizon.settled)
            self._ends_settled = True
        if any(place is not None and place.position > horizon.highest for place in places):
            raise Diverged(
                "The cursor lies beyond the last event of this feed: it was given for another "
                "history, such as the one before a backup was restored."
            )
        return horizon

    def _verify(
        self, connection: Connection, partition: int, place: Place, stop: Place | None, until: int
    ) -> LowWaterMark:
        """Refuse what was read from a place, if it is not what follows it; return the mark."""
        mark = self._history.verify(connection, place, stop, partition=partition)
        gone = max(mark.trimmed, mark.moved)
        if place.position > gone:
            return mark
        # No row vouches for what was read: there may be another one of its number by now.
        highest = self._ordering.horizon(connection).highest
        if highest < gone:
            raise begun_again(gone)
        if highest < until:
            raise Unavailable("The table was emptied while it was read.", retry_after=1)
        return mark

    def _end(
        self, connection: Connection, here: str, after: int, stretch: Stretch, *, filtered: bool
    ) -> str:
        """Choose the checkpoint of a page: it stands after an event, of any partition."""
        last, until = stretch.last, stretch.until
        if last is not None:
            here, after = self._history.cursor(*last), last[0]
        quiet = self._queries.pages.others and until - after >= QUIET
        if stretch.full or until <= after or not (filtered or quiet):
            return here
        below = self._history.cursor_below(connection, until)
        return below if Place.of(below).position > after else here


def _place(cursor: str | None) -> Place | None:
    return None if cursor is None else Place.of(cursor)


def _until(horizon: Horizon, stop: Place | None) -> int:
    """Return the position up to which events are read."""
    return horizon.settled if stop is None else min(horizon.settled, stop.position)
