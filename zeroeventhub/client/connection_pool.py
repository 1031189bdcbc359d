"""HTTP by the standard library, for clients without an httpx client, at a fifth of its cost."""

import io
import os
import select
import socket
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar
from urllib.request import getproxies

import httpx

from zeroeventhub.errors import ConfigurationError

CHUNK = 256 * 1024
"""Bytes that are read at once, at most: larger reads switch threads less often."""

LINE = 64 * 1024
"""Bytes of a line of the headers, at most."""

LINES = 100
"""How many lines the headers of a response have, at most."""

ILLEGAL_HEADER = "Illegal header"
"""How the text begins by which httpx and this module say that a header cannot be sent."""

IDLE_SECONDS = 5.0
"""How long an idle connection is kept: servers close theirs after such a time."""

_Httpx = TypeVar("_Httpx", httpx.Client, httpx.AsyncClient)

_Origin: TypeAlias = tuple[int, str, str]
"""A process, because a forked one also has its parent's connections; a scheme and a host."""


class ConnectionPool:
    """Keep connections to the servers of feeds; give it to `Client` instead of an httpx client.

    It follows no redirects, keeps no cookies and knows no proxies. Threads may share it.

    Example:
        with ConnectionPool(headers={"Authorization": "Bearer secret"}) as http:
            client = Client("https://shop.example/orders", http)
            page = client.fetch(0, FIRST)

    Args:
        headers: sent with every request.
        timeout: seconds for one operation on a connection, more than 0, or an httpx.Timeout; None
            for no limit.
        verify: the TLS context; by default one that trusts public authorities, as httpx does.

    Raises:
        ConfigurationError: a timeout is not a number above 0.
    """

    def __init__(
        self,
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        *,
        timeout: httpx.Timeout | float | None = 30.0,
        verify: ssl.SSLContext | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._idle: defaultdict[_Origin, list[tuple[float, _Connection]]] = defaultdict(list)
        self._tls = verify
        self.headers = httpx.Headers({"User-Agent": "zeroeventhub"})
        self.headers.update(httpx.Headers(headers))
        self.timeout = httpx.Timeout(timeout)
        for seconds in self.timeout.as_dict().values():
            is_number = isinstance(seconds, int | float)
            if seconds is not None and not (is_number and seconds > 0):
                raise ConfigurationError(
                    f"A timeout is a number of seconds above 0, or None for no limit; {seconds!r} "
                    "is neither."
                )

    def __enter__(self) -> Self:
        """Return the pool."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the idle connections."""
        self.close()

    @property
    def tls(self) -> ssl.SSLContext:
        """Return the TLS context; the one of public authorities is made at its first use."""
        if self._tls is None:
            self._tls = httpx.create_ssl_context()
        return self._tls

    def close(self) -> None:
        """Close the idle connections; a later request opens new ones."""
        with self._lock:
            idle = [connection for kept in self._idle.values() for _, connection in kept]
            self._idle.clear()
        for connection in idle:
            connection.close()

    def __del__(self) -> None:
        """Close the idle connections."""
        self.close()

    def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        timeouts: Mapping[str, Any],
        content: bytes | None = None,
    ) -> "SentRequest":
        """Send a request.

        Args:
            method: the method of HTTP.
            url: the address.
            headers: sent with those of the pool.
            timeouts: seconds by "connect", "read" and "write", converted to floats at each use.
            content: the body; None for a request without one.

        Raises:
            httpx.TransportError: the server cannot be reached.
            TimeoutError: a timeout has passed.
        """
        scheme, _, rest = url.partition("://")
        authority, slash, path = rest.partition("/")
        host, mark, query = authority.partition("?")  # of an address without a path
        target = f"/{path}" if slash else f"/{mark}{query}"
        fields = [*self.headers.multi_items(), *headers.items()]
        origin = os.getpid(), scheme, host
        request = _Request(origin, method, target, fields, timeouts, content)
        with _translate_errors():
            connection = self._take(request.origin)
            if connection is not None:
                with suppress(ConnectionError):
                    connection.send_request(request)
                    return SentRequest(self, request, connection, may_be_stale=True)
            return self.send_anew(request)

    def send_anew(self, request: "_Request") -> "SentRequest":
        """Send a request on a new connection."""
        _, scheme, host = request.origin  # with the port
        seconds = float(request.timeouts["connect"])
        if scheme == "http":
            connection = _Connection(host, timeout=seconds)
        else:
            connection = _TLSConnection(host, timeout=seconds, context=self.tls)
        connection.connect()
        connection.send_request(request)
        return SentRequest(self, request, connection, may_be_stale=False)

    def _take(self, origin: _Origin) -> "_Connection | None":
        """Return an idle connection that its server has not closed."""
        while True:
            with self._lock:
                if not (idle := self._idle[origin]):
                    return None
                since, connection = idle.pop()
            # Between two responses, a server sends only the connection's end, or breaks HTTP. A
            # selector would take twenty times as long to see that.
            if hasattr(select, "poll"):
                readable = select.poll()
                readable.register(connection.sock, select.POLLIN)
                is_ended = bool(readable.poll(0))
            else:  # on Windows, where `select` takes any socket
                is_ended = bool(select.select([connection.sock], [], [], 0)[0])
            if not is_ended and time.monotonic() - since < IDLE_SECONDS:
                return connection
            connection.close()

    def put_back(self, origin: _Origin, connection: "_Connection") -> None:
        """Keep a connection for the next request; close one that no request has needed for long."""
        now = time.monotonic()
        with self._lock:
            idle = self._idle[origin]
            idle.append((now, connection))
            needless = idle.pop(0)[1] if now - idle[0][0] > IDLE_SECONDS else None
        if needless is not None:
            needless.close()


