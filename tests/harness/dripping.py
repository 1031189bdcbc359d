"""A server that sends bytes when a script says, in clear text or over TLS."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from harness.web import listening, request_on

Script = Iterable[tuple[bytes, float]]  # bytes to send, and the seconds to pause after them


def drip(body: bytes, seconds: float, step: int = 1) -> Script:
    """Send bytes a few at a time."""
    for start in range(0, len(body), step):
        yield body[start : start + step], seconds


@contextmanager
def dripping(
    script: Callable[[str], Script], *, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Answer every connection by a script, chosen by the request; yield the server's URL."""
    stopping = threading.Event()
    threads = []

    def serve(connection: socket.socket) -> None:
        threads.append(threading.current_thread())
        with tls.wrap_socket(connection, server_side=True) if tls else connection as peer:
            request = request_on(peer)
            for chunk, pause in script(request.decode("latin-1")) if request else ():
                peer.sendall(chunk)
                if stopping.wait(pause):
                    break

    with listening(serve) as url:
        try:
            yield url.replace("http:", "https:") if tls else url
        finally:
            stopping.set()
            for thread in threads:
                thread.join()
