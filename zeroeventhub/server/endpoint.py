"""Answer requests of FeedAPI v2 and ZeroEventHub v1, and those of the extensions."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from zeroeventhub.ndjson import MEDIA_TYPE, encode_info, encode_lag, encode_page, encode_page_v1
from zeroeventhub.protocol import CURSOR_OF_TIME, LAG, LAST, SPLITS, FeedInfo
from zeroeventhub.server.caching import FRESH, page_response
from zeroeventhub.server.parameters import (
    is_v1,
    read_cursor_request,
    read_events_request,
    read_lag_request,
    read_splits_request,
    read_v1_request,
)
from zeroeventhub.server.principal import Principal
from zeroeventhub.server.source import Source, expect_extension, expect_partition

__all__ = ["LONGEST_WAIT", "Endpoint", "rows"]

DEFAULT_PAGE = 1_000
LARGEST_PAGE = 10_000

LONGEST_WAIT = 30.0
"""Seconds that an answer is held back at most; proxies give up after sixty."""


class Endpoint:
    """Answer requests for one feed. Every page is whole before its status is sent.

    Args:
        source: the feed.
        shared_cache: whether caches that serve several clients may keep its immutable pages.
    """

    def __init__(self, source: Source, *, shared_cache: bool) -> None:
        self._source = source
        self._shared_cache = shared_cache

    async def discover(self, request: Request, principal: Principal) -> Response:
        """Answer with what the feed says of itself, or with pages of ZeroEventHub v1."""
        info = await self._source.info()
        if is_v1(request.query_params):
            return await self._events_v1(request, info)
        return Response(encode_info(info), media_type="application/json", headers=FRESH)

    async def events(self, request: Request, principal: Principal) -> Response:
        """Answer with a page (FeedAPI v2, Events endpoint)."""
        info = await self._source.info()
        wanted = read_events_request(request.query_params, info.extensions)
        expect_partition(info, wanted.token, wanted.partition)
        # The place of LAST is what was asked for, and it is known at once.
        waits = request.method != "HEAD" and wanted.cursor != LAST
        page = await self._source.read_or_wait(
            info,
            wanted.partition,
            wanted.cursor,
            rows(wanted.limit),
            seconds=min(wanted.wait, LONGEST_WAIT) if waits else 0.0,
            receive=request.receive,
            types=wanted.types,
            stop=wanted.stop,
        )
        return page_response(
            request,
            encode_page(page),
            page,
            wanted.cursor,
            media_type=MEDIA_TYPE,
            shared=self._shared_cache,
        )

    async def cursor(self, request: Request, principal: Principal) -> Response:
        """Answer with the cursor of a moment."""
        info = await self._source.info()
        expect_extension(info, CURSOR_OF_TIME)
        wanted = read_cursor_request(request.query_params)
        expect_partition(info, wanted.token, wanted.partition)
        cursor = await self._source.call("cursor_at")(wanted.moment, wanted.partition)
        return _document({"cursor": cursor})

    async def splits(self, request: Request, principal: Principal) -> Response:
        """Answer with the cursors between pieces of a partition."""
        info = await self._source.info()
        expect_extension(info, SPLITS)
        wanted = read_splits_request(request.query_params)
        expect_partition(info, wanted.token, wanted.partition)
        cursors = await self._source.call("splits")(
            wanted.partition, wanted.count, start=wanted.cursor, stop=wanted.stop
        )
        return _document({"cursors": cursors})

    async def lag(self, request: Request, principal: Principal) -> Response:
        """Answer with the number of events behind a cursor."""
        info = await self._source.info()
        expect_extension(info, LAG)
        wanted = read_lag_request(request.query_params)
        expect_partition(info, wanted.token, wanted.partition)
        found = await self._source.call("lag")(wanted.partition, wanted.cursor)
        return Response(encode_lag(found), media_type="application/json", headers=FRESH)

    async def _events_v1(self, request: Request, info: FeedInfo) -> Response:
        wanted = read_v1_request(request.query_params, info)
        # The hint is the number of events in the whole answer (ZeroEventHub v1, Parameters).
        share = max(1, rows(wanted.limit) // len(wanted.cursors))
        parts = []
        for partition, cursor in wanted.cursors.items():
            page = await self._source.read(info, partition, cursor, share)
            parts.append(encode_page_v1(partition, page, wanted.headers))
        return Response(b"".join(parts), media_type=MEDIA_TYPE, headers=FRESH)


def rows(limit: int | None) -> int:
    """Return how many events a page has at most, whatever was asked for."""
    return DEFAULT_PAGE if limit is None else min(max(limit, 1), LARGEST_PAGE)


def _document(content: dict[str, str | list[str]]) -> Response:
    body = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
    return Response(body, media_type="application/json", headers=FRESH)
