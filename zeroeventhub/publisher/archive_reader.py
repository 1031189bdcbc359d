"""Read the events at or below a boundary from a feed's archive instead of its table.

A query on a feed holds one of the host's database connections, and must not fetch from the archive
while it does. If it needs a part of the archive that is not in memory, it raises `ArchiveMiss`; the
caller returns the connection, fetches the part, and runs the query again.
"""

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Connection

from zeroeventhub.errors import ConfigurationError, Trimmed, Unavailable
from zeroeventhub.feed import ArchiveMiss
from zeroeventhub.protocol import SegmentPart, Segments, TypeFilter
from zeroeventhub.publisher.cursor import Place
from zeroeventhub.publisher.rows import ReadRequest, Row, Stretch

if TYPE_CHECKING:
    from zeroeventhub.archive.archive import Archive
    from zeroeventhub.archive.group import Footer, Group, Places
    from zeroeventhub.archive.manifest import GroupEntry, Manifest, Segment

SEGMENTS = 64
"""Segments that one query reads at most; it uses only the sizes of further ones."""

GROUPS = 16
"""Row groups that are searched for an id, at most."""

FETCHES = 4
"""Footers that are fetched at a time."""

FILES = 100
"""Files that one answer names, at most."""

FRESH = 1.0
"""Seconds for which the lag of the archive is measured by the manifest that is in memory."""


class GroupPlace(NamedTuple):
    """A row group: its segment, its number within the segment, and its description."""

    segment: "Segment"
    number: int
    entry: "GroupEntry"


class SegmentPlace(NamedTuple):
    """The events of a segment in (after, upto], and the cursor at `upto`."""

    segment: "Segment"
    after: int
    upto: int
    cursor: str


class Span(NamedTuple):
    """Two positions, and an estimate of the number of rows between them."""

    low: int
    high: int
    rows: float


