"""A server that sends bytes when a script says, in clear text or over TLS."""

import socket
import ssl
import subprocess
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
    script: Callable[[str], Script],
    *,
    certificate: str | None = None,
    records: tuple[int, float] = (65536, 0.0),
    slow_handshake: bool = False,
) -> Iterator[str]:
    """Answer every connection by a script; yield the server's URL.

    Args:
        script: chooses what to send by the request.
        certificate: a file with a certificate and its key, to speak TLS.
        records: how many bytes of TLS are sent at once, and the pause behind them in seconds.
        slow_handshake: whether this goes for the handshake as well.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    stopping = threading.Event()
    threads = []

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if certificate is None:
                return _converse(_Clear(connection), script, stopping)
            peer = _Secured(connection, certificate, records, stopping)
            if not slow_handshake:
                peer.shake_hands()
            return _converse(peer, script, stopping)

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
        scheme = "https" if certificate else "http"
        yield f"{scheme}://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        stopping.set()
        with socket.create_connection(listening.getsockname()):
            accepting.join()
        listening.close()
        for thread in threads:
            thread.join()


def _converse(peer, script, stopping) -> None:
    """Read one request and send what the script says."""
    request = b""
    while b"\r\n\r\n" not in request:
        chunk = peer.receive()
        if not chunk:
            return
        request += chunk
    for chunk, pause in script(request.decode("latin-1")):
        peer.send(chunk)
        if stopping.wait(pause):
            return


class _Clear:
    """Speak in clear text."""

    def __init__(self, connection) -> None:
        self._connection = connection

    def receive(self) -> bytes:
        """Wait for bytes."""
        return self._connection.recv(65536)

    def send(self, chunk: bytes) -> None:
        """Send bytes."""
        self._connection.sendall(chunk)


class _Secured:
    """Speak TLS over a socket whose bytes go out a few at a time."""

    def __init__(self, connection, certificate, records, stopping) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self._connection, self._stopping = connection, stopping
        self._step, self._pause = records
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def shake_hands(self) -> None:
        """Shake hands as fast as it goes."""
        pause, self._pause = self._pause, 0.0
        self._until_done(lambda: self._tls.do_handshake() or b"")
        self._flush()
        self._pause = pause

    def receive(self) -> bytes:
        """Wait for bytes; shake hands first."""
        return self._until_done(lambda: self._tls.read(65536))

    def send(self, chunk: bytes) -> None:
        """Send bytes."""
        self._tls.write(chunk)
        self._flush()

    def _until_done(self, operation) -> bytes:
        while True:
            try:
                return operation()
            except ssl.SSLWantReadError:
                self._flush()
                chunk = self._connection.recv(65536)
                if not chunk:
                    return b""
                self._incoming.write(chunk)

    def _flush(self) -> None:
        waiting = self._outgoing.read()
        for start in range(0, len(waiting), self._step):
            self._connection.sendall(waiting[start : start + self._step])
            if self._pause and self._stopping.wait(self._pause):
                return


def make_certificate(path) -> str:
    """Make a certificate for 127.0.0.1 with its key, in one file; needs the program openssl."""
    made = subprocess.run(
        [
            *["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"],
            *["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"],
            *["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "-", "-out", "-"],
        ],
        capture_output=True,
        check=True,
    )
    path.write_bytes(made.stdout)
    return str(path)
