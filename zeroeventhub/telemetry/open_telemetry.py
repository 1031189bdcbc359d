"""Tell OpenTelemetry what consumers do."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import (
    TraceContextTextMapPropagator,
)

from zeroeventhub.client import Client
from zeroeventhub.consumer.store.store import CursorStore
from zeroeventhub.protocol import Event, Lag
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
from zeroeventhub.wire.cloud_event import traceparent

__all__ = [
    "SYSTEM",
    "Meter",
    "OpenTelemetry",
]

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


MOST_LINKS = 128
"""How many links a span has at most, which is what the SDK keeps by default."""

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
        self._tracer = trace.get_tracer("zeroeventhub", RELEASE, tracer_provider)
        self._meter = Meter(METRICS, meter_provider)

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
                **SYSTEM,
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
        """Show a consumer's lag and its dead letters, whenever metrics are collected.

        Where one of them cannot be had, nothing is shown and the log says why.

        Args:
            client: reads the feed.
            store: has the consumer's cursors; made with a sync engine.
            name: the consumer's name.
        """
        reading = LagReading(client, store, name)

        def found(value: Callable[[Lag], float | None]) -> Observed:
            for partition, lag in reading.read().items():
                if (seen := value(lag)) is not None:
                    yield seen, (name, str(partition))

        self._meter.observe(LAG_EVENTS, lambda: found(lambda lag: lag.events))
        letters = LettersReading(store, name)
        self._meter.observe(
            OPEN_LETTERS,
            lambda: ((count, (name, str(number))) for number, count in letters.read().items()),
        )
        self._meter.observe(LAG_TIME, lambda: found(lambda lag: lag.seconds))

    def _record(self, metric: Metric, value: float, *labels: str) -> None:
        self._meter.record(metric, value, *labels)


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
