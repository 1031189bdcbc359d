"""Serve an application by uvicorn, on a port that is said."""

import gc
import socket

import uvicorn
from starlette.applications import Starlette

from benchmarks.actors.speaking import say


def serve(app: Starlette, *, port: int = 0, loop: str = "uvloop", http: str = "httptools") -> None:
    """Serve an application by uvicorn until the process is ended, and say on which port.

    Args:
        app: the application.
        port: a port that other processes may serve as well; 0 for a free one.
        loop: the event loop.
        http: the parser.
    """
    config = uvicorn.Config(
        app, log_level="error", loop=loop, http=http, timeout_graceful_shutdown=1
    )
    place = ("127.0.0.1", port)
    with socket.create_server(place, backlog=4096, reuse_port=True) as listening:
        # Inherited by what is accepted: an answer's last piece waits for no acknowledgement.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        gc.freeze()  # as `zeroeventhub serve` does
        say({"port": listening.getsockname()[1]})
        uvicorn.Server(config).run(sockets=[listening])
