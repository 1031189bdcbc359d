"""The port that every publisher implements: describe the feed, and read a page.

`TableFeed` is the feed over a SQL table. To publish anything else that has an order, write a class
with the two methods of `Feed` or `AsyncFeed`. They may raise:

- `BadCursor` for a cursor that the feed has not given,
- `Trimmed` or `Diverged` for a cursor whose history the feed no longer has,
- `Unavailable` when the feed cannot answer at the moment.

A feed with more abilities names them in the `extensions` of its info, and implements their methods
of `ExtendedFeed`.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from datetime import datetime
from typing import Any, Protocol

from zeroeventhub.errors import Unavailable, ZeroEventHubError
from zeroeventhub.new_events import Batch
from zeroeventhub.protocol import (
    Appended,
    CountedCursor,
    FeedInfo,
    KeyPage,
    Lag,
    Page,
    Schemas,
    Segments,
    TypeFilter,
)
from zeroeventhub.settings import Capacity


class Feed(Protocol):
    """Publish events in order.

    Example:
        class Numbers:
            def info(self):
                return FeedInfo.of(partitions=1)

            def read(self, partition, cursor, limit):
                start = int({FIRST: 0, LAST: 100}.get(cursor, cursor))
                end = min(start + limit, 100)
                return Page([Event.of(str(number)) for number in range(start, end)], str(end))
    """

    def info(self) -> FeedInfo:
        """Describe the feed as it is now; called for every request."""

    def read(self, partition: int, cursor: str, limit: int) -> Page:
        """Read the events that follow a cursor.

        Args:
            partition: one of those that `info` names.
            cursor: FIRST, LAST, or the cursor of an earlier page.
            limit: the most events to return, 1 or more.

        Returns:
            A page, complete in memory. Its cursor is the requested one if no event follows it,
            and never FIRST or LAST.
        """


class AsyncFeed(Protocol):
    """Publish events in order, from asynchronous code; the methods are those of Feed.

    Example:
        class Relay:
            async def info(self):
                return replace(await client.discover(), extensions=frozenset())

            async def read(self, partition, cursor, limit):
                return await client.fetch(partition, cursor, limit=limit)
    """

    async def info(self) -> FeedInfo: ...
    async def read(self, partition: int, cursor: str, limit: int) -> Page: ...


class ExtendedFeed(Feed, Protocol):
    """Publish events in order, with the extensions that `info` names.

    Example:
        class Relay:
            def info(self):
                return replace(client.discover(), extensions=frozenset({"lag"}))

            def read(self, partition, cursor, limit):
                return client.fetch(partition, cursor, limit=limit)

            def lag(self, partition, cursor):
                return client.lag(partition, cursor)
    """

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

        The server passes a keyword argument only if the request has it and `info` names its
        extension.

        Args:
            partition: one of those that `info` names.
            cursor: FIRST, LAST, or the cursor of an earlier page.
            limit: the most events to return, 1 or more.
            types: the types of events to return (EVENT_TYPES). The page's cursor moves on over
                events of other types.
            stop: the cursor at which to stop reading (STOP).
            each: whether to return the cursor after each event in the page's `cursors`, for
                server-sent events.
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
        on_page: Callable[[Page], object] | None = None,
    ) -> list[Page]:
        """Read several pages in one call, each from the cursor of the one before.

        Optional: the server calls `read` for each page of a feed without this method.

        Args:
            partition: one of those that `info` names.
            cursor: FIRST, or the cursor of an earlier page.
            limit: the most events of each page, 1 or more.
            count: the most pages to read.
            types: the types of events to return.
            stop: the cursor at which to stop reading.
            on_page: may be called with the first pages, in order, while the others are read, in
                whatever thread reads them. Such a page is full, and remains as it is.

        Returns:
            One page or more, with those of `on_page`; each but the last is full.
        """

    def vouch(self, cursors: Collection[str]) -> None:
        """Refuse cursors if the feed's history has changed since it gave them.

        Optional: the server caches full pages of a feed with this method only, and calls it while
        it sends them.

        Args:
            cursors: the cursors before and after cached pages.

        Raises:
            Gone: a cursor belongs to another history, or to trimmed events.
        """

    def head(self) -> Hashable:
        """Return a value that changes when there may be new events to read (WAIT)."""

    def on_commit(self, notify: Callable[[], None], /) -> None:
        """Call a function at every commit of this process, to answer long polls soon (WAIT).

        Optional: the server polls `head` while a request waits.

        Args:
            notify: returns at once; may be called from any thread, and before the commit is done.
        """

    def cursor_at(self, moment: datetime, partition: int = 0) -> str:
        """Return the cursor before all events of a moment or later (CURSOR_OF_TIME).

        Args:
            moment: with a time zone.
            partition: one of those that `info` names.
        """

    def splits(
        self, partition: int, count: int, *, start: str, stop: str | None = None
    ) -> list[str]:
        """Divide a partition into pieces of about equal size; return their bounds (SPLITS).

        Args:
            partition: one of those that `info` names.
            count: the most pieces.
            start: the start of the first piece: FIRST or a cursor.
            stop: the end of the last piece; None for the head.

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
        """Return the cursor a number of settled events after another one (CURSOR_OF_COUNT).

        Args:
            partition: one of those that `info` names.
            cursor: FIRST, or the cursor of an earlier page.
            events: the number of events, from 1 on.
            stop: the cursor at which to stop counting; None for the head.

        Returns:
            The cursor, never FIRST or LAST, and the number of events up to it: fewer than `events`
            only at `stop` or at the head. Without events, the cursor is the given one; at `stop`,
            it is `stop`.
        """

    def segments(self, partition: int, cursor: str, *, stop: str | None = None) -> Segments:
        """Locate the events that follow a cursor in files, as far as they are in files (SEGMENTS).

        Args:
            partition: one of those that `info` names.
            cursor: FIRST, or the cursor of an earlier page.
            stop: the cursor at which to stop; None for the head.
        """

    def read_key(
        self, key: str, after_version: int, limit: int, *, partitions: Collection[int] | None = None
    ) -> KeyPage:
        """Read the events of a key, in the order of their versions (KEY_HISTORY).

        Args:
            key: the key, as in the event's JSON.
            after_version: the version after which to begin, from 0 on.
            limit: the most events to return, 1 or more.
            partitions: passed only for a reader that may not see all partitions: those it may.
        """

    def register_progress(
        self, consumer: str, partition: int, cursor: str, *, principal: str
    ) -> None:
        """Store how far a consumer has committed, so that trimming waits for it (PROGRESS).

        Args:
            consumer: the consumer's name: not empty, and one line.
            partition: one of those that `info` names.
            cursor: the cursor of a page that the consumer has committed.
            principal: the name of the consumer's principal; empty for anonymous readers.

        Raises:
            BadRequest: the name or the cursor is malformed.
            Gone: the feed no longer has the events after the cursor.
        """

    def forget_progress(self, consumer: str, *, principal: str) -> int:
        """Delete what a consumer has registered (FORGET_PROGRESS); return in how many partitions.

        Args:
            consumer: the consumer's name: not empty, and one line.
            principal: the name of the consumer's principal; empty for anonymous readers.
        """

    def schemas(self) -> Schemas:
        """Describe the data of events by JSON Schema (SCHEMAS).

        The server shows a reader the schemas of the types that it may see.
        """

    def append(self, batches: Sequence[Batch]) -> list[list[Appended] | ZeroEventHubError]:
        """Append batches of events, each wholly or not at all (APPEND).

        The server calls it for the batches that wait, one call at a time.

        Args:
            batches: one or more, of one writer each.

        Returns:
            For each batch where its events are, once they are stored, or the error for its
            writer.
        """

    def producer_sequence(self, producer: str, *, principal: str) -> int:
        """Return the sequence of the last batch of a producer (PRODUCER_SEQUENCE).

        Args:
            producer: the producer's name.
            principal: the name of the writer's principal; empty for anonymous writers.

        Returns:
            The sequence; 0 for an unknown producer.
        """

    def cursor_of(self, event_id: str, partition: int, *, types: TypeFilter | None = None) -> str:
        """Return the cursor after the event with an id, for the rendition as an HTTP feed.

        Args:
            event_id: the id, as in the event's JSON.
            partition: one of those that `info` names.
            types: passed only for a reader that may not see all types: those it may (EVENT_TYPES).
        """


