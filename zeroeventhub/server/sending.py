"""Send an answer to its reader."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Send

from zeroeventhub.capacity import Capacity

__all__ = ["Sending"]


class Sending:
    """Send answers, within the capacity of a feed.

    Args:
        capacity: how much may be on its way, and for how long.
    """

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity

    async def send(self, response: Response, request: Request, send: Send) -> None:
        """Send an answer."""
        await response(request.scope, request.receive, send)
