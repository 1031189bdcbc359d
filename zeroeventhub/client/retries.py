"""When to send a request again that got no answer."""

import logging
from collections.abc import Awaitable, Callable
from random import random
from typing import TypeVar

from zeroeventhub.errors import TransientError

SHORTEST_BACKOFF = 0.1
LONGEST_BACKOFF = 30.0

_log = logging.getLogger("zeroeventhub.client")

_Answer = TypeVar("_Answer")


def backoff(attempt: int, error: Exception) -> float:
    """Choose a pause in seconds: exponential with full jitter, and at least what the feed asked."""
    ceiling = min(LONGEST_BACKOFF, SHORTEST_BACKOFF * 2.0 ** min(attempt, 16))
    asked = error.retry_after if isinstance(error, TransientError) else None
    return max(random() * ceiling, min(asked or 0.0, LONGEST_BACKOFF))  # noqa: S311 - jitter


async def send_until_answered(
    send: Callable[[], Awaitable[_Answer]],
    pause: Callable[[float], Awaitable[object]],
    attempts: int | None,
) -> _Answer:
    """Send a request until it is answered.

    Args:
        send: sends it once.
        pause: waits for a number of seconds.
        attempts: how often to send it before a transient error is final; None for no limit.

    Raises:
        TransientError: the last attempt ended in it.
    """
    failed = 0
    while True:
        try:
            return await send()
        except TransientError as error:
            failed += 1
            if failed == attempts:
                raise
            seconds = backoff(failed, error)
            _log.warning("%s Trying again in %.1f s.", error, seconds)
        await pause(seconds)
