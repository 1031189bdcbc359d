"""Waiting for a condition, with a deadline that says what it waited for."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

DEADLINE = 30.0  # seconds after which a condition is given up


def until(condition: Callable[[], Found], what: str, seconds: float = DEADLINE) -> Found:
    """Wait until a condition is true; return what it returned."""
    ending = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > ending:
            raise AssertionError(f"within {seconds:g} s it did not happen that {what}")
        time.sleep(0.005)
    return found
