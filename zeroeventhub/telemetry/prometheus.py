"""Metrics of a consumer for Prometheus."""

from collections.abc import Iterator

from zeroeventhub.client import Client
from zeroeventhub.cursors import CursorStore
from zeroeventhub.errors import ConfigurationError, require
from zeroeventhub.telemetry.lag_reading import LagReading
from zeroeventhub.telemetry.measuring import Measuring
from zeroeventhub.telemetry.metric import LAG_EVENTS, LAG_TIME, METRICS, SECONDS, Kind, Metric

require("prometheus_client", extra="prometheus", user="Metrics for Prometheus")

from prometheus_client import (  # noqa: E402 - after it
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
)
from prometheus_client.core import GaugeMetricFamily  # noqa: E402 - after it
from prometheus_client.registry import Collector  # noqa: E402 - after it

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
        registry = REGISTRY if registry is None else registry
        try:
            self._instruments = {metric: _instrument(metric, registry) for metric in METRICS}
        except ValueError as error:
            raise ConfigurationError(
                "The registry has these metrics already: make one Prometheus(), and give it to "
                "all consumers of the process."
            ) from error

    def _record(self, metric: Metric, value: float, *labels: str) -> None:
        match self._instruments[metric].labels(*labels):
            case Counter() as counter:
                counter.inc(value)
            case Gauge() as gauge:
                gauge.set(value)
            case Histogram() as histogram:
                histogram.observe(value)


def lag_collector(client: Client, store: CursorStore, name: str) -> Collector:
    """Return what tells Prometheus how far a consumer is behind, whenever it asks.

    Register it with a registry. Where the lag cannot be had, its series are absent and the log says
    why.

    Args:
        client: reads the feed.
        store: has the consumer's cursors; made with a sync engine.
        name: the consumer's name.
    """
    return _LagCollector(LagReading(client, store, name))


class _LagCollector(Collector):
    def __init__(self, reading: LagReading) -> None:
        self._reading = reading

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges of all partitions."""
        events, seconds = self.describe()
        for partition, lag in self._reading.read().items():
            labels = [self._reading.name, str(partition)]
            events.add_metric(labels, lag.events)
            if lag.seconds is not None:
                seconds.add_metric(labels, lag.seconds)
        yield from (events, seconds)

    @staticmethod
    def describe() -> list[GaugeMetricFamily]:
        """Return the gauges without measurements, so that registering them asks nobody."""
        return [
            GaugeMetricFamily(_name(metric), metric.description, labels=metric.labels)
            for metric in (LAG_EVENTS, LAG_TIME)
        ]


def _instrument(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    name, description = _name(metric), metric.description
    match metric.kind:
        case Kind.COUNTER:
            return Counter(name, description, metric.labels, registry=registry)
        case Kind.GAUGE:
            return Gauge(name, description, metric.labels, registry=registry)
        case Kind.HISTOGRAM:
            return Histogram(name, description, metric.labels, registry=registry, buckets=SECONDS)


def _name(metric: Metric) -> str:
    """Name a metric as Prometheus has it, with its unit."""
    name = f"zeroeventhub_consumer_{metric.name.replace('.', '_')}"
    return f"{name}_seconds" if metric.unit == "s" else name
