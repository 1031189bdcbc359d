"""Read pages of a feed over HTTP, with the caller's own httpx client."""

from collections.abc import Sequence

import httpx

from zeroeventhub._wire import HEADERS, PAGE_HEADERS, Wire
from zeroeventhub.ndjson import PageDecoder
from zeroeventhub.protocol import FeedInfo, Page

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
    ) -> Page:
        """Fetch the page that follows a cursor, discovering the feed first if need be.

        Args:
            partition: the partition's id.
            cursor: FIRST, LAST, or the cursor of an earlier page.
            limit: how many events to ask for (`pagesizehint` on the wire); a hint.
            headers: v1 headers to ask for by name; `_all` for all.

        Raises:
            TokenChanged: the partitions have changed: discover again.
            FeedError: the feed refused.
            TransientError: it could not be reached, cannot answer now, or the page was cut.
            ProtocolError: what came is not a page.
        """
        info = self._info or self.discover()
        url = self._events_url(info, partition, cursor, limit, headers)
        decoder = PageDecoder(partition)
        with (
            self._reaching(),
            self._http.stream("GET", url, headers=PAGE_HEADERS, follow_redirects=False) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                self._refuse(answer.status_code, answer.headers, answer.read())
            self._expect_page(answer.headers)
            with self._reading(decoder):
                for chunk in answer.iter_bytes():
                    decoder.feed(chunk)
        return decoder.page()


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
    ) -> Page:
        """Fetch the page that follows a cursor; see `Client.fetch`."""
        info = self._info or await self.discover()
        url = self._events_url(info, partition, cursor, limit, headers)
        decoder = PageDecoder(partition)
        with self._reaching():
            async with self._http.stream(
                "GET", url, headers=PAGE_HEADERS, follow_redirects=False
            ) as answer:
                if answer.status_code != httpx.codes.OK:
                    self._refuse(answer.status_code, answer.headers, await answer.aread())
                self._expect_page(answer.headers)
                with self._reading(decoder):
                    async for chunk in answer.aiter_bytes():
                        decoder.feed(chunk)
        return decoder.page()
