"""How long to wait before another try, and how often to try."""

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from random import random
from typing import Any

from zeroeventhub._follow.steps import Pause, Step
from zeroeventhub.errors import TransientError

__all__ = ["LONGEST_BACKOFF", "SHORTEST_BACKOFF", "Patience", "Stopped", "backoff", "persist"]

SHORTEST_BACKOFF = 0.1
LONGEST_BACKOFF = 30.0


class Stopped(Exception):  # noqa: N818 - named for what happened
    """Say that the consumer was stopped; it never leaves this package."""


def backoff(attempt: int, error: Exception) -> float:
    """Choose a pause in seconds: exponential with full jitter, at least what the feed asked."""
    ceiling = min(LONGEST_BACKOFF, SHORTEST_BACKOFF * 2.0 ** min(attempt, 16))
    asked = error.retry_after if isinstance(error, TransientError) else None
    return max(random() * ceiling, min(asked or 0.0, LONGEST_BACKOFF))  # noqa: S311 - jitter


@dataclass
class Patience:
    """Count failures in a row, and say how long to wait after each.

    Attributes:
        attempts: how often to try before the error is final; None for no limit.
        stopped: tells whether to give up.
        longest: seconds of the longest pause, where it is to be shorter than usual.
        failed: how many tries in a row have failed.
    """

    attempts: int | None
    stopped: Callable[[], bool]
    longest: float = math.inf
    failed: int = 0

    def wait_out(self, error: Exception) -> Generator[Step, Any, None]:
        """Wait before the next try.

        Raises:
            Exception: the error itself, if it ended the last try.
            Stopped: the consumer was stopped meanwhile.
        """
        self.failed += 1
        if self.attempts is not None and self.failed >= self.attempts:
            raise error
        yield Pause(min(backoff(self.failed, error), self.longest), error)
        if self.stopped():
            raise Stopped


def persist(step: Step, patience: Patience) -> Generator[Step, Any, Any]:
    """Yield a step until it succeeds, and return its result.

    Raises:
        TransientError: the last try ended in it.
        Stopped: the consumer was stopped meanwhile.
    """
    while True:
        try:
            return (yield step)
        except TransientError as error:
            yield from patience.wait_out(error)
