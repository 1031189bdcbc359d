"""Metrics of a publisher for OpenTelemetry, and what it adds to the spans of its host."""

from functools import partial

from opentelemetry import metrics, trace

from zeroeventhub.server.app import Answered
from zeroeventhub.telemetry.consumer_metrics import Metric
from zeroeventhub.telemetry.open_telemetry import SYSTEM, Meter
from zeroeventhub.telemetry.publisher_metrics import (
    HORIZON_METRICS,
    PUBLISHER_METRICS,
    PublisherMeasuring,
)

__all__ = ["OpenTelemetryPublisher"]


class OpenTelemetryPublisher(PublisherMeasuring):
    """Measure feeds with OpenTelemetry, and describe answers in the spans of the host.

    Args:
        meter_provider: makes the metrics; None for the global one.
    """

    def __init__(self, meter_provider: metrics.MeterProvider | None = None) -> None:
        super().__init__()
        self._meter = Meter(PUBLISHER_METRICS, meter_provider)
        for metric in HORIZON_METRICS:
            self._meter.observe(metric, partial(self._observed, metric))

    def answered(self, answered: Answered) -> None:
        """Count a request; tell the current span of it, if there is one that listens."""
        super().answered(answered)
        span = trace.get_current_span()
        if span.is_recording():
            span.set_attributes(
                {
                    **SYSTEM,
                    "messaging.destination.name": answered.feed,
                    "messaging.batch.message_count": answered.events,
                    "zeroeventhub.route": answered.route,
                    "zeroeventhub.waited": answered.waited,
                }
            )

    def _record(self, metric: Metric, value: float, *labels: str | int) -> None:
        self._meter.record(metric, value, *labels)