class ArchiveReader:
    """Find events in the parts of an archive in memory; `ArchiveMiss` names a part to fetch.

    `feed` is the digest by which the archive identifies the feed.
    """

    def __init__(self, archive: "Archive", feed: str, partitions: Collection[int]) -> None:
        self.archive = archive
        self._partitions = partitions
        self._reached = 0
        self._looked_at = -inf
        self._looked_for = 0
        # Each query has its own connection, and keeps one boundary although `reach` may move it.
        self._boundaries: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()
        self.feed = feed

    def look(self) -> "Manifest":
        """Fetch the manifest from the archive's store; refuse the archive of another feed."""
        manifest = self.archive.look()
        self.archive.expect(self.feed)
        return manifest

    def boundary(self, connection: Connection) -> int:
        """Return the position up to which the query of a connection reads the archive."""
        return self._boundaries.setdefault(connection, self._reached)

    def sealed(self) -> int:
        """Return the end of the archive as of a second ago, or as far as it is known."""
        if monotonic() - self._looked_at > FRESH:
            raise ArchiveMiss(self._look)
        return self.archive.manifest.sealed

    def _look(self) -> None:
        with suppress(Unavailable):
            self.archive.look()
        self._looked_at = monotonic()

    def has_lost(self, connection: Connection, trimmed: int, position: int) -> bool:
        """Return whether events from a position on were trimmed and are not in the archive.

        If the archive has them, ArchiveMiss makes the query run again, and read them there.
        """
        boundary = self.boundary(connection)
        if trimmed < boundary:
            # After a restored backup, the table may have other events below the boundary.
            raise ArchiveMiss(partial(self.reach, trimmed))
        if trimmed == boundary or position > trimmed:
            return False
        if not self.holds(trimmed):
            return True
        raise ArchiveMiss(partial(self.reach, trimmed))

    def holds(self, position: int) -> bool:
        """Return whether the archive has all events up to a position that was trimmed.

        They are sealed before they are trimmed: a manifest without them may be an old one.
        """
        if self.archive.manifest.sealed >= position:
            return True
        if position > self._looked_for or self.archive.is_stale:
            raise ArchiveMiss(partial(self._look_for, position))
        if not self.archive.manifest.segments:
            self.expect_sealed(position)
        return False

    def expect_sealed(self, position: int) -> None:
        """Refuse an archive that lacks events that were trimmed, or is another feed's."""
        self.archive.expect(self.feed)
        if (sealed := self.archive.manifest.sealed) < position:
            raise ConfigurationError(
                f"The table was trimmed up to {position}, and the archive has no events after "
                f"{sealed}: its folder is not mounted, or another archive has what was trimmed: "
                "restore it first."
            )

    def _look_for(self, position: int) -> None:
        self.archive.look()
        self._looked_for = position

    def reach(self, position: int) -> None:
        """Let later queries read the archive up to a position."""
        self._reached = position

    def cursor_at_end(self, position: int) -> str | None:
        """Return the cursor after the last event of a segment, if it ends at a position."""
        known = self._known()
        following = known.segments[known.at(position) :]
        ends = following and following[0].upto == position
        return following[0].last if ends else None

    def segments(self, after: int, until: int) -> list["Segment"]:
        """Return the segments that overlap the positions in (after, until], in order."""
        if after >= until:
            return []
        known = self._known()
        return [*known.segments[known.at(after + 1) : known.at(until) + 1]]

    def groups(self, partition: int | None, after: int, until: int) -> Iterator[GroupPlace]:
        """Yield the row groups that overlap (after, until], of one partition or of all."""
        segments = self.segments(after, until)
        for read, segment in enumerate(segments):
            try:
                footer = self._footer(segment)
            except ArchiveMiss:
                # As many at once as were read before: a query runs again for each fetch.
                ahead = segments[read : read + min(max(1, read), SEGMENTS)]
                raise ArchiveMiss(partial(self._load_footers, ahead)) from None
            everything = range(len(footer.entries))
            for number in everything if partition is None else footer.groups.get(partition, ()):
                entry = footer.entries[number]
                if entry.last > after and entry.first <= until:
                    yield GroupPlace(segment, number, entry)

    def group(self, place: GroupPlace) -> "Group":
        """Return a row group; raise ArchiveMiss if it has to be fetched."""
        group: Group = self._part(place.segment, place.number)
        return group

    def row_at(self, position: int) -> Row | None:
        """Return the row at a position up to the boundary, in any partition."""
        (segment,) = self.segments(position - 1, position)
        footer = self._footer(segment)
        # After a page has been read, its last row is wanted, and that row's group is in memory.
        for number, entry in enumerate(footer.entries):
            if entry.first <= position <= entry.last:
                held: Group | None = self.archive.held(segment, number)
                if held is not None and (index := held.at(position)) is not None:
                    return position, held.event(index)
        row = self._row_below(segment, footer, position)
        return row if row is not None and row[0] == position else None

    def row_below(self, position: int) -> Row | None:
        """Return the last row at or below a position, in any partition."""
        known = self._known()
        for segment in reversed(known.segments[: known.at(position) + 1]):
            row = self._row_below(segment, self._footer(segment), position)
            if row is not None:
                return row
        return None

    def _row_below(self, segment: "Segment", footer: "Footer", position: int) -> Row | None:
        if len(footer.groups) > 1:
            places: Places = self._part(segment, "places")
            found = places.below(position)
            if found is None:
                return None
            position, partition = found
        else:
            (partition,) = footer.groups
        numbers = footer.groups.get(partition, ())
        below = [number for number in numbers if footer.entries[number].first <= position]
        if not below:
            return None
        group: Group = self._part(segment, below[-1])
        index = group.above(position) - 1
        return group.positions[index], group.event(index)

    def _known(self) -> "Manifest":
        """Return the manifest; refuse one of another feed, and raise ArchiveMiss for an old one."""
        if self.archive.is_stale:
            raise ArchiveMiss(self.archive.refresh)
        self.archive.expect(self.feed)
        return self.archive.manifest

    def _part(self, segment: "Segment", part: str | int) -> Any:
        """Return a part of a segment; raise ArchiveMiss if it has to be fetched."""
        found = self.archive.held(segment, part)
        if found is None:
            raise ArchiveMiss(partial(self.archive.load, segment, part))
        return found

    def _footer(self, segment: "Segment") -> "Footer":
        """Return the index of a segment; refuse one with a partition that this process lacks."""
        found: Footer = self._part(segment, "footer")
        if strays := [one for one in found.groups if one not in self._partitions]:
            raise ConfigurationError(
                f"The archive has events of partition {strays[0]}, which this process does not "
                "know: the feed was split. Give it the new layout; an ArchiveFeed finds that in "
                "the archive when it is restarted."
            )
        return found

    def _load_footers(self, segments: Sequence["Segment"]) -> list["Footer"]:
        with ThreadPoolExecutor(FETCHES) as pool:
            return [*pool.map(partial(self.archive.load, part="footer"), segments)]

    def pages(
        self, connection: Connection, request: ReadRequest, *, room: int, window: int
    ) -> tuple[list[Stretch], Stretch | None, int, int]:
        """Read pages; each ends where it would end if the table had all of its events.

        A page has `room` bytes, though a single larger event still gets its page, and examines
        `window` rows at most to find events of the requested types. It ends earlier if the next
        segments, `SEGMENTS` of them, do not fill it. There are fewer pages if the archive misses a
        part of a later one.

        Returns:
            The complete pages; the beginning of the next page, which the table continues, or None
            if no page is needed from the table; the position after which the table is read; and
            the rows examined for that beginning, if types are filtered.
        """
        boundary = self.boundary(connection)
        after, end, pages = request.after, min(boundary, request.until), list[Stretch]()
        while after < end:
            page = _PageReader(request, room, window, Stretch(request.until))
            try:
                last = self.segments(after, end)[:SEGMENTS][-1]
                for place in self.groups(request.partition, after, min(last.upto, end)):
                    group = self.group(place)
                    page.take(group, group.above(after), group.above(end))
                    if page.is_done:
                        break
            except ArchiveMiss:
                if pages:  # they would all be read again
                    return pages, None, after, 0
                raise
            found = page.stretch
            if not page.is_done and last.upto < end:
                found.until = last.upto
            if not page.is_done and found.until > boundary:
                return pages, found, boundary, page.examined
            pages.append(found)
            if not found.full or found.last is None or len(pages) == request.count:
                return pages, None, after, 0
            after = found.last[0]
        return pages, Stretch(request.until), after, 0

    def count(self, partition: int, after: int, end: int, events: int) -> tuple[int, int]:
        """Return the position of the last of `events` events in (after, end], and the count."""
        position, found = after, 0
        for place in self.groups(partition, after, end):
            entry, left = place.entry, events - found
            is_inside = after < entry.first and entry.last <= end
            if is_inside and entry.places == entry.events < left:
                position, found = entry.last, found + entry.events
                continue
            group = self.group(place)
            start, stop = group.above(after), group.above(end)
            if count := min(group.count(start, stop), left):
                position, found = group.positions[group.index_of(start, count)], found + count
            if found == events:
                break
        return position, found

    def measure(
        self, partition: int, after: int, end: int, most: int
    ) -> tuple[int, int, datetime | None]:
        """Count places and events in (after, end], until the places are more than `most`.

        Returns:
            Both counts, and the time of the first event.
        """
        places, events = 0, 0
        first: datetime | None = None
        for place in self.groups(partition, after, end):
            group = None
            start, stop = 0, place.entry.places
            if not events or place.entry.last > end:
                group = self.group(place)
                start, stop = group.above(after), group.above(end)
            count = place.entry.events if group is None else group.count(start, stop)
            if group is not None and count and not events:
                first = group.time(group.index_of(start, 1))
            places, events = places + stop - start, events + count
            if places > most:
                break
        return places, events, first

    def first_since(self, partition: int | None, moment: datetime, end: int) -> int | None:
        """Return the first position, up to `end`, of an event of a moment or later."""
        for segment in self.segments(0, end):
            if segment.latest is None or segment.latest < moment:
                continue
            found: list[int] = []
            for place in self.groups(partition, segment.after, min(segment.upto, end)):
                if place.entry.latest is not None and place.entry.latest >= moment:
                    group = self.group(place)
                    index = group.first_since(moment)
                    if index is not None and group.positions[index] <= end:
                        found.append(group.positions[index])
            if found:
                return min(found)
        return None

    def last_of(
        self, event_id: str, partition: int, end: int, types: TypeFilter | None
    ) -> int | None:
        """Return the position of the last event with an id; Trimmed if it may be too far back."""
        searched = 0
        segments = self.segments(0, end)
        for segment in reversed(segments[-SEGMENTS:]):
            places = [*self.groups(partition, segment.after, min(segment.upto, end))]
            for place in reversed(places):
                entry = place.entry
                if entry.lowest is None or not entry.lowest <= event_id <= (entry.highest or ""):
                    continue
                if searched == GROUPS:
                    raise _too_far()
                searched += 1
                group = self.group(place)
                allowed = None if types is None else group.of_types(types)
                index = group.last_of(event_id, allowed)
                if index is not None and group.positions[index] <= end:
                    return group.positions[index]
        if len(segments) > SEGMENTS:
            raise _too_far()
        return None

    def spans(self, partition: int, after: int, end: int) -> list[Span]:
        """Return the number of rows by row group, or by segment if the segments are many."""
        segments = self.segments(after, end)
        if len(segments) > SEGMENTS:
            partitions = len(self._partitions)
            return [
                Span(one.after, min(one.upto, end), one.places / partitions) for one in segments
            ]
        spans = []
        for place in self.groups(partition, after, end):
            entry = place.entry
            rows, last = entry.places, entry.last
            if entry.first <= after or entry.last > end:
                group = self.group(place)
                start, stop = group.above(after), group.above(end)
                rows, last = stop - start, group.positions[stop - 1]
            if rows:
                spans.append(Span(max(entry.first - 1, after), last, rows))
        return spans

    def positions(self, partition: int, after: int, end: int) -> list[int]:
        """Return the positions of a partition's rows."""
        found = list[int]()
        for place in self.groups(partition, after, end):
            group = self.group(place)
            found += group.positions[group.above(after) : group.above(end)]
        return found

    def files(self, after: int, until: int, stop: Place | None) -> list[SegmentPlace]:
        """Return the first files of the events in (after, until], which may end at a cursor."""
        found = []
        for segment in self.segments(after, until)[:FILES]:
            low, high = max(segment.after, after), min(segment.upto, until)
            cursor = str(Place(high))
            if stop is not None and high == stop.position:
                cursor = str(stop)
            elif high == segment.upto and Place.of(segment.last).position == high:
                cursor = segment.last
            found.append(SegmentPlace(segment, low, high, cursor))
        return found

    def with_urls(self, start: str, files: list[SegmentPlace]) -> Segments:
        """Return the files' URLs and their end; the store may have to sign each URL."""
        url = self.archive.url
        parts = tuple(
            SegmentPart(url(one.segment), one.segment.size, one.after, one.upto, one.cursor)
            for one in files
        )
        return Segments(parts, files[-1].cursor if files else start)


