"""Readers that do not read, and requests that wait: bare sockets, many of them."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit


def ask(url: str, *, room: int | None = None) -> socket.socket:
    """Send a request and read nothing."""
    parts = urlsplit(url)
    connection = socket.socket()
    if room is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    connection.settimeout(60)
    connection.connect((parts.hostname, parts.port))
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    connection.sendall(f"GET {target} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    return connection


@contextmanager
def asking(url: str, count: int) -> Iterator[list[socket.socket]]:
    """Hold open requests whose answers are not read."""
    with ExitStack() as stack:
        yield [stack.enter_context(ask(url)) for _ in range(count)]


def everything(connection: socket.socket) -> bytes:
    """Read all that comes until the connection ends; a reset is an end as well."""
    received = bytearray()
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionError:
        pass
    return bytes(received)


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read one answer: its status, its headers and its body."""
    received = bytearray()
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    length = int(headers.get("content-length", 0))
    while len(body) < length:
        chunk = connection.recv(65536)
        if not chunk:
            break
        body += chunk
    return int(status.split()[1]), headers, body
