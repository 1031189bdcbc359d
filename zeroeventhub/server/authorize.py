"""Hooks that say who may read, and the default of them for a whole application."""

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from zeroeventhub.errors import ConfigurationError, Unauthorized
from zeroeventhub.server.principal import EVERYBODY, Principal

__all__ = ["Authorize", "FeedAuthorization", "checked", "deny", "everybody", "hook_of"]

Authorize = Callable[[Request], Principal | Awaitable[Principal]]
"""Return who asks, or raise `Unauthorized`, `Forbidden` or an HTTPException of Starlette's."""

_KEY = "zeroeventhub.authorize"


async def everybody(request: Request) -> Principal:  # noqa: ARG001 - whatever it is
    """Let everybody read everything: a feed says so in an application that denies by default."""
    return EVERYBODY


async def deny(request: Request) -> NoReturn:  # noqa: ARG001 - whatever it is
    """Let nobody in."""
    raise Unauthorized("Nobody may read this feed: it does not say yet who may.")


class FeedAuthorization:
    """Authorize the readers of all feeds below, unless a feed has a hook of its own.

    A middleware for applications of Starlette and FastAPI, and for parts of them:
    `Starlette(routes=…, middleware=[Middleware(FeedAuthorization)])`. Without a hook it lets
    nobody in, so that no feed can be read by everybody because somebody forgot to say who may.

    Args:
        app: what lies below; anything in it but feeds takes no notice.
        authorize: the hook; see `feed_routes`.

    Raises:
        ConfigurationError: the hook cannot be called.
    """

    def __init__(self, app: ASGIApp, authorize: Authorize = deny) -> None:
        self._app = app
        self._authorize = checked(authorize)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the hook down to the feeds."""
        # In place, so that those above see what those below write into it, such as the route.
        scope[_KEY] = self._authorize
        await self._app(scope, receive, send)


def checked(authorize: Any) -> Authorize:
    """Return a hook, if it is one.

    Raises:
        ConfigurationError: it cannot be called.
    """
    if not callable(authorize):
        raise ConfigurationError("authorize is a function that takes a request.")
    hook: Authorize = authorize
    return hook


def hook_of(request: Request) -> Authorize | None:
    """Return the hook of the application around a feed, if it has one."""
    hook: Authorize | None = request.scope.get(_KEY)
    return hook
