"""How far a read goes of a feed that has to be read through to know."""

from dataclasses import dataclass

from zeroeventhub._follow.pages import Passed, reaches_head
from zeroeventhub.client import Client
from zeroeventhub.errors import CutPage
from zeroeventhub.protocol import LAST, Page
from zeroeventhub.spark.connection import Connection
from zeroeventhub.spark.options import Options

__all__ = ["Reach", "Walk"]


@dataclass(frozen=True)
class Reach:
    """Say how far a read goes from some place.

    Attributes:
        cursor: where it ends.
        events: how many events lie between.
        at_head: whether nothing follows.
    """

    cursor: str
    events: int
    at_head: bool


class Walk:
    """Read through partitions on the driver.

    Args:
        connection: to the feed.
        options: how it is read.
        can_stop: whether the feed reads up to a cursor and no further.
    """

    def __init__(self, connection: Connection, options: Options, *, can_stop: bool) -> None:
        self._connection = connection
        self._options = options
        self._can_stop = can_stop

    def reach(self, partition: int, start: str, events: int | None, stop: str | None) -> Reach:
        """Read through pages, and keep nothing of them but where they end.

        Args:
            partition: the partition.
            start: where the read begins.
            events: how many events it has at most; None for as many as there are.
            stop: where it ends at the latest; None for the head.
        """
        cursor, end, found, at_head = start, start, 0, False
        passed = Passed()
        while not at_head and (events is None or found < events):
            size = self._options.page_size
            wanted = size if events is None else min(size, events - found)
            page = self.page(partition, cursor, wanted, stop)
            passed.brings_news(page, partition, cursor)
            at_head = page.stop_reached or reaches_head(page, cursor)
            if 0 < len(page.events) < wanted and not self._can_stop:
                end = self._cut(partition, cursor, page)
            elif page.events:
                end = page.cursor
            found, cursor = found + len(page.events), page.cursor
        return Reach(end, found, at_head)

    def _cut(self, partition: int, start: str, page: Page) -> str:
        """Return where a page ends if it ends for the number of its events.

        At the head a page may end further on than its last event, at another place each time.
        """
        count = len(page.events)
        again = self.page(partition, start, count, None)
        return again.cursor if len(again.events) == count else page.cursor

    def page(self, partition: int, cursor: str, limit: int, stop: str | None) -> Page:
        """Fetch one page; an empty one where a feed is silent at its head."""

        def fetch(client: Client) -> Page:
            try:
                return client.fetch(partition, cursor, limit=limit, stop=stop)
            except CutPage:
                # Some feeds have nothing to say at their head, not even where it is (SPEC 19).
                if self._can_stop or client.fetch(partition, LAST, limit=1).cursor != cursor:
                    raise
                return Page([], cursor)

        return self._connection.ask(fetch)
