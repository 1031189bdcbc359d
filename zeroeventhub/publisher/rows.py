"""Rows of a feed that were read together: their positions, and the JSON of their events."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from zeroeventhub.errors import FeedFailure
from zeroeventhub.lines import one_line
from zeroeventhub.protocol import Event

__all__ = ["NO_ROWS", "Row", "Rows", "refuse_lone_surrogates", "refuse_what_is_not_json"]

Row = tuple[int, Event | None]
"""A position and the event at it; None for an event that has been deleted."""

_NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)

_decode_lines = msgspec.json.Decoder(msgspec.Raw).decode_lines
_decode = msgspec.json.Decoder(msgspec.Raw).decode


@dataclass(frozen=True)
class Rows:
    """Hold rows in the order of their positions.

    Attributes:
        position: returns the position of a row by its index.
        texts: the JSON of each row's event; None for an event that has been deleted.
        headers: the headers of each row's event; None for a feed without headers.
        on_one_line: whether no text has line ends in its white space.
    """

    position: Callable[[int], int]
    texts: list[bytes | None]
    headers: list[Mapping[str, str]] | None = None
    on_one_line: bool = False

    @classmethod
    def of_events(cls, rows: list[Any], event: Callable[[Any], Event | None]) -> "Rows":
        """Make the events of rows, and free each row for its event.

        Args:
            rows: each begins with a position; the list is emptied.
            event: makes the event of a row; None of a deleted one.
        """
        positions, texts, headers = [], [], []
        rows.reverse()
        while rows:
            row = rows.pop()
            made = event(row)
            positions.append(row[0])
            texts.append(None if made is None else made.raw)
            headers.append({} if made is None else made.headers)
        return cls(positions.__getitem__, texts, headers if any(headers) else None)

    @cached_property
    def largest(self) -> int:
        """Return how many bytes the largest event has."""
        return max(map(len, self._there(0, len(self.texts))), default=0)

    def size(self, start: int, stop: int) -> int:
        """Return how many bytes the events of some of the rows have."""
        return sum(map(len, self._there(start, stop)))

    def _there(self, start: int, stop: int) -> Iterable[bytes]:
        texts = self.texts[start:stop]
        return filter(None, texts) if None in texts else texts  # type: ignore[return-value] # as just seen

    def event(self, index: int) -> Event | None:
        """Return the event of a row; None for a deleted one."""
        text = self.texts[index]
        if text is None:
            return None
        return Event(one_line(text), {} if self.headers is None else self.headers[index])

    def events(self, start: int, stop: int) -> list[Event]:
        """Return the events of some of the rows, without the deleted ones."""
        found = (self.event(index) for index in range(start, stop))
        return [event for event in found if event is not None]

    def fitting(self, start: int, stop: int, room: int) -> int:
        """Return the index of the first row whose event no longer fits into `room` bytes."""
        for index in range(start, stop):
            room -= len(self.texts[index] or b"")
            if room < 0:
                return index
        return stop


NO_ROWS = Rows([].__getitem__, [])


def refuse_what_is_not_json(texts: Sequence[bytes | None], place: Callable[[int], object]) -> None:
    """Refuse a text that is not exactly one JSON value.

    Args:
        texts: None for an event that has been deleted.
        place: returns the position of a text by its index.

    Raises:
        FeedFailure: one of them is not.
    """
    there = [text for text in texts if text is not None]
    joined = b"\n".join(there)
    if joined.count(b"\n") == len(there) - 1:
        try:
            if len(_decode_lines(joined)) == len(there):
                return
        except _NOT_JSON:
            pass
    for index, text in enumerate(texts):
        try:
            if text is not None:
                _decode(text)
        except _NOT_JSON as error:
            raise FeedFailure(
                f"The row at position {place(index)} cannot be published: {error}"
            ) from error


def refuse_lone_surrogates(texts: Sequence[bytes | None], place: Callable[[int], object]) -> None:
    """Refuse a document of PostgreSQL's type json that has half of a pair of surrogates.

    All else that is wrong with JSON, PostgreSQL refuses itself; of jsonb, this as well.

    Args:
        texts: None for an event that has been deleted.
        place: returns the position of a text by its index.

    Raises:
        FeedFailure: one of them has.
    """
    if any(text and (b"\\ud" in text or b"\\uD" in text) for text in texts):
        refuse_what_is_not_json(texts, place)
