"""The events of a page as one text of lines, as publishers read them and servers send them."""

from collections.abc import Sequence
from dataclasses import dataclass

from zeroeventhub.protocol import Event, EventSequence

_BEFORE, _AFTER = b'{"data":', b"}\n"

BETWEEN_EVENTS = _AFTER + _BEFORE
"""The bytes between the data of two events: data has no newline in it."""


@dataclass(frozen=True, eq=False, repr=False)
class Lines(EventSequence):
    """Events without headers, as one text.

    Attributes:
        text: the lines, as FeedAPI v2 has them (Events endpoint, Response).
        length: the number of lines.
    """

    text: bytes
    length: int

    @classmethod
    def of(cls, texts: list[bytes], *, on_one_line: bool = False) -> "Lines":
        """Make lines of the JSON of events.

        Args:
            texts: the JSON of each event, which may have line ends in its white space.
            on_one_line: whether the caller knows that no text has a line end.
        """
        if not texts:
            return cls(b"", 0)
        # One copy of the whole page: pages are large, and the system maps memory for each copy.
        parts = [_BEFORE + texts[0], *texts[1:]]
        parts[-1] += _AFTER
        text = BETWEEN_EVENTS.join(parts)
        if not on_one_line and (text.count(b"\n") != len(texts) or b"\r" in text):
            return cls.of([*map(one_line, texts)])
        return cls(text, len(texts))

    def __len__(self) -> int:
        """Return the number of events."""
        return self.length

    def _all(self) -> list[Event]:
        inner = self.text[len(_BEFORE) : -len(_AFTER)]
        return [*map(Event, inner.split(BETWEEN_EVENTS))] if self.length else []


def one_line(raw: bytes) -> bytes:
    """Put JSON on one line: its line ends are white space, because strings escape theirs.

    Readers in many languages end a line at a carriage return as well.
    """
    return raw.replace(b"\n", b" ").replace(b"\r", b" ")


def size_of(events: Sequence[Event]) -> int:
    """Return the number of bytes of the events' JSON."""
    if isinstance(events, Lines):
        return len(events.text) - len(BETWEEN_EVENTS) * len(events)
    return sum(len(event.raw) for event in events)


def joined(parts: Sequence[Sequence[Event]]) -> Sequence[Event]:
    """Return the events of several parts, one part after the other."""
    parts = [part for part in parts if part]
    if len(parts) == 1:
        return parts[0]
    lines = [part for part in parts if isinstance(part, Lines)]
    if len(lines) == len(parts):
        return Lines(b"".join(part.text for part in lines), sum(map(len, lines)))
    return [event for part in parts for event in part]
