"""Metrics as Prometheus has them."""

from collections.abc import Iterable

from zeroeventhub.errors import ConfigurationError, require
from zeroeventhub.telemetry.metric import SECONDS, Kind, Metric

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

__all__ = [
    "Collector",
    "CollectorRegistry",
    "GaugeMetricFamily",
    "Instruments",
    "gauge_family",
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
