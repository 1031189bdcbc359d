"""Watch a feed's horizon: since when it is held back, and by whom."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from zeroeventhub.errors import ConfigurationError, Unavailable
from zeroeventhub.publisher.horizon_age import HorizonAge
from zeroeventhub.publisher.ordering import Blocker, Glancing, Horizon, Ordering

__all__ = ["HorizonReport", "HorizonWatch"]

LATE = 1.0
"""Seconds for which a horizon is held back before anybody asks by whom; most writers are quick."""

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


class HorizonWatch:
    """Read the horizon, and keep an eye on how old it is.

    Args:
        ordering: knows the horizon.
    """

    def __init__(self, ordering: Ordering) -> None:
        self._ordering = ordering
        self._glance = ordering.glance if isinstance(ordering, Glancing) else None
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
    def may_glance(self) -> bool:
        """Tell whether the horizon can be asked for in passing."""
        return self._glance is not None

    def glance(self, connection: Connection, seconds: float) -> Horizon:
        """Return the horizon as `read` does, in passing; see `Glancing`."""
        assert self._glance is not None  # noqa: S101 - as `may_glance` has told
        return self._read(connection, partial(self._glance, seconds=seconds))

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
            if connection.dialect.name == "postgresql":
                raise  # there is no such right, and the transaction cannot go on
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
