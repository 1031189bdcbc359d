"""Stop gracefully when the process is asked to end, where the consumer is the program."""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from zeroeventhub.errors import ConfigurationError

__all__ = ["stop_on_signals"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_stops: list[Callable[[], object]] = []
"""What stops the runs of this process that handle signals."""

_previous: dict[int, Any] = {}
"""The handlers that stood before the first of these runs began."""


@contextmanager
def stop_on_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Stop at the first SIGTERM or SIGINT; a second one ends the process as always.

    Several runs may overlap, and end in any order: all are stopped by one signal. A handler that
    the program has installed before is called as well.

    Raises:
        ConfigurationError: this is not the main thread, which alone can handle signals.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError(
            "Only the main thread can handle signals: run the consumer there, or call stop() "
            "where the program ends, without handle_signals."
        )
    _stops.append(stop)
    if not _previous:
        for number in _SIGNALS:
            _previous[number] = signal.getsignal(number)
            signal.signal(number, _handle)
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops:
            _restore()


def _handle(number: int, frame: FrameType | None) -> None:
    previous = _previous.get(number)
    _restore()
    for stop in _stops:
        stop()
    # The default handlers of Python and asyncio end the program at once, which stopping replaces.
    if callable(previous) and previous is not signal.default_int_handler:
        bound_to = getattr(getattr(previous, "func", previous), "__self__", None)
        if not isinstance(bound_to, asyncio.Runner):
            previous(number, frame)


def _restore() -> None:
    for number, handler in _previous.items():
        if signal.getsignal(number) is _handle:  # else the program has installed another since
            # None is a handler that was not set from Python, and cannot be put back by it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
    _previous.clear()
