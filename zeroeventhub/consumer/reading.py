"""How often a step is tried, how long to wait before another try, and what a page says."""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from random import random
from typing import Any

from zeroeventhub.consumer.steps import Pause, Step
from zeroeventhub.errors import ProtocolError, TransientError
from zeroeventhub.protocol import Page

__all__ = [
    "LONGEST_BACKOFF",
    "LONGEST_WAIT",
    "SHORTEST_BACKOFF",
    "Passed",
    "Patience",
    "Stopped",
    "backoff",
    "moves_cursor",
    "pause_at_head",
    "persist",
    "reaches_head",
]

SHORTEST_BACKOFF = 0.1
LONGEST_BACKOFF = 30.0

LONGEST_WAIT = 5.0
"""Seconds that the feed is asked to wait at its head; a consumer that is stopped waits as long."""


class Stopped(Exception):  # noqa: N818 - named for what happened
    """Say that the consumer was stopped; it never leaves this package."""


def backoff(attempt: int, error: Exception) -> float:
    """Choose a pause in seconds: exponential with full jitter, at least what the feed asked."""
    ceiling = min(LONGEST_BACKOFF, SHORTEST_BACKOFF * 2.0 ** min(attempt, 16))
    asked = error.retry_after if isinstance(error, TransientError) else None
    return max(random() * ceiling, min(asked or 0.0, LONGEST_BACKOFF))  # noqa: S311 - jitter


@dataclass
class Patience:
    """Count failures in a row, and say how long to wait after each.

    Attributes:
        attempts: how often to try before the error is final; None for no limit.
        stopped: tells whether to give up.
        longest: seconds of the longest pause, where it is to be shorter than usual.
        failed: how many tries in a row have failed.
    """

    attempts: int | None
    stopped: Callable[[], bool]
    longest: float = math.inf
    failed: int = 0

    def wait_out(self, error: Exception) -> Generator[Step, Any, None]:
        """Wait before the next try.

        Raises:
            Exception: the error itself, if it ended the last try.
            Stopped: the consumer was stopped meanwhile.
        """
        self.failed += 1
        if self.attempts is not None and self.failed >= self.attempts:
            raise error
        yield Pause(min(backoff(self.failed, error), self.longest), error)
        if self.stopped():
            raise Stopped


def persist(step: Step, patience: Patience) -> Generator[Step, Any, Any]:
    """Yield a step until it succeeds, and return its result.

    Raises:
        TransientError: the last try ended in it.
        Stopped: the consumer was stopped meanwhile.
    """
    while True:
        try:
            return (yield step)
        except TransientError as error:
            yield from patience.wait_out(error)


@dataclass
class Passed:
    """Remember where the pages without events led since the last event, to notice a circle.

    A publisher that sends a reader round places without events would keep it for ever.
    """

    cursors: set[str] = field(default_factory=set)

    def brings_news(self, page: Page, partition: int, cursor: str) -> bool:
        """Tell whether a page that was read from a cursor holds events, or moves the cursor.

        Raises:
            ProtocolError: it holds events and does not move the cursor, or it holds none and leads
                to where others without events have led.
        """
        news = moves_cursor(len(page.events), partition, cursor, page.cursor)
        if page.events or page.caught_up:
            self.cursors.clear()
        elif news and page.cursor in self.cursors:
            raise ProtocolError(
                f"The feed leads in a circle in partition {partition}: pages without events end "
                "where others began."
            )
        elif news:
            self.cursors.add(page.cursor)
        return news


def moves_cursor(events: int, partition: int, before: str, after: str) -> bool:
    """Tell whether a page of so many events moves the cursor.

    Raises:
        ProtocolError: it holds events and does not move the cursor.
    """
    if events and after == before:
        raise ProtocolError(
            f"The feed sent events of partition {partition} without moving the cursor: they "
            "would come again for ever."
        )
    return after != before


def reaches_head(page: Page, cursor: str) -> bool:
    """Tell whether nothing followed a page that was read from a cursor.

    A feed that does not say so has reached its head when it brings nothing new.
    """
    return page.caught_up or page.cursor == cursor


def pause_at_head(poll_interval: float, *, waits: bool) -> Pause:
    """Choose the pause between two looks at the head.

    It is short where the feed waits in place of the consumer; it may not do so every time.
    """
    return Pause(min(poll_interval, SHORTEST_BACKOFF) if waits else poll_interval)
