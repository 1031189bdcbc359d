"""Measure what consumers do, and look up how far they lag."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from sqlalchemy import Engine

from zeroeventhub.client import Client
from zeroeventhub.consumer.lag import lag
from zeroeventhub.consumer.observer import Observer
from zeroeventhub.consumer.store.store import CursorStore
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import Event, Lag
from zeroeventhub.telemetry.metrics import (
    Instruments,
    Lookup,
    Observations,
)

__all__ = [
    "ConsumerMetrics",
    "LagGauges",
]


class LagGauges:
    """Look up how far a consumer lags and how many dead letters it has, by partition.

    Args:
        client: reads the feed.
        store: has the consumer's cursors; made with a sync engine.
        name: the consumer's name.
    """

    def __init__(self, client: Client, store: CursorStore, name: str) -> None:
        self._name = name
        extra = {"consumer": name, "partition": None}
        self._lags: Lookup[dict[int, Lag]] = Lookup(
            f"The lag of consumer {name!r}", partial(lag, client, store, name), {}, extra
        )
        self._letters: Lookup[dict[int, int]] = Lookup(
            f"The number of dead letters of consumer {name!r}",
            partial(_count_letters, store, name),
            {},
            extra,
        )

    def collect(self, name: str) -> Observations:
        """Yield the values of a metric; a time that the feed does not know has none."""
        found: dict[int, float | None]
        match name:
            case "consumer.lag.events":
                found = {number: lag.events for number, lag in self._lags.read().items()}
            case "consumer.lag.time":
                found = {number: lag.seconds for number, lag in self._lags.read().items()}
            case _:
                found = {**self._letters.read()}
        for number, value in found.items():
            if value is not None:
                yield value, (self._name, str(number))


def _count_letters(store: CursorStore, name: str) -> dict[int, int]:
    engine = store.engine
    if not isinstance(engine, Engine):
        raise ConfigurationError("Dead letters are counted in a store with a sync engine.")
    with engine.connect() as connection:
        known = dict.fromkeys(store.cursors(connection, name), 0)
        return known | store.dead_letters.count(connection, name)


class ConsumerMetrics(Observer):
    """Measure what consumers do.

    Args:
        instruments: keep the measurements.
    """

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._record = instruments.record
        self._halted: dict[str, set[int]] = {}  # partitions that have ever halted

    def fetched(self, consumer: str, partition: int, events: int, seconds: float) -> None:  # noqa: ARG002 - events count when they are committed
        """Measure how long a page took to come."""
        self._record("consumer.fetch.duration", seconds, consumer, str(partition))

    @contextmanager
    def applying(self, consumer: str, partition: int, events: Sequence[Event]) -> Iterator[None]:  # noqa: ARG002 - for subclasses
        """Measure how long the transaction of a page takes, whether it is committed or not."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._record(
                "consumer.apply.duration", time.monotonic() - began, consumer, str(partition)
            )

    def committed(self, consumer: str, partition: int, events: int) -> None:
        """Count a page and its events."""
        self._record("consumer.pages", 1, consumer, str(partition))
        self._record("consumer.events", events, consumer, str(partition))
        self._go_on(consumer, {partition})

    def failed(self, consumer: str, partition: int, error: Exception, attempt: int) -> None:  # noqa: ARG002 - each try counts
        """Count a try that raised."""
        self._record("consumer.failures", 1, consumer, str(partition), _kind(error))

    def set_aside(self, consumer: str, partition: int, events: int, held: int) -> None:
        """Count dead letters."""
        for state, count in (("failed", events), ("held", held)):
            if count:
                self._record("consumer.dead_letters", count, consumer, str(partition), state)

    def waited(
        self, consumer: str, partition: int | None, error: Exception, seconds: float
    ) -> None:
        """Count a pause, and how long it is."""
        labels = (consumer, "" if partition is None else str(partition), _kind(error))
        self._record("consumer.retries", 1, *labels)
        self._record("consumer.backoff", seconds, *labels)

    def fenced(self, consumer: str, partition: int) -> None:
        """Count a commit that was refused."""
        self._record("consumer.fenced", 1, consumer, str(partition))

    def halted(self, consumer: str, partition: int, error: Exception) -> None:  # noqa: ARG002 - the log has it
        """Show that a partition stands still."""
        self._halted.setdefault(consumer, set()).add(partition)
        self._record("consumer.partition_halted", 1, consumer, str(partition))

    def held(self, consumer: str, partitions: frozenset[int]) -> None:
        """Show how many leases are held; a partition without one is not halted here any more."""
        self._record("consumer.partitions_held", len(partitions), consumer)
        self._go_on(consumer, self._halted.get(consumer, set()) - partitions)

    def duplicate(self, consumer: str, partition: int, events: int) -> None:
        """Count events that were dropped."""
        self._record("consumer.duplicates", events, consumer, str(partition))

    def _go_on(self, consumer: str, partitions: set[int]) -> None:
        for partition in partitions & self._halted.get(consumer, set()):
            self._record("consumer.partition_halted", 0, consumer, str(partition))


def _kind(error: Exception) -> str:
    """Name an error by its kind: its text may be anything, and would make a series of its own."""
    return type(error).__name__