@dataclass
class _PageReader:
    """Read a page, the stretch, from row groups, one after the other."""

    request: ReadRequest
    room: int
    window: int
    stretch: Stretch
    examined: int = 0  # the rows examined, if types are filtered
    is_done: bool = False

    def take(self, group: "Group", start: int, stop: int) -> None:
        """Add the rows of a group that have the requested types."""
        types = self.request.types
        if types is None:
            self._take(group, range(start, stop))
            return
        # A filtered page that finds few events must still end: it examines `window` rows at most.
        stop = min(stop, start + self.window - self.examined)
        self.examined += stop - start
        is_seen = self.examined == self.window
        if is_seen:
            self.stretch.until = group.positions[stop - 1]
        self._take(group, [one for one in group.of_types(types) if start <= one < stop])
        self.is_done = self.is_done or is_seen

    def _take(self, group: "Group", rows: Sequence[int]) -> None:
        """Add rows of a group, as many as the page has room for."""
        stretch, limit = self.stretch, self.request.limit
        taken = rows[: limit - stretch.rows]
        fitting = group.fitting(taken, self.room - stretch.size)
        if fitting < len(taken):
            if not stretch.parts and not any(map(group.has_event, taken[:fitting])):
                fitting += 1  # The first event of a page always fits.
            taken = taken[:fitting]
            stretch.full = self.is_done = True
        if not taken:
            return
        stretch.rows += len(taken)
        last = taken[-1]
        stretch.last = group.positions[last], group.event(last)
        events, size = group.events(taken)
        if events:
            stretch.parts.append(events)
            stretch.size += size
        if self.request.each:
            with_event = (row for row in taken if group.is_whole or group.has_event(row))
            stretch.positions += [group.positions[row] for row in with_event]
        if self.is_done or stretch.rows == limit:
            stretch.full, self.is_done = stretch.last[0] < stretch.until, True


def _too_far() -> Trimmed:
    return Trimmed(
        "The event of this id, if there is one, lies too far back in the archive to be looked "
        "for: read on from a cursor."
    )
