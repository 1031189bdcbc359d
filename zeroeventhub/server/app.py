"""The application of a feed's routes: identify the reader, answer, record the answer, send it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeAlias
from uuid import uuid4

import anyio
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.status import HTTP_200_OK, HTTP_302_FOUND
from starlette.types import Receive, Scope, Send

from zeroeventhub.coroutines import is_cancelled
from zeroeventhub.errors import BadRequest, FeedFailure, ZeroEventHubError
from zeroeventhub.server.appends import Appends
from zeroeventhub.server.auth import EVERY_READER, SCOPE_KEY, Access, Account, Quotas, everybody
from zeroeventhub.server.feed_runner import FeedRunner
from zeroeventhub.server.pages import PageCache
from zeroeventhub.server.problems import Log, problem
from zeroeventhub.server.request import MOST_PARAMETERS, FeedRequest
from zeroeventhub.server.responses import FRESH, Renderer, qualities
from zeroeventhub.server.sending import READER, Sender


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Describe a request that has been answered.

    Attributes:
        feed: the name of the feed's routes.
        route: which of them: "discovery", "events", "cursor", "splits", "lag", "cursor-of-count",
            "segments", "key-history", "progress", "append", "schemas", "schema", "asyncapi",
            "http-feed" or "server-sent-events".
        principal: the reader's name; empty for a feed without names, and for a refused request.
        status: the response's status.
        events: how many events it has.
        size: bytes of its body; 0 for a stream.
        seconds: from the request until the response was complete, including `waited`.
        waited: seconds for which the request waited at the head.
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
    """Hooks of a feed's work; every method does nothing unless a subclass overrides it.

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


@dataclass(eq=False)
class FeedApp:
    """The state that the routes of a feed share."""

    name: str  # of the feed's routes
    access: Access
    quotas: Quotas
    runner: FeedRunner
    pages: PageCache
    renderer: Renderer
    appends: Appends
    sender: Sender
    observer: Observer | None  # is notified of answered requests
    shared_cache: bool  # whether such caches may store immutable pages, without authorization
    log: Log
    console: str = ""  # where the feed's page of a console is, relative to the feed
    # Called with the principal, consumer, partition and cursor of each progress.
    on_progress: Callable[[str, str, int, str], None] | None = None
    help_url: str = ""  # the page of errors that problem documents name; empty for none
    # How many requests were answered, by route, status and kind of problem, which may be empty.
    answers: Counter[tuple[str, int, str]] = field(default_factory=Counter)


Answer: TypeAlias = Callable[[FeedApp, FeedRequest], Awaitable[Response]]
"""Returns the answer to a request. A page is complete before its status is sent."""


@dataclass(frozen=True)
class RouteApp:
    """The ASGI application of one route."""

    app: FeedApp
    route: str  # its name
    answer: Answer  # makes the response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, if need be with a problem."""
        app, request, started = self.app, FeedRequest(scope, receive, send), perf_counter()
        kind = ""
        if app.console and self.route == "discovery" and _is_browser(request):
            moved = RedirectResponse(app.console, HTTP_302_FOUND, FRESH)
            await moved(scope, receive, send)
            return
        try:
            try:
                request.account = await self._admit(request)
                response = await self.answer(app, request)
                if app.log.failures:
                    app.log.failures.over()
                if isinstance(response, StreamingResponse):
                    response.body_iterator = self._stream(response.body_iterator, request)
            except HTTPException as error:
                app.answers[self.route, error.status_code, kind] += 1
                self._observe(request, error.status_code, 0, started)
                raise  # the host's own, from its own hook, for its own handlers
            # Its text is for the log alone.
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
                response, kind = self._problem(error, request)
            app.answers[self.route, response.status_code, kind] += 1
            if request.hook is not None:
                response.headers.add_vary_header("Authorization")
            if app.observer is not None:
                size = int(response.headers.get("content-length", 0))
                self._observe(request, response.status_code, size, started)
            if request.meanwhile is None:
                await app.sender.send(response, request, send)
            else:
                await self._send_meanwhile(response, request, request.meanwhile, send)
        finally:
            if request.account is not None:
                request.account.in_flight -= 1

    async def _admit(self, request: FeedRequest) -> Account | None:
        """Identify the principal, and count the request against its quota."""
        access, quotas = self.app.access, self.app.quotas
        # Compared with None, as a hook object may be empty and hence false.
        hook = request.scope.get(SCOPE_KEY) if access.hook is None else access.hook
        if hook is everybody:
            request.principal = EVERY_READER
        else:
            request.hook = hook
        if request.scope["query_string"].count(b"&") >= MOST_PARAMETERS:
            raise BadRequest(f"A request has at most {MOST_PARAMETERS:,} parameters.")
        if request.hook is not None:
            request.principal = await access.identify(request, request.hook)
        READER.set(request.principal.name)
        has_quota = request.hook is not None or quotas.default is not None
        return quotas.count(request.principal) if has_quota else None

    async def _send_meanwhile(
        self,
        response: Response,
        request: FeedRequest,
        meanwhile: Callable[[], Coroutine[Any, Any, object]],
        send: Send,
    ) -> None:
        """Send a response, and run its background work meanwhile."""
        failure: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(meanwhile)
            try:
                await self.app.sender.send(response, request, send)
            except Exception as error:  # noqa: BLE001 - the server's own, and not one of a group
                failure = error
            if request.account is not None:  # its reader may ask again while the work goes on
                request.account.in_flight -= 1
                request.account = None
        if failure is not None:
            raise failure

    async def _stream(self, pieces: AsyncIterable[Any], request: FeedRequest) -> AsyncIterator[Any]:
        """End a stream when it fails: its status has been sent, and its client will reconnect."""
        try:
            async for piece in pieces:
                yield piece
        # Its text is for the log alone.
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            self._problem(error, request)

    def _problem(self, error: BaseException, request: FeedRequest) -> tuple[Response, str]:
        """Log an error; return the answer that reports it, and the kind of problem that it is.

        One that cancels the request is raised; that of another task is a failure of the publisher.
        """
        if isinstance(error, asyncio.CancelledError) and is_cancelled():
            raise error
        if not isinstance(error, ZeroEventHubError):
            failure = FeedFailure("The feed failed in an unexpected way.")
            failure.__cause__ = error
            error = failure
        request_id = str(uuid4())
        self.app.log.failed(error, route=self.route, request=request, request_id=request_id)
        answer = problem(error, request_id, self.app.help_url)
        return answer, error.problem

    def _observe(self, request: FeedRequest, status: int, size: int, started: float) -> None:
        if self.app.observer is None:
            return
        has_body = request.method != "HEAD"
        self.app.observer.answered(
            Answered(
                feed=self.app.name,
                route=self.route,
                principal=request.principal.name,
                status=status,
                events=request.events if has_body and status == HTTP_200_OK else 0,
                size=size if has_body else 0,
                seconds=perf_counter() - started,
                waited=request.waited,
            )
        )


def _is_browser(request: FeedRequest) -> bool:
    """Return whether a person opens the feed's address: programs do not name XHTML."""
    if request.scope["query_string"]:
        return False
    # Java's HttpURLConnection names HTML.
    return qualities(request, "accept").get("application/xhtml+xml", 0) > 0
