"""What OpenTelemetry is shown of consumers, and of what Prometheus is shown as well."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import generate_latest

from zeroeventhub import Event
from zeroeventhub.errors import Diverged, Fenced
from zeroeventhub.telemetry import OpenTelemetry, Prometheus
from zeroeventhub.telemetry.consumer_metrics import METRICS

CONSUMER = "billing"
ONE, TWO = "1" * 32, "2" * 32
IDENTITY = {"messaging.system": "zeroeventhub", "messaging.consumer.group.name": CONSUMER}
PAGE = {**IDENTITY, "messaging.destination.partition.id": "3"}
LABELS = {"consumer": CONSUMER, "partition": "3"}


@pytest.fixture
def spans():
    """An exporter that keeps spans, and the provider that has it."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield exporter, provider
    provider.shutdown()


@pytest.fixture
def observer(spans, reader):
    """An observer of its own providers."""
    return OpenTelemetry(spans[1], MeterProvider([reader]))


def event(trace_id=None, span_id="a" * 16, **attributes):
    """A CloudEvent, of a trace if one is given."""
    data = {"specversion": "1.0", "id": "1", "source": "/", "type": "t", **attributes}
    if trace_id is not None:
        data["traceparent"] = f"00-{trace_id}-{span_id}-01"
    return Event.of(data)


def finished(spans, events, observer):
    """The span of a page that was applied without fault."""
    with observer.applying(CONSUMER, 3, events):
        pass
    (span,) = spans[0].get_finished_spans()
    spans[0].clear()
    return span


def linked(span):
    """The traces and spans that a span has links to."""
    contexts = [link.context for link in span.links]
    return [(f"{each.trace_id:032x}", f"{each.span_id:016x}") for each in contexts]


def test_page_has_a_span(spans, observer):
    """Around the application of a page there is a span that says what is processed, and by whom."""
    with observer.applying(CONSUMER, 3, [event(), event()]):
        inside = trace.get_current_span().get_span_context()
    (span,) = spans[0].get_finished_spans()
    assert (span.name, span.kind) == ("process billing", SpanKind.CONSUMER)
    assert span.context.span_id == inside.span_id
    assert (span.parent, span.links, span.status.status_code) == (None, (), StatusCode.UNSET)
    assert dict(span.attributes) == PAGE | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.batch.message_count": 2,
    }
    assert span.instrumentation_scope.name == "zeroeventhub"


def test_page_goes_on_with_its_trace_or_has_links(spans, observer):
    """Where all events are of one trace, the first one's span is the parent, and others are linked;
    a page of several traces, or of some events without, belongs to none and links to all.
    """
    one, two, later = (ONE, "a" * 16), (TWO, "a" * 16), (TWO, "b" * 16)
    # Events of ZeroEventHub v1 have it in a header.
    v1 = Event(b'{"n":1}', {"traceparent": f"00-{TWO}-{'c' * 16}-01"})
    for events, parent, links in [
        ([event(*one)], one, []),
        ([event(*one), event(*one), event(ONE, "b" * 16)], one, [(ONE, "b" * 16)]),
        ([v1], (TWO, "c" * 16), []),
        ([event(*one), event(*two), event(*one), event(*later)], None, [one, two, later]),
        ([event(*one), event()], None, [one]),
    ]:
        span = finished(spans, events, observer)
        assert linked(span) == links
        assert (span.parent is None) is (parent is None)
        if parent:
            assert f"{span.context.trace_id:032x}" == parent[0]
            assert f"{span.parent.span_id:016x}" == parent[1]


@pytest.mark.parametrize(
    "wrong", ["", "x", f"00-{'0' * 32}-{'a' * 16}-01", f"00-{ONE}-{'0' * 16}-01", 7, None]
)
def test_trace_that_is_none_is_passed_over(spans, observer, wrong):
    """An event whose traceparent is none has no trace, not even that of whoever is reading."""
    with spans[1].get_tracer("test").start_as_current_span("outer") as outer:
        alone = finished(spans, [event(traceparent=wrong)], observer)
        beside = finished(spans, [event(traceparent=wrong), event(ONE)], observer)
    for span, links in [(alone, []), (beside, [(ONE, "a" * 16)])]:
        assert span.parent.span_id == outer.get_span_context().span_id
        assert linked(span) == links


