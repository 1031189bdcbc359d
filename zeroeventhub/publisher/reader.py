"""What the sync and the async feed do once there is a connection."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from sqlalchemy import Connection

from zeroeventhub.errors import (
    BadCursor,
    ConfigurationError,
    Diverged,
    Unavailable,
)
from zeroeventhub.protocol import (
    LAST,
    CountedCursor,
    FeedInfo,
    KeyPage,
    Lag,
    Page,
    TypeFilter,
)
from zeroeventhub.publisher.checks import Checks, Checkup
from zeroeventhub.publisher.cursor import Place
from zeroeventhub.publisher.history import History
from zeroeventhub.publisher.horizon import HorizonReport, HorizonWatch
from zeroeventhub.publisher.key_query import KeyQuery
from zeroeventhub.publisher.lookups import CountQuery, IdQuery, LagQuery, TimeQuery
from zeroeventhub.publisher.ordering import Horizon, Ordering
from zeroeventhub.publisher.page_query import PageQuery, Stretch
from zeroeventhub.publisher.retention import Mark, begun_again
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
        lags: counts the events behind a place.
        counts: finds the place behind so many events.
        keys: reads the events of a key; None where there are no versions.
    """

    pages: PageQuery
    times: TimeQuery
    splits: SplitQuery
    ids: IdQuery
    lags: LagQuery
    counts: CountQuery
    keys: KeyQuery | None = None


@dataclass(frozen=True)
class Wanted:
    """Say what pages are to hold.

    Attributes:
        partition: the one to read.
        limit: how many events a page may have.
        types: which events; None for all.
        stop: where to stop; None for the horizon.
        each: whether the cursor behind each event is wanted.
    """

    partition: int
    limit: int
    types: TypeFilter | None
    stop: Place | None
    each: bool = field(kw_only=True)

    def until(self, horizon: Horizon) -> int:
        """Return the position behind which nothing is read."""
        return horizon.settled if self.stop is None else min(horizon.settled, self.stop.position)


QUIET = 1_000
"""How many positions of other partitions pass before a partition without news moves its
checkpoint: often enough to keep up, and seldom enough that consumers hardly write for it."""


