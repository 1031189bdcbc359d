"""The events of a page as one text, as they were read and as they are sent."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import overload

from zeroeventhub.protocol import Event

__all__ = ["SEPARATOR", "Lines", "joined", "one_line", "size_of", "text_of"]

SEPARATOR = b"\x1e"
"""What stands between the JSON of two events: the record separator, which is never in JSON."""


class Lines(Sequence[Event]):
    """Hold events without headers as one text; each is an event once it is asked for.

    Args:
        text: the JSON of each event on a line, separators between them.
        count: how many there are; 0 of an empty text.
    """

    __slots__ = ("__dict__", "_count", "text")

    def __init__(self, text: bytes, count: int) -> None:
        self.text = text
        self._count = count

    @cached_property
    def _lines(self) -> list[bytes]:
        return self.text.split(SEPARATOR) if self._count else []

    def __len__(self) -> int:
        """Return how many events there are."""
        return self._count

    @overload
    def __getitem__(self, index: int) -> Event: ...

    @overload
    def __getitem__(self, index: slice) -> list[Event]: ...

    def __getitem__(self, index: int | slice) -> Event | list[Event]:
        """Return an event, or a list of some."""
        if isinstance(index, slice):
            return [*map(Event, self._lines[index])]
        return Event(self._lines[index])

    def __iter__(self) -> Iterator[Event]:
        """Return the events one by one."""
        return map(Event, self._lines)

    def __eq__(self, other: object) -> bool:
        """Tell whether others are the same events in the same order."""
        if isinstance(other, Lines):
            return self.text == other.text and self._count == other._count
        return isinstance(other, Sequence) and [*self] == [*other]

    __hash__ = None  # type: ignore[assignment] # it equals lists, which have none

    def __repr__(self) -> str:
        """Return what shows the events, as a list does."""
        return repr([*self])


def one_line(raw: bytes) -> bytes:
    """Keep JSON on its line: what ends one in it is white space, for in strings it is escaped.

    Readers of many languages end a line at a carriage return as well.
    """
    return raw.replace(b"\n", b" ").replace(b"\r", b" ")


def text_of(events: Sequence[Event], between: bytes) -> bytes:
    """Return the JSON of events without newlines, and what is to stand between two of them."""
    if isinstance(events, Lines):
        return events.text.replace(SEPARATOR, between)
    # Who makes events of bytes that are no JSON makes no more of them than there are.
    return between.join([one_line(event.raw) for event in events])


def size_of(events: Sequence[Event]) -> int:
    """Return how many bytes the JSON of events has."""
    if isinstance(events, Lines):
        return len(events.text) - max(len(events) - 1, 0)
    return sum(len(event.raw) for event in events)


def joined(parts: Sequence[Sequence[Event]]) -> Sequence[Event]:
    """Return the events of several parts, one behind the other."""
    parts = [part for part in parts if part]
    if len(parts) == 1:
        return parts[0]
    lines = [part for part in parts if isinstance(part, Lines)]
    if len(lines) == len(parts):
        return Lines(SEPARATOR.join([part.text for part in lines]), sum(map(len, parts)))
    return [event for part in parts for event in part]
