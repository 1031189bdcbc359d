"""A real web server in a thread, and sockets that misbehave on purpose."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import trustme
import uvicorn

from harness.exchanges import noted

SHUTDOWN = 1.0  # seconds that requests have to end in when a server is asked to end


class _Server(uvicorn.Server):
    """A server that ends as soon as it is asked to, where uvicorn looks ten times a second."""

    async def main_loop(self) -> None:
        self._loop, self._asked = asyncio.get_running_loop(), asyncio.Event()
        await self.on_tick(0)
        self.running.set()
        await self._asked.wait()

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.running = threading.Event()

    def end(self) -> None:
        """End the server, from any thread."""
        self._loop.call_soon_threadsafe(self._asked.set)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listening in (*self.servers, *(sockets or ())):
            listening.close()
        state, ending = self.server_state, self._loop.time() + SHUTDOWN
        for connection in list(state.connections):
            connection.shutdown()
        # No event of uvicorn says that the last connection is closed.
        while (state.connections or state.tasks) and self._loop.time() < ending:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for task in state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


@contextmanager
def serving(application, port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve an ASGI application over real HTTP, on a free port or a reserved one; yield its URL."""
    with socket.create_server(("127.0.0.1", port), reuse_port=port > 0) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(noted(application), log_level="error")
        config.load()
        config.ssl = tls
        server = _Server(config)
        address = listening.getsockname()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.running.wait(0.01):
            if not thread.is_alive():
                raise RuntimeError("The application did not start.")
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{address[1]}"
        finally:
            server.end()
            thread.join()


def serving_tls(application, authority: trustme.CA) -> AbstractContextManager[str]:
    """Serve an application to clients whose certificate an authority has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    return serving(application, tls=context)


@contextmanager
def listening(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """Serve every connection in a thread of its own; yield the URL without a slash at the end."""
    server = socket.create_server(("127.0.0.1", 0))
    stopping = threading.Event()

    def handle(connection: socket.socket) -> None:
        # A client that has had enough of an answer closes before all of it is sent.
        with suppress(OSError), connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                serve(connection)
            finally:
                # Closing alone does nothing while another thread reads from it.
                connection.shutdown(socket.SHUT_WR)

    def accept() -> None:
        while True:
            connection, _ = server.accept()
            if stopping.is_set():
                connection.close()
                return
            threading.Thread(target=handle, args=[connection], daemon=True).start()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        stopping.set()
        # A connection of our own wakes the thread where closing the socket does not.
        with socket.create_connection(server.getsockname()):
            thread.join()
        server.close()


def request_on(connection: socket.socket) -> bytes:
    """Read a request without a body; nothing where the client has hung up."""
    request = b""
    while b"\r\n\r\n" not in request and (chunk := connection.recv(65536)):
        request += chunk
    return request


def answering(answer: Callable[[str], bytes]) -> AbstractContextManager[str]:
    """Answer every connection with raw bytes, chosen by the request's target, then close it.

    An answer that does not say so with ``Connection: close`` may have its client ask again on a
    connection that is being closed.
    """

    def serve(connection: socket.socket) -> None:
        if request := request_on(connection):
            connection.sendall(answer(request.split(b" ")[1].decode()))

    return listening(serve)
