"""Cursors that can be checked: whether a table still has the history that a cursor belongs to."""

from functools import lru_cache
from hmac import compare_digest
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, literal_column

from zeroeventhub.errors import Diverged, Trimmed
from zeroeventhub.protocol import Event
from zeroeventhub.publisher.cursor import Place, Seal
from zeroeventhub.publisher.near_rows import given
from zeroeventhub.publisher.row_query import RowQuery
from zeroeventhub.publisher.rows import Row
from zeroeventhub.publisher.way import Way

__all__ = ["History"]

START = str(Place(0))
"""The cursor before everything."""

_ONE: ColumnElement[int] = literal_column("1")


class History:
    """Give cursors that hold a digest of their event, and check it.

    A database has one writer at a time, so histories part at one point: where the event at a
    cursor's position is still the same event, everything before it is the same as well.

    Args:
        rows: reads events of all partitions alike.
        seal: makes digests of them.
        mutable: whether events are changed or deleted in place, so that only positions can be
            relied on.
    """

    def __init__(self, rows: RowQuery, seal: Seal, *, mutable: bool = False) -> None:
        self._rows = rows
        self._seal = seal
        self._mutable = mutable
        # A position of its own outlives its event, and only goes when the event's key comes back;
        # on a standby it may not have come yet.
        self._outlives = rows.source.events is not None
        here = given("position")
        self._at = rows.select(lambda query: query.where(rows.source.position == here), _ONE)
        self._below = lru_cache(maxsize=2)(self._build_below)

    @property
    def is_mutable(self) -> bool:
        """Tell whether what has been read may be another when it is read again."""
        return self._mutable

    def cursor(self, position: int, event: Event | None) -> str:
        """Return the cursor behind an event; None for one that has been deleted."""
        if self._mutable or event is None:
            return str(Place(position))
        return str(Place(position, self._seal.recipe, self._seal.check(position, event.raw)))

    def cursor_below(self, connection: Connection, position: int) -> str:
        """Return the cursor behind the last event, of any partition, at or below a position."""
        if self._mutable:
            return str(Place(position))
        row = self._row_below(connection, position)
        return START if row is None else self.cursor(*row)

    def verify(self, connection: Connection, *places: Place | None) -> None:
        """Refuse cursors whose events are not the ones that they were given for.

        Raises:
            Trimmed: nothing is left at a position and below.
            Diverged: the event at a position is another one, or gone.
        """
        for place in places:
            if place is not None and place.check and not self._mutable:
                self._verify(connection, place)

    def _verify(self, connection: Connection, place: Place) -> None:
        row = self._row(connection, self._at, place.position)
        if row is None:
            if not self._outlives:
                self._refuse_missing(connection, place)
        elif not self._same(row[1], place):
            raise Diverged(
                "The event at this cursor is not the one that it was given for: the feed's "
                "history is another one, such as after a failover that lost events."
            )

    def _same(self, event: Event | None, place: Place) -> bool:
        """Compare an event with what a cursor holds of it, as far as that can be done."""
        if event is None or place.recipe != self._seal.recipe:
            # It is deleted, or made in another way or with another secret by now: there is no more
            # than its position.
            return True
        return compare_digest(self._seal.check(place.position, event.raw), place.check)

    def _refuse_missing(self, connection: Connection, place: Place) -> None:
        if self._row_below(connection, place.position) is None:
            raise Trimmed(
                "The events up to this cursor are no longer there, and perhaps some behind it.",
                earliest=START,
            )
        raise Diverged(
            "The event at this cursor is no longer there: the feed's history is another one, such "
            "as after a restored backup, or the event was deleted."
        )

    def _build_below(self, way: Way) -> Select[Any]:
        near = self._rows.near
        return self._rows.select(
            lambda query: near.below(query, way, given("position")), _ONE, backwards=True
        )

    def _row_below(self, connection: Connection, position: int) -> Row | None:
        query = self._below(self._rows.near.way(connection))
        return self._row(connection, query, position)

    def _row(self, connection: Connection, query: Any, position: int) -> Row | None:
        return self._rows.read(connection, query, {"position": position}).last