class AsyncExtendedFeed(AsyncFeed, Protocol):
    """Publish events with extensions from asynchronous code.

    The methods are those of ExtendedFeed, as coroutines; `on_commit` is a plain one.

    Example:
        class Relay:
            async def info(self):
                return replace(await client.discover(), extensions=frozenset({"lag"}))

            async def read(self, partition, cursor, limit):
                return await client.fetch(partition, cursor, limit=limit)

            async def lag(self, partition, cursor):
                return await client.lag(partition, cursor)
    """

    async def read(
        self,
        partition: int,
        cursor: str,
        limit: int,
        *,
        types: TypeFilter | None = None,
        stop: str | None = None,
        each: bool = False,
    ) -> Page: ...
    async def read_pages(
        self,
        partition: int,
        cursor: str,
        limit: int,
        count: int,
        *,
        types: TypeFilter | None = None,
        stop: str | None = None,
        on_page: Callable[[Page], object] | None = None,
    ) -> list[Page]: ...
    async def vouch(self, cursors: Collection[str]) -> None: ...
    async def head(self) -> Hashable: ...
    def on_commit(self, notify: Callable[[], None], /) -> None: ...
    async def cursor_at(self, moment: datetime, partition: int = 0) -> str: ...
    async def splits(
        self, partition: int, count: int, *, start: str, stop: str | None = None
    ) -> list[str]: ...
    async def lag(self, partition: int, cursor: str) -> Lag: ...
    async def cursor_of_count(
        self, partition: int, cursor: str, events: int, *, stop: str | None = None
    ) -> CountedCursor: ...
    async def segments(
        self, partition: int, cursor: str, *, stop: str | None = None
    ) -> Segments: ...
    async def read_key(
        self, key: str, after_version: int, limit: int, *, partitions: Collection[int] | None = None
    ) -> KeyPage: ...
    async def register_progress(
        self, consumer: str, partition: int, cursor: str, *, principal: str
    ) -> None: ...
    async def forget_progress(self, consumer: str, *, principal: str) -> int: ...
    async def schemas(self) -> Schemas: ...
    async def append(
        self, batches: Sequence[Batch]
    ) -> list[list[Appended] | ZeroEventHubError]: ...
    async def producer_sequence(self, producer: str, *, principal: str) -> int: ...
    async def cursor_of(
        self, event_id: str, partition: int, *, types: TypeFilter | None = None
    ) -> str: ...


class FeedSource(Protocol):
    """Describe a feed that has no database engine yet."""

    def bind(self, engine: Any, capacity: Capacity | None = None) -> Feed | AsyncFeed:
        """Return the feed that reads through an engine.

        Args:
            engine: the host's engine, sync or async.
            capacity: the bounds of what the feed uses; None for the defaults.
        """


_MOST = 10_000
"""The most parts of an archive that one call fetches."""


class ArchiveMiss(Exception):
    """Name a part of the archive to fetch before the caller tries again.

    Attributes:
        load: fetches the part, or a list of parts; the caller keeps its result alive until the call
            has succeeded.
    """

    def __init__(self, load: Callable[[], object]) -> None:
        super().__init__("A part of the archive has to be fetched first.")
        self.load = load


def hold_part(held: list[object], part: object) -> None:
    """Keep a fetched part, or a list of them, alive until the call has succeeded.

    Raises:
        Unavailable: the call needs too many parts.
    """
    held += part if isinstance(part, list) else [part]
    if len(held) > _MOST:
        raise Unavailable("The answer needs too many parts of the archive.", retry_after=60)
