import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from harness.calling import INFO, PAGE, answer, discovery
from harness.waiting import until
from harness.web import listening, request_on

from zeroeventhub import FIRST, AsyncClient, Client, ConnectionPool, NewEvent
from zeroeventhub.client.connection_pool import open_http
from zeroeventhub.errors import ConfigurationError, NotFound, TooLarge, Unreachable


@pytest.fixture
def keeping():
    """The URL of a feed that keeps its connections, and how many requests came on each."""
    counts = []

    def serve(connection):
        number = len(counts)
        counts.append(0)
        while request := request_on(connection):
            counts[number] += 1
            body = PAGE if b"/events" in request else INFO
            head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            if counts[number] == 3:
                return

    with listening(serve) as url:
        yield url, counts


def test_client_of_its_own_keeps_its_connection(keeping):
    """A client without an httpx client asks on one connection, until the server closes it."""
    url, counts = keeping
    client = Client(url)
    assert [client.fetch(0, FIRST).cursor for _ in range(5)] == ["b"] * 5
    assert sum(counts) == 6
    assert len(counts) <= 3


def test_threads_that_share_a_pool_have_connections_of_their_own(keeping):
    """Threads may send at once through one pool, and each gets the response to its request."""
    url, _ = keeping
    found = []
    with ConnectionPool() as http:
        client = Client(url, http)

        def read():
            found.extend(client.fetch(0, FIRST).cursor for _ in range(10))

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == ["b"] * 40


def test_connection_that_no_request_needs_is_closed(monkeypatch):
    """Of the connections of many requests at once, those stay that later requests need."""
    monkeypatch.setattr("zeroeventhub.client.connection_pool.IDLE_SECONDS", 0.3)
    ended, at_once = [], threading.Barrier(3)

    def serve(connection):
        at_once.wait(20)
        while request_on(connection):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(INFO) + INFO)
        ended.append(connection)

    with listening(serve) as url, ConnectionPool() as http, ThreadPoolExecutor(3) as pool:
        client = Client(url, http)
        for one in [pool.submit(client.discover) for _ in range(3)]:
            one.result()
        until(lambda: client.discover() and len(ended) == 2, "two connections are closed")


FORKING = """
import os, sys
from zeroeventhub import FIRST, Client

client = Client(sys.argv[1])
client.discover()
if (child := os.fork()) and os.waitpid(child, 0)[1]:
    sys.exit("The child failed.")
client.fetch(0, FIRST)
"""


def test_forked_processes_have_connections_of_their_own(keeping):
    """A process and one forked from it never read each other's responses."""
    url, counts = keeping
    subprocess.run([sys.executable, "-c", FORKING, url], check=True, timeout=60)
    assert sorted(counts) == [1, 2]


def test_forked_processes_have_connections_of_their_own_to_a_proxy(keeping):
    """A process and one forked from it never read each other's responses through a proxy either."""
    proxy, counts = keeping
    command = [sys.executable, "-c", FORKING, "http://shop.example/orders"]
    subprocess.run(command, check=True, timeout=60, env={**os.environ, "http_proxy": proxy})
    assert sorted(counts) == [1, 2]


def test_headers_that_break_off_are_no_answer():
    """An answer that ends within its headers is no answer: the feed counts as unreachable."""
    head = b"HTTP/1.1 200 OK\r\nServer: feed\r\nContent-Length: 2\r\n\r\n"
    cuts = iter(range(1, len(head)))

    def serve(connection):
        if request_on(connection):
            connection.sendall(head[: next(cuts)])

    with listening(serve) as url, ConnectionPool() as http:
        for _ in range(1, len(head)):
            with pytest.raises(Unreachable):
                Client(url, http).discover()


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 103 A\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length:%d\n\n",
        b"HTTP/1.1 200 OK\r\nServer: a\r\n\tb: c\r\ncontent-length:  %d \r\n\r\n",
        b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: %d\r\n\r\n",
    ],
)
def test_headers_of_other_forms_are_read(head):
    """Interim responses, bare line ends, headers of several lines and HTTP/1.0 are HTTP as well."""

    def serve(connection):
        while request_on(connection):
            connection.sendall(head % len(INFO) + INFO)

    with listening(serve) as url, ConnectionPool() as http:
        assert [Client(url, http).discover().token for _ in range(2)]


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 1\r\nContent-Length: 2",
        b"Content-Length: -1",
        b"Content-Length: 1_0",
        b"Content-Length : 2",
        b"Content-Length",
        b": 2",
        b"Transfer-Encoding: gzip",
        b"Server: " + b"a" * 70_000,
        b"\r\n".join([b"Server: a"] * 101),
        b"Server: a" + b"\r\n b" * 100,
    ],
)
def test_headers_that_are_not_http_are_no_answer(fields):
    """A response of which nobody can say how long it is, or with too many headers, is refused."""

    def serve(connection):
        if request_on(connection):
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n\r\n{}")

    with listening(serve) as url, ConnectionPool() as http, pytest.raises(Unreachable):
        Client(url, http).discover()


