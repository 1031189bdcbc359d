"""One writer: transaction after transaction, each of a kind chosen by dice."""

import random
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from threading import Event

import psycopg
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from harness.torture.kinds import Kind
from harness.torture.pen import Pen

LEVELS = {
    "postgresql": ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"),
    "mariadb": ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"),
    "sqlite": ("SERIALIZABLE",),
}
ROLLED_BACK = 0.1
TIDE = 1.0
"""Seconds from one crowd of writers to the next. A crowd hides mistakes that show between few:
somebody old is always open, and holds back what should not be shown for another reason."""

# What a database may do to an honest writer: conflicts, deadlocks, and ends of its session.
_SQLSTATES = {"40001", "40P01", "57P01", "08003", "08006", None}
_NUMBERS = {1020, 1205, 1213, 1927, 2006, 2013, 0, 1402, 1614}


class Writer:
    """Write until told to stop.

    Args:
        engine: of the writers.
        kinds: what to choose from for every transaction.
        seed: of the dice.
        owned: numbers of keys that nobody else writes.
        rest: seconds at most between two transactions.
        ebbs: whether it leaves the tables to a few others now and then.
        stop: ends the writing when it is set.
    """

    def __init__(
        self,
        engine: Engine,
        kinds: Iterable[Kind],
        *,
        seed: str,
        owned: Iterable[int],
        rest: float,
        ebbs: bool,
        stop: Event,
    ) -> None:
        self._engine = engine
        self._kinds = tuple(kinds)
        self._rest = rest
        self._ebbs = ebbs
        self._stop = stop
        self._dice = random.Random(seed)
        self._pen = Pen(engine, self._dice, owned, stop)
        self.kinds: Counter[str] = Counter()
        self.failure: str | None = None

    @property
    def transactions(self) -> int:
        """How many transactions have been committed."""
        return self._pen.transactions

    def run(self) -> None:
        """Write until told to stop, or until something happens that should not."""
        kinds: list[Kind] = []
        while not self._stop.is_set() and self.failure is None:
            # Every kind has its turn, in an order that is each writer's own.
            kinds = kinds or self._dice.sample(self._kinds, len(self._kinds))
            kind = kinds.pop()
            try:
                self._write(kind)
                self.kinds[kind.__name__] += 1
            except Exception as error:  # noqa: BLE001 - the verdict tells it
                self._pen.change_key()
                if not _is_fate(error):
                    self.failure = f"{kind.__name__} failed with {error!r}"
            self._pen.pause(self._rest)
            if self._ebbs:
                self._stop.wait(_ebb(time.monotonic()))

    def _write(self, kind: Kind) -> None:
        level = self._dice.choice(LEVELS[self._engine.dialect.name])
        with closing(self._engine.connect()) as connection:
            self._pen.begin(connection.execution_options(isolation_level=level))
            kind(self._pen)
            if self._pen.lost:
                return
            if self._dice.random() < ROLLED_BACK:
                connection.rollback()
                self._pen.change_key()
            else:
                self._pen.commit()


def _ebb(moment: float) -> float:
    """Return how long it will be until the tide comes in; nothing while it is in."""
    into = moment % TIDE - TIDE / 2
    return TIDE / 2 - into if into > 0 else 0


def _is_fate(error: Exception) -> bool:
    cause = getattr(error, "orig", error)  # COPY raises the driver's own
    if not isinstance(error, DBAPIError | psycopg.Error):
        return False
    return (
        getattr(cause, "sqlstate", "") in _SQLSTATES
        or (cause.args and cause.args[0] in _NUMBERS)
        or "database is locked" in str(cause)
    )
