"""The spans of consumers."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.trace import SpanKind, StatusCode

from zeroeventhub import Event
from zeroeventhub.errors import Fenced
from zeroeventhub.telemetry import OpenTelemetry

CONSUMER = "billing"
ONE, TWO = "1" * 32, "2" * 32


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
    """A page is applied within a span that names the consumer and the partition."""
    with observer.applying(CONSUMER, 3, [event(), event()]):
        inside = trace.get_current_span().get_span_context()
    (span,) = spans[0].get_finished_spans()
    assert (span.name, span.kind) == ("process billing", SpanKind.CONSUMER)
    assert span.context.span_id == inside.span_id
    assert (span.parent, span.links, span.status.status_code) == (None, (), StatusCode.UNSET)
    assert dict(span.attributes) == {
        "messaging.system": "zeroeventhub",
        "messaging.consumer.group.name": CONSUMER,
        "messaging.destination.partition.id": "3",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.batch.message_count": 2,
    }
    assert span.instrumentation_scope.name == "zeroeventhub"


def test_page_goes_on_with_its_trace_or_has_links(spans, observer):
    """The span of a page continues the one trace of its events, or else links to all of them."""
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
    """An event with a malformed traceparent has no trace."""
    with spans[1].get_tracer("test").start_as_current_span("outer") as outer:
        alone = finished(spans, [event(traceparent=wrong)], observer)
        beside = finished(spans, [event(traceparent=wrong), event(ONE)], observer)
    for span, links in [(alone, []), (beside, [(ONE, "a" * 16)])]:
        assert span.parent.span_id == outer.get_span_context().span_id
        assert linked(span) == links


def test_error_is_recorded(spans, observer, collected):
    """An error that is raised while a page is applied is on the span, and propagates."""
    with pytest.raises(Fenced, match="moved"), observer.applying(CONSUMER, 3, []):
        raise Fenced("It has moved.")
    (span,) = spans[0].get_finished_spans()
    assert span.status.status_code == StatusCode.ERROR
    assert span.attributes["error.type"] == "Fenced"
    (recorded,) = span.events
    assert recorded.attributes["exception.message"] == "It has moved."
    (point,) = collected()["apply.duration"].data.data_points
    assert point.count == 1
