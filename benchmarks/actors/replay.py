"""Serve pages of a feed that were recorded before: a publisher that costs next to nothing."""

import socket
import threading
from collections.abc import Iterator

from benchmarks.actors.drain import Reader
from benchmarks.actors.speaking import say, task


def recorded(port: int, table: str, limit: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the answers of a feed, each with the cursor that was asked for; none for discovery."""
    reader = Reader(port)
    yield b"", reader.answer(f"/{table}")
    cursor, last = "_first", False
    while not last:
        path = f"/{table}/events?token=1&partition=0&cursor={cursor}&pagesizehint={limit}"
        _, following, last = reader.page(path)
        yield cursor.encode(), reader.answer(path)
        cursor = following


def answer(connection: socket.socket, answers: dict[bytes, bytes]) -> None:
    """Answer the requests of a connection."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    request = b""
    while chunk := connection.recv(65536):
        request += chunk
        if request.endswith(b"\r\n\r\n"):
            target = request.split(b" ", 2)[1]
            _, _, behind = target.partition(b"&cursor=")
            connection.sendall(answers[behind.partition(b"&")[0]])
            request = b""


def main() -> None:
    """Record the feed of a publisher, and serve it until the process is ended."""
    wanted = task()
    answers = dict(recorded(wanted["port"], wanted["table"], wanted["limit"]))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        say({"port": listening.getsockname()[1]})
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=answer, args=(connection, answers), daemon=True).start()


if __name__ == "__main__":
    main()
