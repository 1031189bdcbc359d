"""Answer the requests of one route: let them in, find the answer or the problem, and send it."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any, Self
from uuid import uuid4

import anyio
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.status import HTTP_200_OK
from starlette.types import Receive, Scope, Send

from zeroeventhub.errors import BadRequest, FeedFailure, ZeroEventHubError
from zeroeventhub.server.access import Access
from zeroeventhub.server.log import Log
from zeroeventhub.server.observer import Answered, Observer
from zeroeventhub.server.principal import Principal
from zeroeventhub.server.problem import problem
from zeroeventhub.server.sending import Sending

__all__ = ["Answer", "Answering", "Desk"]

MOST_PARAMETERS = 1_000
"""Parameters of a request: reading each costs time, and a URL of 64 KiB has room for 30,000."""

Answer = Callable[[Request, Principal], Awaitable[Response]]


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
        request, started = Request(scope, receive, send), perf_counter()
        request.state.events, request.state.waited, request.state.behind = 0, 0.0, None
        with _Visit(self._desk.access) as visit:
            try:
                _expect_few_parameters(scope)
                response = await self._answer(request, await visit.begin(request))
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

    async def _send(self, response: Response, request: Request, send: Send) -> None:
        """Send an answer, and do meanwhile what is to be done behind it."""
        sending, behind = self._desk.sending, request.state.behind
        if behind is None:
            await sending.send(response, request, send)
            return
        failure: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(behind)
            try:
                await sending.send(response, request, send)
            except Exception as error:  # noqa: BLE001 - the server's own, and not one of a group
                failure = error
        if failure is not None:
            raise failure

    async def _stream(self, pieces: AsyncIterable[Any], request: Request) -> AsyncIterator[Any]:
        """End a stream when it fails: its status has been sent, and its client comes back."""
        try:
            async for piece in pieces:
                yield piece
        except Exception as error:  # noqa: BLE001 - whatever it is, its text is nobody's business
            self._problem(error, request)

    def _problem(self, error: Exception, request: Request) -> Response:
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
            principal=self._desk.access.known(request),
            request_id=request_id,
        )
        return problem(error, request_id)

    def _tell(self, request: Request, status: int, size: int, started: float) -> None:
        has_body = request.method != "HEAD"
        self._desk.observer.answered(
            Answered(
                feed=self._desk.feed,
                route=self._route,
                principal=self._desk.access.known(request).name,
                status=status,
                events=request.state.events if has_body and status == HTTP_200_OK else 0,
                size=size if has_body else 0,
                seconds=perf_counter() - started,
                waited=request.state.waited,
            )
        )


class _Visit:
    """Be under way from when a request is let in until it is answered to its end.

    Args:
        access: lets it in.
    """

    __slots__ = ("_access", "_end")

    def __init__(self, access: Access) -> None:
        self._access = access
        self._end: Callable[[], object] | None = None

    async def begin(self, request: Request) -> Principal:
        """Let the request in, and return who asks; see `Access.admitted`."""
        self._end = (await self._access.admitted(request)).end
        return self._access.known(request)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._end is not None:
            self._end()


def _expect_few_parameters(scope: Scope) -> None:
    if scope["query_string"].count(b"&") >= MOST_PARAMETERS:
        raise BadRequest(f"A request has at most {MOST_PARAMETERS:,} parameters.")
