"""The port that every publisher implements: describe yourself, and read a page.

A feed over a SQL table is ready-made (`TableFeed`). Anything else that has an order and
a place in it can be published by a class of two methods, sync or async. It may raise:

- `BadCursor` for a cursor that it has not given,
- `Trimmed` or `Diverged` for a cursor whose history it no longer has,
- `Unavailable` when it cannot answer just now.

What else it can do, it names in the `extensions` of its info, and then has the methods of
`ExtendedFeed` that belong to them.
"""

from collections.abc import Callable, Collection, Hashable
from datetime import datetime
from typing import Any, Protocol

from zeroeventhub.errors import Unavailable
from zeroeventhub.protocol import (
    CountedCursor,
    FeedInfo,
    KeyPage,
    Lag,
    Page,
    Segments,
    TypeFilter,
)
from zeroeventhub.settings import Capacity

__all__ = [
    "ArchiveMiss",
    "AsyncExtendedFeed",
    "AsyncFeed",
    "ExtendedFeed",
    "Feed",
    "FeedSource",
    "hold_part",
]


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


class ExtendedFeed(Protocol):
    """Publish events in order, with the extensions that `info` names."""

    def info(self) -> FeedInfo:
        """Describe the feed as it is now; see `Feed.info`."""

    def read(
        self,
        partition: int,
        cursor: str,
        limit: int,
        *,
        types: TypeFilter | None = None,
        stop: str | None = None,
        each: bool = False,
    ) -> Page:
        """Read the events that follow a cursor; see `Feed.read`.

        An argument by name is given only if it was asked for and its extension is named.

        Args:
            partition: one of those that `info` names.
            cursor: FIRST, LAST, or the cursor of an earlier page.
            limit: how many events to return at most.
            types: the types of events to return (EVENT_TYPES). The page's cursor moves on over
                events of other types.
            stop: a cursor, after which no event is returned (STOP).
            each: whether to give the cursor after each event in the page's `cursors`, as a stream
                of server-sent events needs it.
        """

    def read_pages(
        self,
        partition: int,
        cursor: str,
        limit: int,
        count: int,
        *,
        types: TypeFilter | None = None,
        stop: str | None = None,
    ) -> list[Page]:
        """Read pages, each where the one before ends, for a reader that reads on.

        A feed need not have this method: then it is asked for one page after the other.

        Args:
            partition: one of those that `info` names.
            cursor: of the first page: FIRST, or the cursor of an earlier page.
            limit: how many events each page holds at most.
            count: how many pages to read at most.
            types: the types of events to return.
            stop: a cursor, after which no event is returned.

        Returns:
            One page or more; each but the last is full.
        """

    def vouch(self, cursors: Collection[str]) -> None:
        """Refuse cursors if the history that they were given for is another one by now.

        The server keeps full pages of a feed that has this method for a while, and calls it again
        and again while they are sent. It keeps no pages of feeds without it.

        Args:
            cursors: those before and after full pages.

        Raises:
            Gone: one of them is not of this history any more, or of what is left of it.
        """

    def head(self) -> Hashable:
        """Return something that is another when there may be something new to read (WAIT)."""

    def on_commit(self, notify: Callable[[], None], /) -> None:
        """Call a function at every commit of this process, to answer waiters soon (WAIT).

        A feed need not have this method: the server polls its head while a request waits.

        Args:
            notify: does not wait, and may be called from any thread, also before the commit is
                done.
        """

    def cursor_at(self, moment: datetime, partition: int = 0) -> str:
        """Return the cursor before all events of a moment or later (CURSOR_OF_TIME)."""

    def splits(
        self, partition: int, count: int, *, start: str, stop: str | None = None
    ) -> list[str]:
        """Return the cursors between which a partition falls into pieces (SPLITS).

        Args:
            partition: one of those that `info` names.
            count: how many pieces to make at most.
            start: where the first piece starts: FIRST or a cursor.
            stop: where the last piece ends; None for the head.

        Returns:
            Two cursors or more, in order; none of them is FIRST or LAST.
        """

    def lag(self, partition: int, cursor: str) -> Lag:
        """Count the settled events that lie after a cursor now (LAG).

        Args:
            partition: one of those that `info` names.
            cursor: FIRST, LAST, or the cursor of an earlier page.
        """

    def cursor_of_count(
        self, partition: int, cursor: str, events: int, *, stop: str | None = None
    ) -> CountedCursor:
        """Return the cursor after so many of the settled events that follow one (CURSOR_OF_COUNT).

        Args:
            partition: one of those that `info` names.
            cursor: FIRST, or the cursor of an earlier page.
            events: how many events are wanted, from 1 on.
            stop: a cursor, after which no event is counted; None for the head.

        Returns:
            The cursor, which is never FIRST or LAST, and how many events a read from the one asked
            for brings up to it: fewer than wanted only where it stands at `stop` or at the head.
            The cursor is the one asked for if there are none, and otherwise `stop` if it stands
            there.
        """

    def segments(self, partition: int, cursor: str, *, stop: str | None = None) -> Segments:
        """Return where the events that follow a cursor lie in files, as far as they do (SEGMENTS).

        Args:
            partition: one of those that `info` names.
            cursor: FIRST, or the cursor of an earlier page.
            stop: a cursor, after which no event is wanted; None for the head.
        """

    def read_key(
        self,
        key: str,
        after_version: int,
        limit: int,
        *,
        partitions: Collection[int] | None = None,
    ) -> KeyPage:
        """Read the events of a key, in the order of their versions (KEY_HISTORY).

        Args:
            key: as its JSON has it.
            after_version: the version after which to begin, from 0 on.
            limit: how many events to return at most.
            partitions: those that the reader may see, where it may not see all; given only then.
        """

    def register_progress(
        self, consumer: str, partition: int, cursor: str, *, principal: str
    ) -> None:
        """Note how far a consumer has committed, so that trimming waits for it (PROGRESS).

        Args:
            consumer: its name: not empty, and one line.
            partition: one of those that `info` names.
            cursor: the cursor of a page that it has committed.
            principal: the name of the principal whose consumer it is; empty for anonymous readers.

        Raises:
            BadRequest: the name or the cursor is none.
            Gone: the feed does not have what lies after the cursor.
        """

    def cursor_of(self, event_id: str, partition: int, *, types: TypeFilter | None = None) -> str:
        """Return the cursor after the event of an id, as an HTTP feed needs it.

        Args:
            event_id: as its JSON has it.
            partition: one of those that `info` names.
            types: the types of events of which it has to be one, where the reader may see only
                those (EVENT_TYPES); given only then.
        """


