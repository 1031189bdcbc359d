"""Waiting for a condition, with a deadline that says what it waited for; and doing meanwhile."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Found = TypeVar("Found")

DEADLINE = 20.0  # seconds after which a condition is given up


def until(condition: Callable[[], Found], what: str, seconds: float = DEADLINE) -> Found:
    """Wait until a condition is true; return what it returned."""
    ending = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > ending:
            raise AssertionError(f"within {seconds:g} s it did not happen that {what}")
        time.sleep(0.005)
    return found


@contextmanager
def meanwhile(act: Callable[[], object], *, pause: float = 0.0, threads: int = 1) -> Iterator[None]:
    """Do something over and over in threads of its own while the block runs."""
    ended = threading.Event()

    def go_on() -> None:
        act()
        while not ended.wait(pause):
            act()

    with ThreadPoolExecutor(threads) as pool:
        runs = [pool.submit(go_on) for _ in range(threads)]
        try:
            yield
        finally:
            ended.set()
        for run in runs:
            run.result(DEADLINE)
