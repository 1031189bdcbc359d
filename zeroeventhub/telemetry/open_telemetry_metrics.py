"""Metrics as OpenTelemetry has them."""

from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from typing import Any

from zeroeventhub.errors import require
from zeroeventhub.telemetry.metric import SECONDS, Kind, Metric

require("opentelemetry", extra="opentelemetry", user="Telemetry for OpenTelemetry")

from opentelemetry import metrics  # noqa: E402 - after it

__all__ = ["RELEASE", "SYSTEM", "Meter"]

RELEASE = version("zeroeventhub")

SYSTEM = {"messaging.system": "zeroeventhub"}
_ATTRIBUTES = {
    "consumer": "messaging.consumer.group.name",
    "partition": "messaging.destination.partition.id",
    "error": "error.type",
    "state": "zeroeventhub.dead_letter.state",
    "feed": "messaging.destination.name",
    "route": "zeroeventhub.route",
    "status": "http.response.status_code",
    "pid": "zeroeventhub.blocker.pid",
}
"""What labels are called in OpenTelemetry's semantic conventions, where they have them."""

Observed = Iterable[tuple[float, Sequence[str | int]]]
"""Values, each with its labels."""


class Meter:
    """Keep the measurements of some metrics.

    Args:
        kept: those.
        provider: makes them; None for the global one.
    """

    def __init__(self, kept: Iterable[Metric], provider: metrics.MeterProvider | None) -> None:
        self._meter = metrics.get_meter("zeroeventhub", RELEASE, provider)
        self._records = {metric: self._recorder(metric) for metric in kept}

    def record(self, metric: Metric, value: float, *labels: str | int) -> None:
        """Keep a measurement, with a value for each of the metric's labels."""
        self._records[metric](value, _named(metric, labels))

    def observe(self, metric: Metric, look: Callable[[], Observed]) -> None:
        """Look a gauge up whenever metrics are collected."""

        def callback(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
            for value, labels in look():
                yield metrics.Observation(value, _named(metric, labels))

        self._meter.create_observable_gauge(
            _name(metric), [callback], unit=metric.unit, description=metric.description
        )

    def _recorder(self, metric: Metric) -> Callable[[float, dict[str, str | int]], None]:
        """Make what keeps the measurements of a metric."""
        described: dict[str, Any] = {"unit": metric.unit, "description": metric.description}
        match metric.kind:
            case Kind.COUNTER:
                return self._meter.create_counter(_name(metric), **described).add
            case Kind.GAUGE:
                return self._meter.create_gauge(_name(metric), **described).set
            case Kind.HISTOGRAM:
                described["explicit_bucket_boundaries_advisory"] = SECONDS
                return self._meter.create_histogram(_name(metric), **described).record


def _name(metric: Metric) -> str:
    return f"zeroeventhub.{metric.side}.{metric.name}"


def _named(metric: Metric, values: Sequence[str | int]) -> dict[str, str | int]:
    """Name the values of a metric's labels; an empty one is left out."""
    named = zip(metric.labels, values, strict=True)
    return SYSTEM | {_ATTRIBUTES[label]: value for label, value in named if value != ""}
