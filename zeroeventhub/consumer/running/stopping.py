"""Stop gracefully when the process is asked to end."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["stop_on_signals"]


@contextmanager
def stop_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Stop at the first SIGTERM or SIGINT; a second one ends the process as always."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in previous.items():
            # None is a handler that was not set from Python, and cannot be put back by it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def handle(*_: object) -> None:
        restore()
        stop()

    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
