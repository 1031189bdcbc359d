"""What a command waits for before it changes anything."""

import time
from collections.abc import Callable
from typing import TypeVar

from zeroeventhub.errors import Unavailable

__all__ = ["patiently"]

PATIENCE = 30.0
"""Seconds for which the horizon is waited for."""

_Answer = TypeVar("_Answer")


def patiently(ask: Callable[[], _Answer]) -> _Answer:
    """Ask something of a feed until its horizon is known.

    Raises:
        Unavailable: it is not, after some time.
    """
    ending = time.monotonic() + PATIENCE
    while True:
        try:
            return ask()
        except Unavailable:
            if time.monotonic() > ending:
                raise
            time.sleep(0.1)
