"""A feed's horizon: how old it is, and who holds it back."""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from zeroeventhub.databases import database_of
from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.publisher.ordering import Blocker, FastHorizon, Horizon, Ordering

__all__ = [
    "HorizonAge",
    "HorizonMonitor",
    "HorizonReport",
]

FINENESS = 100
"""How many readings are remembered at least of the time for which a horizon is held back."""


class HorizonAge:
    """Know since when the oldest number that has been drawn and is not settled has been seen.

    It takes in every reading of the horizon, and asks for none. A number that was drawn between two
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


LATE = 1.0
"""Seconds for which a horizon is held back before the writers are looked up; most are quick."""

TOO_LATE = 60.0
"""Seconds for which it is held back before the log says so."""

_log = logging.getLogger("zeroeventhub.publisher")


@dataclass(frozen=True, kw_only=True)
class HorizonReport:
    """Say how far a feed may be read now, and who holds it back.

    Attributes:
        settled: the horizon; None while no settled position is known yet.
        drawn: the highest position known to be drawn; None with it.
        age: for how many seconds the oldest position that is drawn and not settled has been seen
            so by this process; 0 where there is none.
        blockers: the writers that are open, the oldest first; looked up once the age is above a
            second.
        unpublished: a sentence about an event that is in no partition of the feed, so that no
            consumer sees it; None if there is none.
        longest_event: how many bytes the longest event had that this process has read.
        registered: how many consumers keep the feed from being trimmed; 0 where none can register.
    """

    settled: int | None
    drawn: int | None
    age: float
    blockers: tuple[Blocker, ...]
    unpublished: str | None = None
    longest_event: int = 0
    registered: int = 0


class HorizonMonitor:
    """Read the horizon, and keep an eye on how old it is.

    Args:
        ordering: knows the horizon.
    """

    def __init__(self, ordering: Ordering) -> None:
        self._ordering = ordering
        self._fast_horizon = ordering.fast_horizon if isinstance(ordering, FastHorizon) else None
        self._age = HorizonAge()
        self._lock = Lock()
        self._told = False

    def read(self, connection: Connection) -> Horizon:
        """Return the horizon; the log hears when it is held back for too long.

        Raises:
            Unavailable: it is not known yet.
        """
        return self._read(connection, self._ordering.horizon)

    @property
    def may_be_fast(self) -> bool:
        """Tell whether the horizon can be read without a transaction."""
        return self._fast_horizon is not None

    def fast_horizon(self, connection: Connection, seconds: float) -> Horizon:
        """Return the horizon as `read` does, without a transaction; see `FastHorizon`."""
        assert self._fast_horizon is not None  # noqa: S101 - as `may_be_fast` says
        return self._read(connection, partial(self._fast_horizon, seconds=seconds))

    def _read(self, connection: Connection, ask: Callable[[Connection], Horizon]) -> Horizon:
        try:
            found = ask(connection)
        except Unavailable:
            self._look(connection, None)
            raise
        self._look(connection, found)
        return found

    def report(self, connection: Connection) -> HorizonReport:
        """Read the horizon, and who holds it back."""
        try:
            found: Horizon | None = self._ordering.horizon(connection)
        except Unavailable:
            found = None
        age = self._look(connection, found)
        return HorizonReport(
            settled=None if found is None else found.settled,
            drawn=None if found is None else found.drawn,
            age=age,
            blockers=tuple(self._blockers(connection)) if age > LATE else (),
        )

    def _look(self, connection: Connection, found: Horizon | None) -> float:
        """Take in a reading; return the age."""
        # While nothing is known to be settled, that holds for the beginning of history as well.
        settled, drawn = (found.settled, found.drawn) if found else (-1, 0)
        age = self._age.read(settled, drawn, time.monotonic())
        if (age > TOO_LATE) != self._told:
            with self._lock:
                changes = (age > TOO_LATE) != self._told
                self._told = age > TOO_LATE
            if changes:
                self._tell(connection, age)
        return age

    def _tell(self, connection: Connection, age: float) -> None:
        source = self._ordering.source
        table = str(source.table if source.events is None else source.events)
        if age <= TOO_LATE:
            _log.info("The horizon of table %r is no longer held back.", table, extra=_words(table))
            return
        blocker = next(iter(self._blockers(connection)), None)
        _log.warning(
            "The horizon of table %r has been held back for %.0f s. Its oldest writer: %s.",
            table,
            age,
            blocker or "none is to be seen",
            extra=_words(table, age, blocker),
        )

    def _blockers(self, connection: Connection) -> list[Blocker]:
        """Name the open writers; who lacks the right to see them reads the feed all the same."""
        try:
            return self._ordering.blockers(connection)
        except (ConfigurationError, SQLAlchemyError):
            if database_of(connection).aborts_on_error:
                raise  # the transaction cannot go on
            return []


def _words(table: str, age: float | None = None, blocker: Blocker | None = None) -> dict[str, Any]:
    """Return what a record has as attributes of its own."""
    query_age = None if blocker is None else blocker.query_age
    return {
        "table": table,
        "horizon_age": age,
        "pid": blocker and blocker.pid,
        "user": blocker and blocker.user,
        "application": blocker and blocker.application,
        "blocker_age": blocker and blocker.age.total_seconds(),
        "query_age": None if query_age is None else query_age.total_seconds(),
    }
