"""Pages from an archive, from a table, and from both."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from zeroeventhub.protocol import Partition, TypeFilter
from zeroeventhub.publisher.archived.tier import Tier
from zeroeventhub.publisher.page_query import FILTERED_ROWS, PageQuery, Stretch, TypeCondition
from zeroeventhub.publisher.rows import RowQuery

if TYPE_CHECKING:
    from zeroeventhub.archive.group import Group

__all__ = [
    "ArchivedPages",
]


class ArchivedPages(PageQuery):
    """Select the events of a table and of its archive, in order.

    A page ends where it would end if all of its events were in the table.

    Args:
        tier: the archive.
        rows: as for `PageQuery`; so are all others.
        partitions: see there.
        ids: see there.
        types: see there.
        page_bytes: see there.
    """

    def __init__(
        self,
        tier: Tier,
        rows: RowQuery,
        partitions: Collection[Partition],
        ids: Collection[int],
        types: TypeCondition | None = None,
        *,
        page_bytes: int,
    ) -> None:
        super().__init__(rows, partitions, ids, types, page_bytes=page_bytes)
        self._tier = tier
        self._room = page_bytes

    def read(
        self,
        connection: Connection,
        partition: int,
        *,
        after: int,
        until: int,
        limit: int,
        count: int = 1,
        types: TypeFilter | None = None,
        each: bool = False,
        begun: Stretch | None = None,
        looked_at: int = 0,
    ) -> list[Stretch]:
        """Read pages of events above one position and not above another; see `PageQuery.read`.

        Raises:
            NotAtHand: some of them have to be fetched first.
        """
        boundary = self._tier.boundary(connection)
        pages: list[Stretch] = []
        while begun is None and after < min(boundary, until):
            cold = _Cold(self._tier, partition, limit, self._room, each=each)
            page = cold.read(after, min(boundary, until), until, types)
            if not cold.is_done and page.until > boundary:
                begun, after, looked_at = page, boundary, cold.looked_at
                break
            pages.append(page)
            if not page.full or page.last is None or len(pages) == count:
                return pages
            after = page.last[0]
        return pages + super().read(
            connection,
            partition,
            after=after,
            until=until,
            limit=limit,
            count=count - len(pages),
            types=types,
            each=each,
            begun=begun,
            looked_at=looked_at,
        )


class _Cold:
    """Read the beginning of a page from an archive.

    Args:
        tier: the archive.
        partition: the partition.
        limit: how many rows the page has at most.
        room: how many bytes.
        each: whether the position of each event is wanted.
    """

    def __init__(self, tier: Tier, partition: int, limit: int, room: int, *, each: bool) -> None:
        self._tier = tier
        self._partition = partition
        self._room = room
        self._each = each
        self._limit = limit
        self.looked_at = 0
        """How many rows were looked at, if only some were chosen."""
        self.is_done = False
        """Tell whether the page ends here."""

    def read(self, after: int, end: int, until: int, types: TypeFilter | None) -> Stretch:
        """Read up to a position.

        Args:
            after: the position behind which the page begins.
            end: the one up to which the archive is read.
            until: the one up to which the page may go.
            types: which events; None for all.
        """
        stretch = Stretch(until)
        for place in self._tier.groups(self._partition, after, end):
            group = self._tier.group(place)
            start, stop = group.above(after), group.above(end)
            if types is None:
                self._take(stretch, group, range(start, stop))
            else:
                stop = self._within_window(stretch, group, start, stop)
                found = [one for one in group.of_types(types) if start <= one < stop]
                self._take(stretch, group, found)
                if self.looked_at == FILTERED_ROWS:
                    self.is_done = True
            if self.is_done:
                return stretch
        return stretch

    def _within_window(self, stretch: Stretch, group: "Group", start: int, stop: int) -> int:
        """Look at no more rows than a page may look at in search of its events."""
        left = FILTERED_ROWS - self.looked_at
        stop = min(stop, start + left)
        self.looked_at += stop - start
        if self.looked_at == FILTERED_ROWS:
            stretch.until = group.positions[stop - 1]
        return stop

    def _take(self, stretch: Stretch, group: "Group", rows: "range | list[int]") -> None:
        """Take rows of a group, as many as the page has room for."""
        taken = rows[: self._limit - stretch.rows]
        fitting = group.fitting(taken, self._room - stretch.size)
        if fitting < len(taken):
            if not stretch.parts and not any(map(group.is_there, taken[:fitting])):
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
        if self._each:
            there = (row for row in taken if group.is_whole or group.is_there(row))
            stretch.positions += [group.positions[row] for row in there]
        if self.is_done or stretch.rows == self._limit:
            stretch.full, self.is_done = stretch.last[0] < stretch.until, True
