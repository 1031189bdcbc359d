"""The files of an archive that are shared with readers, and which events are in which of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from zeroeventhub.errors import NotFound
from zeroeventhub.protocol import SegmentPart, Segments
from zeroeventhub.publisher.archived.tier import Tier
from zeroeventhub.publisher.cursor import Place
from zeroeventhub.publisher.history import History
from zeroeventhub.publisher.reader import Reader

if TYPE_CHECKING:
    from zeroeventhub.archive.manifest import Segment

__all__ = ["Files", "Found", "expect_shared"]

AT_ONCE = 100
"""How many files one answer names, at most."""


@dataclass(frozen=True)
class Found:
    """Say which events of a segment were asked for.

    Attributes:
        segment: it.
        after: the position behind which they begin.
        upto: the position at which they end.
        cursor: stands there.
    """

    segment: "Segment"
    after: int
    upto: int
    cursor: str


class Files:
    """Find the files in which events are that were asked for.

    Args:
        tier: knows which there are, of an archive that is shared.
        reader: knows how far the feed may be read.
        history: checks cursors.
    """

    def __init__(self, tier: Tier, reader: Reader, history: History) -> None:
        self._tier = tier
        self._reader = reader
        self._history = history

    def between(
        self, connection: Connection, partition: int, cursor: str, stop: str | None
    ) -> tuple[str, list[Found]]:
        """Return where the events between two places begin, and the files that hold them."""
        return self._history.from_first(
            connection, cursor, partial(self._between, connection, partition, stop)
        )

    def named(self, start: str, found: list[Found]) -> Segments:
        """Name files to their reader, without a connection: the store may be asked to sign.

        Args:
            start: the cursor behind which their events begin.
            found: what is in which.
        """
        url = self._tier.archive.url
        parts = tuple(
            SegmentPart(url(one.segment), one.segment.size, one.after, one.upto, one.cursor)
            for one in found
        )
        return Segments(parts, found[-1].cursor if found else start)

    def _between(
        self, connection: Connection, partition: int, stop: str | None, start: str
    ) -> tuple[str, list[Found]]:
        place = Place.of(start)
        stop_place = None if stop is None else Place.of(stop)
        until = self._reader.settled(connection, place, stop_place)
        if stop_place is not None:
            until = min(until, stop_place.position)
        found = list(islice(self._found(place.position, until, stop_place), AT_ONCE))
        # Where the last segment ends as the table's history says, all before it is the table's.
        last = Place.of(found[-1].segment.last) if found else None
        self._history.verify(connection, place, stop_place, last, partition=partition)
        return start, found

    def _found(self, after: int, until: int, stop: Place | None) -> Iterator[Found]:
        for segment in self._tier.segments(after, until):
            low, high = max(segment.after, after), min(segment.upto, until)
            if low >= high:
                return
            cursor = str(Place(high))
            if stop is not None and high == stop.position:
                cursor = str(stop)
            elif high == segment.upto and Place.of(segment.last).position == high:
                cursor = segment.last
            yield Found(segment, low, high, cursor)


def expect_shared(files: Files | None) -> Files:
    """Return what knows the files of a feed.

    Raises:
        NotFound: the feed shares none.
    """
    if files is None:
        raise NotFound("This feed does not share files of its events.")
    return files
