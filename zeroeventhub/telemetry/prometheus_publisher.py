"""Metrics of a publisher for Prometheus."""

from collections.abc import Iterator

from zeroeventhub.telemetry.consumer_metrics import Metric
from zeroeventhub.telemetry.prometheus import (
    CollectorRegistry,
    GaugeMetricFamily,
    Instruments,
    gauge_family,
)
from zeroeventhub.telemetry.publisher_metrics import (
    HORIZON_METRICS,
    PUBLISHER_METRICS,
    PublisherMeasuring,
)

__all__ = ["PrometheusPublisher"]


class PrometheusPublisher(PublisherMeasuring):
    """Measure feeds for Prometheus; one observer for all feeds of a process.

    Args:
        registry: where the metrics are registered; None for the client library's own registry.

    Raises:
        ConfigurationError: the registry has these metrics already.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__()
        self._instruments = Instruments(
            PUBLISHER_METRICS,
            registry,
            instead="make one PrometheusPublisher(), and give it to all feeds of the process.",
        )
        self._instruments.registry.register(self)

    def _record(self, metric: Metric, value: float, *labels: str | int) -> None:
        self._instruments.record(metric, value, *labels)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges of the horizons, as Prometheus asks a collector for them."""
        for metric in HORIZON_METRICS:
            family = gauge_family(metric)
            for value, labels in self._observed(metric):
                family.add_metric([str(label) for label in labels], value)
            yield family

    @staticmethod
    def describe() -> list[GaugeMetricFamily]:
        """Return these gauges without measurements, so that registering them asks nobody."""
        return [gauge_family(metric) for metric in HORIZON_METRICS]
