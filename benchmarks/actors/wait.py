"""Wait at the head of a feed many times over, each time on a connection of its own."""

import resource
import selectors
import socket
import time
from typing import Any

from benchmarks.actors.drain import Reader
from benchmarks.actors.speaking import perform, task

BATCH = 250
"""How many requests are made before the publisher is let take them: more than a backlog is lost."""


class Crowd:
    """Hold requests that wait."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def join(self, port: int, path: str, count: int) -> None:
        """Ask so many times more."""
        request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
        for number in range(count):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.sendall(request)
            self._selector.register(connection, selectors.EVENT_READ)
            if number % BATCH == BATCH - 1:
                time.sleep(0.1)

    def answered(self) -> list[bytes]:
        """Wait until all have an answer; return their status codes."""
        codes = []
        while self._selector.get_map():
            for key, _ in self._selector.select():
                connection = key.fileobj
                assert isinstance(connection, socket.socket)  # noqa: S101 - all of them are
                codes.append(connection.recv(65536)[9:12])
                self._selector.unregister(connection)
                connection.close()
        return codes


def main() -> None:
    """Ask, or wait for the answers, as it is told to."""
    wanted, crowd = task(), Crowd()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    reader = Reader(wanted["port"])
    _, head, _ = reader.page(wanted["path"].replace("CURSOR", "_last"))
    path = wanted["path"].replace("CURSOR", head) + "&wait=30"

    def work(order: Any) -> dict[str, Any]:
        if order:
            crowd.join(wanted["port"], path, order)
            return {"events": order}
        codes = crowd.answered()
        return {"events": len(codes), "well": codes.count(b"200"), "at": time.monotonic()}

    perform(work)


if __name__ == "__main__":
    main()
