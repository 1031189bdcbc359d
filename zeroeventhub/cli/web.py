"""Serve an application from the command line."""

import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette

from zeroeventhub.errors import ConfigurationError

__all__ = ["run_web"]

GRACE = 10
"""Seconds that requests under way may take after SIGTERM."""

STALLED = 30
"""Seconds after which a connection is dropped whose reader takes nothing, or is not there."""


def run_web(
    application: Starlette,
    host: str,
    port: int,
    announce: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve an application until SIGTERM or SIGINT.

    Args:
        application: what to serve.
        host: the address to listen on.
        port: the port; 0 for a free one.
        announce: is told the application's URL, without a slash at its end, when it listens.

    Raises:
        ConfigurationError: the address is not to be had.
    """
    try:
        listening = socket.create_server((host, port), family=_family(host))
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on {host} port {port}: {error.strerror}. "
            "Choose another --host or --port."
        ) from None
    with listening:
        # Connections inherit it. Without it the end of every page waits 40 ms for an ACK:
        # asyncio only recognises sockets as TCP that were made with the protocol's number.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            # Linux: what a reader does not take, its connection does not outlive.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED * 1000)
        shown = f"[{host}]" if ":" in host else host
        announce(f"http://{shown}:{listening.getsockname()[1]}")
        config = uvicorn.Config(
            application, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE
        )
        uvicorn.Server(config).run(sockets=[listening])


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