def test_error_is_recorded(spans, observer, collected):
    """What is raised while a page is applied is on the span, and comes out as it was."""
    with pytest.raises(Fenced, match="moved"), observer.applying(CONSUMER, 3, []):
        raise Fenced("It has moved.")
    (span,) = spans[0].get_finished_spans()
    assert span.status.status_code == StatusCode.ERROR
    assert span.attributes["error.type"] == "Fenced"
    (recorded,) = span.events
    assert recorded.attributes["exception.message"] == "It has moved."
    (point,) = collected()["apply.duration"].data.data_points
    assert point.count == 1


NAMES = {"error": "error.type", "state": "zeroeventhub.dead_letter.state"}
"""How OpenTelemetry calls labels."""

COUNTED = [
    ("events", PAGE, {}, 7),
    ("pages", PAGE, {}, 2),
    ("failures", PAGE, {"error": "KeyError"}, 2),
    ("dead_letters", PAGE, {"state": "failed"}, 2),
    ("dead_letters", PAGE, {"state": "held"}, 1),
    ("retries", PAGE, {"error": "KeyError"}, 2),
    ("retries", IDENTITY, {"error": "Diverged"}, 1),
    ("backoff", PAGE, {"error": "KeyError"}, 3.5),
    ("backoff", IDENTITY, {"error": "Diverged"}, 4),
    ("fenced", PAGE, {}, 1),
    ("duplicates", PAGE, {}, 4),
]


def test_every_hook_is_measured(observer, collected, registry, value):
    """Each thing that a consumer tells shows in a metric of its own, of both kinds of telemetry;
    failures and pauses are told apart by the kind of their error, never by its text.
    """
    for one in (observer, Prometheus(registry)):
        one.fetched(CONSUMER, 3, 5, 0.2)
        with one.applying(CONSUMER, 3, []):
            assert value("consumer_apply_duration_seconds_count", **LABELS) is None
        one.committed(CONSUMER, 3, 5)
        one.committed(CONSUMER, 3, 2)
        for number in (1, 2):
            one.failed(CONSUMER, 3, KeyError(f"secret {number}"), number)
            one.set_aside(CONSUMER, 3, 1, number - 1)
            one.waited(CONSUMER, 3, KeyError("secret"), number + 0.25)
        one.waited(CONSUMER, None, Diverged("secret"), 4.0)
        one.fenced(CONSUMER, 3)
        one.duplicate(CONSUMER, 3, 4)
        one.halted(CONSUMER, 3, KeyError("secret"))
        one.held(CONSUMER, frozenset({3, 4}))
    metrics = collected()
    assert {name: metric.unit for name, metric in metrics.items()} == {
        metric.name: metric.unit for metric in METRICS
    }
    found = {name: list(metric.data.data_points) for name, metric in metrics.items()}
    for name, where, labels, expected in COUNTED:
        attributes = where | {NAMES[label]: text for label, text in labels.items()}
        assert [p.value for p in found[name] if dict(p.attributes) == attributes] == [expected]
        unit = "_seconds" if name == "backoff" else ""
        shown = {**LABELS, "partition": "3" if where == PAGE else "", **labels}
        assert value(f"consumer_{name}{unit}_total", **shown) == expected
    for name, where, expected in (("partition_halted", PAGE, 1), ("partitions_held", IDENTITY, 2)):
        assert [(dict(p.attributes), p.value) for p in found[name]] == [(where, expected)]
    (fetch,), (apply,) = found["fetch.duration"], found["apply.duration"]
    assert (fetch.sum, apply.count) == (0.2, 1)
    assert fetch.explicit_bounds[:2] == (0.005, 0.01)
    assert value("consumer_fetch_duration_seconds_sum", **LABELS) == 0.2
    for bound, count in (("0.1", 0), ("0.25", 1), ("60.0", 1)):
        assert value("consumer_fetch_duration_seconds_bucket", le=bound, **LABELS) == count
    assert value("consumer_apply_duration_seconds_count", **LABELS) == 1
    assert "secret" not in str(found)
    assert b"secret" not in generate_latest(registry)
