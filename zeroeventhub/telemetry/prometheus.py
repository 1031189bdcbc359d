"""Report to Prometheus what consumers do."""

from collections.abc import Iterator, Sequence

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from zeroeventhub.client import Client
from zeroeventhub.consumer.store.cursor_store import CursorStore
from zeroeventhub.errors import ConfigurationError
from zeroeventhub.telemetry.consumers import ConsumerMetrics, lag_gauges
from zeroeventhub.telemetry.metrics import CONSUMER_METRICS, LAG_METRICS, SECONDS, Collect, Metric

_UNITS = {"s": "_seconds", "By": "_bytes"}


class PrometheusInstruments:
    """Keep the measurements of some metrics; refuse, with advice, to register them twice."""

    def __init__(
        self, metrics: Sequence[Metric], registry: CollectorRegistry | None, *, advice: str
    ) -> None:
        self._registry = REGISTRY if registry is None else registry
        try:
            self._of = {metric.name: _instrument(metric, self._registry) for metric in metrics}
        except ValueError as error:
            raise ConfigurationError(f"The registry has these metrics already: {advice}") from error

    def record(self, name: str, value: float, *labels: str | int) -> None:
        """Keep a measurement of a metric, with a value for each of its labels."""
        match self._of[name].labels(*labels):
            case Counter() as counter:
                counter.inc(value)
            case Gauge() as gauge:
                gauge.set(value)
            case Histogram() as histogram:
                histogram.observe(value)

    def observe(self, metrics: Sequence[Metric], collect: Collect) -> None:
        """Look up gauges at each scrape."""
        self._registry.register(Gauges(metrics, collect))


def _instrument(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    name, description = _name(metric), metric.description
    match metric.kind:
        case "counter":
            return Counter(name, description, metric.labels, registry=registry)
        case "gauge":
            # Several processes of a server that measure into one folder add up.
            return Gauge(
                name, description, metric.labels, registry=registry, multiprocess_mode="livesum"
            )
        case "histogram":
            return Histogram(name, description, metric.labels, registry=registry, buckets=SECONDS)


def _name(metric: Metric) -> str:
    """Return a metric's name in Prometheus, with its unit."""
    return f"zeroeventhub_{metric.name.replace('.', '_')}{_UNITS.get(metric.unit, '')}"


class Gauges(Collector):
    """Gauges that are looked up at each scrape."""

    def __init__(self, metrics: Sequence[Metric], collect: Collect) -> None:
        self._metrics = metrics
        self._collect = collect

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges with their values."""
        for metric, family in zip(self._metrics, self.describe(), strict=True):
            for value, labels in self._collect(metric.name):
                family.add_metric([str(label) for label in labels], value)
            yield family

    def describe(self) -> list[GaugeMetricFamily]:
        """Return the gauges without values, so that registering them looks nothing up."""
        return [
            GaugeMetricFamily(_name(metric), metric.description, labels=metric.labels)
            for metric in self._metrics
        ]


class Prometheus(ConsumerMetrics):
    """Measure consumers for Prometheus; one observer for all consumers of a process.

    Example:
        start_http_server(9100)
        telemetry = Prometheus()
        telemetry.observe_lag(client, store, "billing")
        Consumer(client, store, "billing", observer=telemetry).run(apply)

    Args:
        registry: where the metrics are registered; None for the client library's own registry.

    Raises:
        ConfigurationError: the registry has these metrics already.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__(
            PrometheusInstruments(
                CONSUMER_METRICS,
                registry,
                advice="make one Prometheus(), and give it to all consumers of the process.",
            )
        )


def lag_collector(client: Client, store: CursorStore, name: str) -> Collector:
    """Return a collector that looks up a consumer's lag and its dead letters at each scrape.

    For a registry of its own; `observe_lag` of Prometheus shows the same of several consumers. If a
    value cannot be read, its series are absent and the log says why.

    Args:
        client: reads the feed.
        store: has the consumer's cursors; made with a sync engine.
        name: the consumer's name.
    """
    return Gauges(LAG_METRICS, lag_gauges(client, store, name))
