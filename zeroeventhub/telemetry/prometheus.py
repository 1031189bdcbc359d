"""Tell Prometheus what consumers do."""

from collections.abc import Iterable, Iterator

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from zeroeventhub.client import Client
from zeroeventhub.consumer.store.store import CursorStore
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.telemetry.consumer_metrics import (
    LAG_EVENTS,
    LAG_TIME,
    METRICS,
    OPEN_LETTERS,
    SECONDS,
    Kind,
    LagReading,
    LettersReading,
    Measuring,
    Metric,
)

__all__ = [
    "CollectorRegistry",
    "GaugeMetricFamily",
    "Instruments",
    "Prometheus",
    "gauge_family",
    "lag_collector",
]

_UNITS = {"s": "_seconds", "By": "_bytes"}


class Instruments:
    """Keep the measurements of some metrics.

    Args:
        metrics: those.
        registry: where they are registered; None for the client library's own registry.
        instead: what to do where they are registered already.

    Raises:
        ConfigurationError: the registry has these metrics already.
    """

    def __init__(
        self, metrics: Iterable[Metric], registry: CollectorRegistry | None, *, instead: str
    ) -> None:
        self.registry = REGISTRY if registry is None else registry
        try:
            self._of = {metric: _instrument(metric, self.registry) for metric in metrics}
        except ValueError as error:
            raise ConfigurationError(
                f"The registry has these metrics already: {instead}"
            ) from error

    def record(self, metric: Metric, value: float, *labels: str | int) -> None:
        """Keep a measurement, with a value for each of the metric's labels."""
        match self._of[metric].labels(*labels):
            case Counter() as counter:
                counter.inc(value)
            case Gauge() as gauge:
                gauge.set(value)
            case Histogram() as histogram:
                histogram.observe(value)


def gauge_family(metric: Metric) -> GaugeMetricFamily:
    """Return a gauge for what is looked up when Prometheus asks, without measurements yet."""
    return GaugeMetricFamily(_name(metric), metric.description, labels=metric.labels)


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
    name = metric.name.replace(".", "_")
    return f"zeroeventhub_{metric.side}_{name}{_UNITS.get(metric.unit, '')}"


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
