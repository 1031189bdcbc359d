"""Answer the requests of one route: let them in, find the answer or the problem, and send it."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import perf_counter

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from zeroeventhub.errors import FeedFailure, ZeroEventHubError
from zeroeventhub.server.access import Access
from zeroeventhub.server.observer import Answered, Observer
from zeroeventhub.server.principal import EVERYBODY, Principal
from zeroeventhub.server.problem import problem
from zeroeventhub.server.sending import Sending

__all__ = ["Answer", "Answering", "Desk"]

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
        principal = EVERYBODY
        async with AsyncExitStack() as stack:
            try:
                admitted = self._desk.access.admitted(request)
                principal = await stack.enter_async_context(admitted)
                response = await self._answer(request, principal)
            except HTTPException:
                raise  # the host's own, from its own hook, for its own handlers
            except ZeroEventHubError as error:
                response = problem(error)
            except Exception as error:  # noqa: BLE001 - whatever it is, its text is nobody's business
                failure = FeedFailure("The feed failed in an unexpected way.")
                failure.__cause__ = error
                response = problem(failure)
            self._tell(response, principal, perf_counter() - started, request)
            await self._desk.sending.send(response, request, send)

    def _tell(
        self, response: Response, principal: Principal, seconds: float, request: Request
    ) -> None:
        self._desk.observer.answered(
            Answered(
                feed=self._desk.feed,
                route=self._route,
                principal=principal.name,
                status=response.status_code,
                events=getattr(request.state, "events", 0),
                size=int(response.headers.get("content-length", 0)),
                seconds=seconds,
                waited=getattr(request.state, "waited", 0.0),
            )
        )
