"""A request to a feed, and what is noted of it while it is answered."""

from collections.abc import Callable, Coroutine
from typing import Any

from starlette.requests import Request

from zeroeventhub.server.principal import EVERYBODY, Principal

__all__ = ["FeedRequest"]


class FeedRequest(Request):
    """Be a request of Starlette's.

    Attributes:
        principal: who asks, once that is known.
        events: how many events its answer has.
        waited: for how many seconds it waited at the head.
        meanwhile: what to do while the answer is sent; None for nothing.
    """

    principal: Principal = EVERYBODY
    events: int = 0
    waited: float = 0.0
    meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None
