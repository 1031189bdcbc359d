"""Read a feed over HTTP asynchronously, with the caller's own httpx client."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import httpx

from zeroeventhub.client.exchange import Exchange
from zeroeventhub.client.requests import UNREACHED, Wire
from zeroeventhub.protocol import (
    CURSOR_OF_COUNT,
    CURSOR_OF_TIME,
    FIRST,
    LAG,
    PROGRESS,
    SEGMENTS,
    SPLITS,
    CountedCursor,
    FeedInfo,
    KeyPage,
    Lag,
    Page,
    Segments,
    TypeFilter,
)
from zeroeventhub.wire.documents import decode_key_page

if TYPE_CHECKING:
    from zeroeventhub.wire.arrow import ArrowPage

__all__ = ["AsyncClient"]


class AsyncClient(Wire[httpx.AsyncClient]):
    """Read a feed page by page, asynchronously.

    Args:
        url: the feed's address, the one that answers discovery.
        http: your httpx client, with your authentication and timeouts; yours to close. Where it
            has no authentication, a user and password in `url` are used.
        partitions: how many partitions a v1 feed has, which it does not tell itself.
        limits: how much is taken from the feed before it is given up.
        compressed: whether to ask for answers in gzip, or in which of "gzip" and "zstd"; they are
            unpacked within the limits.
    """

    _http_type = httpx.AsyncClient

    async def discover(self) -> FeedInfo:
        """Ask the feed for its partitions; see `Client.discover`."""
        return self._understand_info(await self._ask(self._request(self._url)))

    async def fetch(
        self,
        partition: int,
        cursor: str,
        *,
        limit: int | None = None,
        headers: Sequence[str] = (),
        types: TypeFilter | None = None,
        stop: str | None = None,
        wait: float | None = None,
        data_type: Any = None,
    ) -> Page:
        """Fetch the page that follows a cursor; see `Client.fetch`."""
        info = self._info or await self.discover()
        request = self._page_request(
            info,
            partition,
            cursor,
            limit=limit,
            headers=headers,
            types=types,
            stop=stop,
            wait=wait,
            data_type=data_type,
        )
        return self._understand_page(await self._ask(request))

    async def fetch_arrow(
        self,
        partition: int,
        cursor: str,
        *,
        limit: int | None = None,
        types: TypeFilter | None = None,
        stop: str | None = None,
        wait: float | None = None,
    ) -> "ArrowPage":
        """Fetch a page as record batches; see `Client.fetch_arrow`."""
        info = self._info or await self.discover()
        options = {"limit": limit, "types": types, "stop": stop, "wait": wait}
        request = self._arrow_request(info, partition, cursor, **options)
        return self._understand_arrow(await self._ask(request))

    async def cursor_at(self, moment: datetime, partition: int = 0) -> str:
        """Ask for the cursor before a moment; see `Client.cursor_at`."""
        cursor: str = await self._answer(CURSOR_OF_TIME, moment, partition)
        return cursor

    async def splits(
        self, partition: int, count: int, *, start: str = FIRST, stop: str | None = None
    ) -> list[str]:
        """Ask for the cursors between pieces; see `Client.splits`."""
        cursors: list[str] = await self._answer(SPLITS, partition, count, start, stop)
        return cursors

    async def lag(self, partition: int, cursor: str) -> Lag:
        """Ask how many events lie behind a cursor; see `Client.lag`."""
        found: Lag = await self._answer(LAG, partition, cursor)
        return found

    async def cursor_of_count(
        self, partition: int, cursor: str, events: int, *, stop: str | None = None
    ) -> CountedCursor:
        """Ask for the cursor so many events behind another one; see `Client.cursor_of_count`."""
        found: CountedCursor = await self._answer(CURSOR_OF_COUNT, partition, cursor, events, stop)
        return found

    async def segments(self, partition: int, cursor: str, *, stop: str | None = None) -> Segments:
        """Ask in which files events lie; see `Client.segments`."""
        found: Segments = await self._answer(SEGMENTS, partition, cursor, stop)
        return found

    async def read_key(
        self, key: str, *, after_version: int = 0, limit: int | None = None
    ) -> KeyPage:
        """Ask for the events of one key; see `Client.read_key`."""
        info = self._info or await self.discover()
        request = self._key_request(info, key, after_version, limit)
        return decode_key_page(self._understand(await self._ask(request)), after_version)

    async def register_progress(self, consumer: str, partition: int, cursor: str) -> None:
        """Tell the publisher how far a consumer has committed; see `Client.register_progress`."""
        await self._answer(PROGRESS, consumer, partition, cursor)

    async def _answer(self, name: str, *values: Any) -> Any:
        """Ask for what an extension answers, given the values of its parameters in their order."""
        info = self._info or await self.discover()
        request = self._extension_request(info, name, *values)
        return self._understand_answer(name, await self._ask(request))

    async def _ask(self, request: Exchange) -> Exchange:
        """Send a request and take in its answer."""
        # The alarm inside: what came before it rings may hold a checkpoint.
        try:
            with self._redaction.asking(request.url):
                async with (
                    asyncio.timeout(request.deadline.left) as alarm,
                    self._http.stream(
                        request.method,
                        request.url,
                        headers=request.headers,
                        extensions={"timeout": request.timeouts},
                        **self._options,
                    ) as answer,
                ):
                    request.begin(answer)
                    _wind(alarm, request.deadline.left)
                    consumed = answer.is_stream_consumed
                    async for chunk in answer.aiter_bytes() if consumed else answer.aiter_raw():
                        if not request.take(chunk):
                            break
                        _wind(alarm, request.deadline.left)
        except UNREACHED as error:
            self._break_off(request, error)
        return request


def _wind(alarm: asyncio.Timeout, seconds: float) -> None:
    """Let an alarm ring after so many seconds, unless it is ringing."""
    if not alarm.expired():
        alarm.reschedule(asyncio.get_running_loop().time() + seconds)