class Reader:
    """Read a table's feed through connections on which each statement sees the last commits.

    Args:
        info: what the feed says of itself.
        ordering: knows how far it may be read.
        history: gives cursors and checks them.
        queries: what is asked of the table.
        checkup: looks at all that the feed relies on.
    """

    def __init__(
        self,
        info: FeedInfo,
        ordering: Ordering,
        history: History,
        queries: Queries,
        checkup: Checkup,
    ) -> None:
        self.info = info
        self._ordering = ordering
        self._watch = HorizonWatch(ordering)
        self._history = history
        self._queries = queries
        self.checks = Checks(checkup)
        """Look at what the feed relies on, from time to time."""
        self._ends_settled = False
        self.count_registered: Callable[[Connection], int] | None = None
        """Count the consumers that say how far they have come, where that is kept."""

    def described(self, connection: Connection) -> FeedInfo:
        """Describe the feed once the table has been looked at."""
        self.checks.look_if_due(connection)
        return self.info

    @property
    def has_open_digests(self) -> bool:
        """Tell whether everybody can make the digest that a cursor holds of an event."""
        return self._history.has_open_digests

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
        """Read pages, one behind the other; see `ExtendedFeed.read_pages`."""
        stop_place = None if stop is None else Place.of(stop)
        if cursor == LAST:
            horizon = self._horizon(connection)
            self._refuse_beyond(horizon, stop_place)
            here = self._history.cursor_below(connection, horizon.settled)
            return [Page([], here, caught_up=True)]
        wanted = Wanted(partition, limit, types, stop_place, each=each)
        return self._history.from_first(
            connection, cursor, partial(self._pages, connection, wanted, count)
        )

    def _pages(self, connection: Connection, wanted: Wanted, count: int, start: str) -> list[Page]:
        place = Place.of(start)
        horizon = self._horizon(connection)
        self._refuse_beyond(horizon, place, wanted.stop)
        until = wanted.until(horizon)
        pages, here = [], start
        for stretch in self._queries.pages.read(
            connection,
            wanted.partition,
            after=place.position,
            until=until,
            limit=wanted.limit,
            count=count,
            types=wanted.types,
            each=wanted.each,
        ):
            pages.append(self._page(connection, wanted, here, stretch, horizon))
            here = pages[-1].cursor
        # Afterwards, so that no other history can come between the look at it and the pages, or
        # the pages and their checkpoints.
        mark = self._verify(connection, wanted.partition, place, wanted.stop, until)
        if pages[0].cursor == start and place.position < mark.trimmed <= until:
            # Nothing has come here since; the place that has been trimmed is not one to stay at.
            pages[0] = replace(pages[0], cursor=mark.earliest)
        if place.position < mark.compacted:
            # What has lost events may lose more.
            pages = [replace(page, full=False) for page in pages]
        return pages

    def _page(
        self, connection: Connection, wanted: Wanted, here: str, stretch: Stretch, horizon: Horizon
    ) -> Page:
        after, stop = Place.of(here).position, wanted.stop
        filtered = wanted.types is not None
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
            cursors=self._history.cursors(stretch.positions, events) if wanted.each else (),
        )

    def vouch(self, connection: Connection, cursors: Collection[str]) -> None:
        """Refuse cursors if history is another one by now; see `ExtendedFeed.vouch`."""
        places = sorted(map(Place.of, cursors), key=lambda place: place.position)
        if not places:
            return
        self._refuse_beyond(self._horizon(connection), places[-1])
        # The last of them vouches for all before it, unless those were trimmed.
        last = next((one for one in reversed(places) if one.check), None)
        self._history.verify(connection, Place(places[0].position), last)

    def vouch_in_table(self, connection: Connection, cursor: str) -> None:
        """Refuse a cursor that is not of the table's own history, whatever an archive has.

        Raises:
            Gone: it is of another one.
        """
        self._refuse_beyond(self._horizon(connection), Place.of(cursor))
        self._history.vouch_in_table(connection, cursor)

    def settled(self, connection: Connection, *places: Place | None) -> int:
        """Return the horizon.

        Raises:
            Diverged: a place lies beyond all that there is.
        """
        horizon = self._horizon(connection)
        self._refuse_beyond(horizon, *places)
        return horizon.settled

    def head(self, connection: Connection) -> int:
        """Return the horizon; see `ExtendedFeed.head`."""
        return self._horizon(connection).settled

    @property
    def may_glance(self) -> bool:
        """Tell whether the horizon may be asked for in passing, and nothing else need be."""
        return self._watch.may_glance and self._ends_settled and not self.checks.are_due

    def glance(self, connection: Connection, seconds: float) -> int:
        """Return the horizon in passing; see `Glancing`."""
        return self._watch.glance(connection, seconds).settled

    def horizon(self, connection: Connection) -> HorizonReport:
        """Tell how far the feed may be read, and who holds it back; see `BoundFeed.horizon`."""
        self.checks.look_if_due(connection)
        report = self._watch.report(connection)
        longest = self._queries.pages.longest
        registered = 0 if self.count_registered is None else self.count_registered(connection)
        return replace(
            report,
            unpublished=self.checks.unpublished,
            longest_event=longest,
            registered=registered,
        )

    def cursor_after(self, connection: Connection, position: int) -> str:
        """Return the cursor after a position that is settled."""
        settled = self._horizon(connection).settled
        if not 0 <= position <= settled:
            raise BadCursor(
                f"Position {position} is not one that the feed may be read up to now: those are 0 "
                f"to {settled}."
            )
        return self._history.cursor_below(connection, position)

    def cursor_at(self, connection: Connection, moment: datetime, partition: int) -> str:
        """Return the cursor before the first event of a moment or later."""
        settled = self._horizon(connection).settled
        position = self._queries.times.position(connection, partition, moment, settled=settled)
        return self._history.cursor_below(connection, position)

    def cursor_of(
        self,
        connection: Connection,
        event_id: str,
        partition: int,
        *,
        types: TypeFilter | None = None,
    ) -> str:
        """Return the cursor behind the event of an id, if it is of these types."""
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
        self, connection: Connection, partition: int, count: int, start: str, stop: str | None
    ) -> list[str]:
        """Return the cursors between the pieces of a partition; see `ExtendedFeed.splits`."""
        return self._history.from_first(
            connection, start, partial(self._splits, connection, partition, count, stop)
        )

    def _splits(
        self, connection: Connection, partition: int, count: int, stop: str | None, start: str
    ) -> list[str]:
        first = Place.of(start)
        stop_place = None if stop is None else Place.of(stop)
        horizon = self._horizon(connection)
        self._refuse_beyond(horizon, first, stop_place)
        until = horizon.settled if stop_place is None else stop_place.position
        positions = self._queries.splits.positions(
            connection,
            partition,
            count=count,
            after=first.position,
            until=max(until, first.position),
        )
        inner = [self._history.cursor_below(connection, at) for at in positions[1:-1]]
        last = stop if stop_place and stop_place.position > first.position else None
        if last is None:
            last = self._history.cursor_below(connection, positions[-1])
            if Place.of(last).position <= first.position:
                last = start
        # Afterwards, as with a page.
        self._history.verify(connection, first, stop_place, partition=partition)
        return [*dict.fromkeys([start, *inner]), last]

    def lag(self, connection: Connection, partition: int, cursor: str) -> Lag:
        """Count the events behind a cursor, up to the horizon; see `ExtendedFeed.lag`."""
        if cursor == LAST:
            self._horizon(connection)
            return Lag(0, 0.0)
        return self._history.from_first(
            connection, cursor, partial(self._lag, connection, partition)
        )

    def _lag(self, connection: Connection, partition: int, cursor: str) -> Lag:
        place = Place.of(cursor)
        horizon = self._horizon(connection)
        self._refuse_beyond(horizon, place)
        found = self._queries.lags.count(
            connection, partition, after=place.position, until=horizon.settled
        )
        # Afterwards, as with a page.
        self._history.verify(connection, place, partition=partition)
        return found

    def cursor_of_count(
        self, connection: Connection, partition: int, cursor: str, events: int, stop: str | None
    ) -> CountedCursor:
        """Return the cursor behind so many events; see `ExtendedFeed.cursor_of_count`."""
        return self._history.from_first(
            connection, cursor, partial(self._count, connection, partition, events, stop)
        )

    def _count(
        self, connection: Connection, partition: int, events: int, stop: str | None, cursor: str
    ) -> CountedCursor:
        place = Place.of(cursor)
        stop_place = None if stop is None else Place.of(stop)
        horizon = self._horizon(connection)
        self._refuse_beyond(horizon, place, stop_place)
        until = horizon.settled
        if stop_place is not None:
            until = min(until, stop_place.position)
        position, found = self._queries.counts.find(
            connection, partition, events, after=place.position, until=until
        )
        ends = found < events or position == until
        if not found:
            end = str(place)
        elif stop_place is not None and ends and until == stop_place.position:
            end = str(stop_place)
        else:
            end = self._history.cursor_below(connection, position)
        # Afterwards, as with a page.
        self._verify(connection, partition, place, stop_place, until)
        return CountedCursor(end, found)

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

    def _horizon(self, connection: Connection) -> Horizon:
        self.checks.look_if_due(connection)
        horizon = self._watch.read(connection)
        if not self._ends_settled:
            # Once is enough: nothing is added to what is closed.
            self._queries.pages.await_ends(connection, settled=horizon.settled)
            self._ends_settled = True
        return horizon

    def _verify(
        self, connection: Connection, partition: int, place: Place, stop: Place | None, until: int
    ) -> Mark:
        """Refuse what was read from a place, if it is not what lies behind it; return the mark."""
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

    @staticmethod
    def _refuse_beyond(horizon: Horizon, *places: Place | None) -> None:
        if any(place is not None and place.position > horizon.highest for place in places):
            raise Diverged(
                "The cursor lies beyond the last event of this feed: it was given for another "
                "history, such as the one before a backup was restored."
            )

    def _end(
        self, connection: Connection, here: str, after: int, stretch: Stretch, *, filtered: bool
    ) -> str:
        """Choose the checkpoint of a page: it stands behind an event, of any partition."""
        last, until = stretch.last, stretch.until
        if last is not None:
            here, after = self._history.cursor(*last), last[0]
        quiet = self._queries.pages.others and until - after >= QUIET
        if stretch.full or until <= after or not (filtered or quiet):
            return here
        below = self._history.cursor_below(connection, until)
        return below if Place.of(below).position > after else here
