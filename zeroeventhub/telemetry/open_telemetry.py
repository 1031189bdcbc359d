"""Spans and metrics of a consumer for OpenTelemetry."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from zeroeventhub.client import Client
from zeroeventhub.cloud_event import traceparent
from zeroeventhub.cursors import CursorStore
from zeroeventhub.errors import require
from zeroeventhub.protocol import Event, Lag
from zeroeventhub.telemetry.lag_reading import LagReading, LettersReading
from zeroeventhub.telemetry.measuring import Measuring
from zeroeventhub.telemetry.metric import LAG_EVENTS, LAG_TIME, METRICS, OPEN_LETTERS, Metric
from zeroeventhub.telemetry.open_telemetry_metrics import RELEASE, SYSTEM, Meter, Observed

require("opentelemetry", extra="opentelemetry", user="Telemetry for OpenTelemetry")

from opentelemetry import metrics, trace  # noqa: E402 - after it
from opentelemetry.context import Context  # noqa: E402 - after it
from opentelemetry.trace.propagation.tracecontext import (  # noqa: E402 - after it
    TraceContextTextMapPropagator,
)

__all__ = ["OpenTelemetry"]

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
