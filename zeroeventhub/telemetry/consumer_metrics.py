"""The metrics of consumers, and what measures them."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Engine

from zeroeventhub.client import Client
from zeroeventhub.consumer.lag import lag
from zeroeventhub.consumer.observer import Observer
from zeroeventhub.consumer.store.store import CursorStore
from zeroeventhub.errors import ConfigurationError, ZeroEventHubError
from zeroeventhub.protocol import Event, Lag

__all__ = [
    "LAG_EVENTS",
    "LAG_TIME",
    "METRICS",
    "OPEN_LETTERS",
    "SECONDS",
    "Kind",
    "LagReading",
    "LettersReading",
    "Measuring",
    "Metric",
    "Reading",
]

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Where the buckets of a histogram of seconds end; a feed may wait for 30 before it answers."""


class Kind(Enum):
    """Say how measurements add up: to a sum that grows, to the last one, or to a distribution."""

    COUNTER = auto()
    GAUGE = auto()
    HISTOGRAM = auto()


@dataclass(frozen=True)
class Metric:
    """Describe a metric.

    Attributes:
        name: what is measured, in words with dots between.
        kind: how measurements add up.
        unit: as UCUM has it.
        description: one sentence.
        labels: what tells its series apart.
        side: whose metric it is.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    labels: tuple[str, ...] = ("consumer", "partition")
    side: str = "consumer"


_FAILING = ("consumer", "partition", "error")

EVENTS: Final = Metric("events", Kind.COUNTER, "{event}", "Events that were applied and committed.")
PAGES: Final = Metric("pages", Kind.COUNTER, "{page}", "Pages that were applied and committed.")
FETCH: Final = Metric(
    "fetch.duration", Kind.HISTOGRAM, "s", "How long the feed took for a page, with its waiting."
)
APPLY: Final = Metric(
    "apply.duration", Kind.HISTOGRAM, "s", "How long the transaction of a page took."
)
FAILURES: Final = Metric(
    "failures", Kind.COUNTER, "{failure}", "Tries to apply a page that raised.", _FAILING
)
DEAD_LETTERS: Final = Metric(
    "dead_letters",
    Kind.COUNTER,
    "{event}",
    "Events set aside: failed, or held back behind one of their key.",
    ("consumer", "partition", "state"),
)
OPEN_LETTERS: Final = Metric(
    "dead_letters.open",
    Kind.GAUGE,
    "{event}",
    "Dead letters that are neither settled nor discarded.",
)
DUPLICATES: Final = Metric(
    "duplicates", Kind.COUNTER, "{event}", "Events that the inbox dropped, because they came twice."
)
FENCED: Final = Metric(
    "fenced", Kind.COUNTER, "{commit}", "Commits refused because another process has gone on."
)
RETRIES: Final = Metric(
    "retries", Kind.COUNTER, "{retry}", "Pauses before something is tried again.", _FAILING
)
BACKOFF: Final = Metric("backoff", Kind.COUNTER, "s", "Time spent in those pauses.", _FAILING)
HELD: Final = Metric(
    "partitions_held",
    Kind.GAUGE,
    "{partition}",
    "Partitions that this process holds by lease.",
    ("consumer",),
)
HALTED: Final = Metric(
    "partition_halted", Kind.GAUGE, "1", "1 for a partition that stands still, 0 once it goes on."
)
LAG_EVENTS: Final = Metric(
    "lag.events", Kind.GAUGE, "{event}", "Events behind the consumer's cursor; at least so many."
)
LAG_TIME: Final = Metric(
    "lag.time", Kind.GAUGE, "s", "How long ago the first of these events happened."
)

METRICS: Final = (
    *(EVENTS, PAGES, FETCH, APPLY, FAILURES, DEAD_LETTERS, DUPLICATES),
    *(FENCED, RETRIES, BACKOFF, HELD, HALTED),
)
"""All that an observer measures; a consumer's lag is looked up when somebody wants to know it."""

FRESH = 1.0
"""Seconds for which nothing is looked up again: several gauges of one moment show the same."""

_log = logging.getLogger("zeroeventhub.telemetry")

_Found = TypeVar("_Found")


class Reading(ABC, Generic[_Found]):
    """Look something up for those who ask again and again; where that fails, the log says why.

    Args:
        what: what is looked up, in words.
        nothing: what is returned where it cannot be had.
        extra: what a record of the log has as attributes of its own.
    """

    def __init__(self, what: str, nothing: _Found, extra: dict[str, Any]) -> None:
        self._what = what
        self._nothing = nothing
        self._extra = extra
        self._lock = Lock()
        self._known = nothing
        self._read_at: float | None = None

    @abstractmethod
    def _look(self) -> _Found:
        """Look it up."""

    def read(self) -> _Found:
        """Return what has just been looked up."""
        with self._lock:
            if self._read_at is None or time.monotonic() - self._read_at >= FRESH:
                self._known = self._try()
                self._read_at = time.monotonic()
            return self._known

    def _try(self) -> _Found:
        try:
            return self._look()
        except ZeroEventHubError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - other metrics are collected all the same
            reason = f"{type(error).__name__} was raised."  # its text may have SQL in it
        _log.warning("%s is not known: %s", self._what, reason, extra=self._extra)
        return self._nothing


