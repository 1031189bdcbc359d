"""Answer requests of FeedAPI v2 and ZeroEventHub v1, and those of the extensions."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any
from uuid import uuid4
from zlib import crc32

import anyio
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.status import HTTP_200_OK
from starlette.types import Receive, Scope, Send

from zeroeventhub.errors import BadRequest, FeedFailure, Gone, ZeroEventHubError
from zeroeventhub.protocol import LAST, Extension, FeedInfo, KeyPage
from zeroeventhub.server.auth import Access, Principal
from zeroeventhub.server.long_poll import Question
from zeroeventhub.server.pages import EncodedPage, Pages
from zeroeventhub.server.problems import Log, problem
from zeroeventhub.server.request import (
    EventsRequest,
    FeedRequest,
    is_v1,
    read_events_request,
    read_extension_request,
    read_v1_request,
)
from zeroeventhub.server.responses import FRESH, PageForms
from zeroeventhub.server.sending import READER, Sending
from zeroeventhub.server.source import Source, expect_extension, expect_partition
from zeroeventhub.server.view import View
from zeroeventhub.wire import NDJSON_TYPE as MEDIA_TYPE
from zeroeventhub.wire.documents import encode_answer, encode_info
from zeroeventhub.wire.ndjson import encode_page_v1

__all__ = [
    "Answer",
    "Answered",
    "Answering",
    "Desk",
    "Endpoint",
    "Observer",
]


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Describe a request that has been answered.

    Attributes:
        feed: the name of the feed's routes.
        route: which of them: "discovery", "events", "cursor", "splits", "lag", "cursor-of-count",
            "segments", "key-history", "http-feed" or "server-sent-events".
        principal: who asked; empty where nobody is told apart, or nobody was let in.
        status: of the answer.
        events: how many events it has.
        size: how many bytes its body has; 0 for a stream.
        seconds: from the request until the answer was whole, with the time it waited at the head.
        waited: seconds of these that it waited at the head.
    """

    feed: str
    route: str
    principal: str
    status: int
    events: int
    size: int
    seconds: float
    waited: float


class Observer:
    """Watch a feed work; every method does nothing until a subclass says otherwise.

    The methods are called in the event loop. They must not raise, and must not take long.
    """

    def answered(self, answered: Answered) -> None:
        """See a request that has been answered."""

    def waiting(self, feed: str, requests: int) -> None:
        """See how many requests wait at the head now.

        Args:
            feed: the name of the feed's routes.
            requests: how many there are.
        """


MOST_PARAMETERS = 1_000
"""Parameters of a request: reading each costs time, and a URL of 64 KiB has room for 30,000."""

Answer = Callable[[FeedRequest, Principal], Awaitable[Response]]


@dataclass(frozen=True)
class Desk:
    """Hold what the routes of a feed have in common.

    Attributes:
        feed: the name of the feed's routes.
        access: lets requests in.
        sending: sends answers.
        observer: hears of them.
    """

    feed: str
    access: Access
    sending: Sending
    observer: Observer

    @cached_property
    def log(self) -> Log:
        """Return what tells of the feed's problems."""
        return Log(self.feed)


class Answering:
    """Be the application of one route.

    Args:
        route: its name.
        answer: finds the answer.
        desk: what the routes of the feed have in common.
    """

    def __init__(self, route: str, answer: Answer, desk: Desk) -> None:
        self._route = route
        self._answer = answer
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; a problem is an answer as well."""
        request, started = FeedRequest(scope, receive, send), perf_counter()
        counted = None
        try:
            try:
                _expect_few_parameters(scope)
                request.principal = await self._desk.access.identify(request)
                READER.set(request.principal.name)
                counted = self._desk.access.count(request.principal)
                response = await self._answer(request, request.principal)
                self._desk.log.answered()
                if isinstance(response, StreamingResponse):
                    response.body_iterator = self._stream(response.body_iterator, request)
            except HTTPException as error:
                self._tell(request, error.status_code, 0, started)
                raise  # the host's own, from its own hook, for its own handlers
            except Exception as error:  # noqa: BLE001 - whatever it is, its text is nobody's business
                response = self._problem(error, request)
            self._desk.access.mark(request, response)
            size = int(response.headers.get("content-length", 0))
            self._tell(request, response.status_code, size, started)
            await self._send(response, request, send)
        finally:
            if counted is not None:
                counted.end()

    async def _send(self, response: Response, request: FeedRequest, send: Send) -> None:
        """Send an answer, and do meanwhile what is to be done behind it."""
        sending, meanwhile = self._desk.sending, request.meanwhile
        if meanwhile is None:
            await sending.send(response, request, send)
            return
        failure: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(meanwhile)
            try:
                await sending.send(response, request, send)
            except Exception as error:  # noqa: BLE001 - the server's own, and not one of a group
                failure = error
        if failure is not None:
            raise failure

    async def _stream(self, pieces: AsyncIterable[Any], request: FeedRequest) -> AsyncIterator[Any]:
        """End a stream when it fails: its status has been sent, and its client comes back."""
        try:
            async for piece in pieces:
                yield piece
        except Exception as error:  # noqa: BLE001 - whatever it is, its text is nobody's business
            self._problem(error, request)

    def _problem(self, error: Exception, request: FeedRequest) -> Response:
        """Answer with an error, and tell the log of it."""
        if not isinstance(error, ZeroEventHubError):
            failure = FeedFailure("The feed failed in an unexpected way.")
            failure.__cause__ = error
            error = failure
        request_id = str(uuid4())
        self._desk.log.failed(
            error,
            route=self._route,
            request=request,
            principal=request.principal,
            request_id=request_id,
        )
        return problem(error, request_id)

    def _tell(self, request: FeedRequest, status: int, size: int, started: float) -> None:
        has_body = request.method != "HEAD"
        self._desk.observer.answered(
            Answered(
                feed=self._desk.feed,
                route=self._route,
                principal=request.principal.name,
                status=status,
                events=request.events if has_body and status == HTTP_200_OK else 0,
                size=size if has_body else 0,
                seconds=perf_counter() - started,
                waited=request.waited,
            )
        )


def _expect_few_parameters(scope: Scope) -> None:
    if scope["query_string"].count(b"&") >= MOST_PARAMETERS:
        raise BadRequest(f"A request has at most {MOST_PARAMETERS:,} parameters.")


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

    async def extension(
        self, extension: Extension, request: FeedRequest, principal: Principal
    ) -> Response:
        """Answer with what the feed has beside its events, by the row of an extension."""
        view = self._view(principal)
        info = await view.info()
        expect_extension(info, extension.name)
        token, asked = read_extension_request(request.query_params, extension)
        if token is not None:
            expect_partition(info, token, asked["partition"])
        found = await view.ask(extension, asked)
        if isinstance(found, KeyPage):
            request.events = len(found.events)
        body = encode_answer(extension, asked["cursor"] if extension.is_put else found)
        return Response(body, media_type="application/json", headers=FRESH)

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
