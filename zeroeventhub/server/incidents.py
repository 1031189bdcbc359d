"""Say once what goes wrong again and again."""

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

__all__ = ["Incidents"]

MOST = 100
"""How many causes are told apart; the one that has been silent for the longest is forgotten."""

AGAIN = 300.0
"""Seconds after which a cause that goes on is told again."""

PAUSE = 10.0
"""Seconds between two tellings of a cause at least, where some requests fail and others do not."""


@dataclass
class _Incident:
    told_at: float
    ended: bool = False
    untold: int = 0


class Incidents:
    """Count what happens by its cause, and decide when to tell.

    Args:
        clock: tells seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[Hashable, _Incident] = OrderedDict()

    def __len__(self) -> int:
        """Return how many causes are remembered."""
        return len(self._known)

    def happened(self, cause: Hashable) -> int | None:
        """Count one more of a cause.

        It is told when it first happens; after that once it has been over and comes back, or has
        gone on for `AGAIN`.

        Args:
            cause: what it has in common with others of its kind.

        Returns:
            How many times it has happened since it was told, if it should be told now.
        """
        now = self._clock()
        incident = self._known.get(cause)
        if incident is None:
            self._known[cause] = _Incident(now)
            if len(self._known) > MOST:
                self._known.popitem(last=False)
            return 1
        self._known.move_to_end(cause)
        incident.untold += 1
        if now - incident.told_at < (PAUSE if incident.ended else AGAIN):
            return None
        self._known[cause] = _Incident(now)
        return incident.untold

    def over(self) -> None:
        """Note that what failed works again."""
        for incident in self._known.values():
            incident.ended = True
