"""Read a partition from its start, page by page, as far as the checks need."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from zeroeventhub.conformance.answer import Answer, PageText, SentEvent
from zeroeventhub.conformance.finding import Finding, fail
from zeroeventhub.protocol import FIRST

__all__ = ["HINT", "Walk", "WalkMark", "walk"]

HINT = 25
"""A page size that makes several pages of a small feed."""

MOST_PAGES = 40
MOST_EVENTS = 3_000
MOST_EMPTY = 3
LONGEST = 8.0


@dataclass(frozen=True)
class WalkMark:
    """Hold a checkpoint and the number of events that stand before it.

    Attributes:
        cursor: the checkpoint's cursor.
        count: how many events of the walk stand before it.
        inside: whether more of the same page follows it.
    """

    cursor: str
    count: int
    inside: bool


@dataclass
class Walk:
    """Hold what a walk saw.

    Attributes:
        events: the events, each behind the other, up to the last checkpoint.
        marks: all checkpoints.
        pages: the answers and what they hold.
        at_head: whether it came to the head.
        broken: why it ended before, if a page was not one.
    """

    events: list[SentEvent] = field(default_factory=list)
    marks: list[WalkMark] = field(default_factory=list)
    pages: list[tuple[Answer, PageText]] = field(default_factory=list)
    at_head: bool = False
    broken: Finding | None = None

    def ends(self) -> list[WalkMark]:
        """Return the checkpoints with events before and behind them."""
        return [mark for mark in self.marks if 0 < mark.count < len(self.events)]


def walk(read: Callable[[str], tuple[Answer, PageText]]) -> Walk:
    """Read a partition from its start until its head, or until it is enough.

    Args:
        read: asks for the page behind a cursor; returns the answer, and what it holds.
    """
    seen = Walk()
    began = time.monotonic()
    try:
        _walk(read, seen, began + LONGEST)
    except Finding as finding:
        seen.broken = finding
    return seen


def _walk(read: Callable[[str], tuple[Answer, PageText]], seen: Walk, end: float) -> None:
    cursor = FIRST
    empty = 0
    before: set[str] = set()
    while len(seen.pages) < MOST_PAGES and len(seen.events) < MOST_EVENTS:
        answer, page = read(cursor)
        seen.pages.append((answer, page))
        count = len(seen.events)
        seen.events += page.settled
        seen.marks += [
            WalkMark(mark.cursor, count + mark.count, inside=mark is not page.marks[-1])
            for mark in page.marks
        ]
        after = page.marks[-1].cursor
        if page.settled and (after == cursor or after in before):
            fail(
                "A page with events gives a cursor that was given before: it goes in circles.",
                answer,
            )
        empty = 0 if page.settled else empty + 1
        if empty and (after == cursor or page.marks[-1].caught_up is True or empty >= MOST_EMPTY):
            seen.at_head = True
            return
        before.add(after)
        cursor = after
        if time.monotonic() > end:
            return
