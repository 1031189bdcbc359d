"""Check by a cursor's digest that a table still has the history that the cursor belongs to."""

from collections.abc import Callable, Collection
from functools import lru_cache
from hmac import compare_digest
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, and_, bindparam, exists, select
from sqlalchemy.exc import DBAPIError

from zeroeventhub.databases.error_codes import is_denied
from zeroeventhub.databases.index_hint import IndexHint
from zeroeventhub.errors import Diverged, Trimmed, Unavailable
from zeroeventhub.protocol import Event
from zeroeventhub.publisher.archive_reader import ArchiveReader
from zeroeventhub.publisher.cursor import HIGHEST_POSITION, START, Place, Signer
from zeroeventhub.publisher.keyset import LIMIT, ONE, parameter
from zeroeventhub.publisher.retention import LowWaterMark, MarkTable
from zeroeventhub.publisher.rows import Row, RowQuery

TRIES = 5
"""How often to look for the first event while a trim keeps deleting it."""

_Found = TypeVar("_Found")


class History:
    """Give cursors that hold a digest of their event, and check it.

    A database has one primary at a time, so two histories differ from one point on: if the event
    at a cursor's position is still the same, everything before it is the same as well. Of a mutable
    feed, whose writers change or delete events, only positions can be checked.
    """

    def __init__(
        self,
        rows: RowQuery,
        signer: Signer,
        *,
        mutable: bool,
        compacted: bool,
        marks: MarkTable | None,
        archive: ArchiveReader | None,
    ) -> None:
        self.archive = archive
        """Holds trimmed events; None if they are lost."""
        self.may_differ = mutable or compacted or (archive is not None and archive.archive.erasable)
        """Whether an event may differ when it is read again."""
        self.whole_after = 0 if marks is None else HIGHEST_POSITION
        """The position after which the table has all events, by the last mark that was read."""
        self._rows = rows
        self._signer = signer
        self.has_open_digests = not (mutable or signer.is_secret)
        """Whether cursors have no secret, so that anyone can compute an event's digest."""
        self._mutable = mutable
        self._marks = marks
        # A position in a side table remains when its event is deleted, until a writer inserts the
        # event's key again. On a standby it may not have arrived yet.
        self._outlives = rows.source.events is not None
        here = parameter("position")
        self._at = rows.select(lambda query: query.where(rows.source.position == here), ONE)
        several = rows.source.position.in_(bindparam("positions", expanding=True))
        self._several = rows.select(
            lambda query: query.where(several).order_by(rows.source.position), LIMIT
        )
        self._below = lru_cache(maxsize=2)(self._build_below)

    def cursor(self, position: int, event: Event | None) -> str:
        """Return the cursor after a position; the event is None if it was deleted."""
        if self._mutable or event is None:
            return f"1-{position}"
        return f"2-{position}-{self._signer.recipe}-{self._signer.check(position, event.raw)}"

    def mark(self, connection: Connection) -> LowWaterMark:
        """Return the mark up to which the table has been trimmed."""
        if self._marks is None:
            return LowWaterMark()
        mark = self._marks.read(connection)
        self.whole_after = max(mark.trimmed, mark.compacted)
        return mark

    def from_first(self, connection: Connection, ask: Callable[[str], _Found]) -> _Found:
        """Run a query from the cursor before the first event; again if a trim deletes that.

        Raises:
            Unavailable: a trim has deleted the first event in every try.
        """
        first = self._first(connection)
        for _ in range(TRIES):
            try:
                return ask(first)
            except Trimmed:
                before, first = first, self._first(connection)
                if first == before:
                    raise
        raise Unavailable("The first events are being trimmed.", retry_after=1)

    def _first(self, connection: Connection) -> str:
        """Return the cursor before the first event that is left."""
        mark = self.mark(connection)
        is_kept = self.archive is not None and self.archive.holds(mark.trimmed)
        return START if is_kept else mark.earliest

    def lost(self, connection: Connection, position: int) -> LowWaterMark:
        """Return the mark up to which events are lost to a query that reads from a position.

        Raises:
            ArchiveMiss: the archive has them, but this query did not read it so far.
        """
        mark = self.mark(connection)
        if self.archive is None or self.archive.has_lost(connection, mark.trimmed, position):
            return mark
        return LowWaterMark(compacted=mark.compacted, moved=mark.trimmed)

    def cursor_below(self, connection: Connection, position: int) -> str:
        """Return the cursor after the last event, of any partition, at or below a position.

        If that event was trimmed, return the cursor before the first event that is left.
        """
        if self.archive is not None and position <= self.archive.boundary(connection):
            known = self.archive.cursor_at_end(position)
            if known is not None:
                return known
        row = None if self._mutable else self._row_below(connection, position)
        if row is not None:
            return self.cursor(*row)
        mark = self.lost(connection, 0)
        return str(Place(position)) if self._mutable and position > mark.trimmed else mark.earliest

    def refuse_trimmed(self, connection: Connection, position: int) -> None:
        """Refuse to continue from a position if events after it have been trimmed."""
        mark = self.lost(connection, position)
        if position < mark.trimmed:
            raise _trimmed(mark)

    def refuse_forgotten(self, connection: Connection) -> None:
        """Raise Trimmed for an id that was not found, if the feed deletes events."""
        mark = self.lost(connection, 0)
        if self._mutable or mark.trimmed or mark.compacted:
            raise Trimmed(
                "There is no event of this id here. This feed deletes events, and their ids with "
                "them: read it again from its beginning.",
                earliest=mark.earliest,
            )

    def cursors_at(self, connection: Connection, positions: Collection[int]) -> dict[int, str]:
        """Return the cursors after the events at some positions, by position, for trimming."""
        cursors = {position: str(Place(position)) for position in positions}
        values = {"positions": [*positions], "limit": len(positions)}
        rows = self._rows.read(connection, self._several, values)
        for index in range(len(rows.sizes)):
            position = rows.position(index)
            cursors[position] = self.cursor(position, rows.event(index))
        # After the rows, which are other events by then.
        return cursors | {one: str(Place(one)) for one in self._moving(connection, positions)}

    def verify(
        self,
        connection: Connection,
        *places: Place | None,
        partition: int | None = None,
        known: Row | None = None,
    ) -> LowWaterMark:
        """Refuse cursors whose events are not the ones that they were issued for.

        The query that these cursors start has already run, and has read the `known` row. Return the
        mark of what had been trimmed by then.

        Raises:
            Trimmed: a place is below the first event that is left, or no event is left up to it.
            Diverged: the event at a position is another one, or missing.
        """
        found: list[tuple[Place, Row | None]] = []
        archive, lowest = self.archive, HIGHEST_POSITION
        for place in places:
            if place is None:
                continue
            row = None
            if place.check and not self._mutable:
                if archive is not None and place.position <= archive.boundary(connection):
                    row = archive.row_at(place.position)
                elif known is not None and known[0] == place.position:
                    row = known
                else:
                    row = self._rows.row(connection, self._at, place.position)
            found.append((place, row))
            lowest = min(lowest, place.position)
        # Read last: a trim that deleted events while the query ran has moved the mark by now.
        mark = self.mark(connection) if archive is None else self.lost(connection, lowest)
        for place, row in found:
            if place.position > mark.trimmed:
                self._verify(connection, place, row, mark)
            elif not mark.still_covers(place, partition):
                raise _trimmed(mark)
        return mark

    def vouch_in_table(self, connection: Connection, cursor: str) -> None:
        """Refuse a cursor whose event differs in the table, without regard to the archive."""
        place, mark = Place.of(cursor), self.mark(connection)
        if place.position > mark.trimmed:
            row = self._rows.row(connection, self._at, place.position)
            self._verify(connection, place, row, mark)
        else:
            mark.still_covers(place, None)

    def _verify(
        self, connection: Connection, place: Place, row: Row | None, mark: LowWaterMark
    ) -> None:
        if self._mutable or not place.check:
            return
        if row is None:
            if self._outlives or place.position <= mark.compacted:
                return
            if self._row_below(connection, place.position) is None:
                raise Trimmed(
                    "The events up to this cursor were deleted, and perhaps some after it.",
                    earliest=mark.earliest,
                )
            raise Diverged(
                "The event at this cursor is no longer there: the feed's history is another one, "
                "such as after a restored backup, or the event was deleted."
            )
        if not self.fits(place, row) and not self._moving(connection, [place.position]):
            raise Diverged(
                "The event at this cursor is not the one that it was given for: either its row was "
                "changed, or the feed's history is another one, such as after a failover that lost "
                "events."
            )

    def fits(self, place: Place, row: Row) -> bool:
        """Return whether the event at a place may be the one that its cursor was given for."""
        event = row[1]
        # If the event is deleted, or the feed now makes events in another way or has another
        # secret, only the position can be checked.
        if event is None or place.recipe != self._signer.recipe:
            return True
        return compare_digest(self._signer.check(place.position, event.raw), place.check)

    def _moving(self, connection: Connection, positions: Collection[int]) -> set[int]:
        """Return the positions whose events were inserted again, and get other positions."""
        source = self._rows.source
        if source.waiting is None:
            return set()
        again = and_(*(source.waiting.c[name] == source.table.c[name] for name in source.key))
        here = source.position.in_(positions)
        stay = select(source.position).where(here, ~exists().where(again))
        try:
            return {*positions}.difference(connection.scalars(stay))
        except DBAPIError as error:
            if not is_denied(error):  # to read the outbox, which no page needs
                raise
            connection.rollback()  # for what is still asked of it to explain the answer
            return set()

    def _build_below(self, hint: IndexHint) -> Select[Any]:
        near = self._rows.near
        return self._rows.select(
            lambda query: near.below(query, hint, parameter("position")), ONE, backwards=True
        )

    def _row_below(self, connection: Connection, position: int) -> Row | None:
        boundary = 0 if self.archive is None else self.archive.boundary(connection)
        if position > boundary:
            query = self._below(self._rows.near.hint(connection))
            row = self._rows.row(connection, query, position)
            if row is not None and row[0] > self.whole_after:
                return row
            # A table that is being restored has some of the rows below the mark.
            trimmed = self.lost(connection, 0).trimmed
            if row is not None and row[0] > max(boundary, trimmed):
                return row
            if trimmed > boundary:
                return None
        if self.archive is None or not boundary:
            return None
        return self.archive.row_below(min(position, boundary))


def _trimmed(mark: LowWaterMark) -> Trimmed:
    sentence = "The cursor lies below the history that this feed retains."
    return Trimmed(sentence, earliest=mark.earliest)
