"""Let readers in: who they are is told by a hook of the host's, and how much they may by quotas."""

from contextlib import AbstractContextManager
from inspect import isawaitable, iscoroutinefunction
from typing import Any

import anyio
import anyio.to_thread
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from zeroeventhub.errors import FeedFailure, Forbidden, Unauthorized, Unavailable
from zeroeventhub.server.authorize import Authorize, checked, everybody, hook_of
from zeroeventhub.server.principal import EVERYBODY, Principal, Quota
from zeroeventhub.server.quotas import Counted, Quotas
from zeroeventhub.server.request import FeedRequest

__all__ = ["Access"]

THREADS = 4
"""How many threads of a feed run hooks that are not asynchronous."""


class Access:
    """Let in who may read the feed.

    Args:
        authorize: says who asks; None to ask the hook of the application around the feed, and to
            let everybody in where there is none.
        quota: of readers who have none of their own.
        patience: seconds for which a hook may take.

    Raises:
        ConfigurationError: the hook cannot be called.
    """

    def __init__(
        self, authorize: Authorize | None, quota: Quota | None, *, patience: float
    ) -> None:
        self._authorize = None if authorize is None else checked(authorize)
        self._quotas = Quotas(quota)
        self._patience = patience
        self._threads = anyio.CapacityLimiter(THREADS)

    async def admitted(self, request: FeedRequest) -> Counted:
        """Let a request in, and count it until what is returned is told its end.

        Raises:
            Unauthorized: nobody knows who asks.
            Forbidden: who asks may not read the feed.
            TooManyRequests: who asks takes too much.
            Unavailable: nobody found out in time who asks.
            FeedFailure: the hook did not say who asks.
        """
        request.principal = await self.identify(request)
        return self._quotas.admitted(request.principal)

    def waiting(self, principal: Principal) -> AbstractContextManager[None]:
        """Count a request of a reader's for as long as it waits at the head."""
        return self._quotas.waiting(principal)

    def is_public(self, request: Request) -> bool:
        """Tell whether everybody may read the feed, whoever asks."""
        return self._hook(request) is everybody

    def mark(self, request: Request, response: Response) -> None:
        """Say of an answer that it is only for who asked."""
        if not self.is_public(request):
            MutableHeaders(raw=response.raw_headers).add_vary_header("Authorization")

    async def identify(self, request: Request) -> Principal:
        """Ask the hook who asks, and whether that one may read; what it does not say is a no."""
        hook = self._hook(request)
        if hook is everybody:
            return EVERYBODY
        with anyio.move_on_after(self._patience) as waiting:
            found = await self._ask(hook, request)
        # A hook in a thread is not stopped, and what it says too late does not count.
        if waiting.cancel_called:
            raise Unavailable("It cannot be found out just now who asks.", retry_after=1)
        if not isinstance(found, Principal):
            raise FeedFailure(
                f"The hook authorize returned {type(found).__name__}, so nobody is let in: it has "
                "to return a Principal, or raise Unauthorized or Forbidden."
            )
        return found

    def _hook(self, request: Request) -> Authorize:
        # By what they are and not by what they hold: a hook of no readers is a hook.
        for hook in (self._authorize, hook_of(request)):
            if hook is not None:
                return hook
        return everybody

    async def _ask(self, hook: Authorize, request: Request) -> Any:
        try:
            if _is_async(hook):
                found = hook(request)
            else:
                # It may wait for a database or another service.
                found = await anyio.to_thread.run_sync(
                    hook, request, limiter=self._threads, abandon_on_cancel=True
                )
            return await found if isawaitable(found) else found
        except (HTTPException, Unauthorized, Forbidden, Unavailable):
            raise
        except Exception as error:
            raise FeedFailure("The hook authorize failed, so nobody is let in.") from error


def _is_async(hook: Authorize) -> bool:
    """Tell whether a function, or what can be called like one, is asynchronous."""
    return iscoroutinefunction(hook) or iscoroutinefunction(type(hook).__call__)
