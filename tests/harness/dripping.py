"""A server that sends bytes when a script says, in clear text or over TLS."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

Script = Iterable[tuple[bytes, float]]
"""Bytes to send, and the seconds to pause behind them."""


def drip(body: bytes, seconds: float, step: int = 1) -> Script:
    """Send bytes a few at a time."""
    for start in range(0, len(body), step):
        yield body[start : start + step], seconds


@contextmanager
def dripping(
    script: Callable[[str], Script], *, tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Answer every connection by a script, chosen by the request; yield the server's URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    stopping = threading.Event()
    threads = []

    def serve(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = tls.wrap_socket(connection, server_side=True) if tls else connection
            request = b""
            while b"\r\n\r\n" not in request and (chunk := peer.recv(65536)):
                request += chunk
            for chunk, pause in script(request.decode("latin-1")) if request else ():
                peer.sendall(chunk)
                if stopping.wait(pause):
                    break
            peer.close()

    def accept() -> None:
        while True:
            connection, _ = listening.accept()
            if stopping.is_set():
                connection.close()
                return
            threads.append(threading.Thread(target=serve, args=(connection,)))
            threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        scheme = "https" if tls else "http"
        yield f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        stopping.set()
        with socket.create_connection(listening.getsockname()):
            accepting.join()
        listening.close()
        for thread in threads:
            thread.join()
