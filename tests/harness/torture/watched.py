"""A feed object that is watched while several readers use it."""

from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from sqlalchemy import Table

from zeroeventhub.errors import FeedFailure, Unavailable
from zeroeventhub.protocol import Page
from zeroeventhub.publisher.bound_feed import BoundFeed

_Answer = TypeVar("_Answer")


class WatchedFeed:
    """Read a feed, and note when it says less than it has said before.

    Args:
        table: what the feed is made of.
        feed: the feed.
        steady: whether its horizon never goes back; that of a gate does for a moment, if a writer
            is slow between reading the last number and leaving its mark. Its numbers are above.
    """

    def __init__(self, table: Table, feed: BoundFeed, *, steady: bool = True) -> None:
        self.table = table
        self._feed = feed
        self._steady = steady
        self._lock = Lock()
        self._horizon = 0
        self._answered = False
        self.went_back: list[str] = []
        self.fell_silent: list[str] = []

    def read(self, partition: int, cursor: str, limit: int) -> Page | None:
        """Read a page; None while the feed, which has just started, knows no horizon."""
        return self._ask(lambda: self._feed.read(partition, cursor, limit))

    def look(self) -> None:
        """Ask for the horizon, which must not lie below one that was known before."""
        before = self._horizon
        if (horizon := self._ask(self._feed.head)) is None:
            return
        with self._lock:
            if self._steady and horizon < before:
                self.went_back.append(f"{before} to {horizon}")
            self._horizon = max(self._horizon, horizon)

    def _ask(self, question: Callable[[], _Answer]) -> _Answer | None:
        try:
            answer = question()
        except Unavailable as error:
            if self._answered:
                self.fell_silent.append(repr(error.__cause__ or error))
            return None
        except FeedFailure as error:
            self.fell_silent.append(repr(error.__cause__ or error))
            return None
        self._answered = True
        return answer
