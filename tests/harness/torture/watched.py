"""A feed object that is watched while several readers use it."""

from threading import Lock

from sqlalchemy import Table

from zeroeventhub import LAST
from zeroeventhub.errors import Unavailable
from zeroeventhub.feed import Feed
from zeroeventhub.protocol import Page
from zeroeventhub.publisher.cursor import Place


class WatchedFeed:
    """Read a feed, and note when it says less than it has said before.

    Args:
        table: what the feed is made of.
        feed: the feed.
    """

    def __init__(self, table: Table, feed: Feed) -> None:
        self.table = table
        self._feed = feed
        self._lock = Lock()
        self._horizon = 0
        self._answered = False
        self.went_back: list[str] = []
        self.fell_silent: list[str] = []

    def read(self, partition: int, cursor: str, limit: int) -> Page | None:
        """Read a page; None while the feed, which has just started, knows no horizon."""
        try:
            page = self._feed.read(partition, cursor, limit)
        except Unavailable as error:
            if self._answered:
                self.fell_silent.append(repr(error.__cause__ or error))
            return None
        self._answered = True
        return page

    def look(self) -> None:
        """Ask for the horizon, which must not lie below one that was known before."""
        before = self._horizon
        if (page := self.read(0, LAST, 1)) is None:
            return
        horizon = Place.of(page.cursor).position
        with self._lock:
            if horizon < before:
                self.went_back.append(f"{before} to {horizon}")
            self._horizon = max(self._horizon, horizon)
