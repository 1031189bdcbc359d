"""Either client, called by one function, and feeds of raw answers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx
import msgspec
import pytest

from harness.readers import client_of
from harness.web import answering
from zeroeventhub import FIRST, AsyncClient, Client, ConnectionPool

PAGE = b'{"data":{"n":1}}\n{"cursor":"a"}\n{"data":{"n":2}}\n{"data":{"n":3}}\n{"cursor":"b"}\n'


def discovery(*extensions: str) -> bytes:
    """Write the discovery document of one partition."""
    document = {"token": "t", "partitions": [{"id": "0"}], "exactlyOnce": True}
    return msgspec.json.encode(document | {"extensions": extensions})


INFO = discovery()


def answer(
    body: bytes = b"", *fields: str, status: str = "200 OK", kind: str = "application/x-ndjson"
) -> bytes:
    """Write an answer whose end is the end of its connection, unless a field says otherwise."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close", *fields, "", ""]
    return "\r\n".join(lines).encode() + body


def problem(kind: str, *, status: str = "410 Gone", **members: Any) -> bytes:
    """Write an answer that is a problem document."""
    document = {"type": f"urn:zeroeventhub:problem/{kind}", **members}
    body = msgspec.json.encode(document)
    return answer(body, status=status, kind="application/problem+json")


def sync_call(url, method="fetch", *arguments, session=None, feed=None, **options) -> Any:
    """Call a method of a client; by default, fetch the first page of partition 0."""
    with client_of(url, session or {}, **feed or {}) as client:
        return getattr(client, method)(*_arguments(method, arguments), **options)


def pool_call(url, method="fetch", *arguments, session=None, feed=None, **options) -> Any:
    """Call a method of a client with a ConnectionPool; by default, fetch the first page."""
    given = session or {}
    if unknown := given.keys() - {"headers", "timeout", "verify"}:
        pytest.skip(f"A ConnectionPool has no option {', '.join(unknown)}.")
    with ConnectionPool(**given) as http:
        client = Client(url, http, **feed or {})
        return getattr(client, method)(*_arguments(method, arguments), **options)


def async_call(url, method="fetch", *arguments, session=None, feed=None, **options) -> Any:
    """Call a method of an async client; by default, fetch the first page of partition 0."""

    async def call() -> Any:
        async with httpx.AsyncClient(**session or {}) as http:
            client = AsyncClient(url, http, **feed or {})
            return await getattr(client, method)(*_arguments(method, arguments), **options)

    return anyio.run(call)


def _arguments(method: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return arguments or ((0, FIRST) if method.startswith("fetch") else ())


@contextmanager
def raw_feed(
    page: bytes | Callable[[str], bytes] | None = None, *, info: bytes | None = None
) -> Iterator[tuple[str, list[tuple[str, dict[str, list[str]]]]]]:
    """Serve a feed of raw answers; yield its URL, and the requests that come, discovery aside."""
    seen = []
    info = answer(INFO) if info is None else info
    page = answer(PAGE) if page is None else page

    def reply(target: str) -> bytes:
        parts = urlsplit(target)
        if parts.path == "/":
            return info
        seen.append((parts.path, parse_qs(parts.query, keep_blank_values=True)))
        return page if isinstance(page, bytes) else page(target)

    with answering(reply) as url:
        yield url, seen
