"""Rows of a feed that were read at once: positions in their order, and the events at them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any

import msgspec

from zeroeventhub.errors import FeedFailure
from zeroeventhub.lines import SEPARATOR, Lines, one_line, text_of
from zeroeventhub.protocol import Event

__all__ = ["NO_ROWS", "Row", "Rows"]

Row = tuple[int, Event | None]
"""A position and the event at it; None for an event that has been deleted."""

_NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)

_SURROGATE = re.compile(rb"\\u[dD]")

_expect_lines = msgspec.json.Decoder(msgspec.Raw).decode_lines
_expect_json = msgspec.json.Decoder(msgspec.Raw).decode


@dataclass(frozen=True)
class Rows:
    """Hold rows.

    Attributes:
        count: how many were looked at.
        last: the last of them; None if there is none.
        events: their events, without those that have been deleted.
        largest: how many bytes the largest of the events has.
        positions: of the events; empty where nobody asked.
        gaps: which of the rows, counted from 0, have lost their events.
    """

    count: int
    last: Row | None
    events: Sequence[Event]
    largest: int
    positions: Sequence[int] = ()
    gaps: Sequence[int] = ()

    def fitting(self, room: int) -> int:
        """Count the rows before the first event that no longer fits into some bytes."""
        sizes = accumulate(len(event.raw) for event in self.events)
        count = sum(1 for _ in takewhile(lambda size: size <= room, sizes))
        for gap in self.gaps:
            if gap > count:
                break
            count += 1
        return count

    @classmethod
    def of(cls, rows: list[Any], event: Callable[[Any], Event | None]) -> "Rows":
        """Make events of rows, and let go of each row for its event.

        Args:
            rows: begin with a position each; they are taken out of this list.
            event: makes one of a row; None of one that has been deleted.
        """
        count, last = len(rows), None
        found: list[Event] = []
        positions: list[int] = []
        gaps: list[int] = []
        rows.reverse()
        while rows:
            row = rows.pop()
            last = row[0], event(row)
            if last[1] is not None:
                found.append(last[1])
                positions.append(last[0])
            else:
                gaps.append(count - len(rows) - 1)
        largest = max((len(one.raw) for one in found), default=0)
        return cls(count, last, found, largest, positions, gaps)

    @classmethod
    def of_json(cls, rows: list[Any]) -> "Rows":
        """Take rows whose events are JSON already.

        Args:
            rows: a position and JSON text each, which is None for a deleted event; they are taken
                out of this list.

        Raises:
            FeedFailure: the text of one is not JSON.
        """
        if not rows:
            return NO_ROWS
        count, positions = len(rows), [row[0] for row in rows if row[1] is not None]
        last = rows[-1][0]
        texts = ["" if row[1] is None else row[1] for row in rows]
        between = SEPARATOR.decode()
        text = between.join(texts)
        odd = "\n" in text or "\r" in text or text.count(between) >= count
        if odd or texts.count("") > count - len(positions):
            # In a string what ends a line would not be white space; a separator is nowhere, and
            # no text is no JSON.
            for position, one in rows:
                _expect_value(position, one)
        # A letter has four bytes at most.
        largest = max(map(len, texts)) * (1 if text.isascii() else 4)
        rows.clear()
        texts.clear()
        found = cls.of_joined((count, last, text, largest, len(positions), positions))
        _check(found.events, last, positions)
        return found

    @classmethod
    def of_joined(cls, row: Any) -> "Rows":
        """Take rows that the database has joined to one, having checked their JSON.

        Args:
            row: how many there were; the position of the last one; the JSON of each, empty for a
                deleted event, with separators between them; the bytes of the largest; how many
                have an event; the positions of those, or None.
        """
        count, last, text, largest, events, positions = row
        if not count:
            return NO_ROWS
        raw = one_line(text.encode())
        end = raw[raw.rfind(SEPARATOR) + 1 :]
        row = last, Event(end) if end else None
        gaps: list[int] = []
        if events < count:
            parts = raw.split(SEPARATOR)
            gaps = [index for index, part in enumerate(parts) if not part]
            raw = SEPARATOR.join(filter(None, parts))
        lines = Lines(raw, events)
        # Half of a pair of surrogates is nothing that PostgreSQL minds in a column of json.
        if b"\\" in raw and _SURROGATE.search(raw):
            _check(lines, last)
        return cls(count, row, lines, largest, positions or (), gaps)


NO_ROWS = Rows(0, None, (), 0)


def _expect_value(position: int, text: str | None) -> None:
    """Refuse text of a row that is not one value of JSON."""
    try:
        if text is not None:
            _expect_json(text)
    except _NOT_JSON as error:
        raise _refused(f"The row at position {position}", error) from error


def _check(events: Sequence[Event], last: int, positions: Sequence[int] = ()) -> None:
    """Refuse text that is not JSON, or not all of it.

    Args:
        events: what there is of it.
        last: the position of the last one.
        positions: of all of them, if they are known.
    """
    try:
        if len(_expect_lines(text_of(events, b"\n"))) == len(events):
            return
    except _NOT_JSON:
        pass
    for index, event in enumerate(events):
        try:
            _expect_json(event.raw)
        except _NOT_JSON as error:
            place = f"at position {positions[index]}" if positions else f"up to position {last}"
            raise _refused(f"The row {place}", error) from error
    raise _refused(f"A row up to position {last}", "it does not hold one value of JSON")


def _refused(row: str, reason: object) -> FeedFailure:
    return FeedFailure(f"{row} cannot be published: {reason}")
