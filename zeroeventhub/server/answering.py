"""Answer the requests of one route: let them in, find the answer or the problem, and send it."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any
from uuid import uuid4

import anyio
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.status import HTTP_200_OK
from starlette.types import Receive, Scope, Send

from zeroeventhub.errors import BadRequest, FeedFailure, ZeroEventHubError
from zeroeventhub.server.access import Access
from zeroeventhub.server.log import Log
from zeroeventhub.server.observer import Answered, Observer
from zeroeventhub.server.principal import Principal
from zeroeventhub.server.problem import problem
from zeroeventhub.server.request import FeedRequest
from zeroeventhub.server.sending import Sending

__all__ = ["Answer", "Answering", "Desk"]

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
                counted = await self._desk.access.admitted(request)
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
