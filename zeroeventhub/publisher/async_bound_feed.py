"""A table's feed behind an async engine."""

from asyncio import to_thread
from collections.abc import Callable, Collection
from copy import copy
from datetime import datetime, timedelta
from typing import Concatenate, ParamSpec, Self, TypeVar

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine

from zeroeventhub.at_hand import NotAtHand, Parts
from zeroeventhub.protocol import (
    FIRST,
    CountedCursor,
    FeedInfo,
    KeyPage,
    Lag,
    Page,
    Segments,
    TypeFilter,
)
from zeroeventhub.publisher.archived.files import expect_shared
from zeroeventhub.publisher.archived.sealing import (
    SEGMENT_BYTES,
    SEGMENT_EVENTS,
    Sealed,
    SealOptions,
    async_drive,
    unheard,
)
from zeroeventhub.publisher.bound_feed import (
    AnsweringExtensions,
    Roles,
    expect_archive,
    head_of,
    on_commit,
    visit,
)
from zeroeventhub.publisher.checks import Finding
from zeroeventhub.publisher.compacting import AsyncCompacting
from zeroeventhub.publisher.horizon import HorizonReport
from zeroeventhub.publisher.progress import AsyncRegistering
from zeroeventhub.publisher.read_only import explained, guest_for, visiting
from zeroeventhub.publisher.trimming import AsyncTrimming
from zeroeventhub.settings import Capacity

__all__ = [
    "AsyncBoundFeed",
]

_Asked = ParamSpec("_Asked")
_Found = TypeVar("_Found")


