"""Let readers in."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from zeroeventhub.server.principal import EVERYBODY, Principal

__all__ = ["Access"]


class Access:
    """Let in who may read the feed."""

    @asynccontextmanager
    async def admitted(self, request: Request) -> AsyncIterator[Principal]:  # noqa: ARG002
        """Let a request in until it is answered to its end."""
        yield EVERYBODY