class _Request(NamedTuple):
    origin: _Origin
    method: str
    target: str
    fields: Sequence[tuple[str, str]]
    timeouts: Mapping[str, Any]
    content: bytes | None


@dataclass(eq=False)
class SentRequest(httpx.SyncByteStream):
    """A request, then the bytes of its response; its connection is kept if they were all read."""

    _pool: ConnectionPool
    _request: _Request
    _connection: "_Connection"
    may_be_stale: bool
    _response: Any = None
    _is_whole: bool = False

    def receive(self) -> httpx.Response:
        """Read the headers of the response; close the response after reading its body.

        Raises:
            httpx.TransportError: the connection broke, or the response is not HTTP.
            TimeoutError: a timeout has passed.
        """
        with _translate_errors():
            try:
                response = self._connection.receive(self._request.timeouts)
            except ConnectionError:
                if not self.may_be_stale:
                    raise
                # Its server may just have closed it. Every request to a feed may be repeated.
                return self._pool.send_anew(self._request).receive()
        self._response = response
        return httpx.Response(response.status, headers=response.headers, stream=self)  # type: ignore[arg-type] # see `begin`

    def __iter__(self) -> Iterator[bytes]:
        """Yield the bytes of the response as they arrive."""
        response = self._response
        with _translate_errors():
            while chunk := response.read1(CHUNK):
                yield chunk
            if response.length:
                raise IncompleteRead(b"", response.length)
        self._is_whole = not response.will_close

    def close(self) -> None:
        """Keep the connection, or close it."""
        if self._response is not None:
            self._response.close()
        if self._is_whole:
            self._pool.put_back(self._request.origin, self._connection)
        else:
            self._connection.close()


class _Connection(HTTPConnection):
    """A connection whose reads each have the time that is left of a response's deadline."""

    def send_request(self, request: _Request) -> None:
        try:
            self.sock.settimeout(float(request.timeouts["write"]))
            self.putrequest(request.method, request.target, skip_accept_encoding=True)
            try:
                for name, value in request.fields:
                    self.putheader(name, value)
            except ValueError:
                raise httpx.LocalProtocolError(ILLEGAL_HEADER) from None
            if request.content is not None or request.method == "PUT":
                # Also of an empty one: some servers refuse a PUT without.
                self.putheader("Content-Length", str(len(request.content or b"")))
            self.endheaders()
            if request.content is not None:
                # A server that refuses a body may close before it has read all of it.
                with suppress(ConnectionError):
                    self.send(request.content)
        except BaseException:
            self.close()
            raise

    def receive(self, timeouts: Mapping[str, Any]) -> HTTPResponse:
        """Return the response as soon as its headers have arrived."""
        self.response_class = lambda sock, **options: _Response(  # type: ignore[assignment]
            _TimedReader(sock, timeouts["read"]),  # type: ignore[arg-type] # `makefile` is enough
            **options,
        )
        try:
            return self.getresponse()
        except BaseException:
            self.close()
            raise


