"""Notice that the server is ending, so that nobody is kept waiting by it."""

import logging
import signal
from dataclasses import dataclass
from typing import Any

__all__ = ["end_waits", "is_ending", "remark"]

_log = logging.getLogger("zeroeventhub.server")


@dataclass
class _Process:
    """Hold what is known of this process."""

    ending: bool = False
    remarked: bool = False


PROCESS = _Process()


def end_waits() -> None:
    """Answer all who wait in this process at once, and let nobody wait any more.

    Needed with servers other than uvicorn, whose end a feed does not notice by itself: call it
    when the server has been told to end, such as in a handler of SIGTERM.
    """
    PROCESS.ending = True


def is_ending() -> bool:
    """Tell whether the server has been told to end."""
    return PROCESS.ending or bool(getattr(_server(), "should_exit", False))


def remark() -> None:
    """Warn, once, of a server that waits without an end for readers who do not read."""
    if PROCESS.remarked:
        return
    PROCESS.remarked = True
    config = getattr(_server(), "config", None)
    if config is not None and getattr(config, "timeout_graceful_shutdown", 0) is None:
        _log.warning(
            "This server does not end while a reader takes nothing of its answer: give uvicorn "
            "--timeout-graceful-shutdown, such as 10."
        )


def _server() -> Any:
    """Return the server of uvicorn's that ends at SIGTERM, if there is one: the signal tells it.

    uvicorn tells an application nothing until all of its requests are done.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return server if hasattr(server, "should_exit") else None
