"""Read pages of a feed over HTTP, with the caller's own httpx client."""

from collections.abc import Sequence
from datetime import datetime

import httpx

from zeroeventhub._wire import HEADERS, PAGE_HEADERS, Wire, rfc3339
from zeroeventhub.ndjson import PageDecoder, decode_cursor, decode_splits
from zeroeventhub.protocol import CURSOR_OF_TIME, FIRST, SPLITS, FeedInfo, Page, TypeFilter

__all__ = ["AsyncClient", "Client"]


class Client(Wire[httpx.Client]):
    """Read a feed page by page.

    Args:
        url: the feed's address, the one that answers discovery.
        http: your httpx client, with your authentication and timeouts; yours to close.
        partitions: how many partitions a v1 feed has, which it does not tell itself.
    """

    def discover(self) -> FeedInfo:
        """Ask the feed for its partitions; falls back to v1 if `partitions` was given.

        Raises:
            FeedError: the feed refused.
            TransientError: it could not be reached or cannot answer now.
            ProtocolError: what answered is not a feed.
        """
        with self._reaching():
            response = self._http.get(self._url, headers=HEADERS, follow_redirects=False)
        return self._understand_info(response.status_code, response.headers, response.content)

    def fetch(
        self,
        partition: int,
        cursor: str,
        *,
        limit: int | None = None,
        headers: Sequence[str] = (),
        types: TypeFilter | None = None,
        stop: str | None = None,
        wait: float | None = None,
    ) -> Page:
        """Fetch the page that follows a cursor, discovering the feed first if need be.

        Args:
            partition: the partition's id.
            cursor: FIRST, LAST, or the cursor of an earlier page.
            limit: how many events to ask for (`pagesizehint` on the wire); a hint.
            headers: v1 headers to ask for by name; `_all` for all.
            types: the types of events to ask for; a feed that does not announce the extension
                "event-types" may send others as well.
            stop: a cursor to read up to and no further; for feeds with the extension "stop".
            wait: seconds that the feed may wait at the head for something to read; without the
                extension "wait" it answers at once.

        Raises:
            ConfigurationError: the feed cannot do what was asked for.
            TokenChanged: the partitions have changed: discover again.
            FeedError: the feed refused.
            TransientError: it could not be reached, cannot answer now, or the page was cut.
            ProtocolError: what came is not a page.
        """
        info = self._info or self.discover()
        request = self._page_request(
            info,
            partition,
            cursor,
            limit=limit,
            headers=headers,
            types=types,
            stop=stop,
            wait=wait,
        )
        decoder = PageDecoder(partition)
        with (
            self._reaching(),
            self._http.stream(
                "GET",
                request.url,
                headers=PAGE_HEADERS,
                timeout=request.patience,
                follow_redirects=False,
            ) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                self._refuse(answer.status_code, answer.headers, answer.read())
            self._expect_page(answer.headers)
            with self._reading(decoder):
                for chunk in answer.iter_bytes():
                    decoder.feed(chunk)
        return decoder.page()

    def cursor_at(self, moment: datetime, partition: int = 0) -> str:
        """Ask for the cursor before all events of a moment or later.

        Args:
            moment: with a time zone.
            partition: the partition's id.

        Raises:
            ConfigurationError: the moment has no zone, or the feed does not have the extension
                "cursor-of-time".
            ZeroEventHubError: as `fetch`.
        """
        info = self._info or self.discover()
        url = self._extension_url(info, CURSOR_OF_TIME, partition, {"time": rfc3339(moment)})
        return decode_cursor(self._get(url))

    def splits(
        self, partition: int, count: int, *, start: str = FIRST, stop: str | None = None
    ) -> list[str]:
        """Ask for the cursors between pieces of a partition, of about as many events each.

        Read each piece by `fetch` from one of the cursors, with the next one as `stop`.

        Args:
            partition: the partition's id.
            count: how many pieces there are at most.
            start: where the first one starts.
            stop: where the last one ends; None for the head.

        Raises:
            ConfigurationError: the feed does not have the extension "splits".
            ZeroEventHubError: as `fetch`.
        """
        info = self._info or self.discover()
        bounds: dict[str, str | int] = {"count": count, "cursor": start}
        if stop is not None:
            bounds["stop"] = stop
        return decode_splits(self._get(self._extension_url(info, SPLITS, partition, bounds)))

    def _get(self, url: httpx.URL) -> bytes:
        with self._reaching():
            answer = self._http.get(url, headers=HEADERS, follow_redirects=False)
        return self._understand(answer.status_code, answer.headers, answer.content)


class AsyncClient(Wire[httpx.AsyncClient]):
    """Read a feed page by page, asynchronously.

    Args:
        url: the feed's address, the one that answers discovery.
        http: your httpx client, with your authentication and timeouts; yours to close.
        partitions: how many partitions a v1 feed has, which it does not tell itself.
    """

    async def discover(self) -> FeedInfo:
        """Ask the feed for its partitions; see `Client.discover`."""
        with self._reaching():
            response = await self._http.get(self._url, headers=HEADERS, follow_redirects=False)
        return self._understand_info(response.status_code, response.headers, response.content)

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
        )
        decoder = PageDecoder(partition)
        with self._reaching():
            async with self._http.stream(
                "GET",
                request.url,
                headers=PAGE_HEADERS,
                timeout=request.patience,
                follow_redirects=False,
            ) as answer:
                if answer.status_code != httpx.codes.OK:
                    self._refuse(answer.status_code, answer.headers, await answer.aread())
                self._expect_page(answer.headers)
                with self._reading(decoder):
                    async for chunk in answer.aiter_bytes():
                        decoder.feed(chunk)
        return decoder.page()

    async def cursor_at(self, moment: datetime, partition: int = 0) -> str:
        """Ask for the cursor before a moment; see `Client.cursor_at`."""
        info = self._info or await self.discover()
        url = self._extension_url(info, CURSOR_OF_TIME, partition, {"time": rfc3339(moment)})
        return decode_cursor(await self._get(url))

    async def splits(
        self, partition: int, count: int, *, start: str = FIRST, stop: str | None = None
    ) -> list[str]:
        """Ask for the cursors between pieces; see `Client.splits`."""
        info = self._info or await self.discover()
        bounds: dict[str, str | int] = {"count": count, "cursor": start}
        if stop is not None:
            bounds["stop"] = stop
        return decode_splits(await self._get(self._extension_url(info, SPLITS, partition, bounds)))

    async def _get(self, url: httpx.URL) -> bytes:
        with self._reaching():
            answer = await self._http.get(url, headers=HEADERS, follow_redirects=False)
        return self._understand(answer.status_code, answer.headers, answer.content)
