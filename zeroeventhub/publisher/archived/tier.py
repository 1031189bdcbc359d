"""The archive as the readers of a feed see it: the events at or below a boundary."""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from sqlalchemy import Connection

from zeroeventhub.at_hand import NotAtHand
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.publisher.rows import Row

if TYPE_CHECKING:
    from zeroeventhub.archive.archive import Archive
    from zeroeventhub.archive.group import Footer, Group
    from zeroeventhub.archive.manifest import GroupEntry, Manifest, Segment

__all__ = ["GroupPlace", "Tier"]


class GroupPlace(NamedTuple):
    """Say where a row group is.

    Attributes:
        segment: it is in this one.
        footer: that segment's index.
        number: the group's, there.
        entry: describes it.
    """

    segment: "Segment"
    footer: "Footer"
    number: int
    entry: "GroupEntry"


class Tier:
    """Find events in an archive, of what is at hand; all else is asked for by `NotAtHand`.

    Args:
        archive: holds them.
        feed: the digest by which the archive knows the feed.
        partitions: those that events may be in.
    """

    def __init__(self, archive: "Archive", feed: str, partitions: Collection[int]) -> None:
        self.archive = archive
        self._partitions = partitions
        self._reached = 0
        # A question has a connection of its own, and one boundary.
        self._boundaries: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()
        self.feed = feed

    @property
    def erases(self) -> bool:
        """Tell whether events may be erased after they were published."""
        return self.archive.erasable

    def boundary(self, connection: Connection) -> int:
        """Return the position up to which a question is answered from the archive.

        Args:
            connection: that of the question.
        """
        return self._boundaries.setdefault(connection, self._reached)

    def has_lost(self, connection: Connection, trimmed: int, position: int) -> bool:
        """Tell whether events are gone that a question has looked for.

        Args:
            connection: that of the question.
            trimmed: the position up to which the table has been trimmed by now.
            position: the lowest one that was asked about.

        Raises:
            NotAtHand: they are in the archive: ask again, and they are looked for there.
        """
        if trimmed <= self.boundary(connection) or position > trimmed:
            return False
        if not self.holds(trimmed):
            return True
        raise NotAtHand(partial(self.reach, trimmed))

    def holds(self, position: int) -> bool:
        """Tell whether the archive is known to have all up to a position.

        Raises:
            NotAtHand: there may be a newer manifest, which has it.
        """
        if self.archive.manifest.sealed >= position:
            return True
        if self.archive.is_stale:
            raise NotAtHand(self.archive.look)
        return False

    def reach(self, position: int) -> None:
        """Let later questions be answered from the archive up to a position."""
        self._reached = max(self._reached, position)

    def cursor_at_end(self, position: int) -> str | None:
        """Return the cursor behind the last event of a segment, if it ends at a position."""
        known = self._known()
        index = known.at(position)
        ends = index < len(known.segments) and known.segments[index].upto == position
        return known.segments[index].last if ends else None

    def segments(self, after: int, until: int) -> list["Segment"]:
        """Return the segments that have positions above one and not above another, in order."""
        found = []
        for segment in self._segments(after):
            if segment.after >= until:
                break
            found.append(segment)
        return found

    def groups(
        self,
        partition: int | None,
        after: int,
        until: int,
        wanted: Callable[["Segment"], bool] = lambda _segment: True,
    ) -> Iterator[GroupPlace]:
        """Yield the row groups of a partition that have places above one and not above another.

        Args:
            partition: the partition; None for all of them, one behind the other in each segment.
            after: a position.
            until: another.
            wanted: tells which segments are looked into.
        """
        for segment in self._segments(after):
            if segment.after >= until:
                return
            if not wanted(segment):
                continue
            footer = self._footer(segment)
            if partition is None:
                numbers: Iterable[int] = range(len(footer.entries))
            else:
                numbers = footer.groups(partition)
            for number in numbers:
                entry = footer.entries[number]
                if entry.last > after and entry.first <= until:
                    yield GroupPlace(segment, footer, number, entry)

    def group(self, place: GroupPlace) -> "Group":
        """Return a row group.

        Raises:
            NotAtHand: it has to be fetched first.
        """
        found = self.archive.group(place.segment, place.number)
        if found is None:
            load = self.archive.load_group
            raise NotAtHand(partial(load, place.segment, place.footer, place.number))
        return found

    def row_at(self, position: int) -> Row | None:
        """Return the row at a position, of whatever partition."""
        for segment in self._segments(position - 1):
            if segment.after >= position:
                return None
            footer = self._footer(segment)
            # Who has just read a page asks for its place, which is in what was read.
            for place in self._around(segment, footer, position):
                held = self.archive.group(segment, place.number)
                if held is not None and (index := held.at(position)) is not None:
                    return position, held.event(index)
            row = self._row_below(segment, footer, position)
            return row if row is not None and row[0] == position else None
        return None

    def row_below(self, position: int) -> Row | None:
        """Return the last row at or below a position, of whatever partition."""
        segments = self._known().segments
        index = min(self._known().at(position), len(segments) - 1)
        while index >= 0:
            segment = segments[index]
            row = self._row_below(segment, self._footer(segment), position)
            if row is not None:
                return row
            index -= 1
        return None

    def _row_below(self, segment: "Segment", footer: "Footer", position: int) -> Row | None:
        partitions = footer.partitions
        if len(partitions) > 1:
            places = self.archive.places(segment)
            if places is None:
                raise NotAtHand(partial(self.archive.load_places, segment))
            found = places.below(position)
            if found is None:
                return None
            position, partition = found
        else:
            (partition,) = partitions
        numbers = footer.groups(partition)
        below = [number for number in numbers if footer.entries[number].first <= position]
        if not below:
            return None
        place = GroupPlace(segment, footer, below[-1], footer.entries[below[-1]])
        group = self.group(place)
        index = group.above(position) - 1
        return group.positions[index], group.event(index)

    @staticmethod
    def _around(segment: "Segment", footer: "Footer", position: int) -> Iterator[GroupPlace]:
        """Yield the row groups that may have a position."""
        for number, entry in enumerate(footer.entries):
            if entry.first <= position <= entry.last:
                yield GroupPlace(segment, footer, number, entry)

    def _segments(self, after: int) -> Iterator["Segment"]:
        """Yield the segments that have positions above one, in order."""
        known = self._known()
        yield from known.segments[known.at(after + 1) :]

    def _known(self) -> "Manifest":
        """Return a manifest that is new enough, of this feed.

        Raises:
            NotAtHand: it has to be fetched first.
            ConfigurationError: the archive is of another feed.
        """
        if self.archive.is_stale:
            raise NotAtHand(self.archive.refresh)
        self.archive.expect(self.feed)
        return self.archive.manifest

    def _footer(self, segment: "Segment") -> "Footer":
        found = self.archive.footer(segment)
        if found is None:
            raise NotAtHand(partial(self.archive.load_footer, segment))
        if strays := [one for one in found.partitions if one not in self._partitions]:
            raise ConfigurationError(
                f"The archive has events of partition {strays[0]}, which the feed does not have: "
                "its partitions were others when it was sealed. Seal it into a new archive."
            )
        return found
