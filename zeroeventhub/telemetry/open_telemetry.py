"""Spans and metrics of a consumer for OpenTelemetry."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from zeroeventhub.client import Client
from zeroeventhub.cloud_event import traceparent
from zeroeventhub.cursors import CursorStore
from zeroeventhub.errors import require
from zeroeventhub.protocol import Event, Lag
from zeroeventhub.telemetry.lag_reading import LagReading
from zeroeventhub.telemetry.measuring import Measuring
from zeroeventhub.telemetry.metric import LAG_EVENTS, LAG_TIME, METRICS, SECONDS, Kind, Metric

require("opentelemetry", extra="opentelemetry", user="Telemetry for OpenTelemetry")

from opentelemetry import metrics, trace  # noqa: E402 - after it
from opentelemetry.context import Context  # noqa: E402 - after it
from opentelemetry.trace.propagation.tracecontext import (  # noqa: E402 - after it
    TraceContextTextMapPropagator,
)

__all__ = ["OpenTelemetry"]

MOST_LINKS = 128
"""How many links a span has at most, which is what the SDK keeps by default."""

_SYSTEM = {"messaging.system": "zeroeventhub"}
_ATTRIBUTES = {
    "consumer": "messaging.consumer.group.name",
    "partition": "messaging.destination.partition.id",
    "error": "error.type",
    "state": "zeroeventhub.dead_letter.state",
}
"""What labels are called in OpenTelemetry's semantic conventions, where they have them."""

_propagator = TraceContextTextMapPropagator()


class OpenTelemetry(Measuring):
    """Trace and measure consumers with OpenTelemetry.

    Args:
        tracer_provider: makes the spans; None for the global one.
        meter_provider: makes the metrics; None for the global one.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        super().__init__()
        release = version("zeroeventhub")
        self._tracer = trace.get_tracer("zeroeventhub", release, tracer_provider)
        self._meter = metrics.get_meter("zeroeventhub", release, meter_provider)
        self._records = {metric: self._recorder(metric) for metric in METRICS}

    @contextmanager
    def applying(self, consumer: str, partition: int, events: Sequence[Event]) -> Iterator[None]:
        """Make a span around the transaction of a page, which belongs to the traces of its events.

        Where all events are of one trace, the span is a child of the first one's; otherwise it has
        links to those of all.
        """
        parent, links = _origins(events)
        span = self._tracer.start_as_current_span(
            f"process {consumer}",
            context=parent,
            kind=trace.SpanKind.CONSUMER,
            links=links,
            attributes={
                **_SYSTEM,
                "messaging.operation.name": "process",
                "messaging.operation.type": "process",
                "messaging.consumer.group.name": consumer,
                "messaging.destination.partition.id": str(partition),
                "messaging.batch.message_count": len(events),
            },
        )
        with super().applying(consumer, partition, events), span as current:
            try:
                yield
            except Exception as error:
                current.set_attribute("error.type", type(error).__name__)
                raise

    def observe_lag(self, client: Client, store: CursorStore, name: str) -> None:
        """Show how far a consumer is behind, whenever metrics are collected.

        Where the lag cannot be had, nothing is shown and the log says why.

        Args:
            client: reads the feed.
            store: has the consumer's cursors; made with a sync engine.
            name: the consumer's name.
        """
        reading = LagReading(client, store, name)

        def observe(metric: Metric, value: Callable[[Lag], float | None]) -> None:
            def callback(_: metrics.CallbackOptions) -> Iterable[metrics.Observation]:
                for partition, lag in reading.read().items():
                    if (found := value(lag)) is not None:
                        yield metrics.Observation(found, _named(metric, (name, str(partition))))

            self._meter.create_observable_gauge(
                _name(metric), [callback], unit=metric.unit, description=metric.description
            )

        observe(LAG_EVENTS, lambda lag: lag.events)
        observe(LAG_TIME, lambda lag: lag.seconds)

    def _record(self, metric: Metric, value: float, *labels: str) -> None:
        self._records[metric](value, _named(metric, labels))

    def _recorder(self, metric: Metric) -> Callable[[float, dict[str, str]], None]:
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
    return f"zeroeventhub.consumer.{metric.name}"


def _named(metric: Metric, values: Sequence[str]) -> dict[str, str]:
    """Name the values of a metric's labels; an empty one is left out."""
    named = zip(metric.labels, values, strict=True)
    return _SYSTEM | {_ATTRIBUTES[label]: value for label, value in named if value}


def _origins(events: Sequence[Event]) -> tuple[Context | None, list[trace.Link]]:
    """Return the context that a page's span belongs to, None for the current one, and its links."""
    found = [_context(event) for event in events]
    spans = {(context.trace_id, context.span_id): context for context in found if context}
    distinct = list(spans.values())
    parent: Context | None = None
    if len({context.trace_id if context else None for context in found}) == 1 and distinct:
        parent = trace.set_span_in_context(trace.NonRecordingSpan(distinct.pop(0)))
    return parent, [trace.Link(context) for context in distinct[:MOST_LINKS]]


def _context(event: Event) -> trace.SpanContext | None:
    """Read the span that an event was published in; None if it does not tell."""
    carrier = {"traceparent": traceparent(event) or ""}
    context = trace.get_current_span(_propagator.extract(carrier)).get_span_context()
    return context if context.is_valid else None
