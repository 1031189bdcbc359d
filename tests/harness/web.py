"""A real web server in a thread, and a socket that misbehaves on purpose."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import uvicorn


@contextmanager
def serving(application, port: int = 0) -> Iterator[str]:
    """Serve an ASGI application over real HTTP; yield its URL without a slash at the end."""
    with socket.create_server(("127.0.0.1", port)) as listening:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(application, log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def answering(answer: Callable[[str], bytes]) -> Iterator[str]:
    """Answer every connection with raw bytes, chosen by the request's target, then close it.

    An answer that does not say so with ``Connection: close`` may have its client ask again on a
    connection that is being closed.
    """
    listening = socket.create_server(("127.0.0.1", 0))
    stopping = threading.Event()

    def serve() -> None:
        while not stopping.is_set():
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            # Who has had enough of an answer closes before all of it is sent.
            with connection, suppress(ConnectionResetError, BrokenPipeError):
                request = b""
                while b"\r\n\r\n" not in request and (chunk := connection.recv(65536)):
                    request += chunk
                if request:
                    connection.sendall(answer(request.split(b" ")[1].decode()))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        stopping.set()
        # A connection of our own wakes the thread where closing the socket does not.
        with socket.create_connection(listening.getsockname()):
            pass
        thread.join()
        listening.close()
