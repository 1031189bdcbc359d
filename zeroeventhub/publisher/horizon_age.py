"""How long a feed's horizon has been held back."""

from collections import deque
from threading import Lock

__all__ = ["HorizonAge"]

FINENESS = 100
"""How many readings are remembered at least of the time for which a horizon is held back."""


class HorizonAge:
    """Know since when the oldest number that has been drawn and is not settled has been seen.

    Every reading of the horizon is told; nobody is asked. A number that was drawn between two
    readings has been seen since the later one. Of readings that come close upon each other while
    the horizon is held back only some are remembered, so that their number stays small however
    long that lasts: an age falls short by a hundredth of that time at most.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._seen: deque[tuple[int, float]] = deque()

    def __len__(self) -> int:
        """Return how many readings are remembered."""
        return len(self._seen)

    def read(self, settled: int, drawn: int, now: float) -> float:
        """Take in a reading; return the age in seconds.

        Args:
            settled: the horizon.
            drawn: the last number drawn.
            now: when it was read, by a clock that never goes back.
        """
        with self._lock:
            # Numbers above the last one drawn are drawn no longer: their sequence was set back,
            # or this is a reading that another has overtaken.
            while self._seen and self._seen[-1][0] > drawn:
                self._seen.pop()
            while self._seen and self._seen[0][0] <= settled:
                self._seen.popleft()
            if drawn > (self._seen[-1][0] if self._seen else settled):
                self._add(drawn, now)
            return now - self._seen[0][1] if self._seen else 0.0

    def _add(self, drawn: int, now: float) -> None:
        if len(self._seen) > 1 and now - self._seen[-2][1] < (now - self._seen[0][1]) / FINENESS:
            self._seen.pop()
        self._seen.append((drawn, now))
