"""Until when an answer may go on: a deadline for all of it, and a least rate for its body."""

import math
from time import monotonic

from zeroeventhub.limits import Limits

__all__ = ["Deadline", "Patience"]


class Deadline:
    """Know the moment when an answer is given up; bytes that come move it.

    Args:
        limits: the client's.
        wait: seconds that the feed was asked to wait.
    """

    def __init__(self, limits: Limits, wait: float) -> None:
        self._limits = limits
        self._wait = wait
        self._end = monotonic() + limits.seconds + wait
        self._moment = self._end
        self._begun = 0.0
        self._received = 0

    def begin(self) -> None:
        """Take notice that the headers are there."""
        self._begun = monotonic()
        self.receive(0)

    def receive(self, count: int) -> None:
        """Take notice of bytes of the body."""
        self._received += count
        if rate := self._limits.bytes_per_second:
            earned = self._limits.grace + self._wait + self._received / rate
            self._moment = min(self._end, self._begun + earned)

    @property
    def left(self) -> float:
        """The seconds that are left; negative if there are none."""
        return self._moment - monotonic()

    @property
    def reason(self) -> str:
        """Say why there is no time left."""
        if self._moment < self._end:
            return f"it sent fewer than {self._limits.bytes_per_second:g} bytes a second"
        return f"it took longer than {self._end_seconds:g} seconds"

    @property
    def _end_seconds(self) -> float:
        return self._limits.seconds + self._wait


class Patience:
    """Tell a socket, each time it asks, how long one operation on it may take.

    Sockets ask anew before each read, so that a server that sends byte by byte comes to an end
    as well. They ask for whole seconds: the shortest wait is one second, and fractions are
    rounded up. `check` sees to what came in time for the socket only.

    Args:
        deadline: that of the whole answer.
        seconds: the caller's own bound for one operation; None for none.
    """

    def __init__(self, deadline: Deadline, seconds: float | None) -> None:
        self._deadline = deadline
        self._seconds = math.inf if seconds is None else seconds
        self._asked: float | None = None

    def __repr__(self) -> str:
        """Show the caller's own bound: httpcore logs it."""
        return f"{self._seconds:g}"

    def __index__(self) -> int:
        """The whole seconds that an operation may take that starts now.

        Raises:
            TimeoutError: there is no time left.
        """
        self._asked = monotonic()
        return max(1, math.ceil(float(self)))

    def __float__(self) -> float:
        """The seconds that an operation may take that starts now; see `__index__`."""
        if self._deadline.left <= 0:
            raise TimeoutError(self._deadline.reason)
        return float(min(self._seconds, self._deadline.left))

    def check(self) -> None:
        """Refuse what the last operation brought, if it took too long.

        Raises:
            TimeoutError: it did.
        """
        asked, self._asked = self._asked, None
        if asked is not None and monotonic() - asked > self._seconds:
            raise TimeoutError("timed out")