class _TLSConnection(HTTPSConnection, _Connection):
    """A `_Connection` over TLS."""


class _Response(HTTPResponse):
    """A response of one length, whose interim responses, such as early hints, are skipped."""

    def begin(self) -> None:
        """Read the headers, without the e-mail parser of HTTPResponse.

        That parser is slow, and accepts headers that were cut.

        Raises:
            IncompleteRead: they were cut.
            HTTPException: they are not HTTP.
            httpx.NetworkError: there are too many.
        """
        status: Any = self._read_status  # type: ignore[attr-defined] # it has no type
        version, self.status, _ = status()
        while self.status < HTTPStatus.OK:
            self._read_fields()
            version, self.status, _ = status()
        fields = httpx.Headers(self._read_fields(), encoding="latin-1")
        lengths, coding = {*fields.get_list("content-length")}, fields.get("transfer-encoding")
        is_clear = len(lengths) < 2 and all(map(str.isdecimal, lengths))  # noqa: PLR2004 - one
        if not is_clear or (coding or "chunked").lower() != "chunked":
            raise HTTPException
        self.headers, self.chunked, self.chunk_left = fields, coding is not None, None  # type: ignore[assignment]
        self.length = None if self.chunked else next(map(int, lengths), None)
        if self.status in {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}:
            self.length = 0
        connection = fields.get("connection", "").lower()
        is_kept = "close" not in connection if version == "HTTP/1.1" else connection == "keep-alive"
        self.will_close = not is_kept or (self.length is None and not self.chunked)

    def _read_fields(self) -> list[tuple[bytes, bytes]]:
        """Read the names and values of headers, up to the empty line that ends them."""
        fields: list[tuple[bytes, bytes]] = []
        for _ in range(LINES + 1):
            line = self.fp.readline(LINE)
            if line in {b"\r\n", b"\n"}:
                return fields
            if not line.endswith(b"\n"):
                raise IncompleteRead(b"")
            name, colon, value = line.partition(b":")
            if fields and line.startswith((b" ", b"\t")):  # the header before goes on
                fields[-1] = (fields[-1][0], b"%b %b" % (fields[-1][1], line.strip()))
            elif not colon or name.strip() != name or not name:
                raise HTTPException
            else:
                fields.append((name, value.strip()))
        raise httpx.NetworkError(f"its answer has more than {LINES} lines of headers")


class _TimedReader(io.RawIOBase):
    """Read from a socket; the timeout is converted to the seconds left before each read."""

    def __init__(self, sock: socket.socket, timeout: Any) -> None:
        self._socket, self._timeout = sock, timeout
        self._raw = sock.makefile("rb", buffering=0)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(float(self._timeout))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        """Close the file, not the socket."""
        self._raw.close()
        super().close()


def open_http(
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
    *,
    timeout: httpx.Timeout | float | None = 30.0,
    verify: ssl.SSLContext | None = None,
) -> ConnectionPool | httpx.Client:
    """Return a pool of connections, or an httpx client where the environment names proxies."""
    if getproxies().keys() & {"http", "https", "all"}:
        return open_httpx(httpx.Client, headers=headers, timeout=timeout, verify=verify or True)
    return ConnectionPool(headers, timeout=timeout, verify=verify)


def open_httpx(kind: type[_Httpx], **options: Any) -> _Httpx:
    """Return an httpx client that uses the proxies of the environment and keeps no cookies.

    A server could fill the memory with cookies.

    Raises:
        ConfigurationError: httpx cannot use one of them.
    """
    try:
        return kind(cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())), **options)
    except ImportError as error:  # its text says what to install for SOCKS
        raise ConfigurationError(str(error)) from None
    except (ValueError, httpx.InvalidURL):
        raise ConfigurationError(
            "The environment names a proxy whose address is not one of HTTP or SOCKS: see "
            "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY."
        ) from None


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Replace errors of the standard library, which may repeat what was sent, by those of httpx."""
    try:
        yield
    except (TimeoutError, UnicodeError):  # of a host whose name cannot be one
        raise
    except OSError as error:
        raise httpx.NetworkError(str(error)) from None
    except (HTTPException, ValueError) as error:
        raise httpx.RemoteProtocolError(type(error).__name__) from None
