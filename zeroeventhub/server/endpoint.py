"""Answer requests of FeedAPI v2 and ZeroEventHub v1, and those of the extensions."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar
from zlib import crc32

import msgspec
from starlette.datastructures import QueryParams
from starlette.responses import Response

from zeroeventhub.errors import Gone
from zeroeventhub.ndjson import (
    MEDIA_TYPE,
    encode_info,
    encode_key_page,
    encode_lag,
    encode_page_v1,
    encode_segments,
)
from zeroeventhub.protocol import (
    CURSOR_OF_COUNT,
    CURSOR_OF_TIME,
    KEY_HISTORY,
    LAG,
    LAST,
    PROGRESS,
    SEGMENTS,
    SPLITS,
    FeedInfo,
)
from zeroeventhub.server.access import Access
from zeroeventhub.server.caching import FRESH
from zeroeventhub.server.page_forms import PageForms
from zeroeventhub.server.pages import EncodedPage, Pages
from zeroeventhub.server.parameters import (
    CountRequest,
    CursorRequest,
    EventsRequest,
    LagRequest,
    ProgressRequest,
    SegmentsRequest,
    SplitsRequest,
    is_v1,
    read_count_request,
    read_cursor_request,
    read_events_request,
    read_key_request,
    read_lag_request,
    read_progress_request,
    read_segments_request,
    read_splits_request,
    read_v1_request,
)
from zeroeventhub.server.principal import Principal
from zeroeventhub.server.request import FeedRequest
from zeroeventhub.server.source import Source, expect_extension, expect_partition
from zeroeventhub.server.view import View
from zeroeventhub.server.waiting import Question

__all__ = ["Endpoint"]

_Asked = TypeVar(
    "_Asked",
    CountRequest,
    CursorRequest,
    LagRequest,
    ProgressRequest,
    SegmentsRequest,
    SplitsRequest,
)


class Endpoint:
    """Answer requests for one feed. Every page is whole before its status is sent.

    Args:
        source: the feed.
        access: knows who may read it.
        pages: keeps pages, and reads them ahead.
        forms: sends pages.
        shared_cache: whether caches that serve several clients may keep its immutable pages, if
            everybody may read it.
    """

    def __init__(
        self,
        source: Source,
        access: Access,
        pages: Pages,
        forms: PageForms,
        *,
        shared_cache: bool,
    ) -> None:
        self._source = source
        self._access = access
        self._shared_cache = shared_cache
        self._pages = pages
        self._forms = forms

    async def discover(self, request: FeedRequest, principal: Principal) -> Response:
        """Answer with what the feed says of itself, or with pages of ZeroEventHub v1."""
        view = self._view(principal)
        if is_v1(request.query_params):
            return await self._events_v1(request, view)
        info = await view.info()
        info = replace(info, extensions=info.extensions | self._forms.extensions)
        return Response(encode_info(info), media_type="application/json", headers=FRESH)

    async def events(self, request: FeedRequest, principal: Principal) -> Response:
        """Answer with a page (FeedAPI v2, Events endpoint)."""
        view = self._view(principal)
        info = await view.info()
        # The request would keep its `query_params`, and thousands may wait.
        wanted = read_events_request(QueryParams(request.scope["query_string"]), info.extensions)
        expect_partition(info, wanted.token, wanted.partition)
        question = view.lasting_question(
            info,
            wanted.partition,
            wanted.cursor,
            wanted.limit,
            types=wanted.types,
            stop=wanted.stop,
        )
        kept = None if question is None else await self._pages.get(question)
        if kept is None:
            kept = await self._read(request, view, info, wanted, question)
        request.events = kept.events
        if question is not None and kept.full and request.method != "HEAD":
            request.meanwhile = self._pages.ahead(question, kept)
        shared = self._shared_cache and self._access.is_public(request)
        return await self._forms.response(request, kept, shared=shared)

    async def _read(
        self,
        request: FeedRequest,
        view: View,
        info: FeedInfo,
        wanted: EventsRequest,
        question: Question | None,
    ) -> EncodedPage:
        # The place of LAST is what was asked for, and it is known at once.
        waits = request.method != "HEAD" and wanted.cursor != LAST
        try:
            page = await view.read_or_wait(
                info,
                wanted.partition,
                wanted.cursor,
                wanted.limit,
                seconds=wanted.wait if waits else 0.0,
                request=request,
                types=wanted.types,
                stop=wanted.stop,
            )
        except Gone:
            self._pages.clear()
            raise
        return await self._pages.encoded(page, question)

    async def cursor(self, request: FeedRequest, principal: Principal) -> Response:
        """Answer with the cursor of a moment."""
        view = self._view(principal)
        wanted = await _asked(view, request, CURSOR_OF_TIME, read_cursor_request)
        cursor = await view.call("cursor_at", wanted.moment, wanted.partition)
        return _document({"cursor": cursor})

    async def splits(self, request: FeedRequest, principal: Principal) -> Response:
        """Answer with the cursors between pieces of a partition."""
        view = self._view(principal)
        wanted = await _asked(view, request, SPLITS, read_splits_request)
        cursors = await view.call(
            "splits", wanted.partition, wanted.count, start=wanted.cursor, stop=wanted.stop
        )
        return _document({"cursors": cursors})

    async def lag(self, request: FeedRequest, principal: Principal) -> Response:
        """Answer with the number of events behind a cursor."""
        view = self._view(principal)
        wanted = await _asked(view, request, LAG, read_lag_request)
        found = await view.call("lag", wanted.partition, wanted.cursor)
        return Response(encode_lag(found), media_type="application/json", headers=FRESH)

    async def cursor_of_count(self, request: FeedRequest, principal: Principal) -> Response:
        """Answer with the cursor behind so many events."""
        view = self._view(principal)
        wanted = await _asked(view, request, CURSOR_OF_COUNT, read_count_request)
        found = await view.call(
            "cursor_of_count", wanted.partition, wanted.cursor, wanted.events, stop=wanted.stop
        )
        return _document({"cursor": found.cursor, "events": found.events})

    async def segments(self, request: FeedRequest, principal: Principal) -> Response:
        """Answer with the files in which events lie."""
        view = self._view(principal)
        wanted = await _asked(view, request, SEGMENTS, read_segments_request)
        found = await view.call("segments", wanted.partition, wanted.cursor, stop=wanted.stop)
        return Response(encode_segments(found), media_type="application/json", headers=FRESH)

    async def key_history(self, request: FeedRequest, principal: Principal) -> Response:
        """Answer with the events of a key."""
        view = self._view(principal)
        expect_extension(await view.info(), KEY_HISTORY)
        wanted = read_key_request(request.query_params)
        page = await view.read_key(wanted.key, wanted.after_version, wanted.limit)
        request.events = len(page.events)
        body = encode_key_page(page)
        return Response(body, media_type="application/json", headers=FRESH)

    async def progress(self, request: FeedRequest, principal: Principal) -> Response:
        """Note how far a consumer has come, and answer with its cursor."""
        view = self._view(principal)
        wanted = await _asked(view, request, PROGRESS, read_progress_request)
        await view.call(
            "register_progress",
            wanted.consumer,
            wanted.partition,
            wanted.cursor,
            principal=principal.name,
        )
        return _document({"cursor": wanted.cursor})

    def _view(self, principal: Principal) -> View:
        return View(self._source, self._access, principal)

    async def _events_v1(self, request: FeedRequest, view: View) -> Response:
        info, count = await view.counted()
        wanted = read_v1_request(request.query_params, info, count)
        # The hint is the number of events in the whole answer (ZeroEventHub v1, Parameters).
        share = max(1, self._source.rows(wanted.limit) // len(wanted.cursors))
        # An answer that is full leaves partitions out, which keep their cursors. Where it begins
        # changes with the cursors, so that no partition is left out for ever.
        cursors = [*wanted.cursors.items()]
        first = crc32(request.scope["query_string"]) % len(cursors)
        parts: dict[int, bytes] = {}
        async with self._source.several():
            for partition, cursor in cursors[first:] + cursors[:first]:
                if sum(map(len, parts.values())) >= self._source.page_bytes:
                    break
                page = await view.read(info, partition, cursor, share)
                parts[partition] = encode_page_v1(partition, page, wanted.headers)
                request.events += len(page.events)
        body = b"".join(part for _, part in sorted(parts.items()))
        return Response(body, media_type=MEDIA_TYPE, headers=FRESH)


async def _asked(
    view: View, request: FeedRequest, extension: str, read: Callable[[QueryParams], _Asked]
) -> _Asked:
    """Read a request for something that a feed has beside its events.

    Raises:
        FeedError: the feed does not have it, or the request is not of its form.
    """
    info = await view.info()
    expect_extension(info, extension)
    wanted = read(request.query_params)
    expect_partition(info, wanted.token, wanted.partition)
    return wanted


def _document(content: Mapping[str, str | int | list[str]]) -> Response:
    body = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
    return Response(body, media_type="application/json", headers=FRESH)
