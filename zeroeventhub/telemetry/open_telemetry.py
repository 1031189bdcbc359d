"""Report to OpenTelemetry what consumers do."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from zeroeventhub.protocol import Event
from zeroeventhub.telemetry.consumers import ConsumerMetrics
from zeroeventhub.telemetry.metrics import CONSUMER_METRICS, SECONDS, Collect, Metric
from zeroeventhub.wire.cloud_event import traceparent

RELEASE = version("zeroeventhub")

_SYSTEM = {"messaging.system": "zeroeventhub"}
_NAMES = {
    "consumer": "messaging.consumer.group.name",
    "partition": "messaging.destination.partition.id",
    "error": "error.type",
    "state": "zeroeventhub.dead_letter.state",
    "feed": "messaging.destination.name",
    "route": "zeroeventhub.route",
    "status": "http.response.status_code",
    "pid": "zeroeventhub.blocker.pid",
}
"""The names of labels in OpenTelemetry's semantic conventions, or our own."""


class OpenTelemetryInstruments:
    """Keep the measurements of some metrics."""

    def __init__(self, kept: Iterable[Metric], provider: metrics.MeterProvider | None) -> None:
        self._meter = metrics.get_meter("zeroeventhub", RELEASE, provider)
        self._recorders = {metric.name: self._recorder(metric) for metric in kept}

    def record(self, name: str, value: float, *labels: str | int) -> None:
        """Keep a measurement of a metric, with a value for each of its labels."""
        self._recorders[name](value, labels)

    def observe(self, metrics: Sequence[Metric], collect: Collect) -> None:
        """Look up gauges whenever metrics are collected."""
        for metric in metrics:
            self._meter.create_observable_gauge(
                _name(metric),
                [partial(_observe, metric, collect)],
                unit=metric.unit,
                description=metric.description,
            )

    def _recorder(self, metric: Metric) -> Callable[[float, Sequence[str | int]], None]:
        """Return the function that keeps the measurements of a metric, with their labels."""
        described: dict[str, Any] = {"unit": metric.unit, "description": metric.description}
        keep: Callable[[float, dict[str, str | int]], None]
        match metric.kind:
            case "counter":
                keep = self._meter.create_counter(_name(metric), **described).add
            case "gauge":
                keep = self._meter.create_gauge(_name(metric), **described).set
            case "histogram":
                described["explicit_bucket_boundaries_advisory"] = SECONDS
                keep = self._meter.create_histogram(_name(metric), **described).record
        return lambda value, labels: keep(value, _attributes(metric, labels))


def _name(metric: Metric) -> str:
    return f"zeroeventhub.{metric.name}"


def _observe(
    metric: Metric, collect: Collect, _: metrics.CallbackOptions
) -> Iterable[metrics.Observation]:
    for value, labels in collect(metric.name):
        yield metrics.Observation(value, _attributes(metric, labels))


def _attributes(metric: Metric, values: Sequence[str | int]) -> dict[str, str | int]:
    """Name the values of a metric's labels; an empty one is left out."""
    named = zip(metric.labels, values, strict=True)
    return _SYSTEM | {_NAMES[label]: value for label, value in named if value != ""}


MOST_LINKS = 128
"""How many links a span has at most, which is what the SDK keeps by default."""

_propagator = TraceContextTextMapPropagator()


class OpenTelemetry(ConsumerMetrics):
    """Trace and measure consumers with OpenTelemetry.

    Example:
        telemetry = OpenTelemetry()
        telemetry.observe_lag(client, store, "billing")
        Consumer(client, store, "billing", observer=telemetry).run(apply)

    Args:
        tracer_provider: makes the spans; None for the global one.
        meter_provider: makes the metrics; None for the global one.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        super().__init__(OpenTelemetryInstruments(CONSUMER_METRICS, meter_provider))
        self._tracer = trace.get_tracer("zeroeventhub", RELEASE, tracer_provider)

    @contextmanager
    def applying(self, consumer: str, partition: int, events: Sequence[Event]) -> Iterator[None]:
        """Make a span around the transaction of a page.

        If all events are of one trace, the first event's span is the parent; otherwise the span has
        links to the spans of all events.
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


def describe_current_span(attributes: Mapping[str, str | float]) -> None:
    """Set attributes of the current span, if one is recorded."""
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attributes({**_SYSTEM, **attributes})


def _origins(events: Sequence[Event]) -> tuple[Context | None, list[trace.Link]]:
    """Return the parent of a page's span, None for the current context, and its links."""
    found = [_context(event) for event in events]
    spans = {(context.trace_id, context.span_id): context for context in found if context}
    distinct = list(spans.values())
    parent: Context | None = None
    if len({context.trace_id if context else None for context in found}) == 1 and distinct:
        parent = trace.set_span_in_context(trace.NonRecordingSpan(distinct.pop(0)))
    return parent, [trace.Link(context) for context in distinct[:MOST_LINKS]]


def _context(event: Event) -> trace.SpanContext | None:
    """Read the span that an event was published in; None if it has none."""
    carrier = {"traceparent": traceparent(event) or ""}
    context = trace.get_current_span(_propagator.extract(carrier)).get_span_context()
    return context if context.is_valid else None