def test_answer_with_too_many_headers_is_said_to_have_them():
    """The error says what is wrong with an answer that has more headers than are read."""

    def serve(connection):
        if request_on(connection):
            connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"Server: a\r\n" * 101 + b"\r\n")

    refused = pytest.raises(Unreachable, match="its answer has more than 100 lines of headers")
    with listening(serve) as url, ConnectionPool() as http, refused:
        Client(url, http).discover()


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "30", httpx.Timeout(30, connect=0)])
def test_timeout_that_no_request_can_keep_is_refused(timeout):
    """A timeout that is not above zero is refused before a server seems not to answer."""
    with pytest.raises(ConfigurationError, match="seconds above 0"):
        ConnectionPool(timeout=timeout)


def test_pool_sends_its_headers():
    """The headers of a pool are sent with each request, beside those of the client."""
    seen = []

    def serve(connection):
        seen.append(request_on(connection))
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    headers = {"Authorization": "Bearer secret"}
    with listening(serve) as url, ConnectionPool(headers) as http, pytest.raises(NotFound):
        Client(url, http).discover()
    assert b"\r\nauthorization: bearer secret\r\n" in seen[0].lower()
    assert b"\r\naccept-encoding: identity\r\n" in seen[0].lower()


@pytest.mark.parametrize(
    ("name", "kind"), [("HTTPS_PROXY", httpx.Client), ("NO_SUCH", ConnectionPool)]
)
def test_proxies_of_the_environment_are_left_to_httpx(monkeypatch, name, kind):
    """Where the environment names a proxy, httpx is used, which knows them."""
    for known in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(known, raising=False)
        monkeypatch.delenv(known.upper(), raising=False)
    monkeypatch.setenv(name, "http://127.0.0.1:1")
    with open_http() as http:
        assert isinstance(http, kind)


@pytest.mark.parametrize(
    "proxy", ["socks5://127.0.0.1:1", "ftp://canary:canary@x", "http://canary:canary"]
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_proxy_that_httpx_cannot_use_is_an_error_of_the_configuration(monkeypatch, proxy, kind):
    """A proxy of SOCKS without its package, and one without an address, are refused at once."""
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.setitem(sys.modules, "socksio", None)
    with pytest.raises(ConfigurationError, match=r"socksio|ALL_PROXY") as caught:
        kind("http://shop.example/orders")
    assert "canary" not in str(caught.value)


def test_request_that_may_have_a_body_says_that_it_has_none(any_call):
    """A server that wants to know the length of each PUT registers the progress of a consumer."""

    def serve(connection):
        request = request_on(connection).lower()
        is_refused = request.startswith(b"put") and b"\r\ncontent-length: 0\r\n" not in request
        good = answer(discovery("progress"))
        connection.sendall(answer(status="411 Length Required") if is_refused else good)

    with listening(serve) as url:
        any_call(url, "register_progress", "billing", 0, "c")


def test_refusal_that_comes_before_the_body_was_read_is_heard():
    """A server may refuse a body, and close its connection, without reading it to its end."""

    def serve(connection):
        is_append = request_on(connection).startswith(b"POST")
        head = discovery("append")
        connection.sendall(answer(status="413 Too Large") if is_append else answer(head))

    with listening(serve) as url, ConnectionPool() as http, pytest.raises(TooLarge):
        Client(url, http).append([NewEvent("large", "x" * 900_000)] * 4)


@pytest.mark.parametrize("kind", ["async", "proxy"])
def test_client_of_its_own_keeps_no_cookies(kind, monkeypatch):
    """A client without an httpx client sends no cookie back: a server could fill its memory."""
    requests = []

    def serve(connection):
        requests.append(request_on(connection))
        body = PAGE if b"/events" in requests[-1] else INFO
        connection.sendall(answer(body, f"Set-Cookie: c{len(requests)}=x; Path=/"))

    async def fetch(url):
        client = AsyncClient(url)
        async with client.http:
            return [(await client.fetch(0, FIRST)).cursor for _ in range(3)]

    with listening(serve) as url:
        if kind == "async":
            assert asyncio.run(fetch(url)) == ["b"] * 3
        else:
            monkeypatch.setenv("HTTP_PROXY", url)
            with open_http() as http:
                client = Client("http://feed.invalid", http)
                assert [client.fetch(0, FIRST).cursor for _ in range(3)] == ["b"] * 3
    assert len(requests) == 4
    assert not any(b"cookie:" in one.lower() for one in requests)
