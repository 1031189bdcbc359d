"""A feed's horizon: for how long it has been held back, and by which writers."""

import logging
import time
from collections import deque
from dataclasses import dataclass
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
"""Readings kept while the horizon is held back, at least: the age is exact to a hundredth."""


class HorizonAge:
    """Measure for how long the oldest position that is drawn and not settled has been seen.

    Callers pass every reading of the horizon; this class reads none itself. A position drawn
    between two readings counts from the later one. While the horizon is held back, readings close
    to each other are dropped, so that their number stays small; an age is then too small by a
    hundredth of that time at most.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self.seen: deque[tuple[int, float]] = deque()
        """The readings that are kept; none while all that is drawn is settled."""

    def read(self, settled: int, drawn: int, now: float) -> float:
        """Add a reading; return the age in seconds.

        Args:
            settled: the horizon.
            drawn: the last number drawn.
            now: when it was read, by a clock that never goes back.
        """
        with self._lock:
            # Their numbers are above the last one drawn: the sequence was set back, or another
            # thread's later reading was added before this one.
            while self.seen and self.seen[-1][0] > drawn:
                self.seen.pop()
            while self.seen and self.seen[0][0] <= settled:
                self.seen.popleft()
            if drawn > (self.seen[-1][0] if self.seen else settled):
                self._add(drawn, now)
            return now - self.seen[0][1] if self.seen else 0.0

    def _add(self, drawn: int, now: float) -> None:
        if len(self.seen) > 1 and now - self.seen[-2][1] < (now - self.seen[0][1]) / FINENESS:
            self.seen.pop()
        self.seen.append((drawn, now))


LATE = 1.0
"""Seconds for which a horizon is held back before its writers are looked up; most end sooner."""

TOO_LATE = 60.0
"""Seconds for which it is held back before a warning is logged."""

_log = logging.getLogger("zeroeventhub.publisher")


@dataclass(frozen=True, kw_only=True)
class HorizonReport:
    """How far a feed may be read now, and which writers hold it back.

    Attributes:
        settled: the horizon; None while no settled position is known yet.
        drawn: the highest position known to be drawn; None if `settled` is.
        age: for how many seconds this process has seen the oldest position that is drawn and not
            settled; 0 if all are settled.
        blockers: the open write transactions, the oldest first; looked up once the age is above a
            second.
        unpublished: a sentence about an event that is in no partition of the feed, so that no
            consumer sees it; None without such an event.
        longest_event: bytes of the longest event that this process has read.
        registered: how many consumers limit trimming by their progress; 0 without `progress`.
    """

    settled: int | None
    drawn: int | None
    age: float
    blockers: tuple[Blocker, ...]
    unpublished: str | None = None
    longest_event: int = 0
    registered: int = 0


class HorizonMonitor:
    """Read the horizon, measure its age, and log when it is held back for long.

    Args:
        ordering: reads the horizon.
    """

    def __init__(self, ordering: Ordering) -> None:
        self._ordering = ordering
        self._fast_horizon = ordering.fast_horizon if isinstance(ordering, FastHorizon) else None
        self._age = HorizonAge()
        self._lock = Lock()
        self._told = False

    @property
    def may_be_fast(self) -> bool:
        """Return whether the horizon can be read without a transaction."""
        return self._fast_horizon is not None

    def read(self, connection: Connection, seconds: float | None = None) -> Horizon:
        """Return the horizon; log a warning if it is held back for too long.

        Args:
            connection: to the feed's database.
            seconds: to read it without a transaction, how long to wait for a lock; see
                `FastHorizon`. None to read it in one.

        Raises:
            Unavailable: it is not known yet.
        """
        try:
            if seconds is None or self._fast_horizon is None:
                found = self._ordering.horizon(connection)
            else:
                found = self._fast_horizon(connection, seconds)
        except Unavailable:
            self._look(connection, None)
            raise
        if found.highest > found.settled or self._age.seen or self._told:
            self._look(connection, found)
        return found

    def report(self, connection: Connection) -> HorizonReport:
        """Read the horizon and the writers that hold it back."""
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
        """Add a reading; return the age."""
        # While no settled position is known, the age counts from the beginning of history.
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
        """Return the open writers; none if the database user lacks the right to see them."""
        try:
            return self._ordering.blockers(connection)
        except (ConfigurationError, SQLAlchemyError):
            if database_of(connection).aborts_on_error:
                raise  # PostgreSQL refuses every further statement of this transaction
            return []


def _words(table: str, age: float | None = None, blocker: Blocker | None = None) -> dict[str, Any]:
    """Return the attributes of a log record."""
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
