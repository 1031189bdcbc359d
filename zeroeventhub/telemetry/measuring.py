"""Measurements out of what an observer sees."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from zeroeventhub.consumer.observer import Observer
from zeroeventhub.protocol import Event
from zeroeventhub.telemetry.metric import (
    APPLY,
    BACKOFF,
    DEAD_LETTERS,
    DUPLICATES,
    EVENTS,
    FAILURES,
    FENCED,
    FETCH,
    HALTED,
    HELD,
    PAGES,
    RETRIES,
    Metric,
)

__all__ = ["Measuring"]


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
