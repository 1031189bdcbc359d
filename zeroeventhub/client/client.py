"""Read a feed over HTTP, sync or async."""

import asyncio
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import httpx

from zeroeventhub.client.connection_pool import ConnectionPool, SentRequest, open_http, open_httpx
from zeroeventhub.client.exchange import Exchange
from zeroeventhub.client.redaction import requested
from zeroeventhub.client.requests import UNREACHED, RequestBuilder, send_until_answered
from zeroeventhub.coroutines import as_blocking, blocking, is_cancelled
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.extensions import (
    CURSOR_OF_COUNT,
    CURSOR_OF_TIME,
    FORGET_PROGRESS,
    KEY_HISTORY,
    LAG,
    PRODUCER_SEQUENCE,
    PROGRESS,
    SCHEMAS,
    SEGMENTS,
    SPLITS,
)
from zeroeventhub.new_events import NewEvent
from zeroeventhub.protocol import (
    FIRST,
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
from zeroeventhub.wire.documents import decode_key_page
from zeroeventhub.wire.ndjson import PageDecoder
from zeroeventhub.wire.new_events import encode_events

if TYPE_CHECKING:
    from zeroeventhub.wire.arrow import ArrowPage


class AsyncClient(RequestBuilder[httpx.AsyncClient]):
    """Read a feed page by page, asynchronously.

    The arguments are those of Client, with an httpx.AsyncClient. Client has the same methods.

    Example:
        async with httpx.AsyncClient() as http:
            client = AsyncClient("https://shop.example/orders", http)
            page = await client.fetch(0, FIRST)
    """

    _http_types = (httpx.AsyncClient,)
    _open_http = staticmethod(partial(open_httpx, httpx.AsyncClient))

    async def discover(self) -> FeedInfo:
        """Request the feed's description; fall back to v1 if `partitions` was given.

        Raises:
            FeedError: the feed refused the request.
            TransientError: the feed could not be reached, or cannot answer now.
            ProtocolError: the server is not a feed.
        """
        return await self._discover()

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
        """Fetch the page that follows a cursor, discovering the feed first if need be.

        Args:
            partition: the partition's id.
            cursor: FIRST, LAST, or the cursor of an earlier page.
            limit: how many events to request (`pagesizehint` on the wire); a hint.
            headers: names of the v1 headers to request, or one name; `_all` for all.
            types: the types of events to request; a feed that does not announce the extension
                "event-types" may send events of other types as well.
            stop: the cursor at which to stop; for feeds with the extension "stop".
            wait: seconds that the feed may wait at the head for an event; without the extension
                "wait" it answers at once.
            data_type: the type to decode the events' data as, such as a msgspec.Struct or a
                dataclass; see `page.events.decoded`.

        Raises:
            ConfigurationError: the feed does not support an argument.
            TokenChanged: the partitions have changed, or are not this one: discover again.
            FeedError: the feed refused the request.
            TransientError: the feed could not be reached, cannot answer now, or the page was cut.
            ProtocolError: the response is not a page.
            PageTooLarge: the page is longer than `limits` allow.
        """
        info = self._info or await self._discover()
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
        return self._read_page(await self._send(request))

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
        """Fetch a page as record batches of Apache Arrow, for bulk loads.

        A feed without the extension "arrow" sends lines, which the client converts to columns.

        Args:
            partition: the partition's id.
            cursor: FIRST, LAST, or the cursor of an earlier page.
            limit: how many events to request; a hint.
            types: the types of events to request.
            stop: the cursor at which to stop.
            wait: seconds that the feed may wait at the head.

        Raises:
            MissingExtra: pyarrow is not installed.
            ZeroEventHubError: as `fetch`.
        """
        info = self._info or await self._discover()
        request = self._page_request(
            info, partition, cursor, limit=limit, types=types, stop=stop, wait=wait, as_arrow=True
        )
        from zeroeventhub.wire.arrow import ArrowPage  # noqa: PLC0415 - of another extra

        page: Any = self._read_page(await self._send(request))  # an ArrowPage, if Arrow has arrived
        return ArrowPage.of(page) if isinstance(page, Page) else page

    async def cursor_at(self, moment: datetime, partition: int = 0) -> str:
        """Request the cursor before all events of a moment or later.

        Args:
            moment: with a time zone.
            partition: the partition's id.

        Raises:
            ConfigurationError: the moment has no zone, or the feed does not have the extension
                "cursor-of-time".
            ZeroEventHubError: as `fetch`.
        """
        cursor: str = await self._answer(CURSOR_OF_TIME, moment, partition)
        return cursor

    async def splits(
        self, partition: int, count: int, *, start: str = FIRST, stop: str | None = None
    ) -> list[str]:
        """Request the cursors between pieces of a partition with about the same number of events.

        Read each piece by `fetch` from one of the cursors, with the next one as `stop`.

        Args:
            partition: the partition's id.
            count: how many pieces, at most, from 1 on.
            start: where the first piece starts: FIRST or a cursor.
            stop: where the last piece ends; None for the head.

        Raises:
            ConfigurationError: the feed does not have the extension "splits".
            ZeroEventHubError: as `fetch`.
        """
        cursors: list[str] = await self._answer(SPLITS, partition, count, start, stop)
        return cursors

    async def lag(self, partition: int, cursor: str) -> Lag:
        """Request the number of events after a cursor, and the age of the first of them.

        Args:
            partition: the partition's id.
            cursor: FIRST, LAST, or the cursor of an earlier page.

        Raises:
            ConfigurationError: the feed does not have the extension "lag".
            ZeroEventHubError: as `fetch`.
        """
        found: Lag = await self._answer(LAG, partition, cursor)
        return found

    async def cursor_of_count(
        self, partition: int, cursor: str, events: int, *, stop: str | None = None
    ) -> CountedCursor:
        """Request the cursor that follows another one by a number of events.

        Read these events by `fetch` from `cursor`, with the result as `stop`.

        Args:
            partition: the partition's id.
            cursor: FIRST, or the cursor of an earlier page.
            events: how many events to count: 1 to 1,000,000.
            stop: the cursor at which to stop counting; None for the head.

        Returns:
            The cursor, and how many events are between the two: fewer than `events` if counting
            reached `stop` or the head. Without any event, the result is `cursor`.

        Raises:
            ConfigurationError: the feed does not have the extension "cursor-of-count".
            ZeroEventHubError: as `fetch`.
        """
        found: CountedCursor = await self._answer(CURSOR_OF_COUNT, partition, cursor, events, stop)
        return found

    async def segments(self, partition: int, cursor: str, *, stop: str | None = None) -> Segments:
        """Request the files that hold the events after a cursor.

        Args:
            partition: the partition's id.
            cursor: FIRST, or the cursor of an earlier page.
            stop: the cursor at which to stop; None for the head.

        Returns:
            The files, and the cursor from which to continue by `fetch` or another call.

        Raises:
            ConfigurationError: the feed does not have the extension "segments".
            ZeroEventHubError: as `fetch`.
        """
        found: Segments = await self._answer(SEGMENTS, partition, cursor, stop)
        return found

    async def read_key(
        self, key: str, *, after_version: int = 0, limit: int | None = None
    ) -> KeyPage:
        """Request the events of one key, in the order of their versions.

        Continue after the last version of the page while the page reports that more may follow.

        Args:
            key: the text of the key in JSON.
            after_version: the version after which to begin, from 0 on.
            limit: how many events to request; a hint.

        Raises:
            ConfigurationError: the version is below 0, or the feed does not have the extension
                "key-history".
            ZeroEventHubError: as `fetch`.
        """
        info = self._info or await self._discover()
        request = self._extension_request(info, KEY_HISTORY, key, after_version, limit)
        if after_version < 0:
            raise ConfigurationError("Versions start at 1; after_version is 0 or more.")
        return decode_key_page(self._read_body(await self._send(request)), after_version)

    async def schemas(self) -> Schemas:
        """Request the JSON Schemas of the types of events that the reader may see.

        Raises:
            ConfigurationError: the feed does not have the extension "schemas".
            ZeroEventHubError: as `fetch`.
        """
        found: Schemas = await self._answer(SCHEMAS)
        return found

    async def register_progress(self, consumer: str, partition: int, cursor: str) -> None:
        """Report a consumer's committed cursor to the publisher, so that trimming waits for it.

        Args:
            consumer: its name; the publisher distinguishes equal names of different readers.
            partition: the partition's id.
            cursor: the cursor of the last page that the consumer has committed.

        Raises:
            ConfigurationError: the feed does not have the extension "progress".
            ZeroEventHubError: as `fetch`.
        """
        await self._answer(PROGRESS, consumer, partition, cursor)

    async def forget_progress(self, consumer: str) -> int:
        """Withdraw what a consumer has registered, so that trimming no longer waits for it.

        Args:
            consumer: its name; what other readers have registered by this name stays.

        Returns:
            In how many partitions it had registered.

        Raises:
            ConfigurationError: the feed does not have the extension "forget-progress".
            ZeroEventHubError: as `fetch`.
        """
        partitions: int = await self._answer(FORGET_PROGRESS, consumer)
        return partitions

    async def append(
        self,
        events: Iterable[NewEvent],
        *,
        producer: str | None = None,
        sequence: int | None = None,
        attempts: int | None = 10,
    ) -> list[Appended]:
        """Append a batch of events to the feed's log: all of them, or none.

        A batch whose answer was lost is sent again; the log appends an event of an id once.

        Args:
            events: up to 10,000 events, and 4 mebibytes, in their order.
            producer: a name under which the log counts batches; None to count none.
            sequence: the number of this batch among those of the producer, from 1 on.
            attempts: how often the batch is sent before a transient error is final; None for no
                limit.

        Returns:
            Where each event is, also if it was appended before.

        Raises:
            ConfigurationError: the feed does not have the extension "append", or an event cannot
                be stored.
            Conflict: a key has another version than an event expects.
            IdReused: the log has another event with one of the ids.
            OutOfSequence: the producer's next batch has another number.
            InvalidEvent: an event does not fit the schema of its type.
            TooLarge: an event's data is larger than a mebibyte, or the batch is too large.
            Forbidden: the caller may not append one of the events.
            ZeroEventHubError: as `fetch`.
        """
        lines = encode_events(events)
        if not lines:
            return []
        send = partial(self._send_events, lines, producer, sequence)
        return await send_until_answered(send, self._pause, attempts)

    async def producer_sequence(self, producer: str) -> int:
        """Request the number of a producer's last batch in the feed's log.

        Args:
            producer: its name; the log distinguishes equal names of different callers.

        Returns:
            The number; 0 for a producer that has appended nothing.

        Raises:
            ConfigurationError: the feed does not have the extension "producer-sequence".
            ZeroEventHubError: as `fetch`.
        """
        sequence: int = await self._answer(PRODUCER_SEQUENCE, producer)
        return sequence

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _send(self, request: Exchange) -> Exchange:
        former = requested.set((self._redaction, request.url))
        try:
            # The timeout inside: bytes that arrived before it ends may hold a checkpoint.
            # If the caller's client adds parameters, httpx drops those of the URL.
            async with (
                asyncio.timeout(request.deadline.left) as timeout,
                self._http.stream(
                    request.method,
                    request.url,
                    params=httpx.URL(request.url).params if self._http.params else None,
                    headers=request.headers,
                    content=request.content,
                    extensions={"timeout": request.timeouts},
                    follow_redirects=False,
                ) as answer,
            ):
                request.begin(answer)
                _postpone(timeout, request.deadline.left)
                read = answer.is_stream_consumed
                async for chunk in answer.aiter_bytes() if read else answer.aiter_raw():
                    if not request.take(chunk):
                        break
                    _postpone(timeout, request.deadline.left)
        except UNREACHED as error:
            self._convert_error(request, error)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            self._convert_error(request, error)  # the caller's, whose own task was cancelled
        finally:
            requested.reset(former)
        return request


def _postpone(timeout: asyncio.Timeout, seconds: float) -> None:
    """Let a timeout end in a number of seconds, unless it has ended."""
    if not timeout.expired():
        timeout.reschedule(asyncio.get_running_loop().time() + seconds)


class Client(RequestBuilder[httpx.Client | ConnectionPool]):
    """Read a feed page by page.

    Example:
        client = Client("https://shop.example/orders")
        page = client.fetch(0, FIRST)
        print([event.data for event in page.events])

    Args:
        url: the address of the feed's discovery document.
        http: your httpx client, with your authentication and timeouts, or a ConnectionPool; you
            close it. If it has no authentication, the user and password of `url` are used. Without
            it, the client keeps connections of its own, at a fifth of the cost. Processes that are
            forked share the connections of an httpx client, so make that after the fork.
        partitions: how many partitions a v1 feed has, as its protocol does not report them.
        limits: bytes and seconds after which the client gives up a response.
        compressed: True or "gzip" to accept gzip, "zstd" to accept zstd and gzip; the client
            unpacks bodies within the limits.

    Raises:
        ConfigurationError: an argument cannot work, such as a URL that is not of HTTP.
        MissingExtra: "zstd" needs zstandard, of the extra "zstd".
    """

    _http_types = (httpx.Client, ConnectionPool)
    _open_http = staticmethod(open_http)

    discover = as_blocking(AsyncClient.discover)
    fetch = as_blocking(AsyncClient.fetch)
    fetch_arrow = as_blocking(AsyncClient.fetch_arrow)
    cursor_at = as_blocking(AsyncClient.cursor_at)
    splits = as_blocking(AsyncClient.splits)
    lag = as_blocking(AsyncClient.lag)
    cursor_of_count = as_blocking(AsyncClient.cursor_of_count)
    segments = as_blocking(AsyncClient.segments)
    read_key = as_blocking(AsyncClient.read_key)
    schemas = as_blocking(AsyncClient.schemas)
    register_progress = as_blocking(AsyncClient.register_progress)
    forget_progress = as_blocking(AsyncClient.forget_progress)
    append = as_blocking(AsyncClient.append)
    producer_sequence = as_blocking(AsyncClient.producer_sequence)

    async def _pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - it blocks its thread, as the other methods do

    def begin_fetch(
        self,
        partition: int,
        cursor: str,
        *,
        limit: int | None = None,
        types: TypeFilter | None = None,
        data_type: Any = None,
    ) -> "PendingFetch | None":
        """Request a page whose response is read later; None if the request could not be sent.

        The client has a ConnectionPool, and has discovered the feed. The arguments are those of
        `fetch`, and so are the errors of an argument.
        """
        assert self._info is not None  # noqa: S101 - as said
        http: Any = self._http
        request = self._page_request(
            self._info, partition, cursor, limit=limit, types=types, data_type=data_type
        )
        try:
            return PendingFetch(self, request, self._request_on(http, request))
        except UNREACHED:
            return None  # the page is requested again, and the error is raised then

    async def _send(self, request: Exchange, sent: SentRequest | None = None) -> Exchange:
        """Send a request, unless it was sent, and read its response."""
        former = requested.set((self._redaction, request.url))
        try:
            with self._stream(request, sent) as answer:
                request.begin(answer)
                read = answer.is_stream_consumed
                for chunk in answer.iter_bytes() if read else answer.iter_raw():
                    if not request.take(chunk):
                        break
        except UNREACHED as error:
            self._convert_error(request, error)
        finally:
            requested.reset(former)
        return request

    def _request_on(self, http: ConnectionPool, request: Exchange) -> SentRequest:
        return http.send(
            request.method, request.url, request.headers, request.socket_timeouts, request.content
        )

    def _stream(
        self, request: Exchange, sent: SentRequest | None
    ) -> AbstractContextManager[httpx.Response]:
        """Open the response to a request."""
        http = self._http
        if isinstance(http, ConnectionPool):
            return closing((sent or self._request_on(http, request)).receive())
        if self._opened_by not in {None, os.getpid()}:  # a fork has its parent's connections
            self._http = http = open_httpx(httpx.Client)
            self._opened_by = os.getpid()
        # If the caller's client adds parameters, httpx drops those of the URL.
        return http.stream(
            request.method,
            request.url,
            params=httpx.URL(request.url).params if http.params else None,
            headers=request.headers,
            content=request.content,
            extensions={"timeout": request.socket_timeouts},
            follow_redirects=False,
        )


@dataclass(frozen=True)
class PendingFetch:
    """A page that was requested, and is to be received and decoded, or closed."""

    _client: Client
    _request: Exchange
    _sent: SentRequest

    def receive(self) -> str | None:
        """Receive the page; return where the next one starts, if the page is whole and says so."""
        request = self._request
        request.deadline.restart()
        blocking(self._client._send(request, self._sent))  # noqa: SLF001 - its own
        is_page = request.broken is None and isinstance(request.decoder, PageDecoder)
        return request.decoder.next_cursor() if is_page else None  # type: ignore[union-attr] # checked

    def page(self) -> Page:
        """Decode the page that was received; see `Client.fetch`."""
        return self._client._read_page(self._request)  # noqa: SLF001 - its own

    def close(self) -> None:
        """Give the page up."""
        self._sent.close()
