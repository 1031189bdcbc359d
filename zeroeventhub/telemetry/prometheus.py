"""Metrics of a consumer for Prometheus."""

from collections.abc import Iterator

from zeroeventhub.client import Client
from zeroeventhub.cursors import CursorStore
from zeroeventhub.telemetry.lag_reading import LagReading, LettersReading
from zeroeventhub.telemetry.measuring import Measuring
from zeroeventhub.telemetry.metric import LAG_EVENTS, LAG_TIME, METRICS, OPEN_LETTERS, Metric
from zeroeventhub.telemetry.prometheus_metrics import (
    Collector,
    CollectorRegistry,
    GaugeMetricFamily,
    Instruments,
    gauge_family,
)

__all__ = ["Prometheus", "lag_collector"]


class Prometheus(Measuring):
    """Measure consumers for Prometheus; one observer for all consumers of a process.

    Args:
        registry: where the metrics are registered; None for the client library's own registry.

    Raises:
        ConfigurationError: the registry has these metrics already.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__()
        self._instruments = Instruments(
            METRICS,
            registry,
            instead="make one Prometheus(), and give it to all consumers of the process.",
        )

    def _record(self, metric: Metric, value: float, *labels: str) -> None:
        self._instruments.record(metric, value, *labels)


def lag_collector(client: Client, store: CursorStore, name: str) -> Collector:
    """Return what tells Prometheus a consumer's lag and its dead letters, whenever it asks.

    Register it with a registry. Where one of them cannot be had, its series are absent and
    the log says why.

    Args:
        client: reads the feed.
        store: has the consumer's cursors; made with a sync engine.
        name: the consumer's name.
    """
    return _LagCollector(LagReading(client, store, name), LettersReading(store, name))


class _LagCollector(Collector):
    def __init__(self, reading: LagReading, letters: LettersReading) -> None:
        self._reading = reading
        self._letters = letters

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges of all partitions."""
        events, seconds, letters = self.describe()
        for partition, count in self._letters.read().items():
            letters.add_metric([self._letters.name, str(partition)], count)
        for partition, lag in self._reading.read().items():
            labels = [self._reading.name, str(partition)]
            events.add_metric(labels, lag.events)
            if lag.seconds is not None:
                seconds.add_metric(labels, lag.seconds)
        yield from (events, seconds, letters)

    @staticmethod
    def describe() -> list[GaugeMetricFamily]:
        """Return the gauges without measurements, so that registering them asks nobody."""
        return [gauge_family(metric) for metric in (LAG_EVENTS, LAG_TIME, OPEN_LETTERS)]