class AsyncBoundFeed(AsyncCompacting, AsyncRegistering, AsyncTrimming, AnsweringExtensions):
    """Read a table's feed through an async engine."""

    def __init__(self, engine: AsyncEngine, capacity: Capacity, roles: Roles) -> None:
        self._reader = roles.reader
        self._trimmer = roles.trimmer
        self._sealer = roles.sealer
        self._files = roles.files
        self._registry = roles.registry
        self._compactor = roles.compactor
        self._engine = engine
        self._guest = guest_for(engine.dialect, capacity.statement_seconds)
        self._seconds = capacity.statement_seconds
        self.fetches = True
        """Whether what is not at hand is fetched; else NotAtHand says so."""

    def without_fetching(self) -> Self:
        """Return the same feed; see `BoundFeed.without_fetching`."""
        other = copy(self)
        other.fetches = False
        return other

    def on_commit(self, told: Callable[[], None]) -> None:
        """Tell of every commit through the engine, while it is under way; see `ExtendedFeed`."""
        on_commit(self._engine.sync_engine, told)

    @property
    def has_open_digests(self) -> bool:
        """Tell whether everybody can make the digest that a cursor holds; see `BoundFeed`."""
        return self._reader.has_open_digests

    @property
    def known_info(self) -> FeedInfo | None:
        """Describe the feed, if the database need not be asked for it; see `BoundFeed`."""
        return None if self._reader.checks.are_due else self._reader.info

    async def info(self) -> FeedInfo:
        """Describe the feed; see `Feed.info`."""
        known = self.known_info
        return await self._ask(self._reader.described) if known is None else known

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
        """Read a page; see `ExtendedFeed.read`."""
        return await self._ask(
            self._reader.read, partition, cursor, limit, types=types, stop=stop, each=each
        )

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
        """Read pages, one behind the other; see `ExtendedFeed.read_pages`."""
        return await self._ask(
            self._reader.read_pages, partition, cursor, limit, count, types=types, stop=stop
        )

    async def vouch(self, cursors: Collection[str]) -> None:
        """Refuse cursors if history is another one by now; see `ExtendedFeed.vouch`."""
        await self._ask(self._reader.vouch, cursors)

    async def head(self) -> int:
        """Return the horizon; see `ExtendedFeed.head`."""
        with explained():
            async with self._engine.connect() as connection:
                return await connection.run_sync(head_of, self._reader, self._guest, self._seconds)

    async def horizon(self) -> HorizonReport:
        """Tell how far the feed may be read; see `BoundFeed.horizon`."""
        return await self._ask(self._reader.horizon)

    async def splits(
        self, partition: int, count: int, *, start: str = FIRST, stop: str | None = None
    ) -> list[str]:
        """Return the cursors between pieces of a partition; see `BoundFeed.splits`."""
        return await self._ask(self._reader.splits, partition, count, start, stop)

    async def lag(self, partition: int, cursor: str) -> Lag:
        """Count the settled events behind a cursor; see `BoundFeed.lag`."""
        return await self._ask(self._reader.lag, partition, cursor)

    async def cursor_of_count(
        self, partition: int, cursor: str, events: int, *, stop: str | None = None
    ) -> CountedCursor:
        """Return the cursor behind so many events; see `ExtendedFeed.cursor_of_count`."""
        return await self._ask(self._reader.cursor_of_count, partition, cursor, events, stop)

    async def read_key(
        self,
        key: str,
        after_version: int,
        limit: int,
        *,
        partitions: Collection[int] | None = None,
    ) -> KeyPage:
        """Read the events of a key; see `ExtendedFeed.read_key`."""
        return await self._ask(
            self._reader.read_key, key, after_version, limit, partitions=partitions
        )

    async def cursor_of(
        self, event_id: str, partition: int = 0, *, types: TypeFilter | None = None
    ) -> str:
        """Return the cursor behind the event of an id; see `ExtendedFeed.cursor_of`."""
        return await self._ask(self._reader.cursor_of, event_id, partition, types=types)

    async def cursor_after(self, position: int) -> str:
        """Return the cursor that stands after a position; see `BoundFeed.cursor_after`."""
        return await self._ask(self._reader.cursor_after, position)

    async def cursor_at(self, moment: datetime, partition: int = 0) -> str:
        """Return the cursor before all events of a moment; see `BoundFeed.cursor_at`."""
        return await self._ask(self._reader.cursor_at, moment, partition)

    async def check(self) -> list[Finding]:
        """Look at everything that the feed relies on; see `BoundFeed.check`."""

        def look(connection: Connection) -> list[Finding]:
            with visiting(connection, self._guest):
                return self._reader.checks.findings(connection)

        with explained():
            async with self._engine.connect() as connection:
                return await connection.run_sync(look)

    async def segments(self, partition: int, cursor: str, *, stop: str | None = None) -> Segments:
        """Return the files in which events lie; see `ExtendedFeed.segments`."""
        files = expect_shared(self._files)
        found = await self._ask(files.between, partition, cursor, stop)
        return await to_thread(files.named, *found)

    async def seal(
        self,
        *,
        older_than: timedelta | None = None,
        segment_events: int = SEGMENT_EVENTS,
        segment_bytes: int = SEGMENT_BYTES,
        least: int = 1,
        told: Callable[[int], None] = unheard,
    ) -> Sealed:
        """Write what is settled into the feed's archive; see `BoundFeed.seal`."""
        options = SealOptions(
            older_than=older_than,
            segment_events=segment_events,
            segment_bytes=segment_bytes,
            least=least,
            told=told,
        )
        return await async_drive(expect_archive(self._sealer).sealing(options), self._ask)

    async def erase(self, *, ids: Collection[str] = (), keys: Collection[str] = ()) -> int:
        """Take events out of the feed's archive for good; see `BoundFeed.erase`."""
        return await to_thread(expect_archive(self._sealer).erase, ids, keys)

    async def _ask(
        self,
        question: Callable[Concatenate[Connection, _Asked], _Found],
        *arguments: _Asked.args,
        **options: _Asked.kwargs,
    ) -> _Found:
        parts = Parts()
        while True:
            try:
                with explained():
                    async with self._engine.connect() as connection:
                        return await connection.run_sync(
                            visit, self._reader, self._guest, question, *arguments, **options
                        )
            except NotAtHand as missing:
                if not self.fetches:
                    raise
                parts.keep(await to_thread(missing.load))
