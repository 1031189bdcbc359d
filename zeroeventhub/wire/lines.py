"""The events of a page as one text, as they were read and as they are sent."""

from collections.abc import Iterator, Sequence
from typing import overload

from zeroeventhub.protocol import Event

__all__ = ["BETWEEN_EVENTS", "Lines", "joined", "lines_of", "one_line", "size_of", "text_of"]

_BEFORE, _AFTER = b'{"data":', b"}\n"

BETWEEN_EVENTS = _AFTER + _BEFORE
"""What stands between the data of two events: nothing in the data has a newline."""


class Lines(Sequence[Event]):
    """Hold events without headers as their lines; each is an event once it is asked for.

    Args:
        text: the lines, as FeedAPI v2 has them (Events endpoint, Response).
        count: how many there are.
    """

    __slots__ = ("_count", "text")

    def __init__(self, text: bytes, count: int) -> None:
        self.text = text
        self._count = count

    @classmethod
    def of(cls, texts: list[bytes], *, on_one_line: bool = False) -> "Lines":
        """Make lines of the JSON of events.

        Args:
            texts: each may have line ends in its white space.
            on_one_line: whether none has.
        """
        if not texts:
            return cls(b"", 0)
        # One copy of all that there is: pages are large, and memory for each is mapped anew.
        parts = [_BEFORE + texts[0], *texts[1:]]
        parts[-1] += _AFTER
        text = BETWEEN_EVENTS.join(parts)
        if not on_one_line and (text.count(b"\n") != len(texts) or b"\r" in text):
            return cls.of([*map(one_line, texts)])
        return cls(text, len(texts))

    @property
    def texts(self) -> list[bytes]:
        """Return the JSON of each event."""
        inner = self.text[len(_BEFORE) : -len(_AFTER)]
        return inner.split(BETWEEN_EVENTS) if self._count else []

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
            return [*map(Event, self.texts[index])]
        return Event(self.texts[index])

    def __iter__(self) -> Iterator[Event]:
        """Return the events one by one."""
        return map(Event, self.texts)

    def __eq__(self, other: object) -> bool:
        """Return whether another sequence has the same events in the same order."""
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
    return between.join([one_line(event.raw) for event in events])


def lines_of(events: Sequence[Event]) -> bytes:
    """Return the lines of events (FeedAPI v2, Events endpoint, Response)."""
    if isinstance(events, Lines):
        return events.text
    # Who makes events of bytes that are no JSON makes no more of them than there are.
    return Lines.of([one_line(event.raw) for event in events]).text


def size_of(events: Sequence[Event]) -> int:
    """Return how many bytes the JSON of events has."""
    if isinstance(events, Lines):
        return len(events.text) - len(BETWEEN_EVENTS) * len(events)
    return sum(len(event.raw) for event in events)


def joined(parts: Sequence[Sequence[Event]]) -> Sequence[Event]:
    """Return the events of several parts, one after the other."""
    parts = [part for part in parts if part]
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, Lines) for part in parts):
        return Lines(b"".join(map(lines_of, parts)), sum(map(len, parts)))
    return [event for part in parts for event in part]
