"""Measure what consumers do, and look up their lag."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from sqlalchemy import Engine

from zeroeventhub.client import Client
from zeroeventhub.consumer.lag import lag
from zeroeventhub.consumer.observer import Observer
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.protocol import Event
from zeroeventhub.telemetry.metrics import LAG_METRICS, Collect, Instruments, Lookup, Observations


def lag_gauges(client: Client, store: CursorStore, name: str) -> Collect:
    """Return the function that looks up a consumer's lag and dead letters, by partition."""
    extra = {"consumer": name, "partition": None}
    lags = Lookup(f"The lag of consumer {name!r}", partial(lag, client, store, name), extra)
    count = partial(_count_letters, store, name)
    letters = Lookup(f"The number of dead letters of consumer {name!r}", count, extra)

    def collect(metric: str) -> Observations:
        found: dict[int, float | None]
        match metric:
            case "consumer.lag.events":
                found = {number: lag.events for number, lag in (lags.read() or {}).items()}
            case "consumer.lag.time":  # which not every feed reports
                found = {number: lag.seconds for number, lag in (lags.read() or {}).items()}
            case _:
                found = {**(letters.read() or {})}
        for number, value in found.items():
            if value is not None:
                yield value, (name, str(number))

    return collect


def _count_letters(store: CursorStore, name: str) -> dict[int, int]:
    engine = store.engine
    if not isinstance(engine, Engine):
        raise ConfigurationError("Dead letters are counted in a store with a sync engine.")
    with engine.connect() as connection:
        known = dict.fromkeys(store.cursors(connection, name), 0)
        return known | store.dead_letters.count(connection, name)


class ConsumerMetrics(Observer):
    """Measure what consumers do."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._halted: dict[str, set[int]] = {}  # partitions that have ever halted
        self._lags: dict[str, Collect] = {}

    def observe_lag(self, client: Client, store: CursorStore, name: str) -> None:
        """Show a consumer's lag and its dead letters whenever metrics are collected.

        Call it for each consumer; of one name, the last call counts. If a value cannot be read, its
        series are absent and the log says why.

        Args:
            client: reads the feed.
            store: has the consumer's cursors; made with a sync engine.
            name: the consumer's name.
        """
        if not self._lags:  # systems of telemetry take an instrument of a name once
            self._instruments.observe(LAG_METRICS, self._collect_lags)
        self._lags[name] = lag_gauges(client, store, name)

    def _collect_lags(self, metric: str) -> Observations:
        for collect in [*self._lags.values()]:
            yield from collect(metric)

    def _record(self, name: str, value: float, consumer: str, partition: int, *labels: str) -> None:
        self._instruments.record(f"consumer.{name}", value, consumer, str(partition), *labels)

    def fetched(self, consumer: str, partition: int, events: int, seconds: float) -> None:  # noqa: ARG002 - events count when they are committed
        """Measure how long the feed took to answer with a page."""
        self._record("fetch.duration", seconds, consumer, partition)

    @contextmanager
    def applying(self, consumer: str, partition: int, events: Sequence[Event]) -> Iterator[None]:  # noqa: ARG002 - for subclasses
        """Measure how long the transaction of a page takes, whether it is committed or not."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._record("apply.duration", time.monotonic() - began, consumer, partition)

    def committed(self, consumer: str, partition: int, events: int) -> None:
        """Count a page and its events."""
        self._record("pages", 1, consumer, partition)
        self._record("events", events, consumer, partition)
        self._go_on(consumer, {partition})

    def failed(self, consumer: str, partition: int, error: Exception, attempt: int) -> None:  # noqa: ARG002 - each try counts
        """Count a try that raised."""
        self._record("failures", 1, consumer, partition, type(error).__name__)

    def set_aside(self, consumer: str, partition: int, events: int, held: int) -> None:
        """Count dead letters."""
        for state, count in (("failed", events), ("held", held)):
            if count:
                self._record("dead_letters", count, consumer, partition, state)

    def waited(
        self, consumer: str, partition: int | None, error: Exception, seconds: float
    ) -> None:
        """Count a pause, and add up its seconds."""
        labels = (consumer, "" if partition is None else str(partition), type(error).__name__)
        self._instruments.record("consumer.retries", 1, *labels)
        self._instruments.record("consumer.backoff", seconds, *labels)

    def fenced(self, consumer: str, partition: int) -> None:
        """Count a commit that was refused."""
        self._record("fenced", 1, consumer, partition)

    def halted(self, consumer: str, partition: int, error: Exception) -> None:  # noqa: ARG002 - the log has it
        """Show that a partition is halted."""
        self._halted.setdefault(consumer, set()).add(partition)
        self._record("partition_halted", 1, consumer, partition)

    def held(self, consumer: str, partitions: frozenset[int]) -> None:
        """Show how many leases this process holds; a partition without one is no longer halted."""
        self._instruments.record("consumer.partitions_held", len(partitions), consumer)
        self._go_on(consumer, self._halted.get(consumer, set()) - partitions)

    def duplicate(self, consumer: str, partition: int, events: int) -> None:
        """Count events that the inbox dropped."""
        self._record("duplicates", events, consumer, partition)

    def _go_on(self, consumer: str, partitions: set[int]) -> None:
        for partition in partitions & self._halted.get(consumer, set()):
            self._record("partition_halted", 0, consumer, partition)
