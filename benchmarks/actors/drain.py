"""Drain a feed with bare sockets: the bytes arrive, the cursor is followed, nothing is decoded."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.actors.speaking import perform, task

ROOM = 8 * 1024 * 1024


class Reader:
    """Ask for pages on one connection, into one piece of memory."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._room = bytearray(ROOM)
        self._view = memoryview(self._room)
        self.tag = b""

    def ask(self, path: str, header: str = "") -> tuple[int, int]:
        """Ask for a path; return where the body begins and ends in memory."""
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n"
        self._socket.sendall(request.encode())
        filled, start = 0, -1
        while start < 0:
            filled += self._take(filled)
            start = self._room.find(b"\r\n\r\n", 0, filled)
        head = bytes(self._room[:start]).lower()
        start += 4
        if not head.startswith((b"http/1.1 200", b"http/1.1 304")):
            raise RuntimeError(bytes(self._room[:filled]).decode())
        if b"transfer-encoding: chunked" in head:
            while not self._room.endswith(b"\r\n0\r\n\r\n", 0, filled):
                filled += self._take(filled)
            return start, filled
        length = _header(head, b"content-length:")
        end = start + int(length or 0)
        while filled < end:
            filled += self._take(filled)
        self.tag = _header(head, b"etag:")
        return start, end

    def page(self, path: str, header: str = "") -> tuple[int, str, bool]:
        """Read a page; return how many events it has, its cursor, and whether it is the last."""
        start, end = self.ask(path, header)
        if start == end:
            return 0, "", False
        at = self._room.rfind(b'"cursor"', start, end)
        begin = self._room.index(b'"', at + 8) + 1
        cursor = self._room[begin : self._room.index(b'"', begin)].decode()
        last = self._room.find(b'"caughtUp":true', begin, end) > 0
        return self._room.count(b'"data"', start, end), cursor, last

    def answer(self, path: str) -> bytes:
        """Ask for a path; return the answer as it came, with its head."""
        _, end = self.ask(path)
        return bytes(self._room[:end])

    def _take(self, filled: int) -> int:
        count = self._socket.recv_into(self._view[filled:])
        if not count:
            raise RuntimeError("The publisher closed the connection.")
        return count


def _header(head: bytes, name: bytes) -> bytes:
    at = head.find(b"\r\n" + name)
    return head[at + 2 + len(name) :].split(b"\r\n", 1)[0].strip() if at >= 0 else b""


def walk(wanted: dict[str, Any], order: dict[str, Any]) -> dict[str, Any]:
    """Read pages one behind the other, up to a number of events; note how long each took."""
    reader = Reader(wanted["port"])
    events, pages, cursor = 0, [], order["cursor"]
    while events < order["events"]:
        began = time.perf_counter()
        count, cursor, last = reader.page(wanted["path"].replace("CURSOR", cursor))
        pages.append(time.perf_counter() - began)
        events += count
        if last or not count:
            break
    return {"events": events, "pages": pages, "cursor": cursor}


def again(wanted: dict[str, Any], order: dict[str, Any]) -> dict[str, Any]:
    """Ask for pages whose cursors are known, over and over; with their tags, if it is told to."""
    reader, asked = Reader(wanted["port"]), []
    for cursor in order["cursors"]:
        path = wanted["path"].replace("CURSOR", cursor)
        reader.page(path)
        asked.append((path, f"If-None-Match: {reader.tag.decode()}\r\n" if order["tags"] else ""))
    began, events, size = time.perf_counter(), 0, order["size"]
    while events < order["events"]:
        for path, header in asked:
            reader.ask(path, header)
        events += size * len(asked)
    return {"events": events, "seconds": time.perf_counter() - began}


@contextmanager
def forked(wanted: dict[str, Any], orders: list[dict[str, Any]]) -> Iterator[list[int]]:
    """Have a process for each order; yield where they write what they found."""
    ends, numbers = [], []
    for order in orders:
        reading, writing = os.pipe()
        number = os.fork()
        if not number:
            os.close(reading)
            found = json.dumps(walk(wanted, order)).encode()
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(found)
            os._exit(0)
        os.close(writing)
        ends.append(reading)
        numbers.append(number)
    yield ends
    for number in numbers:
        os.waitpid(number, 0)


def beside(wanted: dict[str, Any], orders: list[dict[str, Any]]) -> dict[str, Any]:
    """Walk in several processes at once."""
    with forked(wanted, orders) as ends:
        found = []
        for end in ends:
            with os.fdopen(end, "rb") as pipe:
                found.append(json.loads(pipe.read()))
    pages = [seconds for one in found for seconds in one["pages"]]
    return {"events": sum(one["events"] for one in found), "pages": pages}


def main() -> None:
    """Walk as it is told to."""
    wanted = task()

    def work(order: Any) -> dict[str, Any]:
        if isinstance(order, list):
            return beside(wanted, order)
        return again(wanted, order) if "cursors" in order else walk(wanted, order)

    perform(work)


if __name__ == "__main__":
    main()
