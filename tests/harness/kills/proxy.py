"""A wire between consumer and database that cuts the line around a COMMIT."""

import random
import select
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread

from sqlalchemy import URL, make_url

LATEST = 10
"""Seconds that a database takes for a COMMIT, at most."""

PORTS = {"postgresql": 5432, "mariadb": 3306, "mysql": 3306}
SIZE = 65536


class CommitProxy:
    """Forward what consumer and database say, and cut the line around some COMMITs."""

    def __init__(self, url: str, seed: str, share: float) -> None:
        self._upstream = make_url(url)
        self._dice = random.Random(seed)
        self._share = share
        self.fates: Counter[str] = Counter()

    @contextmanager
    def listening(self) -> Iterator[str]:
        """Listen in a thread; yield the URL of the database through this proxy."""
        forward = self._forward

        class Handler(BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):
                    forward(self.request)

        with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads, server.block_on_close = True, False
            thread = Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield self._through(server.server_address[1])
            finally:
                server.shutdown()
                thread.join(LATEST)

    def _through(self, port: int) -> str:
        url = self._upstream.difference_update_query(["host", "port", "unix_socket"])
        url = url.set(host="127.0.0.1", port=port)
        if url.get_backend_name() == "postgresql":
            url = url.update_query_dict({"sslmode": "disable", "gssencmode": "disable"})
        return url.render_as_string(hide_password=False)

    def _forward(self, ours: socket.socket) -> None:
        with _connected(self._upstream) as theirs:
            other = {ours: theirs, theirs: ours}
            while True:
                for speaker in select.select([*other], [], [])[0]:
                    data = speaker.recv(SIZE)
                    fate = self._fate() if speaker is ours and b"COMMIT" in data else None
                    if not data or fate == "request lost":
                        return
                    other[speaker].sendall(data)
                    if fate == "reply lost":
                        select.select([theirs], [], [], LATEST)
                        return

    def _fate(self) -> str | None:
        if self._dice.random() >= self._share:
            return None
        fate = self._dice.choice(["request lost", "reply lost"])
        self.fates[fate] += 1
        return fate


def _connected(url: URL) -> socket.socket:
    """Connect to a database as its driver would."""
    port = url.port or PORTS[url.get_backend_name()]
    host = str(url.host or url.query.get("host") or "127.0.0.1")
    path = url.query.get("unix_socket")
    if host.startswith("/"):
        path = str(Path(host) / f".s.PGSQL.{port}")
    if path is None:
        return socket.create_connection((host, port))
    found = socket.socket(socket.AF_UNIX)
    found.connect(str(path))
    return found
