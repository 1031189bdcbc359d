"""Clients of feeds in the same process: the requests are real ones, without sockets; and faults."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from typing import Any

import httpx
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette

from zeroeventhub.client import AsyncClient, Client
from zeroeventhub.conformance.scripted_feed import Reply, problem
from zeroeventhub.server.routes import feed_routes
from zeroeventhub.settings import Capacity


class Faults:
    """Let the next requests for pages fail, each by one fault, before pages are sent again.

    Example:
        faults = Faults()
        client = client_of(feed_of([{"order": 1}]), faults=faults)
        faults.unavailable(retry_after=30)
        run_to_head(Consumer(client, store, "billing"), apply)
    """

    def __init__(self) -> None:
        self._next: list[Callable[[bytes], Reply]] = []

    @property
    def pending(self) -> int:
        """How many faults are still to be sent."""
        return len(self._next)

    def cut_page(self, after: int | None = None) -> None:
        """Break off the next page after a number of bytes; by default, in its middle."""
        self._next.append(lambda body: Reply(body, cut=len(body) // 2 if after is None else after))

    def token_changed(self) -> None:
        """Answer the next request for a page with 409: the partitions have changed."""
        self._add(problem(409, "token-changed"))

    def trimmed(self, earliest: str | None = None) -> None:
        """Answer the next request for a page with 410: its events were trimmed.

        Args:
            earliest: the first cursor of the events that are kept; None to say nothing of it.
        """
        members = {} if earliest is None else {"earliestCursor": earliest}
        self._add(problem(410, "trimmed", **members))

    def unavailable(self, retry_after: int = 1) -> None:
        """Answer the next request for a page with 503, to be sent again after some seconds."""
        refusal = problem(503, "unavailable")
        self._add(replace(refusal, headers=(("Retry-After", str(retry_after)),)))

    def reset(self) -> None:
        """Reset the connection at the next request for a page."""
        self._add(Reply(hang_up=True))

    def _add(self, reply: Reply) -> None:
        self._next.append(lambda _: reply)

    def take(self, path: str, body: bytes) -> Reply | None:
        """Return the fault that replaces the body of an answer; None without one."""
        return self._next.pop(0)(body) if self._next and path.endswith("/events") else None


class _Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body, or the beginning of one, after which the connection breaks off."""

    def __init__(self, body: bytes, *, is_cut: bool = False) -> None:
        self._body, self._is_cut = body, is_cut

    def __iter__(self) -> Iterator[bytes]:
        yield self._body
        if self._is_cut:
            raise httpx.RemoteProtocolError("The page was cut, as the test has asked for.")

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


class _AsyncTransport(httpx.AsyncBaseTransport):
    """Send requests to an ASGI application of this process."""

    def __init__(self, app: Any, faults: Faults) -> None:
        self._inner = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._faults = faults

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; return its response, or the next fault."""
        response = await self._inner.handle_async_request(request)
        # Not `aread`, which unpacks what is compressed: the client does.
        body = b"".join([piece async for piece in response.aiter_raw()])
        reply = self._faults.take(request.url.path, body)
        if reply is None:
            return httpx.Response(
                response.status_code, headers=response.headers, stream=_Body(body)
            )
        if reply.hang_up:
            raise httpx.ReadError("The connection was reset, as the test has asked for.")
        headers = [("Content-Type", str(reply.media_type)), *reply.headers]
        stream = _Body(reply.body[: reply.cut], is_cut=reply.cut is not None)
        return httpx.Response(reply.status, headers=headers, stream=stream)


class _Transport(httpx.BaseTransport):
    """The same for threads: the application runs in an event loop of its own thread."""

    def __init__(self, app: Any, faults: Faults) -> None:
        self._inner = _AsyncTransport(app, faults)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and return its whole response."""
        sent = self._inner.handle_async_request(request)
        return asyncio.run_coroutine_threadsafe(sent, _event_loop()).result()


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop in which all applications run that are read by threads."""
    running: Future[asyncio.AbstractEventLoop] = Future()

    async def run() -> None:
        running.set_result(asyncio.get_running_loop())
        await asyncio.Event().wait()

    # A daemon, as the threads are that it starts: none keeps the process from ending.
    name = "zeroeventhub.testing"
    threading.Thread(target=asyncio.run, args=(run(),), name=name, daemon=True).start()
    return running.result()


LONGEST_WAIT = 0.2
"""Seconds that a request waits at the head at most, so that a consumer is soon stopped."""


def _app_of(feed: Any, engine: Any, path: str) -> Any:
    if callable(feed):
        return feed
    capacity = Capacity(wait_seconds=LONGEST_WAIT)
    return Starlette(routes=feed_routes(path, feed, engine, capacity=capacity))


def client_of(
    feed: Any,
    engine: Engine | AsyncEngine | None = None,
    *,
    path: str = "/feed",
    headers: Mapping[str, str] | None = None,
    faults: Faults | None = None,
) -> Client:
    """Return a client of a feed in this process, which is sent real requests without a socket.

    Args:
        feed: a Feed, AsyncFeed or TableFeed, where a request waits at the head for 0.2 seconds at
            most; or an ASGI application that serves one.
        engine: the engine that a TableFeed reads through.
        path: the address of the feed in the application.
        headers: sent with every request, such as credentials.
        faults: the faults of the next pages.
    """
    transport = _Transport(_app_of(feed, engine, path), faults or Faults())
    return Client(f"http://feed.test{path}", httpx.Client(transport=transport, headers=headers))


def async_client_of(
    feed: Any,
    engine: Engine | AsyncEngine | None = None,
    *,
    path: str = "/feed",
    headers: Mapping[str, str] | None = None,
    faults: Faults | None = None,
) -> AsyncClient:
    """Return an AsyncClient of a feed in this process; see `client_of`."""
    transport = _AsyncTransport(_app_of(feed, engine, path), faults or Faults())
    http = httpx.AsyncClient(transport=transport, headers=headers)
    return AsyncClient(f"http://feed.test{path}", http)