class AsyncExtendedFeed(Protocol):
    """Publish events with extensions from asynchronous code; see ExtendedFeed."""

    async def info(self) -> FeedInfo:
        """Describe the feed as it is now; see `Feed.info`."""

    async def read(
        self,
        partition: int,
        cursor: str,
        limit: int,
        *,
        types: TypeFilter | None = None,
        stop: str | None = None,
        each: bool = False,
    ) -> Page:
        """Read the events that follow a cursor; see `ExtendedFeed.read`."""

    async def read_pages(
        self,
        partition: int,
        cursor: str,
        limit: int,
        count: int,
        *,
        types: TypeFilter | None = None,
        stop: str | None = None,
    ) -> list[Page]:
        """Read pages for a reader that reads on; see `ExtendedFeed.read_pages`."""

    async def vouch(self, cursors: Collection[str]) -> None:
        """Refuse cursors if history is another one by now; see `ExtendedFeed.vouch`."""

    async def head(self) -> Hashable:
        """Return what tells whether there is something new; see `ExtendedFeed.head`."""

    def on_commit(self, notify: Callable[[], None], /) -> None:
        """Call a function at every commit of this process; see `ExtendedFeed.on_commit`."""

    async def cursor_at(self, moment: datetime, partition: int = 0) -> str:
        """Return the cursor before a moment; see `ExtendedFeed.cursor_at`."""

    async def splits(
        self, partition: int, count: int, *, start: str, stop: str | None = None
    ) -> list[str]:
        """Return the cursors between pieces; see `ExtendedFeed.splits`."""

    async def lag(self, partition: int, cursor: str) -> Lag:
        """Count the events after a cursor; see `ExtendedFeed.lag`."""

    async def cursor_of_count(
        self, partition: int, cursor: str, events: int, *, stop: str | None = None
    ) -> CountedCursor:
        """Return the cursor after so many events; see `ExtendedFeed.cursor_of_count`."""

    async def segments(self, partition: int, cursor: str, *, stop: str | None = None) -> Segments:
        """Return where events lie in files; see `ExtendedFeed.segments`."""

    async def read_key(
        self,
        key: str,
        after_version: int,
        limit: int,
        *,
        partitions: Collection[int] | None = None,
    ) -> KeyPage:
        """Read the events of a key; see `ExtendedFeed.read_key`."""

    async def register_progress(
        self, consumer: str, partition: int, cursor: str, *, principal: str
    ) -> None:
        """Note how far a consumer has committed; see `ExtendedFeed.register_progress`."""

    async def cursor_of(
        self, event_id: str, partition: int, *, types: TypeFilter | None = None
    ) -> str:
        """Return the cursor after an event; see `ExtendedFeed.cursor_of`."""


class FeedSource(Protocol):
    """Turn into a feed once there is a database engine to read from."""

    def bind(self, engine: Any, capacity: Capacity | None = None) -> Feed | AsyncFeed:
        """Return the feed that reads through an engine.

        Args:
            engine: the host's.
            capacity: how much the feed takes of it.
        """


_MOST = 10_000
"""How many parts of an archive are fetched for one question, at most."""


class ArchiveMiss(Exception):  # noqa: N818 - no error: the question is asked again
    """Say what to fetch before the question is asked again.

    Attributes:
        load: fetches it; what it returns is kept alive until the question is answered.
    """

    def __init__(self, load: Callable[[], object]) -> None:
        super().__init__("A part of the archive has to be fetched first.")
        self.load = load


def hold_part(held: list[object], part: object) -> None:
    """Keep what was fetched for a question alive until it is answered.

    Raises:
        Unavailable: there are too many parts.
    """
    held.append(part)
    if len(held) > _MOST:
        raise Unavailable("The answer needs too many parts of the archive.", retry_after=60)
