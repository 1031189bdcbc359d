"""The truth: the events of a partition, and bodies that hold some of them."""

import json
import random
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from zeroeventhub import FIRST

__all__ = ["Body", "History"]

TEXTS = (
    "",
    "paid",
    "Zoë 漢字 😀",
    "line\u2028separator\u0085",
    '}\n{"cursor":"at-1"}\n',
    '{"data":{"n":1}}',
    "a longer text with nothing in it " * 3,
)


@dataclass(frozen=True)
class Body:
    """Hold what an answer says.

    Attributes:
        text: its lines.
        checkpoints: for each checkpoint, where its line ends in the text, without the line break,
            and how many events of the partition are before it.
    """

    text: bytes
    checkpoints: tuple[tuple[int, int], ...]

    def settled(self, received: bytes, *, ended: bool) -> int | None:
        """Tell up to which event of the partition a checkpoint has come; None for none.

        Args:
            received: the beginning of the text.
            ended: whether a line counts that came without its line break.
        """
        assert self.text.startswith(received)
        room = len(received) - (not ended)
        reached = [number for end, number in self.checkpoints if end <= room]
        return reached[-1] if reached else None


@dataclass(frozen=True)
class History:
    """Hold the events of a partition.

    Attributes:
        events: their JSON texts, in order.
        checkpoints: before which of them a checkpoint may stand, ascending; the last one is behind
            all events.
    """

    events: tuple[bytes, ...]
    checkpoints: tuple[int, ...]

    @classmethod
    def of(cls, texts: Iterable[str], checkpoints: Iterable[int], *, first: int = 0) -> "History":
        """Make a history of events with texts, numbered from a first one on."""
        events = (
            json.dumps({"n": first + n, "text": text}, ensure_ascii=n % 2 == 0).encode()
            for n, text in enumerate(texts)
        )
        return cls(tuple(events), tuple(checkpoints))

    @classmethod
    def drawn(cls, dice: random.Random, *, first: int = 0) -> "History":
        """Draw a history."""
        count = dice.randrange(1, 31)
        share = dice.choice((0.1, 0.3, 1.0))
        checkpoints = {number for number in range(1, count) if dice.random() < share}
        texts = [dice.choice(TEXTS) for _ in range(count)]
        return cls.of(texts, sorted({*checkpoints, count}), first=first)

    @property
    def numbers(self) -> list[int]:
        """The number of each event."""
        return [json.loads(event)["n"] for event in self.events]

    def body(self, cursor: str, limit: int) -> Body:
        """Answer a request for about so many events behind a cursor."""
        start = place_of(cursor)
        wanted = min(start + limit, len(self.events))
        stop = self.checkpoints[bisect_left(self.checkpoints, wanted)] if self.checkpoints else 0
        text, checkpoints = b"", []
        for number in range(start, stop + 1):
            if number in self.checkpoints and (number > start or start == stop):
                flag = b',"caughtUp":true' if number == len(self.events) else b""
                text += b'{"cursor":"at-%d"%b}' % (number, flag)
                checkpoints.append((len(text), number))
                text += b"\n"
            if number < stop:
                text += b'{"data":%b}\n' % self.events[number]
        return Body(text, tuple(checkpoints))


def place_of(cursor: str) -> int:
    """Tell how many events are before a cursor."""
    return 0 if cursor == FIRST else int(cursor.removeprefix("at-"))