class LagReading(Reading[dict[int, Lag]]):
    """Look up how far a consumer is behind, by partition.

    Args:
        client: reads the feed.
        store: has the consumer's cursors; made with a sync engine.
        name: the consumer's name.
    """

    def __init__(self, client: Client, store: CursorStore, name: str) -> None:
        super().__init__(f"The lag of consumer {name!r}", {}, {"consumer": name, "partition": None})
        self.name = name
        self._client = client
        self._store = store

    def _look(self) -> dict[int, Lag]:
        return lag(self._client, self._store, self.name)


class LettersReading(Reading[dict[int, int]]):
    """Look up how many dead letters a consumer has, by partition.

    Args:
        store: has them; made with a sync engine.
        name: the consumer's name.
    """

    def __init__(self, store: CursorStore, name: str) -> None:
        extra = {"consumer": name, "partition": None}
        super().__init__(f"The number of dead letters of consumer {name!r}", {}, extra)
        self.name = name
        self._store = store

    def _look(self) -> dict[int, int]:
        engine = self._store.engine
        if not isinstance(engine, Engine):
            raise ConfigurationError("Dead letters are counted in a store with a sync engine.")
        with engine.connect() as connection:
            known = dict.fromkeys(self._store.cursors(connection, self.name), 0)
            return known | self._store.dead_letters.count(connection, self.name)


class Measuring(Observer, ABC):
    """Measure what a consumer does; who keeps the measurements is up to subclasses."""

    def __init__(self) -> None:
        self._halted: dict[str, set[int]] = {}  # those that did once

    @abstractmethod
    def _record(self, metric: Metric, value: float, *labels: str) -> None:
        """Keep a measurement, with a value for each of the metric's labels."""

    def fetched(self, consumer: str, partition: int, events: int, seconds: float) -> None:  # noqa: ARG002 - events count when they are committed
        """Measure how long a page took to come."""
        self._record(FETCH, seconds, consumer, str(partition))

    @contextmanager
    def applying(self, consumer: str, partition: int, events: Sequence[Event]) -> Iterator[None]:  # noqa: ARG002 - for subclasses
        """Measure how long the transaction of a page takes, whether it is committed or not."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._record(APPLY, time.monotonic() - began, consumer, str(partition))

    def committed(self, consumer: str, partition: int, events: int) -> None:
        """Count a page and its events."""
        self._record(PAGES, 1, consumer, str(partition))
        self._record(EVENTS, events, consumer, str(partition))
        self._go_on(consumer, {partition})

    def failed(self, consumer: str, partition: int, error: Exception, attempt: int) -> None:  # noqa: ARG002 - each try counts
        """Count a try that raised."""
        self._record(FAILURES, 1, consumer, str(partition), _kind(error))

    def set_aside(self, consumer: str, partition: int, events: int, held: int) -> None:
        """Count dead letters."""
        for state, count in (("failed", events), ("held", held)):
            if count:
                self._record(DEAD_LETTERS, count, consumer, str(partition), state)

    def waited(
        self, consumer: str, partition: int | None, error: Exception, seconds: float
    ) -> None:
        """Count a pause, and how long it is."""
        labels = (consumer, "" if partition is None else str(partition), _kind(error))
        self._record(RETRIES, 1, *labels)
        self._record(BACKOFF, seconds, *labels)

    def fenced(self, consumer: str, partition: int) -> None:
        """Count a commit that was refused."""
        self._record(FENCED, 1, consumer, str(partition))

    def halted(self, consumer: str, partition: int, error: Exception) -> None:  # noqa: ARG002 - the log has it
        """Show that a partition stands still."""
        self._halted.setdefault(consumer, set()).add(partition)
        self._record(HALTED, 1, consumer, str(partition))

    def held(self, consumer: str, partitions: frozenset[int]) -> None:
        """Show how many leases are held; a partition without one is not halted here any more."""
        self._record(HELD, len(partitions), consumer)
        self._go_on(consumer, self._halted.get(consumer, set()) - partitions)

    def duplicate(self, consumer: str, partition: int, events: int) -> None:
        """Count events that were dropped."""
        self._record(DUPLICATES, events, consumer, str(partition))

    def _go_on(self, consumer: str, partitions: set[int]) -> None:
        for partition in partitions & self._halted.get(consumer, set()):
            self._record(HALTED, 0, consumer, str(partition))


def _kind(error: Exception) -> str:
    """Name an error by its kind: its text may be anything, and would make a series of its own."""
    return type(error).__name__
