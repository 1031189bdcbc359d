"""What a page says: whether it brought anything, and whether it reached the head."""

from dataclasses import dataclass, field

from zeroeventhub._follow.backoff import SHORTEST_BACKOFF
from zeroeventhub._follow.steps import Pause
from zeroeventhub.errors import ProtocolError
from zeroeventhub.protocol import Page

__all__ = ["LONGEST_WAIT", "Passed", "moves_cursor", "pause_at_head", "reaches_head"]

LONGEST_WAIT = 5.0
"""Seconds that the feed is asked to wait at its head; a consumer that is stopped waits as long."""


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
