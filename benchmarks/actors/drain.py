"""Drain a feed with bare sockets: the bytes arrive, the cursor is followed, nothing is decoded."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.actors.speaking import perform, task

ROOM = 1024 * 1024
"""Bytes: for more than a page of these benchmarks."""


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
        self._is_chunked = b"transfer-encoding: chunked" in head
        if self._is_chunked:
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
        # Each line is an event, but the last one. To search for names would take this process four
        # times as long, on cores that the publisher and its database need. Chunks add CRLFs.
        lines = self._room.count(b"\n", start, end)
        lines -= self._room.count(b"\r\n", start, end) if self._is_chunked else 0
        return lines - 1, cursor, last

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
    events, pages, cursors, cursor = 0, [], [], order["cursor"]
    while events < order["events"]:
        cursors.append(cursor)
        began = time.perf_counter()
        count, cursor, last = reader.page(wanted["path"].replace("CURSOR", cursor))
        pages.append(time.perf_counter() - began)
        events += count
        if last or not count:
            break
    return {"events": events, "pages": pages, "cursors": cursors}


class Again:
    """Ask for pages whose cursors are known, over and over.

    Args:
        wanted: where they are.
        order: their cursors, how many events each has, and whether to show their tags.
    """

    def __init__(self, wanted: dict[str, Any], order: dict[str, Any]) -> None:
        self._reader = Reader(wanted["port"])
        self._size = order["size"]
        self._asked = []
        for cursor in order["cursors"]:
            path = wanted["path"].replace("CURSOR", cursor)
            self._reader.page(path)
            tag = f"If-None-Match: {self._reader.tag.decode()}\r\n"
            self._asked.append((path, tag if order["tags"] else ""))

    def ask(self, count: int) -> int:
        """Ask until there were so many events; return how many there were."""
        events = 0
        while events < count:
            for path, header in self._asked:
                self._reader.ask(path, header)
            events += self._size * len(self._asked)
        return events


@contextmanager
def forked(wanted: dict[str, Any], orders: list[dict[str, Any]]) -> Iterator[list[int]]:
    """Have a process for each order, and let all begin; yield where they write what they found."""
    ends, numbers = [], []
    gate, hold = os.pipe()
    for order in orders:
        reading, writing = os.pipe()
        number = os.fork()
        if not number:
            os.close(hold)
            os.read(gate, 1)  # until nobody holds it shut
            found = json.dumps(walk(wanted, order)).encode()
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(found)
            os._exit(0)
        os.close(writing)
        ends.append(reading)
        numbers.append(number)
    os.close(hold)
    yield ends
    os.close(gate)
    for number in numbers:
        os.waitpid(number, 0)


def beside(wanted: dict[str, Any], orders: list[dict[str, Any]]) -> dict[str, Any]:
    """Walk in several processes at once."""
    with forked(wanted, orders) as ends:
        began, found = time.perf_counter(), []
        for end in ends:
            with os.fdopen(end, "rb") as pipe:
                found.append(json.loads(pipe.read()))
        seconds = time.perf_counter() - began
    pages = [page for one in found for page in one["pages"]]
    return {"events": sum(one["events"] for one in found), "pages": pages, "seconds": seconds}


def main() -> None:
    """Walk as it is told to."""
    wanted = task()
    known: list[Again] = []

    def work(order: Any) -> dict[str, Any]:
        if isinstance(order, list):
            return beside(wanted, order)
        if "cursors" in order:
            known.append(Again(wanted, order))
            return {"events": 0}
        return {"events": known[0].ask(order["again"])} if known else walk(wanted, order)

    perform(work)


if __name__ == "__main__":
    main()
