"""A feed's horizon: for how long it has been held back, and by which writers."""

import logging
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from threading import Lock

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from zeroeventhub.databases import database_of
from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.publisher.ordering import Blocker, Horizon, Ordering

FINENESS = 100
"""Readings kept while the horizon is held back, at least: the age is exact to a hundredth."""


class HorizonAge:
    """Measure how long ago the oldest drawn position that is not settled was first read.

    A position drawn between two readings counts from the later reading. While the horizon is held
    back, readings close to each other are dropped, so that their number stays small; an age is then
    too small by a hundredth of that time at most.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self.seen: deque[tuple[int, float]] = deque()
        """The readings that are kept; none while all that is drawn is settled."""

    def read(self, settled: int, drawn: int, now: float) -> float:
        """Add a reading of the horizon and of the last number drawn; return the age in seconds."""
        with self._lock:
            seen = self.seen
            # Their numbers are above the last one drawn: the sequence was set back, or another
            # thread's later reading was added before this one.
            while seen and seen[-1][0] > drawn:
                seen.pop()
            while seen and seen[0][0] <= settled:
                seen.popleft()
            if drawn > (seen[-1][0] if seen else settled):
                if len(seen) > 1 and now - seen[-2][1] < (now - seen[0][1]) / FINENESS:
                    seen.pop()
                seen.append((drawn, now))
            return now - seen[0][1] if seen else 0.0

    @property
    def oldest(self) -> tuple[int, float] | None:
        """The oldest reading that counts, or None."""
        with self._lock:
            return self.seen[0] if self.seen else None

    def learn(self, drawn: int, when: float) -> None:
        """Add an earlier reading of the last number drawn, of another process of this machine."""
        with self._lock:
            seen = self.seen
            if not seen or when < seen[0][1]:
                while seen and seen[0][0] <= drawn:
                    seen.popleft()
                seen.appendleft((drawn, when))


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
        age: how many seconds ago this process, or one of those in `elsewhere`, first read the
            oldest drawn position that is not settled; 0 if all are settled.
        blockers: the open write transactions, the oldest first; looked up once the age is above a
            second.
        unpublished: a sentence about an event that is in no partition of the feed, so that no
            consumer sees it; None without such an event.
        longest_event: bytes of the longest event that this process has read.
        registered: how many consumers limit trimming by their progress; 0 without `progress`.
        seen: the position whose age `age` is, or one after it, and when it was first read, by the
            monotonic clock of this machine; None if all are settled.
        archive_lag: how many seconds ago the oldest settled event that is not sealed was first
            read; None for a feed without an archive, and while the horizon is not known.
        unsealed: as `seen`, of events that are not sealed.
    """

    settled: int | None
    drawn: int | None
    age: float
    blockers: tuple[Blocker, ...]
    unpublished: str | None = None
    longest_event: int = 0
    registered: int = 0
    seen: tuple[int, float] | None = None
    archive_lag: float | None = None
    unsealed: tuple[int, float] | None = None


class HorizonMonitor:
    """Read the horizon, measure its age, and log when it is held back for long."""

    def __init__(self, ordering: Ordering) -> None:
        self._ordering = ordering
        self._age = HorizonAge()
        self._lock = Lock()
        self._has_warned = False
        # Counted from while this process knows no settled position: the beginning of history, or
        # what another process knows to be settled, and the last number that one has seen drawn.
        self._settled, self._drawn = -1, 0

    def read(self, connection: Connection, seconds: float | None = None) -> Horizon:
        """Return the horizon; log a warning if it is held back for too long.

        With `seconds`, it is read without a transaction; see `Ordering.fast_horizon`.

        Raises:
            Unavailable: it is not known yet.
        """
        try:
            if seconds is None or self._ordering.fast_horizon is None:
                found = self._ordering.horizon(connection)
            else:
                found = self._ordering.fast_horizon(connection, seconds)
        except Unavailable:
            self._look(connection, None)
            raise
        if found.highest > found.settled or self._age.seen or self._has_warned:
            self._look(connection, found)
        return found

    @property
    def age(self) -> float:
        """For how many seconds the horizon has been held back, by the last reading."""
        oldest = self._age.oldest
        return 0.0 if oldest is None else time.monotonic() - oldest[1]

    def report(
        self, connection: Connection, elsewhere: Collection[HorizonReport] = ()
    ) -> HorizonReport:
        """Read the horizon and the writers that hold it back; see `Reader.horizon`."""
        for one in elsewhere:
            if one.settled is not None and one.drawn is not None:
                self._settled = max(self._settled, one.settled)
                self._drawn = max(self._drawn, one.drawn, self._settled + 1)
            if one.seen is not None:
                self._age.learn(*one.seen)
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
            seen=self._age.oldest,
        )

    def _look(self, connection: Connection, found: Horizon | None) -> float:
        """Add a reading; return the age."""
        settled, drawn = self._settled, self._drawn
        if found is not None:
            settled, drawn = found.settled, found.drawn
        age = self._age.read(settled, drawn, time.monotonic())
        with self._lock:
            changes = (age > TOO_LATE) != self._has_warned
            self._has_warned = age > TOO_LATE
        if changes:
            self._log(connection, age)
        return age

    def _log(self, connection: Connection, age: float) -> None:
        """Log that the horizon is held back, or no longer; with attributes of the log record."""
        source = self._ordering.source
        table = str(source.table if source.events is None else source.events)
        is_late = age > TOO_LATE
        blocker = next(iter(self._blockers(connection)), None) if is_late else None
        query_age = None if blocker is None else blocker.query_age
        attributes = {
            "table": table,
            "horizon_age": age if is_late else None,
            "pid": blocker and blocker.pid,
            "user": blocker and blocker.user,
            "application": blocker and blocker.application,
            "blocker_age": blocker and blocker.age.total_seconds(),
            "query_age": None if query_age is None else query_age.total_seconds(),
        }
        if is_late:
            _log.warning(
                "The horizon of table %r has been held back for %.0f s. Its oldest writer: %s.",
                table,
                age,
                blocker or "none is visible",
                extra=attributes,
            )
        else:
            sentence = "The horizon of table %r is no longer held back."
            _log.info(sentence, table, extra=attributes)

    def _blockers(self, connection: Connection) -> list[Blocker]:
        """Return the open writers; none if the database user lacks the right to see them."""
        try:
            return self._ordering.blockers(connection)
        except (ConfigurationError, SQLAlchemyError):
            if database_of(connection).aborts_on_error:
                raise  # PostgreSQL refuses every further statement of this transaction
            return []
