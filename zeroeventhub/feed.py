"""The port that every publisher implements: describe yourself, and read a page.

A feed over a SQL table is ready-made (`TableFeed`). Anything else that has an order and
a place in it can be published by a class of two methods, sync or async. It may raise:

- `BadCursor` for a cursor that it has not given,
- `Trimmed` or `Diverged` for a cursor whose history it no longer has,
- `Unavailable` when it cannot answer just now.
"""

from typing import Any, Protocol

from zeroeventhub.protocol import FeedInfo, Page

__all__ = ["AsyncFeed", "Feed", "FeedSource"]


class Feed(Protocol):
    """Publish events in order."""

    def info(self) -> FeedInfo:
        """Describe the feed as it is now; called for every request."""

    def read(self, partition: int, cursor: str, limit: int) -> Page:
        """Read the events that follow a cursor.

        Args:
            partition: one of those that `info` names.
            cursor: FIRST, LAST, or the cursor of an earlier page.
            limit: how many events to return at most.

        Returns:
            A page, complete in memory. Its cursor is the one asked for if nothing follows it,
            and never FIRST or LAST.
        """


class AsyncFeed(Protocol):
    """Publish events in order, from asynchronous code; the methods are those of Feed."""

    async def info(self) -> FeedInfo:
        """Describe the feed as it is now; called for every request."""

    async def read(self, partition: int, cursor: str, limit: int) -> Page:
        """Read the events that follow a cursor."""


class FeedSource(Protocol):
    """Turn into a feed once there is a database engine to read from."""

    def bind(self, engine: Any) -> Feed | AsyncFeed:
        """Return the feed that reads through an engine."""
