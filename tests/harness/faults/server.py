"""A TCP server with a thread for each connection, which ends with its test."""

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socket import IPPROTO_TCP, TCP_NODELAY, socket

__all__ = ["listening"]

POLL = 0.02
"""Seconds until a server that is closed has seen it."""


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, serve: Callable[[socket], None]) -> None:
        self._serve = serve
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)

    def finish_request(self, request: socket, client_address: object) -> None:  # type: ignore[override]
        request.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        with suppress(OSError):  # the client has hung up, which is its right
            self._serve(request)


@contextmanager
def listening(serve: Callable[[socket], None]) -> Iterator[str]:
    """Serve every connection in a thread of its own; yield the URL without a slash at the end."""
    with _Server(serve) as server:
        thread = threading.Thread(target=server.serve_forever, args=[POLL])
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
